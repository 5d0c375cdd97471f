"""The gradients of softmax, log_softmax and logsumexp."""

from typing import Any

from dualsoft.arrays import delivered, scalar_if_0d
from dualsoft.loss_problem import LossProblem, logsumexp_gradient_problem, softmax_gradient_problem
from dualsoft.registry import run
from dualsoft.state import pair_or_array


def softmax_backward(
    grad: Any,
    y: Any,
    axis: int | tuple[int, ...] | None = None,
    *,
    where: Any = None,
    scale: Any = None,
    out: Any = None,
) -> Any:
    """Compute the gradient of ``softmax`` from its result, ``scale·y[i]·(grad[i] - sum_j grad[j]·y[j])``.

    Parameters
    ----------
    grad : array_like
        The gradient of ``y``; real, broadcasts to its shape.
    y : array_like
        What ``softmax`` returned. Any shape, strides, byte order.
    axis, where, scale
        As they were given to ``softmax``.
    out : ndarray, optional
        Where to write the result; its shape and dtype. It may be ``y`` or ``grad`` itself.

    Returns
    -------
    ndarray
        The shape and dtype of ``y`` (float64 for integers). It is ``out`` if that was given.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``y`` does not have an axis.
    ValueError
        For shapes that do not fit, an axis that comes twice, a read-only ``out``.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    Elements that ``where`` leaves out get the gradient 0, whatever they and their ``grad`` hold. The bound on the error
    is ``accuracy.bound("softmax_backward", ...)``.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.softmax_backward([1.0, 0.0], [0.25, 0.75]).tolist()
    [0.1875, -0.1875]
    """
    return gradient(softmax_gradient_problem(grad, y, axis, where, scale, out, False), out)


def log_softmax_backward(
    grad: Any,
    y: Any,
    axis: int | tuple[int, ...] | None = None,
    *,
    where: Any = None,
    scale: Any = None,
    out: Any = None,
) -> Any:
    """Compute the gradient of ``log_softmax`` from its result, ``scale·(grad[i] - exp(y[i])·sum_j grad[j])``.

    Parameters
    ----------
    grad : array_like
        The gradient of ``y``; real, broadcasts to its shape.
    y : array_like
        What ``log_softmax`` returned. Any shape, strides, byte order.
    axis, where, scale
        As they were given to ``log_softmax``.
    out : ndarray, optional
        Where to write the result; its shape and dtype. It may be ``y`` or ``grad`` itself.

    Returns
    -------
    ndarray
        The shape and dtype of ``y`` (float64 for integers). It is ``out`` if that was given.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``y`` does not have an axis.
    ValueError
        For shapes that do not fit, an axis that comes twice, a read-only ``out``.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    Elements that ``where`` leaves out get the gradient 0, whatever they and their ``grad`` hold. The bound on the error
    is ``accuracy.bound("log_softmax_backward", ...)``.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> dualsoft.log_softmax_backward([1.0, 0.0], numpy.log([0.25, 0.75])).round(12).tolist()
    [0.75, -0.75]
    """
    return gradient(softmax_gradient_problem(grad, y, axis, where, scale, out, True), out)


def logsumexp_backward(
    grad: Any,
    a: Any,
    lse: Any,
    axis: int | tuple[int, ...] | None = None,
    *,
    b: Any = None,
    sign: Any = None,
    where: Any = None,
    scale: Any = None,
    out: Any = None,
) -> Any:
    """Compute the gradient of ``logsumexp``, ``grad·scale·sign·b[i]·exp(scale·a[i] - lse)``.

    Parameters
    ----------
    grad : real number or array_like
        The gradient of ``lse``; broadcasts to its shape.
    a : array_like
        float16, bfloat16, float32, float64; integers and bool are taken as float64. Any shape, strides, byte order.
    lse : array_like or SoftmaxState
        What ``logsumexp`` returned, or the state of the rows; the shape of ``a`` without the axes.
    axis, where, scale
        As they were given to ``logsumexp``.
    b : array_like, optional
        The weights that were given to ``logsumexp``; they broadcast to the shape of ``a``.
    sign : array_like, optional
        The sign that ``logsumexp`` returned beside ``lse``; 1 by default.
    out : ndarray, optional
        Where to write the result; its shape and dtype. It may be ``a`` itself.

    Returns
    -------
    ndarray
        The shape and dtype of ``a`` (float64 for integers). It is ``out`` if that was given.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``a`` does not have an axis.
    ValueError
        For shapes that do not fit, an axis that comes twice, a read-only ``out``.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    A row whose ``lse`` is -inf gets the gradient 0; so do elements of weight 0, and those that ``where`` leaves out,
    whatever they hold. In a row with +inf the gradient is NaN at the infinities and 0 elsewhere. Where ``lse`` was
    rounded so far that the gradient would show it (it is large, or of a half type), the row's own takes its place,
    unless that differs by more than rounding. The bound on the error is ``accuracy.bound("logsumexp_backward", ...)``.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> a = numpy.log([1.0, 3.0])
    >>> dualsoft.logsumexp_backward(1.0, a, dualsoft.logsumexp(a)).round(12).tolist()
    [0.25, 0.75]
    """
    problem = logsumexp_gradient_problem(grad, a, pair_or_array(lse), axis, b, sign, where, scale, out)
    return gradient(problem, out)


def gradient(problem: LossProblem, out: Any) -> Any:
    """Run the problem of a gradient and return it: ``out``, if that was given, however the problem was computed."""
    result = problem.out
    if result.size:
        run(problem)
    if out is None:
        return scalar_if_0d(result)
    return delivered(result, out)
