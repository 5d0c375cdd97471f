"""Calls of attention on tensor cores, and mistakes in the sources of these kernels that the calls must show."""

from typing import Any, NamedTuple

import numpy as np
from attention_cases import lone, operands
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation

import dualsoft as ds


class Call(NamedTuple):
    """One call of attention."""

    q: Any
    k: Any
    v: Any
    options: dict[str, Any] = {}  # noqa: RUF012 (never written)
    is_state: bool = False


def special() -> Call:
    q, k, v = operands("f16", lone(70, 150, 64))
    v[0, 20, 3], v[0, 100, 5] = np.inf, np.nan
    return Call(q, k, v, {"causal": True})


def special_scores() -> Call:
    q, k, v = operands("f16", lone(70, 150, 64))
    k[0, 30, 3] = np.inf
    return Call(q, k, v, {"causal": True})


def capped_overflow() -> Call:
    """A score of about 0 on whose way float32 overflows."""
    q, k, v = operands("bf16", lone(40, 70, 64))
    q[..., :48:16], k[..., :48:16], k[0, 30, :48:16] = 1e19, 0, (4e19, -2e19, -2e19)
    return Call(q, k, v, {"softcap": 4.0, "scale": 2.0**-20})


def seen_by_some() -> Call:
    """A value that is not finite behind a mask, for all but a few rows."""
    q, k, v = operands("f16", lone(70, 150, 64))
    v[0, 100, 5] = np.inf
    mask = np.ones((70, 150), bool)
    mask[:, 100] = np.arange(70) % 9 == 4
    return Call(q, k, v, {"mask": mask})


def blocks() -> Call:
    """Of the tiles of keys the second one is seen by rows of the last warp alone, the third by nobody."""
    seen = np.ones((14, 22), bool)
    seen[:12, 9:18], seen[:, 18:] = False, False
    return Call(*operands("f16", lone(70, 150, 64)), {"block_mask": ds.BlockMask(seen, 5, 7)})


def long_state() -> Call:
    """Sums of more than one run of keys, of which some rows see a value that is not finite."""
    q, k, v = operands("bf16", lone(20, 2100, 64, 8))
    v[0, 2095, 3] = np.inf
    return Call(q, k, v, {"causal": True}, is_state=True)


