"""Losses and gradients of rows on CUDA.

A team of threads takes a row, whatever its layout, in segments if it is long; how it goes about it follows from the
row's length, the dtypes and the layout alone. Class indices are not read by the host: one that is out of range makes
its row NaN.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dualsoft.arrays import Array, is_cupy
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_layout import Layout, layout_of
from dualsoft.backends.cuda_rows import (
    SEGMENTS,
    STORAGE,
    Shape,
    factors_of,
    is_contiguous,
    launch_of,
    row_variant,
    state_code,
    strides_of,
    width_of,
)
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.loss_problem import (
    CrossEntropyGradientProblem,
    CrossEntropyProblem,
    LogSumExpGradientProblem,
    SoftmaxGradientProblem,
    Targets,
    share_of_row,
)

_SHORT = Shape(32, 8)
"""How rows of up to 256 elements are shared out; others go by segments."""
_ENTRY = 3
"""float64 numbers of an entry of a total: see ``cuda/totals.cuh``."""
_TOTALLED = 4096
"""Entries that a block adds up."""
_BLOCK = 256

# ``function`` of cuda/gradients.cu
_OF_SOFTMAX, _OF_LOG_SOFTMAX, _OF_LOGSUMEXP, _OF_CROSS_ENTROPY = range(4)


def _shape(n: int, x_code: int, out_code: int) -> Shape:
    return _SHORT if n <= _SHORT.length else SEGMENTS[width_of(x_code, out_code)]


def _loss_variant(shape: Shape, x_code: int, out_code: int, direct: bool, labels_code: int) -> Variant:
    soft = labels_code >= 0
    beside = STORAGE[labels_code] if soft else STORAGE[x_code]
    return row_variant("losses.cu", "loss_rows", shape, x_code, out_code, direct, DS_SOFT=int(soft), DS_W=beside)


def _gradient_variant(shape: Shape, x_code: int, out_code: int, direct: bool, beside_code: int | None) -> Variant:
    more: dict[str, str | int] = {"DS_BESIDE": int(beside_code is not None), "DS_LOG": 0}
    if beside_code is not None:
        more["DS_W"] = STORAGE[beside_code]
    return row_variant("gradients.cu", "gradient_rows", shape, x_code, out_code, direct, **more)


def _total_variant(out_code: int) -> Variant:
    return Variant("totals.cu", "total_of_entries", (("DS_Y", STORAGE[out_code]),))


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need, with all that is read beside them alike."""
    for out_code in dict.fromkeys(state_code(code) for code in codes):
        yield _total_variant(out_code)
    for code in codes:
        loss_code = state_code(code)
        for direct in (True, False):
            for labels_code in (-1, code):
                for shape in (_SHORT, SEGMENTS[width_of(code, loss_code)]):
                    yield _loss_variant(shape, code, loss_code, direct, labels_code)
            for beside_code in (None, code):
                for shape in (_SHORT, SEGMENTS[width_of(code, code)]):
                    yield _gradient_variant(shape, code, code, direct, beside_code)


