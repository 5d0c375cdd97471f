"""How kernels run: the order of threads, what is looked for, what is counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

Schedule = Literal["ascending", "descending", "random"]
SCHEDULES: tuple[Schedule, ...] = ("ascending", "descending", "random")


@dataclass(frozen=True)
class Settings:
    """What `settings` may set.

    Attributes
    ----------
    schedule
        The order in which the threads of a block take turns, and the blocks of a grid.
    seed
        Of the random schedule, and of ``perturb``.
    preempt
        Whether a thread may lose its turn at any access, and not only where it waits.
    races
        Whether accesses of different threads to the same bytes are compared.
    profile
        Whether sectors and bank conflicts are counted; `profile` tells them.
    perturb
        Whether approximate instructions (``ex2.approx``) are moved within their documented error.
    host_reads
        Whether the host may read what a device array holds. A call of the library must not: it would wait for the
        device.
    budget
        Accesses and switches after which a block counts as endless; 0 is the core's own limit.
    """

    schedule: Schedule = "ascending"
    seed: int = 0
    preempt: bool = False
    races: bool = True
    profile: bool = False
    perturb: bool = False
    host_reads: bool = True
    budget: int = 0


_current = Settings()


def current() -> Settings:
    """Return the settings in force."""
    return _current


@contextmanager
def settings(**changes: Any) -> Iterator[Settings]:
    """Change settings until the end of the block: ``with settings(schedule="random", seed=3):``. Names: `Settings`."""
    global _current
    before = _current
    after = replace(before, **changes)
    if after.schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {SCHEDULES}, not {after.schedule!r}")
    _current = after
    try:
        yield after
    finally:
        _current = before
