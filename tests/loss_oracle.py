"""Losses and gradients by their formulas in a wider type, independent of the package, as `oracle` has the family."""

from typing import Any, NamedTuple

import numpy as np
import oracle
from oracle import Array, Expected, Rows

LOSSY = 128  # units that a given lse may cost: beyond, the row's own takes its place


class Target(NamedTuple):
    """What a loss compares a row with, as rows."""

    weight: Array  # (..., n): smoothed
    counts: Array  # (..., 1)
    mass: Array  # (..., 1)


def target(
    x: Any, axis: int, labels: Array, wide: Any, ignore_index: int | None = None, smoothing: float = 0
) -> Target:
    shape = np.shape(x)
    axes = oracle.axes_of(axis, len(shape))
    n = shape[axes[0]]
    if labels.dtype.kind == "f" or labels.dtype.name == "bfloat16":
        weight = oracle.to_rows(oracle.widen(labels, wide), axes)
        counts = np.ones((*weight.shape[:-1], 1), bool)
    else:
        index = oracle.to_rows(np.expand_dims(labels, axes), axes)
        counts = np.ones(index.shape, bool) if ignore_index is None else index != ignore_index
        weight = (np.arange(n) == np.where(counts, index, -1)).astype(wide)
    mass = (1 - smoothing) * weight.sum(-1, keepdims=True) + smoothing
    return Target((1 - wide(smoothing)) * weight + wide(smoothing) / n, counts, mass)


def pair(r: Rows) -> tuple[Array, Array]:
    """m and log d of each row."""
    with np.errstate(all="ignore"):
        log_d = np.log1p(np.where(np.isposinf(r.m) & ~np.isnan(r.rest), np.inf, r.rest))
    return r.m, np.where(np.isneginf(r.m), np.nan, log_d)


def cross_entropy(x: Any, axis: int, wide: Any, t: Target, z_loss: float = 0) -> Expected:
    """The loss of each row, the axis kept."""
    r = oracle.rows_of(x, axis, wide)
    m, log_d = pair(r)
    with np.errstate(all="ignore"):
        distance = log_d + (m - r.s)
        loss = np.where(t.weight == 0, 0, t.weight * distance).sum(-1, keepdims=True)
        loss = np.where(np.isnan(log_d), np.nan, loss)
        size = np.abs(loss)
        if z_loss:
            loss = loss + z_loss * (m + log_d) ** 2
            size = np.abs(loss) + 2 * z_loss * np.abs((m + log_d) * m)
    loss, size = np.where(t.counts, loss, 0), np.where(t.counts, size, 0)
    return oracle.pack(x, axis, r, loss, size, oracle.mean_spread(r))


def total(each: Expected, counts: Array, reduction: str) -> Expected:
    """The sum or the mean of losses: the bound of a row's loss is that of the largest total of sizes."""
    share = np.count_nonzero(counts) if reduction == "mean" else 1
    with np.errstate(all="ignore"):
        value = np.asarray(each.value.sum() / each.value.dtype.type(share))
        size = np.asarray(each.magnitude.sum() / share)
    return Expected(value, size, np.asarray(each.spread.max(initial=0)), each.n)


def lost_in_lse(r: Rows, wide: Any, roundoff: float) -> Array:
    """Units of the arithmetic that a given lse with this relative error costs an exponential."""
    m, log_d = pair(r)
    unit = 2.0**-53 if wide is np.longdouble else 2.0**-24
    with np.errstate(all="ignore"):
        lost = np.minimum(np.abs(m + log_d) * (roundoff / unit), LOSSY)
    return np.where(np.isfinite(lost), lost, 0)


def exponents(r: Rows) -> tuple[Array, Array, Array]:
    """log p and p of each element, and the units that rounding loses in p."""
    m, log_d = pair(r)
    with np.errstate(all="ignore"):
        log_p = (r.s - m) - log_d
        p = np.exp(log_p)
        spread = np.abs(log_p) + (np.abs(r.s) + np.abs(m) if r.scaled else 0)
    return log_p, p, np.where(np.isfinite(spread), spread, 0)


