"""The textbook ways to compute a softmax and an attention, for comparison: plain array code that does what it says.

They do not guard against what their method does not guard against. ``passes`` is how often each goes over the vector,
``accesses_per_element`` how many loads and stores a fused implementation of it makes per element. The text below is for
NumPy arrays and needs no backend; a CuPy array is taken by one such kernel, whose every pass goes over memory.

=================  ======  ====================  =============
method             passes  accesses per element  can overflow
=================  ======  ====================  =============
naive_softmax      2       3                     yes
safe_softmax       3       4                     no
online_softmax     2       3                     no
=================  ======  ====================  =============

The attentions, with ``memory``, are in `dualsoft.attention_algorithms` and are names of this module too.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from dualsoft.arrays import Array, is_cupy
from dualsoft.attention_algorithms import AttentionAlgorithm, chunked_attention, standard_attention
from dualsoft.problem import algorithm_input, textbook_problem
from dualsoft.registry import run

__all__ = [
    "Algorithm",
    "AttentionAlgorithm",
    "chunked_attention",
    "naive_softmax",
    "online_softmax",
    "safe_softmax",
    "standard_attention",
]


class Algorithm(Protocol):
    """A softmax that knows its costs."""

    passes: int
    accesses_per_element: int

    def __call__(self, x: Any, axis: int = -1) -> Any:
        """Return the softmax of ``x`` along ``axis``."""


def _costs(passes: int, accesses_per_element: int) -> Callable[[Callable[..., Any]], Algorithm]:
    def attach(function: Callable[..., Any]) -> Algorithm:
        algorithm = cast(Algorithm, function)
        algorithm.passes = passes
        algorithm.accesses_per_element = accesses_per_element
        return algorithm

    return attach


def _on_device(x: Array, axis: int, result: np.dtype[Any], method: str) -> Array:
    problem = textbook_problem(x, axis, result, method)
    if problem.out.size:
        run(problem)
    return problem.out


@_costs(passes=2, accesses_per_element=3)
def naive_softmax(x: Any, axis: int = -1) -> Any:
    """Compute ``exp(x) / sum exp(x)`` as it is written: exp overflows float32 past 88.7, which gives NaN.

    Parameters
    ----------
    x : array_like
        NumPy or CuPy; real. Half types are computed in float32, integers in float64.
    axis : int, optional
        The axis that sums to 1.

    Returns
    -------
    ndarray
        The shape and dtype of ``x``, float64 for integers.

    Raises
    ------
    TypeError, numpy.exceptions.AxisError
        For a dtype, kind of array or axis that is not taken.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> with numpy.errstate(all="ignore"):
    ...     dualsoft.algorithms.naive_softmax([0.0, 1000.0]).tolist()
    [0.0, nan]
    """
    array, along, sums, result = algorithm_input(x, axis)
    if is_cupy(array):
        return _on_device(array, along, result, "naive")
    with np.errstate(all="ignore"):
        e = np.exp(array.astype(sums))
        return (e / e.sum(axis=along, keepdims=True)).astype(result)


@_costs(passes=3, accesses_per_element=4)
def safe_softmax(x: Any, axis: int = -1) -> Any:
    """Compute ``exp(x - m) / sum exp(x - m)``, m the maximum: one pass for m, one for the sum, one for the outputs.

    Parameters
    ----------
    x : array_like
        NumPy or CuPy; real. Half types are computed in float32, integers in float64.
    axis : int, optional
        The axis that sums to 1.

    Returns
    -------
    ndarray
        The shape and dtype of ``x``, float64 for integers.

    Raises
    ------
    TypeError, numpy.exceptions.AxisError
        For a dtype, kind of array or axis that is not taken.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.algorithms.safe_softmax([0.0, 1000.0]).tolist()
    [0.0, 1.0]
    """
    array, along, sums, result = algorithm_input(x, axis)
    if is_cupy(array):
        return _on_device(array, along, result, "safe")
    with np.errstate(all="ignore"):
        values = array.astype(sums)
        m = np.max(values, axis=along, keepdims=True, initial=-np.inf)
        e = np.exp(values - m)
        return (e / e.sum(axis=along, keepdims=True)).astype(result)


@_costs(passes=2, accesses_per_element=3)
def online_softmax(x: Any, axis: int = -1) -> Any:
    """Compute the softmax with the running pair: one pass for (m, d), element by element, one for the outputs.

    ``m' = max(m, x)``, ``d' = d·exp(m - m') + exp(x - m')``, from m = -inf and d = 0; then ``exp(x - m) / d``.

    Parameters
    ----------
    x : array_like
        NumPy or CuPy; real. Half types are computed in float32, integers in float64.
    axis : int, optional
        The axis that sums to 1.

    Returns
    -------
    ndarray
        The shape and dtype of ``x``, float64 for integers.

    Raises
    ------
    TypeError, numpy.exceptions.AxisError
        For a dtype, kind of array or axis that is not taken.

    Notes
    -----
    M. Milakov and N. Gimelshein, *Online normalizer calculation for softmax*, 2018 (arXiv 1805.02867).

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.algorithms.online_softmax([2.0, 1.0, 3.0, 0.5]).round(4).tolist()
    [0.2321, 0.0854, 0.6308, 0.0518]
    """
    array, along, sums, result = algorithm_input(x, axis)
    if is_cupy(array):
        return _on_device(array, along, result, "online")
    with np.errstate(all="ignore"):
        values = np.moveaxis(array, along, 0)
        m = np.full(values.shape[1:], -np.inf, sums)
        d = np.zeros(values.shape[1:], sums)
        for element in values:
            now = element.astype(sums)
            higher = np.maximum(m, now)
            # While all that was read is -inf, 0 stands in for the maximum: -inf - -inf would be NaN.
            shift = np.where(np.isneginf(higher), sums.type(0), higher)
            d = d * np.exp(m - shift) + np.exp(now - shift)
            m = higher
        return np.moveaxis((np.exp(values.astype(sums) - m) / d).astype(result), 0, along)
