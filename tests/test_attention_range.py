"""Attention at the ends of the range: -inf beside NaN, options that float32 does not hold, sums beyond the largest
number, many keys and long head dims."""

from functools import cache
from itertools import pairwise
from typing import Any

import attention_oracle
import numpy as np
import pytest
from attention_cases import Shape, operands
from cases import DTYPES, Array
from devices import ONE
from test_attention_edges import check
from tolerance import attention_mismatch

import dualsoft as ds

ON_DEVICES = {
    "test_minus_infinity_is_unseen": ONE, "test_options_beyond_float32": ONE,
    "test_the_largest_scores_and_the_equal_ones": ONE, "test_merged_states_of_large_values": ONE,
    "test_blocks_beyond_every_integer": ONE, "test_far_offsets_and_windows": ONE, "test_far_chunks": ONE,
}  # fmt: skip
INF, NAN = np.inf, np.nan
F32, F64 = np.float32, np.float64
same = np.testing.assert_array_equal

# what -> (scores of two keys by q·k, options); the first key is unseen, the second has score 0
UNSEEN: dict[str, tuple[list[float], dict[str, Any]]] = {
    "NaN, bias -inf": ([NAN, 0], {"bias": [-INF, 0]}),
    "inf, bias -inf": ([INF, 0], {"bias": [-INF, 0]}),
    "-inf, bias NaN": ([-INF, 0], {"bias": [NAN, 0]}),
    "-inf, bias inf": ([-INF, 0], {"bias": [INF, 0]}),
    "-inf, slope -inf": ([-INF, 0], {"alibi_slopes": [-INF], "mask": [True, False]}),
    "-inf, slope NaN": ([-INF, 0], {"alibi_slopes": [NAN], "mask": [True, False]}),
    "bias -inf, slope -inf": ([0, 0], {"bias": [-INF, 0], "alibi_slopes": [-INF], "mask": [True, False]}),
    "slope inf": ([0, 0], {"alibi_slopes": [INF], "causal_offset": 5}),
    "NaN, slope inf": ([NAN, NAN], {"alibi_slopes": [INF], "causal_offset": 5}),
    "bias inf, slope inf": ([0, 0], {"alibi_slopes": [INF], "causal_offset": 5, "bias": INF}),
}


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", UNSEEN)
def test_minus_infinity_is_unseen(name: str, key: str, backend: str) -> None:
    scores, options = UNSEEN[name]
    q, k, v = (np.array(x).astype(DTYPES[key]) for x in ([[1.0]], np.array(scores)[:, None], [[NAN, 5.0], [2.0, 3.0]]))
    out, lse = ds.attention(q, k, v, return_lse=True, **options)
    nothing = "slope" in name
    same(out.astype(float), [[0, 0] if nothing else [2, 3]])
    same(lse, [-INF if nothing else 0])


# ------------------------------------------------------------------ options beyond float32
# what -> (q, k, options); k is multiplied by numbers from -2 to 2
FAR: dict[str, tuple[float, float, dict[str, Any]]] = {
    "scale 1e39": (1e-39, 1.0, {"scale": 1e39}),
    "scale -1e39": (1e-39, 1.0, {"scale": -1e39}),
    "scale 1e60 of small products": (1e-30, 1e-30, {"scale": 1e60}),
    "scale 1e300 of 0": (0.0, 1.0, {"scale": 1e300}),
    "scale 1e-300": (1.0, 1.0, {"scale": 1e-300}),
    "scale 1e-46": (1e30, 1e8, {"scale": 1e-46}),
    "scale 1e-3 of large products": (1e20, 1e19, {"scale": 1e-3}),
    "softcap 1e39": (1.0, 1.0, {"softcap": 1e39}),
    "softcap 1e300": (1.0, 1.0, {"softcap": 1e300}),
    "softcap 1e-46": (1.0, 1.0, {"softcap": 1e-46}),
    "softcap 1e-300": (1.0, 1.0, {"softcap": 1e-300}),
    "slope 1e39": (1.0, 1.0, {"alibi_slopes": [1e39]}),
    "slope 1e39 away from the keys": (0.0, 1.0, {"alibi_slopes": [1e39], "causal_offset": 10**4}),
    "slope 1e308 away from the keys": (0.0, 1.0, {"alibi_slopes": [1e308], "causal_offset": 10**4}),
    "slope 1e-300": (1.0, 1.0, {"alibi_slopes": [1e-300]}),
}


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", FAR)
def test_options_beyond_float32(name: str, dtype: Any, backend: str) -> None:
    size_q, size_k, options = FAR[name]
    for seq_len_q, seq_len_k, dim in ((1, 3, 1), (1, 600, 4), (30, 5, 1), (30, 300, 16)):
        draw = np.random.default_rng(dim)
        q = (size_q * draw.uniform(0.5, 1, (1, seq_len_q, dim))).astype(dtype)
        k = (size_k * draw.integers(-2, 3, (1, seq_len_k, dim))).astype(dtype)
        v = draw.standard_normal((1, seq_len_k, 5)).astype(dtype)
        _, lse = check(q, k, v, f"{seq_len_q} x {seq_len_k}, D={dim}", **options)
        assert np.isfinite(lse).all()


