"""Frozen descriptions of losses and of gradients, as ``problem`` has them for the softmax family.

Everything reduced keeps its axes with length 1. ``mask`` is the bit mask of the reduced axes. Row factors (``grad``,
``scale``) are a float or float64 arrays of the reduced shape.
"""

from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from dualsoft import arguments
from dualsoft import loss_arguments as single
from dualsoft.arrays import Array, as_array, module_of, on_device_of, same_kind, with_device_of
from dualsoft.dtypes import F64, DType, find_format

FLOAT32 = np.dtype(np.float32)


class Targets(NamedTuple):
    """What a row's logits are compared with, and how its loss counts.

    The loss of a row is ``(1 - smoothing)·(lse - x_y) + smoothing·mean(lse - x) + z_loss·lse²``.
    """

    labels: Array
    """Class indices, int64, the axis kept; or probabilities of the logits' shape."""
    labels_code: int
    """The dtype code of probabilities, -1 for indices."""
    ignored: int | None
    """The index of rows that do not count."""
    smoothing: float
    z_loss: float
    reduction: str

    def count(self, rows: int) -> int:
        """Return how many of the rows count; the labels are NumPy's."""
        return single.counted(self.labels, self.labels_code < 0, rows, self.ignored)


class CrossEntropyProblem(NamedTuple):
    """``out`` is the loss of each row, or one number for all; ``lse``, if asked for, that of each row."""

    x: Array
    out: Array
    """Of the kept shape, or 0-d for a mean and a sum."""
    axes: tuple[int, ...]
    mask: int
    x_code: int
    out_code: int
    targets: Targets
    lse: Array | None


class CrossEntropyGradientProblem(NamedTuple):
    """``out = g·(exp(x - lse)·(1 + 2·z_loss·lse) - target)`` with ``g = grad``, of a mean ``grad`` / rows counted.

    ``target`` is ``(1 - smoothing)·labels + smoothing / classes``. Of rows that are ignored, ``out`` is 0.
    """

    x: Array
    out: Array
    axes: tuple[int, ...]
    mask: int
    x_code: int
    out_code: int
    targets: Targets
    lse: single.Logarithm
    grad: float | Array


class LogSumExpGradientProblem(NamedTuple):
    """``out = grad·b·exp(scale·x - lse)``; ``grad`` includes the sign of the sum and the scale."""

    x: Array
    out: Array
    axes: tuple[int, ...]
    mask: int
    x_code: int
    out_code: int
    scale: float | Array | None
    where: Array | None
    lse: single.Logarithm
    grad: float | Array
    b: Array | None
    b_code: int


class SoftmaxGradientProblem(NamedTuple):
    """``out = factor·x·(grad - sum grad·x)``, with ``log`` ``factor·(grad - exp(x)·sum grad)``; x is the result."""

    x: Array
    out: Array
    axes: tuple[int, ...]
    mask: int
    x_code: int
    out_code: int
    where: Array | None
    grad: Array
    grad_code: int
    factor: float | Array
    log: bool


LossProblem = CrossEntropyProblem | CrossEntropyGradientProblem | LogSumExpGradientProblem | SoftmaxGradientProblem


def loss_dtype(natural: DType) -> DType:
    """Return the dtype of losses and logarithms: float32 for half types."""
    return natural if natural.itemsize >= 4 else FLOAT32


def checked_targets(
    beside: Array, shape: tuple[int, ...], along: int, labels: object, ignore_index: object, label_smoothing: object,
    z_loss: object, reduction: object,
) -> Targets:  # fmt: skip
    """Judge what logits of ``shape``, of the kind of array that ``beside`` is, are compared with."""
    checked, code, ignored = single.labels_of(labels, beside, shape, along, single.ignored_of(ignore_index))
    smoothing, factor = single.smoothing_of(label_smoothing), single.z_loss_of(z_loss)
    return Targets(checked, code, ignored, smoothing, factor, single.reduction_of(reduction))


@with_device_of(itemgetter(0))
def cross_entropy_problem(
    logits: object, labels: object, axis: object, ignore_index: object, label_smoothing: object, z_loss: object,
    reduction: object, return_lse: object,
) -> CrossEntropyProblem:  # fmt: skip
    """Judge the arguments of ``cross_entropy``."""
    arguments.check_truth(return_lse, "return_lse")
    array = as_array(logits, "logits")
    known = single.format_of(array, "logits")
    along = arguments.one_axis(axis, array.ndim)
    targets = checked_targets(array, array.shape, along, labels, ignore_index, label_smoothing, z_loss, reduction)
    kept = arguments.kept_shape(array.shape, (along,))
    dtype = loss_dtype(known.result)
    xp = module_of(array)
    with on_device_of(array):
        out = xp.empty(kept if targets.reduction == "none" else (), dtype)
        lse = xp.empty(kept, dtype) if return_lse else None
    return CrossEntropyProblem(array, out, (along,), 1 << along, known.code, _float_code(dtype), targets, lse)


