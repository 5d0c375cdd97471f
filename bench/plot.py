"""A figure of the ratios."""

import importlib
from pathlib import Path
from typing import Any

from bench.measure import OURS, Row
from bench.report import peers, ratio


def save_plot(path: Path, header: dict[str, Any], rows: list[Row]) -> None:
    """Save a figure: one group of bars a row, each bar a peer's time over dualsoft's.

    Parameters
    ----------
    path : Path
        Its suffix decides the format.
    header : dict
        Machine, date, threads.
    rows : list of Row
    """
    names = list(dict.fromkeys(name for row in rows for name in peers(row)))
    # pyplot would look for a display.
    size = (9, 1.2 + 0.16 * len(rows) * (len(names) + 1))
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    height = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        points = [(position, ratio(row, name)) for position, row in enumerate(rows)]
        timed = [(position + index * height, value) for position, value in points if value is not None]
        axes.barh([at for at, _ in timed], [value - 1 for _, value in timed], height, left=1, label=name)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel(f"time over {OURS}'s (log scale)")
    labels = [f"{row.operation} {row.case} {row.dtype}" for row in rows]
    axes.set_yticks([position + 0.4 - height / 2 for position in range(len(rows))], labels, fontsize=8)
    axes.invert_yaxis()
    if names:
        axes.legend()
    axes.set_title(f"{_where(header)}, {header['date'][:10]}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _where(header: dict[str, Any]) -> str:
    machine = header["machine"]
    if "card" in machine:
        return f"{machine['card']}{' (SIMULATED: no measurement)' if header['simulated'] else ''}"
    return f"{machine['cpu']}, {header['level']}, {header['threads']} threads"
