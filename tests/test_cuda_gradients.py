"""Attention's gradients on a device: options and packed sequences, bits, bad starts, mistakes planted in kernels."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import devices
import emulator
import gradient_oracle
import numpy as np
import pytest
from attention_cases import Shape, operands
from cuda_mistakes import RACES, WRONG

import dualsoft as ds
from dualsoft.backends import cuda, nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
SMALL, GROUPED, LONG = (
    Shape((2,), 4, 2, 30, 70, 20, 12),
    Shape((), 6, 2, 40, 150, 9, 17),
    Shape((), 2, 1, 70, 70, 300, 140),
)
Grads = ds.AttentionGrads


@pytest.fixture
def device() -> Iterator[None]:
    with ds.use_backend(NAME):
        yield


def random(*shape: int) -> Any:
    return np.random.default_rng([5, *shape]).standard_normal(shape)


class Call(NamedTuple):
    """One call of ``attention_backward``."""

    key: str
    shape: Shape
    options: dict[str, Any]

    def incoming(self) -> tuple[Any, ...]:
        """grad_out, q, k, v, out, lse, grad_lse, of a host backend."""
        q, k, v = operands(self.key, self.shape)
        with ds.use_backend("reference"):
            out, lse = ds.attention(q, k, v, return_lse=True, **self.options)
        return random(*out.shape).astype(out.dtype), q, k, v, out, lse, random(*lse.shape).astype(lse.dtype)

    def needs(self) -> tuple[str, ...]:
        return ("q", "k", "v", *(name for name in ("bias", "sinks") if self.options.get(name) is not None))


HOLES = random(40, 150) < 0.5
CALLS = {
    "plain": Call("f32", SMALL, {}),
    "f64": Call("f64", SMALL, {"causal": True}),
    "bf16": Call("bf16", SMALL, {"window": (9, 2)}),
    "long dims": Call("f32", LONG, {"causal": True}),
    "several tiles": Call("f32", GROUPED, {"causal": True, "window": (70, None)}),
    "softcap, sinks": Call("f32", SMALL, {"softcap": 0.7, "sinks": np.array([1.0, -2.0, 0.0, 3.0])}),
    "bias": Call("f32", GROUPED, {"bias": random(6, 40, 150), "mask": HOLES}),
    "bias by key": Call("f64", GROUPED, {"bias": random(150), "kv_lengths": 131}),
    "bias by row": Call("f32", SMALL, {"bias": random(2, 1, 30, 1)}),
    "one bias": Call("f64", SMALL, {"bias": random(4, 1, 1), "alibi_slopes": np.array([0.5, 0.2, 0.1, 0.01])}),
    "blocks": Call("f32", GROUPED, {"block_mask": ds.BlockMask(HOLES[:3, :5], 16, 32)}),
    "large scores": Call("f32", SMALL, {"scale": 30.0}),
}


def placed(x: Any) -> Any:
    if isinstance(x, ds.BlockMask):
        return ds.BlockMask(devices.put(NAME, np.asarray(x.mask)), x.block_q, x.block_k)
    return devices.put(NAME, x)


def on_device(function: Any, *arrays: Any, **options: Any) -> Grads:
    got = function(*map(placed, arrays), **{name: placed(x) for name, x in options.items()})
    return Grads(*(None if x is None else devices.get(x) for x in got))


def found_wrong(call: Call) -> str | None:
    *given, grad_lse = call.incoming()
    got = on_device(ds.attention_backward, *given, grad_lse=grad_lse, needs=call.needs(), **call.options)
    want = gradient_oracle.gradients(*given[:4], grad_lse=grad_lse, **call.options)
    return gradient_oracle.wrong(got, want)


@pytest.mark.parametrize("name", CALLS)
def test_against_the_oracle(name: str, device: None) -> None:
    assert found_wrong(CALLS[name]) is None


def test_packed_sequences_have_the_bits_that_they_have_alone(device: None) -> None:
    lengths_q, lengths_k = [30, 0, 75, 1], [33, 4, 80, 70]
    starts_q, starts_k = np.cumsum([0, *lengths_q]), np.cumsum([0, *lengths_k])
    q, k, v = operands("f32", Shape((), 4, 2, sum(lengths_q), sum(lengths_k), 12, 12))
    with ds.use_backend("reference"):
        out, lse = ds.attention_varlen(q, k, v, starts_q, starts_k, return_lse=True, causal=True)
    given = (random(*out.shape).astype(out.dtype), q, k, v, out, lse)
    whole = on_device(ds.attention_varlen_backward, *given, starts_q, starts_k, causal=True)
    for n in range(4):
        at_q, at_k = (slice(starts[n], starts[n + 1]) for starts in (starts_q, starts_k))
        parts = (x[:, at] for x, at in zip(given, (at_q, at_q, at_k, at_k, at_q, at_q), strict=True))
        alone = on_device(ds.attention_backward, *parts, causal=True)
        for got, want, at in zip(whole[:3], alone[:3], (at_q, at_k, at_k), strict=True):
            np.testing.assert_array_equal(got[:, at], want)


@pytest.mark.parametrize("bad", [[0, 20, 99, 60], [-5, 20, 30, 60], [0, 30, 20, 60]])
def test_bad_starts_on_the_device(bad: list[int], device: None) -> None:
    """Nothing outside the arrays is touched, and a good sequence keeps its gradients."""
    q, k, v = operands("f32", Shape((), 4, 2, 60, 60, 8, 8))
    good = np.array([0, 20, 30, 60])
    with ds.use_backend("reference"):
        out, lse = ds.attention_varlen(q, k, v, good, good, return_lse=True)
    given = (random(*out.shape).astype(out.dtype), q, k, v, out, lse)
    for starts in ((np.array(bad), good), (good, np.array(bad))):
        got = on_device(ds.attention_varlen_backward, *given, *starts)
        assert np.isnan(got.q).any()


# ------------------------------------------------------------------ mistakes
class Mistake(NamedTuple):
    """``old`` becomes ``new`` in the sources; the call must show one of ``signs``."""

    old: str
    new: str
    call: str
    signs: tuple[str, ...] = (WRONG,)


MISTAKES = {
    "delta is forgotten": Mistake("sub(dp[a][b], delta)", "dp[a][b]", "plain"),
    "the cap has no slope": Mistake("p = mul(p, slope_of_cap(", "p = larger(p, slope_of_cap(", "softcap, sinks"),
    "a large lse is not refined": Mistake("<= spacing * size", "< 0.0", "large scores"),
    "positions hide no key behind": Mistake("|| j >= in.rows.hi[i]", "", "f64"),
    "delta of another row": Mistake("key_of_thread(b) == row_of_thread(a)", "key_of_thread(b) == 0", "f64"),
    "the gradient of lse is added": Mistake("x.delta -= number_at", "x.delta += number_at", "plain"),
    "keys are not scaled back": Mistake("operand == AT_V ? 1.0 : in.g.scale", "1.0", "plain"),
    "causal rows begin too late": Mistake("first - t.right - s.offset", "first + 9 - t.right - s.offset", "f64"),
    "columns of a later slice": Mistake("in.w.slice * COLUMNS, ORDINARY", "0, ORDINARY", "long dims"),
    "a broadcast head is added once": Mistake("w.head += g.heads_own", "w.head += t.heads_k", "bias by key"),
    "a key of a sum is lost": Mistake(
        "int k = 0; k < keys; ++k) sum +=", "int k = 1; k < keys; ++k) sum +=", "bias by row"
    ),
    "rows are loaded too late": Mistake(
        "        if (w.is_any) sum_up(", "        if (w.is_any && w.first > 0) sum_up(", "plain"
    ),
    "a tile is read before it is whole": Mistake(
        "const bool is_any_met = __syncthreads_or(is_met) != 0;", "const bool is_any_met = false;", "plain", RACES
    ),
    "sinks have no weight": Mistake("* x.weight * x.delta", "* x.delta * 2.0", "softcap, sinks"),
}  # fmt: skip


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mistake], None]:
    """Plant a mistake in all that is compiled during the test."""
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    assemble = nvrtc.assemble
    sources = ("attention_gradient.cu", "gradient_queries.cu", "gradient_bias.cu", "gradient_sinks.cu")

    def plant(mistake: Mistake) -> None:
        assert any(mistake.old in assemble(source) for source in sources), f"no source has {mistake.old!r}"
        monkeypatch.setattr(nvrtc, "assemble", lambda source: assemble(source).replace(mistake.old, mistake.new))

    return plant


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(name: str, planted: Callable[[Mistake], None]) -> None:
    mistake = MISTAKES[name]
    planted(mistake)
    with ds.use_backend("cuda"):
        try:
            seen = None if found_wrong(CALLS[mistake.call]) is None else WRONG
        except emulator.KernelFault as fault:
            seen = ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]
    assert seen is not None, "nobody sees it"
    assert any(sign in seen for sign in mistake.signs), f"seen as {seen}"
