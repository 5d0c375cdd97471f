"""How far a result may be from the exact one: the bounds that the tests hold every backend to.

Errors are counted in ulp, the spacing of the result's dtype at a stated size, so one number holds for all dtypes.
"""

from typing import Any, NamedTuple

import numpy as np

from dualsoft.arrays import as_array
from dualsoft.dtypes import BF16, F16, F32, F64, SWAPPED, DType, find_format
from dualsoft.isa import LEVELS

Float = Any
"""A float or an array of them."""


class Bound(NamedTuple):
    """An error of at most ``ulp`` spacings of the dtype plus ``absolute``."""

    ulp: Float
    absolute: float


class _Precision(NamedTuple):
    digits: int
    """Bits of the significand, the hidden one included."""
    least_exponent: int
    """Of the smallest normal number 2**e."""


_PRECISION = {
    F16: _Precision(11, -14),
    BF16: _Precision(8, -126),
    F32: _Precision(24, -126),
    F64: _Precision(53, -1022),
}

GRADIENTS = ("softmax_backward", "log_softmax_backward", "logsumexp_backward", "cross_entropy_backward")
FUNCTIONS = (
    *("softmax", "log_softmax", "logsumexp", "cumulative_logsumexp", "softmax_state", "exp", "log1p", "cross_entropy"),
    *("linear_cross_entropy", "softmax_topk"),
    *GRADIENTS,
)
BACKENDS = ("cpu", "cuda", "reference")


def _code(dtype: Any) -> int:
    try:
        resolved: DType | None = None if dtype is None else np.dtype(dtype)  # None would be float64 to NumPy
    except TypeError:
        resolved = None
    known = None if resolved is None else find_format(resolved)
    if known is None or known.code & ~SWAPPED > BF16:
        raise TypeError(f"dtype must be float16, bfloat16, float32 or float64, got {dtype!r}")
    return known.code & ~SWAPPED


def unit_roundoff(dtype: Any) -> float:
    """Return the largest relative error of rounding to ``dtype``, 2**-digits.

    Examples
    --------
    >>> from dualsoft.accuracy import unit_roundoff
    >>> unit_roundoff("float32") == 2.0**-24
    True
    """
    return float(2.0 ** -_PRECISION[_code(dtype)].digits)


def ulp(value: Any, dtype: Any) -> Any:
    """Return the spacing of the numbers of ``dtype`` at ``|value|``, that of the subnormals included.

    Parameters
    ----------
    value : array_like
        float64 or wider. NaN and infinities give NaN.
    dtype : dtype
        float16, bfloat16, float32 or float64.

    Returns
    -------
    ndarray or scalar
        In the dtype of ``value``, float64 for integers.

    Examples
    --------
    >>> from dualsoft.accuracy import ulp
    >>> float(ulp(1.5, "float32")) == 2.0**-23
    True
    """
    digits, least = _PRECISION[_code(dtype)]
    size = np.abs(np.asarray(value))
    if size.dtype.kind != "f" or size.dtype.itemsize < 8:
        size = size.astype(np.float64)
    _, exponent = np.frexp(size)
    # frexp gives size = f * 2**exponent with 1/2 <= f < 1; 0 has the exponent 0 but the spacing of the subnormals.
    above = np.where(size == 0, least, np.maximum(exponent - 1, least))
    spacing = np.ldexp(np.ones_like(size), above - (digits - 1))
    return np.where(np.isfinite(size), spacing, np.nan)[()]