def cross_entropy_backward(
    x: Any, axis: int, wide: Any, grad: Array, t: Target, z_loss: float = 0, roundoff: float = 0
) -> Expected:
    """The gradient; ``grad`` as rows (..., 1), of a mean already divided."""
    r = oracle.rows_of(x, axis, wide)
    m, log_d = pair(r)
    log_p, p, spread = exponents(r)
    with np.errstate(all="ignore"):
        more = 2 * z_loss * (m + log_d) if z_loss else 0
        whole = (t.weight == 1) & (t.mass == 1)
        inner = np.where(whole, np.expm1(log_p), p * t.mass - t.weight) + p * more
        value = np.where(t.counts, grad * inner, 0)
        size = np.abs(grad) * (p * np.abs(t.mass + more) + np.abs(t.weight))
    size = np.where(t.counts & np.isfinite(size), size, 0)
    return oracle.pack(x, axis, r, value, size, spread + lost_in_lse(r, wide, roundoff))


def logsumexp_backward(
    x: Any, axis: Any, wide: Any, grad: Array, where: Any = None, scale: Any = None, b: Any = None, roundoff: float = 0
) -> Expected:
    """The gradient; ``grad`` as rows (..., 1). With weights, from the logarithm of their sum's absolute value."""
    x = np.asarray(x)
    axes = oracle.axes_of(axis, x.ndim)
    r = oracle.rows_of(x, axis, wide, where, scale, b)
    with np.errstate(all="ignore"):
        if r.weight is None:
            _, p, spread = exponents(r)
            p = np.where(np.isposinf(r.m), np.where(r.s == np.inf, np.nan, np.where(np.isnan(r.s), np.nan, 0)), p)
            spread = spread + lost_in_lse(r, wide, roundoff)
        else:
            all_of = np.where(r.take, r.weight * r.e, 0).sum(-1, keepdims=True)
            p = r.weight * r.e / np.abs(all_of) * np.sign(all_of)
            lse = r.m + np.log(np.abs(all_of))
            lost = np.where(r.take, np.abs(r.weight * r.e), 0).sum(-1, keepdims=True) / np.abs(all_of)
            spread = np.abs(r.s - lse) + np.abs(lse) + (4 + 2 * oracle.mean_spread(r)) * lost
            spread = spread + (np.abs(r.s) + np.abs(lse) if r.scaled else 0)
        factor = grad * (1 if scale is None else scale_rows(scale, x, axes, wide))
        value = np.where(r.take, factor * p, 0)
        value = np.where(np.isneginf(r.m) & ~np.isnan(r.rest), 0, value)
    spread = np.where(np.isfinite(spread), spread, 0)
    return oracle.pack(x, axis, r, value, np.abs(value), spread)


def scale_rows(scale: Any, x: Array, axes: tuple[int, ...], wide: Any) -> Array:
    kept = [1 if k in axes else n for k, n in enumerate(x.shape)]
    return oracle.to_rows(np.broadcast_to(oracle.widen(scale, wide), kept), axes)


def softmax_backward(
    grad: Array, y: Array, axis: Any, wide: Any, log: bool, where: Any = None, scale: Any = None
) -> Expected:
    """The gradient of softmax or log_softmax from the result y."""
    axes = oracle.axes_of(axis, y.ndim)
    r = oracle.rows_of(y, axis, wide)
    s, g = r.s, oracle.to_rows(oracle.widen(np.broadcast_to(grad, y.shape), wide), axes)
    take = np.ones(s.shape, bool) if where is None else oracle.to_rows(np.broadcast_to(where, y.shape), axes)
    factor = 1 if scale is None else scale_rows(scale, y, axes, wide)
    with np.errstate(all="ignore"):
        if log:
            e = np.exp(s)
            value = factor * (g - e * np.where(take, g, 0).sum(-1, keepdims=True))
            size = np.abs(factor) * (np.abs(g) + e * np.where(take, np.abs(g), 0).sum(-1, keepdims=True))
        else:
            products = np.where(take, g * s, 0)
            value = factor * s * (g - products.sum(-1, keepdims=True))
            size = np.abs(factor * s) * (np.abs(g) + np.abs(products).sum(-1, keepdims=True))
    value, size = np.where(take, value, 0), np.where(take & np.isfinite(size), size, 0)
    return oracle.pack(y, axis, r, value, size, np.zeros_like(size))
