"""The choice of the ISA level, and DUALSOFT_SIMD."""

import pytest
from conftest import REASONS, USABLE
from process import python, run_code

import dualsoft as ds
from dualsoft import isa

LEVELS = [name.partition(":")[2] for name in USABLE if ":" in name]
ABSENT = [name.partition(":")[2] for name, reason in REASONS.items() if reason is not None]
SHOW = """
import dualsoft as ds
from dualsoft import isa
ds.softmax([1.0])
print(isa.chosen(), [m.LEVEL for m in isa.loaded()])
"""
needs_kernels = pytest.mark.skipif(not LEVELS, reason="no compiled level can be used here")


@needs_kernels
def test_the_widest_usable_level_is_chosen() -> None:
    assert run_code(SHOW) == f"{LEVELS[-1]} ['{LEVELS[-1]}']"


@needs_kernels
@pytest.mark.parametrize("level", LEVELS)
def test_override(level: str) -> None:
    """The level asked for, and no other, is imported."""
    assert run_code(SHOW, DUALSOFT_SIMD=level) == f"{level} ['{level}']"


@pytest.mark.parametrize("level", ["sse9", *ABSENT])
def test_override_with_what_cannot_run(level: str) -> None:
    done = python("-c", SHOW, DUALSOFT_SIMD=level)
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert f"DUALSOFT_SIMD={level}" in last
    assert any(word in last for word in ("unknown", "not built", "lacks"))
    assert python("-m", "dualsoft", DUALSOFT_SIMD=level).returncode


def test_import_alone_loads_no_kernel() -> None:
    code = "import sys, dualsoft; print([m for m in sys.modules if m.startswith('dualsoft._simd')])"
    assert run_code(code) == "[]"


@needs_kernels
def test_modules_know_their_level(kernels: object, level: str) -> None:
    assert level.partition(":")[2] == kernels.LEVEL  # type: ignore[attr-defined]
    assert isinstance(kernels.OPENMP, bool)  # type: ignore[attr-defined]


def test_built_levels_are_usable_or_say_why_not() -> None:
    for level in isa.LEVELS:
        reason = isa.why_not(level)
        assert (reason is None) == (level in LEVELS)
        assert reason is None or "usable here" in reason
    assert (ds.backends()["cpu"] is None) == bool(LEVELS)
