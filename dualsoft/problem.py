"""Frozen descriptions of what a caller asked for: the only place that judges a user's input.

A problem holds the input as it was given (never copied, unless an overlap demands it), the output already allocated in
its final dtype, and everything that a backend needs to fill it. Backends trust it and check nothing again.

Reduced outputs keep the reduced axes with length 1. ``mask`` is the bit mask of the reduced axes.
``where`` and ``b`` have the shape of ``x``; ``scale`` is None, a float, or a float64 array of the shape of ``x`` with
the reduced axes of length 1.
"""

from typing import Any, NamedTuple

import numpy as np

from dualsoft import arguments
from dualsoft.arguments import format_of
from dualsoft.arrays import Array, as_array, module_of, on_device_of, same_kind, to_host
from dualsoft.attention_problem import AttentionProblem
from dualsoft.dtypes import COMPLEX, FLOAT64, PLAIN_FORMATS, Format, find_format, joint
from dualsoft.gradient_problem import GradientProblem
from dualsoft.linear_problem import LinearProblem
from dualsoft.loss_problem import LossProblem
from dualsoft.topk_problem import SampleProblem, TopKProblem

_ndarray = np.ndarray
_empty_like = np.empty_like
_empty = np.empty
_new = tuple.__new__


class SoftmaxProblem(NamedTuple):
    """``out = exp(scale·x - lse)``, or ``scale·x - lse`` with ``log``."""

    x: Array
    out: Array
    axes: tuple[int, ...]
    mask: int
    scale: float | Array | None
    where: Array | None
    x_code: int
    out_code: int
    log: bool


class LogSumExpProblem(NamedTuple):
    """``out = log |sum b·exp(scale·x)|`` and its sign; without ``sign``, a negative sum gives NaN."""

    x: Array
    out: Array
    axes: tuple[int, ...]
    mask: int
    scale: float | Array | None
    where: Array | None
    x_code: int
    out_code: int
    sign: Array | None
    b: Array | None
    b_code: int


class StateProblem(NamedTuple):
    """``m = max scale·x`` and ``rest = sum exp(scale·x - m) - 1``, both float64."""

    x: Array
    m: Array
    rest: Array
    axes: tuple[int, ...]
    mask: int
    scale: float | Array | None
    where: Array | None
    x_code: int

    @property
    def out(self) -> tuple[Array, Array]:
        """What a backend writes: the two arrays of the state."""
        return self.m, self.rest


class NormalizeProblem(NamedTuple):
    """``out = exp(scale·x - m) / (1 + rest)``."""

    x: Array
    out: Array
    axes: tuple[int, ...]
    mask: int
    scale: float | Array | None
    where: Array | None
    x_code: int
    out_code: int
    m: Array
    rest: Array


class CumulativeProblem(NamedTuple):
    """``out[j] = log sum_{i <= j} exp(x[i])`` along the one axis; with ``initial``, the empty sum comes first."""

    x: Array
    out: Array
    axes: tuple[int, ...]
    mask: int
    x_code: int
    out_code: int
    initial: bool


class TextbookProblem(NamedTuple):
    """The softmax of device arrays along one axis, by the passes of ``method``: "naive", "safe" or "online"."""

    x: Array
    out: Array
    axes: tuple[int, ...]
    mask: int
    x_code: int
    out_code: int
    method: str


Problem = (
    SoftmaxProblem
    | LogSumExpProblem
    | StateProblem
    | NormalizeProblem
    | CumulativeProblem
    | TextbookProblem
    | AttentionProblem
    | LossProblem
    | LinearProblem
    | TopKProblem
    | SampleProblem
    | GradientProblem
)


