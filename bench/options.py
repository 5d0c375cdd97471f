"""The command line."""

import argparse
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import operations
from bench.threads import available

DTYPES = ("float32", "float16", "bfloat16", "float64")
PEERS = ("numpy", "scipy", "torch", "torch.compile", "jax", "onnxruntime", "onnxruntime.attention", "openvino")
CUDA_OPERATIONS = (
    *("softmax", "log_softmax", "logsumexp", "cumulative_logsumexp"),
    *("attention", "attention_backward", "decode", "paged"),
)
"""Those with cases for a card."""
CUDA_PEERS = ("cupyx", "torch")
RESULTS = Path(__file__).parent / "results"
QUICK_ELEMENTS = 2**20
"""The largest array, or of attention the most scores, that ``--quick`` measures."""


class Shape(NamedTuple):
    """A shape and the axis to work along."""

    lengths: tuple[int, ...]
    axis: int

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.lengths))})" + ("" if self.axis == -1 else f" axis {self.axis}")


class Options(NamedTuple):
    """What was asked for; see ``python -m bench --help``."""

    operations: tuple[str, ...]
    threads: int
    repeat: int
    quick: bool
    shapes: tuple[Shape, ...] | None
    cases: tuple[str, ...] | None
    dtypes: tuple[str, ...] | None
    peers: tuple[str, ...]
    json: Path | None
    plot: Path | None
    readme: Path | None
    backend: str = "cpu"


def operation_names() -> list[str]:
    """Return the names of the operations: the files of ``bench/operations``."""
    return sorted(found.name for found in pkgutil.iter_modules(operations.__path__))


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line; a mistake in it ends the process with status 2."""
    parser = _parser()
    given = parser.parse_args(arguments)
    known = operation_names()
    unknown = [name for name in given.operations if name not in known]
    if unknown:
        parser.error(f"unknown operation {', '.join(unknown)}; known: {', '.join(known)}")
    served, peers = (known, PEERS) if given.backend == "cpu" else (CUDA_OPERATIONS, CUDA_PEERS)
    for what, names, allowed in (("measures", given.operations, served), ("has the peers", given.peers or (), peers)):
        if wrong := [name for name in names if name not in allowed]:
            parser.error(f"--backend {given.backend} {what} {', '.join(allowed)}, not {', '.join(wrong)}")
    return Options(
        operations=tuple(given.operations or served),
        threads=given.threads,
        repeat=given.repeat or (3 if given.quick else 15),
        quick=given.quick,
        shapes=tuple(given.shapes) if given.shapes else None,
        cases=tuple(given.cases) if given.cases else None,
        dtypes=tuple(given.dtypes) if given.dtypes else None,
        peers=tuple(peers if given.peers is None else given.peers),
        json=given.json,
        plot=given.plot,
        readme=given.readme,
        backend=given.backend,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Time dualsoft against every peer that is installed, taking turns in one run.",
        epilog="Exit status: 0; 1 when the kernels cannot be used or dualsoft fails or is wrong; 2 for a wrong "
        "command line or a missing package.",
    )
    add = parser.add_argument
    add("operations", nargs="*", metavar="operation", help=f"default: all of {', '.join(operation_names())}")
    add("--threads", type=_count, default=min(2, available()), metavar="N", help="for every contender (default 2)")
    add("--repeat", type=_count, metavar="N", help="repetitions (default 15, 3 with --quick)")
    add(
        "--quick",
        action="store_true",
        help=f"few repetitions, nothing of more than {QUICK_ELEMENTS} elements or scores",
    )
    add(
        "--shapes",
        nargs="+",
        type=_shape,
        metavar="SHAPE",
        help="for operations along an axis, instead of their cases: such as 4096x4096 or, along axis 0, 4096x4096:0",
    )
    add(
        "--cases",
        nargs="+",
        metavar="WORDS",
        help="only cases with any of these in their name, such as 'causal S=2048'",
    )
    add("--dtypes", nargs="+", choices=DTYPES, help="default: those of each shape in the operation's file")
    add(
        "--backend",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where to measure: NumPy arrays (default), or CuPy arrays on a card by its own clock",
    )
    add(
        "--peers",
        nargs="*",
        choices=tuple(dict.fromkeys((*PEERS, *CUDA_PEERS))),
        help=f"default: all (of --backend cuda, {' and '.join(CUDA_PEERS)}); none named: dualsoft alone",
    )
    add("--json", type=Path, metavar="PATH", help="where to save every time (default: a new file in bench/results)")
    add("--plot", type=Path, metavar="PATH", help="save a figure of the ratios")
    add(
        "--readme",
        nargs="?",
        type=Path,
        const=RESULTS,
        metavar="JSON",
        help="measure nothing: fill the table in README.md from a saved file (default: the newest in bench/results)",
    )
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _shape(text: str) -> Shape:
    lengths_text, _, axis_text = text.partition(":")
    try:
        lengths, axis = tuple(map(int, lengths_text.split("x"))), int(axis_text or -1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must look like 4096x4096 or 4096x4096:0, got {text!r}") from None
    if min(lengths) < 1 or not -len(lengths) <= axis < len(lengths):
        raise argparse.ArgumentTypeError(f"lengths must be at least 1 and the axis must exist, got {text!r}")
    return Shape(lengths, axis)
