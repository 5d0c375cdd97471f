"""Keys and values in pages: the answer is that of the same keys in one piece."""

from typing import Any

import attention_oracle
import numpy as np
import pytest
from attention_cases import Shape, operands
from cases import DTYPES, Array
from devices import BOTH_TEXTS, ONE
from tolerance import attention_mismatch

import dualsoft as ds

ON_DEVICES = {
    "test_as_in_one_piece": BOTH_TEXTS, "test_unused_slots_are_not_seen": ONE, "test_shared_pages": ONE,
    "test_strides_of_the_pool": ONE, "test_nothing_in_it": ONE,
}  # fmt: skip
INF, NAN = np.inf, np.nan


@pytest.fixture(params=DTYPES)
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Pages:
    """Sequences of ``lengths`` in pages of one pool, in random order, and the same keys in one piece."""

    def __init__(self, key: str, shape: Shape, page_size: int, lengths: list[int], held: float = 0.0):
        rng = np.random.default_rng([page_size, *lengths])
        self.shape, self.lengths = shape, np.array(lengths)
        self.q, self.k, self.v = operands(key, shape)
        batch, count = len(lengths), -(-shape.seq_len_k // page_size)
        used = -(-self.lengths // page_size)
        pages = int(used.sum()) + 3
        self.table = np.full((batch, count), -(2**40))  # what is not used may be anything
        order = iter(rng.permutation(pages))
        self.k_pages = np.full((pages, shape.num_heads_k, page_size, shape.head_dim), held, self.k.dtype)
        self.v_pages = np.full((pages, shape.num_heads_k, page_size, shape.head_dim_v), held, self.k.dtype)
        for b in range(batch):
            for place in range(used[b]):
                page = self.table[b, place] = next(order)
                at = slice(place * page_size, min((place + 1) * page_size, lengths[b]))
                for pool, whole in ((self.k_pages, self.k), (self.v_pages, self.v)):
                    pool[page, :, : at.stop - at.start] = whole[b, :, at]
        width = count * page_size - shape.seq_len_k
        self.scores = (*shape.scores[:-1], shape.seq_len_k + width)
        pad = [(0, 0)] * 2 + [(0, width), (0, 0)]
        self.k, self.v = np.pad(self.k, pad), np.pad(self.v, pad)

    def attend(self, **options: Any) -> Any:
        return ds.attention_paged(
            self.q, self.k_pages, self.v_pages, self.table, self.lengths, return_lse=True, **options
        )

    def why_not(self, **options: Any) -> str | None:
        want = attention_oracle.attention(self.q, self.k, self.v, kv_lengths=self.lengths, **options)
        return attention_mismatch(*self.attend(**options), want)


SHAPES = (Shape((3,), 4, 2, 1, 70, 16, 16), Shape((3,), 6, 2, 5, 70, 12, 10), Shape((3,), 2, 2, 40, 70, 8, 8))
LENGTHS = ([70, 1, 33], [0, 64, 16], [65, 63, 15], [0, 0, 0])


def option_sets(pages: Pages) -> list[dict[str, Any]]:
    rng = np.random.default_rng(4)
    heads, scores = pages.shape.num_heads_q, pages.scores
    blocks = (3, 1, -(-scores[-2] // 7), -(-scores[-1] // 9))
    return [
        {}, {"causal": True}, {"window": (9, 1)}, {"causal": True, "window": (20, 0), "sinks": rng.random(heads)},
        {"softcap": 2.0, "scale": -0.4}, {"alibi_slopes": rng.random((3, heads))},
        {"causal": True, "causal_offset": np.array([3, 0, 30])}, {"mask": rng.random(scores) < 0.7},
        {"bias": rng.standard_normal(scores[-1]).astype(np.float32), "causal": True},
        {"block_mask": ds.BlockMask(rng.random(blocks) < 0.6, 7, 9)},
        {
            "mask": rng.random(scores[-2:]) < 0.8, "bias": rng.standard_normal((heads, 1, 1)).astype(np.float16),
            "causal": True, "window": (40, 3), "softcap": 9.0, "sinks": rng.random(heads),
            "alibi_slopes": rng.random(heads), "block_mask": ds.BlockMask(rng.random(blocks) < 0.7, 7, 9),
        },
    ]  # fmt: skip


@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 128])
def test_as_in_one_piece(page_size: int, key: str, backend: str) -> None:
    for number, shape in enumerate(SHAPES):
        for step, lengths in enumerate(LENGTHS):
            pages = Pages(key, shape, page_size, lengths, NAN)
            for options in option_sets(pages)[(number + step) % 2 :: 2]:
                why = pages.why_not(**options)
                assert not why, f"{shape}, lengths {lengths}, {sorted(options)}: {why}"


@pytest.mark.parametrize("held", [NAN, INF, -INF, 1e4])
def test_unused_slots_are_not_seen(held: float, key: str, backend: str) -> None:
    """Behind the last key of a page, and in pages that nobody uses: their contents change no bit."""
    for shape in SHAPES:
        for page_size in (1, 16, 64):
            clean, dirty = (Pages(key, shape, page_size, [70, 1, 33], value) for value in (0.0, held))
            for options in ({}, {"causal": True}, {"window": (9, 9)}):
                for got, want in zip(dirty.attend(**options), clean.attend(**options), strict=True):
                    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8), err_msg=f"{options}")


