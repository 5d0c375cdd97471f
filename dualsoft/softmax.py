"""The softmax family: softmax, log_softmax, logsumexp and cumulative_logsumexp."""

from typing import Any

from dualsoft.arrays import Array, delivered, on_device_of, scalar_if_0d
from dualsoft.problem import cumulative_problem, logsumexp_problem, softmax_problem
from dualsoft.registry import run


def softmax(
    x: Any,
    axis: int | tuple[int, ...] | None = None,
    *,
    where: Any = None,
    scale: Any = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """Compute the softmax, ``exp(x[i]) / sum_j exp(x[j])``.

    Parameters
    ----------
    x : array_like
        float16, bfloat16, float32, float64; integers and bool are taken as float64. Any shape, strides, byte order.
    axis : None, int or tuple of ints, optional
        The axes that sum to 1 together. None, the default, is the whole array.
    where : array_like of bool, optional
        Broadcasts to the shape of ``x``. Elements that are False take no part: they give 0, whatever they hold.
    scale : real number or array_like, optional
        Multiplies ``x`` first (the inverse temperature). An array broadcasts to the shape of ``x`` with the reduced
        axes of length 1.
    dtype : dtype, optional
        The dtype of the result, and of the arithmetic if it is wider. By default that of ``x``.
    out : ndarray, optional
        Where to write the result; its shape and dtype. It may be ``x`` itself.

    Returns
    -------
    ndarray
        The shape of ``x``, all of it between 0 and 1. A NumPy scalar for a 0-d ``x``. It is ``out`` if that was given.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``x`` does not have an axis.
    ValueError
        For shapes that do not fit, an axis that comes twice, a read-only ``out``.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    A row with NaN, with +inf, or of nothing but -inf, is NaN; no other row is touched by it. A row in which nothing
    takes part is 0. Half types and float32 are computed in float32 or wider. See M. Milakov and N. Gimelshein, *Online
    normalizer calculation for softmax*, 2018 (arXiv 1805.02867). The bound on the error is ``accuracy.bound("softmax",
    ...)``.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> dualsoft.softmax(numpy.array([2.0, 1.0, 3.0, 0.5])).round(4).tolist()
    [0.2321, 0.0854, 0.6308, 0.0518]
    """
    problem = softmax_problem(x, axis, where, scale, dtype, out, False)
    result = problem[1]
    if result.size:
        run(problem)
    if out is None:
        return result if result.ndim else scalar_if_0d(result)
    return out if result is out else delivered(result, out)


def log_softmax(
    x: Any,
    axis: int | tuple[int, ...] | None = None,
    *,
    where: Any = None,
    scale: Any = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """Compute the logarithm of the softmax, ``x[i] - log sum_j exp(x[j])``.

    Parameters
    ----------
    x : array_like
        float16, bfloat16, float32, float64; integers and bool are taken as float64. Any shape, strides, byte order.
    axis : None, int or tuple of ints, optional
        The axes that are normalised together. None, the default, is the whole array.
    where : array_like of bool, optional
        Broadcasts to the shape of ``x``. Elements that are False take no part: they give -inf, whatever they hold.
    scale : real number or array_like, optional
        Multiplies ``x`` first (the inverse temperature). An array broadcasts to the shape of ``x`` with the reduced
        axes of length 1.
    dtype : dtype, optional
        The dtype of the result, and of the arithmetic if it is wider. By default that of ``x``.
    out : ndarray, optional
        Where to write the result; its shape and dtype. It may be ``x`` itself.

    Returns
    -------
    ndarray
        The shape of ``x``, in nats, nowhere above 0. A NumPy scalar for a 0-d ``x``. It is ``out`` if that was given.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``x`` does not have an axis.
    ValueError
        For shapes that do not fit, an axis that comes twice, a read-only ``out``.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    At the maximum the value is ``-log1p`` of the sum over the others, so it keeps its relative accuracy however near to
    0 it is. A row of nothing but -inf is NaN; a row with +inf is NaN at the infinities and -inf elsewhere; a NaN makes
    its row NaN. A row in which nothing takes part is -inf.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> dualsoft.log_softmax(numpy.array([1000.0, 960.0])).tolist()
    [-4.248354255291589e-18, -40.0]
    """
    problem = softmax_problem(x, axis, where, scale, dtype, out, True)
    result = problem[1]
    if result.size:
        run(problem)
    if out is None:
        return result if result.ndim else scalar_if_0d(result)
    return out if result is out else delivered(result, out)


def logsumexp(
    a: Any,
    axis: int | tuple[int, ...] | None = None,
    b: Any = None,
    keepdims: bool = False,
    return_sign: bool = False,
    *,
    where: Any = None,
    scale: Any = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """Compute the log of a sum of exponentials, ``log sum_i b[i]·exp(a[i])``.

    Parameters
    ----------
    a : array_like
        float16, bfloat16, float32, float64, complex64, complex128; integers and bool are taken as float64.
    axis : None, int or tuple of ints, optional
        The axes to sum over. None, the default, is all of them.
    b : array_like, optional
        Weights, which broadcast together with ``a`` and may be negative. An element of weight 0 is left out, whatever
        it holds.
    keepdims : bool, optional
        Whether the reduced axes stay, with length 1.
    return_sign : bool, optional
        Whether to return the sign of the sum too. Without it, the log of a negative sum is NaN.
    where : array_like of bool, optional
        Broadcasts to the shape of ``a`` and ``b`` together. Elements that are False take no part, whatever they hold.
    scale : real number or array_like, optional
        Multiplies ``a`` first (the inverse temperature). An array broadcasts to the input's shape with the reduced axes
        of length 1.
    dtype : dtype, optional
        The dtype of the result, and of the arithmetic if it is wider. By default that of ``a`` and ``b`` by
        ``numpy.result_type``, float64 for integers.
    out : ndarray, optional
        Where to write the (log of the) result; its shape and dtype.

    Returns
    -------
    res : ndarray or scalar
        In nats; with ``return_sign``, the log of the absolute value of the sum. A NumPy scalar where everything is
        reduced.
    sgn : ndarray or scalar
        With ``return_sign``: 1, 0 or -1 (NaN for NaN), or the phase of a complex sum.

    Raises
    ------
    numpy.exceptions.AxisError
        When the input does not have an axis.
    ValueError
        For shapes that do not fit, an axis that comes twice, a read-only ``out``.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    A sum over nothing is -inf, with the sign 0; +inf gives +inf; a NaN makes its own row NaN. Complex input is served
    by the reference backend, always; the imaginary part of its result is in (-pi, pi].

    Examples
    --------
    >>> import dualsoft, numpy
    >>> round(float(dualsoft.logsumexp(numpy.array([1000.0, 1000.0])) - 1000), 6)
    0.693147
    >>> dualsoft.logsumexp([0.0, 0.0], b=[1.0, -1.0], return_sign=True)[1].item()
    0.0
    """
    problem = logsumexp_problem(a, axis, b, keepdims, return_sign, where, scale, dtype, out)
    result, sign = problem.out, problem.sign
    if problem.x.size:
        run(problem)
    else:
        with on_device_of(result):
            result[...] = -float("inf")
            if sign is not None:
                sign[...] = 0
    log = _reduced(result, problem.axes, keepdims) if out is None else delivered(result, out)
    return log if sign is None else (log, _reduced(sign, problem.axes, keepdims))


def cumulative_logsumexp(
    x: Any, axis: int = -1, *, include_initial: bool = False, dtype: Any = None, out: Any = None
) -> Any:
    """Compute the running log of a sum of exponentials, ``y[j] = log sum_{i <= j} exp(x[i])``.

    Parameters
    ----------
    x : array_like
        float16, bfloat16, float32, float64; integers and bool are taken as float64. At least one dimension.
    axis : int, optional
        The axis to run along, by default the last.
    include_initial : bool, optional
        Whether the empty sum comes first: -inf, which makes the axis one longer.
    dtype : dtype, optional
        The dtype of the result, and of the arithmetic if it is wider. By default that of ``x``.
    out : ndarray, optional
        Where to write the result; its shape and dtype. It may be ``x`` itself.

    Returns
    -------
    ndarray
        The shape of ``x``, one longer along the axis with ``include_initial``; in nats. It is ``out`` if that was
        given.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``x`` does not have the axis.
    ValueError
        For an ``out`` that does not fit or is read-only.
    TypeError
        For dtypes and kinds of array that are not taken, and an axis that is not an integer.

    Notes
    -----
    From a NaN on, a row is NaN; else from a +inf on, it is +inf. Before the first element above -inf, it is -inf.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> numpy.exp(dualsoft.cumulative_logsumexp(numpy.log([1.0, 2.0, 3.0]))).round(12).tolist()
    [1.0, 3.0, 6.0]
    """
    problem = cumulative_problem(x, axis, include_initial, dtype, out)
    result = problem.out
    if not problem.x.size:
        with on_device_of(result):
            result[...] = -float("inf")
    else:
        run(problem)
    return result if out is None else delivered(result, out)


def _reduced(kept: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    """Return a reduction with or without its axes of length 1; a NumPy scalar where no axis is left."""
    reduced = kept if keepdims else kept.squeeze(axes)
    return reduced if reduced.ndim else scalar_if_0d(reduced)
