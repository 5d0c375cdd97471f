"""``python -m bench --readme``: the tables of figures in README.md, written from saved results and nothing else."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DTYPE = "float32"
FAMILY = ("softmax", "log_softmax", "logsumexp", "cumulative_logsumexp")
GRADIENTS = ("attention_backward",)
NOT_PEERS = ("dualsoft", "dualsoft float32", "read", "copy")
"""Of files that were saved before rows named their ceilings and baselines."""

Row = dict[str, Any]


def fill(source: Path, readme: Path = README) -> int:
    """Put the tables of ``source`` between their markers of a README.

    Parameters
    ----------
    source : Path
        JSON that the benchmark saved; of a folder, for each table the latest run with rows for it.
    readme : Path
        The file to change. A table for which nothing was saved stays.

    Returns
    -------
    int
        The exit status: 0, or 1 when there is nothing to read or no place to write; the reason is printed.
    """
    files = list(source.glob("*.json")) if source.is_dir() else [source]
    if not files or not files[0].is_file():
        print(f"no saved results at {source}: run python -m bench first", file=sys.stderr)
        return 1
    text = readme.read_text(encoding="utf-8")
    runs = [(file.name, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    runs.sort(key=lambda run: str(run[1]["date"]), reverse=True)
    written = 0
    for table, wanted, make in TABLES:
        begin, end = markers(table)
        found = [(name, saved) for name, saved in runs if any(wanted(row) for row in saved["rows"])]
        if not found:
            continue
        if text.count(begin) != 1 or text.count(end) != 1:
            print(f"{readme} must have {begin} and {end} once each", file=sys.stderr)
            return 1
        name, saved = found[0]
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{make(saved | {'rows': [row for row in saved['rows'] if wanted(row)]})}\n{end}{after}"
        print(f"{readme.name}: table written from {name}")
        written += 1
    if not written:
        print(f"{source} has no rows for a table of {readme.name}", file=sys.stderr)
        return 1
    readme.write_text(text, encoding="utf-8")
    return 0


def markers(table: str) -> tuple[str, str]:
    """Return the lines between which a table stands."""
    name = f"bench {table}".rstrip()
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def is_attention(row: Row) -> bool:
    """Return whether a row is not along one axis, which is attention."""
    return bool(row["axis"] is None)


def is_plain(row: Row) -> bool:
    """Return whether a row is of float32 along an axis."""
    return not is_attention(row) and bool(row["dtype"] == DTYPE)


def markdown(saved: dict[str, Any]) -> str:
    """Return the table of the float32 rows along an axis, below a line that says where and when it was measured."""
    lines = [
        *_measured(saved),
        "| operation, float32 | dualsoft | GB/s | of memory's ceiling | torch | best peer |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [_line(row) for row in saved["rows"]]
    return "\n".join(lines)


def attention_markdown(saved: dict[str, Any]) -> str:
    """Return the table of attention in every dtype that was measured."""
    lines = [
        *_measured(saved),
        "| operation | dtype | dualsoft | rate | of the ceiling | torch | best peer |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [_attention_line(row) for row in saved["rows"]]
    return "\n".join(lines)


TABLES: tuple[tuple[str, Callable[[Row], bool], Callable[[dict[str, Any]], str]], ...] = (
    ("", lambda row: is_plain(row) and row["operation"] in FAMILY, markdown),
    ("losses", lambda row: is_plain(row) and row["operation"] not in FAMILY, markdown),
    ("attention", lambda row: is_attention(row) and row["operation"] not in GRADIENTS, attention_markdown),
    ("gradients", lambda row: is_attention(row) and row["operation"] in GRADIENTS, attention_markdown),
)


def _measured(saved: dict[str, Any]) -> list[str]:
    machine, versions = saved["machine"], saved["versions"]
    peers = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in ("python", "dualsoft"))
    return [
        f"{machine['cpu']}, {saved['threads']} threads, level `{saved['level']}`, {saved['date'][:10]}, "
        f"commit `{saved['commit']}`, Python {versions['python']}, {peers}. Medians of {saved['repeat']} repetitions "
        "in turns; of a peer, its time over dualsoft's.",
        "",
    ]


def _line(row: Row) -> str:
    what = f"`{row['operation']}` {_case(row)}"
    times = _times(row)
    if "dualsoft" not in times:
        return f"| {what} | {row['results']['dualsoft']['reason']} | | | | |"
    ours = times["dualsoft"]
    share, torch, best = _against(row, times)
    rate = f"{row['bytes_moved'] / ours / 1e9:.1f}".removeprefix("0.0")
    return f"| {what} | {_time(ours)} | {rate} | {share} | {torch} | {best} |"


def _case(row: Row) -> str:
    """Return the shape and what else tells a case from others."""
    if "case" in row:
        return str(row["case"]).replace(") ", "), ")
    # Of files that were saved before rows named their case.
    shape = ", ".join(map(str, row["shape"]))
    return f"({shape})" + ("" if row["axis"] == -1 else f", axis {row['axis']}")


def _attention_line(row: Row) -> str:
    what = f"`{row['operation']}` {row['case']} | {row['dtype']}"
    times = _times(row)
    if "dualsoft" not in times:
        return f"| {what} | {row['results']['dualsoft']['reason']} | | | | |"
    ours = times["dualsoft"]
    amount, unit = (row["flops"], "GFLOP/s") if row["flops"] else (row["bytes_moved"], "GB/s")
    share, torch, best = _against(row, times, digits=2)
    whole = times.get("dualsoft without block_mask")
    if whole is not None:
        share = f"{share}; {whole / ours:.1f}x without `block_mask`".removeprefix("; ")
    return f"| {what} | {_time(ours)} | {amount / ours / 1e9:.0f} {unit} | {share} | {torch} | {best} |"


def _times(row: Row) -> dict[str, float]:
    return {name: result["median"] for name, result in row["results"].items() if result["median"] is not None}


def _against(row: Row, times: dict[str, float], digits: int = 1) -> tuple[str, str, str]:
    """Return the cells that set dualsoft's time against the ceiling, torch and the fastest peer."""
    ours = times["dualsoft"]
    left_out = (*NOT_PEERS, *row.get("ceilings", ()), *row.get("baselines", ()))
    peers = {name: time for name, time in times.items() if name not in left_out}
    best = min(peers, key=peers.__getitem__, default=None)
    share = f"{times[row['ceiling']] / ours:.0%} ({row['ceiling']})" if row["ceiling"] in times else ""
    torch = f"{times['torch'] / ours:.{digits}f}x" if "torch" in times else ""
    return share, torch, "" if best is None else f"{peers[best] / ours:.{digits}f}x ({best})"


def _time(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
