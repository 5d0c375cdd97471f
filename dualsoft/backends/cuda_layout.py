"""The layout of rows as the CUDA kernels take it: the struct ``layout`` of ``cuda/layout.cuh``.

Axes of length 1 go, axes that lie one inside the other become one, and the kept axes and the reduced ones are each
ordered by the strides of the input: what is contiguous in memory, in whatever order, is one axis of small steps.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

MAX_RANK = 24
OPERANDS = ("x", "y", "where", "scale", "weight", "sign")
MORE = 3
"""The most operands beyond these: they have one element a row."""

_AXES = np.dtype([("rank", np.int64), ("length", np.int64, MAX_RANK), ("stride", np.int64, (len(OPERANDS), MAX_RANK))])
_MORE = np.dtype([("stride", np.int64, (MORE, MAX_RANK))])
_LAYOUT = np.dtype([("rows", np.int64), ("n", np.int64), ("outer", _AXES), ("inner", _AXES)])

Strides = tuple[int, ...]


class Layout(NamedTuple):
    """Rows of ``n`` elements."""

    rows: int
    n: int
    struct: np.ndarray[Any, Any]
    """What a kernel is given."""
    more: np.ndarray[Any, Any]
    """``more_strides`` there: those of the operands beyond."""
    steps: tuple[int, ...]
    """By operand, the distance in bytes of neighbours in a row where one step reaches them all, else 0."""
    alignment: tuple[int, ...]
    """By operand, the largest power of two that divides all its strides from row to row."""


@lru_cache(maxsize=1024)
def layout_of(shape: tuple[int, ...], axes: tuple[int, ...], strides: tuple[Strides | None, ...]) -> Layout:
    """Return the layout of an array of ``shape`` whose ``axes`` are the rows.

    ``strides`` are in bytes, one entry an operand, None for those that are not there; operands beyond ``OPERANDS``
    have one element a row.

    Raises
    ------
    ValueError
        For more axes than a kernel takes.
    """
    full = [(0,) * len(shape) if given is None else given for given in strides]
    inner = _merged(shape, axes, full)
    outer = _merged(shape, tuple(k for k in range(len(shape)) if k not in axes), full)
    struct, more = np.zeros((), _LAYOUT), np.zeros((), _MORE)
    rows, n = _fill(struct["outer"], outer), _fill(struct["inner"], inner)
    struct["rows"], struct["n"] = rows, n
    for k, (_, beyond) in enumerate(outer):
        more["stride"][: len(beyond) - len(OPERANDS), k] = beyond[len(OPERANDS) :]
    struct.flags.writeable = more.flags.writeable = False
    steps = tuple(inner[0][1][k] if len(inner) == 1 else 0 for k in range(len(OPERANDS)))
    alignment = tuple(_power_of_two(axis[1][k] for axis in outer) for k in range(len(OPERANDS)))
    return Layout(rows, n, struct, more, steps, alignment)


_Axis = tuple[int, tuple[int, ...]]
"""Length, and the stride of each operand."""


def _merged(shape: tuple[int, ...], axes: tuple[int, ...], strides: list[Strides]) -> list[_Axis]:
    """Return the axes ordered by the input's strides, the largest first, and joined where all operands allow it."""
    found: list[_Axis] = [(shape[k], tuple(s[k] for s in strides)) for k in axes if shape[k] != 1]
    found.sort(key=lambda axis: -abs(axis[1][0]))
    merged: list[_Axis] = []
    for length, steps in found:
        if merged and all(before == length * step for before, step in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * length, steps)
        else:
            merged.append((length, steps))
    return merged or [(1, (0,) * len(strides))]


def _fill(struct: np.ndarray[Any, Any], axes: list[_Axis]) -> int:
    if len(axes) > MAX_RANK:
        raise ValueError(
            f"the layout has {len(axes)} axes that cannot be joined, and the CUDA kernels take {MAX_RANK}: "
            "pass a contiguous copy"
        )
    struct["rank"] = len(axes)
    total = 1
    for k, (length, steps) in enumerate(axes):
        struct["length"][k] = length
        struct["stride"][:, k] = steps[: len(OPERANDS)]
        total *= length
    return total


def _power_of_two(strides: Any) -> int:
    together = 1 << 12
    for stride in strides:
        together |= abs(stride)
    return together & -together
