"""Attention by property: shapes, dtypes and options as they come, and what holds without an oracle."""

from typing import Any

import attention_oracle
import numpy as np
from attention_cases import AttentionCase, Shape, operands
from attention_options import OPTIONS, make_several
from attention_oracle import Answer
from cases import DTYPES, Array
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tolerance import attention_mismatch, attention_tolerance, far_from

import dualsoft as ds

# the backend is in use for all examples of a test
examples = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
keys = st.sampled_from(list(DTYPES))
seeds = st.integers(0, 2**32 - 1)


def wrong(got: Any, want: Answer, more: float = 0) -> str | None:
    """What is wrong, or None, within twice the criterion: that is one of maxima, and the maximum of the plain
    computation is small by chance in one of a few thousand calls. The matrix holds to the criterion itself.
    """
    out_limit, _ = attention_tolerance(want)
    return attention_mismatch(*got, want, out_limit + more)


@st.composite
def shapes(draw: Any, most: int = 70) -> Shape:
    heads = draw(st.integers(1, 3))
    return Shape(
        tuple(draw(st.lists(st.integers(1, 3), max_size=2))),
        heads * draw(st.integers(1, 4)),
        heads,
        draw(st.integers(1, most)),
        draw(st.integers(1, 3 * most)),
        draw(st.integers(1, 40)),
        draw(st.integers(1, 40)),
    )


@st.composite
def calls(draw: Any) -> AttentionCase:
    shape, key = draw(shapes()), draw(keys)
    rng = np.random.default_rng(draw(seeds))
    names = draw(st.lists(st.sampled_from(list(OPTIONS)), unique=True))
    label, options = make_several(rng, shape, names)
    q, k, v = operands(key, shape, draw(st.integers(0, 9)), draw(st.sampled_from([0.1, 1.5, 12.0])))
    return AttentionCase(f"{key}, {shape}, {label}", q, k, v, options)


@examples
@given(calls())
def test_against_the_oracle(backend: str, call: AttentionCase) -> None:
    want = attention_oracle.attention(call.q, call.k, call.v, **call.options)
    why = wrong(ds.attention(call.q, call.k, call.v, return_lse=True, **call.options), want)
    assert not why, f"{call.name}: {why}"


@examples
@given(calls())
def test_the_mean_of_ones_is_one(backend: str, call: AttentionCase) -> None:
    """Without sinks the weights add to 1, or to 0 where no key is seen."""
    options = {name: value for name, value in call.options.items() if name != "sinks"}
    out, lse = ds.attention(call.q, call.k, np.ones_like(call.v), return_lse=True, **options)
    want = np.broadcast_to(np.where(lse == -np.inf, 0.0, 1.0)[..., None], out.shape)
    # both sums may lose a unit each term; half types round the weights to their own dtype
    limit = 8 * float(ds.accuracy.ulp(1.0, out.dtype)) + call.k.shape[-2] * float(np.finfo(lse.dtype).eps)
    assert not (why := far_from("out", out, want, limit, out.dtype)), f"{call.name}: {why}"


@examples
@given(shapes(), keys, seeds)
def test_order_of_the_keys(backend: str, shape: Shape, key: str, seed: int) -> None:
    """Permuting keys, values, mask and bias together changes nothing but rounding."""
    q, k, v = operands(key, shape)
    rng = np.random.default_rng(seed)
    mask = rng.random((shape.seq_len_q, shape.seq_len_k)) < 0.8
    bias = rng.standard_normal((shape.num_heads_q, 1, shape.seq_len_k)).astype(np.float32)
    order = rng.permutation(shape.seq_len_k)
    want = attention_oracle.attention(q, k, v, mask=mask, bias=bias)
    got = ds.attention(
        q, k[..., order, :], v[..., order, :], mask=mask[:, order], bias=bias[..., order], return_lse=True
    )
    why = wrong(got, want)
    assert not why, why


@examples
@given(shapes(), keys, st.floats(-50, 50))
def test_a_common_bias_moves_lse_only(backend: str, shape: Shape, key: str, level: float) -> None:
    q, k, v = operands(key, shape)
    want = attention_oracle.attention(q, k, v, bias=level)
    why = wrong(ds.attention(q, k, v, bias=level, return_lse=True), want)
    assert not why, why


def visible_as_mask(shape: Shape, options: dict[str, Any]) -> Array:
    q, k, v = operands("f32", shape)
    names = ("mask", "causal", "causal_offset", "window", "kv_lengths", "block_mask")
    return attention_oracle.visible(q, k, v, *(options.get(name) for name in names))


HIDING = ("mask", "causal", "causal_offset", "window", "kv_lengths", "block_mask")


@examples
@given(shapes(), keys, seeds, st.lists(st.sampled_from(HIDING), unique=True, min_size=1))
def test_everything_that_hides_is_a_mask(backend: str, shape: Shape, key: str, seed: int, names: list[str]) -> None:
    q, k, v = operands(key, shape)
    _, options = make_several(np.random.default_rng(seed), shape, names)
    want = attention_oracle.attention(q, k, v, **options)
    mask = visible_as_mask(shape, options)
    for call in (options, {"mask": mask}, {"bias": np.where(mask, 0, -np.inf).astype(np.float16)}):
        why = wrong(ds.attention(q, k, v, return_lse=True, **call), want)
        assert not why, f"{sorted(call)}: {why}"


@examples
@given(shapes(), keys, st.data())
def test_any_split_of_the_keys(backend: str, shape: Shape, key: str, data: Any) -> None:
    q, k, v = operands(key, shape)
    n = shape.seq_len_k
    ends = sorted(data.draw(st.lists(st.integers(0, n), min_size=1, max_size=5)))
    rng = np.random.default_rng(data.draw(seeds))
    names = data.draw(st.lists(st.sampled_from(["causal", "window", "kv_lengths"]), unique=True))
    _, options = make_several(rng, shape, names)
    want = attention_oracle.attention(q, k, v, **options)
    states = [
        ds.attention_state(q, k[..., a:b, :], v[..., a:b, :], key_start=a, key_total=n, **options)
        for a, b in zip([0, *ends], [*ends, n], strict=True)
    ]
    more = 3 * len(ends) * float(np.finfo(want.lse_dtype).eps) * float(np.abs(v.astype(float)).max())
    assert not (why := wrong(ds.merge(*states).finalize(q.dtype), want, more)), f"ends {ends}: {why}"


@examples
@given(shapes(20), keys)
def test_lse_of_the_scores(backend: str, shape: Shape, key: str) -> None:
    """lse is logsumexp of the scores."""
    q, k, v = operands(key, shape)
    repeated = np.repeat(k, shape.num_heads_q // shape.num_heads_k, -3).astype(np.float64)
    scores = q.astype(np.float64) @ repeated.swapaxes(-1, -2) / np.sqrt(shape.head_dim)
    _, lse = ds.attention(q, k, v, return_lse=True)
    want = ds.logsumexp(scores, -1)
    limit = 2 * attention_tolerance(attention_oracle.attention(q, k, v))[1]
    assert not (why := far_from("lse", lse, want, limit, lse.dtype)), why
