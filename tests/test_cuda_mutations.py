"""Mistakes planted in the kernels' sources, one at a time: the emulator or the oracle must see each of them.

What is not seen is listed as equivalent, with the reason why it changes no answer.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import devices
import emulator
import numpy as np
import oracle
import pytest
from cases import DTYPES, normal, unaligned
from tolerance import mismatch

import dualsoft as ds
from dualsoft.backends import cuda, nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
Array = np.ndarray[Any, Any]

WRONG = "wrong numbers"
OUTSIDE = ("out of bounds", "uninitialised")
RACES = ("race", "uninitialised")


# ------------------------------------------------------------------ calls that a mistake must disturb
class Call(NamedTuple):
    """One call; ``padded`` puts the result where nothing may be written past a row's end."""

    function: str
    x: Array
    axis: Any = -1
    options: dict[str, Any] = {}  # noqa: RUF012 (never written)
    padded: bool = False


def gaps(x: Array, every: int = 16) -> Array:
    """The same rows, each beginning at a multiple of 16 elements: aligned, and their ends are not."""
    width = -(-x.shape[1] // every) * every
    return np.pad(x, ((0, 0), (0, width - x.shape[1])))[:, : x.shape[1]]


def with_specials(x: Array) -> Array:
    x = x.copy()
    x[0] = -np.inf
    x[1, 3], x[2, 5] = np.inf, np.nan
    x[3, ::2] = x[3].max()
    return x


def spiked(rows: Array, low: float, *at: int) -> Array:
    """All of a row ``low`` below its one maximum of 0."""
    rows = np.full_like(rows, low)
    rows[np.arange(len(rows)), list(at)] = 0
    return rows


def holes(x: Array) -> Array:
    mask = np.random.default_rng(1).random(x.shape) < 0.5
    mask[1] = False
    return mask


SHORT, WARP, BLOCK = normal("f32", 21, 42), normal("f32", 3, 1000), normal("f32", 3, 3001)
TILED = normal("f32", 2, 16500) + np.linspace(-9, 9, 16500, dtype=np.float32) * np.array([[1], [-1]], np.float32)
SPECIAL = with_specials(normal("f32", 6, 40))
HIDDEN = holes(SHORT)
NAN_HIDDEN = np.where(HIDDEN, SHORT, np.float32(np.nan))
FACTORS = np.linspace(-2, 2, 21).reshape(21, 1)
CUBE = normal("f32", 4, 6, 10)[:, ::2]

CALLS = {
    "short": Call("softmax", gaps(SHORT), padded=True),
    "short log": Call("log_softmax", gaps(SHORT), padded=True),
    "short lse": Call("logsumexp", gaps(SHORT)),
    "warp": Call("softmax", WARP),
    "block": Call("softmax", gaps(BLOCK), padded=True),
    "block lse": Call("logsumexp", gaps(BLOCK)),
    "tiled": Call("softmax", TILED),
    "tiled log": Call("log_softmax", TILED),
    "tiled lse": Call("logsumexp", TILED),
    "tiled ties": Call("logsumexp", np.full((1, 16500), -0.5, np.float32)),
    "special": Call("softmax", SPECIAL),
    "special log": Call("log_softmax", SPECIAL),
    "special lse": Call("logsumexp", SPECIAL),
    "special f64": Call("softmax", SPECIAL.astype(np.float64)),
    "f16": Call("softmax", normal("f16", 21, 40)),
    "f16 block": Call("logsumexp", spiked(normal("f16", 2, 3000), -60, 100, 2999)),
    "f16 mixed": Call("logsumexp", np.vstack([spiked(normal("f16", 2, 40), -60, 5, 39), normal("f16", 3, 40)])),
    "bf16 tiny rests": Call("log_softmax", spiked(normal("bf16", 3, 8), -88.5, 0, 3, 7)),
    "f64": Call("softmax", normal("f64", 5, 40)),
    "f64 lse": Call("logsumexp", normal("f64", 5, 300)),
    "far from 0": Call("log_softmax", normal("f32", 5, 40) + np.float32(1000)),
    "above 40": Call("logsumexp", normal("f32", 5, 40) + np.float32(100)),
    "near 0": Call("logsumexp", (normal("f64", 2000, 5, spread=1.5) - np.log(5)).astype(np.float32)),
    "where": Call("softmax", NAN_HIDDEN, -1, {"where": HIDDEN}),
    "where log": Call("log_softmax", NAN_HIDDEN, -1, {"where": HIDDEN}),
    "where by columns": Call("softmax", NAN_HIDDEN, -1, {"where": np.asfortranarray(HIDDEN)}),
    "where, block": Call("softmax", BLOCK, -1, {"where": BLOCK > -1}),
    "scale by row": Call("softmax", SHORT, -1, {"scale": FACTORS}),
    "columns": Call("softmax", SHORT, 0),
    "steps": Call("softmax", normal("f32", 21, 84)[:, ::2]),
    "two axes": Call("softmax", CUBE, (0, 2)),
    "two axes lse": Call("logsumexp", CUBE, (0, 2)),
    "unaligned": Call("softmax", unaligned(SHORT)),
    "unaligned out": Call("softmax", SHORT, -1, {"out": unaligned(np.zeros_like(SHORT))}),
}


@cache
def wanted(name: str) -> tuple[Any, Any]:
    """The oracle's answer, and its sign for logsumexp."""
    call = CALLS[name]
    options = {key: value for key, value in call.options.items() if key != "out"}
    answer = getattr(oracle, call.function)(call.x, call.axis, oracle.wide_type(call.x.dtype), **options)
    return answer if call.function == "logsumexp" else (answer, None)


def found_wrong(name: str) -> str | None:
    """Make the call; what is wrong with its answer, or None."""
    call = CALLS[name]
    options = {key: devices.put(NAME, value) for key, value in call.options.items()}
    if call.padded:
        options["out"] = devices.put(NAME, gaps(np.zeros_like(call.x)))
    x, function = devices.put(NAME, call.x), getattr(ds, call.function)
    want, sign = wanted(name)
    if call.function != "logsumexp":
        return mismatch(call.function, function(x, call.axis, **options).get(), want, call.x.dtype, "cuda")
    got, got_sign = function(x, call.axis, keepdims=True, return_sign=True, **options)
    why = mismatch(call.function, got.get(), want, call.x.dtype, "cuda")
    return why or (None if np.array_equal(got_sign.get(), sign, equal_nan=True) else "the sign is wrong")


def seen_in(name: str) -> str | None:
    """How a mistake shows in a call: the kinds of faults, or `WRONG`; None if it does not."""
    try:
        return None if found_wrong(name) is None else WRONG
    except emulator.KernelFault as fault:
        return ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]


