"""A partial result of attention as a value: (out, m, d) of some of the keys."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dualsoft.arguments import real, result_dtype
from dualsoft.arrays import Array, as_array, device_of, is_cupy, module_of, on_device_of, same_kind, scalar_if_0d
from dualsoft.attention_arguments import sinks_of
from dualsoft.dtypes import FLOAT64, DType, find_format
from dualsoft.frozen import Frozen, locked
from dualsoft.pair import same_values
from dualsoft.placement import to_device
from dualsoft.triple import canonical, divided, merge_triples, pack_triple, unpack_triple, with_sinks

_FLOAT32 = np.dtype(np.float32)


class AttentionState(Frozen):
    """The partial result of attention over some of the keys; those of all the keys merge to the whole.

    With the scores s of a query, ``m = max s``, ``d = sum exp(s - m)`` and ``out = sum exp(s - m)·v``: the output times
    d. A state never changes; ``merge`` and ``|`` make new ones.

    Parameters
    ----------
    out : array_like
        (..., Sq, Dv), not divided by d. Kept as float32, of float64 and integers as float64.
    m : array_like
        (..., Sq), the largest score of each query, -inf where it has seen no key. Taken as float64.
    d : array_like
        (..., Sq), at least 0, or NaN where a query has seen NaN. Taken as float64.

    Raises
    ------
    ValueError
        When the shapes do not fit, or an entry of ``d`` is negative (of a CuPy array: its row becomes NaN).
    TypeError
        When one is not real, or they are arrays of different kinds.

    Notes
    -----
    Rows have one form each. No key seen: out 0, m -inf, d 0, whatever ``out`` held (NaN included). A score of NaN seen:
    d and out NaN, m -inf. Else a score of +inf seen: m and d inf, out NaN. Where the sum in ``out`` would overflow, it
    is the mean, with d = 1 and the lse in m. M. N. Rabe and C. Staats, *Self-attention does not need O(n^2) memory*,
    2021 (arXiv 2112.05682).

    Examples
    --------
    >>> import dualsoft, numpy
    >>> q, k, v = numpy.ones((1, 2)), numpy.eye(4, 2), numpy.eye(4)
    >>> parts = [dualsoft.attention_state(q, k[j : j + 2], v[j : j + 2], key_start=j, key_total=4) for j in (0, 2)]
    >>> out, lse = (parts[0] | parts[1]).finalize()
    >>> numpy.allclose(out, dualsoft.attention(q, k, v))
    True
    """

    __slots__ = ("_d", "_m", "_out")

    _out: Array
    _m: Array
    _d: Array

    def __init__(self, out: Any, m: Any, d: Any) -> None:
        out = real(as_array(out, "out"), "out")
        with on_device_of(out):
            m, d = (real(same_kind(x, name, out, "out"), name).astype(FLOAT64) for x, name in ((m, "m"), (d, "d")))
        if not out.ndim or not out.shape[:-1] == m.shape == d.shape:
            raise ValueError(
                f"m and d must have the shape of out without its last axis, got out {out.shape}, m {m.shape} and "
                f"d {d.shape}"
            )
        if not is_cupy(d) and (d < 0).any():
            raise ValueError(f"d must be at least 0 (or NaN), got {d.min()}")
        _freeze(self, *canonical(_sums(out), m, d))

    @classmethod
    def from_lse(cls, out: Any, lse: Any) -> "AttentionState":
        """Return the state of a finished attention: ``m = lse`` and ``d = 1``.

        Parameters
        ----------
        out : array_like
            (..., Sq, Dv), what ``attention`` returned.
        lse : array_like
            (..., Sq), what it returned beside, in nats. -inf: no key was seen, whatever ``out`` holds.

        Returns
        -------
        AttentionState

        Raises
        ------
        ValueError
            When the shapes do not fit.
        TypeError
            When one is not real, or they are arrays of different kinds.

        Examples
        --------
        >>> import dualsoft, numpy
        >>> nothing = dualsoft.AttentionState.from_lse([[numpy.nan]], [-numpy.inf])
        >>> state = dualsoft.AttentionState.from_lse([[3.0]], [0.5])
        >>> (state | nothing) == state
        True
        """
        out = real(as_array(out, "out"), "out")
        lse = real(same_kind(lse, "lse", out, "out"), "lse")
        if not out.ndim or out.shape[:-1] != lse.shape:
            raise ValueError(
                f"lse must have the shape of out without its last axis, got out {out.shape} and lse {lse.shape}"
            )
        with on_device_of(out):
            return _state_from(*canonical(_sums(out), lse.astype(FLOAT64), module_of(out).ones(lse.shape, FLOAT64)))

    @property
    def out(self) -> Array:
        """The sum of exp(s - m)·v, (..., Sq, Dv), float32 or float64."""
        return self._out

    @property
    def m(self) -> Any:
        """The largest score, (..., Sq), float64."""
        return scalar_if_0d(self._m)

    @property
    def d(self) -> Any:
        """The sum of exp(s - m), (..., Sq), float64."""
        return scalar_if_0d(self._d)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``m`` and ``d``, (..., Sq)."""
        return tuple(self._m.shape)

    @property
    def lse(self) -> Any:
        """The log of the sum of exponentials, ``m + ln d`` in nats, float64."""
        with on_device_of(self._m), np.errstate(all="ignore"):
            return scalar_if_0d(self._m + module_of(self._m).log(self._d))

    def finalize(self, dtype: Any = None, sinks: Any = None) -> tuple[Array, Array]:
        """Return the output and its lse, as ``attention`` does with ``return_lse``.

        Parameters
        ----------
        dtype : dtype, optional
            Of the output: float16, bfloat16, float32 or float64. By default that of ``out``.
        sinks : array_like, optional
            (Hq,), a logit for each head (axis -2 of the state) that joins d and has no value.

        Returns
        -------
        out : ndarray
            (..., Sq, Dv), ``out / d``; 0 where no key was seen.
        lse : ndarray
            (..., Sq), float32, float64 when the state or ``dtype`` is; it includes ``sinks``.

        Raises
        ------
        TypeError
            For another dtype, and sinks that are not real.
        ValueError
            When the shape of ``sinks`` does not fit.

        Examples
        --------
        >>> import dualsoft
        >>> state = dualsoft.AttentionState([[6.0]], [0.0], [2.0])
        >>> state.finalize()[0].item(), state.finalize(sinks=[0.0])[0].item()
        (3.0, 2.0)
        """
        wanted = result_dtype(dtype, self._out.dtype)
        parts = self._parts()
        wide = FLOAT64 in (wanted, self._out.dtype)
        with on_device_of(self._m):
            if sinks is not None:
                if not self._m.ndim:
                    raise ValueError("sinks need a state with an axis of queries, got one of the shape ()")
                heads = self._m.shape[-2] if self._m.ndim > 1 else 1
                parts = with_sinks(*parts, sinks_of(sinks, heads, self._m)[:, None][0 if self._m.ndim == 1 else ...])
            out, lse = divided(*parts, wanted)
            return out, lse if wide else lse.astype(_FLOAT32)

    def to(self, device: str) -> "AttentionState":
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
        >>> dualsoft.AttentionState([[6.0]], [0.0], [2.0]).to("cpu").out.item()
        6.0
        """
        parts = [to_device(part, device) for part in self._parts()]
        return self if parts[0] is self._out else _state_from(*parts)

    def pack(self) -> Array:
        """Return the state as one contiguous float64 array, for sending or storing.

        Returns
        -------
        ndarray
            ``[format version, bytes of an entry of out, ndim of out, *shape of out, *m, *d, *out]``.

        Examples
        --------
        >>> import dualsoft
        >>> dualsoft.AttentionState([[6.0, 8.0]], [0.0], [2.0]).pack().tolist()
        [101.0, 8.0, 2.0, 1.0, 2.0, 0.0, 2.0, 6.0, 8.0]
        """
        return pack_triple(*self._parts())

    @classmethod
    def unpack(cls, array: Any) -> "AttentionState":
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
        >>> state = dualsoft.AttentionState([[6.0, 8.0]], [0.0], [2.0])
        >>> dualsoft.AttentionState.unpack(state.pack()) == state
        True
        """
        return _state_from(*unpack_triple(as_array(array, "array")))

    def _parts(self) -> tuple[Array, Array, Array]:
        return self._out, self._m, self._d

    def __or__(self, other: object) -> "AttentionState":
        if not isinstance(other, AttentionState):
            return NotImplemented
        return merge_two(self, other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttentionState):
            return NotImplemented
        return (
            self._out.shape == other._out.shape
            and self._out.dtype == other._out.dtype
            and device_of(self._m) == device_of(other._m)
            and all(same_values(mine, its) for mine, its in zip(self._parts(), other._parts(), strict=True))
        )

    def __repr__(self) -> str:
        return f"AttentionState(out={self._out!r}, m={self.m!r}, d={self.d!r})"

    def __reduce__(self) -> tuple[Callable[[Array, Array, Array], "AttentionState"], tuple[Array, Array, Array]]:
        return _state_from, self._parts()


