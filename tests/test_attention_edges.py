"""Attention's edge rules: queries without a key, hidden and visible NaN and infinities, extreme scores and biases."""

from collections.abc import Iterator
from itertools import cycle, product
from typing import Any

import attention_oracle
import numpy as np
import pytest
from attention_cases import Shape, operands
from cases import DTYPES, Array
from devices import ONE
from tolerance import attention_mismatch

import dualsoft as ds

ON_DEVICES = {
    "test_no_key": ONE, "test_no_key_whatever_is_there": ONE, "test_more_queries_than_keys": ONE, "test_poison": ONE,
    "test_values_behind_a_bias_of_minus_infinity": ONE, "test_infinite_values_keep_their_sign": ONE,
    "test_bad_query": ONE, "test_bad_bias": ONE, "test_nan_wins_over_infinity": ONE, "test_extreme_scores": ONE,
    "test_extreme_scores_by_bias": ONE, "test_a_bias_of_the_lowest_finite_number_hides_nothing": ONE,
    "test_a_lowest_bias_with_a_score_as_low": ONE, "test_some_biases_lowest": ONE,
}  # fmt: skip
INF, NAN = np.inf, np.nan
LOWEST = {key: float(np.finfo(dtype).min) for key, dtype in (("f16", "f2"), ("f32", "f4"), ("f64", "f8"))}
# several tiles with edges in them, one tile, a decode step with grouped queries, one of each
SHAPES = (
    Shape((), 2, 1, 30, 270, 20, 20), Shape((2,), 4, 2, 14, 33, 8, 5), Shape((2,), 6, 2, 1, 530, 16, 16),
    Shape((), 1, 1, 3, 3, 1, 1),
)  # fmt: skip
same = np.testing.assert_array_equal


@pytest.fixture(params=DTYPES)
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8)


def check(q: Any, k: Any, v: Any, label: str = "", **options: Any) -> tuple[Array, Array]:
    """The answer, once it agrees with the oracle's."""
    out, lse = ds.attention(q, k, v, return_lse=True, **options)
    why = attention_mismatch(out, lse, attention_oracle.attention(q, k, v, **options))
    assert not why, f"{label}: {why}"
    return out, lse


# ------------------------------------------------------------------ no key
def without_keys(shape: Shape) -> Iterator[tuple[str, dict[str, Any]]]:
    """Options that hide every key from every query."""
    n = shape.seq_len_k
    yield "mask", {"mask": False}
    yield "mask of scores", {"mask": np.zeros(shape.scores, bool)}
    yield "lengths", {"kv_lengths": np.zeros(shape.batch, int)}
    yield "causal", {"causal": True, "causal_offset": -shape.seq_len_q}
    yield "window after the keys", {"window": (2, None), "causal_offset": n + 2}
    yield "window before the keys", {"window": (None, 3), "causal_offset": -shape.seq_len_q - 3}
    yield "far window", {"window": (5, 5), "causal_offset": 10**15}
    yield "blocks", {"block_mask": ds.BlockMask(np.bool_(False), 16, 16)}
    yield "bias of -inf", {"bias": np.float32(-INF)}
    yield "bias and mask", {"bias": np.where(np.arange(n) % 2, -INF, 0), "mask": np.arange(n) % 2 == 1}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_key(shape: Shape, key: str, backend: str) -> None:
    q, k, v = operands(key, shape)
    logits = np.linspace(-3, 70, shape.num_heads_q)
    for name, options in without_keys(shape):
        out, lse = ds.attention(q, k, v, return_lse=True, **options)
        same(out.astype(float), np.zeros(out.shape), err_msg=name)
        same(lse, np.full(lse.shape, -INF), err_msg=name)
        out, lse = ds.attention(q, k, v, return_lse=True, sinks=logits, **options)
        same(out.astype(float), np.zeros(out.shape), err_msg=f"{name}, sinks")
        same(lse, np.broadcast_to(logits[:, None].astype(lse.dtype), lse.shape), err_msg=f"{name}, sinks")
        state = ds.attention_state(q, k, v, **options)
        same(state.m, np.full(lse.shape, -INF), err_msg=name)
        same(state.d, np.zeros(lse.shape), err_msg=name)
        same(state.out, np.zeros(out.shape), err_msg=name)


