"""What the reference is made of: matrices whose rows are reduced together, and the pair (m, d - 1) of each row."""

from typing import Any

import numpy as np

from dualsoft.dtypes import FLOAT64, DType

Array = np.ndarray[Any, Any]
Rows = Array
"""A matrix (rows, n)."""

_LONGDOUBLE = np.dtype(np.longdouble)


def to_rows(array: Array, axes: tuple[int, ...]) -> Rows:
    """Return ``array`` as a matrix whose rows run over ``axes``."""
    kept = [axis for axis in range(array.ndim) if axis not in axes]
    n = int(np.prod([array.shape[axis] for axis in axes], dtype=np.int64))
    rows = int(np.prod([array.shape[axis] for axis in kept], dtype=np.int64))
    return array.transpose(*kept, *axes).reshape(rows, n)


def from_rows(rows: Rows, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Return a matrix made by ``to_rows`` from an array of ``shape`` as an array of that shape."""
    order = [axis for axis in range(len(shape)) if axis not in axes] + list(axes)
    return rows.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))


def scaled_rows(
    x: Array, axes: tuple[int, ...], scale: float | Array | None, where: Array | None, compute: DType
) -> tuple[Rows, Array | None]:
    """Return ``scale·x`` as rows, -inf where an element does not take part, and ``where`` as rows."""
    rows = widened(x, axes, compute)
    if isinstance(scale, np.ndarray):
        rows = rows * widened(scale, axes, compute)
    elif scale is not None:
        rows = rows * compute.type(scale)
    visible = None if where is None else to_rows(where, axes)
    return (rows if visible is None else np.where(visible, rows, -np.inf)), visible


def widened(array: Array, axes: tuple[int, ...], compute: DType) -> Rows:
    """Return ``array`` as rows in ``compute``."""
    # Integers become float64 before any arithmetic. Rows lie one after the other in memory, so that NumPy computes and
    # sums each as it would alone, whatever is beside it.
    return to_rows(array, axes).astype(FLOAT64, order="C", copy=False).astype(compute, copy=False)


def maximum_and_rest(rows: Rows) -> tuple[Rows, Rows]:
    """Return the pair (m, sum exp(x - m) - 1) of each row, as columns of shape (rows, 1).

    m is the largest element that is not NaN; NaN rides on the rest alone. -inf in m means a row without weight.
    """
    ordered = np.where(np.isnan(rows), -np.inf, rows)
    first = np.argmax(ordered, axis=1, keepdims=True)
    m = np.take_along_axis(ordered, first, axis=1)
    terms = exponentials(rows, m)
    # What the maximal element adds is exactly 1, unless there is none (an empty row) or it is infinite.
    pivot = np.take_along_axis(terms, first, axis=1) - 1
    np.put_along_axis(terms, first, 0, axis=1)
    return m, sum_rows(terms) + pivot


def sum_rows(terms: Rows) -> Rows:
    """Return the sum of each row as a column of longdouble."""
    # Widened first: a sum that NumPy widens on the way is cut at its buffers, wherever in a row they end.
    return np.asarray(np.sum(terms.astype(_LONGDOUBLE, order="C", copy=False), axis=1, keepdims=True))


def exponentials(rows: Rows, m: Rows) -> Rows:
    """Return exp(x - m), with exp(-inf - -inf) = 0 and exp(inf - inf) = inf."""
    shift = np.where(np.isneginf(m), 0, m)
    terms: Rows = np.where(np.isposinf(rows), np.inf, np.exp(rows - shift))
    return terms


def write(out: Array, rows: Rows, axes: tuple[int, ...]) -> None:
    """Write a matrix of rows to an array."""
    out[...] = from_rows(np.asarray(rows), out.shape, axes).astype(out.dtype)
