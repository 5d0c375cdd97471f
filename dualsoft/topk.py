"""softmax_topk: the k most probable elements of each row, with their probabilities, in one pass over memory."""

from typing import Any, NamedTuple

from dualsoft.arrays import on_device_of, scalar_if_0d
from dualsoft.registry import run
from dualsoft.topk_problem import topk_problem


class TopK(NamedTuple):
    """What ``softmax_topk`` returns."""

    values: Any
    """The probabilities, sorted downwards along the axis."""
    indices: Any
    """int64: where along the axis of ``x`` they are."""
    lse: Any
    """log sum exp(scale·x) of each row, the axis taken away: the logarithm of a probability is scale·x - lse."""


def softmax_topk(x: Any, k: int, axis: int = -1, *, where: Any = None, scale: Any = None) -> TopK:
    """Compute the k largest of ``softmax(scale·x)`` along an axis and where they are.

    Nothing of the softmax is stored but what is returned: the normaliser and the k largest are found in one pass.

    Parameters
    ----------
    x : array_like
        float16, bfloat16, float32, float64; integers and bool are taken as float64. At least one dimension.
    k : int
        How many, from 0 to the length of the axis.
    axis : int, optional
        The axis that sums to 1, by default the last.
    where : array_like of bool, optional
        Broadcasts to the shape of ``x``. Elements that are False take no part: they come after all others, with the
        probability 0, whatever they hold.
    scale : real number or array_like, optional
        Multiplies ``x`` first (the inverse temperature). An array broadcasts to the shape of ``x`` with the axis of
        length 1.

    Returns
    -------
    values : ndarray
        The shape of ``x`` with k elements along the axis, its dtype (float64 for integers), sorted downwards. They are
        probabilities among the whole row; they sum to 1 only where the rest of the row is 0.
    indices : ndarray
        int64, the shape of ``values``: distinct within a row, of equal elements the lower index first.
    lse : ndarray or scalar
        The log-sum-exp of each row in nats, the axis taken away, to the bit that of ``logsumexp``; the dtype of
        ``values``, float32 for half types. A NumPy scalar for one row.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``x`` does not have the axis.
    ValueError
        When ``k`` is negative or more than the axis is long; for shapes that do not fit.
    TypeError
        When ``k`` or ``axis`` is no integer; for dtypes and kinds of array that are not taken.

    Notes
    -----
    The order is that of ``x`` itself (under a negative scale, of ``-x``; under 0 all are equal): no scale rounds two
    elements into one. -0 equals 0. Visible elements of -inf come after all larger ones, hidden ones last.

    A row with NaN, with +inf, or of nothing but -inf has NaN for its values (0 where an element is hidden) and
    distinct valid indices, NaN first. The bound on the error of the values is ``accuracy.bound("softmax_topk", ...)``.
    M. Milakov and N. Gimelshein fused the two in *Online normalizer calculation for softmax*, 2018 (arXiv 1805.02867).

    Examples
    --------
    >>> import dualsoft, numpy
    >>> values, indices, lse = dualsoft.softmax_topk(numpy.log([1.0, 4.0, 2.0, 1.0]), 2)
    >>> values.round(12).tolist(), indices.tolist(), round(float(numpy.exp(lse)), 12)
    ([0.5, 0.25], [1, 2], 8.0)
    """
    problem = topk_problem(x, k, axis, where, scale)
    lse = problem.lse
    if problem.x.size:
        run(problem)
    else:
        with on_device_of(lse):
            lse[...] = -float("inf")
    reduced = lse.squeeze(problem.axes)
    return TopK(problem.out, problem.indices, reduced if reduced.ndim else scalar_if_0d(reduced))
