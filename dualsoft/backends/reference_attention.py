"""The definition of correct attention: NumPy, one sequence and head at a time, all scores stored.

Everything is widened to ``compute`` (float64, longdouble for float64 problems) before any arithmetic.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dualsoft.attention_problem import AttentionProblem
from dualsoft.dtypes import F64, FLOAT64, DType

Array = np.ndarray[Any, Any]


class Sequence(NamedTuple):
    """One entry of the batch, cut to the keys that it has."""

    q: Array
    """(Hq, Sq, D)."""
    k: Array
    """(Hk, Sk, D)."""
    v: Array
    out: Array
    """(Hq, Sq, Dv)."""
    statistics: tuple[Array, ...]
    """(lse,), (m, d) or nothing; (Hq, Sq)."""
    mask: Array | None
    """(Hq, Sq, Sk)."""
    bias: Array | None
    offset: int
    slopes: Array | None
    """(Hq,)."""


class _Head(NamedTuple):
    """The result of one head."""

    out: Array
    """(Sq, Dv): divided by d, of a state not."""
    m: Array
    """(Sq,)."""
    d: Array


def attention(problem: AttentionProblem, compute: DType) -> None:
    """Write the problem's output."""
    for number, one in enumerate(sequences(problem)):
        heads = one.q.shape[0]
        group = heads // one.k.shape[0] if heads else 1
        blocks = blocks_of(problem, number, one)
        for head in range(heads):
            q, k, v = (widened(x, compute) for x in (one.q[head], one.k[head // group], one.v[head // group]))
            _write(problem, one, head, _attended(seen_scores(problem, one, blocks, head, q, k, compute), v))


def widened(array: Array, compute: DType) -> Array:
    # Integers become float64 before any arithmetic. Rows lie as they would alone, so that NumPy sums them as it would.
    return array.astype(FLOAT64, order="C", copy=False).astype(compute, copy=False)


def sequences(problem: AttentionProblem) -> Iterator[Sequence]:
    """Yield the entries of the batch."""
    statistics = tuple(array for array in (problem.lse, problem.m, problem.d) if array is not None)
    plain = problem.q.shape[:-3]
    count = len(problem.q_starts) - 1 if problem.q_starts is not None else int(np.prod(plain, dtype=np.int64))
    for number in range(count):
        index: Any
        if problem.q_starts is not None and problem.k_starts is not None:
            index = np.s_[:, problem.q_starts[number] : problem.q_starts[number + 1]]
            keys = np.s_[:, problem.k_starts[number] : problem.k_starts[number + 1]]
            k, v = problem.k[keys], problem.v[keys]
        elif problem.pages is not None:
            index = number
            k, v = (_gathered(pages, problem, number) for pages in (problem.k, problem.v))
        else:
            index = np.unravel_index(number, plain)
            k, v = problem.k[index], problem.v[index]
        length = k.shape[1] if problem.lengths is None else int(problem.lengths[number])
        mask, bias = (None if x is None else x[index][..., :length] for x in (problem.mask, problem.bias))
        yield Sequence(
            problem.q[index],
            k[:, :length],
            v[:, :length],
            problem.out[index],
            tuple(array[index] for array in statistics),
            mask,
            bias,
            0 if problem.offsets is None else int(problem.offsets[number]),
            None if problem.slopes is None else problem.slopes[number],
        )


def _gathered(pages: Array, problem: AttentionProblem, number: int) -> Array:
    """Return the keys or values of one sequence, (Hk, used pages·page_size, ...)."""
    if problem.pages is None or problem.lengths is None:
        raise RuntimeError("a problem with pages always has lengths")
    used = -(-int(problem.lengths[number]) // pages.shape[2])
    taken: Array = pages[problem.pages[number, :used]].swapaxes(0, 1)
    return taken.reshape(pages.shape[1], used * pages.shape[2], pages.shape[3])


def blocks_of(problem: AttentionProblem, number: int, one: Sequence) -> Array | None:
    """Return the block mask of one sequence spread to its scores, (Hq, Sq, Sk)."""
    if problem.block_mask is None:
        return None
    blocks = problem.block_mask[np.unravel_index(number, problem.block_mask.shape[:-3])]
    rows = np.arange(one.q.shape[1]) // problem.block_q
    columns = np.arange(one.k.shape[1]) // problem.block_k
    spread: Array = blocks[:, rows[:, None], columns]
    return spread


def seen_scores(
    problem: AttentionProblem, one: Sequence, blocks: Array | None, head: int, q: Array, k: Array, compute: DType
) -> Array:
    """Return the scores of one head, (Sq, Sk), -inf where they do not take part."""
    s = _scores(problem, one, head, q, k, compute)
    visible = _visible(problem, one, head, s.shape)
    if blocks is not None:
        visible &= blocks[head]
    return np.where(visible, s, -np.inf)


def _scores(problem: AttentionProblem, one: Sequence, head: int, q: Array, k: Array, compute: DType) -> Array:
    """Return the scores of one head, (Sq, Sk), before anything is hidden."""
    s: Array = compute.type(problem.scale) * (q @ k.T)
    if problem.softcap:
        cap = compute.type(problem.softcap)
        s = cap * np.tanh(s / cap)
    if one.bias is not None:
        s = _added(problem, s, widened(one.bias[head], compute))
    if one.slopes is not None:
        i, j = np.arange(s.shape[0])[:, None], np.arange(s.shape[1])
        slope = compute.type(one.slopes[head])
        penalty = -slope * np.abs(i + one.offset - j).astype(compute)
        s = _added(problem, s, np.maximum(penalty, _lowest(problem)) if np.isfinite(slope) else penalty)
    return s


def _added(problem: AttentionProblem, s: Array, bias: Array) -> Array:
    """Return ``s + bias``: -inf where one of them is, and never where both are finite in the problem's arithmetic."""
    total = np.where(np.isneginf(s) | np.isneginf(bias), -np.inf, s + bias)
    lowest = _lowest(problem)
    return np.where(np.isfinite(s) & np.isfinite(bias), np.maximum(total, lowest), total)


def _lowest(problem: AttentionProblem) -> float:
    """Return the lowest finite number of the arithmetic that the kernels use."""
    return float(np.finfo(np.float64 if problem.out_code == F64 else np.float32).min)


def _visible(problem: AttentionProblem, one: Sequence, head: int, shape: tuple[int, ...]) -> Array:
    """Return which scores of one head take part, by position and mask."""
    position, j = np.arange(shape[0])[:, None] + one.offset, np.arange(shape[1])
    visible = np.ones(shape, np.bool_)
    if problem.left >= 0:
        visible &= j >= position - problem.left
    if problem.right >= 0:
        visible &= j <= position + problem.right
    if one.mask is not None:
        visible &= one.mask[head]
    return visible


def _attended(scores: Array, v: Array) -> _Head:
    """Return the sums of one head. A row that sees NaN has d = NaN, else one that sees +inf has m = d = inf."""
    has_nan = np.isnan(scores).any(axis=1)
    m = np.max(np.where(np.isnan(scores), -np.inf, scores), axis=1, initial=-np.inf)
    infinite = np.isposinf(m)
    seen = ~np.isneginf(scores)
    p = np.where(seen, np.exp(scores - np.where(np.isfinite(m), m, 0)[:, None]), 0)
    p[has_nan | infinite] = 0
    out = weighted(p, seen, v)
    out[has_nan | infinite] = np.nan
    d = np.where(has_nan, np.nan, np.where(infinite, np.inf, p.sum(axis=1)))
    return _Head(out, m, d)


def weighted(p: Array, seen: Array, v: Array) -> Array:
    """Return ``p @ v`` over what is seen: weights are above 0 however small, so what is not finite comes through."""
    finite = np.isfinite(v)
    out: Array = p @ np.where(finite, v, 0)
    if finite.all():
        return out
    up, down, nan = (seen.astype(FLOAT64) @ kind.astype(FLOAT64) > 0 for kind in (v == np.inf, v == -np.inf, v != v))
    out = np.where(up, np.inf, np.where(down, -np.inf, out))
    return np.where(nan | (up & down), np.nan, out)


def _write(problem: AttentionProblem, one: Sequence, head: int, found: _Head) -> None:
    """Write the result of one head: the state as it is, else with the sink and divided."""
    out, m, d = found
    if problem.m is None and problem.sinks is not None:
        out, m, d = _with_sink(found, m.dtype.type(problem.sinks[head]))
    if problem.m is not None:
        out, m, d = _within(out.dtype.type(np.finfo(one.out.dtype).max), found)
        values: tuple[Array, ...] = (m, d)
    else:
        out = np.where((d == 0)[:, None], 0, np.where(np.isinf(d)[:, None], np.nan, out / d[:, None]))
        values = (m + np.log(d),)
    one.out[head] = out.astype(one.out.dtype)
    for array, value in zip(one.statistics, values, strict=False):
        array[head] = value


def _within(largest: Any, found: _Head) -> _Head:
    """Return the sums with rows that hold a finite number beyond ``largest`` as their mean, of weight 1."""
    out, m, d = found
    beyond = (np.isfinite(out) & (np.abs(out) > largest)).any(axis=1)
    if not beyond.any():
        return found
    mean = np.where(beyond[:, None], out / d[:, None], out)
    return _Head(mean, np.where(beyond, m + np.log(d), m), np.where(beyond, 1, d))


def _with_sink(found: _Head, sink: Any) -> _Head:
    """Return the sums with a logit that joins d and has no value."""
    out, m, d = found
    if np.isneginf(sink):
        return found
    if not np.isfinite(sink):
        # +inf: as a visible score of +inf; NaN: as a visible NaN.
        d = np.where(np.isnan(d) | np.isnan(sink), np.nan, np.inf)
        return _Head(np.full_like(out, np.nan), np.full_like(m, np.inf), d)
    top = np.maximum(m, sink)
    shrink = np.exp(m - top)
    kept = np.where(np.isfinite(out), out * shrink[:, None], out)
    total = np.where(np.isinf(d), d, d * shrink + np.exp(sink - top))
    return _Head(kept, top, total)
