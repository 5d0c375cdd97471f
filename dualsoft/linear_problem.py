"""Frozen descriptions of a loss of logits that are a product, which is never stored whole."""

import math
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from dualsoft import arguments
from dualsoft import loss_arguments as single
from dualsoft.arrays import Array, as_array, module_of, on_device_of, same_kind, with_device_of
from dualsoft.dtypes import F32, F64, FLOAT64, DType, find_format
from dualsoft.loss_problem import FLOAT32, Targets, checked_targets, grad_of_loss, loss_dtype


class Operands(NamedTuple):
    """The factors of the logits, ``hidden @ weight.T + bias``, and the dtype of the product."""

    hidden: Array
    """(rows, D)."""
    weight: Array
    """(V, D)."""
    bias: Array | None
    """(V,)."""
    compute: DType
    """float32 for half types and float32, else float64."""
    code: int
    """That of ``compute``."""


class LinearCrossEntropyProblem(NamedTuple):
    """``out`` is the loss of each row or one number for all, as for ``CrossEntropyProblem``."""

    x: Array
    """What was given as hidden, whose kind decides the backend."""
    out: Array
    """(rows, 1), or 0-d for a mean and a sum."""
    x_code: int
    out_code: int
    operands: Operands
    targets: Targets
    """Indices are (rows, 1), probabilities (rows, V)."""
    lse: Array | None
    """(rows, 1)."""


class LinearGradientProblem(NamedTuple):
    """The gradients of a linear cross-entropy; ``grad`` is that of the loss, or of each row's."""

    x: Array
    x_code: int
    operands: Operands
    targets: Targets
    lse: single.Logarithm
    grad: float | Array
    hidden: Array
    """Written: (rows, D), in hidden's dtype."""
    weight: Array
    bias: Array | None

    @property
    def out(self) -> tuple[Array, ...]:
        """What a backend writes: the gradients of hidden, weight and, if there is one, bias."""
        return (self.hidden, self.weight) if self.bias is None else (self.hidden, self.weight, self.bias)


LinearProblem = LinearCrossEntropyProblem | LinearGradientProblem


@with_device_of(itemgetter(0))
def linear_cross_entropy_problem(
    hidden: object, weight: object, labels: object, bias: object, ignore_index: object, label_smoothing: object,
    z_loss: object, reduction: object, return_lse: object,
) -> LinearCrossEntropyProblem:  # fmt: skip
    """Judge the arguments of ``linear_cross_entropy``."""
    arguments.check_truth(return_lse, "return_lse")
    array, operands, natural = _operands(hidden, weight, bias)
    targets = _targets(array, operands, labels, ignore_index, label_smoothing, z_loss, reduction)
    dtype, rows = loss_dtype(natural), len(operands.hidden)
    xp = module_of(array)
    with on_device_of(array):
        out = xp.empty((rows, 1) if targets.reduction == "none" else (), dtype)
        lse = xp.empty((rows, 1), dtype) if return_lse else None
    code = F32 if dtype == FLOAT32 else F64
    return LinearCrossEntropyProblem(array, out, operands.code, code, operands, targets, lse)


@with_device_of(itemgetter(1))
def linear_gradient_problem(
    grad: object, hidden: object, weight: object, labels: object, lse: object, bias: object, ignore_index: object,
    label_smoothing: object, z_loss: object, reduction: object,
) -> LinearGradientProblem:  # fmt: skip
    """Judge the arguments of ``linear_cross_entropy_backward``."""
    array, operands, _ = _operands(hidden, weight, bias)
    targets = _targets(array, operands, labels, ignore_index, label_smoothing, z_loss, reduction)
    leading, rows = array.shape[:-1], len(operands.hidden)
    # The axis of the classes would be the last one of the logits.
    kept, axes = (*leading, 1), (len(leading),)
    pair = single.logarithm_of(lse, kept, axes, array)
    pair = pair._replace(m=pair.m.reshape(rows, 1), rest=pair.rest.reshape(rows, 1))
    factor = grad_of_loss(grad, targets, kept, axes, array)
    factor = factor if isinstance(factor, float) or not factor.ndim else factor.reshape(rows, 1)
    xp = module_of(array)
    with on_device_of(array):
        results = [
            None if given is None else xp.empty(given.shape, single.format_of(given, "").result)
            for given in (operands.hidden, operands.weight, operands.bias)
        ]
    return LinearGradientProblem(array, operands.code, operands, targets, pair, factor, *results)


def _operands(hidden: object, weight: object, bias: object) -> tuple[Array, Operands, DType]:
    """Judge hidden, weight and bias; return hidden as it came, all three as matrices, and the dtype of a result."""
    array = as_array(hidden, "hidden")
    single.format_of(array, "hidden")
    matrix = same_kind(weight, "weight", array, "hidden")
    single.format_of(matrix, "weight")
    if not array.ndim or matrix.ndim != 2 or matrix.shape[1] != array.shape[-1]:
        raise ValueError(f"hidden must be (..., D) and weight (V, D), got the shapes {array.shape} and {matrix.shape}")
    vector = None
    if bias is not None:
        vector = same_kind(bias, "bias", array, "hidden")
        single.format_of(vector, "bias")
        if vector.shape != matrix.shape[:1]:
            raise ValueError(f"bias must be (V,) = {matrix.shape[:1]}, got the shape {vector.shape}")
    try:
        natural = find_format(np.result_type(array.dtype, matrix.dtype))
    except TypeError:
        natural = None
    if natural is None:
        raise TypeError(
            f"hidden is {array.dtype} and weight is {matrix.dtype}: they have no common dtype that dualsoft takes"
        )
    compute = FLOAT64 if natural.result.itemsize == 8 else FLOAT32
    code = F64 if compute is FLOAT64 else F32
    rows = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    return array, Operands(rows, matrix, vector, compute, code), natural.result


def _targets(array: Array, operands: Operands, labels: object, *options: Any) -> Targets:
    """Judge what is compared with the logits, whose shape is hidden's with V in the last place."""
    classes = len(operands.weight)
    targets = checked_targets(array, (*array.shape[:-1], classes), array.ndim - 1, labels, *options)
    width = 1 if targets.labels_code < 0 else classes
    return targets._replace(labels=targets.labels.reshape(len(operands.hidden), width))
