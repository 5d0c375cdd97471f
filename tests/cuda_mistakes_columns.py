"""Calls on columns, and mistakes in the sources of their kernels that these calls must show."""

from typing import Any, NamedTuple

import numpy as np
from cases import normal, unaligned
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation


class Call(NamedTuple):
    """One call of a function."""

    function: str
    x: Any
    axis: Any
    options: dict[str, Any] = {}  # noqa: RUF012 (never written)


def special(key: str) -> Any:
    x = normal(key, 40, 16)
    x[:, 0] = -np.inf
    x[3, 1], x[5, 2] = np.inf, np.nan
    x[::2, 3] = x[:, 3].max()
    x[:30, 4] = -np.inf
    x[:, 5] += 100
    return x


def rising(key: str, shift: float) -> Any:
    return (normal("f64", 300, 16) + np.linspace(0, 60, 300)[:, None] + shift).astype(normal(key, 1).dtype)


def tiny_rests() -> Any:
    x = np.full((20, 16), -88.5, normal("bf16", 1).dtype)
    x[np.arange(16), np.arange(16)] = 0
    return x


def near_0() -> Any:
    return np.ascontiguousarray((normal("f64", 2000, 5, spread=1.5) - np.log(5)).astype(np.float32).T)


CALLS = {
    "wide": Call("softmax", normal("f32", 300, 64), 0),
    "wide log": Call("log_softmax", normal("f32", 300, 64), 0),
    "wide lse": Call("logsumexp", normal("f32", 300, 64), 0),
    "ragged": Call("softmax", normal("f32", 300, 72)[:, :70], 0),
    "ragged lse": Call("logsumexp", normal("f32", 300, 72)[:, :70], 0),
    "ragged lines": Call("logsumexp", normal("f32", 4, 300, 72)[:, :, :70], 1),
    "few": Call("softmax", normal("f32", 257, 5), 0),
    "many lines": Call("softmax", normal("f32", 7, 40, 12), 1),
    "two axes": Call("logsumexp", normal("f32", 6, 8, 5)[:, ::2], (0, 1)),
    "parts": Call("softmax", normal("f32", 5000, 8), 0),
    "parts log": Call("log_softmax", normal("f32", 5000, 8), 0),
    "parts lse": Call("logsumexp", normal("f32", 5000, 8), 0),
    "special": Call("softmax", special("f32"), 0),
    "special log": Call("log_softmax", special("f32"), 0),
    "special lse": Call("logsumexp", special("f32"), 0),
    "special f64": Call("logsumexp", special("f64"), 0),
    "rising": Call("softmax", rising("f32", 0), 0),
    "rising lse": Call("logsumexp", rising("f32", -90), 0),
    "rising f64": Call("logsumexp", rising("f64", 0), 0),
    "near 0": Call("logsumexp", near_0(), 0),
    "tiny rests": Call("log_softmax", tiny_rests(), 0),
    "ties": Call("logsumexp", np.full((300, 8), -0.5, np.float32), 0),
    "scaled": Call("softmax", normal("f32", 40, 64), 0, {"scale": 0.5}),
    "unaligned": Call("softmax", unaligned(normal("f32", 40, 20)), 0),
    "steps": Call("softmax", normal("f32", 70, 90)[:, ::2], -1),
    "f16": Call("softmax", normal("f16", 300, 64), 0),
    "f64": Call("softmax", normal("f64", 300, 16), 0),
}

MUTATIONS = {
    "the last columns of a line are whole": Mutation(
        "int(smaller<i64>(DS_WIDTH, by.across - column))", "DS_WIDTH", ("ragged lse",), (WRONG, "race", *OUTSIDE)
    ),
    "lines are taken for one": Mutation(
        "line * by.across + column", "vector * DS_WIDTH", ("ragged lines",), (WRONG, "unwritten output", *OUTSIDE)
    ),
    "tiles past the last line": Mutation(
        "if (line * by.across >= at.rows) return {0, 0};", "", ("steps",), (WRONG, *OUTSIDE)
    ),
    "one element too many": Mutation(
        "if (e < from.last) v.at[i]", "if (e <= from.last) v.at[i]", ("wide",), (WRONG, *OUTSIDE)
    ),
    "elements past the end are 0": Mutation(
        "from.value(v.at[i].at[column]) : compute(-infinity())",
        "from.value(v.at[i].at[column]) : compute(0)",
        ("wide",),
    ),
    "what is kept lands in another's place": Mutation(
        "of_column<x_vector>(by.columns()) + threadIdx.x",
        "of_column<x_vector>(by.columns()) + threadIdx.x / 2",
        ("wide",),
        (WRONG, "race"),
    ),
    "the last batch is left out": Mutation(
        "+ step - 1) / step + SIZE - 1) / SIZE", "+ step - 1) / step) / SIZE", ("wide",), (WRONG, "unwritten output")
    ),
    "a new maximum forgets the old ones": Mutation(
        "s.total = with_several(s.total, exponential_of(sub(m, shift)), s.count);", "", ("wide",)
    ),
    "a new shift does not rescale": Mutation(
        "if (next != shift) s.total = times(s.total, exponential(f64(shift) - f64(next)));", "", ("rising",)
    ),
    "the count goes on": Mutation("        s.count = 0;\n", "", ("wide",)),
    "sums begin anew at each batch": Mutation(
        "s.total = s.total + sum.total();\n    }\n};\n\n// ----",
        "s.total = sum.total() + sum.total();\n    }\n};\n\n// ----",
        ("wide",),
    ),
    "one strand is left out": Mutation("strand < by.strands; ++strand", "strand < by.strands - 1; ++strand", ("wide",)),
    "strands are not lifted to the maximum": Mutation(
        "if (m[j] > mine[j].m) mine[j].rise(m[j], exponential_of());", "", ("wide",)
    ),
    "no barrier before strands are read": Mutation(
        "= value[j];\n        __syncthreads();", "= value[j];", ("wide",), RACES
    ),
    "no barrier after strands are joined": Mutation(
        "            *of_strand<T>(0, column) = together;\n        }\n        __syncthreads();",
        "            *of_strand<T>(0, column) = together;\n        }",
        ("wide",),
        (WRONG, *RACES),
    ),
    "small rests stay rough": Mutation("if (ROUGH && is_logarithm && ", "if (false && ", ("tiny rests",)),
    "small logarithms are summed once": Mutation(
        "if (__syncthreads_or(wanted)) sum_beyond", "if (false) sum_beyond", ("near 0",)
    ),
    "the scale is not applied": Mutation("return is_scaled ? mul(c, factor) : c;", "return c;", ("scaled",)),
    "results go by the strides of x": Mutation(
        "offset_in_column(inner, Y, e)",
        "offset_in_column(inner, X, e)",
        ("ragged",),
        (WRONG, "unwritten output", "cross-block race", *OUTSIDE),
    ),
    "another column's normalizer": Mutation(
        "normalizer_of_column(by, by.column(j));\n", "normalizer_of_column(by, by.column(0));\n", ("wide",)
    ),
    "parts overlap": Mutation(
        "const i64 begin = part * by.part;", "const i64 begin = part * (by.part - 1);", ("parts lse",)
    ),
    "pairs of parts change places": Mutation(
        "pairs, row * parts + part",
        "pairs, part * parts + row",
        ("parts lse",),
        (WRONG, "uninitialised", "unwritten output", "cross-block race", *OUTSIDE),
    ),
}