# ------------------------------------------------------------------ mistakes
class Mutation(NamedTuple):
    """``old`` becomes ``new`` in a source; some of ``calls`` must show one of ``signs``."""

    old: str
    new: str
    calls: tuple[str, ...]
    signs: tuple[str, ...] = (WRONG,)


GROUP = {
    "no barrier before the parts are written": Mutation(
        "            __syncthreads();                    // the parts of the reduction before may still be read\n",
        "",
        ("f16 block",),
        ("race",),
    ),
    "no barrier before the parts are read": Mutation(
        "            __syncthreads();\n            value = parts[0];", "            value = parts[0];", ("block",), RACES
    ),
    "a shuffle reaches too near": Mutation("distance < size && distance < 32", "distance < size / 2", ("short",)),
    "shuffles leave out distances": Mutation("distance < 32; distance *= 2", "distance < 32; distance *= 4", ("short",)),
    "one warp's part is left out": Mutation("warp < WARPS; ++warp", "warp < WARPS - 1; ++warp", ("block",)),
    "a warp's part lands in another's place": Mutation("parts[threadIdx.x / 32]", "parts[threadIdx.x / 64]", ("block",), RACES),
    "a block does not meet": Mutation("if (size > 32) __syncthreads();", "if (size > 32) ;", ("where, block",), RACES),
    "a warp does not meet": Mutation("else __syncwarp();", "else ;", ("where",), RACES),
}
PAIR = {
    "merging takes the lower for the higher": Mutation("high = a_higher ? a : b", "high = a_higher ? b : a", ("tiled lse",)),
    "merging drops the second maximum of a tie": Mutation(
        "return {a.m, (a.rest + b.rest) + 1.0};", "return {a.m, a.rest + b.rest};", ("tiled ties",)
    ),
    "merging does not rescale": Mutation(
        "scaled(low.rest + 1.0, exponential(low.m - high.m))", "(low.rest + 1.0)", ("tiled lse",)
    ),
    "sums about 0 are taken for sums about m": Mutation(
        "shift == m ? total : scaled(total, exponential(f64(shift) - f64(m)))", "total", ("short lse",)
    ),
    "sums about m whatever m is": Mutation("ZERO_SHIFT = 16.0", "ZERO_SHIFT = 0.0", ("near 0",)),
    "sums about 0 whatever m is": Mutation("ZERO_SHIFT = 16.0", "ZERO_SHIFT = 1e4", ("above 40",)),
    "nothing counts as one element": Mutation(
        "DS_DEVICE pair nothing() { return {-infinity(), {-1.0, 0.0}}; }",
        "DS_DEVICE pair nothing() { return {0.0, {0.0, 0.0}}; }",
        ("tiled ties",),
    ),
    "rows of -inf are like others": Mutation("if (m == C(-infinity())) return", "if (false) return", ("special lse",)),
    "the maximum is counted twice": Mutation("f64(s.count) - 1.0)", "f64(s.count))", ("short lse",)),
    "the sum lacks its 1": Mutation("value_of(p.rest + 1.0)", "value_of(p.rest)", ("tiled",)),
}
ROWS = {
    "the count does not begin at 0": Mutation("    i32 count = 0;\n", "    i32 count = 1;\n", ("short",)),
    "a strand is forgotten": Mutation("add(strand[2], strand[3])", "strand[2]", ("short",)),
    "where is not looked at": Mutation("if (visible && from.where)", "if (false)", ("where",), (WRONG, "uninitialised")),
    "where is read by the strides of x": Mutation(
        "offset(inner, WHERE, start + k)", "offset(inner, X, start + k)", ("where by columns",), (WRONG, *OUTSIDE)
    ),
    "the scale of a row is read by the strides of x": Mutation(
        "offset(at.outer, SCALE, index)", "offset(at.outer, X, index)", ("scale by row",), (WRONG, *OUTSIDE)
    ),
    "the scale is not applied": Mutation(
        "if (from.is_scaled) value = mul(value, from.factor);", "", ("scale by row",)
    ),
    "a tail reads one element too many": Mutation(
        "inside = first + j < from.length", "inside = first + j <= from.length", ("short",), (WRONG, *OUTSIDE)
    ),
    "whole chunks at the end": Mutation(
        "if (first + DS_CHUNK <= from.length) {\n        const vector",
        "if (first < from.length) {\n        const vector",
        ("short",),
        OUTSIDE,
    ),
    "element by element, one too many": Mutation(
        "bool visible = start + k < from.length", "bool visible = start + k <= from.length", ("columns",), (WRONG, *OUTSIDE)
    ),
    "chunks are one off": Mutation(
        "i64(slot * DS_GROUP + team::thread()) * DS_CHUNK", "i64(slot * DS_GROUP + team::thread() + 1) * DS_CHUNK", ("short",)
    ),
    "slots overlap": Mutation("i64(slot * DS_GROUP + team::thread())", "i64(slot + team::thread())", ("short",), (WRONG, *OUTSIDE)),
    "elements change places on the way": Mutation(
        "const int k = team::thread() * DS_CHUNK + j;", "const int k = team::thread() * DS_CHUNK + (j ^ 1);", ("columns",)
    ),
    "visible bits of another element": Mutation("u32(through.visible[k]) <<", "u32(through.visible[k ^ 1]) <<", ("where",)),
    "teams share one passage": Mutation(
        "const int first = team::number() * passage::LENGTH;", "const int first = 0;", ("columns",), (WRONG, *RACES)
    ),
    "rows beyond the last": Mutation(
        "if (index >= at.rows) return {in.x", "if (index > at.rows) return {in.x", ("short lse",), (WRONG, *OUTSIDE)
    ),
    "-inf - -inf": Mutation("return m == compute(-infinity()) ? compute(0) : m;", "return m;", ("special lse",)),
    "rough exponentials for the smallest rests": Mutation("LITTLE = 0x1p-60", "LITTLE = 0.0", ("bf16 tiny rests",)),
    "threads of a warp part": Mutation(
        "DS_GROUP < 32 ? __any_sync(ALL_LANES, condition) != 0 : condition",
        "condition",
        ("f16 mixed",),
        ("warp divergence", "warp mask", "deadlock"),
    ),
    "a segment is skipped": Mutation(
        "for (i64 segment = 0; segment * SEGMENT < from.length; ++segment) {\n        share mine",
        "for (i64 segment = 1; segment * SEGMENT < from.length; ++segment) {\n        share mine",
        ("tiled lse",),
    ),
}
SOFTMAX = {
    "a tail writes one element too many": Mutation(
        "if (first + j < from.length) store_aligned", "if (first + j <= from.length) store_aligned", ("short",), OUTSIDE
    ),
    "whole chunks are written at the end": Mutation(
        "if (first + DS_CHUNK <= from.length) {\n        store", "if (first < from.length) {\n        store", ("short",), OUTSIDE
    ),
    "a tail is not written": Mutation(
        "if (first + j < from.length) store_aligned", "if (first + j + 1 < from.length) store_aligned", ("short",), ("unwritten output",)
    ),
    "element by element, one written too many": Mutation(
        "if (start + k < from.length) store", "if (start + k <= from.length) store", ("where",), (WRONG, "cross-block race", *OUTSIDE)
    ),
    "the result is written by the strides of x": Mutation(
        "offset(inner, Y, start + k)", "offset(inner, X, start + k)", ("steps",), (WRONG, "unwritten output", "cross-block race", *OUTSIDE)
    ),
    "a row with +inf is like others": Mutation(
        "m == compute(infinity()) ? not_a_number() : d", "d", ("special",)
    ),
    "x - (m + log d)": Mutation("sub(sub(x, m), log_of_d)", "sub(x, add(m, log_of_d))", ("far from 0",)),
    "the logarithm of what is hidden is 0": Mutation("DS_LOG ? -infinity() : 0.0", "0.0", ("where log",)),
    "hidden rows are like others": Mutation("DS_DIRECT || mine.visible >> i & 1", "true", ("where",)),
    "the last segment is not written": Mutation(
        "segment * SEGMENT < from.length; ++segment) {\n        const share mine",
        "(segment + 1) * SEGMENT < from.length; ++segment) {\n        const share mine",
        ("tiled",),
        ("unwritten output",),
    ),
    "blocks go round in steps of their own": Mutation(
        "base += i64(gridDim.x) * ROWS_A_BLOCK", "base += ROWS_A_BLOCK", ("short", "short lse"), ("cross-block race",)
    ),
}
ELSEWHERE = {
    "2^x for e^x": Mutation("exp2_approximate(mul(x, 0x1.715476p+0f))", "exp2_approximate(x)", ("f16",)),
    "float32's exponential forgets NaN": Mutation(
        "mul(mul(p, power), 0x1p-64f);\n    return is_nan(x) ? x : result;",
        "mul(mul(p, power), 0x1p-64f);\n    return result;",
        ("special",),
    ),
    "float64's exponential forgets NaN": Mutation(
        "p * power * 0x1p-512;\n    return is_nan(x) ? x : result;", "p * power * 0x1p-512;\n    return result;", ("special f64",)
    ),
    "float32's exponential loses the low part of ln 2": Mutation(
        "fused(n, -0x1.7f7d1cp-20f, fused(n, -0x1.62e4p-1f, t))", "fused(n, -0x1.62e4p-1f, t)", ("block",)
    ),
    "a coefficient of float64's exponential": Mutation("0x1.5555555555501p-3", "0x1.5555555565501p-3", ("f64",)),
    "the logarithm of 0": Mutation("if (x == -1.0) return -infinity();", "", ("special lse",)),
    "an unaligned element is read whole": Mutation(
        "if (is_aligned<T>(p)) return load_aligned<T>(p);", "return load_aligned<T>(p);", ("unaligned",), ("misaligned",)
    ),
    "an unaligned element is written whole": Mutation(
        "if (is_aligned<T>(p)) { store_aligned(p, value); return; }",
        "store_aligned(p, value); return;",
        ("unaligned out",),
        ("misaligned",),
    ),
    "the outermost axis is forgotten": Mutation("int(a.rank) - 1; k >= 0; --k", "int(a.rank) - 1; k > 0; --k", ("two axes",)),
    "two axes are taken for one": Mutation("return a.rank == 1 ?", "return a.rank <= 2 ?", ("two axes",), (WRONG, *OUTSIDE)),
    "a result past the last row": Mutation(
        "if (team::thread() != 0 || index >= at.rows) continue;", "if (team::thread() != 0) continue;", ("short lse",), OUTSIDE
    ),
    "the sign of nothing is 1": Mutation("lse == -infinity() ? 0.0 : 1.0", "1.0", ("special lse",)),
    "the errors of a sum are lost": Mutation(
        "low = a.low + lost_in_sum(a.high, b, sum), high", "low = a.low, high", ("f64 lse", "f64"), (WRONG,)
    ),
}
MUTATIONS = GROUP | PAIR | ROWS | SOFTMAX | ELSEWHERE

