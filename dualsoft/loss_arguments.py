"""The rules for single arguments of the losses and the backward functions: what ``loss_problem`` judges by."""

import math
from typing import Any, NamedTuple

import numpy as np

from dualsoft.accuracy import unit_roundoff
from dualsoft.arguments import Shape, integer_of, kept_shape, real, reduced_shape
from dualsoft.arrays import Array, as_array, is_cupy, module_of, number_or_same_kind, on_device_of, same_kind
from dualsoft.attention_arguments import bounds, number_of
from dualsoft.dtypes import FLOAT64, Format, find_format, is_float
from dualsoft.pair import Pair

_ndarray = np.ndarray
INT64 = np.dtype(np.int64)
REDUCTIONS = ("mean", "sum", "none")


def format_of(array: Array, name: str) -> Format:
    """Return the format of an array of real numbers.

    Raises
    ------
    TypeError
        For a dtype that dualsoft does not take.
    """
    known = find_format(array.dtype)
    if known is None:
        raise TypeError(
            f"{name} has dtype {array.dtype}; it must be float16, bfloat16, float32, float64, an integer or bool"
        )
    return known


def reduction_of(reduction: object) -> str:
    """Return the name of a reduction.

    Raises
    ------
    TypeError, ValueError
        When it is not "mean", "sum" or "none".
    """
    if not isinstance(reduction, str):
        raise TypeError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    if reduction not in REDUCTIONS:
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    return reduction


def smoothing_of(label_smoothing: object) -> float:
    """Return the share of the labels that is spread over all classes.

    Raises
    ------
    TypeError, ValueError
        When it is not a real number within [0, 1].
    """
    share = number_of(label_smoothing, "label_smoothing")
    if not 0 <= share <= 1:
        raise ValueError(f"label_smoothing must be within [0, 1], got {label_smoothing!r}")
    return share


def z_loss_of(z_loss: object) -> float:
    """Return the factor of lse².

    Raises
    ------
    TypeError, ValueError
        When it is not a real number, finite and at least 0.
    """
    factor = number_of(z_loss, "z_loss")
    if not 0 <= factor < math.inf:
        raise ValueError(f"z_loss must be finite and at least 0, got {z_loss!r}")
    return factor


def ignored_of(ignore_index: object) -> int | None:
    """Return the label of rows that do not count.

    Raises
    ------
    TypeError
        When it is neither None nor an integer.
    """
    return None if ignore_index is None else integer_of(ignore_index, "ignore_index")


def labels_of(
    labels: object, beside: Array, shape: Shape, axis: int, ignored: int | None
) -> tuple[Array, int, int | None]:
    """Return class indices as int64 with the axis kept, and -1; or probabilities as they are, and their dtype code.

    Beside them what is ``ignored``, as the indices have it, None where none can be it. ``shape`` is that of the logits.
    Indices get memory of their own: nobody can change them between this check and their use. NumPy's may stand beside
    CuPy data, and stay NumPy's.

    Raises
    ------
    TypeError
        For other dtypes, and for CuPy labels beside NumPy data.
    ValueError
        For shapes that do not fit, and for indices out of range that the host can see.
    """
    array = labels if type(labels) is _ndarray else as_array(labels, "labels")
    if type(array) is not _ndarray and not is_cupy(beside):
        raise TypeError("labels is a CuPy array beside NumPy arrays: arrays are never moved silently, convert one")
    reduced = shape[:axis] + shape[axis + 1 :]
    # An empty list has NumPy's default dtype, which says nothing.
    is_index = array.dtype.kind in "iu" or (array.shape == reduced and not array.size and type(labels) is list)
    if not is_index and not is_float(array.dtype):
        raise TypeError(
            f"labels must be integers (class indices) or floating-point (probabilities), got dtype {array.dtype}"
        )
    if not is_index:
        return _probabilities(array, beside, shape, axis, ignored), format_of(array, "labels").code, None
    if array.shape != reduced:
        hint = "; probabilities must be floating-point" if array.shape == shape else ""
        raise ValueError(
            f"labels that are class indices must have the shape of the losses, {reduced}, got {array.shape}{hint}"
        )
    indices = array.astype(INT64)
    given = array if array.dtype.kind == "u" else indices
    if ignored is not None and not np.iinfo(given.dtype).min <= ignored <= np.iinfo(given.dtype).max:
        ignored = None
    if type(array) is _ndarray and array.size:
        _check_range(given, shape[axis], ignored)
    if ignored is not None and ignored >= 2**63:
        ignored -= 2**64  # as the labels that became int64
    return indices.reshape(kept_shape(shape, (axis,))), -1, ignored


