"""The one tolerance of the tests: ``dualsoft.accuracy.bound``, held against the ulp of the magnitude that counts.

Attention has its own: no worse than twice the plain computation in the same dtype.
"""

from typing import Any

import numpy as np
from attention_oracle import Answer
from oracle import Array, Expected

from dualsoft import accuracy

# dtype name -> (bits of the significand, exponent of the least normal number)
FORMATS = {"float16": (11, -14), "bfloat16": (8, -126), "float32": (24, -126), "float64": (53, -1022)}


def ulp(value: Any, dtype: Any) -> Array:
    """Distance of neighbours at |value|, by the exponent alone: it goes on shrinking below the normal numbers."""
    bits, _ = FORMATS[np.dtype(dtype).name]
    value = np.abs(np.asarray(value))
    exponent = np.frexp(np.where(np.isfinite(value), value, 0))[1]
    return np.where(value == 0, 0, np.ldexp(np.ones(value.shape, value.dtype), exponent - bits))


def tolerance(function: str, want: Expected, dtype: Any, backend: str | None = None) -> Array:
    """The absolute error allowed at each element.

    A subnormal result is rounded to a spacing that no longer follows its size, in the exponential and again in the
    division: one spacing is added for that, and half of the arithmetic's for each term of a sum. The bound of the
    functions that return logarithms has no spread; the oracle gives one only where rounding s must show, as an absolute
    error: under a scale, with weights, and at log_softmax's maximum, whose value may be tiny.
    """
    bits, least = FORMATS[np.dtype(dtype).name]
    spread = want.spread.astype(np.float64)
    ulps, absolute = accuracy.bound(function, dtype, n=want.n, spread=spread, backend=backend)
    if function in ("log_softmax", "logsumexp", "cross_entropy"):
        absolute = absolute + spread * 2.0 ** (-52 if want.value.dtype == np.longdouble else -23)
    if function != "softmax":
        absolute = absolute + want.n * 2.0 ** (-1074 if want.value.dtype == np.longdouble else -150)
    return ulps * ulp(want.magnitude, dtype) + absolute + 2.0 ** (least - bits + 1)


def relative(function: str, dtype: Any, *, n: int = 1, spread: float = 0.0) -> float:
    """The bound as a share of the magnitude that counts: an ulp is at most two roundoffs of it."""
    return accuracy.bound(function, dtype, n=n, spread=spread).ulp * 2 * accuracy.unit_roundoff(dtype)


def mismatch(
    function: str, got: Any, want: Expected, dtype: Any, backend: str | None = None, precision: Any = None
) -> str | None:
    """What is wrong with ``got``, or None: shape, dtype, special values and distance.

    ``precision`` is the dtype whose ulp counts where that is not the result's own.
    """
    got = np.asarray(got)
    if got.shape != want.value.shape:
        return f"shape {got.shape}, expected {want.value.shape}"
    if got.dtype != np.dtype(dtype):
        return f"dtype {got.dtype}, expected {np.dtype(dtype)}"
    if not got.size:
        return None
    precision = dtype if precision is None else precision
    value = want.value
    wide = got.astype(np.float64).astype(value.dtype)
    with np.errstate(all="ignore"):
        rounded = value.astype(precision).astype(np.float64).astype(value.dtype)
        limit = tolerance(function, want, precision, backend)
        error = np.abs(wide - value)
        good = (error <= limit) | (wide == rounded) | (np.isnan(wide) & np.isnan(value))
    if good.all():
        return None
    worst = np.unravel_index(np.argmax(np.where(good, -1, np.nan_to_num(error / limit, nan=np.inf))), good.shape)
    at = tuple(int(k) for k in worst)
    return (
        f"{int((~good).sum())} of {got.size} wrong, worst at {at}: got {wide[worst]:.9g}, expected {value[worst]:.9g},"
        f" error {error[worst]:.3g}, allowed {limit[worst]:.3g} ({function}, n={want.n},"
        f" spread {want.spread[worst]:.3g})"
    )


def attention_tolerance(want: Answer) -> tuple[float, Array]:
    """The absolute errors allowed: one for all of ``out``, and one for each ``lse``."""
    lse = accuracy.attention_lse_bound(want.lse, want.m, want.size, want.lse_dtype, head_dim=want.head_dim)
    return accuracy.attention_bound(want.plain, want.out, want.dtype), np.where(np.isfinite(want.lse), lse, 0)


def far_from(what: str, got: Any, value: Array, limit: Any, dtype: Any) -> str | None:
    got = np.asarray(got)
    if got.shape != value.shape:
        return f"{what}: shape {got.shape}, expected {value.shape}"
    if got.dtype != np.dtype(dtype):
        return f"{what}: dtype {got.dtype}, expected {np.dtype(dtype)}"
    with np.errstate(all="ignore"):
        wide = got.astype(np.float64).astype(value.dtype)
        error = np.abs(wide - value)
        good = (error <= limit) | (wide == value) | (np.isnan(wide) & np.isnan(value))
    if good.all():
        return None
    limit = np.broadcast_to(limit, value.shape)
    worst = np.unravel_index(np.argmax(np.where(good, -1, np.nan_to_num(error, nan=np.inf))), good.shape)
    at = tuple(int(k) for k in worst)
    return (
        f"{what}: {int((~good).sum())} of {got.size} wrong, worst at {at}: got {wide[worst]:.9g}, "
        f"expected {value[worst]:.9g}, error {error[worst]:.3g}, allowed {limit[worst]:.3g}"
    )


def attention_mismatch(out: Any, lse: Any, want: Answer, more: float = 0) -> str | None:
    """What is wrong with the answer of a call, or None; ``lse`` None is not looked at.

    ``more`` is what ``out`` may be off by beyond a call's own error: what merging states rounds.
    """
    out_limit, lse_limit = attention_tolerance(want)
    why = far_from("out", out, want.out, out_limit + more, want.dtype)
    if why is None and lse is not None:
        why = far_from("lse", lse, want.lse, lse_limit, want.lse_dtype)
    return None if why is None else f"{why} (plain is off by {want.plain_error:.3g})"
