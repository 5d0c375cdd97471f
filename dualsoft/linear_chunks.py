"""Losses of logits that are a product, a block of rows and classes at a time: no more than a block is ever stored.

The running pair (m, d - 1) of a row's blocks merges as that of any parts of a row. For NumPy and CuPy alike: ``run``
answers the problems of one block, with the kernels of the backend that asks.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dualsoft.arrays import Array, is_cupy, module_of, on_device_of
from dualsoft.dtypes import FLOAT64
from dualsoft.linear_problem import LinearCrossEntropyProblem, LinearGradientProblem, Operands
from dualsoft.loss_arguments import Logarithm
from dualsoft.loss_problem import LogSumExpGradientProblem, Targets
from dualsoft.pair import log_of, merge_pairs
from dualsoft.problem import StateProblem

BLOCK_ROWS = 1024
BLOCK_CLASSES = 4096

Run = Callable[[Any], None]


class _Block(NamedTuple):
    """Some rows and some classes, with the logits of both."""

    rows: slice
    classes: slice
    hidden: Array
    weight: Array
    logits: Array


class _Sums(NamedTuple):
    """Of each row, (rows, 1), float64: the pair, the sum of the labels, of labels·x, and of x."""

    m: Array
    rest: Array
    mass: Array
    dot: Array
    linear: Array


def cross_entropy(problem: LinearCrossEntropyProblem, run: Run) -> None:
    """Write the loss of each row, or their sum or mean, and lse if it is asked for."""
    operands, targets = problem.operands, problem.targets
    xp = module_of(problem.x)
    with on_device_of(problem.x), np.errstate(all="ignore"):
        counts = _counts(xp, targets, len(operands.hidden))
        # A row that does not count is not multiplied, unless its lse is asked for.
        chosen = None if problem.lse is not None else _chosen(counts)
        losses = xp.zeros((len(operands.hidden), 1))
        rows = slice(None) if chosen is None else chosen
        found = _forward(_part(operands, chosen), _part_of(targets, chosen), run)
        losses[rows] = _losses(found, targets, len(operands.weight))
        if problem.lse is not None:
            problem.lse[...] = log_of(found.m, found.rest)
        losses = xp.where(counts, losses + _wrong(targets, problem.operands, xp), 0)
        if targets.reduction == "none":
            problem.out[...] = losses
        elif targets.reduction == "sum":
            problem.out[...] = losses.sum()
        else:
            problem.out[...] = losses.sum() / counts.sum()


def _forward(operands: Operands, targets: Targets, run: Run) -> _Sums:
    xp = module_of(operands.hidden)
    rows = len(operands.hidden)
    sums = _Sums(xp.full((rows, 1), -np.inf), xp.full((rows, 1), -1.0), *(xp.zeros((rows, 1)) for _ in range(3)))
    for _, blocks in _blocks(operands):
        for block in blocks:
            at, logits = block.rows, block.logits
            m, rest = xp.empty((len(logits), 1)), xp.empty((len(logits), 1))
            run(StateProblem(logits, m, rest, (1,), 2, None, None, operands.code))
            sums.m[at], sums.rest[at] = merge_pairs(sums.m[at], sums.rest[at], m, rest)
            if targets.labels_code < 0:
                inside, column = _labels_inside(targets, block)
                picked = xp.take_along_axis(logits, column, 1)
                sums.dot[at] = xp.where(inside, picked, sums.dot[at])
            else:
                labels = targets.labels[at, block.classes].astype(operands.compute)
                sums.mass[at] += labels.sum(1, dtype=FLOAT64, keepdims=True)
                sums.dot[at] += xp.where(labels == 0, 0, labels * logits).sum(1, dtype=FLOAT64, keepdims=True)
            if targets.smoothing:
                # Not a product with ones: in float32 what two thousand equal logits lose adds up.
                sums.linear[at] += logits.sum(1, dtype=FLOAT64, keepdims=True)
    if targets.labels_code < 0:
        sums.mass[...] = 1
    return sums


def _losses(sums: _Sums, targets: Targets, classes: int) -> Array:
    """Return ``(1 - e)·(mass·lse - dot) + e·(lse - linear / classes) + z·lse²`` of each row."""
    xp = module_of(sums.m)
    log_d = xp.where(xp.isneginf(sums.m), np.nan, xp.log1p(sums.rest))
    # (m - x) first: a large number common to a row's logits costs nothing.
    loss = 0.0
    if targets.smoothing != 1:
        loss = (1 - targets.smoothing) * ((sums.mass * sums.m - sums.dot) + sums.mass * log_d)
    if targets.smoothing:
        loss = loss + targets.smoothing * ((sums.m - sums.linear / classes) + log_d)
    if targets.z_loss:
        loss = loss + targets.z_loss * (sums.m + log_d) ** 2
    return loss


def gradients(problem: LinearGradientProblem, run: Run) -> None:
    """Write the gradients of hidden, weight and bias: a block's logits are computed again and become its gradient."""
    operands, targets = problem.operands, problem.targets
    xp = module_of(problem.x)
    with on_device_of(problem.x), np.errstate(all="ignore"):
        counts = _counts(xp, targets, len(operands.hidden))
        chosen = _chosen(counts)
        grad = xp.broadcast_to(xp.asarray(problem.grad, FLOAT64), counts.shape)
        if targets.reduction == "mean":
            grad = grad / xp.maximum(counts.sum(), 1)
        grad = xp.where(counts, grad + _wrong(targets, operands, xp), 0)
        pick = slice(None) if chosen is None else chosen
        lse = problem.lse._replace(m=problem.lse.m[pick], rest=problem.lse.rest[pick], roundoff=0.0)
        part = _part(operands, chosen)
        if chosen is None and is_cupy(counts):
            # Rows that do not count are multiplied too, by 0: what they hold must not show.
            part = part._replace(hidden=xp.where(counts, part.hidden, part.hidden.dtype.type(0)))
            lse = lse._replace(m=xp.where(counts, lse.m, 0), rest=xp.where(counts, lse.rest, 0))
        of_hidden = _backward(problem, part, _part_of(targets, chosen), lse, grad[pick], run)
        if chosen is not None:
            problem.hidden[...] = 0
        problem.hidden[pick] = of_hidden.astype(problem.hidden.dtype)


