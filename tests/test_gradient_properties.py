"""The gradients of attention by property: differences of the function itself, parts of the keys, the same bits."""

from typing import Any

import gradient_oracle
import numpy as np
import pytest
from attention_cases import Shape, operands
from attention_options import make_several
from cases import DTYPES, Array
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_attention_determinism import SHAPES, options_of
from test_attention_properties import shapes

import dualsoft as ds

examples = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
keys = st.sampled_from(list(DTYPES))
seeds = st.integers(0, 2**32 - 1)
# options that are differentiable where they are, and take part in the function of the operands
SMOOTH = (
    "mask", "bias", "causal", "causal_offset", "window", "scale", "softcap", "sinks", "alibi_slopes", "kv_lengths",
    "block_mask",
)  # fmt: skip

# of scores far beyond the softcap, whose slope there is small
SATURATED = ["bias", "mask", "kv_lengths", "causal", "sinks", "causal_offset", "scale", "softcap"]


def draw(rng: Any, shape: Shape, key: str, names: list[str]) -> tuple[tuple[Array, Array, Array], dict[str, Any]]:
    _, options = make_several(rng, shape, names)
    return operands(key, shape, int(rng.integers(9))), options


def needs_of(options: dict[str, Any]) -> tuple[str, ...]:
    return ("q", "k", "v", *(name for name in ("bias", "sinks") if options.get(name) is not None))


def backward(x: tuple[Array, ...], options: dict[str, Any], seed: int = 0, **more: Any) -> ds.AttentionGrads:
    out, lse = ds.attention(*x, return_lse=True, **options)
    grad_out = np.random.default_rng(seed).standard_normal(out.shape).astype(out.dtype)
    return ds.attention_backward(grad_out, *x, out, lse, **options, **more)


def same(got: ds.AttentionGrads, want: ds.AttentionGrads, label: str) -> None:
    for a, b, name in zip(got, want, ds.AttentionGrads._fields, strict=True):
        if a is None or b is None:
            assert a is b, name
        else:
            np.testing.assert_array_equal(
                np.ascontiguousarray(a).view(np.uint8),
                np.ascontiguousarray(b).view(np.uint8),
                err_msg=f"{name}, {label}",
            )


@examples
@given(shapes(20), seeds, st.lists(st.sampled_from(SMOOTH), unique=True, max_size=5))
@example(Shape((), 1, 1, 4, 1, 1, 1), 310492, ["causal_offset", "bias"])
@example(Shape((), 1, 1, 1, 1, 1, 1), 310492, ["causal", "bias"])
def test_differences(backend: str, shape: Shape, seed: int, names: list[str]) -> None:
    """A step along a random direction changes the function by what the gradients say, to what differences can tell."""
    rng = np.random.default_rng(seed)
    (q, k, v), options = draw(rng, shape, "f64", names)
    for name in ("bias", "sinks"):
        if options.get(name) is not None:
            options[name] = np.asarray(options[name]).astype(np.float64)
    point = {"q": q, "k": k, "v": v, **{name: options[name] for name in needs_of(options)[3:]}}
    # what is -inf or huge stays where it is, and so does a row that sees nothing else: its scores lose every step
    way = {n: np.where(np.abs(x) < 1e9, rng.standard_normal(x.shape), 0) for n, x in point.items()}
    out, lse = ds.attention(q, k, v, return_lse=True, **options)
    near = np.abs(lse) < 1e9
    grad_out = np.where(near[..., None], rng.standard_normal(out.shape), 0)
    grad_lse = np.where(near, rng.standard_normal(lse.shape), 0)

    def function(step: float) -> float:
        there = {n: x + step * way[n] for n, x in point.items()}
        result, level = ds.attention(there.pop("q"), there.pop("k"), there.pop("v"), return_lse=True, **options | there)
        return float((grad_out * result).sum() + (grad_lse * np.where(near, level, 0)).sum())

    def slope(h: float) -> float:
        return (8 * (function(h) - function(-h)) - (function(2 * h) - function(-2 * h))) / (12 * h)

    grads = ds.attention_backward(grad_out, q, k, v, out, lse, grad_lse=grad_lse, needs=needs_of(options), **options)
    want, coarse = slope(2.0**-12), slope(2.0**-11)
    found = sum(float((getattr(grads, name) * way[name]).sum()) for name in point)
    size = float((np.abs(grad_out * out)).sum() + np.abs(grad_lse * np.where(near, lse, 0)).sum())
    limit = abs(want - coarse) + 2.0**12 * ds.accuracy.ulp(max(size, 1.0), "float64") * 64
    assert abs(found - want) <= limit, f"{names}: {found} against {want}, allowed {limit}"


