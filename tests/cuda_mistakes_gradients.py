"""Calls for attention's gradients on tensor cores, and mistakes in the sources of these kernels that they must show."""

from collections.abc import Callable
from functools import partial

import numpy as np
from attention_cases import lone
from attention_options import Shape
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation
from tensor_gradients import Given, forward, given


def special() -> Given:
    """Queries that are NaN or infinite, seen by some keys."""
    of = given("bf16", lone(70, 150, 64), causal=True)
    q = of.q.copy()
    q[0, 20, 3], q[0, 66, 5] = np.nan, np.inf
    return forward(of.grad_out, q, of.k, of.v, causal=True)


def growing() -> Given:
    """Of float16, gradients of scores that are larger by far in each tile, the last one left out."""
    of = given("f16", lone(200, 200, 64))
    grown = (2.0 ** np.linspace(-10, 10, 200))[:, None]
    return forward(of.grad_out, of.q, of.k, (of.v * grown).astype(np.float16))


def small() -> Given:
    of = given("f16", lone(70, 300, 64))
    return of._replace(grad_out=(of.grad_out * 1e-4).astype(np.float16), grad_lse=None)


CALLS: dict[str, Callable[[], Given]] = {
    "full": partial(given, "bf16", lone(65, 135, 64)),
    "causal": partial(given, "bf16", lone(70, 150, 64), causal=True),
    "window": partial(given, "bf16", lone(70, 300, 64), window=(40, 3)),
    "groups": partial(given, "bf16", Shape((), 4, 2, 40, 90, 64, 40)),
    "capped": partial(given, "bf16", lone(70, 150, 64), softcap=0.5),
    "special": special,
    "growing": growing,
    "small": small,
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
    "lines are marked while others look": Mutation(
        "            __syncthreads();            // which looks at what is noted\n", "", ("special",), RACES
    ),
    "lines that are left are not done": Mutation("if (are_odd[h]) mark(", "if (false) mark(", ("special",)),
    "all lines are done once more": Mutation(
        "(wanted >> row_of_thread(a) & 1) == 0) continue;", "false) continue;", ("special",)
    ),
    "gradients are stored before all lanes have staged them": Mutation(
        "    __syncwarp();\n    char* const base", "    char* const base", ("full",), RACES
    ),
    "staged where others still multiply": Mutation(
        "if (!__syncthreads_or(are_odd[0] || are_odd[1]) || is_clean) break;", "if (true) break;", ("full",), RACES
    ),
}