def bound(function: str, dtype: Any, *, n: int, spread: Float, backend: str | None = None) -> Bound:
    """Return the bound on the error of a function's result.

    Parameters
    ----------
    function : str
        "softmax", "log_softmax", "logsumexp", "cumulative_logsumexp", "softmax_state", "softmax_topk", "cross_entropy",
        "linear_cross_entropy", "softmax_backward", "log_softmax_backward", "logsumexp_backward",
        "cross_entropy_backward", "exp" or "log1p". "softmax_state" is for ``d``, "softmax_topk" for the values,
        "logsumexp" also for ``lse`` of these two; "exp" and "log1p" are the kernels inside.
    dtype : dtype
        Of the result; for "softmax_state", of the input.
    n : int
        The number of elements summed.
    spread : float or ndarray
        |s - m| with s = scale·x and m its row's maximum, for one element or the largest; with a ``scale``, plus
        |s| + |m|. Only "softmax", "softmax_topk" and "softmax_state" use it, and the gradients below.
    backend : str, optional
        What serves: "cpu", "cpu:x86_64_v3" (one ISA level), "cuda" or "reference", usable here or not; CUDA flushes
        subnormal float32 to zero.

    Returns
    -------
    Bound
        ``ulp`` and ``absolute``: ``|result - exact| <= ulp·accuracy.ulp(size, dtype) + absolute``, where size is

        - softmax, softmax_topk, exp, log1p: the exact result;
        - log_softmax: ``max(|x - m|, |y|, 1)``;
        - logsumexp, cumulative_logsumexp: ``max(|lse|, |m|)``;
        - logsumexp, for ``lse`` of a state: twice ``max(|lse|, |m|, ln d)``, and ``dtype`` is float32 for half types.
          ``d`` is rounded before its logarithm is taken, and shows where ``m`` cancels that;
        - softmax_state: the exact ``d``, and ``dtype`` is float32 for half types;
        - cross_entropy: the exact loss, all of whose terms are at least 0, plus ``2·z_loss·|lse·m|``; ``dtype`` is
          float32 for half types;
        - linear_cross_entropy: ``D·max(|loss|, |hidden|·|weight|)``, the lengths of the row and of the longest of the
          classes; ``dtype`` as above;
        - softmax_backward, with ``y`` and ``grad`` as given: ``|scale·y|·(|grad| + sum |grad·y|)``;
        - log_softmax_backward: ``|scale|·(|grad| + exp(y)·sum |grad|)``;
        - logsumexp_backward: the exact result; its spread is ``|s - lse|``, plus ``|s| + |lse|`` with a scale, plus
          ``|lse|``, at most 128, where that was given as numbers of the arithmetic's dtype and not as a state;
        - cross_entropy_backward: ``|g|·(p·|1 + 2·z_loss·lse| + target)``, with the same spread.

        Each merge adds the bound once more, for ``d`` and for ``lse``.

    Raises
    ------
    ValueError
        For a function or backend that is not known, a negative ``n``, or a ``spread`` that is negative or NaN.
    TypeError
        For a dtype that is not listed, an ``n`` that is no integer, a ``spread`` that is not real, or a ``backend``
        that is no string.

    Notes
    -----
    "exact" is float64 for half types and float32, of the input as rounded to its dtype; more than float64 for float64.

    With a ``scale``, s and m are rounded, once each: hence |s| + |m|. This is first-order: it holds while
    spread·u << 1, u the unit roundoff of the arithmetic (2**-53 for float64, else 2**-24). In the logs this is an
    absolute error, and not in the bound; the tests allow, with S the spread of the element and A the mean of the row's,
    weighted by its terms:

    - cross_entropy: 2u·A;
    - log_softmax: 2u·A at the maximum, whose size is then ``|y|`` alone; with a ``scale``, 2u·(A + S) elsewhere;
    - logsumexp: 2u·A with a ``scale``; with weights b, ``scale`` or not, ``2u·(2 + A)·sum|b·e| / |sum b·e|`` with
      ``e = exp(s - m)``: what cancels is not won back.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.accuracy.bound("softmax", "float32", n=1000, spread=2.0).ulp
    6.0
    """
    code = _code(dtype)
    if function not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(FUNCTIONS)}, got {function!r}")
    _check_sizes(n, spread)
    if backend is not None:
        _check_backend(backend)
    ulps = _ulps(function, spread)
    absolute = 0.0
    if function == "cumulative_logsumexp":
        # A running sum rounds once an element, in float64 whatever the dtype: n units of the sum are n units, absolute,
        # of its log.
        absolute += n * unit_roundoff(np.float64)
    if function in ("softmax", "softmax_topk") and backend is not None and backend.partition(":")[0] == "cuda":
        # Results below the smallest normal float32 are flushed to zero.
        absolute += 2.0**-126
    if code in (F16, BF16) and function != "softmax_state":
        # The float32 result, whose ulps are 2**(digits - 24) of the half type's, is rounded once more: half an ulp.
        ulps = 0.5 + ulps * 2.0 ** (_PRECISION[code].digits - _PRECISION[F32].digits)
    return Bound(ulps, absolute)


def attention_bound(plain: Any, reference: Any, dtype: Any) -> float:
    """Return the bound on the error of the output of attention, an absolute one for all of a call.

    It is ``2·max|plain - reference| + 2 ulp of max|reference|``: at most twice the error of the plain computation.

    Parameters
    ----------
    plain : array_like
        The plain computation in the same dtype: the scores rounded to it, their softmax in float32 (float64 for
        float64) rounded to it, the product with v in float32 (float64), rounded to it.
    reference : array_like
        The exact result, in float64 for half types and float32, in more for float64.
    dtype : dtype
        Of the result: float16, bfloat16, float32 or float64.

    Returns
    -------
    float
        Entries that are not finite are left out: there the result must be the reference's.

    Raises
    ------
    ValueError
        When the shapes differ.
    TypeError
        For a dtype that is not listed.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.accuracy.attention_bound([1.0, 2.5], [1.0, 2.0], "float32") == 1.0 + 2 * 2.0**-22
    True
    """
    wide = [_widened(array) for array in (plain, reference)]
    if wide[0].shape != wide[1].shape:
        raise ValueError(f"plain and reference must have one shape, got {wide[0].shape} and {wide[1].shape}")
    counts = np.isfinite(wide[0]) & np.isfinite(wide[1])
    first, second = (np.where(counts, array, 0) for array in wide)
    size = np.max(np.abs(second), initial=0)
    return float(2 * np.max(np.abs(first - second), initial=0) + 2 * ulp(size, dtype))