def _check_range(indices: Array, classes: int, ignored: int | None) -> None:
    low, high = bounds(indices)
    if low >= 0 and high < classes:
        return
    wrong = (indices < 0) | (indices >= classes)
    if ignored is not None:
        wrong &= indices != indices.dtype.type(ignored)
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        place = ", ".join(str(int(index)) for index in at)
        other = "" if ignored is None else f" or ignore_index={ignored}"
        raise ValueError(f"labels must be within [0, {classes}){other}, got {indices[at]} at [{place}]")


def _probabilities(array: Array, beside: Array, shape: Shape, axis: int, ignored: int | None) -> Array:
    if array.shape != shape:
        hint = "; class indices must be integers" if array.ndim == len(shape) - 1 else ""
        raise ValueError(
            f"labels that are probabilities must have the shape of the logits, {shape}, got {array.shape}{hint}"
        )
    if ignored is not None and 0 <= ignored < shape[axis]:
        raise ValueError(
            f"ignore_index={ignored} names a class, but labels are probabilities, of which no row can be ignored: "
            f"leave it out"
        )
    return same_kind(array, "labels", beside, "the input")


def counted(labels: Array, is_index: bool, rows: int, ignored: int | None) -> int:
    """Return how many rows count: all but those that are ignored. ``labels`` are NumPy's."""
    if not is_index or ignored is None:
        return rows
    return rows - int(np.count_nonzero(labels == ignored))


def row_factor(grad: object, kept: Shape, axes: tuple[int, ...], x: Array, name: str = "grad") -> float | Array:
    """Return the incoming gradient of a reduced result: a float, or float64 of shape ``kept``.

    Raises
    ------
    TypeError
        When it is not real, or not the kind of array that ``x`` is.
    ValueError
        When it does not broadcast to the reduced shape.
    """
    if type(grad) is float:
        return grad
    array = real(number_or_same_kind(grad, name, x, "the input"), name)
    if array.ndim == 0 and not is_cupy(array):
        return float(array)
    xp, reduced = module_of(array), reduced_shape(kept, axes)
    with on_device_of(x):
        try:
            wide = xp.broadcast_to(array.astype(FLOAT64, copy=False), reduced)
        except ValueError:
            raise ValueError(
                f"{name} has shape {array.shape}, which does not broadcast to the reduced shape {reduced}"
            ) from None
        return xp.expand_dims(wide, axes)


class Logarithm(NamedTuple):
    """The lse of each row as a running pair of float64 arrays; an array of logarithms is the pair (lse, d = 1)."""

    m: Array
    rest: Array
    roundoff: float
    """How far the given numbers may be off, relatively: half a unit of their dtype; 0 for the arrays of a state."""


def logarithm_of(lse: Any, kept: Shape, axes: tuple[int, ...], x: Array) -> Logarithm:
    """Return ``lse``, an array or the pair of a state, as a pair of shape ``kept``.

    Raises
    ------
    TypeError
        When it is not real, or not the kind of array that ``x`` is.
    ValueError
        When it has another shape than the reduced one.
    """
    is_pair = isinstance(lse, Pair)
    array = real(same_kind(lse.m if is_pair else lse, "lse", x, "the input"), "lse")
    reduced = reduced_shape(kept, axes)
    if array.shape != reduced:
        raise ValueError(f"lse must have the reduced shape {reduced}, got {array.shape}")
    xp = module_of(array)
    with on_device_of(x):
        if is_pair:
            return Logarithm(lse.m.reshape(kept), lse.rest.reshape(kept), 0.0)
        roundoff = unit_roundoff(array.dtype) if is_float(array.dtype) else 0.0
        m = xp.expand_dims(array.astype(FLOAT64, copy=False), axes)
        return Logarithm(m, xp.broadcast_to(xp.zeros((), FLOAT64), m.shape), roundoff)