def test_the_largest_scores_and_the_equal_ones(backend: str) -> None:
    """The same by their closed forms."""
    v = np.array([[3.0], [5.0]], F32)
    one = np.ones((1, 1), F32)
    out, lse = ds.attention(one * F32(1e20), np.array([[1e19], [0]], F32), v, scale=1e-3, return_lse=True)
    same(out, [[3]])
    assert abs(lse[0] / 1e36 - 1) < 4 * np.finfo(F32).eps
    for options in ({"scale": 1e-300}, {"softcap": 1e-46}, {"alibi_slopes": [1e39], "causal_offset": 7}):
        same(ds.attention(one, np.array([[1], [-1]], F32), v, **options), [[4]], err_msg=f"{options}")
    same(ds.attention(0 * one, np.array([[1], [-1]], F32), v, scale=1e300), [[4]])
    out, lse = ds.attention(0 * one, one[[0, 0]], v, alibi_slopes=[1e39], return_lse=True)
    same(out, [[5]])  # the query is at the last key
    same(lse, [0])


# ------------------------------------------------------------------ sums beyond the largest number
LARGE = {"f16": 6e4, "bf16": 3e38, "f32": 1.8e38, "f64": 1.5e308}


def large_values(key: str, queries: int, keys: int, spread: float) -> tuple[Array, Array, Array]:
    q, k, _ = operands(key, Shape((), 2, 1, queries, keys, 8, 8), 0, spread)
    v = np.full((1, keys, 3), LARGE[key])
    v[0, keys // 2 :, 1] *= -1
    v[0, ::2, 2] = 1
    return q, k, v.astype(DTYPES[key])


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("key", DTYPES)
def test_means_of_large_values(key: str, spread: float, backend: str) -> None:
    """The mean is no larger than the values, though their sum is."""
    for queries, keys in ((1, 2), (1, 40), (20, 4), (1, 5000), (300, 5000)):
        q, k, v = large_values(key, queries, keys, spread)
        out, _ = check(q, k, v, f"{queries} x {keys}")
        assert np.isfinite(out.astype(float)).all()
        out, _ = check(q, k, v, f"{queries} x {keys}, sinks", sinks=[0.5, -1.0])
        assert np.isfinite(out.astype(float)).all()


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("key", DTYPES)
def test_merged_states_of_large_values(key: str, spread: float, backend: str) -> None:
    for keys in (3, 500):
        q, k, v = large_values(key, 7, keys, spread)
        want = attention_oracle.attention(q, k, v)
        cuts = [0, keys // 3, keys // 2, keys]
        states = [
            ds.attention_state(q, k[:, first:last], v[:, first:last], key_start=first, key_total=keys)
            for first, last in pairwise(cuts)
        ]
        for whole in (ds.merge(*states), states[0] | (states[1] | states[2])):
            out, lse = whole.finalize(dtype=q.dtype)
            why = attention_mismatch(out, lse, want, more=4 * float(np.finfo(want.lse_dtype).eps) * LARGE[key])
            assert not why, f"{keys} keys: {why}"


# ------------------------------------------------------------------ long sums
def test_many_equal_keys(backend: str) -> None:
    """The error is that of a run of keys: it does not grow with the runs."""
    for queries in (1, 30, 120):
        errors = []
        for keys in (1024, 4096, 20000):
            out, _ = check(np.zeros((queries, 4)), np.zeros((keys, 4)), np.full((keys, 2), np.pi), f"{keys} keys")
            errors.append(np.abs(out - np.pi).max())
        assert errors[-1] <= max(errors[:-1]) + 2 * np.spacing(np.pi)


def by_blocks(a: Array, b: Array) -> Array:
    """a @ b, summed in blocks of 256 terms: the error does not grow with all of them."""
    total = attention_oracle.upwards(a[..., :256], b[..., :256, :])
    for first in range(256, a.shape[-1], 256):
        total += attention_oracle.upwards(a[..., first : first + 256], b[..., first : first + 256, :])
    return total


@cache
def long_heads(key: str, queries: int, dim_v: int) -> tuple[tuple[Array, Array, Array], attention_oracle.Answer]:
    q, k, v = operands(key, Shape((), 2, 1, queries, 50, 5000, dim_v), 0, 1.0)
    return (q, k, v), attention_oracle.compute(q, k, v, plain_ways=((by_blocks, np.exp),))


@pytest.mark.parametrize("key", DTYPES)
def test_a_long_head_dim(key: str, backend: str) -> None:
    for queries, dim_v in ((1, 5000), (30, 8)):
        operand, want = long_heads(key, queries, dim_v)
        why = attention_mismatch(*ds.attention(*operand, return_lse=True), want)
        assert not why, f"Sq={queries}, Dv={dim_v}: {why}"


# ------------------------------------------------------------------ large integers
def test_blocks_beyond_every_integer(backend: str) -> None:
    q, k, v = operands("f32", Shape((), 2, 1, 40, 300, 8, 8))
    for size in (2**31, 2**40, 2**63 - 1, 2**63, 2**70):
        for mask in (True, np.ones((2, 1, 1), bool), np.array([True, False])[:, None, None]):
            _, lse = check(q, k, v, f"{size}", block_mask=ds.BlockMask(mask, size, size))
            check(q, k, v, f"{size}", block_mask=ds.BlockMask(np.ones((1, 5), bool), size, 64), causal=True)
            same(lse[1] == -INF, np.full(40, np.shape(mask) == (2, 1, 1) and not np.all(mask)))


def test_far_offsets_and_windows(backend: str) -> None:
    """Both far: what they leave of one another is exact, or refused."""
    q, k, v = operands("f32", Shape((), 2, 1, 7, 9, 4, 4))
    far = 2**40
    for offset, window in (
        (far, (far, None)), (far, (far - 3, None)), (far, (2 * far, 0)), (-far, (None, far)), (-far, (0, far + 2)),
        (far, (far + 2**20, 2**62)), (far // 2, (far // 2, 1)), (2**60, (far // 2, 5)), (-(2**60), (7, far // 2)),
    ):  # fmt: skip
        check(q, k, v, f"{offset}, {window}", causal_offset=offset, window=window)
    for offset in (2**41, -(2**41), 2**80):
        for window in ((far, None), (None, far), (3, 2**62)):
            with pytest.raises(ValueError, match=r"causal_offset must be within .* where a window"):
                ds.attention(q, k, v, causal_offset=offset, window=window)
    check(q, k, v, causal_offset=far, alibi_slopes=[1e-12, 1e-13])


def test_far_chunks(backend: str) -> None:
    """Positions of a chunk near the end of the largest whole."""
    q, k, v = operands("f32", Shape((), 2, 1, 5, 30, 4, 4))
    start = 2**40 - 30
    for options in ({"causal": True}, {"window": (9, 2)}, {"alibi_slopes": [0.5, 0.1]}):
        near = ds.attention_state(q, k, v, key_start=100, key_total=130, **options)
        assert ds.attention_state(q, k, v, key_start=start, key_total=2**40, **options) == near
    nothing = ds.attention_state(q, k, v, key_start=start, causal_offset=-(2**40), window=(None, 2**40))
    same(nothing.d, np.zeros((2, 5)))
