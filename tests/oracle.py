"""The softmax family by its formulas, in two passes of a wider type: what every backend is compared with.

Independent of the package on purpose: the reference backend is held to it as well. Rows are the reduced axes moved
to the end and flattened. Arithmetic that a backend does in float32 is done here in float64, its float64 in longdouble.
"""

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Expected(NamedTuple):
    """A right answer and what its tolerance depends on, all of the answer's shape."""

    value: Array  # exact to the wider type
    magnitude: Array  # the ulp that counts is that of this value
    spread: Array  # units of roundoff that terms have lost: |s - m|, plus 2 (|s| + |m|) where a scale was applied
    n: int  # row length


class Rows(NamedTuple):
    s: Array  # (..., n): scale * x
    take: Array  # (..., n): takes part
    weight: Array | None  # (..., n)
    m: Array  # (..., 1): largest s that takes part, NaN aside
    e: Array  # (..., n): exp(s - m), 0 where left out
    rest: Array  # (..., 1): sum of e without one largest element
    scaled: bool


def wide_type(*dtypes: Any) -> Any:
    """longdouble where the contract has float64 arithmetic, else float64."""
    return np.longdouble if any(d.kind in "iub" or d.name == "float64" for d in map(np.dtype, dtypes)) else np.float64


def widen(x: Any, wide: Any) -> Array:
    return np.asarray(x).astype(np.float64).astype(wide)


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    return tuple(a % ndim for a in (axis if isinstance(axis, tuple) else (axis,)))


def to_rows(a: Array, axes: tuple[int, ...]) -> Array:
    kept = [k for k in range(a.ndim) if k not in axes]
    n = int(np.prod([a.shape[k] for k in axes], dtype=np.int64))
    return a.transpose((*kept, *axes)).reshape((*[a.shape[k] for k in kept], n))