def softmax_problem(
    x: object, axis: object, where: object, scale: object, dtype: object, out: object, log: bool
) -> SoftmaxProblem:
    """Judge the arguments of ``softmax`` and ``log_softmax``."""
    # The common case, written out: it is what a small call costs.
    if type(x) is _ndarray and where is None and dtype is None and (scale is None or type(scale) is float):
        plain = PLAIN_FORMATS.get(x.dtype)
        if plain is not None:
            code, result, result_code, is_result = plain
            ndim = x.ndim
            if type(axis) is int and -ndim <= axis < ndim:
                if axis < 0:
                    axis += ndim
                axes: tuple[int, ...] = (axis,)
                mask = 1 << axis
            else:
                axes, mask = arguments.reduced_axes(axis, ndim)
            if out is not None:
                out = arguments.result_array(out, x.shape, result, x, ())
            else:
                out = _empty_like(x) if is_result else _empty_like(x, dtype=result)
            return _new(SoftmaxProblem, (x, out, axes, mask, scale, None, code, result_code, log))
    array = as_array(x, "x")
    known = format_of(array, "x")
    axes, mask, kept = arguments.reduction(axis, array.shape)
    factor = None if scale is None else arguments.scale_of(scale, kept, array)
    visible = None if where is None else arguments.where_of(where, array.shape, array)
    result = arguments.result_dtype(dtype, known.result)
    target = arguments.result_array(out, array.shape, result, array, (visible, factor))
    return SoftmaxProblem(array, target, axes, mask, factor, visible, known.code, _code(target), log)


def logsumexp_problem(
    a: object,
    axis: object,
    b: object,
    keepdims: bool,
    return_sign: bool,
    where: object,
    scale: object,
    dtype: object,
    out: object,
) -> LogSumExpProblem:
    """Judge the arguments of ``logsumexp``. ``a`` and ``b`` broadcast together."""
    if not type(keepdims) is type(return_sign) is bool:
        arguments.check_truth(keepdims, "keepdims")
        arguments.check_truth(return_sign, "return_sign")
    if type(a) is _ndarray and b is None and where is None and dtype is None:
        plain = PLAIN_FORMATS.get(a.dtype)
        if plain is not None and (scale is None or type(scale) is float):
            code, result, result_code, _ = plain
            shape = a.shape
            if axis == -1 and type(axis) is int and shape:
                last = len(shape) - 1
                axes: tuple[int, ...] = (last,)
                mask, kept = 1 << last, shape[:-1] + (1,)  # noqa: RUF005 (faster)
            else:
                axes, mask, kept = arguments.reduction(axis, shape)
            if out is None:
                target = _empty(kept, result)
            else:
                target = arguments.reduced_result(out, kept, axes, keepdims, result, a, (a,))
            sign = _empty(kept, result) if return_sign else None
            return _new(LogSumExpProblem, (a, target, axes, mask, scale, None, code, result_code, sign, None, 0))
    array = as_array(a, "a")
    known = format_of(array, "a", complex_too=True)
    weights, b_code, natural = None, 0, known.result
    if b is not None:
        array, weights, b_format, natural = _weighted(a, array, b)
        b_code = b_format.code
    axes, mask, kept = arguments.reduction(axis, array.shape)
    factor = None if scale is None else arguments.scale_of(scale, kept, array)
    visible = None if where is None else arguments.where_of(where, array.shape, array)
    is_complex = natural.kind == "c"
    if is_complex and dtype is not None:
        raise TypeError(f"dtype must be left out for complex input (its dtype is {natural}), got {dtype!r}")
    result = arguments.result_dtype(dtype, natural) if dtype is not None else natural
    magnitude = np.empty(0, result).real.dtype if is_complex and return_sign else result
    xp = module_of(array)
    with on_device_of(array):
        if out is None:
            target = xp.empty(kept, magnitude)
        else:
            target = arguments.reduced_result(
                out, kept, axes, keepdims, magnitude, array, (array, weights, visible, factor)
            )
        sign = xp.empty(kept, result) if return_sign else None
    x_code, out_code = (COMPLEX, COMPLEX) if is_complex else (known.code, _code(target))
    return LogSumExpProblem(array, target, axes, mask, factor, visible, x_code, out_code, sign, weights, b_code)


def _weighted(a: object, array: Array, b: object) -> tuple[Array, Array, Format, np.dtype[Any]]:
    """Broadcast ``a`` and ``b`` together; return both, the format of ``b`` and the dtype of the result."""
    weights = same_kind(b, "b", array, "a")
    b_format = format_of(weights, "b", complex_too=True)
    try:
        shape = np.broadcast_shapes(array.shape, weights.shape)
    except ValueError:
        raise ValueError(f"a and b must broadcast together, got the shapes {array.shape} and {weights.shape}") from None
    try:
        together = joint(a, array.dtype, b, weights.dtype)
    except TypeError:
        together = None
    result = None if together is None else find_format(together, complex_too=True)
    if result is None:
        raise TypeError(f"a is {array.dtype} and b is {weights.dtype}: they have no common dtype that dualsoft takes")
    xp = module_of(array)
    return xp.broadcast_to(array, shape), xp.broadcast_to(weights, shape), b_format, result.result


