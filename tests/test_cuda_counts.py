"""What the kernels move, counted: no sector of global memory too many, no bank conflict; and the same bits always.

Sectors are the 32 bytes that memory moves at the least. The emulator counts them for each request of a warp.
"""

from collections import defaultdict
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from cases import DTYPES, normal
from emulator import ProfileRow

import dualsoft as ds
from dualsoft.backends import cuda_rows

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
SECTOR = 32


def width_of(key: str) -> str:
    return "wide" if key == "f64" else "narrow"


def lengths(key: str) -> list[int]:
    """The longest row of each shape, and one that is kept in shared memory."""
    found = [shape.length for shape in cuda_rows._SHAPES[width_of(key)]]
    return [*found, 2 * found[-1] + 32]


ROWS = [(key, n) for key in DTYPES for n in lengths(key)]


def counted(call: Any) -> list[ProfileRow]:
    emulator.profile()
    with ds.use_backend(NAME), emulator.settings(profile=True):
        call()
    return emulator.profile()


def units(rows: list[ProfileRow]) -> dict[tuple[str, str], int]:
    """Sectors and wavefronts, by space and operation."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        sums[row.space, row.operation] += row.units
    return sums


def wasteful(rows: list[ProfileRow]) -> list[str]:
    return [f"{row.file}:{row.line}: {row.ratio:.2f}x: {row}" for row in rows if row.units != row.ideal]


def batch(key: str, n: int) -> Any:
    """Rows of ``n``: several groups of threads a warp and several blocks where the rows are short."""
    rows = max(1, min(70, 3000 // n))
    return devices.module(NAME).asarray(normal(key, rows, n))


# ------------------------------------------------------------------ sectors and wavefronts
@pytest.mark.parametrize(("key", "n"), ROWS)
def test_softmax_moves_each_sector_once(key: str, n: int) -> None:
    """Read once and written once, rows that are kept in shared memory as well."""
    x = batch(key, n)
    for function in (ds.softmax, ds.log_softmax):
        rows = counted(lambda function=function: function(x, -1))
        assert wasteful(rows) == []
        found = units(rows)
        assert found["global", "load"] == x.nbytes // SECTOR, function.__name__
        assert found["global", "store"] == x.nbytes // SECTOR, function.__name__


@pytest.mark.parametrize(("key", "n"), ROWS)
def test_logsumexp_reads_each_sector_once(key: str, n: int) -> None:
    """A long row's parts come back as well: three numbers of 8 bytes for each, a thousandth of the row."""
    x = batch(key, n)
    rows = counted(lambda: ds.logsumexp(x, -1))
    of_input = [row for row in rows if (row.space, row.operation, row.bytes) == ("global", "load", 16)]
    assert wasteful([row for row in rows if not is_of_parts(row)]) == []
    assert units(of_input)["global", "load"] == x.nbytes // SECTOR
    parts = x.shape[0] * -(-n // cuda_rows.SEGMENTS[width_of(key)].length) if n > lengths(key)[-2] else 0
    found = units(rows)
    assert found["global", "load"] - x.nbytes // SECTOR <= 3 * parts
    assert found["global", "store"] <= x.shape[0] + 3 * parts, "one store a row, three a part"


def is_of_parts(row: ProfileRow) -> bool:
    """Whether a line loads the pairs of parts, apart in memory: by 24 bytes in global and 32 in shared memory."""
    in_global = (row.space, row.operation, row.bytes) == ("global", "load", 8)
    return in_global or (
        row.file == "softmax_kept.cu" and (row.space, row.operation) == ("shared", "load") and row.ratio == 2
    )


@pytest.mark.parametrize(("key", "n"), [("f32", 64_000), ("f16", 100_000), ("f64", 40_000)])
def test_softmax_in_parts_reads_twice_and_writes_once(key: str, n: int) -> None:
    x = batch(key, n)
    for function in (ds.softmax, ds.log_softmax):
        rows = counted(lambda function=function: function(x, -1))
        of_input = units([row for row in rows if row.bytes == 16 and row.space == "global"])
        assert of_input["global", "load"] == 2 * x.nbytes // SECTOR
        assert of_input["global", "store"] == x.nbytes // SECTOR


@pytest.mark.parametrize("key", DTYPES)
def test_accesses_are_of_16_bytes(key: str) -> None:
    x = batch(key, 1024)
    sizes = {(row.operation, row.bytes) for row in counted(lambda: ds.softmax(x, -1)) if row.space == "global"}
    assert sizes == {("load", 16), ("store", 16)}


def test_columns_of_other_dtypes_of_the_result() -> None:
    """float32 to a half type and back: as wide as the chunk is on each side."""
    for key, other in (("f32", "f16"), ("f16", "f32"), ("f16", "f64")):
        x = batch(key, 512)
        rows = counted(lambda x=x, other=other: ds.softmax(x, -1, dtype=DTYPES[other]))
        assert units(rows)["global", "load"] == x.nbytes // SECTOR
        assert units(rows)["global", "store"] >= x.size * DTYPES[other].itemsize // SECTOR
        assert min(row.bytes for row in rows if row.space == "global") >= 8


@pytest.mark.parametrize("n", [3000, 16000, 40000])
def test_shared_memory_has_no_bank_conflicts(n: int) -> None:
    for call in (ds.softmax, ds.log_softmax, ds.logsumexp):
        rows = [row for row in counted(lambda call=call: call(batch("f32", n), -1)) if row.space == "shared"]
        assert rows, "a block has one row, and its warps meet in shared memory"
        pairs = [row for row in rows if is_of_parts(row)]
        assert len(pairs) <= 1, "the pairs of a kept row's segments, once a row"
        assert sum(row.units - row.ideal for row in pairs) <= 16
        assert wasteful([row for row in rows if row not in pairs]) == []


def test_waste_is_seen() -> None:
    """Every other element, and a row that begins off a sector: this is what the assertions above would find."""
    x = batch("f32", 2048)
    stepped = [row for row in counted(lambda: ds.logsumexp(x[:, ::2], -1)) if row.operation == "load"]
    assert sum(row.units for row in stepped if row.space == "global") > x.nbytes // 2 // SECTOR


# ------------------------------------------------------------------ the same bits
WAYS = (
    {"schedule": "descending"},
    {"schedule": "random", "seed": 1},
    {"schedule": "random", "seed": 2, "preempt": True},
)
SHORT_AND_LONG = [("f32", 7), ("f32", 200), ("f32", 1000), ("f32", 5001), ("f32", 40001), ("f16", 3000), ("f64", 3000)]


def bits(x: Any, **options: Any) -> list[bytes]:
    with ds.use_backend(NAME):
        return [f(x, -1, **options).get().tobytes() for f in (ds.softmax, ds.log_softmax, ds.logsumexp)]


@pytest.mark.parametrize(("key", "n"), SHORT_AND_LONG)
def test_the_order_of_threads_does_not_change_a_bit(key: str, n: int) -> None:
    x = devices.module(NAME).asarray(normal(key, 2, n))
    want = bits(x)
    for way in WAYS:
        with emulator.settings(**way):
            assert bits(x) == want, way


@pytest.mark.parametrize(("key", "n"), SHORT_AND_LONG)
def test_a_row_has_the_same_bits_in_every_batch(key: str, n: int) -> None:
    """Alone, among others, and where its neighbours put it off the alignment that the fast way needs."""
    cp = devices.module(NAME)
    rows = 3 if n > 10000 else 19
    x = normal(key, rows, n)
    with ds.use_backend(NAME):
        for function in (ds.softmax, ds.log_softmax, ds.logsumexp):
            together = function(cp.asarray(x), -1).get()
            for row in {0, 1, rows - 1}:
                alone = function(cp.asarray(x[row : row + 1]), -1).get()
                assert alone.tobytes() == together[row : row + 1].tobytes(), (function.__name__, row)


@pytest.mark.parametrize("key", DTYPES)
def test_masks_and_scales_that_change_nothing_change_no_bit(key: str) -> None:
    """The ways of hidden and scaled rows compute what the fast way computes."""
    cp = devices.module(NAME)
    for n in (40, 1000):
        x = cp.asarray(normal(key, 5, n))
        assert bits(x, where=cp.ones((5, n), bool)) == bits(x)
        assert bits(x, scale=cp.ones((5, 1))) == bits(x)


@pytest.mark.parametrize("key", ["f16", "bf16", "f32"])
def test_architectures_agree(key: str) -> None:
    """Whatever way a card goes from float32 to a half type."""
    found = set()
    for architecture in devices.ARCHITECTURES:
        name = f"{devices.EMULATED}:{architecture}"
        with ds.use_backend(name):
            x = devices.module(name).asarray(normal(key, 5, 1000))
            found.add((ds.softmax(x, -1).get().tobytes(), ds.logsumexp(x, -1).get().tobytes()))
    assert len(found) == 1


def test_approximations_may_be_off_as_documented() -> None:
    """Nothing relies on an approximate instruction being exact: half results move by a unit at most."""
    cp = devices.module(NAME)
    x = normal("f16", 4, 1000)
    with ds.use_backend(NAME), emulator.settings(perturb=True):
        moved = ds.softmax(cp.asarray(x), -1).get().astype(np.float64)
    with ds.use_backend("reference"):
        want = ds.softmax(x.astype(np.float64), -1)
    unit = np.spacing(want.astype(np.float16)).astype(np.float64)
    assert (np.abs(moved - want) <= unit * 0.51).all()
