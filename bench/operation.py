"""Operations along an axis: what their files declare, and how a case of theirs is made ready."""

import math
import tracemalloc
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from bench.ceilings import ceiling_call
from bench.contest import BASELINE, Array, Call, Form, Rate, Verdict, Work
from bench.libraries import Contender, Library
from bench.options import Shape
from dualsoft import accuracy


class Case(NamedTuple):
    """One row of the table."""

    shape: Shape
    dtype: str
    kept: int | None = None
    """How many elements the result has along the axis, where it is not the operation's number."""

    @property
    def label(self) -> str:
        """How the row is called."""
        return f"{self.shape}{'' if self.kept is None else f' k={self.kept}'}"

    @property
    def elements(self) -> int:
        """The size that ``--quick`` looks at: the elements of x."""
        return math.prod(self.shape.lengths)


class Operation(NamedTuple):
    """An operation along an axis, to be timed.

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
    result_length: int | None = None
    """How many elements the result has along the axis, of an operation that chooses some; ``exact`` may have more."""
    takes_shapes: bool = True
    """Whether ``--shapes`` can replace its cases."""
    beside: Mapping[str, Contender] = MappingProxyType({})
    """Calls that dualsoft's time is set against: what a part of the work takes."""
    stored: Callable[[Array], tuple[int, str]] | None = None
    """For x, the bytes of what others store and what that is; a note says what dualsoft's call allocates instead."""

    def result_shape(self, case: Case) -> tuple[int, ...]:
        """Return the shape of the result of a case."""
        lengths, axis = case.shape.lengths, case.shape.axis % len(case.shape.lengths)
        before, length, after = lengths[:axis], lengths[axis], lengths[axis + 1 :]
        if self.reduces:
            return before + after
        kept = case.kept or self.result_length or length
        return (*before, min(length, kept), *after)

    def bytes_moved(self, x: Array, out: Array) -> int:
        """Return the bytes that must cross memory: the input read once and the result written once."""
        return int(x.nbytes + out.nbytes)

    def with_dtype(self, case: Case, dtype: str) -> Case:
        """Return a case in another dtype."""
        return case._replace(dtype=dtype)

    def contest(self, case: Case, dtype: np.dtype[Any]) -> "AxisContest":
        """Make a case ready."""
        return AxisContest(self, case, dtype)

    def work(self, case: Case, moved: int) -> Work:
        """Describe a case."""
        return Work(case.label, case.shape.lengths, case.shape.axis, moved, 0.0, self.ceiling)


class Truth:
    """The result for one input from wide arithmetic, and the limits on the errors of other results.

    ``shape`` is that of the result. ``backend`` is whose bound dualsoft's results are held to: as
    `dualsoft.accuracy.bound` takes it.
    """

    def __init__(
        self, operation: Operation, x: Array, axis: int, shape: tuple[int, ...], backend: str | None = None
    ) -> None:
        dtype = x.dtype
        wide = x.astype(np.longdouble if dtype == np.float64 else np.float64)
        self.exact = operation.exact(wide, axis)[tuple(map(slice, shape))]
        size = operation.size(wide, self.exact, axis)
        spread = float(np.max(np.max(wide, axis=axis) - np.min(wide, axis=axis)))
        bound = accuracy.bound(operation.name, dtype, n=x.shape[axis], spread=spread, backend=backend)
        self.spacing = accuracy.ulp(size, dtype)
        self.limit = bound.ulp * self.spacing + bound.absolute
        # Half of the dtype's digits: beyond it something else was computed.
        self.shared_limit = math.sqrt(accuracy.unit_roundoff(dtype)) * np.abs(size) + accuracy.ulp(0.0, dtype)

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare a result with the exact one, element by element."""
        distance = np.abs(found.astype(self.exact.dtype) - self.exact)
        limit, called = (self.limit, "its bound") if ours else (self.shared_limit, "half of the digits")
        # Written so that NaN is wrong too.
        right = bool(np.all(distance <= limit))
        return Verdict(float(np.max(distance / self.spacing)), None if right else called)


class AxisContest:
    """One case of an operation along an axis: x, and its result from wide arithmetic."""

    def __init__(self, operation: Operation, case: Case, dtype: np.dtype[Any]) -> None:
        self.operation = operation
        self.axis = case.shape.axis
        self.x = np.random.default_rng(0).standard_normal(case.shape.lengths, dtype=np.float32).astype(dtype)
        self.result_shape = operation.result_shape(case)
        self.work = operation.work(case, operation.bytes_moved(self.x, np.empty(self.result_shape, dtype)))
        self.truth = Truth(operation, self.x, self.axis, self.result_shape)

    def forms(self, name: str, library: Library) -> dict[str, Form] | str:
        """Return the library's one call."""
        function = self.operation.contenders.get(name, f"{self.operation.name} has no contender for it")
        if isinstance(function, str):
            return function
        call = self._bound(library, function, self.x)
        return {"": Form(call, library.taken, self._note(call) if name == "dualsoft" else "")}

    def _note(self, call: Call) -> str:
        if self.operation.stored is None:
            return ""
        tracemalloc.start()
        call()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        stored, what = self.operation.stored(self.x)
        return f"allocates {most / 2**20:.1f} MiB, 1/{stored / most:.1f} of the {stored / 2**20:.1f} MiB of {what}"

    def _bound(self, library: Library, function: Contender, x: Array) -> Call:
        module, given = library.module, library.given
        return library.bound(
            module, function, given(module, x), self.axis, given(module, np.empty(self.result_shape, x.dtype))
        )

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare a result with the exact one, element by element."""
        return self.truth.judge(found, ours)

    def baselines(self, library: Library) -> dict[str, Call]:
        """Return dualsoft in float32, beside half types, and what the operation's time is set against."""
        beside = self.operation.beside
        found = {name: self._bound(library, function, self.x) for name, function in beside.items()}
        function = self.operation.contenders[library.name]
        if self.x.dtype.itemsize < 4 and not isinstance(function, str):
            found[f"{library.name} {BASELINE}"] = self._bound(library, function, self.x.astype(BASELINE))
        return found

    def ceilings(self, threads: int) -> dict[str, Call | Rate | str]:
        """Return memory's, for arrays that no cache holds."""
        kind = self.operation.ceiling
        found = ceiling_call(kind, self.x, threads)
        return {} if found is None else {kind: found}


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
