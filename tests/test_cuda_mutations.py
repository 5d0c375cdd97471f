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
from cases import normal, unaligned
from cuda_mistakes import EQUIVALENT, MUTATIONS, WRONG, Mutation
from tolerance import mismatch

import dualsoft as ds
from dualsoft.backends import cuda, nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
SOURCES = ("softmax.cu", "softmax_kept.cu", "logsumexp.cu", "parts.cu", "join.cu", "normalize.cu")
Array = np.ndarray[Any, Any]


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
    "odd rows": Call("softmax", normal("f32", 5, 1001)),
    "odd block": Call("softmax", BLOCK),
    "odd f16": Call("softmax", normal("f16", 5, 1001)),
    "tiled end": Call("softmax", gaps(TILED[:, :-3])),
    "where and scale": Call("softmax", NAN_HIDDEN, -1, {"where": HIDDEN, "scale": FACTORS}),
    "scale by row": Call("softmax", SHORT, -1, {"scale": FACTORS}),
    "columns": Call("softmax", SHORT, 0, {"where": np.ones(SHORT.shape, bool)}),
    "steps": Call("softmax", normal("f32", 21, 84)[:, ::2], -1, {"where": np.ones((21, 42), bool)}),
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
@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mutation], None]:
    """Plant a mutation in all that is compiled during the test."""
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    assemble, places = nvrtc.assemble, []

    def plant(mutation: Mutation) -> None:
        def mutated(source: str) -> str:
            text = assemble(source)
            assert text.count(mutation.old) == 1 or source not in places, (
                f"{source} has not exactly one {mutation.old!r}"
            )
            return text.replace(mutation.old, mutation.new)

        places.extend(source for source in SOURCES if mutation.old in assemble(source))
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
