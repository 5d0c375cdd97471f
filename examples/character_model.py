"""A character-level transformer with its gradients, written out over dualsoft: NumPy or CuPy, and no framework.

A block of the network, for x (tokens, width), is that of Llama,

    x = x + W_o · attention(rope(W_q n), rope(W_k n), W_v n),    n = rms_norm(x)
    x = x + W_down · (silu(W_gate n) * (W_up n)),                n = rms_norm(x)

where groups of query heads share a head of keys and values. After the last block come a norm and the embedding matrix
once more, which turns x into logits; the loss is their cross-entropy with the next characters. See H. Touvron et al.,
*LLaMA*, 2023 (arXiv 2302.13971).

Every step has its backward beside it. Scores and probabilities are never stored: of attention the backward keeps the
output and one logarithm a query, of the loss one logarithm a character.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import dualsoft

Array = Any
Attend = Callable[[int, Array, Array, Array], tuple[Array, Array | None]]
"""Of (block, q, k, v), each (batch, heads, tokens, head_dim): the output, and the logarithms if it is to learn."""


class Config(NamedTuple):
    """Sizes of the network."""

    characters: int
    width: int = 128
    blocks: int = 4
    heads: int = 4
    kv_heads: int = 2
    inner: int = 352
    context: int = 128
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Length of a query or key."""
        return self.width // self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight by its name, matrices as (inputs, outputs)."""
        width, inner = self.width, self.inner
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.characters, width)}
        for block in range(self.blocks):
            shapes |= {
                f"{block}.norm": (width,),
                f"{block}.qkv": (width, (self.heads + 2 * self.kv_heads) * self.head_dim),
                f"{block}.out": (self.heads * self.head_dim, width),
                f"{block}.ffn_norm": (width,),
                f"{block}.gate_up": (width, 2 * inner),
                f"{block}.down": (inner, width),
            }
        return shapes | {"norm": (width,)}


@dataclass(frozen=True)
class Weights:
    """Arrays by name, which are parts of one vector: the optimiser sees a vector, the network sees matrices."""

    vector: Array
    named: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.named[name]


class Model(NamedTuple):
    """The network: its sizes, its weights and the module of arrays that they are of."""

    config: Config
    weights: Weights
    xp: ModuleType


class Saved(NamedTuple):
    """What the backward of one block needs of its forward."""

    x: Array
    n: Array
    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    middle: Array
    ffn_n: Array
    gate_up: Array
    gated: Array


def weights_of(config: Config, vector: Array) -> Weights:
    """Return the parts of a vector of ``size(config)`` elements by name, without a copy."""
    named, start = {}, 0
    for name, shape in config.shapes().items():
        end = start + math.prod(shape)
        named[name] = vector[start:end].reshape(shape)
        start = end
    return Weights(vector, named)


def size(config: Config) -> int:
    """Return the number of weights."""
    return sum(math.prod(shape) for shape in config.shapes().values())


def new_model(config: Config, seed: int, xp: ModuleType = np, dtype: Any = np.float32) -> Model:
    """Return a network before its training: the same for a seed, whatever ``xp`` is."""
    rng = np.random.default_rng(seed)
    weights = weights_of(config, np.empty(size(config), dtype))
    for name, weight in weights.named.items():
        if weight.ndim == 1:
            weight[...] = 1.0
            continue
        # What joins the residual stream is scaled so that its variance does not grow with the number of blocks.
        spread = 0.02 / math.sqrt(2 * config.blocks) if name.endswith((".out", ".down")) else 0.02
        weight[...] = rng.standard_normal(weight.shape) * spread
    return Model(config, weights_of(config, xp.asarray(weights.vector)), xp)