def attention_lse_bound(lse: Any, m: Any, scores: Any, dtype: Any, *, head_dim: int) -> Any:
    """Return the bound on the error of each lse of attention, an absolute one.

    It is ``2 ulp of max(|lse|, |m|) + (head_dim + 8)·u·scores``, u the unit roundoff: what rounds the scores shows.

    Parameters
    ----------
    lse, m : array_like
        The exact lse and the largest score of each row. Where they are not finite, the bound is NaN.
    scores : array_like
        The largest size of a score in the row, nothing cancelled: ``|scale|·sum |q·k| + |bias| + |alibi|``.
    dtype : dtype
        Of lse: float32 or float64.
    head_dim : int
        The number of products in a score.

    Returns
    -------
    ndarray or scalar
        float64.

    Raises
    ------
    TypeError
        For a dtype that is not listed.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.accuracy.attention_lse_bound(1.5, 1.0, 0.0, "float32", head_dim=64).item() == 2 * 2.0**-23
    True
    """
    size = np.maximum(np.abs(_widened(lse)), np.abs(_widened(m)))
    return 2 * ulp(size, dtype) + (head_dim + 8) * unit_roundoff(dtype) * _widened(scores)


def linear_gradient_bound(size: Any, dtype: Any, *, dim: int, logit: float) -> Any:
    """Return the bound on the error of the gradients of ``linear_cross_entropy``, an absolute one.

    It is ``((64 + 16·dim)·u + 2·v)·max(1, logit)·size`` and the least subnormal number, u the unit roundoff of the
    arithmetic, v that of the result: a unit a term of the products, and what their rounding leaves in exponentials.

    Parameters
    ----------
    size : array_like
        The size of the sum, nothing cancelled: ``|d| @ |weight|``, ``|d.T| @ |hidden|`` or ``sum |d|``, where
        ``|d| = |g|·(p·|1 + 2·z_loss·lse| + target)`` is that of a logit's gradient.
    dtype : dtype
        Of the result: float16, bfloat16, float32 or float64.
    dim : int
        The number of products in a logit.
    logit : float
        The largest size of a logit.

    Returns
    -------
    ndarray or scalar
        float64.

    Raises
    ------
    TypeError
        For a dtype that is not listed.

    Examples
    --------
    >>> import dualsoft
    >>> bool(dualsoft.accuracy.linear_gradient_bound(1.0, "float32", dim=4, logit=2.0) < 2.0**-15)
    True
    """
    arithmetic = unit_roundoff(np.float64 if _code(dtype) == F64 else np.float32)
    units = (64 + 16 * dim) * arithmetic + 2 * unit_roundoff(dtype)
    return units * max(1.0, logit) * _widened(size) + ulp(0.0, dtype)


def _widened(array: Any) -> np.ndarray[Any, Any]:
    given = np.asarray(array)
    return given if given.dtype == np.longdouble else given.astype(np.float64)


def _check_sizes(n: object, spread: object) -> None:
    """Refuse an ``n`` that is no length and a ``spread`` that is no distance."""
    if isinstance(n, bool | np.bool_) or not isinstance(n, int | np.integer):
        raise TypeError(f"n must be an integer, got {n!r}")
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}")
    distances = as_array(spread, "spread")
    if find_format(distances.dtype) is None and distances.dtype != np.longdouble:
        raise TypeError(f"spread must be real, got {spread!r}")
    if not (distances >= 0).all():
        raise ValueError(f"spread must be at least 0, got {spread!r}")


def _check_backend(backend: object) -> None:
    """Refuse what is no backend of dualsoft: nothing is promised for those from outside."""
    if not isinstance(backend, str):
        raise TypeError(f"backend must be a string, got {backend!r}")
    base, colon, level = backend.partition(":")
    if base not in BACKENDS or (colon and (base != "cpu" or level not in LEVELS)):
        raise ValueError(
            f"backend must be one of {', '.join(BACKENDS)} or cpu:LEVEL (of {', '.join(LEVELS)}), got {backend!r}"
        )


def _ulps(function: str, spread: Float) -> Float:
    """Return the ulps of a result that is not rounded to a half type."""
    if function in ("softmax", "softmax_topk", "softmax_state"):
        # x - m is rounded: half an ulp of itself, so |x - m| units of its exponential. A unit is at most one ulp. The
        # other 4: exp, the blocked sum (whose error does not grow with n), its reciprocal, the product.
        return 4.0 + spread
    if function in ("logsumexp_backward", "cross_entropy_backward"):
        # The exponential with its difference, what stands for lse, two factors and a sum; twice for the difference of
        # what is close.
        return 6.0 + spread
    if function in ("softmax_backward", "log_softmax_backward"):
        # The sum over the row and its terms, two factors and the difference.
        return 6.0
    if function in ("cross_entropy", "linear_cross_entropy"):
        # The sum of exponentials, its logarithm, and the sums of two terms.
        return 4.0
    if function in ("log_softmax", "logsumexp", "cumulative_logsumexp"):
        # One for the difference or sum with m, one for the logarithm of a sum of n terms that is known to a few units.
        return 2.0
    # The kernels for exp and log1p.
    return 1.0
