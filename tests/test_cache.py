"""What a KVCache holds: programs of calls against lists of arrays, pages and who shares them."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cache_model import HEAD_DIM, HEAD_DIM_V, HEADS, Model, check, check_pages, held, layouts, new, tokens
from cases import DTYPES, Array

import dualsoft as ds


@layouts
@pytest.mark.parametrize("seed", range(12))
def test_programs(page_size: int | None, seed: int) -> None:
    """Random calls on a family of forks; every cache is compared after each."""
    rng = np.random.default_rng([seed, page_size or 0])
    capacity, batch = int(rng.integers(1, 40)), int(rng.integers(1, 5))
    pairs = [(new(batch, capacity, page_size), Model(batch))]
    for _ in range(60):
        at = int(rng.integers(len(pairs)))
        cache, model = pairs[at]
        match rng.choice(
            ["append", "ragged", "truncate", "reorder", "fork", "drop"], p=[0.35, 0.25, 0.1, 0.15, 0.1, 0.05]
        ):
            case "append" | "ragged" as kind:
                count = int(rng.integers(0, 9))
                k, v = tokens(rng, cache.batch, count)
                counts = [count] * cache.batch if kind == "append" else rng.integers(0, count + 1, cache.batch).tolist()
                given = () if kind == "append" else (counts,)
                if all(n + more <= capacity for n, more in zip(model.lengths, counts, strict=True)):
                    assert cache.append(k, v, *given) is None
                    model.append(k, v, counts)
                else:
                    with pytest.raises(ValueError, match=f"past the capacity of {capacity}"):
                        cache.append(k, v, *given)
            case "truncate":
                lengths = [int(rng.integers(0, n + 1)) for n in model.lengths]
                cache.truncate(lengths)
                model.truncate(lengths)
            case "reorder":
                index = rng.integers(-cache.batch, cache.batch, cache.batch) if cache.batch else []
                cache.reorder(index)
                pairs[at] = (cache, model.picked(index))
            case "fork" if len(pairs) < 5:
                index = rng.integers(0, cache.batch, rng.integers(0, 4)).tolist() if cache.batch else []
                pairs.append((cache.fork(index), model.picked(index)))
            case "drop" if len(pairs) > 1:
                del pairs[at], cache, model
        for each in pairs:
            check(*each)
        check_pages(pairs)


@layouts
def test_full_to_the_last_slot(page_size: int | None) -> None:
    rng = np.random.default_rng(0)
    cache, model = new(2, 11, page_size), Model(2)
    k, v = tokens(rng, 2, 11)
    cache.append(k, v)
    model.append(k, v, [11, 11])
    check(cache, model)
    with pytest.raises(ValueError, match="sequence 0 holds 11 tokens and 1 more"):
        cache.append(k[:, :, :1], v[:, :, :1])
    cache.append(k[:, :, :0], v[:, :, :0])
    check(cache, model)


@layouts
def test_inputs_are_copied(page_size: int | None) -> None:
    rng = np.random.default_rng(1)
    cache, model = new(2, 8, page_size), Model(2)
    k, v = tokens(rng, 2, 3)
    model.append(k, v, [3, 3])
    model.append(k, v, [2, 1])
    k_given, v_given, counts = k.copy(), v.copy(), np.array([2, 1])
    cache.append(k_given, v_given)
    cache.append(k_given, v_given, counts)
    k_given[...] = v_given[...] = np.nan
    counts[...] = 0
    cache.lengths[...] = 7
    check(cache, model)


@layouts
def test_any_strides_and_array_likes(page_size: int | None) -> None:
    rng = np.random.default_rng(2)
    cache, model = new(2, 12, page_size), Model(2)
    k, v = tokens(rng, 2, 3)
    forms: list[Callable[[Array], Any]] = [
        lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2),
        lambda x: x[:, ::-1].copy()[:, ::-1],
        lambda x: x.astype(">f4"),
        lambda x: x.tolist(),
    ]
    for form in forms:
        cache.append(form(k), form(v))
        model.append(k, v, [3, 3])
    check(cache, model)


@layouts
def test_appending_what_the_cache_shows(page_size: int | None) -> None:
    """The new tokens lie in the memory that is written to."""
    rng = np.random.default_rng(3)
    cache = ds.KVCache(2, HEADS, 100, HEAD_DIM, dtype=np.float32, page_size=page_size)
    k, _ = tokens(rng, 2, 2)
    cache.append(k, 2 * k)
    shown, shown_v = (cache.k, cache.v) if page_size is None else (cache.k_pages[:2], cache.v_pages[:2])
    want, want_v = shown.copy(), shown_v.copy()
    count = want.shape[2]
    cache.append(np.broadcast_to(shown[:1], shown.shape), shown_v, lengths=[count, count - 1])
    assert cache.lengths.tolist() == [2 + count, 1 + count]
    for b, n in enumerate(cache.lengths.tolist()):
        np.testing.assert_array_equal(held(cache, b)[0][:, 2:n], want[0, :, : n - 2])
        if page_size is None:
            np.testing.assert_array_equal(cache.v[b, :, 2:n], want_v[b, :, : n - 2])


@pytest.mark.parametrize("counts", [None, [4, 4], [4, 3]], ids=["all", "even", "ragged"])
@layouts
def test_appending_its_own_keys_as_values(page_size: int | None, counts: list[int] | None) -> None:
    """Reversed, onto the place where they lie: what is written first must not be read after."""
    cache = ds.KVCache(2, 1, 70, 3, dtype=np.float32, page_size=page_size)
    k = np.arange(24, dtype=np.float32).reshape(2, 1, 4, 3)
    cache.append(k, k + 100)
    shown = (cache.k if page_size is None else cache.k_pages)[:2, :, 3::-1]
    want = shown.copy()
    cache.truncate(0)
    cache.append(shown, shown, None if counts is None else np.minimum(counts, shown.shape[2]))
    for b, n in enumerate(cache.lengths.tolist()):
        for got in held(cache, b):
            np.testing.assert_array_equal(got, want[b, :, :n])


@layouts
def test_swapping_its_own_keys_and_values(page_size: int | None) -> None:
    cache = ds.KVCache(2, 1, 70, 3, dtype=np.float32, page_size=page_size)
    k = np.arange(24, dtype=np.float32).reshape(2, 1, 4, 3)
    for lengths in (None, [1, 1], [1, 0]):
        cache.truncate(0)
        cache.append(k, k + 100)
        shown_k, shown_v = (cache.k, cache.v) if page_size is None else (cache.k_pages, cache.v_pages)
        shown_k, shown_v = shown_k[:2, :, :1], shown_v[:2, :, :1]
        want_k, want_v = shown_v.copy(), shown_k.copy()
        cache.truncate(0)
        cache.append(shown_v, shown_k, lengths)
        for b, n in enumerate(cache.lengths.tolist()):
            np.testing.assert_array_equal(held(cache, b)[0], want_k[b, :, :n])
            np.testing.assert_array_equal(held(cache, b)[1], want_v[b, :, :n])


@pytest.mark.parametrize("counts", [None, [2, 1]], ids=["all", "ragged"])
@pytest.mark.parametrize("own", ["k", "v"])
@layouts
def test_appending_what_another_sequence_had(page_size: int | None, own: str, counts: list[int] | None) -> None:
    """Sequences in turn, beside tokens that lie elsewhere: what one gets must not be read for the next."""
    cache = ds.KVCache(2, 1, 70, 3, dtype=np.float32, page_size=page_size)
    k = np.arange(12, dtype=np.float32).reshape(2, 1, 2, 3)
    cache.append(k, k + 100)
    shown = getattr(cache, own if page_size is None else f"{own}_pages")[:2][::-1, :, :2]
    want = shown.copy()
    other = np.full_like(want, 7.0)
    cache.truncate(0)
    pair = (shown, other) if own == "k" else (other, shown)
    cache.append(*pair, None if counts is None else np.minimum(counts, want.shape[2]))
    for b, n in enumerate(cache.lengths.tolist()):
        got = held(cache, b)
        np.testing.assert_array_equal(got[own == "v"], want[b, :, :n])
        np.testing.assert_array_equal(got[own == "k"], other[b, :, :n])


@pytest.mark.parametrize("key", DTYPES)
@layouts
def test_rounds_to_its_dtype(key: str, page_size: int | None) -> None:
    dtype = DTYPES[key]
    cache = new(1, 9, page_size, dtype)
    assert cache.dtype == dtype
    given = np.array([1 / 3, -2.0, 1e300, np.nan, np.inf, 0.0])
    k = np.broadcast_to(given[:, None], (1, HEADS, 6, HEAD_DIM))
    v = np.arange(HEADS * 6 * HEAD_DIM_V).reshape(1, HEADS, 6, HEAD_DIM_V) % 2 > 0
    cache.append(k, v)
    got, got_v = held(cache, 0)
    assert got.dtype == got_v.dtype == dtype
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.astype(float), k[0].astype(dtype).astype(float))
    np.testing.assert_array_equal(got_v.astype(float), v[0].astype(float))


# ------------------------------------------------------------------ pages
def test_the_pool() -> None:
    cache = new(3, 10, page_size=4)
    assert cache.k_pages.shape == (9, HEADS, 4, HEAD_DIM)
    assert cache.v_pages.shape == (9, HEADS, 4, HEAD_DIM_V)
    assert cache.page_table.tolist() == [[-1] * 3] * 3
    assert cache.nbytes == 9 * HEADS * 4 * (HEAD_DIM + HEAD_DIM_V) * 4
    assert cache.pages_used == 0


def test_forks_share_pages_until_written() -> None:
    rng = np.random.default_rng(4)
    cache = new(1, 16, page_size=4)
    cache.append(*tokens(rng, 1, 10))
    fork = cache.fork([0, 0])
    first = cache.page_table[0, :3].tolist()
    assert fork.page_table[:, :3].tolist() == [first, first]
    assert cache.pages_used == 3
    fork.append(*tokens(rng, 2, 1), lengths=[1, 0])
    # the page filled in part was copied by the one that wrote
    assert fork.page_table[0, :2].tolist() == first[:2]
    assert fork.page_table[0, 2] not in first
    assert fork.page_table[1, :3].tolist() == cache.page_table[0, :3].tolist() == first
    assert cache.pages_used == 4
    fork.append(*tokens(rng, 2, 1), lengths=[0, 1])
    assert cache.pages_used == 5
    # the last one that uses a page writes in place
    cache.append(*tokens(rng, 1, 1))
    assert cache.page_table[0, :3].tolist() == first
    assert cache.pages_used == 5


def test_full_pages_are_never_copied() -> None:
    rng = np.random.default_rng(5)
    cache = new(1, 16, page_size=4)
    cache.append(*tokens(rng, 1, 8))
    fork = cache.fork([0])
    fork.append(*tokens(rng, 1, 1))
    assert fork.page_table[0, :2].tolist() == cache.page_table[0, :2].tolist()
    assert cache.pages_used == 3


def test_reordering_shares_pages() -> None:
    rng = np.random.default_rng(6)
    cache = new(4, 8, page_size=4)
    cache.append(*tokens(rng, 4, 8))
    assert cache.pages_used == 8
    cache.reorder([2, 2, 2, 0])
    assert cache.pages_used == 4
    cache.truncate([8, 6, 5, 0])
    cache.append(*tokens(rng, 4, 1), lengths=[0, 1, 0, 0])
    assert cache.pages_used == 3


def test_within_its_capacity_a_lone_cache_never_grows_its_pool() -> None:
    rng = np.random.default_rng(7)
    cache = new(3, 7, page_size=4)
    before = cache.nbytes
    for _ in range(200):
        cache.reorder(rng.integers(0, 3, 3))
        room = 7 - cache.lengths
        cache.append(*tokens(rng, 3, 7), lengths=rng.integers(0, room + 1))
        cache.truncate(rng.integers(0, cache.lengths + 1))
    assert cache.nbytes == before


def test_pages_come_back_when_a_fork_is_gone() -> None:
    rng = np.random.default_rng(8)
    cache = new(1, 8, page_size=2)
    cache.append(*tokens(rng, 1, 2))
    for _ in range(50):
        fork = cache.fork([0])
        fork.append(*tokens(rng, 1, 6))
        del fork
        gc.collect()
    assert cache.pages_used == 1
    assert len(cache.k_pages) == 4


def test_the_pool_grows_for_forks() -> None:
    rng = np.random.default_rng(9)
    cache, model = new(1, 8, page_size=2), Model(1)
    forks = []
    for _ in range(6):
        fork, k, v = cache.fork([0]), *tokens(rng, 1, 8)
        fork.append(k, v)
        forks.append((fork, k, v))
    k, v = tokens(rng, 1, 8)
    cache.append(k, v)
    model.append(k, v, [8])
    check(cache, model)
    for fork, k, v in forks:
        np.testing.assert_array_equal(held(fork, 0)[0], k[0])
        np.testing.assert_array_equal(held(fork, 0)[1], v[0])


def test_the_pool_grows_to_twice_its_size() -> None:
    rng = np.random.default_rng(9)
    cache = new(1, 8, page_size=2)
    cache.append(*tokens(rng, 1, 8))
    fork = cache.fork([0])
    fork.truncate(7)
    fork.append(*tokens(rng, 1, 1))
    assert len(cache.k_pages) == len(cache.v_pages) == 8, "one page was missing"


def test_forks_that_are_gone_leave_nothing() -> None:
    """No word of them, no page that they used, and no reason to copy a page."""
    rng = np.random.default_rng(12)
    cache, model = new(1, 8, page_size=4), Model(1)
    k, v = tokens(rng, 1, 3)
    cache.append(k, v)
    model.append(k, v, [3])
    table = cache.page_table.tolist()
    for _ in range(100):
        cache.fork([0])
    pool = cache._storage.pool
    assert len(pool.retired) <= 1
    k, v = tokens(rng, 1, 5)
    cache.append(k[:, :, :1], v[:, :, :1])
    assert cache.page_table.tolist() == table, "a page was copied that nobody shares"
    fork = cache.fork([0])
    fork.append(k[:, :, 1:], v[:, :, 1:])
    del fork
    cache.append(k[:, :, 1:], v[:, :, 1:])
    model.append(k, v, [5])
    check(cache, model)
    assert len(cache.k_pages) == 2, "the pool grew for a fork that is gone"
    assert not pool.retired
    assert len(pool.users) == 1