@examples
@given(shapes(), keys, seeds, st.lists(st.sampled_from(SMOOTH), unique=True))
@example(Shape((1,), 9, 3, 3, 128, 27, 3), "f64", 33554433, SATURATED)
def test_against_the_oracle(backend: str, shape: Shape, key: str, seed: int, names: list[str]) -> None:
    x, options = draw(np.random.default_rng(seed), shape, key, names)
    out, lse = ds.attention(*x, return_lse=True, **options)
    grad_out = np.random.default_rng(seed).standard_normal(out.shape).astype(out.dtype)
    got = ds.attention_backward(grad_out, *x, out, lse, needs=needs_of(options), **options)
    why = gradient_oracle.wrong(got, gradient_oracle.gradients(grad_out, *x, **options), 2)
    assert not why, f"{names}: {why}"


@examples
@given(shapes(), keys, st.data())
def test_chunks_merged_and_whole(backend: str, shape: Shape, key: str, data: Any) -> None:
    """The gradients of a result that was merged from chunks of keys are those of the whole; a chunk has its share."""
    q, k, v = operands(key, shape)
    n = shape.seq_len_k
    cut = data.draw(st.integers(0, n))
    states = [
        ds.attention_state(q, k[..., a:b, :], v[..., a:b, :], key_start=a, key_total=n) for a, b in ((0, cut), (cut, n))
    ]
    out, lse = ds.merge(*states).finalize(q.dtype)
    grad_out = np.random.default_rng(1).standard_normal(out.shape).astype(out.dtype)
    want = gradient_oracle.gradients(grad_out, q, k, v)
    del want["k"], want["v"]
    needs = ("q",)
    why = gradient_oracle.wrong(ds.attention_backward(grad_out, q, k, v, out, lse, needs=needs), want, 2)
    assert not why, why
    full = gradient_oracle.gradients(grad_out, q, k, v)
    parts = [
        ds.attention_backward(grad_out, q, k[..., a:b, :], v[..., a:b, :], out, lse) for a, b in ((0, cut), (cut, n))
    ]
    for name in "kv":
        joined = np.concatenate([getattr(part, name) for part in parts], axis=-2)
        kept = gradient_oracle.wrong(
            ds.AttentionGrads(*(joined if f == name else None for f in "qkvbs")), {name: full[name]}, 2
        )
        assert not kept, kept


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_threads(name: str, key: str, level: str) -> None:
    shape = SHAPES[name]
    x = operands(key, shape)
    for label, options in options_of(shape).items():
        with ds.num_threads(1):
            want = backward(x, options, needs=needs_of(options))
        for threads in (2, 3, 4):
            with ds.num_threads(threads):
                same(backward(x, options, needs=needs_of(options)), want, f"{label}, {threads} threads")


@pytest.mark.parametrize("key", DTYPES)
def test_sequence_alone(key: str, backend: str) -> None:
    x = operands(key, SHAPES["few queries"])
    out, lse = ds.attention(*x, causal=True, return_lse=True)
    grad_out = np.random.default_rng(0).standard_normal(out.shape).astype(out.dtype)
    whole = ds.attention_backward(grad_out, *x, out, lse, causal=True)
    for b in range(2):
        alone = ds.attention_backward(grad_out[b], *(a[b] for a in x), out[b], lse[b], causal=True)
        same(alone, ds.AttentionGrads(*(None if g is None else g[b] for g in whole)), f"sequence {b}")


@pytest.mark.parametrize("key", DTYPES)
def test_varlen(key: str, backend: str) -> None:
    """A sequence of a packed batch has the bits of a call of its own."""
    lengths_q, lengths_k = [1, 40, 0, 5, 130, 1], [300, 40, 10, 5, 131, 1]
    starts_q, starts_k = (np.cumsum([0, *n]) for n in (lengths_q, lengths_k))
    q = operands(key, Shape((), 4, 2, int(starts_q[-1]), 1, 16, 16))[0]
    _, k, v = operands(key, Shape((), 4, 2, 1, int(starts_k[-1]), 16, 12))
    bias = np.random.default_rng(3).standard_normal((4, q.shape[1], max(lengths_k))).astype(np.float32)
    for options in ({}, {"causal": True}, {"window": (7, 2)}, {"softcap": 3.0, "bias": bias}):
        out, lse = ds.attention_varlen(q, k, v, starts_q, starts_k, return_lse=True, **options)
        grad_out = np.random.default_rng(0).standard_normal(out.shape).astype(out.dtype)
        needs = needs_of(options)
        whole = ds.attention_varlen_backward(grad_out, q, k, v, out, lse, starts_q, starts_k, needs=needs, **options)
        for n in range(6):
            at_q, at_k = slice(starts_q[n], starts_q[n + 1]), slice(starts_k[n], starts_k[n + 1])
            own = options | ({"bias": bias[:, at_q, : lengths_k[n]]} if "bias" in options else {})
            alone = ds.attention_backward(
                grad_out[:, at_q], q[:, at_q], k[:, at_k], v[:, at_k], out[:, at_q], lse[:, at_q], needs=needs, **own
            )
            bias_part = None if whole.bias is None else whole.bias[:, at_q, : lengths_k[n]]
            want = ds.AttentionGrads(whole.q[:, at_q], whole.k[:, at_k], whole.v[:, at_k], bias_part, None)
            same(alone, want, f"{list(options)}, sequence {n}")