RNG = np.random.default_rng(5)
CALLS = {
    "full": Call(*operands("f16", lone(65, 135, 64))),
    "causal": Call(*operands("f16", lone(70, 150, 64)), {"causal": True}),
    "window": Call(*operands("f16", lone(70, 300, 64)), {"window": (40, 3)}),
    "special": special(),
    "special in scores": special_scores(),
    "capped": Call(*operands("f16", lone(70, 150, 64)), {"softcap": 0.5}),
    "capped overflow": capped_overflow(),
    "mask": Call(*operands("f16", lone(70, 150, 64)), {"mask": RNG.random((70, 150)) < 0.6}),
    "seen by some": seen_by_some(),
    "bias": Call(*operands("f16", lone(70, 150, 64)), {"bias": RNG.standard_normal((70, 150)).astype(np.float32)}),
    "bias of the type": Call(
        *operands("f16", lone(70, 150, 64)), {"bias": RNG.standard_normal((70, 150)).astype(np.float16), "causal": True}
    ),
    "bias of another type": Call(*operands("f16", lone(70, 150, 64)), {"bias": RNG.standard_normal((70, 1))}),
    "alibi": Call(*operands("f16", lone(70, 150, 64)), {"alibi_slopes": np.array([0.25])}),
    "blocks": blocks(),
    "state": Call(*operands("f16", lone(70, 150, 64, 40)), {"causal": True}, is_state=True),
    "long state": long_state(),
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
    "a lane reads the pieces of another place": Mutation("int(lane() / 8 % 2)", "int(lane() / 16)", ("full",)),
    "values are not transposed": Mutation("load_transposed(b, moved(", "load_matrices(b, moved(", ("full",)),
    "edges are not hidden": Mutation("|| j0 + KEYS > memory.hi[first]) hide", "|| false) hide", ("full", "causal")),
    "the edge of a window is not hidden": Mutation("if (j0 < memory.lo[last] ||", "if (", ("window",)),
    "one column too many": Mutation("n * 8 + i >= hi) s[h", "n * 8 + i > hi) s[h", ("causal",)),
    "a warp leaves out tiles that its last row sees": Mutation(
        "j0 < memory.hi[last] && j0 + KEYS", "j0 < memory.hi[first] && j0 + KEYS", ("window",)
    ),
    "outputs are not rescaled": Mutation("if (!__any_sync(ALL_LANES, is_risen)) return;", "return;", ("full",)),
    "one set of rows for the other": Mutation(
        "multiply(o[m][2 * n], p[m][k],", "multiply(o[m][2 * n], p[0][k],", ("full",)
    ),
    "queries of the first set only": Mutation("warp_row() + 16 * m, k * 16);\n}", "warp_row(), k * 16);\n}", ("full",)),
    "outputs are rescaled for one row of two": Mutation("alpha[2 * m + i / 2])", "alpha[2 * m])", ("full",)),
    "d is that of two lanes": Mutation("return d + from_lane(d, 2);", "return d;", ("full",)),
    "columns of weights change places": Mutation(
        "pair(s[m][2 * k + i / 2][i % 2 * 2],",
        "pair(s[m][2 * k + i % 2][i / 2 * 2],",
        ("full",),
    ),
    "keys past the end are read": Mutation("k >= lo && k < hi;", "k >= lo;", ("full",), (WRONG, *OUTSIDE)),
    "rows that see special values keep what they have": Mutation(
        "            note_rows(memory, j0, memory.special[turn]);\n", "", ("special",)
    ),
    "rows are not marked": Mutation("if (is_odd) mark_odd(", "if (false) mark_odd(", ("special in scores",)),
    "tanh near 0 everywhere": Mutation("is_near ? near : far", "near", ("capped",)),
    "tanh of a sum that overflowed": Mutation(
        "fused(a, 0.0f, is_near", "fused(0.0f, 0.0f, is_near", ("capped overflow",)
    ),
    "the mask of one pair of keys for four": Mutation(
        "const i64 j = row.readable(n + a, i);", "const i64 j = row.readable(n, i);", ("mask",)
    ),
    "addends of another lane are looked at": Mutation("row % 8 * 4 + key", "row % 8 * 2 + key", ("seen by some",)),
    "addends move on while others look": Mutation(
        "            __syncthreads();            // which looks at the addends of all\n", "", ("seen by some",), RACES
    ),
    "a bias is read without its step": Mutation(
        "row.readable(n + a, i) * bias.item", "row.readable(n + a, i)", ("bias",), (WRONG, *OUTSIDE, "misaligned")
    ),
    "a bias is read past its keys": Mutation("k < lo ? lo : k < hi ? k : hi - 1", "k", ("bias of the type",), OUTSIDE),
    "alibi rewards distance": Mutation("mul(-slope, f32(", "mul(slope, f32(", ("alibi",)),
    "blocks are counted in keys": Mutation(
        "block == 1 ? j : quotient_of(j, block)", "j", ("blocks",), (WRONG, *OUTSIDE)
    ),
    "one warp decides which tiles are seen": Mutation(
        "const bool is_any = threadIdx.x < ROWS &&", "const bool is_any = threadIdx.x < 32 &&", ("blocks",)
    ),
    "sums past the last column": Mutation(
        "if (column < t.dim_v) store_aligned(to", "store_aligned(to", ("state",), (WRONG, *OUTSIDE)
    ),
    "rows of a state that are not left are merged too": Mutation(
        "if (selected && (wanted >> (row - w.first) & 1) == 0) continue;", "", ("long state",), (WRONG, *OUTSIDE)
    ),
    "outputs are stored before all lanes have staged them": Mutation(
        "    __syncwarp();\n}\nDS_DEVICE void store_rows", "}\nDS_DEVICE void store_rows", ("full",), RACES
    ),
}

F64_SHAPES = {"several tiles": lone(70, 150, 20, 70), "a part of a step": lone(33, 67, 13, 3)}
"""Shapes of calls in float64, whose products are of tensor cores."""
OF_OTHERS = """#pragma unroll
        for (int a = 0; a < ROWS_EACH; ++a) {
            x[a] = parts[row_of_thread(a)];"""
F64_MUTATIONS = {
    "fragments of rows change places": Mutation(
        "a[0], a[8 * pitch], a[4], a[8 * pitch + 4]", "a[0], a[4], a[8 * pitch], a[8 * pitch + 4]", ("several tiles",)
    ),
    "half a step is left out": Mutation("k < steps; k += 8", "k + 4 < steps; k += 8", ("a part of a step",)),
    "keys are not those of their columns": Mutation(
        "key_of_column(lane_group())) * SLICE_PITCH", "lane_group()) * SLICE_PITCH", ("several tiles",)
    ),
    "both warps have the first keys": Mutation(
        "int(threadIdx.x) / 32 % ROW_WARPS * 32; }", "0; }", ("several tiles",), (WRONG, *RACES)
    ),
    "a maximum is that of one warp": Mutation(
        "for (int k = 1; k < ROW_WARPS; ++k) x[a] = join", "for (int k = 1; k < 1; ++k) x[a] = join", ("several tiles",)
    ),
    "a maximum is that of two lanes": Mutation(
        "distance < ROW_LANES; distance *= 2", "distance < ROW_LANES / 2; distance *= 2", ("several tiles",)
    ),
    "nobody waits for the other warp's maxima": Mutation(
        "        __syncthreads();\n" + OF_OTHERS, OF_OTHERS, ("several tiles",), RACES
    ),
    "pairs of columns change places": Mutation(
        "c * 8 + 2 * lane_of_group(); }", "c * 8 + 2 * (lane_of_group() ^ 1); }", ("several tiles",)
    ),
}