@pytest.mark.parametrize("held", [NAN, INF, -INF])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_key_whatever_is_there(shape: Shape, held: float, key: str, backend: str) -> None:
    q, k, v = operands(key, shape)
    k[...], v[...] = held, held
    for name, options in without_keys(shape):
        if "bias" in options:
            continue  # the score itself is NaN there, -inf or not
        out, lse = ds.attention(q, k, v, return_lse=True, **options)
        same(out.astype(float), np.zeros(out.shape), err_msg=name)
        same(lse, np.full(lse.shape, -INF), err_msg=name)


def test_more_queries_than_keys(key: str, backend: str) -> None:
    """The last query sees the last key, so the first ones see nothing."""
    for seq_len_q, seq_len_k in ((2, 1), (20, 7), (100, 3), (300, 200)):
        q, k, v = operands(key, Shape((), 2, 1, seq_len_q, seq_len_k, 12, 12))
        out, lse = check(q, k, v, causal=True)
        blind = np.arange(seq_len_q) < seq_len_q - seq_len_k
        same(lse == -INF, np.broadcast_to(blind, lse.shape))
        same(out[:, blind].astype(float), np.zeros(out[:, blind].shape))


# ------------------------------------------------------------------ hidden and seen
def hidings(shape: Shape) -> Iterator[tuple[str, dict[str, Any]]]:
    """Options that hide some keys from some queries, in the middle of tiles as well."""
    rng = np.random.default_rng(7)
    n = shape.seq_len_k
    yield "mask", {"mask": rng.random(shape.scores) < 0.7}
    yield "mask of keys", {"mask": rng.random(n) < 0.9}
    yield "causal", {"causal": True}
    yield "causal from the top left", {"causal": True, "causal_offset": 0}
    yield "window", {"window": (n // 3, 1)}
    yield "lengths", {"kv_lengths": np.resize([n // 2, n - 1], shape.batch)}
    yield "lengths, causal", {"kv_lengths": np.resize([n - 1, n // 3], shape.batch), "causal": True}
    for block_q, block_k in ((5, 3), (16, 64), (64, 128)):
        blocks = (shape.num_heads_q, -(-shape.seq_len_q // block_q), -(-n // block_k))
        mask = rng.random(blocks) < 0.6
        yield f"blocks of {block_q} by {block_k}", {"block_mask": ds.BlockMask(mask, block_q, block_k)}
    yield "mask, causal, bias and sinks", {
        "mask": rng.random(shape.scores[-2:]) < 0.7, "causal": True, "bias": rng.standard_normal(n).astype(np.float32),
        "sinks": np.zeros(shape.num_heads_q),
    }  # fmt: skip


def seen_by(q: Array, k: Array, v: Array, options: dict[str, Any]) -> Array:
    names = ("mask", "causal", "causal_offset", "window", "kv_lengths", "block_mask")
    return attention_oracle.visible(q, k, v, *(options.get(name) for name in names))


def poisons(n: int) -> Iterator[list[int]]:
    """Places of bad keys: the ends, the middle, a few anywhere."""
    yield [n - 1]
    yield [0]
    yield sorted({n // 2, n // 3})
    yield sorted({int(j) for j in np.random.default_rng(n).integers(0, n, 3)})


WHERE = ("k", "v", "both", "one element of k", "one element of v")
HELD = (NAN, INF, -INF)


def poisoned(x: Array, places: list[int], held: float, alone: bool) -> Array:
    """A copy with bad rows, or one bad element in each of them."""
    x = x.copy()
    middle = x.shape[-1] // 2
    x[..., places, slice(middle, middle + 1) if alone else slice(None)] = held
    return x


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_poison(shape: Shape, key: str, backend: str) -> None:
    """Queries that see a bad key or value follow the oracle; the others keep their bits."""
    q, k, v = operands(key, shape)
    turns = cycle(product(WHERE, HELD))
    for name, options in hidings(shape):
        clean, clean_lse = ds.attention(q, k, v, return_lse=True, **options)
        seen = seen_by(q, k, v, options)
        for places, (where, held) in zip(poisons(shape.seq_len_k), turns, strict=False):
            label, alone = f"{name}, {held} in {where}, keys {places}", where.startswith("one")
            bad_k = k if where.endswith("v") else poisoned(k, places, held, alone)
            bad_v = v if where.endswith("k") else poisoned(v, places, held, alone)
            out, lse = check(q, bad_k, bad_v, label, **options)
            hit = seen[..., places].any(-1)
            same(bits(out[~hit]), bits(clean[~hit]), err_msg=label)
            same(bits(lse[~hit]), bits(clean_lse[~hit]), err_msg=label)
            if where == "k" and np.isnan(held):
                assert np.isnan(out[hit].astype(float)).all(), label
                assert np.isnan(lse[hit]).all(), label
            if bad_k is k:
                same(bits(lse), bits(clean_lse), err_msg=label)
                assert not np.isfinite(out[hit].astype(float)[..., shape.head_dim_v // 2]).any(), label


def test_values_behind_a_bias_of_minus_infinity(key: str, backend: str) -> None:
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        bias = np.where(np.arange(shape.seq_len_k) % 3 == 1, -INF, 0)
        clean, clean_lse = ds.attention(q, k, v, bias=bias, return_lse=True)
        v[..., 1::3, :] = NAN
        out, lse = check(q, k, v, bias=bias)
        same(bits(out), bits(clean))
        same(bits(lse), bits(clean_lse))


def test_infinite_values_keep_their_sign(key: str, backend: str) -> None:
    """A weight is above 0, however small: inf stays inf, and inf - inf is NaN."""
    for n in (2, 40, 300):
        v = np.zeros((n, 5))
        v[0], v[-1, 3] = [1, INF, -INF, INF, NAN], -INF
        v = v.astype(DTYPES[key])
        for score in (0.0, 3.0, 300.0, 30000.0):  # the first key's weight is exp(-score), which may round to 0
            for seq_len_q in (1, 30):
                q, k = np.ones((seq_len_q, 1), DTYPES[key]), np.full((n, 1), score, DTYPES[key])
                k[0] = 0
                out = ds.attention(q, k, v, scale=1).astype(float)
                assert np.isfinite(out[:, 0]).all()
                same(out[:, 1:], np.broadcast_to([INF, -INF, NAN, NAN], out[:, 1:].shape), err_msg=f"n={n}, {score}")


@pytest.mark.parametrize("held", [NAN, INF])
def test_bad_query(held: float, key: str, backend: str) -> None:
    for shape in SHAPES[:3]:
        q, k, v = operands(key, shape)
        clean = ds.attention(q, k, v, causal=True)
        q[..., -1, -1, 0] = held
        out, _ = check(q, k, v, causal=True)
        hit = np.zeros(out.shape[:-1], bool)
        hit[..., -1, -1] = True
        same(bits(out[~hit]), bits(clean[~hit]))
        assert np.isnan(out[hit].astype(float)).all()


@pytest.mark.parametrize("held", [NAN, INF])
def test_bad_bias(held: float, key: str, backend: str) -> None:
    """It counts where it is seen only."""
    for shape in SHAPES[:3]:
        q, k, v = operands(key, shape)
        for name, options in hidings(shape):
            bias = np.zeros(shape.scores, np.float32)
            clean = ds.attention(q, k, v, **{**options, "bias": bias})
            bias[..., shape.seq_len_k // 2] = held
            out, lse = check(q, k, v, name, **{**options, "bias": bias})
            hit = seen_by(q, k, v, options)[..., shape.seq_len_k // 2]
            same(bits(out[~hit]), bits(clean[~hit]), err_msg=name)
            assert np.isnan(out[hit].astype(float)).all(), name
            same(lse[hit], np.full(lse[hit].shape, held), err_msg=name)


def test_nan_wins_over_infinity(key: str, backend: str) -> None:
    for n in (2, 70, 300):
        bias = np.zeros(n, np.float32)
        bias[0], bias[-1] = INF, NAN
        for b in (bias, bias[::-1]):
            _, lse = check(*operands(key, Shape((), 1, 1, 3, n, 4, 4)), bias=b)
            assert np.isnan(lse).all()


# ------------------------------------------------------------------ extreme scores
# what -> scores of one query, in order of keys; each is repeated over many keys as well
EXTREME: dict[str, list[float]] = {
    "1e4 and -1e4": [1e4, -1e4, 9999, -9999],
    "all near 1e4": [1e4, 1e4 - 1, 1e4 - 2, 1e4 - 8],
    "all near -1e4": [-1e4, -1e4 - 1, -1e4 - 8, -1e4 - 16],
    "all near -2e6": [-2e6, -2e6 - 1, -2e6 - 0.25],
    "2^31": [2.0**31, -(2.0**31), 0, 2.0**31],
    "all near -2^31": [-(2.0**31), -(2.0**31) - 256, -(2.0**31) - 512],
    "all near 2^31": [2.0**31, 2.0**31 - 128, 2.0**31 - 4096],
    "the same everywhere": [1234.5] * 3,
    "1e30": [1e30, -1e30, 9e29],
    "rising": [-1e4, -1e3, -100, -10, 0, 10, 100, 1e3, 1e4],
    "falling": [1e4, 1e3, 100, 10, 0, -10, -100, -1e3, -1e4],
    "tiny": [1e-38, -1e-38, 1e-30, 0],
}


@pytest.mark.parametrize("name", EXTREME)
def test_extreme_scores(name: str, key: str, backend: str) -> None:
    row = np.array(EXTREME[name])
    if key == "f16" and np.abs(row).max() > 6e4:
        return  # no such numbers; ``test_extreme_scores_by_bias`` has them
    for repeats in (1, 9, 120):
        scores = np.repeat(row, repeats)
        v = np.random.default_rng(0).standard_normal((len(scores), 40)).astype(DTYPES[key])
        for d in (1, 20):
            k = np.zeros((len(scores), d))
            k[:, 0] = scores
            for seq_len_q in (1, 2, 30):
                q = np.ones((seq_len_q, d), DTYPES[key])
                check(q, k.astype(DTYPES[key]), v, f"{repeats} times, D={d}, Sq={seq_len_q}", scale=1)


@pytest.mark.parametrize("name", EXTREME)
def test_extreme_scores_by_bias(name: str, key: str, backend: str) -> None:
    for repeats in (1, 9, 120):
        bias = np.repeat(np.array(EXTREME[name]), repeats)
        for seq_len_q in (1, 30):
            q, k, v = operands(key, Shape((), 1, 1, seq_len_q, len(bias), 4, 40))
            check(q, k, v, f"{repeats} times, f64", bias=bias)
            check(q, k, v, f"{repeats} times, f32", bias=bias.astype(np.float32))


@pytest.mark.parametrize("lowest", LOWEST)
def test_a_bias_of_the_lowest_finite_number_hides_nothing(lowest: str, key: str, backend: str) -> None:
    """In all keys it leaves the softmax of what its size leaves of the scores: never NaN, 0 or -inf."""
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        bias = np.full(shape.seq_len_k, LOWEST[lowest])
        for options in ({}, {"alibi_slopes": np.ones(shape.num_heads_q)}, {"softcap": 5.0}, {"causal": True}):
            _, lse = check(q, k, v, f"{options}", bias=bias.astype(f"f{int(lowest[1:]) // 8}"), **options)
            assert np.isfinite(lse[..., -1]).all()
        q[...] = 0  # then the weights are equal
        check(q, k, v, bias=bias)


@pytest.mark.parametrize("key", [key for key in DTYPES if key != "f16"])  # no float16 comes near what float32 holds
def test_a_lowest_bias_with_a_score_as_low(key: str, backend: str) -> None:
    """Their sum leaves the finite range downwards; it is cut there, not counted as unseen."""
    low = np.array([-1e38]).astype(DTYPES[key])
    for n in (1, 3, 200):
        v = np.random.default_rng(n).standard_normal((n, 3)).astype(DTYPES[key])
        for seq_len_q in (1, 20):
            q, k = np.ones((seq_len_q, 1), DTYPES[key]), np.broadcast_to(low, (n, 1))
            _, lse = check(q, k, v, scale=3, bias=np.full(n, LOWEST["f32"], np.float32))
            assert np.isfinite(lse).all()
            _, lse = check(q, k, v, scale=3, bias=np.full(n, LOWEST["f64"]), alibi_slopes=[1e30])
            assert np.isfinite(lse).all()


def test_some_biases_lowest(key: str, backend: str) -> None:
    """Beside an ordinary score they are nothing, and alone in their tile they give way to what comes later."""
    for n in (5, 64, 300):
        for seen in (0, n // 2, n - 1):
            for lowest in LOWEST:
                bias = np.full(n, LOWEST[lowest])
                bias[seen] = 0
                shape = Shape((), 1, 1, 4, n, 8, 8)
                q, k, v = operands(key, shape)
                if lowest == "f16":
                    check(q, k, v, bias=bias.astype(np.float16))
                    continue
                out, _ = check(q, k, v, bias=bias)
                same(out, np.broadcast_to(v[:, seen : seen + 1], out.shape))


# ------------------------------------------------------------------ sinks, windows, scale
@pytest.mark.parametrize("sink", [INF, NAN])
def test_sinks_that_are_not_finite(sink: float, key: str, backend: str) -> None:
    for shape in SHAPES[:3]:
        q, k, v = operands(key, shape)
        sinks = np.zeros(shape.num_heads_q)
        sinks[-1] = sink
        out, lse = check(q, k, v, sinks=sinks)
        assert np.isnan(out[..., -1, :, :].astype(float)).all()
        same(lse[..., -1, :], np.full(lse[..., -1, :].shape, sink))
        assert np.isfinite(lse[..., :-1, :]).all()


def test_a_sink_of_minus_infinity_is_none(key: str, backend: str) -> None:
    for shape in SHAPES[:3]:
        q, k, v = operands(key, shape)
        want, want_lse = ds.attention(q, k, v, return_lse=True, causal=True)
        got, lse = ds.attention(q, k, v, return_lse=True, causal=True, sinks=np.full(shape.num_heads_q, -INF))
        same(bits(got), bits(want))
        same(bits(lse), bits(want_lse))


@pytest.mark.parametrize("sink", [-1e4, -200.0, 200.0, 1e4, 2.0**31, -3.4e38])
def test_sinks_of_any_size(sink: float, key: str, backend: str) -> None:
    for shape in SHAPES:
        check(*operands(key, shape), f"{shape}", sinks=np.full(shape.num_heads_q, sink), causal=True)


def test_windows_beyond_all_keys_are_none(key: str, backend: str) -> None:
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        want, causal = ds.attention(q, k, v), ds.attention(q, k, v, causal=True)
        for far in (10**6, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1):
            same(bits(ds.attention(q, k, v, window=(far, far))), bits(want), err_msg=str(far))
            same(bits(ds.attention(q, k, v, window=(far, None))), bits(want), err_msg=str(far))
            same(bits(ds.attention(q, k, v, window=(far, 0))), bits(causal), err_msg=str(far))
            same(bits(ds.attention(q, k, v, causal=True, causal_offset=far)), bits(want), err_msg=str(far))


def test_options_that_say_nothing(key: str, backend: str) -> None:
    """Those that are numbers change no bit; a mask of all scores is an option of its own, and as right."""
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        want = ds.attention(q, k, v)
        for options in (
            {"softcap": 0}, {"softcap": None}, {"window": (-1, None)}, {"window": None}, {"causal_offset": 3},
            {"scale": None}, {"scale": 1 / np.sqrt(shape.head_dim)}, {"causal": False}, {"sinks": None},
            {"kv_lengths": np.full(shape.batch, shape.seq_len_k)},
        ):  # fmt: skip
            same(bits(ds.attention(q, k, v, **options)), bits(want), err_msg=f"{options}")
        check(q, k, v, mask=True)
        check(q, k, v, bias=0.0)
        check(q, k, v, alibi_slopes=np.zeros(shape.num_heads_q))
        check(q, k, v, block_mask=ds.BlockMask(np.bool_(True), 64, 64))


def test_infinite_scores_under_a_softcap(key: str, backend: str) -> None:
    """The cap comes first: c tanh(inf / c) = c."""
    q, k, v = operands(key, Shape((), 2, 1, 5, 40, 3, 4))
    q = np.abs(q) + np.array(0.5).astype(DTYPES[key])
    k[..., 7, :], k[..., 30, :] = INF, -INF
    _, lse = check(q, k, v, softcap=2.0)
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("scale", [INF, -INF, NAN])
def test_scales_that_are_not_finite(scale: float, key: str, backend: str) -> None:
    q, k, v = operands(key, Shape((), 1, 1, 5, 40, 3, 4))
    check(q, k, v, scale=scale)
