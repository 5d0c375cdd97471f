"""The card that is measured, and its clock: how long work takes between two events of its stream."""

import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bench.contest import Array, Call

CACHE_FACTOR = 4
"""Buffers that take turns are this many times as large as the card's last cache: none is found there again."""
LEAST_COPY_BYTES = 2**30
TURN_SECONDS = 0.002
MOST_CALLS = 100
"""In one turn; far fewer launches than a card's queue holds, past which the host would have to wait."""
HEAD_START = 2.0
"""How many times as long as launching a turn's work takes the card is kept busy before."""


class Device(NamedTuple):
    """A card, seen through a module that has CuPy's names."""

    cp: Any
    name: str
    capability: str
    cache_bytes: int
    """Of the last cache, which all processors of the card share."""
    memory_bytes: int
    versions: dict[str, str]
    simulated: bool = False
    """Whether its clock is a stand-in's, for tests of this code: its times mean nothing, and all output says so."""


def this_device(cp: Any = None) -> Device:
    """Return CuPy's current device."""
    cp = importlib.import_module("cupy") if cp is None else cp
    device = cp.cuda.Device()
    facts = cp.cuda.runtime.getDeviceProperties(device.id)
    name = facts["name"]
    nvrtc = ".".join(map(str, cp.cuda.nvrtc.getVersion()))
    versions = {
        "cupy": str(cp.__version__),
        "nvrtc": nvrtc,
        "cuda runtime": str(cp.cuda.runtime.runtimeGetVersion()),
        "cuda driver": str(cp.cuda.runtime.driverGetVersion()),
    }
    return Device(
        cp,
        name.decode() if isinstance(name, bytes) else str(name),
        str(device.compute_capability),
        int(device.attributes["L2CacheSize"]),
        int(facts["totalGlobalMem"]),
        versions,
    )


class Span(NamedTuple):
    """How long one call of some took."""

    device: float
    """Seconds of the card."""
    host: float
    """Seconds until the call returned, which is long before the card is done."""


class Rotation:
    """The same call on several sets of buffers, which take turns."""

    def __init__(self, name: str, calls: Sequence[Call], is_cold: bool) -> None:
        self.name = name
        self.is_cold = is_cold
        """Whether a set of buffers has left the cache when its turn comes again."""
        self.size = len(calls)
        self._next: Iterator[Call] = itertools.cycle(calls)

    def __call__(self) -> Array:
        return next(self._next)()


class Clock:
    """Times a device's work, beside copies of arrays that no cache holds."""

    def __init__(self, device: Device) -> None:
        self.device = device
        cp = device.cp
        self.copy_bytes = max(LEAST_COPY_BYTES, CACHE_FACTOR * device.cache_bytes)
        # Half of them read and half written.
        self._source, self._target = (cp.zeros(self.copy_bytes // 2, "uint8") for _ in range(2))
        self._begin, self._end = cp.cuda.Event(), cp.cuda.Event()
        self._copy_seconds = self._between(self._copy, 3).device
        self._copy_seconds = self._between(self._copy, 3).device

    def _copy(self) -> None:
        self.device.cp.copyto(self._target, self._source)

    def copy_rate(self) -> float:
        """Return the bytes a second, read and written ones together, at which the card copies."""
        calls = max(3, math.ceil(TURN_SECONDS / self._copy_seconds))
        return self.copy_bytes / self._between(self._copy, calls).device

    def span(self, call: Callable[[], object], calls: int, head_start: float) -> Span:
        """Return how long a call takes, of several one after the other.

        Parameters
        ----------
        call : callable
            Work of the current stream, which need not be complete when it returns.
        calls : int
        head_start : float
            For how many seconds the card is kept busy before, so that it never waits for the host. What keeps it busy
            also leaves nothing of earlier calls in its cache.
        """
        for _ in range(max(1, math.ceil(head_start / self._copy_seconds))):
            self._copy()
        return self._between(call, calls)

    def _between(self, call: Callable[[], object], calls: int) -> Span:
        self._begin.record()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        host = time.perf_counter() - begin
        self._end.record()
        self._end.synchronize()
        milliseconds = self.device.cp.cuda.get_elapsed_time(self._begin, self._end)
        return Span(milliseconds / 1e3 / calls, host / calls)


class Turn:
    """What one contender does each time that it is its turn."""

    def __init__(self, clock: Clock, rotation: Rotation) -> None:
        self._clock, self._rotation = clock, rotation
        self.name = rotation.name
        for _ in range(rotation.size):  # every buffer touched, every kernel loaded
            rotation()
        first = clock.span(rotation, rotation.size, 0.0)
        wanted = rotation.size if not rotation.is_cold else max(rotation.size, math.ceil(TURN_SECONDS / first.device))
        self.calls = min(wanted, MOST_CALLS)
        self.head_start = HEAD_START * first.host * self.calls
        self.spans: list[Span] = []

    def rate(self) -> float:
        """Return calls a second of the card."""
        span = self._clock.span(self._rotation, self.calls, self.head_start)
        self.spans.append(span)
        return 1 / span.device
