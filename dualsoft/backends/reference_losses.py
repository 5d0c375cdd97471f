"""Losses and gradients by their formulas, on matrices whose rows are what is reduced together.

Widened as the reference does; everything is computed from the row's own pair (m, d - 1), whatever lse is given, unless
that says something else.
"""

from typing import Any

import numpy as np

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
from dualsoft.dtypes import F64, FLOAT64, DType
from dualsoft.linear_problem import LinearCrossEntropyProblem, LinearGradientProblem, Operands
from dualsoft.loss_problem import (
    CrossEntropyGradientProblem,
    CrossEntropyProblem,
    LogSumExpGradientProblem,
    SoftmaxGradientProblem,
    Targets,
)


def cross_entropy(problem: CrossEntropyProblem, compute: DType) -> None:
    """Write the loss of each row, or their sum or mean, and lse if it is asked for."""
    x, axes, targets = problem.x, problem.axes, problem.targets
    rows, _ = scaled_rows(x, axes, None, None, compute)
    m, rest = maximum_and_rest(rows)
    log_d = np.where(np.isneginf(m), np.nan, np.log1p(rest))
    weights, counts = _targets(targets, axes, rows.shape, compute)
    # lse - x, whose parts lose nothing to a large common shift
    distances = log_d + (m - rows)
    losses = sum_rows(np.where(weights == 0, 0, weights * distances))
    losses = np.where(np.isnan(log_d) | (np.isposinf(log_d) & (sum_rows(weights) == 0)), np.nan, losses)
    if targets.z_loss:
        losses = losses + targets.z_loss * (m + log_d) ** 2
    losses = np.where(counts, losses, 0)
    if problem.lse is not None:
        write(problem.lse, m + np.log1p(rest), axes)
    if targets.reduction == "none":
        write(problem.out, losses, axes)
        return
    total = np.sum(losses)
    problem.out[...] = total / np.count_nonzero(counts) if targets.reduction == "mean" else total


def _targets(targets: Targets, axes: tuple[int, ...], shape: tuple[int, int], compute: DType) -> tuple[Rows, Array]:
    """Return the weight of each class, (rows, n), and which rows count, (rows, 1)."""
    if targets.labels_code < 0:
        labels = to_rows(targets.labels, axes)
        counts = np.ones(labels.shape, bool) if targets.ignored is None else labels != targets.ignored
        weights = (np.arange(shape[1]) == np.where(counts, labels, -1)).astype(compute)
    else:
        weights, counts = widened(targets.labels, axes, compute), np.ones((shape[0], 1), bool)
    smoothing = compute.type(targets.smoothing)
    return (1 - smoothing) * weights + (smoothing / shape[1] if shape[1] else 0), counts


def cross_entropy_gradient(problem: CrossEntropyGradientProblem, compute: DType) -> None:
    """Write ``g·(p·(mass + 2·z_loss·lse) - target)``."""
    axes, targets = problem.axes, problem.targets
    rows, _ = scaled_rows(problem.x, axes, None, None, compute)
    weights, counts = _targets(targets, axes, rows.shape, compute)
    m, rest = pair_rows(problem, rows, compute)
    log_p = (rows - m) - np.log1p(rest)
    mass = sum_rows(weights) if targets.labels_code >= 0 else 1
    factor = factor_rows(problem.grad, axes, compute)
    if targets.reduction == "mean":
        factor = factor / max(np.count_nonzero(counts), 1)
    more = 2 * targets.z_loss * (m + np.log1p(rest)) if targets.z_loss else 0
    # p - 1 by expm1 where the target is all of 1
    whole = (weights == 1) & (mass == 1)
    inner = np.where(whole, np.expm1(log_p), np.exp(log_p) * mass - weights) + np.exp(log_p) * more
    write(problem.out, np.where(counts, factor * inner, 0), axes)


