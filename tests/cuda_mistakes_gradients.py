"""Calls for attention's gradients on tensor cores, and mistakes in the sources of these kernels that they must show."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from attention_cases import lone
from attention_options import Shape
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation
from tensor_gradients import Given, differentiate, forward, given, strictly_wrong, wrong

import dualsoft as ds

RNG = np.random.default_rng(5)
MASK = RNG.random((70, 150)) < 0.6
MASK[:, 100] = np.arange(70) % 9 == 4
BIAS = RNG.standard_normal((70, 150)).astype(np.float32)


def special() -> Given:
    """Gradients of out that are not finite where out is 0: neither lse nor delta tells, and all keys see them."""
    of = given("bf16", lone(70, 150, 64))
    v = of.v.copy()
    v[..., 5] = 0
    of = forward(of.grad_out, of.q, of.k, v)
    of.grad_out[0, 20, 5], of.grad_out[0, 69, 5] = np.nan, np.inf
    return of


def growing() -> Given:
    """Of float16, gradients of scores that are larger by far in each tile."""
    of = given("f16", lone(200, 200, 64))
    grown = (2.0 ** np.linspace(-10, 10, 200))[:, None]
    return forward(of.grad_out, of.q, of.k, (of.v * grown).astype(np.float16))


def small() -> Given:
    """Of float16, gradients of scores far below its smallest numbers: weights of a part of all keys, all the same."""
    of = given("f16", lone(70, 300, 64), scale=1000.0)
    of = forward((of.grad_out * 1e-6).astype(np.float16), 0 * of.q, of.k * np.float16(3e3), of.v, scale=1000.0)
    return of._replace(lse=of.lse + np.float32(6), grad_lse=None)


def seen_by_some() -> Given:
    """A value that is NaN behind a mask, for all but a few rows, whose out tells nothing of it."""
    of = given("bf16", lone(70, 150, 64), mask=MASK)
    of.v[0, 100, 5] = np.nan
    return of


def hidden_blocks() -> Given:
    """Of the tiles of keys the second one is seen by the last rows alone, the third by nobody."""
    seen = np.ones((14, 22), bool)
    seen[:12, 9:18], seen[:, 18:] = False, False
    return given("bf16", lone(70, 150, 64), block_mask=ds.BlockMask(seen, 5, 7))


class Call(NamedTuple):
    """``is_strict``: to be compared with a computation in float64, beside which a plain one has no digits.

    Where gradients of queries, or of keys, are enough, one kernel is compiled.
    """

    of: Callable[[], Given]
    is_strict: bool = False
    names: str = "qkv"

    def wrong(self, name: str) -> str | None:
        of = self.of()
        got = differentiate(of, name, tuple(self.names))
        return strictly_wrong(got, of) if self.is_strict else wrong(got, of, self.names)


CALLS = {
    "full": Call(partial(given, "bf16", lone(65, 135, 64)), names="q"),
    "full, keys": Call(partial(given, "bf16", lone(65, 135, 64)), names="kv"),
    "causal": Call(partial(given, "bf16", lone(70, 150, 64), causal=True), names="kv"),
    "window": Call(partial(given, "bf16", lone(70, 300, 64), window=(40, 3)), names="q"),
    "groups, keys": Call(partial(given, "bf16", Shape((), 4, 2, 40, 90, 64, 40)), names="kv"),
    "capped": Call(partial(given, "bf16", lone(70, 150, 64), softcap=0.5), names="q"),
    "mask": Call(partial(given, "bf16", lone(70, 150, 64), mask=MASK), names="kv"),
    "seen by some": Call(seen_by_some, names="q"),
    "bias": Call(partial(given, "bf16", lone(70, 150, 64), bias=BIAS), names="kv"),
    "blocks": Call(hidden_blocks, names="q"),
    "large": Call(partial(given, "bf16", lone(70, 90, 64), scale=1000.0), names="q"),
    "special": Call(special, names="kv"),
    "growing": Call(growing, names="q"),
    "small": Call(small, is_strict=True, names="q"),
}
ASYNC = ("cp.async", "async", "uninitialised", "race")
MISTAKES = {
    "nobody waits for the tile": Mutation(
        "        copies_have_arrived();\n        if (is_clean) {\n            clean_lines<x_type, THREADS, PASSING>(",
        "        if (is_clean) {\n            clean_lines<x_type, THREADS, PASSING>(",
        ("full",),
        ASYNC,
    ),
    "no barrier before the tile is read": Mutation(
        "const bool is_edge = __syncthreads_or(settle_passing(in, first, turn)) != 0;",
        "settle_passing(in, first, turn); const bool is_edge = true;",
        ("full",),
        ASYNC,
    ),
    "the next tile takes the place of this one": Mutation(
        "fetch_passing(in, next, turn ^ 1)", "fetch_passing(in, next, turn)", ("full",), (*ASYNC, WRONG)
    ),
    "delta is forgotten": Mutation("sub(dp[m][n][i], row.delta)", "dp[m][n][i]", ("full",)),
    "weights are those of one tile for the other": Mutation(
        "memory.terms() + gradient_block::facts(turn)", "memory.terms()", ("full, keys",), (WRONG, *RACES)
    ),
    "edges are not hidden": Mutation("if (is_edge) hide(", "if (false) hide(", ("causal",)),
    "the edge of a window is not hidden": Mutation("if (key >= within(lo[row] - from, ROWS) && ", "if (", ("window",)),
    "tiles that end a window are taken for whole ones": Mutation(
        "memory.lo()[at] > in.first_key(first) ||", "", ("window",)
    ),
    "heads of a group are forgotten": Mutation(
        "base + (i - query * group) * head + query * row", "base + query * row", ("groups, keys",)
    ),
    "columns past the last one": Mutation(
        "|| p >= length) continue;", ") continue;", ("groups, keys",), (WRONG, *OUTSIDE)
    ),
    "the cap has no slope": Mutation("is_natural ? mul(ds, x.slope) : ds", "ds", ("capped",)),
    "the mask of one score for eight": Mutation(
        "quotient_of(of.keys[e], of.t.block_k) : of.keys[e]) * item",
        "quotient_of(of.keys[e], of.t.block_k) : of.keys[0]) * item",
        ("mask",),
    ),
    "addends of another lane are looked at": Mutation(
        "own % 8 * 4 + k % 8 / 2", "own % 8 * 2 + k % 8 / 2", ("seen by some",)
    ),
    "addends are looked at before they are there": Mutation(
        "            __syncthreads();            // addends of all are there\n", "", ("seen by some",), RACES
    ),
    "a bias is read past its keys": Mutation("least(key, in.w.of.keys - 1);", "key;", ("bias",), OUTSIDE),
    "blocks are counted in keys": Mutation(
        "are_blocks ? quotient_of(of.keys[e], of.t.block_k) :",
        "are_blocks ? of.keys[e] :",
        ("blocks",),
        (WRONG, *OUTSIDE),
    ),
    "one warp decides which tiles are seen": Mutation(
        "thread < (ARE_KEYS ? PASSING : ROWS) && row <", "thread < 32 && row <", ("blocks",)
    ),
    "dv is multiplied by ds": Mutation("products::round(s, halves);", "products::round(dp, halves);", ("full, keys",)),
    "one set of lines for the other": Mutation(
        "multiply(o[m][2 * n], p[m][k],", "multiply(o[m][2 * n], p[0][k],", ("full",)
    ),
    "sums are not brought down": Mutation("if (!__any_sync(ALL_LANES, is_risen)) return;", "return;", ("growing",)),
    "the largest of a lane": Mutation("        largest = larger(largest, from_lane(largest, 2));\n", "", ("growing",)),
    "nothing is brought up": Mutation("0x1p100f : 1.0f", "1.0f : 1.0f", ("small",)),
    "lines that see special values keep what they have": Mutation(
        "            note_lines(in, first, turn);\n", "", ("special",)
    ),
    "lines that are left are not done": Mutation("if (are_odd[h]) mark(", "if (false) mark(", ("large",)),
    "gradients are stored before all lanes have staged them": Mutation(
        "    __syncwarp();\n    char* const base", "    char* const base", ("full",), RACES
    ),
    "staged where others still multiply": Mutation(
        "if (!__syncthreads_or(is_any) || is_clean) break;", "if (true) break;", ("full",), RACES
    ),
}
