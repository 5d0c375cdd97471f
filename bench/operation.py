"""What an operation's file declares."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from bench.options import Shape

Array = Any
"""A NumPy array, or the array of the library at hand."""

Contender = Callable[[Any, Array, int, Array], Array]
"""(library's module, x, axis, out) -> result. ``out`` is a result-shaped array for those that can write to one."""

BASELINE = "float32"
"""Half types are compared with dualsoft's time in this dtype."""


class Case(NamedTuple):
    """One row of the table."""

    shape: Shape
    dtype: str


class Operation(NamedTuple):
    """An operation to be timed.

    ``exact`` computes the result from wide x; ``size`` gives, from wide x, that result and the axis, the size whose
    ulp counts the errors. ``contenders`` may name a library with a string, the reason why it does not take part.
    """

    name: str
    cases: tuple[Case, ...]
    reduces: bool
    """Whether the result lacks the axis."""
    ceiling: Literal["read", "copy"]
    """What memory allows: reading x once, or reading it once and writing as much."""
    exact: Callable[[Array, int], Array]
    size: Callable[[Array, Array, int], Array]
    contenders: Mapping[str, Contender | str]

    def result_shape(self, shape: Shape) -> tuple[int, ...]:
        """Return the shape of the result for an input of ``shape``."""
        if not self.reduces:
            return shape.lengths
        axis = shape.axis % len(shape.lengths)
        return shape.lengths[:axis] + shape.lengths[axis + 1 :]

    def bytes_moved(self, x: Array, out: Array) -> int:
        """Return the bytes that must cross memory: the input read once and the result written once."""
        return int(x.nbytes + out.nbytes)


SQUARE = Shape((4096, 4096), -1)
THOUSAND = Shape((1000, 1000), -1)
VOCABULARY = Shape((16, 50257), -1)
SHORT_ROWS = Shape((200_000, 16), -1)
COLUMNS = Shape((4096, 4096), 0)
LONG_ROW = Shape((1, 2**24), -1)
TINY = Shape((64, 64), -1)

SOFTMAX_CASES = (
    *(Case(shape, "float32") for shape in (SQUARE, THOUSAND, VOCABULARY, SHORT_ROWS, COLUMNS, LONG_ROW, TINY)),
    *(Case(shape, dtype) for dtype in ("float16", "bfloat16") for shape in (SQUARE, THOUSAND, VOCABULARY)),
)


def distance(x: Array, axis: int) -> Array:
    """Return ``|x - m|``, m the maximum along the axis."""
    return np.max(x, axis=axis, keepdims=True) - x