def hidden_states(
    model: Model, ids: Array, attend: Attend | None = None, start: int = 0, saved: list[Saved] | None = None
) -> Array:
    """Return the last block's x, (batch · tokens, width), of characters (batch, tokens) that begin at place ``start``.

    Each attends to itself and all before it among them, unless ``attend`` says otherwise. ``saved`` gets what the
    blocks keep for ``gradients``.
    """
    weights = model.weights
    attend = attend or partial(_causal, model.xp)
    turns = _turns(model, start, ids.shape[1])
    x = weights["embedding"][ids.ravel()]
    for block in range(model.config.blocks):
        n = _rms_norm(model, x, weights[f"{block}.norm"])
        q, k, v = _heads(model, n @ weights[f"{block}.qkv"], ids.shape, turns)
        out, lse = attend(block, q, k, v)
        middle = x + _joined(out) @ weights[f"{block}.out"]
        ffn_n = _rms_norm(model, middle, weights[f"{block}.ffn_norm"])
        gate_up = ffn_n @ weights[f"{block}.gate_up"]
        gated = _gated(model, gate_up)
        if saved is not None:
            saved.append(Saved(x, n, q, k, v, out, lse, middle, ffn_n, gate_up, gated))
        x = middle + gated @ weights[f"{block}.down"]
    return x


def logits_of(model: Model, x: Array) -> Array:
    """Return the logits of the character after each: (batch · tokens, characters)."""
    return _rms_norm(model, x, model.weights["norm"]) @ model.weights["embedding"].T


def loss(model: Model, ids: Array, labels: Array) -> Array:
    """Return the mean cross-entropy in nats a character, 0-dimensional."""
    return dualsoft.cross_entropy(logits_of(model, hidden_states(model, ids)), labels.ravel())


def gradients(model: Model, ids: Array, labels: Array) -> tuple[Array, Weights]:
    """Return the loss and its gradient by every weight.

    Parameters
    ----------
    model : Model
    ids, labels : ndarray of int
        (batch, tokens): characters, and those that follow them.
    """
    xp, weights = model.xp, model.weights
    grads = weights_of(model.config, xp.empty_like(weights.vector))
    saved: list[Saved] = []
    x = hidden_states(model, ids, saved=saved)
    n = _rms_norm(model, x, weights["norm"])
    logits, flat = n @ weights["embedding"].T, labels.ravel()
    value, lse = dualsoft.cross_entropy(logits, flat, return_lse=True)
    d_logits = dualsoft.cross_entropy_backward(1.0, logits, flat, lse, out=logits)
    embedding = d_logits.T @ n
    d = _rms_norm_backward(model, d_logits @ weights["embedding"], x, weights["norm"], grads["norm"])
    for block in reversed(range(model.config.blocks)):
        d = _block_backward(model, block, d, saved.pop(), ids.shape, grads)
    # Many tokens have the same character: their sum is a product with ones and zeros, in one order on every device.
    which = (xp.arange(model.config.characters)[:, None] == ids.ravel()).astype(d.dtype)
    xp.add(embedding, which @ d, out=grads["embedding"])
    return value, grads


