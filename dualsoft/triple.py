"""The algebra of attention's partial results on bare arrays: (out, m, d), NumPy or CuPy.

``out = sum exp(s - m)·v`` of shape (..., Dv), ``d = sum exp(s - m)``, ``m`` the maximum of s, or the lse (and d = 1)
where the sum would be too large for the dtype of ``out``; m and d are float64.
"""

import math
from operator import itemgetter

import numpy as np

from dualsoft.arrays import Array, is_cupy, module_of, to_host, with_device_of
from dualsoft.dtypes import FLOAT64, DType

PACK_VERSION = 101
"""The format of packed partial results of attention; those of the pair (m, d) count from 1."""
_HEAD = 3


@with_device_of(itemgetter(0))
def canonical(out: Array, m: Array, d: Array) -> tuple[Array, Array, Array]:
    """Give each row its one form.

    Nothing seen: (0, -inf, 0), whatever ``out`` held. NaN seen: (NaN, -inf, NaN). +inf seen: (NaN, inf, inf). A
    negative d, which the host has not seen on a device, is NaN.
    """
    xp = module_of(m)
    if not is_cupy(m) and (xp.isfinite(m) & (d > 0) & (d < np.inf)).all():
        return out, m, d
    is_nan = xp.isnan(m) | xp.isnan(d) | (d < 0)
    empty = ~is_nan & ((d == 0) | xp.isneginf(m))
    infinite = ~is_nan & ~empty & (xp.isposinf(m) | xp.isposinf(d))
    broken = is_nan | infinite
    out = xp.where(empty[..., None], out.dtype.type(0), xp.where(broken[..., None], out.dtype.type(np.nan), out))
    m = xp.where(empty | is_nan, -np.inf, xp.where(infinite, np.inf, m))
    d = xp.where(empty, 0.0, xp.where(is_nan, np.nan, xp.where(infinite, np.inf, d)))
    return out, m, d


@with_device_of(itemgetter(0))
def merge_triples(
    out_a: Array, m_a: Array, d_a: Array, out_b: Array, m_b: Array, d_b: Array
) -> tuple[Array, Array, Array]:
    """Return the partial result of the union of two, in one form each. Swapping the sides changes no bit."""
    xp = module_of(m_a)
    with np.errstate(all="ignore"):
        m = xp.maximum(m_a, m_b)
        shift = xp.where(xp.isfinite(m), m, 0.0)
        alpha_a, alpha_b = xp.exp(m_a - shift), xp.exp(m_b - shift)
        is_nan = xp.isnan(d_a) | xp.isnan(d_b)
        d = xp.where(is_nan, np.nan, d_a * alpha_a + d_b * alpha_b)
        out = (scaled(out_a, alpha_a) + scaled(out_b, alpha_b)).astype(xp.result_type(out_a.dtype, out_b.dtype))
        beyond = (~xp.isfinite(out) & xp.isfinite(out_a) & xp.isfinite(out_b)).any(-1) & xp.isfinite(d) & (d > 0)
        if is_cupy(d) or beyond.any():
            # A sum of finite numbers that out does not hold becomes the mean, of weight 1.
            mean = _mean(out_a, d_a, d_a * alpha_a / d) + _mean(out_b, d_b, d_b * alpha_b / d)
            out = xp.where(beyond[..., None], mean, out).astype(out.dtype)
            m, d = xp.where(beyond, m + xp.log(d), m), xp.where(beyond, 1.0, d)
        # An empty side changes nothing, not even the sign of a zero.
        out = xp.where((d_b == 0)[..., None], out_a, xp.where((d_a == 0)[..., None], out_b, out))
        d = xp.where(xp.isposinf(m) & ~is_nan, np.inf, d)
    return canonical(out, m, d)


def _mean(out: Array, d: Array, share: Array) -> Array:
    return scaled(out / d[..., None], share)


def scaled(out: Array, factor: Array) -> Array:
    """Return ``out·factor`` in float64; a factor is above 0 however small, so that what is not finite stays."""
    xp = module_of(out)
    return xp.where(xp.isfinite(out), out * factor[..., None], out)


