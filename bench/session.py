"""One run: header, rows, tables, files, exit status."""

import importlib
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import dualsoft
from bench.libraries import Library, dualsoft_library, load
from bench.machine import commit, machine, versions
from bench.measure import OURS, Row, measure, ours_failed, row_record
from bench.operation import Case
from bench.options import QUICK_ELEMENTS, RESULTS, Options
from bench.report import footnotes, table
from dualsoft import isa

FORMAT = 1
WIDTH = 180
"""Columns of the table where the output is no terminal."""


def run(options: Options) -> int:
    """Measure what was asked for, print and save it; return the exit status."""
    why_not = dualsoft.backends()["cpu"]
    if why_not is not None:
        print(f"there is nothing to measure: the compiled kernels cannot be used: {why_not}", file=sys.stderr)
        return 1
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    found = {name: importlib.import_module(f"bench.operations.{name}").OPERATION for name in options.operations}
    work = [(operation, case) for operation in found.values() for case in cases_of(operation, options)]
    if not work:
        left_out_by = "--quick leaves out large ones, --cases others, and --shapes is for operations along an axis"
        print(f"no case is left to measure: {left_out_by}", file=sys.stderr)
        return 2
    if left_out := [name for name, operation in found.items() if all(operation is not mine for mine, _ in work)]:
        print(f"no case is left of {', '.join(left_out)}", file=sys.stderr)
    libraries: dict[str, Library | str] = {OURS: dualsoft_library()}
    libraries |= load(options.peers, options.threads)
    header = _header(options)
    _print_header(console, header, libraries)
    rows = measured(console, work, libraries, options)
    path = save(options.json or _json_path(options, header), header, rows)
    console.print(f"every time is in {path}")
    if options.plot is not None:
        from bench.plot import save_plot

        save_plot(options.plot, header, rows)
        console.print(f"the figure is in {options.plot}")
    return status_of(rows)


def status_of(rows: list[Row]) -> int:
    """Say where dualsoft failed, and return the exit status."""
    failures = [(row, why) for row in rows if (why := ours_failed(row)) is not None]
    for row, why in failures:
        print(f"dualsoft failed: {row.operation} {row.case} {row.dtype}: {why}", file=sys.stderr)
    return 1 if failures else 0


def cases_of(operation: Any, options: Options) -> list[Any]:
    """Return the cases of an operation that the options leave, or the shapes that they name."""
    if options.shapes is not None:
        cases = [Case(shape, dtype) for dtype in options.dtypes or ("float32",) for shape in options.shapes]
        return cases if operation.takes_shapes else []
    cases = operation.cases
    if options.cases is not None:
        cases = [case for case in cases if any(words in case.label for words in options.cases)]
    if options.dtypes is not None:
        listed = [case for case in cases if case.dtype in options.dtypes]
        extra = [d for d in options.dtypes if all(case.dtype != d for case in cases)]
        plain = dict.fromkeys(operation.with_dtype(case, "") for case in cases)
        cases = [*listed, *(operation.with_dtype(case, dtype) for dtype in extra for case in plain)]
    return [case for case in cases if not options.quick or case.elements <= QUICK_ELEMENTS]


def measured(
    console: Console,
    work: list[tuple[Any, Any]],
    libraries: dict[str, Library | str],
    options: Options,
    measure_case: Callable[..., Row] = measure,
) -> list[Row]:
    """Measure every case and print each operation's table."""
    rows: list[Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(work) * options.repeat)
        for position, (operation, case) in enumerate(work):
            progress.update(task, description=f"{operation.name} {case.label} {case.dtype}")
            rows.append(
                measure_case(
                    operation, case, libraries, options.threads, options.repeat, lambda: progress.advance(task)
                )
            )
            if position + 1 == len(work) or work[position + 1][0] is not operation:
                mine = [row for row in rows if row.operation == operation.name]
                console.print(table(operation.name, mine, list(libraries)))
                for line in footnotes(mine):
                    console.print(line, soft_wrap=True)
    return rows


def _header(options: Options) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "level": isa.chosen(),
        "threads": options.threads,
        "repeat": options.repeat,
    }


def _print_header(console: Console, header: dict[str, Any], libraries: dict[str, Library | str]) -> None:
    where = header["machine"]
    caches = ", ".join(f"{name} {size}" for name, size in where["caches"].items()) or "caches unknown"
    console.print(f"{where['cpu']}, {where['processors']} processors, {caches}; level {header['level']}")
    names = ", ".join(f"{lib.name} {lib.version}" for lib in libraries.values() if isinstance(lib, Library))
    console.print(f"{header['threads']} threads, {header['repeat']} repetitions in turns, commit {header['commit']}")
    console.print(names, soft_wrap=True)
    for name, library in libraries.items():
        if isinstance(library, str):
            console.print(f"{name}: {library}", soft_wrap=True)
    console.print()


def as_file_name(text: str) -> str:
    """Return a text in small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def time_stamp(header: dict[str, Any]) -> str:
    """Return the date of a run as file names have it."""
    return str(header["date"]).replace(":", "").replace("+0000", "Z")


def _json_path(options: Options, header: dict[str, Any]) -> Path:
    name = f"{time_stamp(header)}-{as_file_name(header['machine']['cpu'])}-{'-'.join(options.operations)}.json"
    return RESULTS / name


def save(path: Path, header: dict[str, Any], rows: list[Row]) -> Path:
    """Write a run and return where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(header | {"rows": [row_record(row) for row in rows]}, indent=1) + "\n")
    return path
