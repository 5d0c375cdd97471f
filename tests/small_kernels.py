"""Small kernels, written inside the tests of the emulator."""

from typing import Any

import emulator
import pytest

SKIP = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))

WAYS: list[dict[str, Any]] = [
    *({"schedule": "ascending"}, {"schedule": "descending"}),
    *({"schedule": "random", "seed": seed} for seed in range(3)),
    {"schedule": "random", "seed": 3, "preempt": True},
]
"""Orders of threads under which a fault must be found, and a correct kernel must pass."""


def all_ways(function: Any) -> Any:
    """Run a test under each of `WAYS`, as its argument ``way``."""
    names = ["-".join(map(str, way.values())) for way in WAYS]
    return pytest.mark.parametrize("way", WAYS, ids=names)(function)


def compiled(text: str, *, architecture: str = "sm_80", name: str = "kernel", options: tuple[str, ...] = ()) -> Any:
    """Return a kernel of ``text``, whose first line counts as line 1 of ``small.cu``."""
    cp = emulator.cupy_for(architecture)
    return cp.RawModule(code=f'#line 1 "small.cu"\n{text}', options=options).get_function(name)


def line_of(text: str, mark: str = "// HERE") -> str:
    """Return "small.cu:N" of the line with the mark."""
    numbers = [number for number, line in enumerate(text.splitlines(), start=1) if mark in line]
    assert len(numbers) == 1, f"{len(numbers)} lines have the mark {mark!r}"
    return f"small.cu:{numbers[0]}"
