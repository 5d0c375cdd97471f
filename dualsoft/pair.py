"""The algebra of the pair on bare arrays: (m, rest) with ``rest = d - 1``, float64, NumPy or CuPy.

``rest`` leaves out the 1 that a maximal element adds, so that ``m + log1p(rest)`` keeps what would be lost in a d near
1.
"""

import math
from typing import NamedTuple

import numpy as np

from dualsoft.arrays import Array, is_cupy, module_of, on_device_of, to_host
from dualsoft.dtypes import FLOAT64

PACK_VERSION = 1


class Pair(NamedTuple):
    """The arrays of a running pair."""

    m: Array
    rest: Array


def canonical(m: Array, rest: Array) -> tuple[Array, Array]:
    """Give each row its one form: NaN in d only, (-inf, 0) where d·exp(m) is 0, (inf, inf) where it is inf.

    A negative d, which the host has not seen on a device, is NaN.
    """
    xp = module_of(m)
    with on_device_of(m):
        rest = xp.where(xp.isnan(m) | (rest < -1), xp.nan, rest)
        is_nan = xp.isnan(rest)
        m = xp.where(xp.isnan(m), -np.inf, m)
        empty = ~is_nan & ((rest == -1) | xp.isneginf(m))
        infinite = ~is_nan & ~empty & (xp.isposinf(m) | xp.isposinf(rest))
        m = xp.where(infinite, np.inf, xp.where(empty, -np.inf, m))
        return m, xp.where(infinite, np.inf, xp.where(empty, -1.0, rest))


def merge_pairs(m_a: Array, rest_a: Array, m_b: Array, rest_b: Array) -> tuple[Array, Array]:
    """Return the pair of the union. Swapping the sides changes no bit."""
    xp = module_of(m_a)
    with on_device_of(m_a), np.errstate(all="ignore"):
        a_higher, b_higher = m_a > m_b, m_b > m_a
        # The side with the higher maximum keeps its rest; a tie, of infinities too, adds the 1 that one side loses.
        gap = xp.where(a_higher, m_b - m_a, m_a - m_b)
        lower = xp.where(a_higher, rest_b, rest_a)
        higher = xp.where(a_higher, rest_a, rest_b)
        unequal = higher + (1 + lower) * xp.exp(gap)
        rest = xp.where(a_higher | b_higher, unequal, (rest_a + rest_b) + 1)
        return xp.maximum(m_a, m_b), rest


def log_of(m: Array, rest: Array) -> Array:
    """Return log(d·exp(m))."""
    with on_device_of(m), np.errstate(all="ignore"):
        return m + module_of(m).log1p(rest)


def same_values(first: Array, second: Array) -> bool:
    """Return whether two arrays of one shape hold the same values, NaN being the same as NaN."""
    with on_device_of(first):
        return bool(((first == second) | ((first != first) & (second != second))).all())


def pack_pair(m: Array, rest: Array) -> Array:
    """Return ``[format version, ndim, *shape, *m, *rest]``."""
    xp = module_of(m)
    with on_device_of(m):
        head = xp.asarray([PACK_VERSION, m.ndim, *m.shape], dtype=FLOAT64)
        return xp.concatenate([head, m.ravel(), rest.ravel()])


def unpack_pair(packed: Array) -> tuple[Array, Array]:
    """Return what ``pack_pair`` packed, in new arrays.

    Raises
    ------
    TypeError
        When the array is not float64.
    ValueError
        When it is of another format version, or not what ``pack_pair`` writes.
    """
    if packed.dtype != FLOAT64:
        raise TypeError(f"array must be float64, got dtype {packed.dtype}")
    shape = _packed_shape(packed)
    with on_device_of(packed):
        m, rest = packed[2 + len(shape) :].reshape(2, *shape).copy()
        m, rest = module_of(packed).asarray(m), module_of(packed).asarray(rest)
    if not is_cupy(packed) and (rest < -1).any():
        raise ValueError(f"array is not a packed state: it holds the negative d {1 + rest[rest < -1].min()}")
    return canonical(m, rest)


def _packed_shape(packed: Array) -> tuple[int, ...]:
    if packed.ndim != 1 or packed.size < 2:
        raise ValueError(
            f"array must be what pack() returned, one dimension of 2 or more, got the shape {packed.shape}"
        )
    version, ndim = (float(value) for value in to_host(packed[:2]))
    if version != PACK_VERSION:
        raise ValueError(f"array is of format version {version:g}; this dualsoft reads version {PACK_VERSION}")
    if not (ndim.is_integer() and 0 <= ndim <= min(64, packed.size - 2)):
        raise ValueError(f"array is not a packed state: it says {ndim:g} dimensions")
    lengths: list[float] = [float(value) for value in to_host(packed[2 : 2 + int(ndim)])]
    if not all(length.is_integer() and length >= 0 for length in lengths):
        raise ValueError(f"array is not a packed state: it says the shape {lengths}")
    shape = tuple(int(length) for length in lengths)
    if packed.size != 2 + len(shape) + 2 * math.prod(shape):
        raise ValueError(f"array has {packed.size} entries, which a packed state of the shape {lengths} has not")
    return shape
