"""Calls of attention on tensor cores, and mistakes in the sources of these kernels that the calls must show."""

from typing import Any, NamedTuple

import numpy as np
from attention_cases import lone, operands
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation


class Call(NamedTuple):
    """One call of attention."""

    q: Any
    k: Any
    v: Any
    options: dict[str, Any] = {}  # noqa: RUF012 (never written)


def special() -> Call:
    q, k, v = operands("f16", lone(70, 150, 64))
    v[0, 20, 3], v[0, 100, 5] = np.inf, np.nan
    return Call(q, k, v, {"causal": True})


def special_scores() -> Call:
    q, k, v = operands("f16", lone(70, 150, 64))
    k[0, 30, 3] = np.inf
    return Call(q, k, v, {"causal": True})


CALLS = {
    "full": Call(*operands("f16", lone(65, 135, 64))),
    "causal": Call(*operands("f16", lone(70, 150, 64)), {"causal": True}),
    "window": Call(*operands("f16", lone(70, 300, 64)), {"window": (40, 3)}),
    "special": special(),
    "special in scores": special_scores(),
}

ASYNC = ("cp.async", "async", "uninitialised", "race")
MUTATIONS = {
    "nobody waits for the keys": Mutation(
        "copies_have_arrived();\n        __syncthreads();                // the keys",
        "__syncthreads();                // the keys",
        ("full",),
        ASYNC,
    ),
    "no barrier before keys are read": Mutation(
        "        __syncthreads();                // the keys", "        // the keys", ("full",), ASYNC
    ),
    "nobody waits for the values": Mutation(
        "        copies_have_arrived();\n        if (is_clean) {", "        if (is_clean) {", ("full",), ASYNC
    ),
    "no barrier before values are read": Mutation(
        "        __syncthreads();                // the values", "        // the values", ("full",), ASYNC
    ),
    "keys come before queries have gone": Mutation("if (ARE_QUERIES_HELD) __syncthreads();", "", ("full",), ASYNC),
    "pieces are moved on instead of exchanged": Mutation(
        "(first ^ u32(2 * column))", "(first + u32(2 * column))", ("full",), (WRONG, *OUTSIDE)
    ),
    "a lane reads the pieces of another place": Mutation("lane() / 8 % 2));", "lane() / 16));", ("full",)),
    "values are not transposed": Mutation("load_transposed(b, moved(", "load_matrices(b, moved(", ("full",)),
    "edges are not hidden": Mutation("|| j0 + KEYS > memory.hi[first]) hide", "|| false) hide", ("full", "causal")),
    "the edge of a window is not hidden": Mutation("if (j0 < memory.lo[last] ||", "if (", ("window",)),
    "one column too many": Mutation("n * 8 + i >= hi) s[n]", "n * 8 + i > hi) s[n]", ("causal",)),
    "a warp leaves out tiles that its last row sees": Mutation(
        "j0 < memory.hi[last] && j0 + KEYS", "j0 < memory.hi[first] && j0 + KEYS", ("window",)
    ),
    "outputs are not rescaled": Mutation(
        "if (!__any_sync(ALL_LANES, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;", "return;", ("full",)
    ),
    "outputs are rescaled for one row of two": Mutation("alpha[i / 2])", "alpha[0])", ("full",)),
    "d is that of two lanes": Mutation("return d + from_lane(d, 2);", "return d;", ("full",)),
    "columns of weights change places": Mutation(
        "tensor<x_type>::pair(x[2], x[3]), tensor<x_type>::pair(y[0], y[1]),",
        "tensor<x_type>::pair(y[0], y[1]), tensor<x_type>::pair(x[2], x[3]),",
        ("full",),
    ),
    "keys past the end are read": Mutation("k >= lo && k < hi;", "k >= lo;", ("full",), (WRONG, *OUTSIDE)),
    "rows that see special values keep what they have": Mutation(
        "if (is_clean) note_rows(", "if (false) note_rows(", ("special",)
    ),
    "rows are not marked": Mutation("if (is_odd) atomicOr(", "if (false) atomicOr(", ("special in scores",)),
    "outputs are stored before all lanes have staged them": Mutation(
        "    __syncwarp();\n}\nDS_DEVICE void store_rows", "}\nDS_DEVICE void store_rows", ("full",), RACES
    ),
}
