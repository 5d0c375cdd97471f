"""One run: header, rows, tables, files, exit status."""

import importlib
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import dualsoft
from bench.libraries import Library, dualsoft_library, load
from bench.machine import commit, machine, versions
from bench.measure import OURS, Row, measure, ours_failed, row_record
from bench.operation import Case, Operation
from bench.options import QUICK_ELEMENTS, RESULTS, Options
from bench.report import footnotes, table
from dualsoft import isa

FORMAT = 1
WIDTH = 150
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
        print("no shape is left to measure: --quick leaves out large arrays", file=sys.stderr)
        return 2
    libraries: dict[str, Library | str] = {OURS: dualsoft_library()}
    libraries |= load(options.peers, options.threads)
    header = _header(options)
    _print_header(console, header, libraries)
    rows = _measured(console, work, libraries, options)
    path = _save(options, header, rows)
    console.print(f"every time is in {path}")
    if options.plot is not None:
        from bench.plot import save_plot

        save_plot(options.plot, header, rows)
        console.print(f"the figure is in {options.plot}")
    failures = [(row, why) for row in rows if (why := ours_failed(row)) is not None]
    for row, why in failures:
        print(f"dualsoft failed: {row.operation} {row.shape} axis {row.axis} {row.dtype}: {why}", file=sys.stderr)
    return 1 if failures else 0


def cases_of(operation: Operation, options: Options) -> list[Case]:
    """Return the cases of an operation that the options leave, or the shapes that they name."""
    if options.shapes is not None:
        return [Case(shape, dtype) for dtype in options.dtypes or ("float32",) for shape in options.shapes]
    cases = operation.cases
    if options.dtypes is not None:
        shapes = dict.fromkeys(case.shape for case in cases)
        listed = [case for case in cases if case.dtype in options.dtypes]
        extra = [d for d in options.dtypes if all(case.dtype != d for case in cases)]
        cases = (*listed, *(Case(shape, dtype) for dtype in extra for shape in shapes))
    if not options.quick:
        return list(cases)
    sizes = [(case, _elements(case)) for case in cases]
    return [case for case, elements in sizes if elements <= QUICK_ELEMENTS]


def _elements(case: Case) -> int:
    elements = 1
    for length in case.shape.lengths:
        elements *= length
    return elements


def _measured(
    console: Console, work: list[tuple[Operation, Case]], libraries: dict[str, Library | str], options: Options
) -> list[Row]:
    rows: list[Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(work) * options.repeat)
        for position, (operation, case) in enumerate(work):
            progress.update(task, description=f"{operation.name} {case.shape} {case.dtype}")
            rows.append(
                measure(operation, case, libraries, options.threads, options.repeat, lambda: progress.advance(task))
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


def _save(options: Options, header: dict[str, Any], rows: list[Row]) -> Path:
    path = options.json
    if path is None:
        cpu = re.sub(r"[^a-z0-9]+", "-", header["machine"]["cpu"].lower()).strip("-")
        what = "-".join(options.operations)
        path = RESULTS / f"{header['date'].replace(':', '').replace('+0000', 'Z')}-{cpu}-{what}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(header | {"rows": [row_record(row) for row in rows]}, indent=1) + "\n")
    return path
