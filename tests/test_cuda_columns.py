"""Rows that are not contiguous on the CUDA backend: right, read once, and with bits that depend on a row alone."""

from typing import Any

import devices
import emulator
import numpy as np
import oracle
import pytest
from cases import DTYPES, normal
from cuda_mistakes_columns import CALLS, MUTATIONS, Call
from tolerance import mismatch

import dualsoft as ds
from dualsoft.backends import cuda, cuda_columns, nvrtc
from dualsoft.problem import softmax_problem

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
SECTOR = 32
FUNCTIONS = (ds.softmax, ds.log_softmax, ds.logsumexp)
LENGTHS = (2, 7, 8, 9, 40, 255, 256, 257, 1000, 4096, 4097, 9000)


def found(call: Call, backend: str = NAME) -> Any:
    with ds.use_backend(backend):
        options = {"keepdims": True} if call.function == "logsumexp" else {}
        return getattr(ds, call.function)(devices.put(NAME, call.x), call.axis, **options, **call.options).get()


def wrong(call: Call, backend: str = NAME) -> str | None:
    want = getattr(oracle, call.function)(call.x, call.axis, oracle.wide_type(call.x.dtype), **call.options)
    want = want[0] if call.function == "logsumexp" else want
    return mismatch(call.function, found(call, backend), want, call.x.dtype, "cuda")


# ------------------------------------------------------------------ right, whatever the shape
@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(key: str, n: int) -> None:
    for function in ("softmax", "log_softmax", "logsumexp"):
        for width in (3, 16) if n > 4000 else (1, 5, 16, 40):
            # a column beside others that are not looked at keeps its stride where there is only one
            x = normal(key, n, width + 8)[:, :width]
            assert wrong(Call(function, x, 0)) is None, (function, width)


@pytest.mark.parametrize("architecture", devices.ARCHITECTURES)
@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str, architecture: str) -> None:
    call = CALLS[name]
    assert cuda_columns.serves(softmax_problem(call.x, call.axis, None, call.options.get("scale"), None, None, False))
    if architecture == "sm_80":
        assert wrong(call) is None
        return
    backend = f"{devices.EMULATED}:{architecture}"
    with ds.use_backend(backend):
        x = devices.put(backend, call.x)
        options = {"keepdims": True} if call.function == "logsumexp" else {}
        got = getattr(ds, call.function)(x, call.axis, **options, **call.options).get()
    assert got.tobytes() == found(call).tobytes()


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("n", [40, 300, 5000])
def test_states(key: str, n: int) -> None:
    x = normal(key, n, 16)
    cp = devices.module(NAME)
    with ds.use_backend(NAME):
        state = ds.softmax_state(cp.asarray(x), 0)
        lse, probabilities = state.lse.get(), state.normalize(cp.asarray(x), 0).get()
    with ds.use_backend("reference"):
        want = ds.softmax_state(x, 0)
    precision = np.float64 if key == "f64" else np.float32
    assert (state.m.get() == want.m).all()
    assert np.abs(lse - want.lse).max() <= 4 * np.spacing(np.abs(want.lse).max().astype(precision))
    want = oracle.softmax(x, 0, oracle.wide_type(x.dtype))
    assert mismatch("softmax", probabilities, want, x.dtype, "cuda") is None


# ------------------------------------------------------------------ bits
@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("n", [7, 40, 300, 5000])
def test_a_column_has_the_same_bits_among_any_others(key: str, n: int) -> None:
    """Alone, among few and many, aligned and not, and with neighbours that do not lie beside it."""
    whole = normal(key, n, 48)
    for function in ("softmax", "log_softmax", "logsumexp"):
        want = found(Call(function, whole, 0))
        for first, last, step in ((0, 1, 1), (0, 5, 1), (1, 40, 1), (3, 33, 1), (0, 48, 7), (16, 32, 1)):
            got = found(Call(function, whole[:, first:last:step], 0))
            assert got.tobytes() == want[:, first:last:step].tobytes(), (function, first, last, step)


