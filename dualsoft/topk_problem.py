"""The frozen descriptions of ``softmax_topk`` and ``sample``, and the only place that judges their arguments.

As in ``dualsoft.problem``: ``mask`` is the bit mask of the one reduced axis, ``where`` has the shape of ``x``,
``scale`` is None, a float, or a float64 array of the shape of ``x`` with the axis of length 1.
"""

from typing import Any, NamedTuple

import numpy as np

from dualsoft import arguments
from dualsoft.arguments import Shape, format_of
from dualsoft.arrays import Array, as_array, is_cupy, module_of, number_or_same_kind, on_device_of
from dualsoft.dtypes import BF16, F16, F32, FLOAT64
from dualsoft.philox import random_key

INT64 = np.dtype(np.int64)
_FLOAT32 = np.dtype(np.float32)


class TopKProblem(NamedTuple):
    """``out`` and ``indices``: the k largest of ``softmax(scale·x)`` along the one axis, sorted downwards; ``lse``."""

    x: Array
    out: Array
    """The shape of ``x`` with k elements along the axis."""
    indices: Array
    """int64, the shape of ``out``."""
    lse: Array
    """The axis has length 1; float32 for half types."""
    axes: tuple[int, ...]
    mask: int
    k: int
    scale: float | Array | None
    where: Array | None
    x_code: int
    out_code: int
    lse_code: int


class SampleProblem(NamedTuple):
    """``out``: one index of each row, drawn by its logits and noise; -1 where a row has no distribution."""

    x: Array
    out: Array
    """int64, contiguous in C order; the axis has length 1. Row r of the noise is the r-th element of it."""
    axes: tuple[int, ...]
    mask: int
    options: Array
    """float64: temperature, top_k, min_p, top_p next to each other along the axis, where ``x`` has its elements."""
    key: Array
    """Four words of uint32, on the host."""
    x_code: int


def topk_problem(x: object, k: object, axis: object, where: object, scale: object) -> TopKProblem:
    """Judge the arguments of ``softmax_topk``."""
    array = as_array(x, "x")
    known = format_of(array, "x")
    along = arguments.one_axis(axis, array.ndim)
    count = arguments.integer_of(k, "k")
    n = array.shape[along]
    if not 0 <= count <= n:
        raise ValueError(f"k must be between 0 and the length of the axis, {n}, got {count}")
    kept = arguments.kept_shape(array.shape, (along,))
    factor = None if scale is None else arguments.scale_of(scale, kept, array)
    visible = None if where is None else arguments.where_of(where, array.shape, array)
    code = known.result_code
    lse_dtype, lse_code = (_FLOAT32, F32) if code in (F16, BF16) else (known.result, code)
    shape = _with_length(array.shape, along, count)
    empty = module_of(array).empty
    with on_device_of(array):
        out, indices, lse = empty(shape, known.result), empty(shape, INT64), empty(kept, lse_dtype)
    return TopKProblem(
        *(array, out, indices, lse, (along,), 1 << along, count, factor, visible, known.code, code, lse_code)
    )


def sample_problem(
    logits: object, axis: object, temperature: object, top_k: object, top_p: object, min_p: object, rng: object
) -> SampleProblem:
    """Judge the arguments of ``sample``. A generator moves on only when all of them are right."""
    array = as_array(logits, "logits")
    known = format_of(array, "logits")
    along = arguments.one_axis(axis, array.ndim)
    kept = arguments.kept_shape(array.shape, (along,))
    result = arguments.reduced_shape(array.shape, (along,))
    if array.shape[along] == 0 and 0 not in result:
        raise ValueError(f"logits must have at least one element to draw along the axis, got the shape {array.shape}")
    given = [
        _numbers(temperature, "temperature", result, array, np.finfo(FLOAT64).max),
        np.inf if top_k is None else _count(top_k, result, array),
        0.0 if min_p is None else _numbers(min_p, "min_p", result, array, 1.0),
        1.0 if top_p is None else _numbers(top_p, "top_p", result, array, 1.0),
    ]
    options = _options(given, result, along, array)
    key = random_key(rng)
    with on_device_of(array):
        out = module_of(array).empty(kept, INT64)
    return SampleProblem(array, out, (along,), 1 << along, options, key, known.code)


def _with_length(shape: Shape, along: int, length: int) -> Shape:
    return (*shape[:along], length, *shape[along + 1 :])


def _options(given: list[Any], result: Shape, along: int, x: Array) -> Array:
    """Return the four options of each row side by side, of one array of memory; scalars alone take four numbers."""
    xp = module_of(x)
    by_row = any(not isinstance(option, float) for option in given)
    with on_device_of(x):
        options = xp.empty((*(result if by_row else ()), 4), FLOAT64)
        for place, option in enumerate(given):
            options[..., place] = option
    return xp.moveaxis(xp.broadcast_to(options, (*result, 4)), -1, along)


def _numbers(value: object, name: str, result: Shape, x: Array, most: float) -> float | Array:
    """Return an option as a float or as an array by row, all of it from 0 to ``most``."""
    array = number_or_same_kind(value, name, x, "logits")
    array = arguments.real(array, name)
    if not is_cupy(array):
        # Written so that NaN is refused too. What is on a device is not read: its rows give -1.
        wrong = array[~((array >= 0) & (array <= most))]
        if wrong.size:
            bound = "finite" if most > 1 else "at most 1"
            raise ValueError(f"{name} must be at least 0 and {bound}, got {wrong.flat[0]!s}")
        if array.ndim == 0:
            return float(array)
    return arguments.broadcast(array, result, name, "the shape of the result")


def _count(value: object, result: Shape, x: Array) -> float | Array:
    """Return ``top_k`` as a float or as an array by row, whole numbers from 1 on."""
    array = number_or_same_kind(value, "top_k", x, "logits")
    if array.dtype.kind not in "iu":
        raise TypeError(f"top_k must be None, an integer or an array of them, got {value!r}")
    if not is_cupy(array):
        wrong = array[array < 1]
        if wrong.size:
            raise ValueError(f"top_k must be at least 1 (None keeps every element), got {wrong.flat[0]!s}")
        if array.ndim == 0:
            return float(array)
    return arguments.broadcast(array, result, "top_k", "the shape of the result")
