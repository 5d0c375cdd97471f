"""The rules for single arguments (axes, ``where``, ``scale``, ``dtype``, ``out``), for the problems and the states."""

import operator
import reprlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.exceptions import AxisError

from dualsoft.arrays import Array, is_cupy, module_of, number_or_same_kind, on_device_of, own, same_kind
from dualsoft.dtypes import FLOAT64, FORMATS, DType, Format, find_format, is_float, same_number

Shape = tuple[int, ...]


def one_axis(axis: object, ndim: int, name: str = "axis") -> int:
    """Return ``axis`` counted from the front.

    Raises
    ------
    TypeError
        When it is not an integer; True and False are not.
    numpy.exceptions.AxisError
        When the array does not have it.
    """
    index = integer_of(axis, name)
    if not -ndim <= index < ndim:
        raise AxisError(index, ndim, name)
    return index % ndim


def integer_of(axis: object, name: str) -> int:
    # What is on a device is not read, although CuPy would, and wait for it.
    if isinstance(axis, bool | np.bool_) or not hasattr(axis, "__index__") or is_cupy(axis):
        raise TypeError(f"{name} must be an integer, got {axis!r}")
    try:
        return operator.index(axis)
    except TypeError:  # NumPy's arrays and scalars all have the method, and only some can answer
        raise TypeError(f"{name} must be an integer, got {axis!r}") from None


def check_truth(value: object, name: str) -> None:
    """Refuse what is not a truth value: Python's and NumPy's bools and the integers 0 and 1 are, alone in an array too.

    Raises
    ------
    TypeError
    """
    if isinstance(value, bool | np.bool_):
        return
    if isinstance(value, np.ndarray) and value.size != 1:
        raise TypeError(f"{name} must be True or False, got an array of the shape {value.shape}")
    # Anything else has a truth value as well, "False" and NaN among them, and it is True.
    entry = value.reshape(-1)[0] if type(value) is np.ndarray else value
    if not isinstance(entry, bool | np.bool_ | int | np.integer) or entry not in (0, 1):
        raise TypeError(f"{name} must be True or False, got {reprlib.repr(value)} of type {type(value).__qualname__}")


def shape_of(shape: object, name: str = "shape") -> Shape:
    """Return a shape as a tuple; an integer is the shape of one axis.

    Raises
    ------
    TypeError
        When it is neither an integer nor a tuple of integers.
    ValueError
        When a length is negative.
    """
    entries = shape if isinstance(shape, tuple | list) else (shape,)
    try:
        lengths = tuple(integer_of(entry, name) for entry in entries)
    except TypeError:
        raise TypeError(f"{name} must be an integer or a tuple of integers, got {shape!r}") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"{name} must not have a negative length, got {shape!r}")
    return lengths


def reduced_axes(axis: object, ndim: int) -> tuple[tuple[int, ...], int]:
    """Return the reduced axes, ascending, and their bit mask. None is all of them.

    Raises
    ------
    TypeError
        When ``axis`` is neither None nor an integer nor a tuple of integers.
    ValueError
        When an axis comes twice.
    numpy.exceptions.AxisError
        When the array does not have an axis.
    """
    if axis is None:
        return tuple(range(ndim)), (1 << ndim) - 1
    if not isinstance(axis, tuple):
        if isinstance(axis, list):
            raise TypeError(f"axis must be None, an integer or a tuple of integers, got the list {axis!r}")
        # NumPy's reductions let a 0-d array have the axes 0 and -1.
        if ndim == 0 and integer_of(axis, "axis") in (0, -1):
            return (), 0
        index = one_axis(axis, ndim)
        return (index,), 1 << index
    mask = 0
    for entry in axis:
        bit = 1 << one_axis(entry, ndim)
        if mask & bit:
            raise ValueError(f"axis names the axis {entry} twice: {axis!r}")
        mask |= bit
    return tuple(index for index in range(ndim) if mask >> index & 1), mask


def reduction(axis: object, shape: Shape) -> tuple[tuple[int, ...], int, Shape]:
    """Return what ``reduced_axes`` does, and ``shape`` with the reduced axes of length 1."""
    ndim = len(shape)
    if type(axis) is int and -ndim <= axis < ndim:
        if axis < 0:
            axis += ndim
        kept = shape[:-1] + (1,) if axis == ndim - 1 else (*shape[:axis], 1, *shape[axis + 1 :])  # noqa: RUF005 (faster)
        return (axis,), 1 << axis, kept
    axes, mask = reduced_axes(axis, ndim)
    return axes, mask, kept_shape(shape, axes)


