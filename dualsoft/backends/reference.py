"""The definition of correct: NumPy, two passes, every array widened first.

Half types and float32 are computed in float64, float64 and integers in longdouble (``compute`` may ask for another), on
matrices of shape (rows, n), a row being what is reduced together. Sums are longdouble always. A sum is kept as
``rest = sum - 1`` without one maximal element, so that a tiny rest survives in ``log1p(rest)``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dualsoft.arrays import is_cupy
from dualsoft.attention_problem import AttentionProblem
from dualsoft.backends import Backend
from dualsoft.backends.reference_attention import attention
from dualsoft.backends.reference_complex import complex_logsumexp
from dualsoft.backends.reference_gradients import attention_gradients
from dualsoft.backends.reference_losses import (
    cross_entropy,
    cross_entropy_gradient,
    linear_cross_entropy,
    linear_gradients,
    logsumexp_gradient,
    softmax_gradient,
)
from dualsoft.backends.reference_rows import (
    Array,
    Rows,
    exponentials,
    maximum_and_rest,
    scaled_rows,
    sum_rows,
    to_rows,
    widened,
    write,
)
from dualsoft.backends.reference_topk import drawn, ranked
from dualsoft.dtypes import BF16, F16, F32, FLOAT64, SWAPPED, DType, find_format
from dualsoft.gradient_problem import GradientProblem
from dualsoft.linear_problem import LinearCrossEntropyProblem, LinearGradientProblem
from dualsoft.loss_problem import (
    CrossEntropyGradientProblem,
    CrossEntropyProblem,
    LogSumExpGradientProblem,
    SoftmaxGradientProblem,
)
from dualsoft.problem import (
    CumulativeProblem,
    LogSumExpProblem,
    NormalizeProblem,
    Problem,
    SoftmaxProblem,
    StateProblem,
)
from dualsoft.topk_problem import SampleProblem, TopKProblem

_LONGDOUBLE = np.dtype(np.longdouble)
_NARROW = (F32, F16, BF16)


def softmax_rows(rows: Rows, m: Rows, rest: Rows, visible: Array | None) -> Rows:
    """Return exp(x - m) / (1 + rest): NaN where m is infinite, 0 where an element does not take part."""
    y = exponentials(rows, m) / (1 + rest)
    y = np.where(np.isinf(m), np.nan, y)
    return y if visible is None else np.where(visible, y, 0)


def log_softmax_rows(rows: Rows, m: Rows, rest: Rows, visible: Array | None) -> Rows:
    """Return x - m - log1p(rest), -inf where an element does not take part."""
    y = (rows - m) - np.log1p(rest)
    return y if visible is None else np.where(visible, y, -np.inf)


def weighted_logsumexp(rows: Rows, weights: Rows) -> tuple[Rows, Rows]:
    """Return log |sum w·exp(x)| and the sign of the sum, of each row. Elements of weight 0 are left out.

    With p the weight of one maximal element and s the sum of the others, the sum is p + s. Near 1 it is
    1 + ((p - 1) + s), where p - 1 is exact.
    """
    rows = np.where(weights == 0, -np.inf, rows)
    ordered = np.where(np.isnan(rows), -np.inf, rows)
    first = np.argmax(ordered, axis=1, keepdims=True)
    m = np.take_along_axis(ordered, first, axis=1)
    terms = np.where(weights == 0, 0, weights * exponentials(rows, m))
    p = np.take_along_axis(terms, first, axis=1)
    np.put_along_axis(terms, first, 0, axis=1)
    s = sum_rows(terms)
    total, rest = p + s, (p - 1) + s
    near_one = (p >= 0.5) & (p <= 2) & (rest > -0.5)
    size = np.where(near_one, np.log1p(rest), np.log(np.abs(total)))
    return np.where(np.isinf(m) & ~np.isnan(total), np.log(np.abs(total)), m + size), np.sign(total)


def cumulative_rows(rows: Rows) -> Rows:
    """Return log sum_{i <= j} exp(x[i]) for every j, by the running pair (m, rest)."""
    out = np.empty_like(rows)
    m = np.full(len(rows), -np.inf, rows.dtype)
    rest = np.full(len(rows), -1, rows.dtype)
    for j in range(rows.shape[1]):
        x = rows[:, j]
        higher = np.maximum(m, x)
        # Both exponents are 0 or below; the larger side's is exactly 1 and is what "rest" leaves out.
        grown = (1 + rest) * np.exp(m - higher)
        rest = np.where(x > m, grown, rest + np.exp(x - higher))
        m = higher
        rest = np.where(np.isneginf(m), -1, np.where(np.isposinf(m), np.inf, rest))
        out[:, j] = m + np.log1p(rest)
    return out


def run(problem: Problem, compute: DType | None = None) -> None:
    """Write the problem's output, computed in ``compute``: by default one step wider than what the kernels would."""
    with np.errstate(all="ignore"):
        _RUN[type(problem)](problem, _wider(problem) if compute is None else compute)


