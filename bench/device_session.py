"""One run on a card: ``python -m bench --backend cuda``."""

import importlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

import dualsoft
from bench.contest import Call, Rate
from bench.device import CACHE_FACTOR, Clock, Device, Rotation, Turn, this_device
from bench.device_attention import DeviceAttention
from bench.device_contest import SAMPLE_ROWS, DeviceOperation, libraries
from bench.libraries import Library, reason
from bench.machine import commit, machine, versions
from bench.measure import OURS, TRIALS, Result, Row, measure
from bench.operation import Operation
from bench.options import RESULTS, Options
from bench.session import FORMAT, WIDTH, as_file_name, cases_of, measured, save, status_of, time_stamp

SIMULATED = "SIMULATED: the clock of this run is a stand-in for tests of the benchmark. NO TIME BELOW IS A MEASUREMENT."


def run_on_card(options: Options) -> int:
    """Measure on CuPy's current device; without one, say why and return 1."""
    why_not = dualsoft.backends()["cuda"]
    if why_not is not None:
        print(f"there is nothing to measure: the backend 'cuda' cannot be used: {why_not}", file=sys.stderr)
        return 1
    return run(options, this_device())


def run(options: Options, device: Device) -> int:
    """Measure what was asked for on a device, print and save it; return the exit status."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    clock = Clock(device)
    plain = [importlib.import_module(f"bench.operations.{name}").OPERATION for name in options.operations]
    operations = [_on_card(operation, clock) for operation in plain]
    work = [(operation, case) for operation in operations for case in cases_of(operation, options)]
    if not work:
        print("no case is left to measure: --quick leaves out large ones, and --cases others", file=sys.stderr)
        return 2
    contenders = dict(libraries(device, options.peers))
    header = _header(options, device)
    _print_header(console, header, contenders)
    launching: dict[str, dict[str, float]] = {}
    rows = measured(console, work, contenders, options, _measure_with(clock, launching))
    path = save(options.json or _json_path(options, header), header | {"host_seconds": launching}, rows)
    console.print(f"every time is in {path}")
    if options.plot is not None:
        from bench.plot import save_plot

        save_plot(options.plot, header, rows)
        console.print(f"the figure is in {options.plot}")
    if device.simulated:
        console.print(SIMULATED)
    return status_of(rows)


def _on_card(operation: Any, clock: Clock) -> DeviceOperation | DeviceAttention:
    kind = DeviceOperation if isinstance(operation, Operation) else DeviceAttention
    return kind(operation, clock)


def _measure_with(clock: Clock, launching: dict[str, dict[str, float]]) -> Callable[..., Row]:
    """Return `bench.measure.measure` by a device's clock; ``launching`` gets the seconds that calls take the host."""

    def measure_case(
        operation: Any,
        case: Any,
        contenders: dict[str, Library | str],
        threads: int,
        repeat: int,
        tick: Callable[[], None],
    ) -> Row:
        if case.dtype == "bfloat16" and clock.device.versions["cupy"].startswith("13."):
            return _row_without_times(operation, case, "not installed (CuPy 14, the first with bfloat16)")
        turns: list[Turn] = []

        def timed(call: Call) -> Rate:
            if not isinstance(call, Rotation):
                raise TypeError(f"a contender on a card is called by a Rotation, not by {call!r}")
            turns.append(Turn(clock, call))
            return Rate(turns[-1].rate, 1.0)

        def trial(call: Call) -> float:
            return clock.span(call, TRIALS, 0.0).device

        try:
            row = measure(operation, case, contenders, threads, repeat, tick, timed, trial)
        except Exception as error:  # a case that this card has no memory for must not end the run
            return _row_without_times(operation, case, f"fails: {reason(error)}")
        seconds = {turn.name: min(span.host for span in turn.spans) for turn in turns}
        launching[f"{row.operation} {row.case} {row.dtype}"] = seconds
        return row

    return measure_case


def _row_without_times(operation: Any, case: Any, why: str) -> Row:
    work = operation.work(case, 0)
    return Row(
        operation.name, work.case, work.shape, work.axis, case.dtype, work.bytes_moved, work.flops, work.ceiling,
        ceilings=(), baselines=(), results={OURS: Result([], reason=why)},
    )  # fmt: skip


def _header(options: Options, device: Device) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "simulated": device.simulated,
        "backend": "cuda",
        "machine": machine()
        | {
            "card": device.name,
            "compute_capability": device.capability,
            "l2_bytes": device.cache_bytes,
            "memory_bytes": device.memory_bytes,
        },
        "versions": versions() | device.versions,
        "commit": commit(),
        "repeat": options.repeat,
    }


def _print_header(console: Console, header: dict[str, Any], contenders: dict[str, Library | str]) -> None:
    where, found = header["machine"], header["versions"]
    if header["simulated"]:
        console.print(SIMULATED)
    console.print(
        f"{where['card']}, compute capability {where['compute_capability']}, L2 {where['l2_bytes'] / 2**20:.0f} MiB; "
        f"CuPy {found['cupy']}, NVRTC {found['nvrtc']}, driver {found['cuda driver']}; commit {header['commit']}",
        soft_wrap=True,
    )
    names = ", ".join(f"{lib.name} {lib.version}" for lib in contenders.values() if isinstance(lib, Library))
    console.print(f"{header['repeat']} repetitions in turns: {names}", soft_wrap=True)
    console.print(
        "times are the card's, between two events, launches hidden behind other work; buffers take turns, together "
        f"{CACHE_FACTOR} times the L2 cache or more, or used once; up to {SAMPLE_ROWS} rows or columns "
        "of a result are compared, of attention the last head of keys with its queries",
        soft_wrap=True,
    )
    for name, library in contenders.items():
        if isinstance(library, str):
            console.print(f"{name}: {library}", soft_wrap=True)
    console.print()


def _json_path(options: Options, header: dict[str, Any]) -> Path:
    # In a folder of its own: the table of README.md is filled from the files of bench/results.
    folder = f"gpu-{as_file_name(header['machine']['card'])}-{time_stamp(header)}"
    return RESULTS / folder / f"{'-'.join(options.operations)}.json"