def from_rows(r: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Back to ``shape``; rows of length 1 (reductions) leave axes of length 1."""
    kept = [k for k in range(len(shape)) if k not in axes]
    inner = [shape[k] if r.shape[-1] != 1 else 1 for k in axes]
    moved = r.reshape((*[shape[k] for k in kept], *inner))
    return moved.transpose(tuple(np.argsort([*kept, *axes])))


def rows_of(x: Any, axis: Any, wide: Any, where: Any = None, scale: Any = None, b: Any = None) -> Rows:
    x = np.asarray(x)
    axes = axes_of(axis, x.ndim)
    with np.errstate(all="ignore"):
        s = widen(x, wide)
        if scale is not None:
            s = s * widen(scale, wide)
        s = to_rows(s, axes)
        take = np.ones(s.shape, bool) if where is None else to_rows(np.broadcast_to(where, x.shape), axes)
        weight = None if b is None else to_rows(np.broadcast_to(widen(b, wide), x.shape), axes)
        if weight is not None:
            take = take & (weight != 0)
        visible = np.where(take & ~np.isnan(s), s, -np.inf)
        m = visible.max(axis=-1, keepdims=True, initial=-np.inf)
        # exp(s) of a finite element may overflow beside an infinite one; next to +inf it is nothing
        e = np.where(np.isposinf(m) & ~np.isnan(s), np.where(s == np.inf, np.inf, 0), np.exp(s - shift(m)))
        e = np.where(take, e, 0)
        others = e.copy()
        if s.shape[-1]:
            np.put_along_axis(others, visible.argmax(-1)[..., None], 0, -1)
            lost_nan = np.isnan(e).any(-1, keepdims=True)
            rest = np.where(lost_nan, np.nan, others.sum(-1, keepdims=True))
        else:
            rest = np.zeros(m.shape, wide)
    return Rows(s, take, weight, m, e, rest, scale is not None)


def shift(m: Array) -> Array:
    return np.where(np.isfinite(m), m, 0)


def spread_of(r: Rows) -> Array:
    with np.errstate(all="ignore"):
        # the products of a scale with the element and with the maximum are rounded once each
        spread = np.abs(r.s - shift(r.m)) + (np.abs(r.s) + np.abs(shift(r.m)) if r.scaled else 0)
    return np.where(np.isfinite(spread) & r.take, spread, 0)


def mean_spread(r: Rows) -> Array:
    """What rounding s - m costs a sum of exponentials, relatively: the spread weighted by the terms."""
    e = np.where(np.isfinite(r.e), r.e, 0) * np.abs(r.weight if r.weight is not None else 1)
    # the largest term has s - m = 0 exactly, so it adds nothing without a scale
    with np.errstate(all="ignore"):
        mean = (e * spread_of(r)).sum(-1, keepdims=True) / e.sum(-1, keepdims=True)
    return np.where(np.isfinite(mean), mean, 0)


def softmax(x: Any, axis: Any, wide: Any, where: Any = None, scale: Any = None) -> Expected:
    r = rows_of(x, axis, wide, where, scale)
    with np.errstate(all="ignore"):
        y = r.e / r.e.sum(-1, keepdims=True)
    y = np.where(np.isposinf(r.m), np.nan, y)
    y = np.where(r.take, y, 0)
    return pack(x, axis, r, y, np.abs(y), spread_of(r))


def log_softmax(x: Any, axis: Any, wide: Any, where: Any = None, scale: Any = None) -> Expected:
    r = rows_of(x, axis, wide, where, scale)
    with np.errstate(all="ignore"):
        t = r.s - r.m  # NaN where both are infinite
        y = t - np.log1p(r.rest)
        y = np.where(np.isposinf(r.m) & ~np.isnan(r.rest), np.where(r.s == np.inf, np.nan, -np.inf), y)
        y = np.where(np.isnan(r.e).any(-1, keepdims=True), np.nan, y)
        y = np.where(r.take, y, -np.inf)
        # at the maximum the value is -log1p(rest): relative accuracy, but for what the rest lost in s - m
        at_max = (r.s == r.m) & np.isfinite(r.m)
        magnitude = np.where(at_max, np.abs(y), np.maximum(np.maximum(np.abs(t), np.abs(y)), 1))
        spread = np.where(at_max & (r.m != 0) | r.scaled, mean_spread(r), 0)
        spread = np.where(r.scaled & ~at_max, spread + spread_of(r), spread)
    return pack(x, axis, r, y, magnitude, spread)


def logsumexp(
    a: Any, axis: Any, wide: Any, where: Any = None, scale: Any = None, b: Any = None
) -> tuple[Expected, Array]:
    """The expected logarithm of |sum| and the sign of the sum, both with the reduced axes kept."""
    r = rows_of(a, axis, wide, where, scale, b)
    with np.errstate(all="ignore"):
        if r.weight is None:
            value = shift(r.m) + np.log1p(r.rest)
            value = np.where(np.isfinite(r.m) | np.isnan(r.rest), value, r.m)
            sign = np.where(np.isnan(value), value, np.where(value == -np.inf, 0, 1))
            magnitude = np.where(r.m == 0, np.abs(value), np.maximum(np.abs(value), np.abs(r.m)))
            spread = mean_spread(r) if r.scaled else np.zeros_like(value)
        else:
            terms = np.where(r.take, r.weight * r.e, 0)
            total = terms.sum(-1, keepdims=True)
            sign = np.sign(total)
            value = shift(r.m) + np.log(np.abs(total))
            magnitude = np.maximum(np.abs(value), np.abs(shift(r.m)))
            # A weighted term is off by 3.5 units (2 of exp, 1 of its product with the weight, half of the sum) and its
            # |s - m|; the sum keeps the absolute errors of its terms however much of them cancels, and its logarithm
            # turns relative error into absolute. Spread counts in 2 units.
            lost = np.where(total == 0, 1, np.abs(terms).sum(-1, keepdims=True) / np.abs(total))
            spread = (2 + mean_spread(r)) * np.where(np.isnan(lost), 1, lost)  # the sum is special, and so exact
    want = pack(a, axis, r, value, magnitude, spread)
    shape = np.shape(a)
    return want, from_rows(sign, shape, axes_of(axis, len(shape)))


def state(x: Any, axis: Any, wide: Any, where: Any = None, scale: Any = None) -> tuple[Expected, Expected, Expected]:
    """The expected m, d and lse, the reduced axes kept."""
    r = rows_of(x, axis, wide, where, scale)
    d = np.where(np.isposinf(r.m) & ~np.isnan(r.rest), np.inf, r.e.sum(-1, keepdims=True))
    zero = np.zeros_like(r.m)
    lse, _ = logsumexp(x, axis, wide, where, scale)
    # d is rounded before its logarithm is taken, which m may cancel: twice the bound of logsumexp, of the larger term
    shape = np.shape(x)
    log_d = from_rows(np.log1p(np.where(r.rest > 0, r.rest, 0)), shape, axes_of(axis, len(shape)))
    return (
        # without a scale m is one of the elements: exact
        pack(x, axis, r, r.m, np.abs(shift(r.m)) if r.scaled else zero, np.abs(shift(r.m)) if r.scaled else zero),
        pack(x, axis, r, d, np.abs(d), mean_spread(r)),
        lse._replace(magnitude=2 * np.maximum(lse.magnitude, log_d)),
    )


def cumulative_logsumexp(x: Any, axis: int, wide: Any, include_initial: bool = False) -> Expected:
    s = widen(x, wide)
    with np.errstate(all="ignore"):
        y = np.logaddexp.accumulate(s, axis=axis) if s.size else s
        m = np.maximum.accumulate(s, axis=axis) if s.size else s
    if include_initial:
        first = [1 if k == axis % s.ndim else length for k, length in enumerate(s.shape)]
        y, m = (np.concatenate([np.full(first, -np.inf, wide), a], axis) for a in (y, m))
    magnitude = np.where(m == 0, np.abs(y), np.maximum(np.abs(y), np.abs(m)))
    return Expected(y, magnitude, np.zeros_like(y), max(s.shape[axis], 1))


def ranking(x: Any, axis: int, where: Any = None, scale: Any = None) -> Array:
    """The indices in the order of softmax_topk, by a key per element that Python sorts: NaN, falling, -inf, hidden."""
    moved = np.moveaxis(widen(x, np.float64), axis, -1)
    visible = np.moveaxis(np.broadcast_to(True if where is None else where, np.shape(x)), axis, -1)
    factor = np.moveaxis(np.broadcast_to(1.0 if scale is None else widen(scale, np.float64), np.shape(x)), axis, -1)
    out = np.empty(moved.shape, np.int64)
    for at in np.ndindex(moved.shape[:-1]):
        with np.errstate(all="ignore"):
            product, order = moved[at] * factor[at], moved[at] * np.sign(factor[at])
        keys = [
            (3, 0.0) if not seen else (0, 0.0) if p != p else (2, 0.0) if o == -np.inf else (1, -o)
            for seen, p, o in zip(visible[at], product, order, strict=True)
        ]
        out[at] = sorted(range(len(keys)), key=keys.__getitem__)
    return np.moveaxis(out, -1, axis)


def pack(x: Any, axis: Any, r: Rows, value: Array, magnitude: Array, spread: Array) -> Expected:
    shape = np.shape(x)
    axes = axes_of(axis, len(shape))
    full = (from_rows(np.broadcast_to(a, value.shape), shape, axes) for a in (value, magnitude, spread))
    return Expected(*full, max(r.s.shape[-1], 1))