def test_shared_pages(key: str, backend: str) -> None:
    """Sequences may have pages in common, and one may use a page twice."""
    pages = Pages(key, SHAPES[1], 16, [70, 70, 70])
    pages.table[1, :3] = pages.table[0, :3]
    pages.table[2, 1] = pages.table[2, 0]
    pages.k[1, :, :48], pages.v[1, :, :48] = pages.k[0, :, :48], pages.v[0, :, :48]
    pages.k[2, :, 16:32], pages.v[2, :, 16:32] = pages.k[2, :, :16], pages.v[2, :, :16]
    for options in ({}, {"causal": True}):
        why = pages.why_not(**options)
        assert not why, why


def strided(x: Array) -> Array:
    """The pool as a pool of (pages, page_size, heads, D) would be seen, every other entry of a wider one."""
    wide = np.full((x.shape[0], x.shape[2], 2 * x.shape[1], x.shape[3]), NAN, x.dtype)
    wide[:, :, ::2] = x.swapaxes(1, 2)
    return wide[:, :, ::2].swapaxes(1, 2)


def test_strides_of_the_pool(key: str, backend: str) -> None:
    for shape in SHAPES:
        pages = Pages(key, shape, 16, [70, 1, 33])
        pages.k_pages, pages.v_pages = strided(pages.k_pages), strided(pages.v_pages)
        why = pages.why_not(causal=True)
        assert not why, f"{shape}: {why}"


@pytest.mark.parametrize("dtype", ["i4", "i8", ">i4", "u4"])
def test_integers_of_the_table(dtype: str, backend: str) -> None:
    pages = Pages("f32", SHAPES[1], 16, [70, 64, 66])
    want = pages.attend()[0]
    for table in (pages.table.clip(0).astype(dtype), pages.table.clip(0).tolist(), np.asfortranarray(pages.table)):
        got = ds.attention_paged(pages.q, pages.k_pages, pages.v_pages, table, pages.lengths.astype(dtype))
        np.testing.assert_array_equal(got, want)


def test_nothing_in_it(key: str, backend: str) -> None:
    """No page at all, and no sequence."""
    pages = Pages(key, SHAPES[1], 16, [0, 0, 0], NAN)
    for k_pages, v_pages in ((pages.k_pages, pages.v_pages), (pages.k_pages[:0], pages.v_pages[:0])):
        out, lse = ds.attention_paged(pages.q, k_pages, v_pages, pages.table, [0, 0, 0], return_lse=True)
        np.testing.assert_array_equal(out.astype(float), np.zeros(out.shape))
        np.testing.assert_array_equal(lse, np.full(lse.shape, -INF))
    empty = np.zeros((3, 0), int)
    out, lse = ds.attention_paged(
        pages.q, pages.k_pages, pages.v_pages, empty, [0, 0, 0], return_lse=True, sinks=[1] * 6
    )
    np.testing.assert_array_equal(out.astype(float), np.zeros(out.shape))
    np.testing.assert_array_equal(lse, np.ones(lse.shape))
    none = ds.attention_paged(pages.q[:0], pages.k_pages, pages.v_pages, np.zeros((0, 2), int), np.zeros(0, int))
    assert none.shape == (0, 6, 5, 10)
