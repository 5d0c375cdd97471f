"""Cross-entropy of a product, hidden @ weight.T + bias, whose logits are never stored whole."""

from typing import Any, NamedTuple

from dualsoft.arrays import scalar_if_0d
from dualsoft.linear_problem import linear_cross_entropy_problem, linear_gradient_problem
from dualsoft.registry import run
from dualsoft.state import pair_or_array


class LinearGrads(NamedTuple):
    """The gradients of ``linear_cross_entropy``, each of the shape and dtype of what it is the gradient of."""

    hidden: Any
    weight: Any
    bias: Any
    """None where no bias was given."""


def linear_cross_entropy(
    hidden: Any,
    weight: Any,
    labels: Any,
    *,
    bias: Any = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    return_lse: bool = False,
) -> Any:
    """Compute ``cross_entropy(hidden @ weight.T + bias, labels)`` without ever storing all of the logits.

    Parameters
    ----------
    hidden : array_like
        (..., D), float16, bfloat16, float32, float64; integers and bool are taken as float64.
    weight : array_like
        (V, D), one row a class.
    labels : array_like
        Class indices, (...), or probabilities, (..., V), as for ``cross_entropy``.
    bias : array_like, optional
        (V,), added to the logits. It does not change the dtype of the result.
    ignore_index, label_smoothing, z_loss, reduction, return_lse
        As for ``cross_entropy``. The products of rows that are ignored are left out.

    Returns
    -------
    loss : ndarray or scalar
        In nats; of the common dtype of ``hidden`` and ``weight``, float32 for half types. A scalar for a mean or a sum,
        else (...).
    lse : ndarray or scalar
        With ``return_lse``: the logarithms that ``linear_cross_entropy_backward`` takes, (...).

    Raises
    ------
    ValueError
        For shapes that do not fit, and as ``cross_entropy``.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    Blocks of rows and classes are multiplied by NumPy's (CuPy's) matmul, in float32 for half types and float32, and
    merge as running pairs (m, d): memory is that of one block. The bits are those of matmul, which may depend on the
    machine and its threads. M. Milakov and N. Gimelshein, *Online normalizer calculation for softmax*, 2018
    (arXiv 1805.02867).

    Examples
    --------
    >>> import dualsoft, numpy
    >>> hidden, weight = numpy.eye(2), numpy.log([[1.0, 1.0], [3.0, 1.0]])
    >>> dualsoft.linear_cross_entropy(hidden, weight, [1, 0], reduction="none").round(4).tolist()
    [0.2877, 0.6931]
    """
    problem = linear_cross_entropy_problem(
        hidden, weight, labels, bias, ignore_index, label_smoothing, z_loss, reduction, return_lse
    )
    run(problem)
    leading = problem.x.shape[:-1]
    loss = problem.out if problem.targets.reduction != "none" else problem.out.reshape(leading)
    return (
        scalar_if_0d(loss) if problem.lse is None else (scalar_if_0d(loss), scalar_if_0d(problem.lse.reshape(leading)))
    )


def linear_cross_entropy_backward(
    grad: Any,
    hidden: Any,
    weight: Any,
    labels: Any,
    lse: Any,
    *,
    bias: Any = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
) -> LinearGrads:
    """Compute the gradients of ``linear_cross_entropy``: of the logits by blocks, times ``weight``, times ``hidden``.

    Parameters
    ----------
    grad : real number or array_like
        The gradient of the loss: a number for a mean and a sum, else of the shape of the losses (or one for all).
    hidden, weight, labels, bias, ignore_index, label_smoothing, z_loss, reduction
        As they were given to ``linear_cross_entropy``.
    lse : array_like or SoftmaxState
        The logarithms that ``linear_cross_entropy`` returned, (...).

    Returns
    -------
    LinearGrads
        ``hidden``, ``weight`` and ``bias`` (None without one), each of the shape and dtype of the argument.

    Raises
    ------
    ValueError, TypeError
        As ``linear_cross_entropy``; ValueError too for an ``lse`` of another shape than the losses.

    Notes
    -----
    Exact: no small gradient is left out. The logits are computed again, block by block. Rows that are ignored have the
    gradient 0 and add nothing to that of ``weight``, whatever they hold.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> hidden, weight = numpy.eye(2), numpy.log([[1.0, 1.0], [3.0, 1.0]])
    >>> loss, lse = dualsoft.linear_cross_entropy(hidden, weight, [1, 0], return_lse=True)
    >>> dualsoft.linear_cross_entropy_backward(1.0, hidden, weight, [1, 0], lse).weight.round(4).tolist()
    [[0.125, -0.25], [-0.125, 0.25]]
    """
    problem = linear_gradient_problem(
        grad, hidden, weight, labels, pair_or_array(lse), bias, ignore_index, label_smoothing, z_loss, reduction
    )
    run(problem)
    return LinearGrads(problem.hidden.reshape(problem.x.shape), problem.weight, problem.bias)