def _backward(
    problem: LinearGradientProblem, operands: Operands, targets: Targets, lse: Logarithm, grad: Array, run: Run
) -> Array:
    """Write the gradients of weight and bias; return that of hidden, in the dtype of the product."""
    xp = module_of(operands.hidden)
    mass = _mass(targets, operands)
    log = log_of(lse.m, lse.rest)
    factor = grad * (mass + 2 * targets.z_loss * log) if targets.z_loss else grad * mass
    of_hidden = xp.zeros(operands.hidden.shape, operands.compute)
    ones = xp.ones(BLOCK_ROWS, operands.compute)
    # Blocks of rows may be thousands: float32 would drift.
    sums = operands.compute if len(operands.hidden) <= BLOCK_ROWS else FLOAT64
    for classes, blocks in _blocks(operands):
        of_weight = xp.zeros(problem.weight[classes].shape, sums)
        of_bias = xp.zeros(len(of_weight), FLOAT64)
        for block in blocks:
            at, logits = block.rows, block.logits
            before = _at_labels(targets, block)
            part = Logarithm(lse.m[at], lse.rest[at], 0.0)
            run(
                LogSumExpGradientProblem(
                    *(logits, logits, (1,), 2, operands.code, operands.code, None, None, part, factor[at], None, 0)
                )
            )
            _subtract_targets(block, targets, len(operands.weight), before, grad[at], factor[at], log[at])
            of_hidden[at] += logits @ block.weight
            of_weight += logits.T @ block.hidden
            if problem.bias is not None:
                of_bias += ones[: len(logits)] @ logits
        problem.weight[classes] = of_weight.astype(problem.weight.dtype, copy=False)
        if problem.bias is not None:
            problem.bias[classes] = of_bias.astype(problem.bias.dtype)
    return of_hidden


def _mass(targets: Targets, operands: Operands) -> Any:
    """Return the sum of each row's smoothed labels."""
    if targets.labels_code < 0:
        return 1.0
    sums = targets.labels.sum(1, dtype=FLOAT64, keepdims=True)
    return (1 - targets.smoothing) * sums + targets.smoothing


def _at_labels(targets: Targets, block: _Block) -> Array | None:
    """Return the logits at the labels that are class indices, before they become gradients."""
    if targets.labels_code >= 0:
        return None
    _, column = _labels_inside(targets, block)
    return module_of(block.logits).take_along_axis(block.logits, column, 1).astype(FLOAT64)


