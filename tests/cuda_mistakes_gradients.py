"""Calls for attention's gradients on tensor cores, and mistakes in the sources of these kernels that they must show."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from attention_cases import lone
from attention_options import Shape
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation
from tensor_gradients import Given, differentiate, forward, given, strictly_wrong, wrong


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


class Call(NamedTuple):
    """``is_strict``: to be compared with a computation in float64, beside which a plain one has no digits."""

    of: Callable[[], Given]
    is_strict: bool = False

    def wrong(self, name: str) -> str | None:
        of = self.of()
        return (strictly_wrong if self.is_strict else wrong)(differentiate(of, name), of)


CALLS = {
    "full": Call(partial(given, "bf16", lone(65, 135, 64))),
    "causal": Call(partial(given, "bf16", lone(70, 150, 64), causal=True)),
    "window": Call(partial(given, "bf16", lone(70, 300, 64), window=(40, 3))),
    "groups": Call(partial(given, "bf16", Shape((), 4, 2, 40, 90, 64, 40))),
    "capped": Call(partial(given, "bf16", lone(70, 150, 64), softcap=0.5)),
    "large": Call(partial(given, "bf16", lone(70, 90, 64), scale=1000.0)),
    "special": Call(special),
    "growing": Call(growing),
    "small": Call(small, is_strict=True),
}
ASYNC = ("cp.async", "async", "uninitialised", "race")
MISTAKES = {
    "nobody waits for the tile": Mutation(
        "        copies_have_arrived();\n        if (is_clean) {\n            clean_lines<PASSING>(",
        "        if (is_clean) {\n            clean_lines<PASSING>(",
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
        "turn ^ 1);\n        add_tile(", "turn);\n        add_tile(", ("full",), (*ASYNC, WRONG)
    ),
    "delta is forgotten": Mutation("sub(dp[n][i], delta[row])", "dp[n][i]", ("full",)),
    "weights are those of one tile for the other": Mutation(
        "memory.shift() + (ARE_KEYS ? turn * PASSING : 0)", "memory.shift()", ("full",), (WRONG, *RACES)
    ),
    "edges are not hidden": Mutation("if (is_edge) hide(", "if (false) hide(", ("causal", "window")),
    "one key too many": Mutation(
        "key < within(hi[row] - from, ROWS)", "key <= within(hi[row] - from, ROWS)", ("causal",)
    ),
    "the edge of a window is not hidden": Mutation("if (key >= within(lo[row] - from, ROWS) && ", "if (", ("window",)),
    "tiles that end a window are taken for whole ones": Mutation(
        "memory.lo()[at] > (ARE_KEYS ? in.w.first : first) ||", "", ("window",)
    ),
    "heads of a group are forgotten": Mutation(
        "base + (i - query * group) * head + query * row", "base + query * row", ("groups",)
    ),
    "a gradient goes to the first head of its group": Mutation(
        "base + (line - query * group) * to.head + query", "base + query", ("groups",), (WRONG, *RACES)
    ),
    "columns past the last one": Mutation("|| p >= length) continue;", ") continue;", ("groups",), (WRONG, *OUTSIDE)),
    "the cap has no slope": Mutation("is_capped ? mul(ds, x.slope) : ds", "ds", ("capped",)),
    "the slope of small scores everywhere": Mutation("is_near ? fused(-near", "true ? fused(-near", ("capped",)),
    "dv is multiplied by ds": Mutation("round_to_halves(s, halves);", "round_to_halves(dp, halves);", ("full",)),
    "the second lines for the first": Mutation(
        "add_lines(halves, memory.passing(turn, 0), r.o[0])",
        "add_lines(halves, memory.passing(turn, 1), r.o[0])",
        ("full",),
    ),
    "sums are not brought down": Mutation("if (!__any_sync(ALL_LANES, is_risen)) return;", "return;", ("growing",)),
    "sums of one line for two are brought down": Mutation("alpha[i / 2]);", "alpha[0]);", ("growing",)),
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
        "if (!__syncthreads_or(are_odd[0] || are_odd[1]) || is_clean) break;", "if (true) break;", ("full",), RACES
    ),
}