@with_device_of(itemgetter(1))
def cross_entropy_gradient_problem(
    grad: object, logits: object, labels: object, lse: object, axis: object, ignore_index: object,
    label_smoothing: object, z_loss: object, reduction: object, out: object,
) -> CrossEntropyGradientProblem:  # fmt: skip
    """Judge the arguments of ``cross_entropy_backward``."""
    array = as_array(logits, "logits")
    known = single.format_of(array, "logits")
    along = arguments.one_axis(axis, array.ndim)
    targets = checked_targets(array, array.shape, along, labels, ignore_index, label_smoothing, z_loss, reduction)
    kept = arguments.kept_shape(array.shape, (along,))
    pair = single.logarithm_of(lse, kept, (along,), array)
    factor = grad_of_loss(grad, targets, kept, (along,), array)
    second = (targets.labels,) if targets.labels_code >= 0 else ()
    target = _target(out, array.shape, known.result, array, second, (pair.m, pair.rest, factor))
    return CrossEntropyGradientProblem(
        array, target, (along,), 1 << along, known.code, _code(target), targets, pair, factor
    )


def grad_of_loss(
    grad: object, targets: Targets, kept: tuple[int, ...], axes: tuple[int, ...], x: Array
) -> float | Array:
    """Judge the incoming gradient of a loss: one number for a mean and a sum, else one a row (or one for all)."""
    if targets.reduction == "none":
        return single.row_factor(grad, kept, axes, x)
    return single.row_factor(grad, (), (), x)


def logsumexp_gradient_problem(
    grad: object, a: object, lse: object, axis: object, b: object, sign: object, where: object, scale: object,
    out: object,
) -> LogSumExpGradientProblem:  # fmt: skip
    """Judge the arguments of ``logsumexp_backward``."""
    array = as_array(a, "a")
    known = single.format_of(array, "a")
    axes, mask, kept = arguments.reduction(axis, array.shape)
    factor = None if scale is None else arguments.scale_of(scale, kept, array)
    visible = None if where is None else arguments.where_of(where, array.shape, array)
    weights, b_code = None, 0
    if b is not None:
        weights = same_kind(b, "b", array, "a")
        b_code = single.format_of(weights, "b").code
        weights = arguments.broadcast(weights, array.shape, "b", "the shape of a,")
    pair = single.logarithm_of(lse, kept, axes, array)
    outer = single.row_factor(grad, kept, axes, array)
    with on_device_of(array), np.errstate(all="ignore"):
        if sign is not None:
            outer = outer * single.row_factor(sign, kept, axes, array, "sign")
        if factor is not None:
            outer = outer * factor
    second = () if weights is None else (weights,)
    target = _target(out, array.shape, known.result, array, second, (visible, factor, pair.m, pair.rest, outer))
    return LogSumExpGradientProblem(
        *(array, target, axes, mask, known.code, _code(target), factor, visible, pair, outer, weights, b_code)
    )


def softmax_gradient_problem(
    grad: object, y: object, axis: object, where: object, scale: object, out: object, log: bool
) -> SoftmaxGradientProblem:
    """Judge the arguments of ``softmax_backward`` and ``log_softmax_backward``."""
    array = as_array(y, "y")
    known = single.format_of(array, "y")
    axes, mask, kept = arguments.reduction(axis, array.shape)
    factor = 1.0 if scale is None else arguments.scale_of(scale, kept, array)
    visible = None if where is None else arguments.where_of(where, array.shape, array)
    incoming = same_kind(grad, "grad", array, "y")
    grad_code = single.format_of(incoming, "grad").code
    incoming = arguments.broadcast(incoming, array.shape, "grad", "the shape of y,")
    target = _target(out, array.shape, known.result, array, (incoming,), (visible, factor))
    return SoftmaxGradientProblem(
        *(array, target, axes, mask, known.code, _code(target), visible, incoming, grad_code, factor, log)
    )


def total_of(problem: CrossEntropyProblem, losses: Array) -> None:
    """Write the sum of the losses, float64 and contiguous, or their mean over the rows that count: NaN over none."""
    with np.errstate(all="ignore"):
        total = np.add.reduce(losses, axis=None)
        if problem.targets.reduction == "mean":
            total = total / np.float64(problem.targets.count(losses.size))
        problem.out[...] = total


def share_of_row(problem: CrossEntropyGradientProblem) -> float | Array:
    """Return the incoming gradient of each row's loss: of a mean, one number over the rows that count."""
    grad, targets = problem.grad, problem.targets
    if targets.reduction != "mean":
        return grad
    rows = problem.x.size // max(problem.x.shape[problem.axes[0]], 1)
    return grad / max(targets.count(rows), 1)


def _target(
    out: object, shape: tuple[int, ...], dtype: DType, x: Array, second: tuple[Array, ...], reads: tuple[Any, ...]
) -> Array:
    """Return where to write a gradient: ``out`` may be x, or what is read beside it element by element, itself."""
    if out is None:
        with on_device_of(x):
            return module_of(x).empty_like(x, dtype=dtype)
    return arguments.elementwise_result(out, shape, dtype, (x, *second), reads)


def _code(array: Array) -> int:
    return _float_code(array.dtype)


def _float_code(dtype: DType) -> int:
    known = find_format(dtype)
    return F64 if known is None else known.code
