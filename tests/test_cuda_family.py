"""Weighted and running sums, foreign states and the textbook algorithms on CUDA: right, and mistakes are seen."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import devices
import emulator
import numpy as np
import oracle
import pytest
from cases import DTYPES, normal
from cuda_mistakes import WRONG, Mutation
from cuda_mistakes_family import CALLS, EQUIVALENT, MUTATIONS
from oracle import Expected
from tolerance import mismatch, relative

import dualsoft as ds
from dualsoft import arrays
from dualsoft.backends import cuda, cuda_cumulative, nvrtc
from dualsoft.backends.cuda_layout import layout_of

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"


def normalized(x: Any, m: Any, d: Any) -> Expected:
    """exp(x - m) / d in longdouble; a row without finite m, or with NaN for d, is NaN."""
    wide, m, d = x.astype(np.longdouble), m.astype(np.longdouble)[:, None], d.astype(np.longdouble)[:, None]
    with np.errstate(all="ignore"):
        value = np.where(np.isfinite(m) & ~np.isnan(d), np.exp(wide - m) / d, np.nan)
        # What leaves the range of the dtype has left it in any arithmetic.
        value = value.astype(x.dtype).astype(np.longdouble) if x.dtype == np.float32 else value
        # A state with a small d is one of d = 1 and another m.
        m = np.where(d < 0.5, m + np.log(d), m)
        return Expected(value, np.abs(value), np.nan_to_num(np.abs(wide - m), posinf=0.0), x.shape[1])


@cache
def wanted(name: str) -> Any:
    call = CALLS[name]
    wide = oracle.wide_type(call.x.dtype)
    options = {key: value for key, value in call.options.items() if key != "return_sign"}
    if call.function == "logsumexp":
        return oracle.logsumexp(call.x, -1, np.longdouble, b=call.beside, **options)
    if call.function == "cumulative_logsumexp":
        return oracle.cumulative_logsumexp(call.x, -1, wide, bool(call.beside))
    if call.function == "normalize":
        return normalized(call.x, *call.beside)
    plain = oracle.softmax(call.x, -1, wide)
    if call.function != "naive_softmax":
        return plain._replace(magnitude=plain.magnitude * (1 + call.x.shape[1] // 16))
    with np.errstate(over="ignore"):
        over = np.exp(call.x)
    sums = over.sum(-1, keepdims=True)
    value = np.where(np.isinf(sums), np.where(np.isinf(over), np.nan, 0), plain.value)
    return plain._replace(value=value, magnitude=plain.magnitude * (1 + call.x.shape[1] // 16))


def found_wrong(name: str) -> str | None:
    """Make the call; what is wrong with its answer, or None."""
    call, want = CALLS[name], wanted(name)
    x, put = devices.put(NAME, call.x), lambda value: devices.put(NAME, value)
    if call.function == "logsumexp":
        options = {"return_sign": True} | {key: put(value) for key, value in call.options.items()}
        found = ds.logsumexp(x, -1, b=put(call.beside), keepdims=True, **options)
        value, sign = want
        if options["return_sign"] is False:
            return None if np.isnan(found.get()).all() else "a negative sum has a logarithm"
        got, got_sign = found
        why = mismatch("logsumexp", got.get(), value, got.dtype, "cuda")
        return why or (None if np.array_equal(got_sign.get(), sign, equal_nan=True) else "the sign is wrong")
    if call.function == "cumulative_logsumexp":
        got = ds.cumulative_logsumexp(x, -1, include_initial=bool(call.beside))
    elif call.function == "normalize":
        got = ds.SoftmaxState(*map(put, call.beside)).normalize(x, -1)
    else:
        got = getattr(ds.algorithms, call.function)(x)
    bound = "cumulative_logsumexp" if call.function == "cumulative_logsumexp" else "softmax"
    return mismatch(bound, got.get(), want, call.x.dtype, "cuda")


@pytest.mark.parametrize("name", CALLS)
def test_the_kernels_as_they_are(name: str) -> None:
    with ds.use_backend(NAME):
        assert found_wrong(name) is None


# ------------------------------------------------------------------ running sums in parts
@pytest.mark.parametrize("key", DTYPES)
def test_a_block_a_part_gives_the_bits_of_a_block_a_row(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one part, of a whole last part, and of one element more; in place as well."""
    cp = devices.module(NAME)
    with ds.use_backend(NAME):
        for n in (8192, 16_384, 16_385):
            x = cp.asarray(normal(key, 3, n))
            found = []
            for enough in (1, 256):
                monkeypatch.setattr(cuda_cumulative, "_ENOUGH_ROWS", enough)
                results = [ds.cumulative_logsumexp(rows, -1, include_initial=True) for rows in (x, x[1:2])]
                assert results[1].get().tobytes() == results[0][1:2].get().tobytes(), "a row alone"
                found.append(results[0].get().tobytes())
                target = x.copy()
                ds.cumulative_logsumexp(target, -1, out=target)
                assert target.get().tobytes() == results[0][:, 1:].get().tobytes()
            assert found[0] == found[1]