@with_device_of(itemgetter(0))
def with_sinks(out: Array, m: Array, d: Array, sinks: Array) -> tuple[Array, Array, Array]:
    """Return the partial result with a logit a row that joins ``d`` and has no value. ``sinks`` broadcasts to ``m``."""
    xp = module_of(m)
    sinks = xp.broadcast_to(sinks, m.shape)
    absent = xp.where(xp.isneginf(sinks), 0.0, xp.where(xp.isnan(sinks), np.nan, 1.0))
    nothing = xp.zeros(out.shape, out.dtype)
    return merge_triples(out, m, d, *canonical(nothing, sinks, absent))


@with_device_of(itemgetter(0))
def divided(out: Array, m: Array, d: Array, dtype: DType) -> tuple[Array, Array]:
    """Return ``out / d`` as ``dtype`` and the lse: 0 and -inf where nothing was seen."""
    xp = module_of(m)
    with np.errstate(all="ignore"):
        result = xp.where(xp.isinf(d)[..., None], np.nan, out / xp.where(d == 0, 1.0, d)[..., None])
        return result.astype(dtype), m + xp.log(d)


@with_device_of(itemgetter(0))
def pack_triple(out: Array, m: Array, d: Array) -> Array:
    """Return ``[format version, bytes of an entry of out, ndim of out, *shape of out, *m, *d, *out]``, float64."""
    xp = module_of(m)
    head = xp.asarray([PACK_VERSION, out.dtype.itemsize, out.ndim, *out.shape], dtype=FLOAT64)
    return xp.concatenate([head, m.ravel(), d.ravel(), out.ravel().astype(FLOAT64)])


@with_device_of(itemgetter(0))
def unpack_triple(packed: Array) -> tuple[Array, Array, Array]:
    """Return what ``pack_triple`` packed, in new arrays.

    Raises
    ------
    TypeError
        When the array is not float64.
    ValueError
        When it is of another format version, or not what ``pack_triple`` writes.
    """
    if packed.dtype != FLOAT64:
        raise TypeError(f"array must be float64, got dtype {packed.dtype}")
    itemsize, shape = _packed_shape(packed)
    rows = math.prod(shape[:-1])
    begin = _HEAD + len(shape)
    with np.errstate(over="ignore"):
        out = packed[begin + 2 * rows :].reshape(shape).astype(np.float32 if itemsize == 4 else FLOAT64)
    m, d = packed[begin : begin + 2 * rows].reshape(2, *shape[:-1])
    m, d = (module_of(packed).asarray(array).copy() for array in (m, d))
    if not is_cupy(packed) and (d < 0).any():
        raise ValueError(f"array is not a packed state: it holds the negative d {d[d < 0].min()}")
    return canonical(out, m, d)


def _packed_shape(packed: Array) -> tuple[int, tuple[int, ...]]:
    if packed.ndim != 1 or packed.size < _HEAD:
        raise ValueError(
            f"array must be what pack() returned, one dimension of 3 or more, got the shape {packed.shape}"
        )
    version, itemsize, ndim = (float(value) for value in to_host(packed[:_HEAD]))
    if version != PACK_VERSION:
        raise ValueError(f"array is of format version {version:g}; an AttentionState is of version {PACK_VERSION}")
    if itemsize not in (4, 8) or not (ndim.is_integer() and 1 <= ndim <= min(64, packed.size - _HEAD)):
        raise ValueError(f"array is not a packed state: it says {ndim:g} dimensions of {itemsize:g} bytes an entry")
    lengths = [float(value) for value in to_host(packed[_HEAD : _HEAD + int(ndim)])]
    if not all(length.is_integer() and length >= 0 for length in lengths):
        raise ValueError(f"array is not a packed state: it says the shape {lengths}")
    shape = tuple(int(length) for length in lengths)
    if packed.size != _HEAD + len(shape) + math.prod(shape) + 2 * math.prod(shape[:-1]):
        raise ValueError(f"array has {packed.size} entries, which a packed state of the shape {lengths} has not")
    return int(itemsize), shape
