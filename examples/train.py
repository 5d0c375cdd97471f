"""Train a character-level transformer from scratch in NumPy or CuPy: attention, loss and gradients are dualsoft's.

The text is what Python brings along: its licence and the docstrings of its standard library, or the file that is named.
Its last tenth is not learnt from: the loss there says what the model has understood and not just remembered. The
progress goes to the standard error; the losses, and a text that the model writes by ``dualsoft.sample``, to the
standard output; a picture of the losses to ``--plot``.

Run it: ``python examples/train.py``, or with ``--help``. With ``--xp cupy`` the same lines run on a GPU.
"""

import argparse
import ast
import contextlib
import importlib
import importlib.util
import math
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import character_model
import numpy as np
import terminal
from character_model import AdamW, Array, Config, Model

import dualsoft

PROGRESS_NEEDS = ("rich",)
PLOT_NEEDS = ("matplotlib",)
WARMUP = 50
"""Steps in which the learning rate rises; after them it falls, as a cosine, to a twentieth."""
EVERY = 50
"""Steps from one loss on the text not learnt from to the next."""
BATCHES = 4
"""Batches of text not learnt from that such a loss is the mean of."""


class Text(NamedTuple):
    """A text as indices into its characters."""

    characters: str
    learnt: Array
    unseen: Array

    def encode(self, text: str) -> Array:
        """Return indices; characters that the text does not have are left out."""
        return np.array([self.characters.index(c) for c in text if c in self.characters], np.int64)


class Losses(NamedTuple):
    """Nats a character, by step."""

    learnt: list[float]
    unseen: list[tuple[int, float]]


def standard_text() -> str:
    """Return the licence and all docstrings of Python's standard library, in the order of its files' names."""
    root = Path(sysconfig.get_path("stdlib"))
    pieces = [path.read_text(encoding="utf-8") for path in [root / "LICENSE.txt"] if path.exists()]
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        if inside[0].removesuffix(".py") in sys.stdlib_module_names and not {"test", "tests", "idlelib"} & set(inside):
            pieces += _docstrings(path)
    return "\n\n".join(pieces) + "\n"


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        # Old modules have escapes that are deprecated.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:  # files that are templates, or of another version
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def encoded(text: str) -> Text:
    """Return a text as indices, the last tenth apart."""
    characters = "".join(sorted(set(text)))
    index = {character: k for k, character in enumerate(characters)}
    ids = np.fromiter((index[character] for character in text), np.int64, len(text))
    most = len(ids) - len(ids) // 10
    return Text(characters, ids[:most], ids[most:])


def batch(ids: Array, count: int, length: int, rng: np.random.Generator, xp: ModuleType) -> tuple[Array, Array]:
    """Return ``count`` pieces of a text and the same pieces one character on, (count, length) both."""
    starts = rng.integers(0, len(ids) - length, count)
    pieces = ids[starts[:, None] + np.arange(length + 1)]
    return xp.asarray(pieces[:, :-1]), xp.asarray(pieces[:, 1:])