def _subtract_targets(
    block: _Block, targets: Targets, classes: int, before: Array | None, grad: Array, factor: Array, log: Array
) -> None:
    """Take ``grad·target`` from ``factor·p`` in place. At an index, p - 1 comes from expm1, as for whole logits."""
    xp, logits = module_of(block.logits), block.logits
    uniform = targets.smoothing / classes
    if targets.smoothing:
        logits -= (grad * uniform).astype(logits.dtype)
    if before is None:
        labels = targets.labels[block.rows, block.classes].astype(logits.dtype)
        logits -= (grad * (1 - targets.smoothing)).astype(logits.dtype) * labels
        return
    inside, column = _labels_inside(targets, block)
    difference = before - log
    if targets.smoothing > 0.5:
        # Of a label that keeps less than half, the 1 of p - 1 would only cancel.
        exact = factor * xp.exp(difference) - grad * ((1 - targets.smoothing) + uniform)
    else:
        exact = grad * (xp.expm1(difference) + (targets.smoothing - uniform)) + (factor - grad) * xp.exp(difference)
    rows = xp.arange(len(logits))[:, None]
    logits[rows, column] = xp.where(inside, exact, logits[rows, column]).astype(logits.dtype)


def _labels_inside(targets: Targets, block: _Block) -> tuple[Array, Array]:
    """Return which rows have their label among the block's classes, and its column there (0 for the others)."""
    labels = _on_device(module_of(block.logits), targets.labels)[block.rows] - block.classes.start
    inside = (labels >= 0) & (labels < block.logits.shape[1])
    return inside, module_of(block.logits).where(inside, labels, 0)


def _blocks(operands: Operands) -> Iterator[tuple[slice, Iterator[_Block]]]:
    """Yield some classes at a time, with all rows for them, block by block in one buffer."""
    xp = module_of(operands.hidden)
    rows, classes = len(operands.hidden), len(operands.weight)
    buffer = xp.empty(min(rows, BLOCK_ROWS) * min(classes, BLOCK_CLASSES), operands.compute)
    for start in range(0, classes, BLOCK_CLASSES):
        at = slice(start, min(start + BLOCK_CLASSES, classes))
        weight = xp.ascontiguousarray(operands.weight[at], dtype=operands.compute)
        yield at, _row_blocks(operands, at, weight, buffer)


def _row_blocks(operands: Operands, classes: slice, weight: Array, buffer: Array) -> Iterator[_Block]:
    xp = module_of(weight)
    bias = None if operands.bias is None else operands.bias[classes].astype(operands.compute)
    for start in range(0, len(operands.hidden), BLOCK_ROWS):
        at = slice(start, min(start + BLOCK_ROWS, len(operands.hidden)))
        hidden = xp.ascontiguousarray(operands.hidden[at], dtype=operands.compute)
        logits = buffer[: len(hidden) * len(weight)].reshape(len(hidden), len(weight))
        xp.matmul(hidden, weight.T, out=logits)
        if bias is not None:
            logits += bias
        yield _Block(at, classes, hidden, weight, logits)


def _counts(xp: Any, targets: Targets, rows: int) -> Array:
    """Return which rows count, (rows, 1)."""
    if targets.labels_code >= 0 or targets.ignored is None:
        return xp.ones((rows, 1), bool)
    return _on_device(xp, targets.labels) != targets.ignored


def _wrong(targets: Targets, operands: Operands, xp: Any) -> Any:
    """Return NaN for rows whose label is of no class, else 0; those that the host sees have been checked."""
    if targets.labels_code >= 0 or not is_cupy(targets.labels):
        return 0.0
    labels = targets.labels
    return xp.where((labels < 0) | (labels >= len(operands.weight)), xp.nan, 0.0)


def _on_device(xp: Any, labels: Array) -> Array:
    # What the host sees may stand beside device data.
    return labels if xp is np else xp.asarray(labels)


def _chosen(counts: Array) -> Array | None:
    """Return the rows that count, None for all of them or where finding out would wait for a device."""
    if is_cupy(counts) or counts.all():
        return None
    chosen: Array = np.flatnonzero(counts)
    return chosen


def _part(operands: Operands, chosen: Array | None) -> Operands:
    return operands if chosen is None else operands._replace(hidden=operands.hidden[chosen])


def _part_of(targets: Targets, chosen: Array | None) -> Targets:
    return targets if chosen is None else targets._replace(labels=targets.labels[chosen])
