"""The table of one operation, and the notes below it."""

from rich.table import Table

from bench.measure import OURS, Row


def seconds(value: float | None) -> str:
    """Return a time with its unit, three digits."""
    if value is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 * scale else f"{value / scale:.0f} {unit}"
    return f"{value * 1e9:.3g} ns"


def ratio(row: Row, other: str) -> float | None:
    """Return the other contender's time over dualsoft's."""
    ours, theirs = row.results[OURS].median, row.results[other].median if other in row.results else None
    return None if ours is None or theirs is None else theirs / ours


def peers(row: Row) -> list[str]:
    """Return the names of the other libraries."""
    return [name for name in row.results if name not in (OURS, *row.baselines, *row.ceilings)]


def best_peer(row: Row) -> tuple[str, float] | None:
    """Return the fastest of the other libraries with its ratio."""
    found = [(name, ratio(row, name)) for name in peers(row)]
    timed = [(name, value) for name, value in found if value is not None]
    return min(timed, key=lambda pair: pair[1]) if timed else None


def rate(row: Row, name: str = OURS) -> float | None:
    """Return what must be done over the median time: operations where they bound the case, else bytes; in 10^9/s."""
    median = row.results[name].median if name in row.results else None
    return None if median is None else (row.flops or row.bytes_moved) / median / 1e9


def unit(row: Row) -> str:
    """Return the unit of the rate."""
    return "GFLOP/s" if row.flops else "GB/s"


def share(row: Row) -> float | None:
    """Return dualsoft's rate as a share of the ceiling's, measured in the same run."""
    return ratio(row, row.ceiling)


def table(operation: str, rows: list[Row], names: list[str]) -> Table:
    """Return the table: dualsoft's time and rate, then how many times as long every peer takes that could be timed."""
    made = Table(title=f"{operation}: medians; of a peer, its time over dualsoft's", title_justify="left")
    made.add_column("case", no_wrap=True)
    made.add_column("dtype")
    for heading in ("dualsoft", unit(rows[0]), "of ceiling", "its other calls", "worst ulp", "best peer"):
        made.add_column(heading, justify="right")
    others = [name for name in names if any(name in peers(row) and row.results[name].times for row in rows)]
    for name in others:
        made.add_column(name, justify="right")
    for row in rows:
        made.add_row(*_cells(row, others))
    return made


def _cells(row: Row, others: list[str]) -> list[str]:
    ours, best, of_ceiling = row.results[OURS], best_peer(row), share(row)
    against = [(name, ratio(row, name)) for name in row.baselines]
    speed = rate(row)
    cells = [
        row.case,
        row.dtype,
        seconds(ours.median),
        "-" if speed is None else f"{speed:.1f}",
        "" if of_ceiling is None else f"{of_ceiling:.0%} {row.ceiling}",
        "\n".join(f"{name.removeprefix(OURS).strip()} {_times(value)}" for name, value in against),
        "-" if ours.error_ulp is None else f"{ours.error_ulp:.2g}",
        "-" if best is None else f"{best[1]:.2f}x",
    ]
    return [*cells, *(_times(ratio(row, name)) for name in others)]


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def footnotes(rows: list[Row]) -> list[str]:
    """Return what was checked, and why contenders are absent."""
    errors: dict[str, float] = {}
    absent: dict[tuple[str, str], list[str]] = {}
    forms: dict[tuple[str, str], list[str]] = {}
    notes: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, result in row.results.items():
            if result.error_ulp is not None:
                errors[name] = max(errors.get(name, 0.0), result.error_ulp)
            if result.reason is not None:
                absent.setdefault((name, result.reason), []).append(f"{row.case} {row.dtype}")
            if result.form:
                forms.setdefault((name, result.form), []).append(f"{row.case} {row.dtype}")
            if result.note:
                notes.setdefault((name, result.note), []).append(f"{row.case} {row.dtype}")
    worst = ", ".join(f"{name} {value:.3g}" for name, value in errors.items())
    lines = [f"  all results were compared with wider arithmetic before timing; worst errors in ulp: {worst}"]
    for heading, found in (("fastest as", forms), ("", notes), ("", absent)):
        for (name, what), where in found.items():
            rows_named = "all rows" if len(where) == len(rows) else ", ".join(where)
            lines.append(f"  - {name}: {heading}{' ' if heading else ''}{what} ({rows_named})")
    for ceiling in dict.fromkeys(name for row in rows for name in row.ceilings):
        measured = [value for row in rows if (value := rate(row, ceiling)) is not None]
        if measured:
            lines.append(f"  {ceiling} ceiling: {min(measured):.1f} to {max(measured):.1f} {unit(rows[0])} in this run")
    return [*lines, ""]
