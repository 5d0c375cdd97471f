"""Calls of softmax_topk and sample for the emulator, and mistakes in their sources that these calls must show."""

from typing import Any, NamedTuple

import numpy as np
from cases import normal
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation

from dualsoft import philox

Array = np.ndarray[Any, Any]


class Call(NamedTuple):
    """One call: its arguments besides the array, by name."""

    function: str
    x: Array
    options: dict[str, Any]


def special(n: int) -> Array:
    x = normal("f32", 4, n)
    x[0, [7, 25]] = np.nan
    x[1, 3] = np.inf
    x[2] = -np.inf
    x[2, [3, 30]] = 1, 2
    return x


def ties(n: int) -> Array:
    return np.vstack([np.zeros(n), np.arange(n) % 3, np.arange(n)[::-1] // 2]).astype(np.float32)


def near_ties() -> Array:
    """Two elements a row whose scores differ by less than the low words of their noise do."""
    noise = philox.gumbel(philox.random_key(3), np.arange(16), 2)
    return np.stack([np.zeros(16), noise[:, 0] - noise[:, 1] + np.tile([1e-13, -1e-13], 8)], axis=1)


def top(x: Array, k: int, **options: Any) -> Call:
    return Call("softmax_topk", x, {"k": k, **options})


def draw(x: Array, **options: Any) -> Call:
    return Call("sample", x, {"rng": 3, **options})


HIDDEN = np.random.default_rng(5).random((4, 9000)) < 0.01
FACTORS = np.array([[0.5], [-2.0], [0.0], [1e-30]])
CLOSE = np.array([[1, np.nextafter(np.float32(1), np.float32(2)), 1 - 2.0**-24, -1]], np.float32)

TOPK = {
    "short": top(normal("f32", 19, 60), 7),
    "short, all": top(normal("f16", 3, 60), 60),
    "warp": top(normal("f32", 5, 250), 9),
    "long warp": top(normal("f64", 2, 500), 30),
    "warp, many": top(normal("bf16", 2, 1000), 600),
    "block": top(normal("f32", 2, 4000), 200),
    "segment": top(normal("f16", 2, 8192), 3),
    "most": top(normal("f32", 1, 8000), 1024),
    "rounds": top(normal("f32", 1, 3000), 1500),
    "parts": top(normal("f32", 2, 20001), 5),
    "parts, many": top(normal("f64", 1, 9000), 700),
    "rounds of parts": top(normal("f32", 1, 9000), 1030),
    "ties of parts": top(np.repeat(np.array([[0, -1, 0]], np.float32), [1024, 7168, 9000], axis=1), 1100),
    "rising": top(np.sort(normal("f32", 2, 12000)), 40),
    "ties": top(ties(300), 120),
    "ties, block": top(ties(9000), 400),
    "ties, rounds": top(ties(4000), 2000),
    "signs of 0": top(np.array([[-0.0, 0, -0.0, 0, -1, 0]], np.float32), 4),
    "levels by turns": top(np.repeat(np.array([[1, 0, 1, 0]], np.float32), [600, 4000, 300, 3000], axis=1), 1024),
    "special": top(special(40), 20),
    "special, all": top(special(40)[:, :37], 37),
    "special, parts": top(special(9000), 20),
    "where": top(special(9000), 60, where=HIDDEN),
    "where, short": top(special(40), 40, where=HIDDEN[:, :40]),
    "scales": top(special(40), 12, scale=FACTORS),
    "scale": top(special(9000), 12, scale=-0.3),
    "products that tie": top(CLOSE, 4, scale=1e-45),
    "where and scales": top(special(9000), 30, where=HIDDEN, scale=FACTORS),
    "columns": top(normal("f32", 300, 5), 11, axis=0),
    "middle axis": top(normal("f16", 3, 40, 5)[:, ::2], 4, axis=1),
    "integers": top((normal("f64", 2, 300) * 5).astype(np.int16), 50),
}
WIDE = normal("f32", 2, 9000, spread=3)
BY_ROW = {
    "temperature": np.array([0.0, 0.5, 1, 2]),
    "top_k": np.array([1, 5, 30, 2000]),
    "top_p": np.array([1, 0.5, 1, 0.7]),
}
SAMPLE = {
    "plain": draw(WIDE),
    "plain, short": draw(normal("f32", 30, 9)),
    "plain, f64": draw(normal("f64", 2, 3000)),
    "greedy": draw(ties(5000), temperature=0),
    "top_k": draw(WIDE, top_k=40),
    "top_k and all others": draw(normal("f16", 2, 9000), top_k=60, min_p=0.02, top_p=0.9, temperature=0.7),
    "min_p": draw(WIDE, min_p=0.05, temperature=2.0),
    "min_p of few": draw(normal("f32", 20, 100), min_p=0.9, temperature=9.0),
    "top_p": draw(WIDE, top_p=0.8),
    "top_p of nearly all": draw(normal("f32", 2, 5000, spread=0.3), top_p=0.9),
    "top_p of nearly all, f64": draw(normal("f64", 1, 3000, spread=0.3), top_p=0.9),
    "large top_k": draw(normal("bf16", 2, 5000), top_k=2500, top_p=0.95, min_p=1e-4),
    "large top_k alone": draw(np.zeros((4, 3000), np.float32), top_k=1500),
    "ties at a border": draw(np.zeros((6, 4000), np.float32), top_p=0.6),
    "few of ties": draw(np.zeros((9, 300), np.float32), top_k=7),
    "two of many": draw(np.zeros((12, 1500), np.float32), top_k=1025, temperature=0.1),
    "levels": draw(np.repeat(np.array([[4, 3, 2, 1, 0, -1]], np.float32), 500, axis=1), top_k=1501, temperature=1e30),
    "near ties": draw(near_ties()),
    "cold": draw(WIDE, temperature=1e-320),
    "hot": draw(WIDE * np.float32(1e37), temperature=1e38),
    "special": draw(special(9000)),
    "special, top_k": draw(special(40), top_k=3),
    "by row": draw(normal("f32", 4, 2100), **BY_ROW),
    "columns": draw(normal("f32", 50, 4), axis=0, top_p=0.9, temperature=np.array([0.3, 1, 1, 5])),
    "integers": draw((normal("f64", 3, 300) * 2).astype(np.int32)),
}
CALLS = {f"topk {name}": call for name, call in TOPK.items()} | {
    f"sample {name}": call for name, call in SAMPLE.items()
}

ANYTHING = (WRONG, *OUTSIDE, *RACES, "unwritten output")
MUTATIONS = {
    "-0 comes before 0": Mutation("__float_as_uint(add(x, 0.0f))", "__float_as_uint(x)", ("topk signs of 0",)),
    "NaN comes last": Mutation("return is_nan(x) ? ~0u : bits", "return is_nan(x) ? 1u : bits", ("topk special",)),
    "of equal ones the higher index": Mutation(
        "u64(order) << 32 | ~u32(index)", "u64(order) << 32 | u32(index)", ("topk ties",), ANYTHING
    ),
    "a sort stops early": Mutation(
        "width <= size; width *= 2", "width < size; width *= 2", ("topk short, all",), ANYTHING
    ),
    "a sort does not meet": Mutation(
        "distance > 0; distance /= 2) {\n            Team::meet();",
        "distance > 0; distance /= 2) {",
        ("topk block",),
        ANYTHING,
    ),
    "a cut keeps one too few": Mutation(
        "most = smaller(held, k);", "most = smaller(held, k - 1);", ("topk parts, many",), ANYTHING
    ),
    "a list overflows": Mutation("if (most + more > capacity) cut();", "", ("topk ties, block",), (*OUTSIDE, *RACES)),
    "the k-th is not the last": Mutation(
        "if (held >= k) last = at[k - 1];", "if (held >= k) last = at[k / 2];", ("topk levels by turns",), ANYTHING
    ),
    "a threshold that fewer than k reach": Mutation(
        "if (count < k) high = middle;", "if (count < k / 2) high = middle;", ("topk segment", "topk block"), ANYTHING
    ),
    "a threshold of another row": Mutation(
        "if (segment == begin) least = reached_by(mine, first + k);",
        "least = compute(0);",
        ("topk warp, many",),
        ANYTHING,
    ),
    "what equals the threshold is left out": Mutation(
        "u32(!(mine.value[i] < least)) << i", "u32(mine.value[i] > least) << i", ("topk ties",), ANYTHING
    ),
    "hidden elements are -inf": Mutation(
        "mine.visible >> i & 1 ? order_of(mine.value[i]) : integer(0), start",
        "order_of(mine.value[i]), start",
        ("topk where, short",),
    ),
    "a part forgets where it begins": Mutation("start + found.at[i].index())", "found.at[i].index())", ("topk parts",)),
    "ranks begin anew": Mutation("if (e < of.bound) found.add(e);", "found.add(e);", ("topk rounds",)),
    "a bound counts from the row's begin": Mutation(
        "behind = index - start + 1;", "behind = index + 1;", ("topk ties of parts",)
    ),
    "a negative scale does not turn the order": Mutation(
        "scale < 0.0 ? -1.0 : scale", "scale < 0.0 ? 1.0 : scale", ("topk scale",)
    ),
    "the order is that of products": Mutation(
        "return {compute(sign), scale_of",
        "return {scale_of<compute>(fabs(scale) * sign), scale_of",
        ("topk products that tie",),
    ),
    "values of hidden elements": Mutation(
        "const bool is_hidden = entry.order() == 0;", "const bool is_hidden = false;", ("topk where, short",)
    ),
    "values may rise": Mutation(
        "if (lane >= distance) value = smaller(value, other);",
        "if (lane >= distance) value = other;",
        ("topk short, all",),
    ),
    "the join takes one part": Mutation(
        "if (i < parts * k) found.add", "if (i < k) found.add", ("topk parts",), ANYTHING
    ),
    "a round of Philox is left out": Mutation(
        "for (int i = 0; i < 10; ++i) {\n        const u64 first",
        "for (int i = 0; i < 9; ++i) {\n        const u64 first",
        ("sample plain",),
    ),
    "the low words are the high ones": Mutation("| 0x80000000u, c2", ", c2", ("sample near ties",)),
    "noise by the place in memory": Mutation(
        "const u64 number = u64(place) / sizeof(i64);", "const u64 number = u64(place);", ("sample plain, short",)
    ),
    "the element that reaches top_p goes": Mutation(
        "count += before < target && m.at[j] != 0;",
        "count += before + m.at[j] < target && m.at[j] != 0;",
        ("sample top_p", "sample by row"),
    ),
    "min_p is not heard": Mutation(
        "if (!(s >= least)) continue;\n        const i64 index", "const i64 index", ("sample min_p of few",)
    ),
    "digits are forgotten": Mutation(
        "prefix = prefix << 8 | integer(digit);",
        "prefix = integer(digit);",
        ("sample levels", "sample large top_k"),
        ANYTHING,
    ),
    "of ties one stays": Mutation("(target + each - 1) / each", "1", ("sample large top_k alone",), ANYTHING),
    "the test is too narrow": Mutation(
        "0x1.004p32f, 1.0f",
        "0x1p26f, 1.0f",
        ("sample plain, short", "sample plain, f64", "sample min_p", "sample ties at a border"),
    ),
    "the test does not subtract the best": Mutation(
        "mul(sub(v, m), inverse)), best);",
        "mul(sub(v, m), inverse)), 20.0f);",
        ("sample plain, short", "sample plain, f64", "sample ties at a border"),
    ),
    "the last of the largest is taken": Mutation(
        "u64(order) << 32 | ~u32(index)}", "u64(order) << 32 | u32(index)}", ("sample greedy",), ANYTHING
    ),
}
EQUIVALENT = {
    "every element that passes gets an exact score": (
        Mutation(
            "exponential_rough(z), 0x1.004p32f, 1.0f",
            "exponential_rough(z), 0x1p40f, 1.0f",
            ("sample plain", "sample min_p"),
        ),
        "the test only saves work",
    ),
}