def _causal(xp: ModuleType, block: int, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    batch, heads, tokens, head_dim = q.shape
    # The product with W_o wants the heads of a token side by side: written there, nothing is moved afterwards.
    out = xp.empty((batch, tokens, heads, head_dim), q.dtype).swapaxes(1, 2)
    out, lse = dualsoft.attention(q, k, v, causal=True, return_lse=True, out=out)
    return out, lse


def _block_backward(model: Model, block: int, d: Array, of: Saved, shape: tuple[int, int], grads: Weights) -> Array:
    """Turn the gradient of what a block returns into that of its x; fill in those of its weights."""
    xp, config, weights = model.xp, model.config, model.weights
    xp.matmul(of.gated.T, d, out=grads[f"{block}.down"])
    d_gate_up = _gated_backward(model, d @ weights[f"{block}.down"].T, of.gate_up)
    xp.matmul(of.ffn_n.T, d_gate_up, out=grads[f"{block}.gate_up"])
    d_n = d_gate_up @ weights[f"{block}.gate_up"].T
    name = f"{block}.ffn_norm"
    d = d + _rms_norm_backward(model, d_n, of.middle, weights[name], grads[name])

    xp.matmul(_joined(of.out).T, d, out=grads[f"{block}.out"])
    d_out = (d @ weights[f"{block}.out"].T).reshape(*shape, config.heads, config.head_dim).swapaxes(1, 2)
    by = dualsoft.attention_backward(d_out, of.q, of.k, of.v, of.out, of.lse, causal=True)
    d_qkv = _heads_backward(model, by.q, by.k, by.v)
    xp.matmul(of.n.T, d_qkv, out=grads[f"{block}.qkv"])
    d_n = d_qkv @ weights[f"{block}.qkv"].T
    name = f"{block}.norm"
    return d + _rms_norm_backward(model, d_n, of.x, weights[name], grads[name])


def _rms_norm(model: Model, x: Array, gain: Array) -> Array:
    return x * _inverse_rms(model, x) * gain


def _inverse_rms(model: Model, x: Array) -> Array:
    xp, number = model.xp, x.dtype.type
    return 1 / xp.sqrt(xp.einsum("ij,ij->i", x, x) / number(x.shape[1]) + number(model.config.epsilon))[:, None]


def _rms_norm_backward(model: Model, d: Array, x: Array, gain: Array, d_gain: Array) -> Array:
    """Return the gradient of x; write that of the gain."""
    r = _inverse_rms(model, x)
    unit = x * r
    # CuPy's einsum has no out=.
    d_gain[...] = model.xp.einsum("ij,ij->j", d, unit)
    d_unit = d * gain
    along = model.xp.einsum("ij,ij->i", d_unit, unit)[:, None] / x.dtype.type(x.shape[1])
    return r * (d_unit - unit * along)


def _sigmoid(model: Model, x: Array) -> Array:
    # tanh saturates where exp would overflow: 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2.
    half = x.dtype.type(0.5)
    return half + half * model.xp.tanh(half * x)


def _gated(model: Model, gate_up: Array) -> Array:
    gate, up = gate_up[:, : model.config.inner], gate_up[:, model.config.inner :]
    return gate * _sigmoid(model, gate) * up


def _gated_backward(model: Model, d: Array, gate_up: Array) -> Array:
    inner = model.config.inner
    gate, up = gate_up[:, :inner], gate_up[:, inner:]
    sigmoid = _sigmoid(model, gate)
    silu = gate * sigmoid
    d_gate_up = model.xp.empty_like(gate_up)
    # silu' = sigmoid · (1 + gate · (1 - sigmoid)) = sigmoid + silu · (1 - sigmoid)
    model.xp.multiply(d * up, sigmoid + silu * (1 - sigmoid), out=d_gate_up[:, :inner])
    model.xp.multiply(d, silu, out=d_gate_up[:, inner:])
    return d_gate_up


def _turns(model: Model, start: int, tokens: int) -> Array:
    """Return exp(i · place · base^(-2j / head_dim)), (tokens, 1, head_dim / 2), of the precision of the weights."""
    config = model.config
    frequencies = config.rope_base ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    angles = np.arange(start, start + tokens)[:, None, None] * frequencies
    return model.xp.asarray(np.exp(1j * angles).astype(np.result_type(model.weights.vector.dtype, np.complex64)))


def _turned(x: Array, turns: Array) -> Array:
    """Return x, (..., tokens, heads, head_dim) and contiguous, with its pairs of elements turned as complex numbers."""
    return (x.view(turns.dtype) * turns).view(x.dtype)


def _heads(model: Model, qkv: Array, shape: tuple[int, int], turns: Array) -> tuple[Array, Array, Array]:
    """Return q, k and v, (batch, heads, tokens, head_dim), q and k turned by their places: views."""
    config = model.config
    qkv = qkv.reshape(*shape, -1, config.head_dim)
    of_v = config.heads + config.kv_heads
    qk = _turned(model.xp.ascontiguousarray(qkv[:, :, :of_v]), turns)
    q, k, v = qk[:, :, : config.heads], qk[:, :, config.heads :], qkv[:, :, of_v:]
    return q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)


