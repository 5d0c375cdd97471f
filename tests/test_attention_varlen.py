"""Packed sequences of unequal lengths: each is a call of ``attention`` of its own."""

from typing import Any

import attention_oracle
import numpy as np
import pytest
from attention_cases import Shape, operands
from attention_oracle import Answer
from cases import DTYPES, LAYOUTS, Array
from devices import BOTH_TEXTS, ONE
from tolerance import attention_mismatch

import dualsoft as ds

HEADS = ((4, 2), (3, 3), (5, 1))
# lengths of queries and keys: none, one, equal, decode steps, more queries than keys
ON_DEVICES = {
    "test_each_sequence": BOTH_TEXTS, "test_neighbours_are_not_seen": ONE, "test_layouts": ONE,
    "test_integers_of_starts": ONE,
}  # fmt: skip
LENGTHS: dict[str, tuple[list[int], list[int]]] = {
    "equal": ([7, 7, 7], [7, 7, 7]),
    "unequal": ([1, 40, 13, 2], [33, 40, 70, 2]),
    "empty ones": ([0, 5, 0, 0, 3, 0], [4, 0, 0, 9, 11, 0]),
    "decode": ([1] * 6, [1, 300, 17, 64, 65, 0]),
    "more queries": ([30, 12], [5, 12]),
    "one": ([21], [34]),
    "none": ([], []),
    "several tiles": ([140, 3, 129], [260, 513, 40]),
}


@pytest.fixture(params=DTYPES)
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Packed:
    """A packed batch; ``starts_q`` and ``starts_k`` are its cu_seqlens."""

    def __init__(self, key: str, lengths: tuple[list[int], list[int]], heads: tuple[int, int], dims: tuple[int, int]):
        self.lengths_q, self.lengths_k = lengths
        self.starts_q, self.starts_k = (np.cumsum([0, *n]) for n in lengths)
        self.heads = heads[0]
        self.q = operands(key, Shape((), *heads, sum(self.lengths_q), 1, *dims))[0]
        _, self.k, self.v = operands(key, Shape((), *heads, 1, sum(self.lengths_k), *dims))

    @property
    def scores(self) -> tuple[int, int, int]:
        return self.heads, len(self.q[0]), max(self.lengths_k, default=0)

    def parts(self, n: int) -> tuple[Array, Array, Array]:
        at_q, at_k = (slice(starts[n], starts[n + 1]) for starts in (self.starts_q, self.starts_k))
        return self.q[:, at_q], self.k[:, at_k], self.v[:, at_k]

    def options_of(self, n: int, options: dict[str, Any]) -> dict[str, Any]:
        own = dict(options)
        for name in ("mask", "bias"):
            if name in own:
                whole = np.broadcast_to(own[name], self.scores)
                own[name] = whole[:, self.starts_q[n] : self.starts_q[n + 1], : self.lengths_k[n]]
        for name in ("kv_lengths", "causal_offset"):
            if np.ndim(own.get(name)):
                own[name] = own[name][n]
        return own

    def answer(self, options: dict[str, Any]) -> Answer:
        answers = [
            attention_oracle.attention(*self.parts(n), **self.options_of(n, options))
            for n in range(len(self.lengths_q))
        ]
        return attention_oracle.join(answers, axis=-1)

    def attend(self, **options: Any) -> Any:
        return ds.attention_varlen(self.q, self.k, self.v, self.starts_q, self.starts_k, return_lse=True, **options)


