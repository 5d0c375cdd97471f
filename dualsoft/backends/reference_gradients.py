"""The definition of correct gradients of attention: NumPy, one sequence and head at a time, all scores stored.

Everything is widened to ``compute`` (float64, longdouble for float64 problems) before any arithmetic.
"""

from typing import Any, NamedTuple

import numpy as np

from dualsoft.attention_problem import AttentionProblem
from dualsoft.backends.reference_attention import Sequence, blocks_of, seen_scores, sequences, weighted, widened
from dualsoft.dtypes import F64, SWAPPED, DType
from dualsoft.gradient_problem import GradientProblem

Array = np.ndarray[Any, Any]


class _Head(NamedTuple):
    """One head in the wider type, and what it needs of its rows."""

    q: Array
    k: Array
    v: Array
    grad_out: Array
    lse: Array
    """(Sq,)."""
    delta: Array
    """(Sq,): sum grad_out·out, less the gradient of lse."""


class _Normaliser(NamedTuple):
    """``lse = shift + rest``, (Sq,): where it is huge, the sum would lose the rest."""

    shift: Array
    rest: Array

    @property
    def whole(self) -> Array:
        return self.shift + self.rest


class _Gradients(NamedTuple):
    """Those of one head, in the wider type."""

    q: Array
    k: Array
    v: Array
    scores: Array
    """(Sq, Sk): of the scores as they enter the softmax."""
    sink: Any


def attention_gradients(problem: GradientProblem, compute: DType) -> None:
    """Write the problem's outputs."""
    forward, beside = problem.forward, _gradients_in_place(problem)
    if problem.dsinks is not None:
        problem.dsinks[...] = 0
    for number, (one, theirs) in enumerate(zip(sequences(forward), sequences(beside), strict=True)):
        heads, kv_heads = one.q.shape[0], one.k.shape[0]
        group = heads // kv_heads if heads else 1
        blocks = blocks_of(forward, number, one)
        for kv_head in range(kv_heads):
            dk, dv = np.zeros(one.k.shape[1:], compute), np.zeros(one.v.shape[1:], compute)
            for head in range(kv_head * group, (kv_head + 1) * group):
                given = _head_of(problem, one, theirs, head, group, compute)
                s = seen_scores(forward, one, blocks, head, given.q, given.k, compute)
                found = _gradients(forward, head, given, _refined(problem, head, s, given.lse), s, compute)
                dk, dv = dk + found.k, dv + found.v
                _write(problem, theirs, head, found)
            if problem.dk is not None:
                theirs.k[kv_head] = dk.astype(theirs.k.dtype)
            if problem.dv is not None:
                theirs.v[kv_head] = dv.astype(theirs.v.dtype)


def _gradients_in_place(problem: GradientProblem) -> AttentionProblem:
    """Return the problem of the forward pass with each operand's gradient in its place, where there is one."""
    forward = problem.forward
    return forward._replace(
        q=forward.q if problem.dq is None else problem.dq,
        k=forward.k if problem.dk is None else problem.dk,
        v=forward.v if problem.dv is None else problem.dv,
        out=problem.grad_out,
        lse=problem.grad_lse,
        bias=problem.dbias,
    )


def _head_of(problem: GradientProblem, one: Sequence, theirs: Sequence, head: int, group: int, compute: DType) -> _Head:
    kept = (one.q[head], one.k[head // group], one.v[head // group], theirs.out[head], one.statistics[0][head])
    q, k, v, grad_out, lse = (widened(array, compute) for array in kept)
    out = widened(one.out[head], compute)
    # Rows that see nothing are 0, and have no gradient whatever grad_out holds.
    delta = np.where(out == 0, 0, grad_out * out).sum(axis=1)
    if problem.grad_lse is not None:
        delta = delta - widened(theirs.statistics[0][head], compute)
    return _Head(q, k, v, grad_out, lse, np.where(np.isneginf(lse), 0, delta))


def _refined(problem: GradientProblem, head: int, s: Array, lse: Array) -> _Normaliser:
    """Return ``lse`` in two parts, without its rounding where the scores say what it was before."""
    m = np.max(s, axis=1, initial=-np.inf)
    d = np.exp(s - np.where(np.isfinite(m), m, 0)[:, None]).sum(axis=1)
    if problem.forward.sinks is not None:
        d = d + np.exp(s.dtype.type(problem.forward.sinks[head]) - m)
    found = m + np.log(d)
    wide = problem.forward.out_code == F64 and problem.lse_code & ~SWAPPED == F64
    near = np.isfinite(lse) & (np.abs(found - lse) <= 2.0 ** (-49 if wide else -20) * np.maximum(1, np.abs(lse)))
    return _Normaliser(np.where(near, m, lse), np.where(near, np.log(d), 0))


def _gradients(
    forward: AttentionProblem, head: int, given: _Head, lse: _Normaliser, s: Array, compute: DType
) -> _Gradients:
    q, k, v, grad_out, _, delta = given
    seen = ~np.isneginf(s) & ~np.isneginf(lse.whole)[:, None]
    p = np.where(seen, np.exp((s - lse.shift[:, None]) - lse.rest[:, None]), 0)
    # A row with a score of NaN or +inf is NaN: so are the gradients of all that it sees.
    lost = np.isnan(lse.whole) | np.isposinf(lse.whole)
    p = np.where(seen & lost[:, None], np.nan, p)
    ds = np.where(seen, p * (grad_out @ v.T - delta[:, None]), 0)
    raw = ds
    if forward.softcap:
        slope = 1 - np.tanh(compute.type(forward.scale) * (q @ k.T) / compute.type(forward.softcap)) ** 2
        raw = np.where(ds == 0, 0, ds * slope)
    scale = compute.type(forward.scale)
    dq = scale * (raw @ np.where(np.isfinite(k), k, 0))
    dk = scale * (raw.T @ np.where(np.isfinite(q), q, 0))
    sink = None if forward.sinks is None else _of_sink(compute.type(forward.sinks[head]), lse.whole, delta)
    return _Gradients(dq, dk, weighted(p.T, seen.T, grad_out), ds, sink)


def _of_sink(sink: Any, lse: Array, delta: Array) -> Any:
    """Return the gradient of a sink: its weight is exp(sink - lse), and it has no value."""
    weight = np.where(np.isposinf(lse), np.nan, np.exp(sink - lse))
    return np.where(np.isneginf(sink) | np.isneginf(lse), 0, -weight * delta).sum()


def _write(problem: GradientProblem, theirs: Sequence, head: int, found: _Gradients) -> None:
    if problem.dq is not None:
        theirs.q[head] = found.q.astype(theirs.q.dtype)
    if problem.dsinks is not None:
        problem.dsinks[head] += found.sink
    if theirs.bias is None:
        return
    target, terms = theirs.bias[head], found.scores
    if not problem.bias_sums:
        target[...] = terms.astype(target.dtype)
        return
    for axis in (0, 1):
        if target.strides[axis] == 0 and target.shape[axis]:
            # Broadcast: one element, seen through a stride of 0.
            terms = terms.sum(axis=axis, keepdims=True)
            target = target[:1] if axis == 0 else target[:, :1]
    target += terms