def _heads_backward(model: Model, q: Array, k: Array, v: Array) -> Array:
    """Return the gradient of the product that ``_heads`` took apart, (batch · tokens, all heads · head_dim)."""
    joined = model.xp.concatenate([part.swapaxes(1, 2) for part in (q, k, v)], axis=2)
    of_v = q.shape[1] + k.shape[1]
    # A rotation is orthogonal: its transpose turns back.
    back = _turns(model, 0, q.shape[2]).conj()
    joined[:, :, :of_v] = _turned(model.xp.ascontiguousarray(joined[:, :, :of_v]), back)
    return joined.reshape(q.shape[0] * q.shape[2], -1)


def _joined(out: Array) -> Array:
    """Return (batch, heads, tokens, head_dim) as (batch · tokens, heads · head_dim)."""
    batch, heads, tokens, head_dim = out.shape
    return out.swapaxes(1, 2).reshape(batch * tokens, heads * head_dim)


class AdamW:
    """Adam with decoupled weight decay, on one vector. I. Loshchilov and F. Hutter, 2019 (arXiv 1711.05101)."""

    def __init__(self, model: Model, decay: float = 0.1, beta1: float = 0.9, beta2: float = 0.99) -> None:
        xp, vector = model.xp, model.weights.vector
        self._vector, self._xp, self._betas, self._steps = vector, xp, (beta1, beta2), 0
        self._mean, self._square = xp.zeros_like(vector), xp.zeros_like(vector)
        # Matrices decay, gains do not.
        kept = weights_of(model.config, xp.zeros_like(vector))
        for weight in kept.named.values():
            weight[...] = decay if weight.ndim == 2 else 0.0
        self._decay = kept.vector

    def step(self, grad: Array, learning_rate: float, longest: float = 1.0) -> None:
        """Move the weights against ``grad``, cut to the length ``longest``; ``grad`` is used up."""
        xp, (beta1, beta2), number = self._xp, self._betas, grad.dtype.type
        self._steps += 1
        grad *= xp.minimum(number(1), number(longest) / xp.sqrt(xp.dot(grad, grad)))
        self._mean += number(1 - beta1) * (grad - self._mean)
        self._square += number(1 - beta2) * (grad * grad - self._square)
        mean = self._mean / number(1 - beta1**self._steps)
        root = xp.sqrt(self._square / number(1 - beta2**self._steps)) + number(1e-8)
        self._vector -= number(learning_rate) * (mean / root + self._decay * self._vector)


def write(model: Model, start: Array, count: int, temperature: float, rng: np.random.Generator) -> Iterator[int]:
    """Yield ``count`` characters that follow ``start``, (tokens,), each drawn by ``dualsoft.sample``.

    A token attends to ``context`` of them at most, as in training, however long the text grows.
    """
    config, like = model.config, model.weights.vector[:0]
    caches = [
        dualsoft.KVCache(1, config.kv_heads, len(start) + count, config.head_dim, dtype=like.dtype, like=like)
        for _ in range(config.blocks)
    ]

    def attend(block: int, q: Array, k: Array, v: Array) -> tuple[Array, None]:
        caches[block].append(k, v)
        return caches[block].attention(q, causal=True, window=(config.context - 1, 0)), None

    new, place = start[None], 0
    for _ in range(count):
        x = hidden_states(model, new, attend, place)
        drawn = dualsoft.sample(logits_of(model, x[-1:]), temperature=temperature, rng=rng)
        yield int(drawn[0])
        place, new = place + new.shape[1], drawn[None]
