"""A KVCache as a list of arrays: what the tests compare it with."""

from typing import Any

import numpy as np
import pytest
from cases import Array

import dualsoft as ds

HEADS, HEAD_DIM, HEAD_DIM_V = 2, 3, 4
LAYOUTS = {"strips": None, "pages of 1": 1, "pages of 4": 4, "pages of 5": 5, "one page": 64}
layouts = pytest.mark.parametrize("page_size", LAYOUTS.values(), ids=LAYOUTS)


def new(batch: int, capacity: int, page_size: int | None = None, dtype: Any = np.float32) -> ds.KVCache:
    return ds.KVCache(
        batch, HEADS, capacity, HEAD_DIM, head_dim_v=HEAD_DIM_V, dtype=dtype, page_size=page_size
    )  # fmt: skip


def tokens(rng: np.random.Generator, batch: int, count: int) -> tuple[Array, Array]:
    shape = (batch, HEADS, count)
    return rng.standard_normal((*shape, HEAD_DIM), np.float32), rng.standard_normal((*shape, HEAD_DIM_V), np.float32)


def held(cache: ds.KVCache, sequence: int) -> tuple[Array, Array]:
    """Keys and values of a sequence, (heads, length, head_dim), read through what the cache shows."""
    length = int(cache.lengths[sequence])
    if cache.page_size is None:
        return cache.k[sequence, :, :length], cache.v[sequence, :, :length]
    pages = cache.page_table[sequence, : -(-length // cache.page_size)]
    k, v = (np.moveaxis(store[pages], 0, 1) for store in (cache.k_pages, cache.v_pages))
    k, v = (x.reshape(x.shape[0], -1, x.shape[-1])[:, :length] for x in (k, v))
    return k, v


class Model:
    """A cache as a list of (keys, values) of each sequence."""

    def __init__(self, batch: int) -> None:
        self.sequences = [(np.zeros((HEADS, 0, HEAD_DIM)), np.zeros((HEADS, 0, HEAD_DIM_V)))] * batch

    @property
    def lengths(self) -> list[int]:
        return [k.shape[1] for k, _ in self.sequences]

    def append(self, k: Array, v: Array, counts: Any) -> None:
        self.sequences = [
            (np.concatenate([a, k[b, :, :n]], axis=1), np.concatenate([c, v[b, :, :n]], axis=1))
            for b, ((a, c), n) in enumerate(zip(self.sequences, counts, strict=True))
        ]

    def truncate(self, lengths: Any) -> None:
        self.sequences = [(k[:, :n], v[:, :n]) for (k, v), n in zip(self.sequences, lengths, strict=True)]

    def reorder(self, index: Any) -> None:
        self.sequences = [self.sequences[i] for i in index]

    def picked(self, index: Any) -> "Model":
        other = Model(0)
        other.sequences = [self.sequences[i] for i in index]
        return other


def check(cache: ds.KVCache, model: Model) -> None:
    assert cache.lengths.tolist() == model.lengths
    for b, (k, v) in enumerate(model.sequences):
        got_k, got_v = held(cache, b)
        np.testing.assert_array_equal(got_k, k)
        np.testing.assert_array_equal(got_v, v)


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
