"""The functions of the running pair: ``softmax_state`` makes it, ``merge`` joins parts."""

from typing import Any, overload

from dualsoft.attention_state import AttentionState
from dualsoft.attention_state import merge_two as merge_attention
from dualsoft.state import SoftmaxState, merge_two, state_of


def softmax_state(
    x: Any,
    axis: int | tuple[int, ...] | None = None,
    *,
    where: Any = None,
    scale: Any = None,
    initial: SoftmaxState | None = None,
) -> SoftmaxState:
    """Compute the running pair (m, d) of ``x`` in one pass: ``m = max x``, ``d = sum exp(x - m)``.

    Parameters
    ----------
    x : array_like
        float16, bfloat16, float32, float64, integers or bool. Any shape, strides, byte order.
    axis : None, int or tuple of ints, optional
        The axes to reduce. None, the default, is all of them.
    where : array_like of bool, optional
        Broadcasts to the shape of ``x``. Elements that are False take no part, whatever they hold.
    scale : real number or array_like, optional
        Multiplies ``x`` first (the inverse temperature).
    initial : SoftmaxState, optional
        A state to merge with, of the reduced shape.

    Returns
    -------
    SoftmaxState
        float64, of the reduced shape. The terms are computed in float32 for half types and float32.

    Raises
    ------
    numpy.exceptions.AxisError
        When ``x`` does not have an axis.
    ValueError
        For shapes that do not fit.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    NaN in a row: d is NaN, m the maximum of the others. +inf in a row: m and d are inf. Nothing but -inf: m is -inf, d
    is 0. One pass, by M. Milakov and N. Gimelshein, *Online normalizer calculation for softmax*, 2018
    (arXiv 1805.02867). The bound on the error of d is ``accuracy.bound("softmax_state", ...)``.

    Examples
    --------
    >>> import dualsoft
    >>> state = dualsoft.softmax_state([2.0, 1.0, 3.0, 0.5])
    >>> state.m.item(), round(state.d.item(), 4)
    (3.0, 1.5853)
    """
    if initial is not None and not isinstance(initial, SoftmaxState):
        raise TypeError(f"initial must be a SoftmaxState, got {type(initial).__name__}")
    state = state_of(x, axis, where, scale, None if initial is None else initial.shape)
    return state if initial is None else merge_two(initial, state)


@overload
def merge(a: SoftmaxState, b: SoftmaxState, *more: SoftmaxState) -> SoftmaxState: ...


@overload
def merge(a: AttentionState, b: AttentionState, *more: AttentionState) -> AttentionState: ...


def merge(a: Any, b: Any, *more: Any) -> Any:
    """Merge the states of parts to the state of the whole, from left to right.

    ``merge(a, b) = (M, d_a·exp(m_a - M) + d_b·exp(m_b - M))`` with ``M = max(m_a, m_b)``; ``out`` of attention as
    ``d``.

    Parameters
    ----------
    a, b, *more : SoftmaxState or AttentionState
        All of one kind and shape.

    Returns
    -------
    SoftmaxState or AttentionState

    Raises
    ------
    TypeError
        When one is not a state, they are of both kinds, or they hold arrays of different kinds.
    ValueError
        When their shapes differ.

    Notes
    -----
    Commutative bit by bit; associative within rounding; the empty state changes nothing. M. Milakov and N. Gimelshein,
    *Online normalizer calculation for softmax*, 2018 (arXiv 1805.02867).

    Examples
    --------
    >>> import dualsoft
    >>> state = dualsoft.merge(dualsoft.softmax_state([2.0, 1.0]), dualsoft.softmax_state([3.0, 0.5]))
    >>> state.m.item(), round(state.d.item(), 4)
    (3.0, 1.5853)
    """
    kind: Any
    join: Any
    kind, join = (AttentionState, merge_attention) if isinstance(a, AttentionState) else (SoftmaxState, merge_two)
    for index, state in enumerate((a, b, *more)):
        if not isinstance(state, kind):
            wanted = "a SoftmaxState or AttentionState" if index == 0 else f"a {kind.__name__} as the first"
            raise TypeError(f"argument {index} of merge must be {wanted}, got {type(state).__name__}")
    merged = join(a, b)
    for state in more:
        merged = join(merged, state)
    return merged
