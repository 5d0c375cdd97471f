"""The levels of instruction set that the kernels are compiled for, and the choice of one.

Each level is a module of its own, ``dualsoft._simd_<level>``, imported only after it is known that the processor and
the operating system can run it. ``DUALSOFT_SIMD`` overrides the choice.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple, cast

ENVIRONMENT = "DUALSOFT_SIMD"
SPINS = "3000"
_WAITING = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})


class Level(NamedTuple):
    """One row of the table of levels."""

    machine: str
    needs: str
    """What the processor must have, in words."""


LEVELS: dict[str, Level] = {
    "x86_64_v2": Level("x86_64", "SSE4.2"),
    "x86_64_v3": Level("x86_64", "AVX2, FMA, F16C"),
    "x86_64_v4": Level("x86_64", "AVX-512 F, BW, CD, DQ, VL"),
    "x86_64_v4_bf16": Level("x86_64", "AVX-512 F, BW, CD, DQ, VL, BF16"),
    "aarch64": Level("aarch64", "NEON"),
}
"""Every level that the sources know; within a machine, the later the wider."""

_loaded: dict[str, ModuleType] = {}
_chosen: str | None = None


def module_name(level: str) -> str:
    """Return the name of the module that holds the kernels of ``level``."""
    return f"dualsoft._simd_{level}"


def built() -> list[str]:
    """Return the levels whose modules are installed."""
    return [level for level in LEVELS if importlib.util.find_spec(module_name(level)) is not None]


def runnable() -> list[str]:
    """Return the levels that this processor and operating system can run, installed or not."""
    if importlib.util.find_spec("dualsoft._cpuid") is None:
        return []
    query = cast(Callable[[], list[str]], importlib.import_module("dualsoft._cpuid").usable_levels)
    known = query()
    return [level for level in LEVELS if level in known]


def usable() -> list[str]:
    """Return the levels that are installed and can run here, the widest last."""
    can_run = runnable()
    return [level for level in built() if level in can_run]


def why_not(level: str, *, short: bool = False) -> str | None:
    """Return why ``level`` cannot be used here, and (unless ``short``) what can; None if it can."""
    if level in usable():
        return None
    if level not in built():
        reason = "it was not built"
    elif not runnable():
        reason = "dualsoft._cpuid was not built, so it is not known what the processor can run"
    else:
        reason = f"the processor or the operating system lacks what it needs ({LEVELS[level].needs})"
    return reason if short else f"{reason}; usable here: {', '.join(usable()) or 'none'}"


def check(level: str, asked_by: str) -> None:
    """Raise unless ``level`` can be used here.

    Raises
    ------
    ValueError
        When there is no such level.
    RuntimeError
        When it was not built or cannot run here.
    """
    if level not in LEVELS:
        raise ValueError(f"{asked_by} asks for an unknown level of instruction set; known: {', '.join(LEVELS)}")
    reason = why_not(level)
    if reason is not None:
        raise RuntimeError(f"{asked_by} asks for a level of instruction set that cannot be used: {reason}")


def chosen() -> str | None:
    """Return the level that serves by default: ``DUALSOFT_SIMD``, else the widest usable one, else None.

    Raises
    ------
    ValueError, RuntimeError
        When ``DUALSOFT_SIMD`` names a level that is unknown, not built or not runnable.
    """
    global _chosen
    if _chosen is None:
        asked = os.environ.get(ENVIRONMENT, "")
        if asked:
            check(asked, f"{ENVIRONMENT}={asked}")
            _chosen = asked
        else:
            _chosen = next(reversed(usable()), None)
    return _chosen


def load(level: str) -> ModuleType:
    """Return the kernels of ``level``, imported at the first call. The caller has made sure that it is usable."""
    kernels = _loaded.get(level)
    if kernels is None:
        with _short_wait():
            kernels = _loaded[level] = importlib.import_module(module_name(level))
    return kernels


@contextmanager
def _short_wait() -> Iterator[None]:
    """Have GNU's OpenMP, which reads it when it is loaded, let its idle threads sleep after some ten microseconds.

    Its own default, milliseconds of spinning, uses up the threads' share of a busy processor: the next call then waits
    for a thread that does not get its turn. Whoever has chosen a policy by its environment variables keeps it.
    """
    chosen_already = not _WAITING.isdisjoint(os.environ)
    if not chosen_already:
        os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        if not chosen_already:
            del os.environ["GOMP_SPINCOUNT"]


def loaded() -> list[ModuleType]:
    """Return the kernel modules that have been imported so far."""
    return list(_loaded.values())
