"""``python -m bench --readme``: the table of figures in README.md, written from saved results and nothing else."""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
DTYPE = "float32"
NOT_PEERS = ("dualsoft", "dualsoft float32", "read", "copy")


def fill(source: Path, readme: Path = README) -> int:
    """Put the table of ``source``, a file or the newest file of a folder, between the two markers of a README.

    Parameters
    ----------
    source : Path
        JSON that the benchmark saved.
    readme : Path
        The file to change.

    Returns
    -------
    int
        The exit status: 0, or 1 when there is nothing to read or no place to write; the reason is printed.
    """
    files = sorted(source.glob("*.json"), key=lambda file: file.stat().st_mtime) if source.is_dir() else [source]
    if not files or not files[-1].is_file():
        print(f"no saved results at {source}: run python -m bench first", file=sys.stderr)
        return 1
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        print(f"{readme} must have {BEGIN} and {END} once each", file=sys.stderr)
        return 1
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = markdown(json.loads(files[-1].read_text(encoding="utf-8")))
    readme.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")
    print(f"{readme.name}: table written from {files[-1].name}")
    return 0


def markdown(saved: dict[str, Any]) -> str:
    """Return the table of the float32 rows of a saved run, below a line that says where and when it was measured."""
    machine, versions = saved["machine"], saved["versions"]
    peers = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in ("python", "dualsoft"))
    lines = [
        f"{machine['cpu']}, {saved['threads']} threads, level `{saved['level']}`, {saved['date'][:10]}, "
        f"commit `{saved['commit']}`, Python {versions['python']}, {peers}. Medians of {saved['repeat']} repetitions "
        "in turns; of a peer, its time over dualsoft's.",
        "",
        "| operation, float32 | dualsoft | GB/s | of memory's ceiling | torch | best peer |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [_line(row) for row in saved["rows"] if row["dtype"] == DTYPE]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    times = {name: result["median"] for name, result in row["results"].items() if result["median"] is not None}
    shape = ", ".join(map(str, row["shape"]))
    what = f"`{row['operation']}` ({shape})" + ("" if row["axis"] == -1 else f", axis {row['axis']}")
    ours = times.get("dualsoft")
    if ours is None:
        return f"| {what} | {row['results']['dualsoft']['reason']} | | | | |"
    peers = {name: time for name, time in times.items() if name not in NOT_PEERS}
    best = min(peers, key=peers.__getitem__, default=None)
    share = f"{times[row['ceiling']] / ours:.0%} ({row['ceiling']})" if row["ceiling"] in times else ""
    torch = f"{times['torch'] / ours:.1f}x" if "torch" in times else ""
    against = "" if best is None else f"{peers[best] / ours:.1f}x ({best})"
    return f"| {what} | {_time(ours)} | {row['bytes_moved'] / ours / 1e9:.1f} | {share} | {torch} | {against} |"


def _time(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