def state_problem(x: object, axis: object, where: object, scale: object) -> StateProblem:
    """Judge the arguments of ``softmax_state``."""
    array = as_array(x, "x")
    known = format_of(array, "x")
    axes, mask, kept = arguments.reduction(axis, array.shape)
    factor = None if scale is None else arguments.scale_of(scale, kept, array)
    visible = None if where is None else arguments.where_of(where, array.shape, array)
    empty = _empty if type(array) is _ndarray else module_of(array).empty
    with on_device_of(array):
        m, rest = empty(kept, FLOAT64), empty(kept, FLOAT64)
    return _new(StateProblem, (array, m, rest, axes, mask, factor, visible, known.code))


def normalize_problem(
    x: object, axis: object, m: Array, rest: Array, where: object, scale: object, out: object
) -> NormalizeProblem:
    """Judge the arguments of ``SoftmaxState.normalize`` against the arrays of the state."""
    array = same_kind(x, "x", m, "the state")
    known = format_of(array, "x")
    axes, mask, kept = arguments.reduction(axis, array.shape)
    reduced = arguments.reduced_shape(array.shape, axes)
    if m.shape != reduced:
        raise ValueError(
            f"x has shape {array.shape}, which reduces to {reduced} over axis={axis}, but the state has shape {m.shape}"
        )
    factor = None if scale is None else arguments.scale_of(scale, kept, array)
    visible = None if where is None else arguments.where_of(where, array.shape, array)
    target = arguments.result_array(out, array.shape, known.result, array, (visible, factor, m, rest))
    m, rest = m.reshape(kept), rest.reshape(kept)
    return NormalizeProblem(array, target, axes, mask, factor, visible, known.code, _code(target), m, rest)


def cumulative_problem(x: object, axis: object, include_initial: bool, dtype: object, out: object) -> CumulativeProblem:
    """Judge the arguments of ``cumulative_logsumexp``."""
    arguments.check_truth(include_initial, "include_initial")
    array = as_array(x, "x")
    known = format_of(array, "x")
    along = arguments.one_axis(axis, array.ndim)
    result = arguments.result_dtype(dtype, known.result)
    shape = array.shape
    if include_initial:
        shape = (*shape[:along], shape[along] + 1, *shape[along + 1 :])
    target = arguments.result_array(out, shape, result, array, ())
    return CumulativeProblem(array, target, (along,), 1 << along, known.code, _code(target), bool(include_initial))


def identity_shape(shape: object) -> tuple[int, ...]:
    """Judge the shape of ``SoftmaxState.identity``."""
    return arguments.shape_of(shape)


def vector(x: object) -> np.ndarray[Any, Any]:
    """Judge the argument of ``trace``: one row of numbers, as float64 on the host."""
    array = as_array(x, "x")
    format_of(array, "x")
    if array.ndim != 1:
        raise ValueError(f"x must have one dimension, got the shape {array.shape}")
    return to_host(array).astype(FLOAT64)


def algorithm_input(x: object, axis: object) -> tuple[Array, int, np.dtype[Any], np.dtype[Any]]:
    """Judge the arguments of the textbook algorithms; return the array, the axis, and the dtypes of sums and result."""
    array = as_array(x, "x")
    known = format_of(array, "x")
    along = arguments.one_axis(axis, array.ndim)
    sums = known.result if known.result.itemsize >= 4 else np.dtype(np.float32)
    return array, along, sums, known.result


def textbook_problem(x: Array, axis: int, result: np.dtype[Any], method: str) -> TextbookProblem:
    """Return the problem of a textbook algorithm on a device array, whose arguments are judged already."""
    target = arguments.result_array(None, x.shape, result, x, ())
    return TextbookProblem(x, target, (axis,), 1 << axis, format_of(x, "x").code, _code(target), method)


def _code(array: Array) -> int:
    known = find_format(array.dtype)
    return COMPLEX if known is None else known.code
