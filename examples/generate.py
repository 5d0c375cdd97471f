"""Text from a language model, SmolLM2-135M-Instruct, that runs in NumPy with dualsoft's attention, cache and softmax.

The prompt is read in one go (prefill), then the model writes token by token (decode), each time the likeliest one. With
a ``--temperature`` above 0 it is drawn from the softmax of the logits, from among the likeliest tokens that have the
probability ``--top-p`` together; these weights, rounded to four bits, soon lose the thread then. The text goes to the
standard output as it is written, the times to the standard error.

``--check`` writes nothing: it reads a text of 200 tokens, the last 40 of them one by one, and compares all logits with
those of the same network whose attention is the textbook's, computed in float64. The tolerance is measured beside it:
four times the difference that the textbook's attention in float32 makes. (dualsoft's attention alone is held to twice.
Thirty blocks amplify every rounding, and the largest of ten million differences varies by up to two between
computations that are equally accurate.) The exit status is 1 when the difference is larger.

Run it: ``python examples/generate.py "What is the capital of France?"``, or with ``--help``. With ``--backend cuda``
the same lines run on a GPU, with CuPy arrays.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import smollm2
import terminal
from smollm2 import Array, Model, Tokens

import dualsoft

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CHECK_TOKENS = 200
ONE_BY_ONE = 40
TEXT = """The lighthouse stood at the end of a long spit of sand and stone, and on clear nights its beam could be seen
from the fishing villages on the far side of the bay. Nobody remembered who had built it. The oldest keeper, a quiet
woman of 83, said that her grandmother had carried oil up the 217 steps before there was a road, and that even then the
walls were grey with salt. Every evening she wrote one line into the log: the wind, the height of the waves, and the
number of ships. In 1904 a storm had broken three of the windows, and for two nights the lamp was kept burning behind
wet sailcloth, because a convoy was expected from the north. It came on the third morning, 14 ships in a row, and each
of them sounded its horn once as it passed. She had been told this story so often that she sometimes believed she had
heard it herself: fourteen notes, one after the other, growing fainter as the fog closed in behind them."""


class Speed(NamedTuple):
    """Tokens and seconds of one phase."""

    tokens: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.tokens} tokens in {self.seconds:.2f} s, {self.tokens / max(self.seconds, 1e-9):.1f} tokens/s"


def draw(logits: Array, temperature: float, top_p: float, rng: np.random.Generator) -> int:
    """Return a token: the likeliest for temperature 0, else one drawn from the nucleus of probability ``top_p``."""
    if temperature == 0:
        return int(logits.argmax())
    # The inverse of a tiny temperature is infinite, and so may the quotients be: 0 for the likeliest, -inf for others.
    with np.errstate(over="ignore"):
        p = dualsoft.softmax(np.subtract(logits, logits.max(), dtype=np.float64) / temperature)
    # Tokens below (1 - top_p) / n have less than 1 - top_p together: the nucleus is among the others.
    candidates = np.flatnonzero(p >= (1 - top_p) / len(p))
    candidates = candidates[np.argsort(-p[candidates], kind="stable")]
    total = np.cumsum(p[candidates])
    size = min(int(np.searchsorted(total, top_p)) + 1, len(total))
    return int(candidates[np.searchsorted(total[:size], rng.random() * total[size - 1], side="right")])


def generate(
    model: Model, tokens: Tokens, prompt: list[int], given: argparse.Namespace, speeds: list[Speed]
) -> Generator[int, None, None]:
    """Yield new tokens until the model ends its turn; the speeds of the two phases join ``speeds`` when they end.

    Each token's logits come to the host, which ends its time.
    """
    rng = np.random.default_rng(given.seed)
    caches = smollm2.new_caches(model, len(prompt) + given.max_tokens)
    begin = time.perf_counter()
    logits = smollm2.on_host(smollm2.logits_of(model, smollm2.hidden_states(model, prompt, caches)[-1:])[0])
    speeds.append(Speed(len(prompt), time.perf_counter() - begin))
    count, seconds = 0, 0.0
    try:
        for _ in range(given.max_tokens):
            begin = time.perf_counter()
            token = draw(logits, given.temperature, given.top_p, rng)
            if token == tokens.end:
                break
            yield token
            logits = smollm2.on_host(smollm2.logits_of(model, smollm2.hidden_states(model, [token], caches))[0])
            count, seconds = count + 1, seconds + time.perf_counter() - begin
    finally:
        speeds.append(Speed(count, seconds))


def standard(dtype: Any, xp: ModuleType) -> smollm2.Attend:
    """Return the textbook's causal attention, all scores stored, in ``dtype``."""

    def attend(cache: dualsoft.KVCache, q: Array) -> Array:
        _, heads, queries, head_dim = q.shape
        k, v = (xp.repeat(x.astype(dtype), heads // cache.kv_heads, axis=1) for x in (cache.k, cache.v))
        keys = k.shape[2]
        scores = q.astype(dtype) @ k.swapaxes(2, 3) / dtype(np.sqrt(head_dim))
        hidden = xp.arange(keys) > xp.arange(keys - queries, keys)[:, None]
        scores = xp.where(hidden, -np.inf, scores)
        p = xp.exp(scores - scores.max(axis=-1, keepdims=True))
        return ((p @ v) / p.sum(axis=-1, keepdims=True)).astype(q.dtype)

    return attend


def all_logits(model: Model, ids: list[int], attend: smollm2.Attend) -> Array:
    """Return the logits of a text, read in one go but for its end."""
    caches = smollm2.new_caches(model, len(ids))
    pieces = [ids[:-ONE_BY_ONE], *([token] for token in ids[-ONE_BY_ONE:])]
    states = [smollm2.hidden_states(model, piece, caches, attend) for piece in pieces]
    return smollm2.on_host(smollm2.logits_of(model, model.xp.concatenate(states)))


def check(model: Model, tokens: Tokens) -> int:
    """Compare with float64 attention, print, and return the exit status."""
    ids = tokens.encode(TEXT.replace("\n", " "))[:CHECK_TOKENS]
    want = all_logits(model, ids, standard(np.float64, model.xp))
    plain = float(np.abs(all_logits(model, ids, standard(np.float32, model.xp)) - want).max())
    got = all_logits(model, ids, smollm2.causal)
    difference = np.abs(got - want)
    largest = float(np.abs(want).max())
    tolerance = 4 * plain
    same = int((got.argmax(axis=1) == want.argmax(axis=1)).sum())
    worst = float(difference.max())
    print(f"{got.size} logits of {len(ids)} tokens, the largest {largest:.2f}")
    print(f"largest difference from float64 attention: {worst:.3g} (tolerance {tolerance:.3g})")
    print(f"standard attention in float32 differs by {plain:.3g}")
    print(f"the likeliest next token is the same after {same} of {len(ids)} tokens")
    # NaN compares as false: it must fail.
    return 0 if worst <= tolerance else 1


def load(xp: ModuleType = np) -> tuple[Model, Tokens]:
    """Load with a progress bar on the standard error, when that is a terminal; the weights become arrays of ``xp``."""
    path = smollm2.weights_file()
    from rich.console import Console
    from rich.progress import track

    def bar(tensors: Sequence[Any]) -> Iterable[Any]:
        return track(tensors, "loading SmolLM2", console=Console(stderr=True), transient=True)

    return smollm2.load(path, xp, bar)


def write(model: Model, tokens: Tokens, prompt: list[int], given: argparse.Namespace) -> int:
    """Print what the model writes, then the speeds, also after Ctrl-C; return the exit status."""
    speeds: list[Speed] = []
    status = 0
    with contextlib.closing(generate(model, tokens, prompt, given, speeds)) as new:
        try:
            for text in tokens.stream(new):
                print(text, end="", flush=True)
        except KeyboardInterrupt:
            status = terminal.INTERRUPTED
    print()
    for phase, speed in zip(("prefill", "decode"), speeds, strict=False):
        print(f"{phase}: {speed}", file=sys.stderr)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate or check; return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    _judge(parser, given)
    begin = time.perf_counter()
    try:
        model, tokens = load(terminal.arrays_for(given.backend))
    except RuntimeError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    print(f"loaded in {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    with dualsoft.use_backend(given.backend) if given.backend else contextlib.nullcontext():
        if given.check:
            return check(model, tokens)
        prompt = tokens.encode(given.prompt) if given.raw else tokens.chat(given.prompt, given.system)
        if not prompt or len(prompt) + given.max_tokens > model.config.context:
            parser.error(
                f"the prompt has {len(prompt)} tokens; it must have one, and with --max-tokens {given.max_tokens} at "
                f"most {model.config.context}, the model's context"
            )
        return write(model, tokens, prompt, given)


def _judge(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """End with a word on what is wrong with the command line as a whole: loading takes seconds."""
    if given.check:
        names = ("prompt", "max_tokens", "temperature", "top_p", "seed", "system", "raw")
        idle = [name for name in names if getattr(given, name) != parser.get_default(name)]
        if idle:
            words = ", ".join(name if name == "prompt" else f"--{name.replace('_', '-')}" for name in idle)
            parser.error(f"--check reads a text of its own, and has no use for {words}")
    elif given.prompt is None:
        parser.error("a prompt is needed (or --check)")
    elif given.raw and given.system != SYSTEM:
        parser.error("--raw continues the prompt alone, and has no use for --system")
    if given.backend is None:
        try:
            terminal.backend("")
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))


def _number(least: float, most: float, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"must be a number from {least:g} to {most:g}, got {text!r}")
    return value


def _temperature(text: str) -> float:
    return _number(0, 100, text)


def _probability(text: str) -> float:
    return _number(0, 1, text)


def _integer(least: int, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    return _integer(1, text)


def _seed(text: str) -> int:
    return _integer(0, text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompt", nargs="?", type=terminal.text, help="what to say to the model")
    parser.add_argument("--max-tokens", type=_count, default=200, help="at most this many new tokens (default 200)")
    parser.add_argument(
        "--temperature",
        type=_temperature,
        default=0,
        help="0: the likeliest token (default); above: drawn, the higher the more freely",
    )
    parser.add_argument(
        "--top-p", type=_probability, default=0.95, help="when drawing: probability of the nucleus (default 0.95)"
    )
    parser.add_argument("--seed", type=_seed, default=0, help="when drawing: of the draws (default 0)")
    parser.add_argument("--system", type=terminal.text, default=SYSTEM, help="the system's message")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as text, not as a conversation")
    parser.add_argument(
        "--backend",
        type=terminal.backend_or_cuda,
        help="of dualsoft, such as cpu:x86_64_v3 (default: the best for NumPy), or cuda: CuPy arrays, on the GPU",
    )
    parser.add_argument("--check", action="store_true", help="compare the logits with float64 attention, and end")
    return parser


if __name__ == "__main__":
    sys.exit(terminal.run(main))
