"""sample: one index a row, drawn from the softmax of its logits."""

from typing import Any

from dualsoft.arrays import scalar_if_0d
from dualsoft.registry import run
from dualsoft.topk_problem import sample_problem


def sample(
    logits: Any,
    axis: int = -1,
    *,
    temperature: Any = 1.0,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    rng: Any = None,
) -> Any:
    """Draw one index from ``softmax(logits / temperature)`` along an axis, after dropping the unlikely ones.

    The filters are applied in the order temperature, top_k, min_p, top_p; nothing is sorted and no probability stored.

    Parameters
    ----------
    logits : array_like
        float16, bfloat16, float32, float64; integers and bool are taken as float64. At least one dimension.
    axis : int, optional
        The axis to draw along, by default the last.
    temperature : real number or array_like, optional
        Divides the differences of the logits; finite, at least 0. 0 is the argmax, whatever the filters: the lowest
        index of the largest.
    top_k : int or array_like of int, optional
        Keeps the k largest, of equal ones at the border those of lower index. At least 1; more than n keeps all.
    top_p : real number or array_like, optional
        Keeps the fewest of the largest of those left whose probabilities, among those left, sum to at least
        ``top_p``: the element that reaches it stays, and the largest always stays. Of equal ones at the border those of
        lower index. From 0 to 1, which keeps all.
    min_p : real number or array_like, optional
        Keeps the elements of at least ``min_p`` times the largest probability. From 0, which keeps all, to 1.
    rng : None, int or numpy.random.Generator, optional
        None draws a new key from the operating system with every call, a seed gives the same draw each time, a
        generator (or bit generator) gives its next 16 bytes and moves on.

    Returns
    -------
    ndarray or scalar
        int64, the shape of ``logits`` without the axis. -1 where a row has no distribution: where it holds NaN, at a
        temperature above 0 also +inf, or nothing but -inf. A NumPy scalar for one row.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``logits`` does not have the axis.
    ValueError
        For an option out of its range, an axis with nothing to draw, shapes that do not fit.
    TypeError
        For options that are not numbers, an ``rng`` that is none, dtypes and kinds of array that are not taken.

    Notes
    -----
    Options may be arrays that broadcast to the shape of the result: one number a row.

    The draw is ``argmax_j (x_j - m) / temperature + g_j`` over what is kept, m the row's maximum and g Gumbel noise:
    the index of each element has exactly its probability (to some 1e-15). g_j is a function of the key, the number of
    the row and j alone. All of it is defined in float64 to the bit (``dualsoft.philox``), so every backend, ISA level
    and number of threads draws the same index, and float16 logits draw as their float64 copies do.

    ``top_p`` counts mass in whole numbers: an element weighs ``rint(2**B exp((x_j - m) / temperature))`` with
    ``B = 62 - bit_length(n)`` of a row of n, and those kept reach ``ceil(top_p · float(their sum))``. Sums of
    whole numbers do not depend on their order.

    The numbers are those of J. Salmon, M. Moraes, R. Dror and D. Shaw, *Parallel random numbers: as easy as 1, 2, 3*,
    2011 (Philox4x32-10), 64 bits an element.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> logits = numpy.log(numpy.broadcast_to([0.1, 0.2, 0.7], (10000, 3)))
    >>> (numpy.bincount(dualsoft.sample(logits, rng=7)) / 10000).round(1).tolist()
    [0.1, 0.2, 0.7]
    >>> dualsoft.sample(logits[0], top_p=0.5, rng=7).item()
    2
    """
    problem = sample_problem(logits, axis, temperature, top_k, top_p, min_p, rng)
    if problem.out.size:
        run(problem)
    drawn = problem.out.squeeze(problem.axes)
    return drawn if drawn.ndim else scalar_if_0d(drawn)