def logsumexp_gradient(problem: LogSumExpGradientProblem, compute: DType) -> None:
    """Write ``grad·b·exp(s - lse)``: 0 where an element does not take part, or nothing does."""
    axes = problem.axes
    rows, visible = scaled_rows(problem.x, axes, problem.scale, problem.where, compute)
    m, rest = pair_rows(problem, rows, compute)
    p = exponentials(rows, m) / (1 + rest)
    p = np.where(np.isposinf(m), np.where(np.isposinf(rows), np.nan, np.where(np.isnan(rows), np.nan, 0)), p)
    p = np.where(np.isnan(m) | np.isnan(rest), np.nan, p)
    y = factor_rows(problem.grad, axes, compute) * p
    if problem.b is not None:
        weights = widened(problem.b, axes, compute)
        y = np.where(weights == 0, 0, y * weights)
    y = np.where(np.isneginf(m) & ~np.isnan(rest), 0, y)
    write(problem.out, y if visible is None else np.where(visible, y, 0), axes)


def softmax_gradient(problem: SoftmaxGradientProblem, compute: DType) -> None:
    """Write ``factor·y·(grad - sum grad·y)``, or ``factor·(grad - exp(y)·sum grad)``."""
    axes = problem.axes
    y, grad = widened(problem.x, axes, compute), widened(problem.grad, axes, compute)
    visible = None if problem.where is None else to_rows(problem.where, axes)
    if visible is not None:
        y, grad = np.where(visible, y, -np.inf if problem.log else 0), np.where(visible, grad, 0)
    factor = factor_rows(problem.factor, axes, compute)
    if problem.log:
        result = factor * (grad - np.exp(y) * sum_rows(grad))
    else:
        result = factor * y * (grad - sum_rows(grad * y))
    write(problem.out, result if visible is None else np.where(visible, result, 0), axes)


def pair_rows(problem: Any, rows: Rows, compute: DType) -> tuple[Rows, Rows]:
    """Return the pair of each row as it was given, or the row's own where the given lse is that, rounded."""
    m, rest = (widened(array, problem.axes, compute) for array in (problem.lse.m, problem.lse.rest))
    roundoff = problem.lse.roundoff
    if not roundoff or getattr(problem, "b", None) is not None or not rows.shape[1]:
        return m, rest
    own_m, own_rest = maximum_and_rest(rows)
    own = own_m + np.log1p(own_rest)
    rounded = np.abs(own - m) <= 4 * roundoff * np.maximum(np.abs(own), np.abs(own_m))
    return np.where(rounded, own_m, m), np.where(rounded, own_rest, rest)


def factor_rows(factor: float | Array, axes: tuple[int, ...], compute: DType) -> Any:
    """Return a factor of each row as a column, or as one number."""
    return widened(factor, axes, compute) if isinstance(factor, np.ndarray) else compute.type(factor)


def linear_cross_entropy(problem: LinearCrossEntropyProblem, compute: DType) -> None:
    """Write the loss of logits that are stored whole, as float64 numbers."""
    logits = _product(problem.operands, compute)
    cross_entropy(CrossEntropyProblem(logits, problem.out, (1,), 2, F64, F64, problem.targets, problem.lse), compute)


def linear_gradients(problem: LinearGradientProblem, compute: DType) -> None:
    """Write the gradients of hidden, weight and bias."""
    operands, grad = problem.operands, problem.grad
    logits = _product(operands, compute)
    whole = CrossEntropyGradientProblem(
        *(logits, np.empty_like(logits), (1,), 2, F64, F64, problem.targets, problem.lse, grad)
    )
    cross_entropy_gradient(whole, compute)
    _, counts = _targets(problem.targets, (1,), logits.shape, compute)
    hidden = np.where(counts, operands.hidden.astype(FLOAT64), 0)
    problem.hidden[...] = (whole.out @ operands.weight.astype(FLOAT64)).astype(problem.hidden.dtype)
    problem.hidden[~counts[:, 0]] = 0
    problem.weight[...] = (whole.out.T @ hidden).astype(problem.weight.dtype)
    if problem.bias is not None:
        problem.bias[...] = whole.out.sum(0).astype(problem.bias.dtype)


def _product(operands: Operands, compute: DType) -> Array:
    hidden, weight = (array.astype(FLOAT64).astype(compute) for array in (operands.hidden, operands.weight))
    logits = hidden @ weight.T
    whole: Array = (logits if operands.bias is None else logits + operands.bias.astype(compute)).astype(FLOAT64)
    return whole
