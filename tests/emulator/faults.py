"""What the core found, told in the words and lines of the kernel's source."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from .build import source_frames
from .errors import CUDADriverError, KernelFault
from .library import FaultRecord, Origin, ProfileRecord, StatisticsRecord, core, origin_of

_WRAPPERS = "ptx.cuh:"


class LaunchRefused(KernelFault, CUDADriverError):
    """A launch that the driver would refuse, too."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    kind
        Such as "race" or "out of bounds".
    place
        "file:line" of the kernel's source, "" where there is none.
    text
        What happened.
    block, thread
        Where in the grid and in the block.
    calls
        The lines of the calls that led to ``place`` (innermost first, ``place`` included).
    other
        For a race, the line of the other access.
    """

    kind: str
    place: str
    text: str
    block: tuple[int, ...]
    thread: tuple[int, ...]
    calls: tuple[str, ...] = ()
    other: str = ""

    def __str__(self) -> str:
        others = [call for call in self.calls if call != self.place]
        via = f" (by way of {', '.join(others)})" if others else ""
        other = f"; the other side is at {self.other}" if self.other else ""
        where = f"block {_triple(self.block)}, thread {_triple(self.thread)}"
        return f"{self.kind}: {self.place or 'an unknown line'}: {where}: {self.text}{other}{via}"


class ProfileRow(NamedTuple):
    """Accesses of one line: what they asked for, and what the hardware would have moved.

    ``space`` is "global" or "shared", ``operation`` "load" or "store", ``bytes`` the size of one thread's access. A
    request is an access of one warp. Units are sectors of 32 bytes in global memory and wavefronts in shared memory;
    ``ideal`` is how many there had to be.
    """

    file: str
    line: int
    space: str
    operation: str
    bytes: int
    requests: int
    units: int
    ideal: int

    @property
    def ratio(self) -> float:
        """Units over the ideal: 1 is the best."""
        return self.units / max(self.ideal, 1)


class Statistics(NamedTuple):
    """What the last launch did."""

    switches: int
    accesses: int
    collectives: int
    matrix_products: int
    blocks: int
    static_shared: int


def collected_faults() -> list[Fault]:
    """Return the faults of the last launch."""
    records = []
    for index in range(core().fault_count()):
        record = FaultRecord()
        core().fault(index, ctypes.byref(record))
        records.append(record)
    lines = lines_of([pc for record in records for pc in (record.pc, record.other_pc)])
    return [
        Fault(
            record.kind.decode(),
            _place(lines.get(record.pc, ())),
            record.text.decode(),
            tuple(record.block),
            tuple(record.thread),
            lines.get(record.pc, ()),
            _place(lines.get(record.other_pc, ())),
        )
        for record in records
    ]


def profile(*, reset: bool = True) -> list[ProfileRow]:
    """Return the counts of all launches under ``settings(profile=True)`` since the last call, summed by line."""
    records = []
    for index in range(core().profile_count()):
        record = ProfileRecord()
        core().profile_row(index, ctypes.byref(record))
        records.append(record)
    lines = lines_of([record.pc for record in records])
    sums: dict[tuple[str, int, str, str, int], list[int]] = {}
    for record in records:
        file, _, number = _place(lines.get(record.pc, ())).rpartition(":")
        space, operation = "shared" if record.shared else "global", "store" if record.write else "load"
        counts = sums.setdefault((file, int(number or 0), space, operation, record.bytes), [0, 0, 0])
        for position, count in enumerate((record.requests, record.units, record.ideal)):
            counts[position] += count
    if reset:
        core().profile_reset()
    return [ProfileRow(*key, *counts) for key, counts in sorted(sums.items())]


def statistics() -> Statistics:
    """Return the counts of the last launch."""
    record = StatisticsRecord()
    core().statistics(ctypes.byref(record))
    return Statistics(*(getattr(record, name) for name in Statistics._fields))


def lines_of(program_counters: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Return for each return address in a kernel its "file:line", innermost call first."""
    origins = {pc: origin_of(pc) for pc in program_counters}
    by_library: dict[str, list[int]] = {}
    for origin in origins.values():
        if origin is not None and origin not in _known_lines():
            by_library.setdefault(origin.library, []).append(origin.address)
    for library, addresses in by_library.items():
        for address, frames in zip(addresses, source_frames(library, addresses), strict=True):
            _known_lines()[Origin(library, address)] = tuple(frames)
    return {pc: _known_lines()[origin] for pc, origin in origins.items() if origin is not None}


@cache
def _known_lines() -> dict[Origin, tuple[str, ...]]:
    return {}


def _place(calls: Sequence[str]) -> str:
    """Return the innermost line that is not one of the wrappers of PTX instructions: those are the same everywhere."""
    return next((call for call in calls if not call.startswith(_WRAPPERS)), calls[0] if calls else "")


def _triple(index: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, index))})"
