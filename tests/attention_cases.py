"""The data of the attention matrix: groups of cases by dtype, as in ``cases.py``."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from attention_options import OPTIONS, Shape, make, make_several
from cases import DTYPES, INTEGERS, LAYOUTS, Array, unaligned


class AttentionCase(NamedTuple):
    name: str
    q: Array
    k: Array
    v: Array
    options: Mapping[str, Any] = MappingProxyType({})


def operands(key: str, shape: Shape, seed: int = 0, spread: float = 1.5) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng([seed, *shape.scores, shape.head_dim, shape.head_dim_v])
    sizes = (
        (*shape.batch, shape.num_heads_q, shape.seq_len_q, shape.head_dim),
        (*shape.batch, shape.num_heads_k, shape.seq_len_k, shape.head_dim),
        (*shape.batch, shape.num_heads_k, shape.seq_len_k, shape.head_dim_v),
    )
    q, k, v = (rng.standard_normal(size) for size in sizes)
    return (q * spread).astype(DTYPES[key]), k.astype(DTYPES[key]), v.astype(DTYPES[key])


def case(key: str, shape: Shape, note: str = "", /, **options: Any) -> AttentionCase:
    return AttentionCase(f"{shape_name(shape)}{note}", *operands(key, shape), options)


def shape_name(shape: Shape) -> str:
    lead = f"batch {shape.batch}, " if shape.batch else ""
    heads = f"heads {shape.num_heads_q}:{shape.num_heads_k}, "
    return f"{lead}{heads}S {shape.seq_len_q}x{shape.seq_len_k}, D {shape.head_dim}:{shape.head_dim_v} "


# ------------------------------------------------------------------ sizes: vectors, register tiles, blocks
EDGES = (1, 2, 7, 11, 12, 13, 23, 24, 25, 31, 32, 33, 63, 64, 65)
BLOCK_EDGES = (127, 128, 129, 255, 256, 257, 383, 384, 385, 511, 512, 513, 769)
DIMS = (1, 2, 3, 4, 8, 15, 16, 17, 20, 31, 32, 33, 48, 63, 64, 65, 80, 96, 127, 128, 130, 192, 256, 300)


def lone(seq_len_q: int, seq_len_k: int, head_dim: int, head_dim_v: int | None = None) -> Shape:
    return Shape((), 1, 1, seq_len_q, seq_len_k, head_dim, head_dim_v or head_dim)


def lengths(key: str) -> Iterator[AttentionCase]:
    for step, n in enumerate(EDGES):
        for other in (EDGES[(step + 4) % len(EDGES)], EDGES[(step + 9) % len(EDGES)], n):
            yield case(key, lone(n, other, 16))
            yield case(key, lone(n, other, 16), "causal", causal=True)
            yield case(key, lone(n, other, 16), "causal from the top left", causal=True, causal_offset=0)


def block_lengths(key: str) -> Iterator[AttentionCase]:
    for n in BLOCK_EDGES:
        few = 5 if n % 2 else 1
        yield case(key, lone(few, n, 24))
        yield case(key, lone(n, 40, 24), "causal from the top left", causal=True, causal_offset=0)
        yield case(key, lone(few, n, 24), "window", window=(70, 3), causal_offset=n // 2)
    for seq_len_q, seq_len_k in ((130, 515), (385, 257)):
        yield case(key, lone(seq_len_q, seq_len_k, 32))
        yield case(key, lone(seq_len_q, seq_len_k, 32), "causal", causal=True)
    for seq_len_q in (1, 2, 3, 4, 6, 8, 9, 16):
        shape = Shape((), 4, 2, seq_len_q, 1031, 20, 12)
        yield case(key, shape, "decode")
        yield case(key, shape, "decode, causal", causal=True)
    yield case(key, Shape((), 8, 1, 1, 4099, 16, 16), "decode of many keys")


def dims(key: str) -> Iterator[AttentionCase]:
    for step, d in enumerate(DIMS):
        yield case(key, lone(13, 37, d))
        yield case(key, lone(26, 19, d, DIMS[(step + 7) % len(DIMS)]))
        yield case(key, Shape((), 3, 1, 1, 41, d, DIMS[-1 - step]), "decode")


def empties(key: str) -> Iterator[AttentionCase]:
    for batch, seq_len_q, seq_len_k in (((), 0, 5), ((), 5, 0), ((), 0, 0), ((0,), 3, 4), ((2, 0), 3, 4), ((2,), 3, 0)):
        shape = Shape(batch, 2, 1, seq_len_q, seq_len_k, 4, 3)
        yield case(key, shape)
        yield case(key, shape, "causal", causal=True)
        yield case(key, shape, "sinks", sinks=[0.5, -2.0])


# ------------------------------------------------------------------ heads, batch axes, layouts
def heads_and_batches(key: str) -> Iterator[AttentionCase]:
    for num_heads_q, num_heads_k in ((1, 1), (2, 1), (3, 1), (8, 1), (4, 2), (6, 2), (9, 3), (16, 2), (3, 3)):
        for seq_len_q in (1, 3, 14):
            shape = Shape((2,), num_heads_q, num_heads_k, seq_len_q, 21, 8, 8)
            yield case(key, shape)
            yield case(key, shape, "causal", causal=True)
    for batch in ((), (3,), (2, 3), (2, 1, 3)):
        yield case(key, Shape(batch, 2, 2, 5, 9, 6, 7))
    for leads in (
        ((2, 1), (3,), (3,)), ((), (4,), (4,)), ((4,), (), ()), ((2, 3), (1, 3), (2, 1)), ((1,), (5,), ()),
        ((2, 1, 2), (3, 1), (1, 3, 2)),
    ):  # fmt: skip
        q, k, v = (operands(key, Shape(lead, 4, 2, 5, 9, 6, 7), seed)[seed] for seed, lead in enumerate(leads))
        yield AttentionCase(f"batch axes {leads}", q, k, v)
        yield AttentionCase(f"batch axes {leads}, causal", q, k, v, {"causal": True, "causal_offset": 2})
    q, k, v = operands(key, lone(9, 14, 6, 5))
    yield AttentionCase("one head without its axis", q[0], k[0], v[0])
    yield AttentionCase("one head without its axis, options", q[0], k[0], v[0], {
        "causal": True, "mask": np.arange(14) % 4 != 1, "bias": np.ones((9, 1), np.float16), "sinks": [0.25],
        "alibi_slopes": [0.5], "kv_lengths": 12,
    })  # fmt: skip
    q, k, v = operands(key, Shape((3,), 6, 2, 4, 30, 16, 16))
    same = np.broadcast_to(k[:1], k.shape)
    yield AttentionCase("one key sequence for the batch", q, same, np.broadcast_to(v[:1], v.shape))
    yield AttentionCase("one key everywhere", q, np.broadcast_to(k[..., :1, :], k.shape), v, {"causal": True})
    yield AttentionCase("keys and values are one array", q, k, k)


def layouts(key: str) -> Iterator[AttentionCase]:
    for shape in (Shape((2,), 4, 2, 7, 19, 12, 12), Shape((2,), 4, 2, 1, 70, 12, 20), Shape((), 2, 2, 40, 33, 20, 9)):
        q, k, v = operands(key, shape)
        note = shape_name(shape)
        for name, view in LAYOUTS.items():
            yield AttentionCase(f"{note}{name}", view(q), view(k), view(v))
            yield AttentionCase(f"{note}{name}, causal", view(q), view(k), view(v), {"causal": True})
            yield AttentionCase(f"{note}only v: {name}", q, k, view(v), {"window": (5, 5)})
            yield AttentionCase(f"{note}only k: {name}", q, view(k), v)
        as_bshd = [np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3) for x in (q, k, v)]
        yield AttentionCase(f"{note}(B, S, H, D)", *as_bshd)
        along_keys = [np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in (q, k, v)]
        yield AttentionCase(f"{note}D is not contiguous", *along_keys, {"causal": True})
        if shape.head_dim == shape.head_dim_v and shape.seq_len_q == 7:
            yield from packed(key, note)
        if key != "bf16":
            swapped = [x.astype(x.dtype.newbyteorder(">")) for x in (q, k, v)]
            yield AttentionCase(f"{note}big-endian", *swapped)
            yield AttentionCase(f"{note}big-endian, unaligned", *(unaligned(x)[..., ::-1] for x in swapped))
            yield AttentionCase(f"{note}one big-endian", q, swapped[1], v)


def packed(key: str, note: str) -> Iterator[AttentionCase]:
    """q, k and v as slices of one projection, (B, S, 3, H, D)."""
    qkv = operands(key, Shape((2, 11, 3), 4, 4, 1, 12, 12, 12))[0][..., 0, :]
    q, k, v = (qkv[:, :, part].swapaxes(-2, -3) for part in range(3))
    yield AttentionCase(f"{note}slices of one array", q, k, v, {"causal": True})


# ------------------------------------------------------------------ what is in the scores
def data(key: str) -> Iterator[AttentionCase]:
    dt = DTYPES[key]
    for shape in (lone(9, 200, 16), lone(1, 600, 16), Shape((), 4, 2, 40, 300, 8, 8)):
        note = shape_name(shape)
        for spread in (0.0, 0.01, 6.0, 40.0):
            q, k, v = operands(key, shape, 0, spread)
            yield AttentionCase(f"{note}spread {spread}", q, k, v)
            yield AttentionCase(f"{note}spread {spread}, causal", q, k, v, {"causal": True})
        q, k, v = operands(key, shape)
        steps = np.linspace(0, 60, shape.seq_len_k)
        for name, order in (("rising", steps), ("falling", -steps), ("there and back", np.abs(steps - 30))):
            # the first component is the score, so that the maximum moves from block to block
            line_q, line_k = np.zeros_like(q), k.copy()
            line_q[..., 0], line_k[..., 0] = 1, order.astype(dt)
            yield AttentionCase(f"{note}{name}", line_q, line_k, v, {"scale": 1})
            yield AttentionCase(f"{note}{name}, window", line_q, line_k, v, {"scale": 1, "window": (50, 9)})
        rng = np.random.default_rng(8)
        k[rng.random(k.shape) < 0.01] *= np.array(40).astype(dt)
        yield AttentionCase(f"{note}outliers in k", q, k, v)
        large = v.copy()
        large[rng.random(v.shape) < 0.01] *= np.array(1000).astype(dt)
        yield AttentionCase(f"{note}outliers in v", q, k, large)
        yield AttentionCase(f"{note}equal values", q, k, np.full_like(v, np.array(-7.25).astype(dt)))
        yield AttentionCase(f"{note}tiny values", q, k, (v.astype(float) * float(np.finfo(np.float16).tiny)).astype(dt))


# ------------------------------------------------------------------ options
SMALL = Shape((2,), 4, 2, 13, 29, 8, 8)
SHAPES = (
    SMALL, Shape((), 2, 1, 7, 5, 16, 3), Shape((2,), 3, 3, 1, 40, 8, 8), Shape((3, 2), 2, 1, 4, 11, 5, 6),
    Shape((), 6, 2, 2, 130, 16, 20), Shape((), 1, 1, 40, 70, 16, 16), Shape((2,), 8, 1, 1, 33, 20, 16),
)  # fmt: skip


def single_options(key: str) -> Iterator[AttentionCase]:
    for number, (option, variants) in enumerate(OPTIONS.items()):
        for step, variant in enumerate(variants):
            for shape in (SMALL, SHAPES[1 + (number + step) % (len(SHAPES) - 1)]):
                rng = np.random.default_rng([number, step])
                name, value = make(rng, shape, option, variant)
                options = {option: value}
                if option == "causal_offset":
                    options["causal"] = True
                yield case(key, shape, name, **options)


def pairs_of_options(key: str) -> Iterator[AttentionCase]:
    for number, pair in enumerate(combinations(OPTIONS, 2)):
        for step in range(2):
            shape = SHAPES[(number + 3 * step) % len(SHAPES)]
            name, options = make_several(np.random.default_rng([number, step, 1]), shape, list(pair))
            yield case(key, shape, name, **options)


def mixed_options(key: str) -> Iterator[AttentionCase]:
    """A seeded sample of all combinations."""
    for number in range(250):
        rng = np.random.default_rng([number, 2])
        shape = SHAPES[number % len(SHAPES)]
        count = int(rng.integers(3, len(OPTIONS), endpoint=True))
        name, options = make_several(rng, shape, list(rng.permutation(list(OPTIONS))[:count]))
        yield case(key, shape, f"#{number}: {name}", **options)


def large(key: str) -> Iterator[AttentionCase]:
    """Several tiles each way, with what cuts through them."""
    shape = Shape((), 2, 1, 200, 530, 24, 24)
    rng = np.random.default_rng(3)
    for options in (
        ["causal", "mask"], ["causal", "bias", "sinks"], ["block_mask"], ["causal", "alibi_slopes", "softcap"],
        ["kv_lengths", "causal", "window"],
    ):  # fmt: skip
        name, made = make_several(rng, shape, options)
        yield case(key, shape, name, **made)
    yield case(key, shape, "window", window=(100, 20))
    yield case(key, Shape((2,), 4, 2, 1, 3000, 64, 64), "decode", kv_lengths=[2999, 1234], causal=True)


# ------------------------------------------------------------------ unseen by -inf
def minus_infinity(key: str) -> Iterator[AttentionCase]:
    """One part of a score is -inf: the key is unseen, whatever the other parts and the value hold."""
    for shape in (SMALL, Shape((), 6, 2, 1, 530, 16, 16), Shape((2,), 2, 1, 30, 270, 20, 20)):
        q, k, v = operands(key, shape)
        j = np.arange(shape.seq_len_k)
        bias = np.where(j % 5 == 1, -np.inf, np.where(j % 7 == 3, np.float64(0.5), 0))
        q[..., 0] = np.abs(q[..., 0]) + np.array(0.5).astype(q.dtype)
        low = k.copy()
        low[..., 2::3, 0] = -np.inf  # such keys have scores of -inf
        for held in (np.nan, np.inf, -np.inf):
            note = f"{shape_name(shape)}{held}"
            bad_k, bad_v = k.copy(), v.copy()
            bad_k[..., 1::5, :], bad_v[..., 1::5, :] = held, held
            for options in ({}, {"causal": True}, {"softcap": 3.0}):
                yield AttentionCase(f"{note} behind a bias, {options}", q, bad_k, bad_v, {"bias": bias, **options})
            on_low = np.where(j % 3 == 2, held, bias)
            hidden = v.copy()
            hidden[..., 2::3, :] = held
            for options in ({}, {"window": (40, 2)}, {"alibi_slopes": np.full(shape.num_heads_q, 0.25)}):
                yield AttentionCase(f"{note} on -inf, {options}", q, low, hidden, {"bias": on_low, **options})
            # slopes of inf leave nothing but keys at the position of the query, where the penalty is inf·0
            away = {"alibi_slopes": np.resize([np.inf, 0.5], shape.num_heads_q), "causal_offset": shape.seq_len_k}
            yield AttentionCase(f"{note} under infinite slopes", q, bad_k, bad_v, {"bias": bias, **away})
        yield AttentionCase(f"{shape_name(shape)}infinite slopes, on the keys", q, k, v, {
            "alibi_slopes": np.resize([np.inf, -np.inf, 0.5], shape.num_heads_q),
        })  # fmt: skip
        yield AttentionCase(f"{shape_name(shape)}infinite slopes on -inf", q, low, v, {
            "alibi_slopes": np.resize([-np.inf, np.nan], shape.num_heads_q), "causal_offset": shape.seq_len_k + 3,
        })  # fmt: skip


# ------------------------------------------------------------------ dtypes
def mixed_dtypes(key: str) -> Iterator[AttentionCase]:
    """q in one dtype, k and v in others."""
    shape = Shape((), 4, 2, 9, 21, 12, 10)
    for step, other in enumerate(DTYPES):
        if {key, other} == {"f16", "bf16"}:
            continue  # NumPy has no common dtype for them
        q, (_, k, v), w = operands(key, shape)[0], operands(other, shape), operands(key, shape)[2]
        for seq_len_q in (9, 1):
            yield AttentionCase(f"q {key}, k and v {other}, Sq {seq_len_q}", q[:, :seq_len_q], k, v, {"causal": True})
            yield AttentionCase(f"q and v {key}, k {other}, Sq {seq_len_q}", q[:, :seq_len_q], k, w)
            yield AttentionCase(f"q and k {other}, v {key}, #{step}", operands(other, shape)[0], k, w)
    q, k, v = operands(key, shape)
    if key != "bf16":  # NumPy's promotion of integers with bfloat16 is ml_dtypes' own
        integers = np.random.default_rng(0).integers(-3, 4, v.shape)
        yield AttentionCase("integer values", q, k, integers.astype(np.int8))


def integers(_: str) -> Iterator[AttentionCase]:
    shape = Shape((2,), 4, 2, 5, 13, 7, 6)
    q, k, v = operands("f64", shape)
    for code in INTEGERS:
        low = 0 if np.dtype(code).kind in "bu" else -4
        high = 1 if code == "?" else 4
        made = [np.clip(np.rint(x * 2), low, high).astype(code) for x in (q, k, v)]
        yield AttentionCase(f"all {code}", *made, {"causal": True})
        yield AttentionCase(f"q f64, k and v {code}", q, *made[1:])
        yield AttentionCase(f"all {code}, scale", *made, {"scale": 0.25, "window": (3, 0)})
    yield AttentionCase("lists", q[0, 0].tolist(), k[0, 0].tolist(), v[0, 0].tolist())  # type: ignore[arg-type]


GROUPS: dict[str, Callable[[str], Iterator[AttentionCase]]] = {
    f.__name__: f
    for f in (
        lengths, block_lengths, dims, empties, heads_and_batches, layouts, data, single_options, pairs_of_options,
        mixed_options, large, minus_infinity, mixed_dtypes, integers,
    )
}  # fmt: skip


@cache
def group(name: str, key: str) -> tuple[AttentionCase, ...]:
    return tuple(GROUPS[name](key))