EQUIVALENT = {
    "another lane speaks for its warp": (
        Mutation("if (threadIdx.x % 32 == 0) parts", "if (threadIdx.x % 32 == 7) parts", ("block",)),
        "after the shuffles all lanes hold the same value",
    ),
    "the largest is also what is not smaller": (
        Mutation("if (x == m) ++count;", "if (x >= m) ++count;", ("short", "special")),
        "nothing is above the maximum",
    ),
    "scale is always applied": (
        Mutation("if (from.is_scaled) value", "value", ("where",)),
        "the factor is 1 where there is none: it costs a multiplication",
    ),
    "each lane writes the row's logarithm": (
        Mutation("if (team::thread() != 0 || index >= at.rows) continue;", "if (index >= at.rows) continue;", ("short lse",)),
        "all hold the same value; the counts of stores see it",
    ),
    "sums of float32 in one strand": (
        Mutation("strand[i % 4] = add(strand[i % 4], term)", "strand[0] = add(strand[0], term)", ("short", "warp")),
        "a thread adds 32 terms at the most: within the bound, and one after the other",
    ),
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mutation], None]:
    """Plant a mutation in all that is compiled during the test."""
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    assemble, places = nvrtc.assemble, []

    def plant(mutation: Mutation) -> None:
        def mutated(source: str) -> str:
            text = assemble(source)
            assert text.count(mutation.old) == 1 or source not in places, f"{source} has not exactly one {mutation.old!r}"
            return text.replace(mutation.old, mutation.new)

        places.extend(source for source in ("softmax.cu", "logsumexp.cu") if mutation.old in assemble(source))
        assert places, f"no source has {mutation.old!r}: the kernels have changed, and this test with them"
        monkeypatch.setattr(nvrtc, "assemble", mutated)

    return plant


@pytest.mark.parametrize("name", CALLS)
def test_the_kernels_as_they_are(name: str) -> None:
    with ds.use_backend(NAME):
        assert found_wrong(name) is None


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_seen(name: str, planted: Callable[[Mutation], None]) -> None:
    mutation = MUTATIONS[name]
    planted(mutation)
    with ds.use_backend("cuda"):
        seen = {call: seen_in(call) for call in mutation.calls}
    for call, how in seen.items():
        assert how is not None, f"{call}: nobody sees it"
        assert any(sign in how for sign in mutation.signs), f"{call}: seen as {how}"


@pytest.mark.parametrize("name", EQUIVALENT)
def test_equivalent_mutations_change_nothing(name: str, planted: Callable[[Mutation], None]) -> None:
    mutation, reason = EQUIVALENT[name]
    planted(mutation)
    with ds.use_backend("cuda"):
        assert {call: seen_in(call) for call in mutation.calls} == dict.fromkeys(mutation.calls), reason
    assert DTYPES