def learning_rate(step: int, steps: int, most: float) -> float:
    """Return the rate of one step of ``steps``, counted from 0."""
    warmup = min(WARMUP, steps // 2)
    if step < warmup:
        return most * (step + 1) / warmup
    share = (step - warmup) / (steps - warmup)
    return most * (0.05 + 0.95 * (0.5 + 0.5 * math.cos(math.pi * share)))


def train(model: Model, text: Text, given: argparse.Namespace, losses: Losses) -> Iterator[None]:
    """Make one step with each ``next``; the losses join ``losses``."""
    rng = np.random.default_rng(given.seed)
    optimiser = AdamW(model)
    context, xp = model.config.context, model.xp
    for step in range(given.steps):
        value, grads = character_model.gradients(model, *batch(text.learnt, given.batch, context, rng, xp))
        optimiser.step(grads.vector, learning_rate(step, given.steps, given.learning_rate))
        losses.learnt.append(float(value))
        if (step + 1) % EVERY == 0 or step + 1 == given.steps:
            losses.unseen.append((step + 1, unseen_loss(model, text, given.batch)))
        yield


def unseen_loss(model: Model, text: Text, count: int) -> float:
    """Return the loss on text not learnt from: the same pieces each time."""
    rng = np.random.default_rng(0)
    context, xp = model.config.context, model.xp
    pieces = [batch(text.unseen, count, context, rng, xp) for _ in range(BATCHES)]
    return sum(float(character_model.loss(model, *piece)) for piece in pieces) / BATCHES


def show(steps: Iterator[None], count: int, losses: Losses) -> None:
    """Run all steps with a bar on the standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=count)
        for _ in steps:
            unseen = f", {losses.unseen[-1][1]:.3f} unseen" if losses.unseen else ""
            progress.update(task, advance=1, description=f"{losses.learnt[-1]:.3f} nats{unseen}")


def save_plot(path: Path, losses: Losses) -> None:
    """Save a picture of the losses by step."""
    # pyplot would look for a display.
    figure: Any = importlib.import_module("matplotlib.figure").Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(1, len(losses.learnt) + 1), losses.learnt, linewidth=0.8, label="text learnt from")
    axes.plot(*zip(*losses.unseen, strict=True), marker="o", markersize=3, label="text not seen")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a character)")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def write(model: Model, text: Text, given: argparse.Namespace) -> None:
    """Print the prompt and what the model writes after it, as it is drawn."""
    start = text.encode(given.prompt)
    print("".join(text.characters[k] for k in start), end="", flush=True)
    rng = np.random.default_rng(given.seed)
    for k in character_model.write(model, model.xp.asarray(start), given.characters, given.temperature, rng):
        print(text.characters[k], end="", flush=True)
    print()


def run(given: argparse.Namespace, text: Text, xp: ModuleType) -> int:
    """Train, print the losses, save the picture and write; return the exit status."""
    config = Config(
        len(text.characters), given.width, given.blocks, given.heads, given.kv_heads, given.inner, given.context
    )
    model = character_model.new_model(config, given.seed, xp)
    print(
        f"{len(text.learnt)} characters to learn from, {len(text.unseen)} not to see, {config.characters} different; "
        f"{character_model.size(config)} weights; {dualsoft.backend_for(model.weights.vector)}",
        file=sys.stderr,
    )
    losses, begin, status = Losses([], []), time.perf_counter(), 0
    try:
        show(train(model, text, given, losses), given.steps, losses)
    except KeyboardInterrupt:
        status = terminal.INTERRUPTED
    seconds = time.perf_counter() - begin
    if not losses.unseen:
        return status
    last = losses.learnt[-EVERY:]
    print(
        f"{len(losses.learnt)} steps in {seconds:.0f} s: {sum(last) / len(last):.3f} nats a character "
        f"(first {losses.learnt[0]:.3f}), {losses.unseen[-1][1]:.3f} on text not seen"
    )
    if given.plot:
        save_plot(given.plot, losses)
        print(f"losses by step: {given.plot}")
    print()
    write(model, text, given)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and write; return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    _judge(parser, given)
    needs = PROGRESS_NEEDS + (PLOT_NEEDS if given.plot else ())
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"{parser.prog}: not installed: {', '.join(missing)}. Run: pip install {' '.join(needs)}", file=sys.stderr
        )
        return 2
    try:
        xp = importlib.import_module(given.xp)
        terminal.backend(given.backend or "", xp)
        text = encoded(given.text.read_text(encoding="utf-8") if given.text else standard_text())
    except (ImportError, UnicodeDecodeError, argparse.ArgumentTypeError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    if len(text.unseen) <= given.context:
        parser.error(f"the text must have more than {10 * given.context} characters, ten times --context")
    if not len(text.encode(given.prompt)):
        parser.error("the prompt must have a character of the text, or the model has nothing to begin with")
    with dualsoft.use_backend(given.backend) if given.backend else contextlib.nullcontext():
        return run(given, text, xp)


def _judge(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with a word on sizes that do not fit together."""
    if given.width % (2 * given.heads):
        parser.error(f"--width must be a multiple of twice --heads, got {given.width} and {given.heads}")
    if given.heads % given.kv_heads:
        parser.error(f"--heads must be a multiple of --kv-heads, got {given.heads} and {given.kv_heads}")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, got {text!r}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "text", nargs="?", type=Path, help="a file to learn from, in UTF-8 (default: Python's own texts)"
    )
    sizes = Config(1)
    for name, default, what in (
        ("--steps", 600, "steps of the optimiser"),
        ("--batch", 32, "pieces of text in a step"),
        ("--context", sizes.context, "characters of a piece"),
        ("--width", sizes.width, "numbers that stand for a character"),
        ("--blocks", sizes.blocks, "blocks of attention and feed-forward"),
        ("--heads", sizes.heads, "heads of queries"),
        ("--kv-heads", sizes.kv_heads, "heads of keys and values, which the former share"),
        ("--inner", sizes.inner, "width inside the feed-forward"),
        ("--characters", 500, "characters to write at the end"),
    ):
        parser.add_argument(name, type=_count, default=default, help=f"{what} (default {default})")
    parser.add_argument("--learning-rate", type=_number, default=3e-3, help="the highest (default 0.003)")
    parser.add_argument(
        "--temperature", type=_number, default=0.7, help="of the writing; 0: the likeliest (default 0.7)"
    )
    parser.add_argument("--prompt", type=terminal.text, default="Return ", help="what the writing begins with")
    parser.add_argument("--seed", type=_seed, default=0, help="of the weights, the pieces and the writing (default 0)")
    parser.add_argument("--plot", type=Path, default=Path("loss.png"), help="where the picture goes (default loss.png)")
    parser.add_argument(
        "--no-plot", action="store_const", const=None, dest="plot", help="save no picture, and need no matplotlib"
    )
    parser.add_argument("--xp", choices=("numpy", "cupy"), default="numpy", help="module of the arrays (default numpy)")
    parser.add_argument("--backend", help="of dualsoft, such as cpu:x86_64_v3 (default: the best for the arrays)")
    return parser


if __name__ == "__main__":
    sys.exit(terminal.run(main))