@pytest.mark.parametrize("key", ["f16", "f32", "f64"])
def test_the_order_of_threads_does_not_change_a_bit(key: str) -> None:
    for shape in ((9, 40), (300, 5), (300, 40), (5000, 3)):
        for function in ("softmax", "log_softmax", "logsumexp"):
            call = Call(function, normal(key, *shape), 0)
            want = found(call).tobytes()
            for way in ({"schedule": "descending"}, {"schedule": "random", "seed": 1, "preempt": True}):
                with emulator.settings(**way):
                    assert found(call).tobytes() == want, (shape, function, way)


def test_fewer_blocks_than_tiles_and_no_room_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in ((300, 100), (5000, 40)):
        for function in ("softmax", "log_softmax", "logsumexp"):
            call = Call(function, normal("f32", *shape), 0)
            want = found(call).tobytes()
            with monkeypatch.context() as patch:
                patch.setattr(cuda_columns, "MOST_BLOCKS", 2)
                patch.setattr(cuda_columns.Tiles, "keeping", lambda tiles, limit: tiles)
                assert found(call).tobytes() == want, (shape, function)


# ------------------------------------------------------------------ sectors
def sectors(call: Call) -> tuple[int, int, set[int]]:
    """Sectors read and written, and the sizes of the reading accesses."""
    emulator.profile()
    with emulator.settings(profile=True):
        found(call)
    rows = [row for row in emulator.profile() if row.space == "global"]
    reads, writes = ([row for row in rows if row.operation == operation] for operation in ("load", "store"))
    return sum(row.units for row in reads), sum(row.units for row in writes), {row.bytes for row in reads}


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("shape", [(8, 1024), (40, 256), (256, 64), (1000, 64), (2000, 64), (2, 300, 64)])
def test_columns_are_read_once_by_16_bytes(key: str, shape: tuple[int, ...]) -> None:
    x = normal(key, *shape)
    for function in ("softmax", "log_softmax", "logsumexp"):
        read, written, sizes = sectors(Call(function, x, -2))
        # a row's logarithm that is near 0 is summed twice, and long columns are not kept for that
        assert read == x.nbytes // SECTOR, function
        assert sizes == {16}
        if function != "logsumexp":
            assert written == x.nbytes // SECTOR


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("width", [3, 5, 13])
def test_few_columns_are_read_once(key: str, width: int) -> None:
    """Lines of columns that follow each other without a gap: neighbouring threads take neighbouring elements."""
    x = normal(key, 512, width)
    for function in ("softmax", "logsumexp"):
        read, _, _ = sectors(Call(function, x, 0))
        assert read <= 1.05 * x.nbytes / SECTOR


def test_long_columns_are_read_once_for_logarithms_and_twice_for_softmax() -> None:
    x = normal("f32", 9000, 16)
    assert sectors(Call("logsumexp", x, 0))[0] <= 1.02 * x.nbytes / SECTOR
    assert sectors(Call("softmax", x, 0))[0] <= 2.04 * x.nbytes / SECTOR


# ------------------------------------------------------------------ what is not theirs
def test_what_goes_by_rows() -> None:
    x = np.zeros((6, 8), np.float32)
    for array, axis, options in (
        (x, -1, {}),
        (x[:, ::-1], -1, {}),
        (x, (0, 1), {}),
        (x, 0, {"where": x == 0}),
        (x, 0, {"scale": np.ones((1, 8))}),
        (x.astype(np.int32), 0, {}),
        (x[:1], 0, {}),
    ):
        problem = softmax_problem(array, axis, options.get("where"), options.get("scale"), None, None, False)
        assert not cuda_columns.serves(problem)


# ------------------------------------------------------------------ planted mistakes
@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, assemble = MUTATIONS[name], nvrtc.assemble
    sources = {variant.source for variant in cuda_columns.variants()}
    assert any(mutation.old in assemble(source) for source in sources), (
        "the kernels have changed, and this test with them"
    )
    monkeypatch.setattr(nvrtc, "assemble", lambda source: assemble(source).replace(mutation.old, mutation.new))
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    for call in mutation.calls:
        try:
            how = "wrong numbers" if wrong(CALLS[call], "cuda") else None
        except emulator.KernelFault as fault:
            how = ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]
        assert how is not None, f"{call}: nobody sees it"
        assert any(sign in how for sign in mutation.signs), f"{call}: seen as {how}"