def _wider(problem: Problem) -> DType:
    codes = [getattr(problem, name, F32) for name in ("x_code", "b_code", "out_code")]
    return FLOAT64 if all(code & ~SWAPPED in _NARROW for code in codes) else _LONGDOUBLE


def _softmax(problem: SoftmaxProblem, compute: DType) -> None:
    rows, visible = scaled_rows(problem.x, problem.axes, problem.scale, problem.where, compute)
    m, rest = maximum_and_rest(rows)
    y = (log_softmax_rows if problem.log else softmax_rows)(rows, m, rest, visible)
    write(problem.out, y, problem.axes)


def _logsumexp(problem: LogSumExpProblem, compute: DType) -> None:
    if problem.x_code < 0:
        complex_logsumexp(problem, to_rows)
        return
    rows, visible = scaled_rows(problem.x, problem.axes, problem.scale, problem.where, compute)
    if problem.b is None:
        m, rest = maximum_and_rest(rows)
        lse, sign = m + np.log1p(rest), np.sign(1 + rest)
    else:
        weights = widened(problem.b, problem.axes, compute)
        if visible is not None:
            weights = np.where(visible, weights, 0)
        lse, sign = weighted_logsumexp(rows, weights)
    if problem.sign is None:
        lse = np.where(sign < 0, np.nan, lse)
    else:
        write(problem.sign, sign, problem.axes)
    write(problem.out, lse, problem.axes)


def _state(problem: StateProblem, compute: DType) -> None:
    rows, _ = scaled_rows(problem.x, problem.axes, problem.scale, problem.where, compute)
    m, rest = maximum_and_rest(rows)
    write(problem.m, m, problem.axes)
    write(problem.rest, rest, problem.axes)


def _normalize(problem: NormalizeProblem, compute: DType) -> None:
    rows, visible = scaled_rows(problem.x, problem.axes, problem.scale, problem.where, compute)
    m, rest = (widened(array, problem.axes, compute) for array in (problem.m, problem.rest))
    write(problem.out, softmax_rows(rows, m, rest, visible), problem.axes)


def _cumulative(problem: CumulativeProblem, compute: DType) -> None:
    y = cumulative_rows(widened(problem.x, problem.axes, compute))
    if problem.initial:
        y = np.concatenate([np.full((len(y), 1), -np.inf, y.dtype), y], axis=1)
    write(problem.out, y, problem.axes)


def _topk(problem: TopKProblem, compute: DType) -> None:
    axes, scale = problem.axes, problem.scale
    rows, visible = scaled_rows(problem.x, axes, scale, problem.where, compute)
    m, rest = maximum_and_rest(rows)
    sign = 1 if scale is None else np.sign(widened(np.broadcast_to(scale, problem.lse.shape), axes, compute))
    indices = ranked(widened(problem.x, axes, compute), rows, visible, sign, problem.k)
    y = np.take_along_axis(softmax_rows(rows, m, rest, visible), indices, axis=1)
    for out, found in ((problem.out, y), (problem.indices, indices), (problem.lse, m + np.log1p(rest))):
        write(out, found, axes)


def _sample(problem: SampleProblem, compute: DType) -> None:
    x = widened(problem.x, problem.axes, FLOAT64)
    options = to_rows(problem.options, problem.axes)
    for first in range(0, len(x), chunk := max(1, 2**20 // x.shape[1])):
        part = slice(first, first + chunk)
        rows = np.arange(*part.indices(len(x)))
        # The result is contiguous in the order of the rows.
        problem.out.reshape(-1)[part] = drawn(problem, x[part], options[part], rows)[:, 0]


_RUN: dict[type, Callable[[Any, DType], None]] = {
    SoftmaxProblem: _softmax,
    LogSumExpProblem: _logsumexp,
    StateProblem: _state,
    NormalizeProblem: _normalize,
    CumulativeProblem: _cumulative,
    AttentionProblem: attention,
    CrossEntropyProblem: cross_entropy,
    CrossEntropyGradientProblem: cross_entropy_gradient,
    LogSumExpGradientProblem: logsumexp_gradient,
    SoftmaxGradientProblem: softmax_gradient,
    LinearCrossEntropyProblem: linear_cross_entropy,
    LinearGradientProblem: linear_gradients,
    TopKProblem: _topk,
    SampleProblem: _sample,
    GradientProblem: attention_gradients,
}


def _accepts(work: Problem | Array) -> bool:
    if type(work) in _RUN:
        return type(work.x) is np.ndarray  # type: ignore[union-attr]
    return isinstance(work, np.ndarray) and not is_cupy(work) and find_format(work.dtype, complex_too=True) is not None


BACKEND = Backend("reference", lambda: None, _accepts, run)
