"""Sectors of global memory and wavefronts of shared memory, counted by source line."""

from typing import Any

import emulator
import numpy as np
import pytest
from emulator import ProfileRow, cupy_for
from small_kernels import SKIP, compiled, line_of

pytestmark = SKIP
cp = cupy_for("sm_80")


def profiled(text: str, blocks: int = 1, size: int = 4096, dtype: Any = np.float32) -> dict[str, list[ProfileRow]]:
    x, y = cp.zeros(size, dtype), cp.zeros(size, dtype)
    kernel = compiled(text)
    emulator.profile()
    with emulator.settings(profile=True):
        kernel((blocks,), (32,), (y, x))
    rows: dict[str, list[ProfileRow]] = {}
    for row in emulator.profile():
        rows.setdefault(f"{row.file}:{row.line}", []).append(row)
    return rows


def counts(text: str, blocks: int = 1) -> tuple[Any, ...]:
    (row,) = profiled(text, blocks)[line_of(text)]
    return row.space, row.operation, row.bytes, row.requests, row.units, row.ideal


HEAD = """extern "C" __global__ void kernel(float* y, const float* x) {
    const int i = threadIdx.x;
    y += 1024 * blockIdx.x;
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y[i] = 1; // HERE", ("global", "store", 4, 1, 4, 4)),
        ("float v = x[i]; // HERE\n y[0 * i + i] = v;", ("global", "load", 4, 1, 4, 4)),
        ("y[8 * i] = 1; // HERE", ("global", "store", 4, 1, 32, 4)),
        ("y[i + 1] = 1; // HERE", ("global", "store", 4, 1, 5, 4)),
        ("y[2 * i] = 1; // HERE", ("global", "store", 4, 1, 8, 4)),
        ("float4 v = *(const float4*)x;\n ((float4*)y)[i] = v; // HERE", ("global", "store", 16, 1, 16, 16)),
    ],
    ids=["coalesced store", "coalesced load", "one sector a thread", "shifted", "every other", "vectors"],
)
def test_sectors(body: str, expected: tuple[Any, ...]) -> None:
    text = f"{HEAD}    {body}\n}}\n"
    assert counts(text) == expected
    space, operation, size, requests, units, ideal = expected
    assert counts(text, 3) == (space, operation, size, 3 * requests, 3 * units, 3 * ideal)


@pytest.mark.parametrize(
    ("body", "units"),
    [
        ("tile[i] = 1; // HERE", 1),
        ("tile[2 * i] = 1; // HERE", 2),
        ("tile[32 * i] = 1; // HERE", 32),
        ("tile[33 * i] = 1; // HERE", 1),
        ("tile[8 * (i % 4)] = 1; // HERE", 1),
    ],
    ids=["in a row", "stride 2", "one bank", "padded", "same words"],
)
def test_bank_conflicts(body: str, units: int) -> None:
    text = f"{HEAD}    DS_SHARED(float, tile, 1056);\n    {body}\n    y[i] = 0;\n}}\n"
    with emulator.settings(races=False):
        assert counts(text) == ("shared", "store", 4, 1, units, 1)


def test_bank_conflicts_of_vectors() -> None:
    body = (
        "DS_SHARED(float4, tile, 32);\n    const float4 v = *(const float4*)x;\n    tile[i] = v; // HERE\n    y[i] = 0;"
    )
    text = f"{HEAD}    {body}\n}}\n"
    assert counts(text) == ("shared", "store", 16, 1, 4, 4)


def test_ratio_and_reset() -> None:
    text = f"{HEAD}    y[8 * i] = 1; // HERE\n}}\n"
    (row,) = profiled(text)[line_of(text)]
    assert row.ratio == 8
    assert emulator.profile() == []


def test_nothing_is_counted_unless_asked() -> None:
    emulator.profile()
    compiled(f"{HEAD}    y[i] = 1;\n}}\n")((1,), (32,), (cp.zeros(32, np.float32), cp.zeros(1, np.float32)))
    assert emulator.profile() == []
    assert emulator.statistics().accesses == 32
