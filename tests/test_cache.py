"""What a KVCache holds: programs of calls against lists of arrays, pages and who shares them."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cache_model import HEAD_DIM, HEAD_DIM_V, HEADS, Model, check, held, layouts, new, tokens
from cases import DTYPES, Array

import dualsoft as ds


def check_pages(pairs: list[tuple[ds.KVCache, Model]]) -> None:
    """Every page in use belongs to a sequence and no other page counts as used."""
    size = pairs[0][0].page_size
    if size is None:
        return
    distinct: set[int] = set()
    for cache, model in pairs:
        used = [-(-n // size) for n in model.lengths]
        table = cache.page_table
        assert [(row >= 0).sum() for row in table] == used
        assert all((row[:n] >= 0).all() for row, n in zip(table, used, strict=True))
        distinct |= set(table[table >= 0].tolist())
    assert pairs[0][0].pages_used == len(distinct)


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


# ------------------------------------------------------------------ the object itself
@layouts
def test_copies_and_pickles(page_size: int | None) -> None:
    rng = np.random.default_rng(10)
    cache, model = new(3, 9, page_size), Model(3)
    k, v = tokens(rng, 3, 5)
    cache.append(k, v, [5, 0, 2])
    model.append(k, v, [5, 0, 2])
    copies = [copy.copy(cache), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
    cache.truncate(0)
    for other in copies:
        assert (other.capacity, other.page_size, other.dtype) == (9, page_size, np.float32)
        check(other, model)
        other.append(k[:, :, :1], v[:, :, :1])


def test_attributes_and_repr() -> None:
    cache = ds.KVCache(np.int64(2), 3, 5, 4, dtype="float16", page_size=2)
    assert (cache.batch, cache.kv_heads, cache.capacity, cache.head_dim, cache.head_dim_v, cache.page_size) == (
        2, 3, 5, 4, 4, 2,
    )  # fmt: skip
    assert repr(cache) == (
        "KVCache(batch=2, kv_heads=3, capacity=5, head_dim=4, dtype=float16, page_size=2, lengths=[0, 0])"
    )
    assert repr(new(1, 2)) == (
        "KVCache(batch=1, kv_heads=2, capacity=2, head_dim=3, head_dim_v=4, dtype=float32, lengths=[0])"
    )
    assert new(1, 2).nbytes == HEADS * 2 * (HEAD_DIM + HEAD_DIM_V) * 4


@pytest.mark.parametrize(
    ("page_size", "names"), [(None, ("k_pages", "v_pages", "page_table", "pages_used")), (2, ("k", "v"))]
)
def test_what_the_other_layout_has(page_size: int | None, names: tuple[str, ...]) -> None:
    for name in names:
        with pytest.raises(AttributeError, match=f"has no {name}"):
            getattr(new(1, 4, page_size), name)


def test_what_it_shows_cannot_be_written() -> None:
    for page_size, names in ((None, ("k", "v")), (2, ("k_pages", "v_pages"))):
        for name in names:
            with pytest.raises(ValueError, match="read-only"):
                getattr(new(1, 4, page_size), name)[...] = 0
