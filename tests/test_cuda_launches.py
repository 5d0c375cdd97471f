"""What the launch tables of the row kernels ask for: variants, grids, parts and waves of long rows."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualsoft as ds
from dualsoft.backends import cuda, cuda_layout, cuda_rows
from dualsoft.backends.cuda_launch import Launch
from dualsoft.dtypes import BF16, F16, F32, F64, I8
from dualsoft.problem import (
    LogSumExpProblem,
    NormalizeProblem,
    SoftmaxProblem,
    StateProblem,
    logsumexp_problem,
    softmax_problem,
)

needs_emulator = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
CODES = {F16: np.float16, BF16: np.uint16, F32: np.float32, F64: np.float64, I8: np.int8}


def dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return tuple(size * math.prod(shape[k + 1 :]) for k in range(len(shape)))


def fake(at: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None) -> Any:
    """An array as far as a launch looks at it: no memory behind it."""
    dtype = np.dtype(dtype)
    strides = dense(shape, dtype.itemsize) if strides is None else strides
    return SimpleNamespace(shape=shape, dtype=dtype, strides=strides, data=SimpleNamespace(ptr=at), ndim=len(shape))


class FakeDevice:
    """A device as far as a launch table looks at it; keeps what was asked of its memory."""

    def __init__(self, dynamic_limit: int = 159 << 10, cache: int = 40 << 20) -> None:
        self.dynamic_limit, self.cache = dynamic_limit, cache
        self.scratches: list[tuple[int, ...]] = []

    def scratch(self, shape: tuple[int, ...], dtype: str = "float64") -> Any:
        self.scratches.append(shape)
        return fake(1 << 20, shape, dtype)


def softmax_of(x: Any, out: Any, x_code: int, out_code: int, *, log: bool = False) -> SoftmaxProblem:
    return SoftmaxProblem(x, out, (x.ndim - 1,), 1 << x.ndim - 1, None, None, x_code, out_code, log)


def launches_of(problem: Any, device: FakeDevice | None = None, most: int | None = None) -> list[Launch]:
    table: Any = {
        SoftmaxProblem: cuda_rows.softmax,
        LogSumExpProblem: cuda_rows.logsumexp,
        StateProblem: cuda_rows.state,
        NormalizeProblem: cuda_rows.normalize,
    }[type(problem)]
    return list(itertools.islice(table(problem, device or FakeDevice()), most))


def only(launches: list[Launch]) -> Launch:
    (launch,) = launches
    return launch


def every_problem(rows: int, n: int, x_code: int = F32, steps: tuple[int, int] = (0, 4)) -> dict[str, Any]:
    """Problems on rows that need no memory of their own: strides of 0."""
    x, out = fake(512, (rows, n), CODES[x_code], steps), fake(512, (rows, n), np.float32, steps)
    m, rest = (fake(at, (rows, 1), np.float64, (0, 0)) for at in (512, 1024))
    lse = fake(512, (rows, 1), np.float32, (0, 0))
    return {
        "softmax": softmax_of(x, out, x_code, F32),
        "log_softmax": softmax_of(x, out, x_code, F32, log=True),
        "logsumexp": LogSumExpProblem(x, lse, (1,), 2, None, None, x_code, F32, None, None, F32),
        "state": StateProblem(x, m, rest, (1,), 2, None, None, x_code),
        "normalize": NormalizeProblem(x, out, (1,), 2, None, None, x_code, F32, m, rest),
    }


# ------------------------------------------------------------------ which variant
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(CODES)),
    st.sampled_from([F16, F32, F64]),
    st.one_of(st.integers(1, 70), st.integers(16380, 16400), st.integers(8180, 8200)),
    st.sampled_from([0, 0, 0, 1, 2, 4, 8, 12, 16]),
    st.sampled_from([0, 0, 0, 1, 2, 4, 8, 12, 16]),
    st.sampled_from([0, 0, 1, 3, 5]),
    st.sampled_from([1, 1, 1, 1, 2, -1]),
)
def test_direct_where_rows_are_contiguous_and_elements_aligned(
    x_code: int, out_code: int, n: int, x_at: int, out_at: int, gap: int, step: int
) -> None:
    x_size, out_size = np.dtype(CODES[x_code]).itemsize, np.dtype(CODES[out_code]).itemsize
    width = n * abs(step) + gap
    x = fake(512 + x_at, (3, n), CODES[x_code], (width * x_size, step * x_size))
    out = fake(512 + out_at, (3, n), CODES[out_code], (width * out_size, out_size))

    def goes_by_chunks(array: Any, size: int) -> bool:
        is_dense = n == 1 or array.strides[1] == size
        return is_dense and all((array.data.ptr + row * array.strides[0]) % size == 0 for row in range(3))

    *reading, writing = launches_of(softmax_of(x, out, x_code, out_code))
    for launch in reading:
        if launch.variant.kernel != "join_parts":
            assert dict(launch.variant.defines)["DS_DIRECT"] == goes_by_chunks(x, x_size)
    both = goes_by_chunks(x, x_size) and goes_by_chunks(out, out_size)
    assert dict(writing.variant.defines)["DS_DIRECT"] == both
    if x_size > 1 and n > 16384:
        assert (writing.variant.kernel == "softmax_kept") == both, "a row that fits is kept where it is contiguous"


@pytest.mark.parametrize("n", [64, 20000, 100_000])
@pytest.mark.parametrize("option", ["where", "scale array", "scale"])
def test_what_hides_is_not_direct_and_what_scales_is(option: str, n: int) -> None:
    def problem(**changes: Any) -> SoftmaxProblem:
        x, out = fake(512, (3, n), np.float32), fake(512, (3, n), np.float32)
        return softmax_of(x, out, F32, F32)._replace(**changes)

    def direct(launches: list[Launch]) -> set[Any]:
        return {
            dict(launch.variant.defines)["DS_DIRECT"] for launch in launches if launch.variant.kernel != "join_parts"
        }

    assert direct(launches_of(problem())) == direct(launches_of(problem(scale=1.0))) == {1}
    changed = {
        "where": problem(where=fake(512, (3, n), np.bool_)),
        "scale array": problem(scale=fake(512, (3, 1), np.float64)),
        "scale": problem(scale=0.5),
    }[option]
    launches = launches_of(changed)
    assert direct(launches) == {int(option != "where")}
    for launch in launches:
        if launch.variant.kernel != "join_parts":
            factor = launch.arguments[2 if launch.variant.kernel == "softmax_kept" else 3]
            assert type(factor) is np.float64
            assert factor == (0.5 if option == "scale" else 1)


@pytest.mark.parametrize("code", [F16, BF16, F32, F64, I8])
@pytest.mark.parametrize("n", [1, 7, 64, 65, 1000, 4096, 20000, 200_000])
def test_the_variants_do_not_depend_on_the_batch(code: int, n: int) -> None:
    out_code = F64 if code == I8 else code
    # A step from row to row that is a multiple of 16 in any batch: what is left to differ is the number of rows.
    step = -(-n * 8 // 128) * 128
    found = set()
    for rows in (1, 2, 7, 100, 2**33):
        x = fake(512, (rows, n), CODES[code], (step, np.dtype(CODES[code]).itemsize))
        out = fake(512, (rows, n), CODES[out_code], (step, np.dtype(CODES[out_code]).itemsize))
        launches = launches_of(softmax_of(x, out, code, out_code), most=3)
        found.add(tuple((launch.variant, launch.block, launch.shared) for launch in launches))
        assert all(launch.grid >= 1 for launch in launches)
    assert len(found) == 1


@pytest.mark.parametrize("code", [F16, F32, F64])
def test_rows_are_kept_as_long_as_they_fit(code: int) -> None:
    size = np.dtype(CODES[code]).itemsize
    for limit in (96 << 10, 159 << 10, 223 << 10):
        most = limit // size
        for n, kept in ((most - 3, True), (most, True), (most + 1, False)):
            x = fake(512, (2, n), CODES[code], (-(-n * size // 16) * 16, size))
            launches = launches_of(softmax_of(x, x, code, code), FakeDevice(limit))
            if not kept:
                assert [launch.variant.kernel for launch in launches] == [
                    "parts_of_rows",
                    "join_parts",
                    "normalize_rows",
                ]
                continue
            launch = only(launches)
            assert (launch.variant.kernel, launch.variant.is_dynamic) == ("softmax_kept", True)
            assert n * size <= launch.shared <= limit
            assert launch.shared % 16 == 0


# ------------------------------------------------------------------ grids
@pytest.mark.parametrize("n", [1, 8, 65, 3000, 30000, 2**20])
@pytest.mark.parametrize("rows", [1, 3, 2**31 - 1, 2**31, 2**40])
def test_grids_stay_within_the_limit_and_cover_all_rows(n: int, rows: int) -> None:
    for name, problem in every_problem(rows, n).items():
        for launch in launches_of(problem, most=3):
            macros = dict(launch.variant.defines)
            group = macros.get("DS_GROUP", 32)
            units = rows
            if launch.variant.kernel == "parts_of_rows":
                of_launch, parts = map(int, launch.arguments[-3:-1])
                units = of_launch * parts
            elif launch.variant.kernel in ("join_parts", "normalize_rows"):
                units = int(launch.arguments[-1])
            if launch.variant.kernel == "normalize_rows":
                units *= -(-n // (group * macros["DS_CHUNK"] * macros["DS_SLOTS"]))
            assert 1 <= launch.grid <= 2**31 - 1, name
            assert launch.block <= 1024, name
            needed = -(-units // (launch.block // group))
            assert launch.grid == min(needed, 2**31 - 1), f"{name}: a block for all, or the kernel goes round"


# ------------------------------------------------------------------ parts and waves of long rows
@pytest.mark.parametrize("width", ["narrow", "wide"])
def test_parts_have_every_segment_once(width: str) -> None:
    segment, code = cuda_rows.SEGMENTS[width].length, F32 if width == "narrow" else F64
    for segments in (3, 4, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 3000, 10**6):
        for n in (segments * segment, (segments - 1) * segment + 1):
            for name, problem in every_problem(3, n, code).items():
                launches = launches_of(problem, FakeDevice(dynamic_limit=0))
                for launch in launches:
                    if launch.variant.kernel == "parts_of_rows":
                        parts, length = map(int, launch.arguments[-2:])
                        assert 1 <= parts <= cuda_rows._MOST_PARTS, name
                        assert (parts - 1) * length < segments <= parts * length, "none is left out, none is empty"
                        assert length == 1 or segments > cuda_rows._MOST_PARTS, "as many parts as there may be"
                assert name == "normalize" or len(launches) > 1


@pytest.mark.parametrize("code", [F16, F32, F64, I8])
@pytest.mark.parametrize(("rows", "n"), [(1, 200_000), (7, 200_000), (100, 90_000), (5, 10**7)])
def test_waves_have_every_row_once_and_fit_the_cache(rows: int, n: int, code: int) -> None:
    out_code, size = F64 if code == I8 else code, np.dtype(CODES[code]).itemsize
    x = fake(512, (rows, n), CODES[code], (n * size + 2 * size, size))
    out = fake(512, (rows, n), CODES[out_code])
    device = FakeDevice(cache=4 << 20)
    launches = launches_of(softmax_of(x, out, code, out_code), device)
    done = 0
    for wave in zip(*[iter(launches)] * 3, strict=True):
        parts, join, normalize = wave
        kernels = [launch.variant.kernel for launch in wave]
        assert kernels == ["parts_of_rows", "join_parts", "normalize_rows"]
        first, together, count, _ = map(int, parts.arguments[-4:])
        assert tuple(map(int, join.arguments[-2:])) == tuple(map(int, normalize.arguments[-2:])) == (first, together)
        assert first == done
        assert together == 1 or together * n * size <= device.cache // 2
        assert int(join.arguments[1]) == count
        scratch = join.arguments[0]
        assert scratch is parts.arguments[4], "what one kernel writes the next reads"
        assert together * count * 3 <= math.prod(scratch.shape)
        done += together
    assert done == rows
    m, rest = device.scratches[:2]
    assert m == rest == (rows, 1)


# ------------------------------------------------------------------ arguments, and what a launch table may leave open
@needs_emulator
def test_arguments_are_of_the_kernels_kinds() -> None:
    cp = devices.module(NAME)
    x = cp.zeros((3, 40), np.float32)
    launch = only(launches_of(softmax_problem(x, -1, None, None, None, None, False)))
    assert [type(argument) for argument in launch.arguments[1:4]] == [type(None), type(None), np.float64]
    assert launch.arguments[0] is x
    assert launch.arguments[-1].dtype == cuda_layout._LAYOUT
    assert launch.arguments[-1].shape == ()
    reduced = only(launches_of(logsumexp_problem(x, -1, None, False, False, None, None, None, None)))
    assert type(reduced.arguments[6]) is np.int32


LONG = (20_000, 50_000)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> cuda.Kernels:
    """Kernels of the emulator as the backend "cuda", with a device of their own to change."""
    kernels = cuda.Kernels(devices.module(NAME))
    monkeypatch.setattr(cuda, "_found", (kernels, None))
    return kernels


def answers(x: Any, **options: Any) -> list[bytes]:
    """The bits of everything that the row kernels make of rows."""
    state = ds.softmax_state(x, -1, **options)
    found = [f(x, -1, **options) for f in (ds.softmax, ds.log_softmax, ds.logsumexp)]
    return [a.get().tobytes() for a in (*found, state.m, state.d, state.normalize(x, -1, **options))]


@needs_emulator
@pytest.mark.parametrize("n", [40, 5000, *LONG])
def test_fewer_blocks_than_rows_give_the_same_bits(
    n: int, kernels: cuda.Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 70 if n < 6000 else 5
    x = kernels.cp.asarray(np.random.default_rng(n).standard_normal((rows, n)).astype(np.float32))
    want = answers(x)
    monkeypatch.setattr(cuda_rows, "MOST_BLOCKS", 2)
    assert answers(x) == want


@needs_emulator
@pytest.mark.parametrize(("x_type", "out_type"), [("f4", "f8"), ("f2", "f4"), ("f2", "f8"), ("f8", "f4"), ("i2", "f8")])
def test_kept_rows_and_rows_in_parts_give_the_same_bits_for_every_dtype_of_the_result(
    x_type: str, out_type: str, kernels: cuda.Kernels
) -> None:
    """The arithmetic is that of the result as well, whichever way a row goes."""
    x = kernels.cp.asarray((np.random.default_rng(2).standard_normal((2, 20_000)) * 3).astype(x_type))
    limit, device = kernels.device(0).dynamic_limit, kernels.device(0)
    for function in (ds.softmax, ds.log_softmax):
        found = []
        for device.dynamic_limit in (limit, 0):
            found.append(function(x, -1, dtype=out_type).get().tobytes())
        assert found[0] == found[1], function.__name__


@needs_emulator
@pytest.mark.parametrize("rows_at_once", [0, 1, 2, 3])
def test_waves_change_no_bit(rows_at_once: int, kernels: cuda.Kernels) -> None:
    """The rows of a call that the cache does not hold go one after the other, or a few at a time; 0: not even one."""
    rows, n = 5, 50_000
    x = kernels.cp.asarray(np.random.default_rng(n).standard_normal((rows, n)).astype(np.float32))
    want = answers(x)
    kernels.device(0).cache = 2 * rows_at_once * n * 4 + 100
    assert answers(x) == want
    target = x.copy()
    ds.softmax(target, -1, out=target)
    assert target.get().tobytes() == want[0], "in place"
