"""Two textbook ways to compute attention, for comparison: plain array code with a count of what each keeps in memory.

They work on NumPy and CuPy arrays alike, take one head after the other, need no backend, and do not guard against what
their method does not guard against: the weight of a hidden key is 0, and 0 times an infinite or NaN value is NaN.
``memory`` is the number of elements that each keeps at once for a head, beside its inputs and its result.

==================  ================================  ===================================
method              elements, n queries and n keys    n = 65536, Dv = 64, of float32
==================  ================================  ===================================
standard_attention  n·(n + Dv + 2)                    16 GiB
chunked_attention   64·(c + (n/c + 1)·(Dv + 2)),      4.2 MiB
                    c = √n
==================  ================================  ===================================
"""

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from dualsoft.arguments import check_truth
from dualsoft.arrays import Array, module_of
from dualsoft.attention_arguments import number_of
from dualsoft.attention_operands import operands

__all__ = ["AttentionAlgorithm", "chunked_attention", "standard_attention"]

QUERIES_AT_ONCE = 64


class AttentionAlgorithm(Protocol):
    """An attention that knows how much memory it takes."""

    def __call__(self, q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> Any:
        """Return the attention of the queries to the keys and values."""

    def memory(self, seq_len_q: int, seq_len_k: int, head_dim_v: int) -> int:
        """Return how many elements of the arithmetic are kept at once for a head, beside inputs and result."""


def _keeps(memory: Callable[[int, int, int], int]) -> Callable[[Callable[..., Any]], AttentionAlgorithm]:
    def attach(function: Callable[..., Any]) -> AttentionAlgorithm:
        algorithm: Any = function
        algorithm.memory = memory
        return cast(AttentionAlgorithm, algorithm)

    return attach


def _chunk_of_keys(seq_len_k: int) -> int:
    return max(1, math.isqrt(seq_len_k))


def _standard_memory(seq_len_q: int, seq_len_k: int, head_dim_v: int) -> int:
    """Return the count for the scores, which become the weights in place, two sums a query, and the head's result."""
    return seq_len_q * (seq_len_k + head_dim_v + 2)


def _chunked_memory(seq_len_q: int, seq_len_k: int, head_dim_v: int) -> int:
    """Return the count for one tile of scores, the partial results of all chunks of keys, and their sum."""
    keys = _chunk_of_keys(seq_len_k)
    return min(seq_len_q, QUERIES_AT_ONCE) * (keys + (math.ceil(seq_len_k / keys) + 1) * (head_dim_v + 2))


class _Heads(NamedTuple):
    """Judged operands, with at least one axis of heads; leading axes broadcast as views."""

    q: Array
    k: Array
    v: Array
    group: int
    """Query heads to a head of keys."""
    scale: float
    sums: np.dtype[Any]
    result: np.dtype[Any]
    bare: bool
    """Whether the caller gave no axis of heads."""

    def each(self) -> Iterator[tuple[int, ...]]:
        """Indices of the query heads."""
        return np.ndindex(*self.q.shape[:-2])

    def keys_of(self, head: tuple[int, ...]) -> tuple[int, ...]:
        """Index of the head of keys that a query head reads."""
        return (*head[:-1], head[-1] // self.group)

    def empty_result(self, xp: ModuleType) -> Array:
        """An array for the result."""
        return xp.empty((*self.q.shape[:-1], self.v.shape[-1]), self.result)


@_keeps(_standard_memory)
def standard_attention(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> Any:
    """Compute ``softmax(scale·q·kᵀ)·v`` as it is written: all scores of a head are stored.

    Parameters
    ----------
    q : array_like, shape (..., Hq, Sq, D) or (Sq, D)
        Real. Half types are computed in float32, integers in float64.
    k : array_like, shape (..., Hk, Sk, D) or (Sk, D)
        Query head h reads head ``h // (Hq // Hk)``; leading axes broadcast.
    v : array_like, shape (..., Hk, Sk, Dv) or (Sk, Dv)
    causal : bool, optional
        Query i sees the keys ``j <= i + Sk - Sq``: the last query sees the last key.
    scale : float, optional
        Default ``1/sqrt(D)``.

    Returns
    -------
    ndarray, shape (..., Hq, Sq, Dv)
        In the dtype of the three together, float64 for integers. A query that sees no key gives 0.

    Raises
    ------
    TypeError, ValueError
        For a dtype, kind of array or shape that is not taken.

    Notes
    -----
    ``standard_attention.memory(Sq, Sk, Dv)`` is Sq·(Sk + Dv + 2) elements, quadratic in the length. What
    `dualsoft.attention` computes without that: A. Vaswani et al., *Attention is all you need*, 2017 (arXiv 1706.03762).

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.algorithms.standard_attention([[0.0]], [[5.0], [-5.0]], [[1.0], [3.0]]).tolist()
    [[2.0]]
    >>> dualsoft.algorithms.standard_attention.memory(16384, 16384, 64)
    269516800
    """
    heads = _judged(q, k, v, causal, scale)
    xp = module_of(heads.q)
    out = heads.empty_result(xp)
    with np.errstate(all="ignore"):
        for head in heads.each():
            s = _scores(xp, heads, head, slice(None), slice(None), causal)
            m = _finite_maximum(xp, s)[1]
            s -= m[:, None]
            p = xp.exp(s, out=s)
            d = p.sum(axis=1)
            o = xp.matmul(p, heads.v[heads.keys_of(head)].astype(heads.sums, copy=False))
            o /= xp.where(d == 0, d.dtype.type(1), d)[:, None]
            out[head] = o.astype(heads.result, copy=False)
    return out[0] if heads.bare else out


@_keeps(_chunked_memory)
def chunked_attention(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> Any:
    """Compute the same from chunks on both sides, so that the scores of a head are never all there.

    For 64 queries at a time, each chunk c of √Sk keys leaves ``m_c = max s``, ``d_c = sum exp(s - m_c)`` and
    ``o_c = sum exp(s - m_c)·v``; then, with M the largest m_c, the result is
    ``sum_c exp(m_c - M)·o_c / sum_c exp(m_c - M)·d_c``.

    Parameters
    ----------
    q : array_like, shape (..., Hq, Sq, D) or (Sq, D)
        Real. Half types are computed in float32, integers in float64, converted chunk by chunk.
    k : array_like, shape (..., Hk, Sk, D) or (Sk, D)
        Query head h reads head ``h // (Hq // Hk)``; leading axes broadcast.
    v : array_like, shape (..., Hk, Sk, Dv) or (Sk, Dv)
    causal : bool, optional
        Query i sees the keys ``j <= i + Sk - Sq``: the last query sees the last key.
    scale : float, optional
        Default ``1/sqrt(D)``.

    Returns
    -------
    ndarray, shape (..., Hq, Sq, Dv)
        In the dtype of the three together, float64 for integers. A query that sees no key gives 0.

    Raises
    ------
    TypeError, ValueError
        For a dtype, kind of array or shape that is not taken.

    Notes
    -----
    ``chunked_attention.memory(Sq, Sk, Dv)`` grows with √Sk and not with Sq. M. N. Rabe and C. Staats, *Self-attention
    does not need O(n²) memory*, 2021 (arXiv 2112.05682). Merging each chunk into a running result instead of keeping
    all of them, as `dualsoft.attention` does, needs no √n either.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.algorithms.chunked_attention([[0.0]], [[5.0], [-5.0]], [[1.0], [3.0]]).tolist()
    [[2.0]]
    >>> dualsoft.algorithms.chunked_attention.memory(16384, 16384, 64)
    553088
    """
    heads = _judged(q, k, v, causal, scale)
    xp = module_of(heads.q)
    out = heads.empty_result(xp)
    with np.errstate(all="ignore"):
        for head in heads.each():
            for start in range(0, heads.q.shape[-2], QUERIES_AT_ONCE):
                rows = slice(start, min(start + QUERIES_AT_ONCE, heads.q.shape[-2]))
                out[(*head, rows)] = _from_chunks(xp, heads, head, rows, causal).astype(heads.result, copy=False)
    return out[0] if heads.bare else out


def _from_chunks(xp: ModuleType, heads: _Heads, head: tuple[Any, ...], rows: slice, causal: bool) -> Array:
    """Return the result of a few queries: the chunks of keys summarised, then the summaries merged."""
    keys = heads.k.shape[-2]
    width = _chunk_of_keys(keys)
    count, queries = math.ceil(keys / width), rows.stop - rows.start
    m = xp.empty((count, queries), heads.sums)
    d = xp.empty((count, queries), heads.sums)
    o = xp.empty((count, queries, heads.v.shape[-1]), heads.sums)
    for chunk in range(count):
        columns = slice(chunk * width, min((chunk + 1) * width, keys))
        s = _scores(xp, heads, head, rows, columns, causal)
        m[chunk], shift = _finite_maximum(xp, s)
        s -= shift[:, None]
        p = xp.exp(s, out=s)
        p.sum(axis=1, out=d[chunk])
        xp.matmul(p, heads.v[(*heads.keys_of(head), columns)].astype(heads.sums, copy=False), out=o[chunk])
        del s, p
    m -= _finite_maximum(xp, m.T)[1]
    alpha = xp.exp(m, out=m)
    d *= alpha
    total = d.sum(axis=0)
    o *= alpha[..., None]
    merged = o.sum(axis=0)
    merged /= xp.where(total == 0, total.dtype.type(1), total)[:, None]
    return merged


def _scores(xp: ModuleType, heads: _Heads, head: tuple[Any, ...], rows: slice, columns: slice, causal: bool) -> Array:
    """Return ``scale·q·kᵀ`` of some queries and keys of a head, -inf where a key is hidden."""
    q = heads.q[(*head, rows)].astype(heads.sums, copy=False)
    k = heads.k[(*heads.keys_of(head), columns)].astype(heads.sums, copy=False)
    s = xp.matmul(q, k.T)
    s *= heads.sums.type(heads.scale)
    if causal:
        seq_len_q, seq_len_k = heads.q.shape[-2], heads.k.shape[-2]
        _hide_later(s, (rows.start or 0) + seq_len_k - seq_len_q + 1 - (columns.start or 0))
    return s


def _hide_later(s: Array, seen: int) -> None:
    """Set to -inf what a causal mask hides when the first row sees ``seen`` columns, and each row one more.

    Row by row: a mask of all scores would take an eighth of the memory of the scores in float64.
    """
    rows, columns = s.shape
    blind = max(0, min(rows, -seen))
    s[:blind] = -np.inf
    for row in range(blind, min(rows, columns - seen)):
        s[row, max(0, row + seen) :] = -np.inf


def _finite_maximum(xp: ModuleType, s: Array) -> tuple[Array, Array]:
    """Return each row's maximum, and what to subtract: 0 while the maximum is -inf, since -inf - -inf is NaN."""
    m = s.max(axis=1, initial=-np.inf)
    return m, xp.where(xp.isneginf(m), m.dtype.type(0), m)


def _judged(q: object, k: object, v: object, causal: object, scale: object) -> _Heads:
    check_truth(causal, "causal")
    given = operands(q, k, v)
    heads, kv_heads, dim = given.q.shape[-3], given.k.shape[-3], given.q.shape[-1]
    by = 1 / math.sqrt(dim) if scale is None else number_of(scale, "scale")
    sums = given.result if given.result.itemsize >= 4 else np.dtype(np.float32)
    return _Heads(given.q, given.k, given.v, heads // (kv_heads or 1), by, sums, given.result, given.alone)
