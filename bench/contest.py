"""What measuring asks of an operation: one case made ready, for whoever takes part."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

Array = Any
"""A NumPy array, or the array of the library at hand."""

Call = Callable[[], Array]
"""A call to be timed, complete when it returns."""

BASELINE = "float32"
"""Half types are compared with dualsoft's time in this dtype."""


class Form(NamedTuple):
    """One way in which a library can do the work."""

    call: Call
    read: Callable[[Array], Array]
    """The result of the call as a NumPy array that is laid out as the exact result is."""
    note: str = ""
    """What is worth saying below the table, beside times."""


class Verdict(NamedTuple):
    """How far a result is from wider arithmetic."""

    ulps: float
    limit: str | None
    """The limit that it is beyond, None where it is right."""


class Rate(NamedTuple):
    """A ceiling that measures itself: a call that returns units of work a second."""

    call: Callable[[], float]
    work: float


class Work(NamedTuple):
    """What a case is and what it takes; written to JSON."""

    case: str
    shape: tuple[int, ...]
    axis: int | None
    bytes_moved: int
    """Bytes that must cross memory: inputs read once, the result written once."""
    flops: float
    """Floating-point operations of matrix products, 0 where memory alone counts."""
    ceiling: str
    """The name of the ceiling that bounds the case; empty where it takes measuring to know."""


class Contest(Protocol):
    """A case made ready to be timed."""

    work: Work
    result_shape: tuple[int, ...]

    def forms(self, name: str, library: Any) -> Mapping[str, Form] | str:
        """Return the ways in which a library does it, or the reason why it does not take part."""

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare a result of the right shape with wider arithmetic: dualsoft's with its bound, others' loosely."""

    def baselines(self, library: Any) -> Mapping[str, Call]:
        """Return dualsoft's other calls that its time is set against."""

    def ceilings(self, threads: int) -> Mapping[str, Call | Rate | str]:
        """Return what does nothing but move the bytes or do the multiplications, or why that cannot be measured."""
