"""What is right: the result in wide arithmetic for a sample of the queries, and how much may be wrong."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bench.attention.case import AttentionCase, Data, visible
from bench.contest import Array, Verdict
from dualsoft import accuracy

PAIRS = 2**27
"""Scores to compute again, in all: the queries are sampled evenly beyond this."""
LONG_PAIRS = 2**21
"""The same in longdouble, for which there are no fast products."""
AT_ONCE = 2**22


class Truth(NamedTuple):
    """The exact result of the sampled queries of each head, and the limits on the errors."""

    picks: tuple[tuple[Any, ...], ...]
    """Indices into the result, one a head (and sequence)."""
    exact: tuple[Array, ...]
    ulp: float
    """Of the largest result, in which errors are counted."""
    limit: float
    """dualsoft's bound: twice the error of the plain computation in the same dtype, and two ulp."""
    shared_limit: float
    """Others': half of the dtype's digits; beyond it something else was computed."""

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare a result with the exact one."""
        worst = 0.0
        for pick, exact in zip(self.picks, self.exact, strict=True):
            # maximum keeps NaN, and NaN is no smaller than any limit.
            worst = float(np.maximum(worst, np.max(np.abs(found[pick].astype(exact.dtype) - exact))))
        limit = self.limit if ours else self.shared_limit
        called = "twice the plain computation's error" if ours else "half of the digits"
        return Verdict(worst / self.ulp, None if worst <= limit else called)


class _Head(NamedTuple):
    pick: tuple[Any, ...]
    rows: Array
    q: Array
    k: Array
    v: Array


def truth_of(case: AttentionCase, data: Data, pairs: int | None = None) -> Truth:
    """Compute the exact result of queries that have ``pairs`` scores in all, and the plain one that sets the limit."""
    dtype, pairs = data.q.dtype, pairs or PAIRS
    picks, exact, plain = [], [], []
    for head in _heads(case, data, min(pairs, LONG_PAIRS) if dtype == np.float64 else pairs):
        wide = np.longdouble if dtype == np.float64 else np.float64
        found, rough = (np.empty((len(head.rows), head.v.shape[-1]), wide) for _ in range(2))
        k, v = head.k.astype(wide), head.v.astype(wide)
        step = max(1, AT_ONCE // len(head.k))
        for at in range(0, len(head.rows), step):
            rows = head.rows[at : at + step]
            seen = visible(case, data, rows, len(head.k))
            part = slice(at, at + step)
            found[part] = _exact(head.q[rows].astype(wide), k, v, seen)
            rough[part] = _plain(head.q[rows], head.k, head.v, seen)
        picks.append(head.pick)
        exact.append(found)
        plain.append(rough)
    whole = np.concatenate(exact)
    largest = float(np.max(np.abs(whole)))
    limit = accuracy.attention_bound(np.concatenate(plain), whole, dtype)
    shared = math.sqrt(accuracy.unit_roundoff(dtype)) * largest
    return Truth(tuple(picks), tuple(exact), float(accuracy.ulp(largest, dtype)), limit, shared)


def _heads(case: AttentionCase, data: Data, pairs: int) -> Iterator[_Head]:
    """Go through the heads, and the sequences, each with its sample of the queries: the first and last among them."""
    share = min(1.0, pairs / case.elements)
    for b, h in np.ndindex(1 if case.lengths else case.batch, case.heads_q):
        if data.starts is None:
            q, k, v = data.q[b, h], data.k[b, h // case.group], data.v[b, h // case.group]
            yield _Head((b, h, _sample(len(q), share)), _sample(len(q), share), q, k, v)
            continue
        for first, last in zip(data.starts[:-1], data.starts[1:], strict=True):
            rows = _sample(int(last - first), share)
            part = slice(int(first), int(last))
            k, v = data.k[h // case.group, part], data.v[h // case.group, part]
            yield _Head((h, rows + int(first)), rows, data.q[h, part], k, v)


def _sample(count: int, share: float) -> Array:
    if share >= 1:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, max(2, int(count * share))).round().astype(np.int64))


def _exact(q: Array, k: Array, v: Array, seen: Array | None) -> Array:
    s = (q @ k.T) / np.sqrt(q.dtype.type(q.shape[-1]))
    if seen is not None:
        s[~seen] = -np.inf
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return (p @ v) / p.sum(axis=1, keepdims=True)


def _plain(q: Array, k: Array, v: Array, seen: Array | None) -> Array:
    """Compute in the dtype: scores rounded to it, their softmax in float32 and rounded, and the product rounded."""
    dtype = q.dtype
    sums = np.float64 if dtype == np.float64 else np.float32
    q, k, v = (x.astype(sums, copy=False) for x in (q, k, v))
    s = ((q @ k.T) * sums(1 / math.sqrt(q.shape[-1]))).astype(dtype).astype(sums, copy=False)
    if seen is not None:
        s[~seen] = -np.inf
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p = (p / p.sum(axis=1, keepdims=True)).astype(dtype).astype(sums, copy=False)
    return (p @ v).astype(dtype).astype(np.float64)