def kept_shape(shape: Shape, axes: tuple[int, ...]) -> Shape:
    """Return ``shape`` with the reduced axes of length 1."""
    if len(axes) == len(shape):
        return (1,) * len(shape)
    return tuple(1 if index in axes else length for index, length in enumerate(shape))


def reduced_shape(shape: Shape, axes: tuple[int, ...]) -> Shape:
    """Return ``shape`` without the reduced axes."""
    return tuple(length for index, length in enumerate(shape) if index not in axes)


def format_of(array: Array, name: str, complex_too: bool = False) -> Format:
    """Return what is known about the dtype of ``array``.

    Raises
    ------
    TypeError
        When it is not taken.
    """
    known = FORMATS.get(array.dtype) or find_format(array.dtype, complex_too=complex_too)
    if known is None:
        also = ", or complex" if complex_too else ""
        raise TypeError(
            f"{name} has dtype {array.dtype}; it must be float16, bfloat16, float32, float64, an integer or bool{also}"
        )
    return known


def real(array: Array, name: str) -> Array:
    """Return ``array``, which holds real numbers of a dtype that dualsoft takes.

    Raises
    ------
    TypeError
        When it does not.
    """
    if find_format(array.dtype) is None:
        raise TypeError(f"{name} must be real, got dtype {array.dtype}")
    return array


def where_of(where: object, shape: Shape, x: Array) -> Array:
    """Return ``where`` broadcast to ``shape``.

    Raises
    ------
    TypeError
        When it is not boolean, or not the kind of array that ``x`` is.
    ValueError
        When it does not broadcast.
    """
    array = same_kind(where, "where", x, "x")
    if array.dtype.kind != "b":
        raise TypeError(f"where must be boolean (True takes part), got dtype {array.dtype}")
    if array.shape == shape:
        return array
    return broadcast(array, shape, "where", "the shape of the input")


def scale_of(scale: object, kept: Shape, x: Array) -> float | Array:
    """Return ``scale`` as a float or as a float64 array of shape ``kept``.

    Raises
    ------
    TypeError
        When it is not real, or not the kind of array that ``x`` is.
    ValueError
        When it does not broadcast to the reduced shape with the axes kept.
    """
    if type(scale) is float:
        return scale
    array = number_or_same_kind(scale, "scale", x, "x")
    if find_format(array.dtype) is None:
        raise TypeError(
            f"scale must be real (an integer, float16, bfloat16, float32 or float64), got dtype {array.dtype}"
        )
    if array.ndim == 0 and not is_cupy(array):
        return float(array)
    if array.dtype != FLOAT64:
        with on_device_of(array):
            array = own(array.astype(FLOAT64))
    return broadcast(array, kept, "scale", "the reduced shape with the axes kept,")


def broadcast(array: Array, shape: Shape, name: str, what: str) -> Array:
    try:
        return module_of(array).broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"{name} has shape {array.shape}, which does not broadcast to {what} {shape}") from None


def result_dtype(dtype: object, natural: DType) -> DType:
    """Return the dtype of the result: ``dtype`` if given, else the one that follows from the input.

    Raises
    ------
    TypeError
        When ``dtype`` is not one of the four floating-point types.
    """
    if dtype is None:
        return natural
    try:
        asked: DType | None = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        asked = None
    if asked is None or not is_float(asked):
        hint = " (a name that NumPy knows once ml_dtypes is imported)" if dtype == "bfloat16" else ""
        raise TypeError(f"dtype must be float16, bfloat16, float32 or float64, got {dtype!r}{hint}")
    # As NumPy's ufuncs: the kind of number that was asked for, in the machine's byte order.
    return asked.newbyteorder("=")


def result_array(out: object, shape: Shape, dtype: DType, x: Array, reads: Iterable[object]) -> Array:
    """Return the array to write an elementwise result to, in the machine's byte order.

    It is ``out``, or a new one when ``out`` overlaps an input or has the other byte order.

    ``out`` may be ``x`` itself: same memory, strides and dtype.

    Raises
    ------
    TypeError, ValueError
        When ``out`` is not an array like the result.
    """
    if out is None:
        xp = module_of(x)
        with on_device_of(x):
            return xp.empty_like(x, dtype=dtype) if shape == x.shape else xp.empty(shape, dtype)
    if type(out) is np.ndarray and type(x) is np.ndarray and out.dtype is dtype and out.shape == shape and not reads:
        flags = out.flags
        # Arrays that own their memory share none.
        if flags.c_contiguous and flags.writeable and (out is x or (flags.owndata and x.flags.owndata)):
            return out
    return elementwise_result(out, shape, dtype, (x,), reads)