def state_of_parts(out: Array, m: Array, d: Array) -> AttentionState:
    """Return the state of what a backend wrote, in new arrays that nobody else writes to."""
    return _state_from(*canonical(out, m, d))


def merge_two(a: AttentionState, b: AttentionState) -> AttentionState:
    """Return the state of what two states of one shape have seen together."""
    if a._out.shape != b._out.shape:
        raise ValueError(f"states of different shapes do not merge: {a._out.shape} and {b._out.shape} (of out)")
    same_kind(b._m, "one state", a._m, "the other")
    return _state_from(*merge_triples(*a._parts(), *b._parts()))


def _sums(out: Array) -> Array:
    """Return a copy of ``out`` in the dtype of a state."""
    known = find_format(out.dtype)
    kept: DType = FLOAT64 if known is None or known.result == FLOAT64 else _FLOAT32
    with on_device_of(out):
        return out.astype(kept)


def _freeze(state: AttentionState, out: Array, m: Array, d: Array) -> None:
    # Arithmetic on 0-d arrays gives NumPy scalars.
    parts = [np.asarray(part) if isinstance(part, np.generic) else part for part in (out, m, d)]
    for put, part in zip((_set_out, _set_m, _set_d), parts, strict=True):
        put(state, locked(part) if isinstance(part, np.ndarray) else part)


def _state_from(out: Array, m: Array, d: Array) -> AttentionState:
    """Return the state that keeps these very arrays, which nobody else writes to."""
    state = object.__new__(AttentionState)
    _freeze(state, out, m, d)
    return state


# What the class itself refuses to everybody.
_set_out = AttentionState.__dict__["_out"].__set__
_set_m = AttentionState.__dict__["_m"].__set__
_set_d = AttentionState.__dict__["_d"].__set__