def cross_entropy(problem: CrossEntropyProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the loss of each row, or their sum or mean, and lse if it is asked for."""
    x, out, axes, _, x_code, out_code, targets, lse = problem
    labels = _on_device(targets, device)
    each = out if targets.reduction == "none" else None
    at = layout_of(x.shape, axes, strides_of(x, each, None, None, labels, lse))
    shape = _shape(at.n, x_code, out_code)
    direct = is_contiguous(at, 0, x) and _lies_alike(at, labels, targets.labels_code, x_code)
    entries = device.scratch((at.rows, _ENTRY)) if each is None else None
    variant = _loss_variant(shape, x_code, out_code, direct, targets.labels_code)
    operands = (x, labels, each, lse, entries, *_weights(targets, at.n), *_ignored(targets), at.struct)
    yield launch_of(variant, shape, at.rows, operands)
    if entries is not None:
        yield from _total(entries, at.rows, out, out_code, targets.reduction == "mean", device)


def _total(entries: Array, rows: int, out: Array, out_code: int, is_mean: bool, device: Device) -> Iterator[Launch]:
    """Yield what adds up all entries, some thousands of them at a time."""
    variant = _total_variant(out_code)
    while rows > _TOTALLED:
        length = max(_TOTALLED, -(-rows // MOST_BLOCKS))
        blocks = -(-rows // length)
        parts = device.scratch((blocks, _ENTRY))
        yield Launch(variant, blocks, _BLOCK, (entries, np.int64(rows), np.int64(length), parts, None, np.int32(0)))
        entries, rows = parts, blocks
    yield Launch(variant, 1, _BLOCK, (entries, np.int64(rows), np.int64(rows), None, out, np.int32(is_mean)))


def _on_device(targets: Targets, device: Device) -> Array:
    # What the host sees may stand beside device data.
    return targets.labels if is_cupy(targets.labels) else device.cp.asarray(targets.labels)


def _weights(targets: Targets, n: int) -> tuple[np.float64, ...]:
    """Return the share of the label, that of each class, and the factor of lse²."""
    smoothing = targets.smoothing
    return np.float64(1 - smoothing), np.float64(smoothing / n), np.float64(targets.z_loss)


def _ignored(targets: Targets) -> tuple[np.int64, np.int32]:
    ignored = targets.ignored if targets.labels_code < 0 else None
    return np.int64(0 if ignored is None else ignored), np.int32(ignored is not None)


def _lies_alike(at: Layout, beside: Array | None, code: int, x_code: int) -> bool:
    """Return whether nothing is read beside x, or what has its dtype and is contiguous too."""
    return beside is None or code < 0 or (code == x_code and is_contiguous(at, 4, beside))


def cross_entropy_gradient(problem: CrossEntropyGradientProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the gradient of the logits."""
    targets, axis = problem.targets, problem.axes[0]
    labels = _on_device(targets, device)
    grad = _share(problem, labels, device)
    is_soft = targets.labels_code >= 0
    yield _gradients(
        problem,
        _OF_CROSS_ENTROPY,
        beside=labels if is_soft else None,
        beside_code=targets.labels_code,
        labels=None if is_soft else labels,
        grad=grad,
        weights=_weights(targets, problem.x.shape[axis]),
        ignored=_ignored(targets),
    )


def _share(problem: CrossEntropyGradientProblem, labels: Array, device: Device) -> float | Array:
    """Return the gradient of each row's loss; how many rows count is known to the device alone where labels are."""
    targets = problem.targets
    if (
        targets.reduction != "mean"
        or targets.labels_code >= 0
        or targets.ignored is None
        or labels is not targets.labels
    ):
        return share_of_row(problem)
    cp = device.cp
    return cp.asarray(problem.grad, "float64") / cp.maximum(cp.count_nonzero(labels != targets.ignored), 1)


def logsumexp_gradient(problem: LogSumExpGradientProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the gradient of the elements."""
    yield _gradients(problem, _OF_LOGSUMEXP, beside=problem.b, beside_code=problem.b_code, grad=problem.grad)


def softmax_gradient(problem: SoftmaxGradientProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the gradient of what softmax, or log_softmax, was taken of."""
    of = _OF_LOG_SOFTMAX if problem.log else _OF_SOFTMAX
    yield _gradients(problem, of, beside=problem.grad, beside_code=problem.grad_code, grad=problem.factor)


def _gradients(
    problem: Any,
    of: int,
    *,
    beside: Array | None,
    beside_code: int,
    grad: float | Array,
    labels: Array | None = None,
    weights: tuple[np.float64, ...] = (np.float64(1), np.float64(0), np.float64(0)),
    ignored: tuple[np.int64, np.int32] = (np.int64(0), np.int32(0)),
) -> Launch:
    x, out, x_code, out_code = problem.x, problem.out, problem.x_code, problem.out_code
    where, lse = getattr(problem, "where", None), getattr(problem, "lse", None)
    factors, factor = factors_of(getattr(problem, "scale", None))
    m, rest, roundoff = (None, None, 0.0) if lse is None else lse
    grads, each = (None, grad) if isinstance(grad, float) else (_along(x, grad), math.nan)
    strides = strides_of(x, out, where, factors, beside, labels, m, rest, grads)
    at = layout_of(x.shape, problem.axes, strides)
    code = None if beside is None else beside_code
    direct = where is None and is_contiguous(at, 0, x) and is_contiguous(at, 1, out)
    direct = direct and _lies_alike(at, beside, beside_code, x_code)
    shape = _shape(at.n, x_code, out_code)
    rows = (labels, m, rest, grads, np.float64(each))
    options = (*weights, np.float64(roundoff), ignored[0], np.int32(of), ignored[1])
    operands = (x, where, factors, factor, beside, *rows, out, *options, at.struct, at.more)
    return launch_of(_gradient_variant(shape, x_code, out_code, direct, code), shape, at.rows, operands)


def _along(x: Array, grad: Array) -> Array:
    """Return a number for each row as an array with the axes of x; one for all has strides of 0."""
    return grad if grad.ndim else grad.reshape((1,) * x.ndim)