def elementwise_result(
    out: object, shape: Shape, dtype: DType, elementwise: tuple[Array, ...], reads: Iterable[object]
) -> Array:
    """Return ``out``, or a new array when it overlaps an input or has the other byte order.

    It may be one of ``elementwise``, the inputs that are read element by element, itself.

    Raises
    ------
    TypeError, ValueError
        When ``out`` is not an array like the result.
    """
    x = elementwise[0]
    array = _checked_out(out, shape, dtype, x)
    as_it_is = array.dtype.isnative and all(
        _is_same(array, given) or not _overlaps(array, (given,)) for given in elementwise
    )
    if as_it_is and not (reads and _overlaps(array, reads)):
        return array
    with on_device_of(x):
        return own(module_of(x).empty(shape, dtype))


def reduced_result(
    out: object, kept: Shape, axes: tuple[int, ...], keepdims: bool, dtype: DType, x: Array, reads: Iterable[object]
) -> Array:
    """Return the array of shape ``kept`` to write a reduction to, in the machine's byte order.

    It is a view of ``out``, or a new one when ``out`` overlaps an input or has the other byte order.

    Raises
    ------
    TypeError, ValueError
        When ``out`` is not an array like the result.
    """
    shape = kept if keepdims else reduced_shape(kept, axes)
    if type(out) is np.ndarray and type(x) is np.ndarray and out.dtype is dtype and out.shape == shape:
        flags = out.flags
        if flags.c_contiguous and flags.writeable and flags.owndata and _all_own_others(reads, out):
            return out if keepdims else out.reshape(kept)
    array = _checked_out(out, shape, dtype, x)
    if not array.dtype.isnative or _overlaps(array, reads):
        with on_device_of(x):
            return own(module_of(x).empty(kept, dtype))
    return array if keepdims else module_of(x).expand_dims(array, axes)


def _checked_out(out: object, shape: Shape, dtype: DType, x: Array) -> Array:
    if type(out) is not np.ndarray or type(x) is not np.ndarray:
        if not isinstance(out, np.ndarray) and not is_cupy(out):
            raise TypeError(f"out must be an array, got {type(out).__name__}")
        out = same_kind(out, "out", x, "x")
    array: Array = out
    if array.dtype != dtype and not same_number(array.dtype, dtype):
        raise TypeError(f"out must have the dtype of the result, {dtype}, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"out must have the shape of the result, {shape}, got {array.shape}")
    flags = array.flags
    if not is_cupy(array) and not flags.writeable:
        raise ValueError("out is read-only")
    if not flags.c_contiguous and not flags.f_contiguous and _overlaps_itself(array):
        raise ValueError(
            f"out must have each element in memory of its own; with the shape {shape} and the strides "
            f"{array.strides}, several are in one place or interleave"
        )
    return array


def _overlaps_itself(array: Array) -> bool:
    """Return whether elements may share bytes: an axis steps by less than all the axes of smaller steps reach over.

    Views by slicing and transposing never do. The exact answer can take for ever, so strides that interleave without
    meeting count as overlapping.
    """
    if array.size == 0:
        return False
    reach = array.itemsize
    for step, length in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if step < reach:
            return True
        reach += step * (length - 1)
    return False


def _overlaps(out: Array, inputs: Iterable[object]) -> bool:
    """Return whether ``out`` may share memory with an input, by their bounds: an exact answer can take for ever."""
    share = module_of(out).may_share_memory
    return any(share(out, given) for given in inputs if given is not None and not isinstance(given, float))


def _all_own_others(inputs: Iterable[object], out: np.ndarray[Any, Any]) -> bool:
    """Return whether inputs are NumPy arrays that own their memory, none of them ``out``: such arrays share none."""
    return all(
        given is None or (type(given) is np.ndarray and given is not out and given.flags.owndata) for given in inputs
    )


def _is_same(out: Array, x: Array) -> bool:
    if out is x:
        return True
    return bool(
        out.strides == x.strides and out.shape == x.shape and out.dtype == x.dtype and _address(out) == _address(x)
    )


def _address(array: Array) -> Any:
    return array.data.ptr if is_cupy(array) else array.__array_interface__["data"][0]
