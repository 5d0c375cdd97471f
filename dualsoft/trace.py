"""The running pair, step by step: for teaching."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from dualsoft.problem import vector
from dualsoft.state import SoftmaxState


class TraceRow(NamedTuple):
    """One step: the element that was read, None at the start, and the pair after it."""

    element: float | None
    m: float
    d: float


class Trace(Sequence[TraceRow]):
    """The steps of online softmax over a row; prints as a table."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[TraceRow]) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> TraceRow: ...
    @overload
    def __getitem__(self, index: slice) -> "Trace": ...
    def __getitem__(self, index: int | slice) -> "TraceRow | Trace":
        return Trace(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __iter__(self) -> Iterator[TraceRow]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return self._rows == other._rows if isinstance(other, Trace) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._rows)

    def __str__(self) -> str:
        cells = [("element", "m", "d")]
        for row in self._rows:
            start = row.element is None
            cells.append(("start" if start else f"{row.element:g}", f"{row.m:g}", "0" if start else f"{row.d:.4f}"))
        widths = [max(len(line[column]) for line in cells) for column in range(3)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells
        )

    __repr__ = __str__


def trace(x: Any) -> Trace:
    """Follow online softmax over a row: ``m' = max(m, x)``, ``d' = d·exp(m - m') + exp(x - m')``.

    Parameters
    ----------
    x : array_like
        One dimension; real. The host waits for a CuPy array.

    Returns
    -------
    Trace
        A sequence of rows (element, m, d), the first of them the start: (None, -inf, 0).

    Raises
    ------
    ValueError
        When ``x`` does not have one dimension.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    Algorithm 3 of M. Milakov and N. Gimelshein, *Online normalizer calculation for softmax*, 2018 (arXiv 1805.02867),
    in float64. From a NaN on, d is NaN; else from a +inf on, m and d are inf. The log-sum-exp is ``m + ln d``, in nats.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.trace([2, 1, 3, 0.5])
    element     m       d
      start  -inf       0
          2     2  1.0000
          1     2  1.3679
          3     3  1.5032
        0.5     3  1.5853
    """
    state = SoftmaxState.identity(())
    rows = [TraceRow(None, float(state.m), float(state.d))]
    for element in vector(x).tolist():
        state = state | SoftmaxState(element, float("nan") if element != element else float(element > float("-inf")))
        rows.append(TraceRow(element, float(state.m), float(state.d)))
    return Trace(rows)
