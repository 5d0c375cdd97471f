"""What KVCache.attention computes: the oracle's answer for the tokens held, whatever the rest of the memory holds."""

from typing import Any

import attention_oracle
import numpy as np
import pytest
from cache_model import layouts
from cases import DTYPES, Array
from devices import ONE
from tolerance import attention_mismatch

import dualsoft as ds

ON_DEVICES = {"test_the_answer": ONE, "test_ragged_prompt": ONE, "test_reordered_and_forked": ONE}
BATCH, HEADS_Q, HEADS_K, HEAD_DIM, HEAD_DIM_V = 3, 4, 2, 16, 12
LENGTHS = (21, 1, 14)
KEYS = max(LENGTHS)


def normal(key: str, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(DTYPES[key])


def keys_and_values(key: str, count: int = KEYS) -> tuple[Array, Array]:
    k = normal(key, BATCH, HEADS_K, count, HEAD_DIM, seed=1)
    return k, normal(key, BATCH, HEADS_K, count, HEAD_DIM_V, seed=2)


def new(key: str, page_size: int | None, capacity: int = 40, batch: int = BATCH) -> ds.KVCache:
    return ds.KVCache(
        batch, HEADS_K, capacity, HEAD_DIM, head_dim_v=HEAD_DIM_V, dtype=DTYPES[key], page_size=page_size
    )  # fmt: skip


def filled(key: str, page_size: int | None, capacity: int = 40, lengths: Any = LENGTHS) -> ds.KVCache:
    """A cache that got its tokens in three calls."""
    cache = new(key, page_size, capacity)
    k, v = keys_and_values(key, int(np.max(lengths)))
    before = np.zeros(BATCH, int)
    for part in (5, 6, 40):
        count = np.clip(np.asarray(lengths) - before, 0, part)
        # Where each sequence goes on is different: what it is to get is moved to the front.
        piece = [np.zeros((BATCH, HEADS_K, int(count.max()), x.shape[3]), x.dtype) for x in (k, v)]
        for b, n in enumerate(count):
            for to, x in zip(piece, (k, v), strict=True):
                to[b, :, :n] = x[b, :, before[b] : before[b] + n]
        cache.append(*piece, count)
        before += count
    return cache


def options_of(queries: int) -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(5)
    seen = rng.random((BATCH, 1, queries, KEYS)) < 0.7
    return {
        "none": {},
        "causal": {"causal": True},
        "causal, an offset each": {"causal": True, "causal_offset": [3, 0, 9]},
        "window": {"window": (4, 1)},
        "scale and softcap": {"scale": 0.3, "softcap": 2.0},
        "sinks and alibi": {"sinks": rng.standard_normal(HEADS_Q), "alibi_slopes": rng.random(HEADS_Q)},
        "mask": {"mask": seen},
        "mask of keys": {"mask": seen[0, 0, 0], "causal": True},
        "mask of queries": {"mask": seen[:1, :, :, :1]},
        "bias": {"bias": rng.standard_normal((HEADS_Q, 1, KEYS))},
        "bias, a number": {"bias": np.float32(1.5)},
        "blocks": {"block_mask": ds.BlockMask(rng.random((HEADS_Q, -(-queries // 2), 5)) < 0.6, 2, 5)},
        "blocks of one key": {"block_mask": ds.BlockMask(seen[:, :, :1], queries, 1)},
    }


@layouts
@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("queries", [1, 3])
def test_the_answer(backend: str, key: str, page_size: int | None, queries: int) -> None:
    k, v = keys_and_values(key)
    q = normal(key, BATCH, HEADS_Q, queries, HEAD_DIM)
    cache = filled(key, page_size)
    for name, options in options_of(queries).items():
        out, lse = cache.attention(q, return_lse=True, **options)
        want = attention_oracle.attention(q, k, v, kv_lengths=LENGTHS, **options)
        why = attention_mismatch(out, lse, want)
        assert why is None, f"{name}: {why}"
        into = np.empty_like(out)
        assert cache.attention(q, out=into, **options) is into
        np.testing.assert_array_equal(into, out, err_msg=name)


@layouts
def test_step_by_step(backend: str, page_size: int | None) -> None:
    """Prompt, then token by token: each answer is that of causal attention of the whole."""
    k, v = keys_and_values("f32")
    q = normal("f32", BATCH, HEADS_Q, KEYS, HEAD_DIM)
    cache = new("f32", page_size, KEYS)
    cache.append(k[:, :, :9], v[:, :, :9])
    outs = [cache.attention(q[:, :, :9], causal=True)]
    for i in range(9, KEYS):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        outs.append(cache.attention(q[:, :, i : i + 1]))
    want = attention_oracle.attention(q, k, v, causal=True)
    assert attention_mismatch(np.concatenate(outs, axis=2), None, want) is None


@layouts
def test_ragged_prompt(backend: str, page_size: int | None) -> None:
    """Padded on the right: the offset is what each sequence held before."""
    k, v = keys_and_values("f32")
    q = normal("f32", BATCH, HEADS_Q, KEYS, HEAD_DIM)
    cache = new("f32", page_size)
    before = cache.lengths
    cache.append(k, v, LENGTHS)
    out = cache.attention(q, causal=True, causal_offset=before)
    for b, n in enumerate(LENGTHS):
        want = attention_oracle.attention(q[b, :, :n], k[b, :, :n], v[b, :, :n], causal=True)
        assert attention_mismatch(out[b, :, :n], None, want) is None


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("page_size", [None, 8])
@pytest.mark.parametrize("lengths", [(300, 1, 140), (257,) * 3], ids=["ragged", "even"])
def test_bits_do_not_depend_on_the_capacity(
    backend: str, key: str, page_size: int | None, lengths: tuple[int, ...]
) -> None:
    for queries in (1, 4):
        q = normal(key, BATCH, HEADS_Q, queries, HEAD_DIM)
        answers = [
            filled(key, page_size, capacity, lengths).attention(q, causal=True, return_lse=True)
            for capacity in (max(lengths), max(lengths) + 1, 1024, 5000)
        ]
        for out, lse in answers[1:]:
            np.testing.assert_array_equal(out, answers[0][0])
            np.testing.assert_array_equal(lse, answers[0][1])


@layouts
@pytest.mark.parametrize("key", DTYPES)
def test_free_slots_never_count(backend: str, key: str, page_size: int | None) -> None:
    """NaN everywhere but in the tokens held: in slots never written and in those truncated."""
    q = normal(key, BATCH, HEADS_Q, 2, HEAD_DIM)
    clean, dirty = filled(key, page_size), new(key, page_size)
    storage = dirty._storage
    storage.k[...] = storage.v[...] = np.nan
    k, v = keys_and_values(key)
    dirty.append(np.full_like(k, np.nan), np.full_like(v, np.inf))
    dirty.truncate(0)
    dirty.append(k, v)
    dirty.truncate(LENGTHS)
    dirty.append(k[:, :, :9] * np.nan, v[:, :, :9] * np.nan)
    dirty.truncate(LENGTHS)
    for options in ({}, {"causal": True}, {"window": (3, 0)}, {"mask": np.ones(KEYS, bool)}, {"bias": np.zeros(KEYS)}):
        np.testing.assert_array_equal(dirty.attention(q, **options), clean.attention(q, **options))


@layouts
def test_reordered_and_forked(backend: str, page_size: int | None) -> None:
    q = normal("f32", BATCH, HEADS_Q, 2, HEAD_DIM)
    cache = filled("f32", page_size)
    index = [2, 2, 0]
    # every sequence with every query, before
    every = [cache.attention(np.repeat(q[b : b + 1], BATCH, axis=0), causal=True) for b in range(BATCH)]
    want = np.stack([every[b][source] for b, source in enumerate(index)])
    fork = cache.fork(index)
    cache.reorder(index)
    np.testing.assert_array_equal(fork.attention(q, causal=True), want)
    np.testing.assert_array_equal(cache.attention(q, causal=True), want)


@layouts
def test_nothing_held(backend: str, page_size: int | None) -> None:
    cache = new("f32", page_size)
    q = normal("f32", BATCH, HEADS_Q, 2, HEAD_DIM)
    for options in ({}, {"causal": True}):
        out, lse = cache.attention(q, return_lse=True, **options)
        assert out.shape == (BATCH, HEADS_Q, 2, HEAD_DIM_V)
        assert not out.any()
        assert (lse == -np.inf).all()
    assert cache.attention(q[:, :, :0]).shape == (BATCH, HEADS_Q, 0, HEAD_DIM_V)


@layouts
def test_no_sequences_and_no_capacity(backend: str, page_size: int | None) -> None:
    cache = new("f32", page_size, batch=0)
    k, v = keys_and_values("f32")
    cache.append(k[:0], v[:0])
    assert cache.attention(normal("f32", 0, HEADS_Q, 1, HEAD_DIM)).shape == (0, HEADS_Q, 1, HEAD_DIM_V)
    assert cache.lengths.tolist() == []
    nothing = new("f32", page_size, capacity=0)
    assert not nothing.attention(normal("f32", BATCH, HEADS_Q, 1, HEAD_DIM)).any()


def test_the_dtype_is_that_of_query_and_cache(backend: str) -> None:
    cache = filled("f16", 4)
    assert cache.attention(normal("f32", BATCH, HEADS_Q, 1, HEAD_DIM)).dtype == np.float32
    assert cache.attention(normal("f16", BATCH, HEADS_Q, 1, HEAD_DIM)).dtype == np.float16


@layouts
def test_refused(page_size: int | None) -> None:
    cache = filled("f32", page_size)
    q = normal("f32", BATCH, HEADS_Q, 1, HEAD_DIM)
    with ds.use_backend("reference"):
        with pytest.raises(TypeError, match="kv_lengths"):
            cache.attention(q, kv_lengths=LENGTHS)
        heads = normal("f32", BATCH, 3, 1, HEAD_DIM)
        for wrong in (q[:1], q[0], q[..., None], q[..., 1:], heads):
            with pytest.raises(ValueError, match=r"q must have the shape .*\(3, a multiple of 2, queries, 16\)"):
                cache.attention(wrong)
        for kind in (np.complex64, str):
            with pytest.raises(TypeError, match="q must be float16"):
                cache.attention(q.astype(kind))
        with pytest.raises(TypeError, match="q is bfloat16 and the cache float16"):
            filled("f16", page_size).attention(q.astype(DTYPES["bf16"]))
        with pytest.raises(TypeError, match="sideways"):
            cache.attention(q, sideways=True)
        with pytest.raises(TypeError, match="mask"):
            cache.attention(q, mask=np.ones(KEYS, np.float32))


@layouts
@pytest.mark.parametrize("lengths", [LENGTHS, (1, 1, 1)], ids=["ragged", "one"])
def test_wrong_masks_are_called_what_they_are(page_size: int | None, lengths: tuple[int, ...]) -> None:
    """The shape given and the one wanted, without what pages add."""
    cache = filled("f32", page_size, lengths=lengths)
    q = normal("f32", BATCH, HEADS_Q, 2, HEAD_DIM)
    keys = max(lengths)
    wanted = rf"does not broadcast to the shape of the scores.* \({BATCH}, {HEADS_Q}, "
    for shape in ((keys + 1,), (5, keys), (2, 1, 1, keys), (1, 1, 1, 1, keys)):
        for name, dtype in (("mask", bool), ("bias", float)):
            given = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
            with pytest.raises(ValueError, match=rf"{name} has shape \({given}\), which {wanted}2, {keys}\)"):
                cache.attention(q, **{name: np.ones(shape, dtype)})
    blocks = -(-keys // 2)
    with pytest.raises(ValueError, match=rf"block_mask has shape \(1, {blocks + 1}\), which {wanted}2, {blocks}\)"):
        cache.attention(q, block_mask=ds.BlockMask(np.ones((1, blocks + 1), bool), 1, 2))
    with pytest.raises(TypeError, match=r"block_mask must be a dualsoft\.BlockMask"):
        cache.attention(q, block_mask=np.ones(keys, bool))