def test_parts_follow_from_the_length() -> None:
    for n in (1, 8192, 8193, 10**6, 2**21, 2**21 + 1, 2**24, 2**24 + 5, 2**31, 2**40):
        length = cuda_cumulative.part_length(n)
        parts = -(-n // length)
        assert length % cuda_cumulative._SEGMENT == 0
        assert 1 <= parts <= cuda_cumulative._MOST_PARTS
        assert (parts - 1) * length < n <= parts * length


def both_off(function: str) -> float:
    """How far two float32 results of rows of 4 equal scores may be apart: each by its bound."""
    return 2 * relative(function, "float32", n=4)


@pytest.mark.parametrize("scale", [1e-60, -1e-60])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scale_that_the_arithmetic_rounds_to_0(axis: int, scale: float) -> None:
    """It leaves infinities what they are: 0 times one would be NaN."""
    x = np.ascontiguousarray(np.array([[-np.inf, 1, 2, 3], [np.inf, 1, 2, 3]], np.float32).swapaxes(0, 1 - axis))
    for function in (ds.softmax, ds.logsumexp):
        want = function(x, axis, scale=scale)
        with ds.use_backend(NAME):
            got = function(devices.put(NAME, x), axis, scale=scale).get()
        np.testing.assert_allclose(got, want, rtol=both_off(function.__name__))
    want_k = ds.softmax_topk(x, 2, axis=axis, scale=scale)
    with ds.use_backend(NAME):
        got_k = ds.softmax_topk(devices.put(NAME, x), 2, axis=axis, scale=scale)
    for of_device, of_host in zip(got_k, want_k, strict=True):
        np.testing.assert_allclose(of_device.get(), of_host, rtol=both_off("softmax"))


# ------------------------------------------------------------------ long rows, kept and in parts
@pytest.mark.parametrize("n", [16_400, 45_000])
def test_special_values_and_masks_of_long_rows(n: int) -> None:
    """In the first segment, in others, and in the last; rows of which nothing, or one segment, is seen."""
    x = normal("f32", 8, n)
    x[0], x[1, n - 1], x[2, 9000], x[3, 5] = -np.inf, np.inf, np.nan, -np.inf
    x[4, 1:] = -np.inf
    mask = np.random.default_rng(n).random(x.shape) < 0.7
    mask[5], mask[6], mask[6, 8200:8300] = False, False, True
    hidden = np.where(mask, x, np.float32(np.nan))
    with ds.use_backend(NAME):
        for rows, options in ((x, {}), (x, {"scale": -0.5}), (hidden, {"where": mask})):
            given = {name: devices.put(NAME, value) for name, value in options.items()}
            for name in ("softmax", "log_softmax", "logsumexp"):
                want = getattr(oracle, name)(rows, -1, np.float64, **options)
                keepdims = {"keepdims": True} if name == "logsumexp" else {}
                got = getattr(ds, name)(devices.put(NAME, rows), -1, **given, **keepdims).get()
                why = mismatch(name, got, want[0] if keepdims else want, x.dtype, "cuda")
                assert why is None, f"{name}, {options.keys()}: {why}"


@pytest.mark.parametrize("is_capturing", [False, True])
def test_a_captured_call_keeps_its_scratch_memory(is_capturing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph writes there whenever it is launched; the pool must not give it to others."""
    cp = devices.module(NAME)
    kernels = cuda.Kernels(cp)
    monkeypatch.setattr(cuda, "_found", (kernels, None))
    kept: list[Any] = []
    monkeypatch.setattr(arrays, "_captured", kept)
    x, scale = cp.zeros((1, 50_000), np.float32), cp.ones((1, 1), np.float32)
    stream = SimpleNamespace(is_capturing=lambda: is_capturing)
    for cuda_of in (cp.cuda, emulator.cuda):
        monkeypatch.setattr(cuda_of, "get_current_stream", lambda: stream)
    ds.softmax(x, -1)
    # What is converted, and what takes the place of an `out` over the input, is as much the call's own.
    ds.softmax(x[:, :5], -1, scale=scale, out=x[:, 1:6])
    ds.logsumexp(x[:, :5], -1, b=2.0, out=x[0, :1])
    shapes = [(1, 1), (1, 1), (7, 3), (1, 1), (1, 5), (), (1, 1)]
    assert [array.shape for array in kept] == (shapes if is_capturing else [])


@pytest.mark.parametrize("function", [ds.softmax, ds.log_softmax, ds.logsumexp, ds.softmax_state])
def test_numbers_stay_on_the_host(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is an argument of the kernel, whatever its type: a copy to the device ends the capture of a graph."""
    cp = devices.module(NAME)
    x = cp.asarray(normal("f32", 3, 40))
    with ds.use_backend(NAME):
        want = function(x, -1, scale=2.0)
        monkeypatch.setattr(cp, "asarray", None)
        for scale in (2, np.float32(2), np.float64(2), np.float16(2), DTYPES["bf16"].type(2), np.int8(2)):
            got = function(x, -1, scale=scale)
            for one, other in zip(*(part_of(result) for result in (got, want)), strict=True):
                assert one.get().tobytes() == other.get().tobytes(), type(scale)
        if function is ds.logsumexp:
            log, sign = ds.logsumexp(x, -1, b=-2, return_sign=True)
            assert (sign.get() == -1).all()
            np.testing.assert_allclose(log.get(), ds.logsumexp(x, -1).get() + np.log(2), rtol=both_off("logsumexp"))
        monkeypatch.undo()
        function(x, -1, where=True)


def part_of(result: Any) -> tuple[Any, ...]:
    return (result.m, result.d) if isinstance(result, ds.SoftmaxState) else (result,)


PLACES = """
extern "C" __global__ void places(const long long* index, long long* place, int n,
                                  const __grid_constant__ ds::layout at) {
    const int i = threadIdx.x;
    if (i < n) place[i] = ds::offset(at.outer, ds::X, index[i]);
}
"""


@pytest.mark.parametrize("axes", [1, 3])
def test_places_beyond_2_to_the_31(axes: int) -> None:
    """Rows and bytes are counted in 64 bits, divisions included."""
    shape = {1: (2**40, 5), 3: (2**20, 2**33, 3, 5)}[axes]
    strides = tuple(np.array([2**33, -7, 2**35, 4][-len(shape) :]) * 1)
    at = layout_of(shape, (len(shape) - 1,), (tuple(map(int, strides)),) * 6)
    index = np.array([0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 + 1, 2**35 + 12345, 2**39 + 7], np.int64)
    cp = devices.module(NAME)
    place = cp.empty(len(index), np.int64)
    module = cp.RawModule(code=nvrtc.assemble("layout.cuh") + PLACES, options=nvrtc.OPTIONS)
    module.get_function("places")((1,), (32,), (cp.asarray(index), place, np.int32(len(index)), at.struct))
    order = sorted(range(len(shape) - 1), key=lambda k: -abs(strides[k]))
    digits = np.unravel_index(index, [shape[k] for k in order])
    want = sum(digit * int(strides[k]) for digit, k in zip(digits, order, strict=True))
    assert np.array_equal(place.get(), want)
    assert np.abs(want).max() > 2**31


# ------------------------------------------------------------------ planted mistakes
def seen(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """How a planted mistake shows in each of its calls, None where it does not."""
    assemble = nvrtc.assemble
    sources = {variant.source for table in cuda._TABLES for variant in table.variants()}
    assert any(mutation.old in assemble(source) for source in sources), "the kernels have changed, and these tests too"
    monkeypatch.setattr(nvrtc, "assemble", lambda source: assemble(source).replace(mutation.old, mutation.new))
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    found: dict[str, str | None] = {}
    with ds.use_backend("cuda"):
        for call in mutation.calls:
            try:
                found[call] = None if found_wrong(call) is None else WRONG
            except emulator.KernelFault as fault:
                found[call] = ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]
    return found


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    for call, how in seen(mutation, monkeypatch).items():
        assert how is not None, f"{call}: nobody sees it"
        assert any(sign in how for sign in mutation.signs), f"{call}: seen as {how}"


@pytest.mark.parametrize("name", EQUIVALENT)
def test_equivalent_mutations_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, reason = EQUIVALENT[name]
    assert seen(mutation, monkeypatch) == dict.fromkeys(mutation.calls), reason
