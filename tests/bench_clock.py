"""A card's clock for tests of the benchmark: it makes its times up, beside the emulator's look-alike of CuPy."""

import itertools
from types import SimpleNamespace
from typing import Any

MADE_UP_MILLISECONDS = 1.0


class Event:
    """An event of a clock that says the same whatever happened."""

    count = itertools.count()

    def __init__(self) -> None:
        self.recorded: int | None = None

    def record(self) -> None:
        self.recorded = next(self.count)

    def synchronize(self) -> None:
        assert self.recorded is not None


def get_elapsed_time(begin: Event, end: Event) -> float:
    assert begin.recorded is not None
    assert end.recorded is not None
    assert begin.recorded < end.recorded
    return MADE_UP_MILLISECONDS


class WithClock:
    """The emulator's look-alike of CuPy with what only the benchmark asks of a card."""

    __version__ = "14.0.0"

    def __init__(self, cp: Any) -> None:
        self._cp = cp
        self.copies = 0
        runtime = SimpleNamespace(
            **vars(cp.cuda.runtime),
            getDeviceProperties=lambda device: {"name": b"An Emulated Card (not real)", "totalGlobalMem": 2**32},
        )
        names = vars(cp.cuda) | {"runtime": runtime, "Device": self._device}
        self.cuda = SimpleNamespace(**names, Event=Event, get_elapsed_time=get_elapsed_time)

    def _device(self) -> Any:
        found = self._cp.cuda.Device()
        attributes = found.attributes | {"L2CacheSize": 1 << 12}
        return SimpleNamespace(id=found.id, compute_capability=found.compute_capability, attributes=attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cp, name)

    def copyto(self, *arrays: Any) -> None:
        self.copies += 1
        self._cp.copyto(*arrays)