def option_sets(packed: Packed, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    count = len(packed.lengths_q)
    lengths = np.array([int(rng.integers(0, n, endpoint=True)) for n in packed.lengths_k], np.int64)
    slopes = rng.random(packed.heads)
    return [
        {}, {"causal": True}, {"causal": True, "causal_offset": 0}, {"window": (5, 2)}, {"softcap": 2.0, "scale": 0.7},
        {"sinks": rng.standard_normal(packed.heads)}, {"alibi_slopes": slopes, "causal": True},
        {"kv_lengths": lengths}, {"kv_lengths": lengths, "causal": True, "window": (9, None)},
        {"causal": True, "causal_offset": rng.integers(-2, 9, count)},
        {"mask": rng.random(packed.scores) < 0.6}, {"mask": rng.random(packed.scores[-1]) < 0.7, "causal": True},
        {"bias": rng.standard_normal(packed.scores).astype(np.float32)},
        {"bias": rng.standard_normal((packed.heads, 1, 1)).astype(np.float16), "mask": rng.random(packed.scores) < 0.8},
        {
            "mask": rng.random(packed.scores[1:]) < 0.8, "bias": rng.standard_normal(packed.scores[1:]), "causal": True,
            "window": (20, 0), "softcap": 5.0, "sinks": slopes, "alibi_slopes": slopes, "kv_lengths": lengths,
        },
    ]  # fmt: skip


@pytest.mark.parametrize("lengths", LENGTHS)
def test_each_sequence(lengths: str, key: str, backend: str) -> None:
    several = lengths == "several tiles"
    for number, heads in enumerate(HEADS[:1] if several else HEADS):
        packed = Packed(key, LENGTHS[lengths], heads, ((12, 10), (8, 8), (16, 20))[number])
        for options in option_sets(packed, number)[:: 4 if several else 1]:
            if not packed.lengths_q:
                out, lse = packed.attend(**options)
                assert out.shape == (heads[0], 0, packed.v.shape[-1])
                assert lse.shape == (heads[0], 0)
                continue
            why = attention_mismatch(*packed.attend(**options), packed.answer(options))
            assert not why, f"heads {heads}, {sorted(options)}: {why}"


@pytest.mark.parametrize("held", [np.nan, np.inf])
def test_neighbours_are_not_seen(held: float, key: str, backend: str) -> None:
    """Bad numbers in one sequence stay there."""
    packed = Packed(key, LENGTHS["unequal"], (4, 2), (8, 8))
    for options in ({}, {"causal": True}, {"window": (6, 6)}, {"kv_lengths": np.array([20, 40, 70, 1])}):
        clean, clean_lse = packed.attend(**options)
        for n in range(4):
            bad = Packed(key, LENGTHS["unequal"], (4, 2), (8, 8))
            for part in bad.parts(n):
                part[...] = held
            out, lse = bad.attend(**options)
            others = np.ones(len(out[0]), bool)
            others[packed.starts_q[n] : packed.starts_q[n + 1]] = False
            np.testing.assert_array_equal(out[:, others].view(np.uint8), clean[:, others].view(np.uint8))
            np.testing.assert_array_equal(lse[:, others], clean_lse[:, others])


@pytest.mark.parametrize("dtype", ["i4", "i8", ">i4", "u2", "u8"])
def test_integers_of_starts(dtype: str, backend: str) -> None:
    packed = Packed("f32", LENGTHS["unequal"], (4, 2), (8, 8))
    want, _ = packed.attend(causal=True)
    starts = packed.starts_q.astype(dtype), packed.starts_k.astype(dtype)
    got = ds.attention_varlen(packed.q, packed.k, packed.v, *starts, causal=True)
    np.testing.assert_array_equal(got, want)
    got = ds.attention_varlen(packed.q, packed.k, packed.v, *(s.tolist() for s in starts), causal=True)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, key: str, backend: str) -> None:
    packed = Packed(key, LENGTHS["unequal"], (4, 2), (8, 6))
    view = LAYOUTS[layout]
    packed.q, packed.k, packed.v = view(packed.q), view(packed.k), view(packed.v)
    why = attention_mismatch(*packed.attend(causal=True), packed.answer({"causal": True}))
    assert not why, why


def test_tokens_first(key: str, backend: str) -> None:
    """(total, H, D), as tokens come, is a view; out may be one too."""
    packed = Packed(key, LENGTHS["unequal"], (4, 2), (8, 6))
    want = packed.answer({})
    q, k, v = (np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) for x in (packed.q, packed.k, packed.v))
    given = np.full((q.shape[1], 4, 6), 7, q.dtype)
    out = ds.attention_varlen(q, k, v, packed.starts_q, packed.starts_k, out=given.swapaxes(0, 1))
    assert np.shares_memory(out, given)
    why = attention_mismatch(out, None, want)
    assert not why, why
