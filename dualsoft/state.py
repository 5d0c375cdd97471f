"""The running pair (m, d) of online softmax as a value."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dualsoft.arguments import real
from dualsoft.arrays import (
    Array,
    as_array,
    delivered,
    device_of,
    is_cupy,
    module_of,
    on_device_of,
    same_kind,
    scalar_if_0d,
)
from dualsoft.dtypes import FLOAT64
from dualsoft.frozen import Frozen, locked
from dualsoft.pair import Pair, canonical, log_of, merge_pairs, pack_pair, same_values, unpack_pair
from dualsoft.placement import to_device
from dualsoft.problem import identity_shape, normalize_problem, state_problem
from dualsoft.registry import run


class SoftmaxState(Frozen):
    """The running pair of a softmax: what is known of the elements seen so far.

    ``m`` is their maximum and ``d = sum exp(x - m)``. States of parts of a row merge to the state of the row, in any
    grouping. A state never changes; ``merge``, ``|`` and ``update`` make new ones.

    Parameters
    ----------
    m : array_like
        The largest element of each row that is not NaN, -inf for an empty row. Taken as float64.
    d : array_like
        At least 0, or NaN for a row with NaN. Broadcasts with ``m``. Taken as float64.

    Raises
    ------
    ValueError
        When the shapes do not broadcast, or an entry of ``d`` is negative (of a CuPy array: its row becomes NaN).
    TypeError
        When one is not real, or they are arrays of different kinds.

    Notes
    -----
    Kept inside are ``m`` and ``rest = d - 1``: the ``rest`` of a state made by ``softmax_state`` keeps what would be
    lost in a ``d`` near 1. Rows have one form each: an empty one is (-inf, 0), one with +inf is (inf, inf), and NaN is
    in ``d`` only. One with 0 < d < 1/2, whose ``rest`` would lose digits, is kept as the same sum (m + ln d, 1).
    M. Milakov and N. Gimelshein, *Online normalizer calculation for softmax*, 2018 (arXiv 1805.02867).

    Examples
    --------
    >>> import dualsoft
    >>> left, right = dualsoft.softmax_state([2.0, 1.0]), dualsoft.softmax_state([3.0, 0.5])
    >>> (left | right) == dualsoft.merge(right, left)
    True
    >>> round(float((left | right).d), 4)
    1.5853
    """

    __slots__ = ("_m", "_rest")

    _m: Array
    _rest: Array

    def __init__(self, m: Any, d: Any) -> None:
        m_array = as_array(m, "m")
        d_array = same_kind(d, "d", m_array, "m")
        real(m_array, "m")
        real(d_array, "d")
        xp = module_of(m_array)
        try:
            shape = np.broadcast_shapes(m_array.shape, d_array.shape)
        except ValueError:
            raise ValueError(f"m and d must broadcast, got the shapes {m_array.shape} and {d_array.shape}") from None
        with on_device_of(m_array):
            m_array = xp.broadcast_to(m_array, shape).astype(FLOAT64)
            d_array = xp.broadcast_to(d_array, shape).astype(FLOAT64)
            if not is_cupy(m_array) and (d_array < 0).any():
                raise ValueError(f"d must be at least 0 (or NaN), got {d_array.min()}")
            # d - 1 would lose a small d: such a state is that of one element, m + log d.
            is_small = (d_array > 0) & (d_array < 0.5)
            m_array = xp.where(is_small, m_array + xp.log(xp.where(is_small, d_array, 1.0)), m_array)
            _freeze(self, *canonical(m_array, xp.where(is_small, 0.0, d_array - 1)))

    @classmethod
    def identity(cls, shape: int | tuple[int, ...], like: Any = None) -> "SoftmaxState":
        """Return the state of nothing: m = -inf, d = 0, which merges to the other side exactly.

        Parameters
        ----------
        shape : int or tuple of ints
            The reduced shape.
        like : ndarray, optional
            An array of the wanted kind, on the wanted device; NumPy's by default.

        Returns
        -------
        SoftmaxState

        Raises
        ------
        TypeError, ValueError
            When ``shape`` is not an integer or a tuple of integers, or a length is negative.

        Examples
        --------
        >>> import dualsoft
        >>> dualsoft.SoftmaxState.identity(2).lse.tolist()
        [-inf, -inf]
        """
        beside = None if like is None else as_array(like, "like")
        lengths, xp = identity_shape(shape), module_of(beside)
        with on_device_of(beside):
            return _state_from(xp.full(lengths, -np.inf, FLOAT64), xp.full(lengths, -1.0, FLOAT64))

    @property
    def m(self) -> Any:
        """The running maximum, float64."""
        return scalar_if_0d(self._m)

    @property
    def d(self) -> Any:
        """The normaliser, the sum of exp(x - m), float64."""
        with on_device_of(self._rest):
            return scalar_if_0d(1 + self._rest)

    @property
    def shape(self) -> tuple[int, ...]:
        """The reduced shape."""
        return tuple(self._m.shape)

    @property
    def lse(self) -> Any:
        """The log of the sum of exponentials, ``m + ln d`` in nats, float64."""
        return scalar_if_0d(log_of(self._m, self._rest))

    def update(
        self, x: Any, axis: int | tuple[int, ...] | None = None, *, where: Any = None, scale: Any = None
    ) -> "SoftmaxState":
        """Return the state with the elements of ``x`` added: ``merge(self, softmax_state(x, ...))``.

        Parameters
        ----------
        x, axis, where, scale
            As in ``softmax_state``; ``x`` must reduce to the shape of the state.

        Returns
        -------
        SoftmaxState

        Raises
        ------
        numpy.exceptions.AxisError, ValueError, TypeError
            As ``softmax_state``; ValueError also when ``x`` reduces to another shape.

        Examples
        --------
        >>> import dualsoft
        >>> dualsoft.SoftmaxState.identity(()).update([0.0, 0.0]).d.item()
        2.0
        """
        return merge_two(self, state_of(x, axis, where, scale, self.shape, "the state"))

    def normalize(
        self,
        x: Any,
        axis: int | tuple[int, ...] | None = None,
        *,
        where: Any = None,
        scale: Any = None,
        out: Any = None,
    ) -> Any:
        """Return ``exp(scale·x - m) / d``: the softmax of ``x`` as part of all that the state has seen.

        With the arguments that made the state, it is ``softmax`` with the same arguments.

        Parameters
        ----------
        x : array_like
            Real; reduces over ``axis`` to the shape of the state.
        axis, where, scale, out
            As for ``softmax``.

        Returns
        -------
        ndarray
            The shape of ``x``, and its dtype (float64 for integers).

        Raises
        ------
        ValueError, TypeError, numpy.exceptions.AxisError
            As ``softmax``; ValueError too when ``x`` does not reduce to the shape of the state.

        Notes
        -----
        A row whose m is infinite, or whose d is NaN, is NaN. Elements that ``where`` leaves out give 0.

        Examples
        --------
        >>> import dualsoft
        >>> state = dualsoft.softmax_state([0.0, 0.0, 0.0, 0.0])
        >>> state.normalize([0.0]).tolist()
        [0.25]
        """
        problem = normalize_problem(x, axis, self._m, self._rest, where, scale, out)
        result = problem.out
        if result.size:
            run(problem)
        if out is None:
            return scalar_if_0d(result)
        return delivered(result, out)

    def to(self, device: str) -> "SoftmaxState":
        """Return the state with NumPy arrays, for which the host waits, or with CuPy arrays on the current device.

        Parameters
        ----------
        device : {"cpu", "cuda"}
            Where it is already, it stays as it is.

        Raises
        ------
        ValueError
            For another name.
        RuntimeError
            When the CUDA backend cannot be used.

        Examples
        --------
        >>> import dualsoft
        >>> dualsoft.softmax_state([1.0]).to("cpu").m.item()
        1.0
        """
        m = to_device(self._m, device)
        return self if m is self._m else _state_from(m, to_device(self._rest, device))

    def pack(self) -> Array:
        """Return the state as one contiguous float64 array, for sending or storing.

        Returns
        -------
        ndarray
            ``[format version, ndim, *shape, *m, *(d - 1)]``.

        Examples
        --------
        >>> import dualsoft
        >>> dualsoft.softmax_state([1.0, 1.0]).pack().tolist()
        [1.0, 0.0, 1.0, 1.0]
        """
        return pack_pair(self._m, self._rest)

    @classmethod
    def unpack(cls, array: Any) -> "SoftmaxState":
        """Return the state that ``pack`` made ``array`` from.

        Parameters
        ----------
        array : array_like
            One dimension, float64.

        Raises
        ------
        TypeError
            When it is not float64.
        ValueError
            When it is of another format version, or not what ``pack`` writes.

        Examples
        --------
        >>> import dualsoft
        >>> state = dualsoft.softmax_state([1.0, 2.0])
        >>> dualsoft.SoftmaxState.unpack(state.pack()) == state
        True
        """
        return _state_from(*unpack_pair(as_array(array, "array")))

    def __or__(self, other: object) -> "SoftmaxState":
        if not isinstance(other, SoftmaxState):
            return NotImplemented
        return merge_two(self, other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SoftmaxState):
            return NotImplemented
        return (
            self.shape == other.shape
            and device_of(self._m) == device_of(other._m)
            and same_values(self._m, other._m)
            and same_values(self._rest, other._rest)
        )

    def __repr__(self) -> str:
        return f"SoftmaxState(m={self.m!r}, d={self.d!r})"

    def __reduce__(self) -> tuple[Callable[[Array, Array], "SoftmaxState"], tuple[Array, Array]]:
        return _state_from, (self._m, self._rest)


def state_of(
    x: object, axis: object, where: object, scale: object, shape: tuple[int, ...] | None, whose: str = "initial"
) -> SoftmaxState:
    """Return the state of ``x``, which must have ``shape`` if that is given, the shape of a state to merge with."""
    problem = state_problem(x, axis, where, scale)
    m, rest, axes = problem.m, problem.rest, problem.axes
    if shape is not None and shape != (reduced := tuple(m.squeeze(axes).shape)):
        raise ValueError(
            f"x has shape {problem.x.shape}, which reduces to {reduced} over axis={axis}, but {whose} has shape {shape}"
        )
    if problem.x.size:
        run(problem)
    else:
        with on_device_of(m):
            m[...], rest[...] = -np.inf, -1.0
    return _state_from(m.squeeze(axes), rest.squeeze(axes))


def pair_or_array(lse: object) -> object:
    """Return the arrays of a state, and anything else as it is: what may stand for the logarithms of rows."""
    return Pair(lse._m, lse._rest) if isinstance(lse, SoftmaxState) else lse


def merge_two(a: SoftmaxState, b: SoftmaxState) -> SoftmaxState:
    """Return the state of what two states of one shape have seen together."""
    if a.shape != b.shape:
        raise ValueError(f"states of different shapes do not merge: {a.shape} and {b.shape}")
    b_m = same_kind(b._m, "one state", a._m, "the other")
    return _state_from(*merge_pairs(a._m, a._rest, b_m, b._rest))


def _freeze(state: SoftmaxState, m: Array, rest: Array) -> None:
    if isinstance(m, np.generic):
        # Arithmetic on 0-d arrays gives NumPy scalars.
        m, rest = np.asarray(m), np.asarray(rest)
    if isinstance(m, np.ndarray):
        m, rest = locked(m), locked(rest)
    _set_m(state, m)
    _set_rest(state, rest)


def _state_from(m: Array, rest: Array) -> SoftmaxState:
    """Return the state that keeps these very arrays, float64 and of one shape, which nobody else writes to."""
    state = object.__new__(SoftmaxState)
    _freeze(state, m, rest)
    return state


# What the class itself refuses to everybody.
_set_m = SoftmaxState.__dict__["_m"].__set__
_set_rest = SoftmaxState.__dict__["_rest"].__set__
