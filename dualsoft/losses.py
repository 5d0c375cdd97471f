"""Cross-entropy and its gradient: fused with the softmax, whose probabilities are never stored."""

import math
from typing import Any

from dualsoft.arguments import reduced_shape
from dualsoft.arrays import Array, on_device_of, scalar_if_0d
from dualsoft.gradients import gradient
from dualsoft.loss_problem import CrossEntropyProblem, cross_entropy_gradient_problem, cross_entropy_problem
from dualsoft.registry import run
from dualsoft.state import pair_or_array


def cross_entropy(
    logits: Any,
    labels: Any,
    axis: int = -1,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    return_lse: bool = False,
) -> Any:
    """Compute the cross-entropy of softmax(logits), ``(1 - e)·(lse - x[y]) + e·mean(lse - x) + z·lse²`` a row.

    ``e`` is ``label_smoothing``, ``z`` is ``z_loss``, ``y`` the label. With probabilities ``t`` as labels, ``lse -
    x[y]`` is ``sum_j t[j]·(lse - x[j])``.

    Parameters
    ----------
    logits : array_like
        float16, bfloat16, float32, float64; integers and bool are taken as float64. Any shape, strides, byte order.
    labels : array_like
        Class indices: integers of the shape of ``logits`` without ``axis``, from 0 to the number of classes. Or
        probabilities: floating-point, of the shape of ``logits``. Indices may be NumPy's beside CuPy logits.
    axis : int, optional
        The axis of the classes, by default the last.
    ignore_index : int, optional
        The label of rows that do not count, inside the range of classes or not: their loss is 0, whatever they hold.
        Only indices can be ignored.
    label_smoothing : float, optional
        Within [0, 1]: the share of the label that is spread over all classes.
    z_loss : float, optional
        At least 0: the factor of ``lse²``, which keeps the logarithms small.
    reduction : {"mean", "sum", "none"}, optional
        The mean over the rows that count (NaN where there is none), the sum, or each row's loss.
    return_lse : bool, optional
        Whether to return the logarithms of the sums of exponentials too, which ``cross_entropy_backward`` takes.

    Returns
    -------
    loss : ndarray or scalar
        In nats; of the dtype of ``logits``, float32 for half types. A scalar for a mean or a sum, else of the shape of
        ``logits`` without ``axis``.
    lse : ndarray or scalar
        With ``return_lse``: of each row, ignored or not, in the dtype of the loss.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``logits`` does not have the axis.
    ValueError
        For shapes that do not fit, a label out of range that is not ``ignore_index``, a smoothing outside [0, 1], a
        negative ``z_loss``, an unknown reduction.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    The logits are read once. ``lse - x[y]`` is computed as ``(m - x[y]) + log d``: it keeps its accuracy where a large
    number is common to all logits, and where it is almost 0. Sums and means are taken in float64, in one order. A label
    whose logit is -inf costs inf; a probability 0 costs nothing there. A row with NaN, or of nothing but -inf, is NaN;
    a row with +inf is NaN where a label is at an infinity and inf elsewhere. M. Milakov and N. Gimelshein, *Online
    normalizer calculation for softmax*, 2018 (arXiv 1805.02867). The bound on the error is
    ``accuracy.bound("cross_entropy", ...)``.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> logits = numpy.log([[1.0, 3.0], [1.0, 1.0]])
    >>> dualsoft.cross_entropy(logits, [1, 0], reduction="none").round(4).tolist()
    [0.2877, 0.6931]
    """
    problem = cross_entropy_problem(logits, labels, axis, ignore_index, label_smoothing, z_loss, reduction, return_lse)
    if problem.x.size:
        run(problem)
    else:
        _write_empty(problem)
    loss, lse = problem.out, problem.lse
    if problem.targets.reduction == "none":
        loss = _without_axis(loss, problem.axes)
    loss = scalar_if_0d(loss)
    return loss if lse is None else (loss, scalar_if_0d(_without_axis(lse, problem.axes)))


def _without_axis(kept: Array, axes: tuple[int, ...]) -> Array:
    return kept.reshape(reduced_shape(kept.shape, axes))


def _write_empty(problem: CrossEntropyProblem) -> None:
    """Fill in what no logits say: rows without classes are all ignored, or their probabilities are of nothing: NaN."""
    x, targets = problem.x, problem.targets
    of_nothing = targets.labels_code >= 0 and math.prod(reduced_shape(x.shape, problem.axes)) > 0
    with on_device_of(x):
        problem.out[...] = math.nan if of_nothing or targets.reduction == "mean" else 0.0
        if problem.lse is not None:
            problem.lse[...] = -math.inf


def cross_entropy_backward(
    grad: Any,
    logits: Any,
    labels: Any,
    lse: Any,
    axis: int = -1,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    out: Any = None,
) -> Any:
    """Compute the gradient of ``cross_entropy``, ``g·(p[j]·(1 + 2·z·lse) - t[j])`` with ``p = exp(x - lse)``.

    ``t`` is the smoothed label, ``(1 - e)·[j = y] + e / n``; ``g`` is ``grad``, over the number of rows that count
    where the reduction is a mean.

    Parameters
    ----------
    grad : real number or array_like
        The gradient of the loss: a number for a mean and a sum, else of the shape of the losses (or one for all).
    logits, labels, axis, ignore_index, label_smoothing, z_loss, reduction
        As they were given to ``cross_entropy``.
    lse : array_like or SoftmaxState
        The logarithms that ``cross_entropy`` or ``logsumexp`` returned, or the state of the rows.
    out : ndarray, optional
        Where to write the result; its shape and dtype. It may be ``logits`` itself.

    Returns
    -------
    ndarray
        The shape and dtype of ``logits`` (float64 for integers). It is ``out`` if that was given.

    Raises
    ------
    numpy.exceptions.AxisError, ValueError, TypeError
        As ``cross_entropy``; ValueError too for an ``lse`` of another shape than the losses, an ``out`` that does not
        fit or is read-only.

    Notes
    -----
    One pass over the logits; the probabilities are computed from ``lse``. At the label, p - 1 keeps its relative
    accuracy however near to 1 p is. Where ``lse`` was rounded so far that the gradient would show it (it is large, or
    of a half type), the row's own takes its place, unless that differs by more than rounding: the lse of more classes
    than these, for a part of the logits, stays what it is. The gradient of rows that are ignored is 0. The bound on the
    error is ``accuracy.bound("cross_entropy_backward", ...)``.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> logits = numpy.log([[1.0, 3.0]])
    >>> loss, lse = dualsoft.cross_entropy(logits, [1], return_lse=True)
    >>> dualsoft.cross_entropy_backward(1.0, logits, [1], lse).round(4).tolist()
    [[0.25, -0.25]]
    """
    return gradient(
        cross_entropy_gradient_problem(
            grad, logits, labels, pair_or_array(lse), axis, ignore_index, label_smoothing, z_loss, reduction, out
        ),
        out,
    )
