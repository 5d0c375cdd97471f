"""Values for every option of attention, by name: several of each, made for a shape from a seeded generator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cases import DTYPES, Array

import dualsoft as ds

Rng = np.random.Generator


class Shape(NamedTuple):
    """Sizes of a call; ``batch`` is that of the result, ``num_heads_k`` divides ``num_heads_q``."""

    batch: tuple[int, ...]
    num_heads_q: int
    num_heads_k: int
    seq_len_q: int
    seq_len_k: int
    head_dim: int
    head_dim_v: int

    @property
    def scores(self) -> tuple[int, ...]:
        return (*self.batch, self.num_heads_q, self.seq_len_q, self.seq_len_k)


Maker = Callable[[Rng, Shape], Any]


def some_axes(rng: Rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with leading axes dropped and others of length 1: what still broadcasts to it."""
    kept = [n if rng.random() < 0.5 else 1 for n in shape]
    return tuple(kept[int(rng.integers(0, len(shape))) :])


def masks() -> dict[str, Maker]:
    def full(rng: Rng, shape: Shape) -> Array:
        return rng.random(shape.scores) < 0.6

    def hidden_rows(rng: Rng, shape: Shape) -> Array:
        mask = rng.random(shape.scores) < 0.5
        mask[..., ::3, :] = False
        return mask

    def long_runs(rng: Rng, shape: Shape) -> Array:
        """Whole tiles without a key, and tiles with a single one."""
        mask = np.zeros(shape.scores[-2:], bool)
        if mask.size:
            mask[rng.integers(0, mask.shape[0], 9), rng.integers(0, mask.shape[1], 9)] = True
        return mask

    return {
        "of every score": full,
        "of some axes": lambda rng, shape: rng.random(some_axes(rng, shape.scores)) < 0.7,
        "of keys": lambda rng, shape: rng.random(shape.seq_len_k) < 0.5,
        "with hidden queries": hidden_rows,
        "nearly empty": long_runs,
        "of strides": lambda rng, shape: (rng.random(shape.scores[::-1]) < 0.6).T[..., ::-1],
        "False": lambda rng, shape: np.bool_(False),
    }


def biases() -> dict[str, Maker]:
    def with_(value: float, dtype: Any) -> Maker:
        def maker(rng: Rng, shape: Shape) -> Array:
            bias = rng.standard_normal(shape.scores)
            bias[rng.random(bias.shape) < 0.3] = value
            return bias.astype(dtype)

        return maker

    def of(key: str) -> Maker:
        return lambda rng, shape: rng.standard_normal(some_axes(rng, shape.scores)).astype(DTYPES[key])

    return {
        **{f"{key}, of some axes": of(key) for key in DTYPES},
        "f32, of every score": lambda rng, shape: rng.standard_normal(shape.scores).astype(np.float32),
        "f16 with -inf": with_(-np.inf, np.float16),
        "f32 with -inf": with_(-np.inf, np.float32),
        "bf16 with -inf": with_(-np.inf, DTYPES["bf16"]),
        "f64 with -inf": with_(-np.inf, np.float64),
        "f32 with finfo.min": with_(float(np.finfo(np.float32).min), np.float32),
        "f16 with finfo.min": with_(float(np.finfo(np.float16).min), np.float16),
        "f64 with finfo.min": with_(float(np.finfo(np.float64).min), np.float64),
        "integers": lambda rng, shape: rng.integers(-3, 4, some_axes(rng, shape.scores), np.int8),
        "big-endian": lambda rng, shape: rng.standard_normal(shape.scores[-2:]).astype(">f4"),
        "of strides": lambda rng, shape: rng.standard_normal(shape.scores[::-1]).astype(np.float32).T[..., ::-1],
    }


def lengths(rng: Rng, shape: Shape) -> Array:
    return rng.integers(0, shape.seq_len_k, shape.batch, endpoint=True)


def lengths_of_extremes(rng: Rng, shape: Shape) -> Array:
    return rng.choice([0, min(1, shape.seq_len_k), shape.seq_len_k], shape.batch).astype(np.int32)


def block_mask(block_q: int, block_k: int, share: float) -> Maker:
    def maker(rng: Rng, shape: Shape) -> Any:
        blocks = (*shape.scores[:-2], -(-shape.seq_len_q // block_q), -(-shape.seq_len_k // block_k))
        kept = some_axes(rng, blocks) if share < 0.5 else blocks
        return ds.BlockMask(rng.random(kept) < share, block_q, block_k)

    return maker


def always(*values: Any) -> dict[str, Maker]:
    return {f"{value!r}": lambda rng, shape, value=value: value for value in values}


# option -> name of the variant -> maker of the value
OPTIONS: dict[str, dict[str, Maker]] = {
    "mask": masks(),
    "bias": biases(),
    "causal": always(True, np.True_),
    "causal_offset": {
        **always(0, 3, -2, 10**6, -(10**6)),
        "by sequence": lambda rng, shape: rng.integers(-4, shape.seq_len_k + 4, shape.batch),
    },
    "window": {
        **always((0, 0), (2, 3), (5, None), (None, 4), (-1, 0), (7, -1), (0, 9), (40, 0), (None, None)),
        **always((10**9, 10**9), (2**62, 0)),
    },
    "scale": always(0, 0.0, 1, -0.4, 0.125, 2.5, np.float32(0.3)),
    "softcap": always(None, 0, 0.5, 3.0, 50),
    "sinks": {
        "f64": lambda rng, shape: rng.standard_normal(shape.num_heads_q) * 2,
        "f16": lambda rng, shape: rng.standard_normal(shape.num_heads_q).astype(np.float16),
        "large": lambda rng, shape: np.full(shape.num_heads_q, 30.0, np.float32),
        "-inf": lambda rng, shape: np.full(shape.num_heads_q, -np.inf, np.float32),
        "list": lambda rng, shape: list(range(shape.num_heads_q)),
    },
    "alibi_slopes": {
        "by head": lambda rng, shape: 2.0 ** -np.arange(1.0, shape.num_heads_q + 1),
        "by head, f32": lambda rng, shape: rng.random(shape.num_heads_q).astype(np.float32),
        "by sequence and head": lambda rng, shape: rng.random((*shape.batch, shape.num_heads_q)),
        "negative": lambda rng, shape: -0.05 * np.ones(shape.num_heads_q),
    },
    "kv_lengths": {
        "random": lengths,
        "none, one or all": lengths_of_extremes,
        "all": lambda rng, shape: np.full(shape.batch, shape.seq_len_k, np.uint8 if shape.seq_len_k < 256 else ">i8"),
    },
    "block_mask": {
        "1 by 1": block_mask(1, 1, 0.6),
        "7 by 5": block_mask(7, 5, 0.5),
        "16 by 3": block_mask(16, 3, 0.5),
        "64 by 64": block_mask(64, 64, 0.6),
        "3 by 32, of some axes": block_mask(3, 32, 0.45),
        "larger than everything": block_mask(1000, 1000, 0.9),
    },
}


def make(rng: Rng, shape: Shape, option: str, variant: str | None = None) -> tuple[str, Any]:
    """A value of the option, of a random variant unless that is given, with its name."""
    if variant is None:
        variant = str(rng.choice(list(OPTIONS[option])))
    return f"{option} {variant}", OPTIONS[option][variant](rng, shape)


def make_several(rng: Rng, shape: Shape, options: list[str]) -> tuple[str, dict[str, Any]]:
    made = {option: make(rng, shape, option) for option in options}
    return ", ".join(name for name, _ in made.values()), {option: value for option, (_, value) in made.items()}
