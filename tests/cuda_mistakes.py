"""Mistakes in the sources of the kernels, and the calls of ``test_cuda_mutations`` that must show them."""

from typing import NamedTuple

WRONG = "wrong numbers"
OUTSIDE = ("out of bounds", "uninitialised")
RACES = ("race", "uninitialised")


class Mutation(NamedTuple):
    """``old`` becomes ``new`` in a source; some of ``calls`` must show one of ``signs``."""

    old: str
    new: str
    calls: tuple[str, ...]
    signs: tuple[str, ...] = (WRONG,)


GROUP = {
    "no barrier before the parts are written": Mutation(
        "            __syncthreads();                    // the parts of the reduction before may still be read\n",
        "",
        ("f16 block",),
        ("race",),
    ),
    "no barrier before the parts are read": Mutation(
        "            __syncthreads();\n            value = parts[0];",
        "            value = parts[0];",
        ("block",),
        RACES,
    ),
    "a shuffle reaches too near": Mutation("distance < size && distance < 32", "distance < size / 2", ("short",)),
    "shuffles leave out distances": Mutation(
        "distance < 32; distance *= 2", "distance < 32; distance *= 4", ("short",)
    ),
    "one warp's part is left out": Mutation("warp < WARPS; ++warp", "warp < WARPS - 1; ++warp", ("block",)),
    "a warp's part lands in another's place": Mutation(
        "parts[threadIdx.x / 32]", "parts[threadIdx.x / 64]", ("block",), RACES
    ),
    "a block does not meet": Mutation("if (size > 32) __syncthreads();", "if (size > 32) ;", ("where, block",), RACES),
    "a warp does not meet": Mutation("else __syncwarp();", "else ;", ("where",), RACES),
}
PAIR = {
    "merging takes the lower for the higher": Mutation(
        "high = a_higher ? a : b", "high = a_higher ? b : a", ("tiled lse",)
    ),
    "merging drops the second maximum of a tie": Mutation(
        "return {a.m, (a.rest + b.rest) + 1.0};", "return {a.m, a.rest + b.rest};", ("tiled ties",)
    ),
    "merging does not rescale": Mutation(
        "scaled(low.rest + 1.0, exponential(low.m - high.m))", "(low.rest + 1.0)", ("tiled lse",)
    ),
    "sums about 0 are taken for sums about m": Mutation(
        "shift == m ? total : scaled(total, exponential(f64(shift) - f64(m)))", "total", ("short lse",)
    ),
    "small logarithms are summed once": Mutation("return -1.0 < m && m < 1.0 &&", "return false &&", ("near 0",)),
    "sums about 0 whatever m is": Mutation("ZERO_SHIFT = 16.0", "ZERO_SHIFT = 1e4", ("above 40",)),
    "nothing counts as one element": Mutation(
        "DS_DEVICE pair nothing() { return {-infinity(), {-1.0, 0.0}}; }",
        "DS_DEVICE pair nothing() { return {0.0, {0.0, 0.0}}; }",
        ("tiled ties",),
    ),
    "rows of -inf are like others": Mutation("if (m == C(-infinity())) return", "if (false) return", ("special lse",)),
    "the maximum is counted twice": Mutation("below + (f64(s.count) - 1.0)", "below + f64(s.count)", ("short lse",)),
    "the sum lacks its 1": Mutation("factor / (1.0 + rest)", "factor / rest", ("tiled",)),
}
ROWS = {
    "the count does not begin at 0": Mutation("    i32 count = 0;\n", "    i32 count = 1;\n", ("short",)),
    "a strand is forgotten": Mutation("add(strand[2], strand[3])", "strand[2]", ("short",)),
    "where is not looked at": Mutation(
        "if (visible && from.where)", "if (false)", ("where",), (WRONG, "uninitialised")
    ),
    "where is read by the strides of x": Mutation(
        "offset(inner, WHERE, start + k)", "offset(inner, X, start + k)", ("where by columns",), (WRONG, *OUTSIDE)
    ),
    "the scale of a row is read by the strides of x": Mutation(
        "offset(at.outer, SCALE, index)", "offset(at.outer, X, index)", ("scale by row",), (WRONG, *OUTSIDE)
    ),
    "the scale is not applied": Mutation(
        "if (from.is_scaled) value = mul(value, from.factor);\n        const bool inside",
        "const bool inside",
        ("scale by row",),
    ),
    "the scale is not applied to gathered elements": Mutation(
        "if (from.is_scaled) value = mul(value, from.factor);\n        }", "}", ("where and scale",)
    ),
    "what lies past the end takes part": Mutation(
        "is_whole || first + j < from.length", "is_whole || first + j <= from.length", ("short",)
    ),
    "a tail reads one element too many": Mutation(
        "if (j < count) v.at[j]", "if (j <= count) v.at[j]", ("short",), OUTSIDE
    ),
    "whole chunks at the end": Mutation(
        "if (aligned && first + DS_CHUNK <= from.length) return", "if (aligned) return", ("short",), OUTSIDE
    ),
    "element by element, one too many": Mutation(
        "bool visible = start + k < from.length",
        "bool visible = start + k <= from.length",
        ("columns",),
        (WRONG, *OUTSIDE),
    ),
    "chunks are one off": Mutation(
        "i64(slot * DS_GROUP + team::thread()) * DS_CHUNK",
        "i64(slot * DS_GROUP + team::thread() + 1) * DS_CHUNK",
        ("short",),
    ),
    "slots overlap": Mutation(
        "i64(slot * DS_GROUP + team::thread())", "i64(slot + team::thread())", ("short",), (WRONG, "race", *OUTSIDE)
    ),
    "elements change places on the way": Mutation(
        "const int k = team::thread() * DS_CHUNK + j;",
        "const int k = team::thread() * DS_CHUNK + (j ^ 1);",
        ("columns",),
    ),
    "visible bits of another element": Mutation(
        "u32(through.visible[k]) <<", "u32(through.visible[k ^ 1]) <<", ("where",)
    ),
    "teams share one passage": Mutation(
        "const int first = team::number() * passage::LENGTH;", "const int first = 0;", ("columns",), (WRONG, *RACES)
    ),
    "rows beyond the last": Mutation(
        "if (index >= at.rows) return {in.x", "if (index > at.rows) return {in.x", ("short lse",), (WRONG, *OUTSIDE)
    ),
    "rough exponentials for the smallest rests": Mutation("LITTLE = 0x1p-60", "LITTLE = 0.0", ("bf16 tiny rests",)),
    "threads of a warp part": Mutation(
        "DS_GROUP < 32 ? __any_sync(ALL_LANES, condition) != 0 : condition",
        "condition",
        ("f16 mixed",),
        ("warp divergence", "warp mask", "deadlock"),
    ),
    "a segment is skipped": Mutation(
        "for (i64 segment = first; segment < last", "for (i64 segment = first + 1; segment < last", ("tiled lse",)
    ),
    "parts overlap": Mutation(
        "const i64 end = (part + 1) * length", "const i64 end = (part + 2) * length", ("tiled lse",)
    ),
    "a part is not joined": Mutation(
        "i = i64(threadIdx.x) % 32; i < count", "i = i64(threadIdx.x) % 32; i < count - 1", ("tiled lse", "tiled")
    ),
}
UNALIGNED = {
    "words are not shifted by bytes": Mutation("(shift & 3) * 8", "0", ("odd f16",)),
    "pieces are not shifted by words": Mutation("w[i] = shift & 4 ? w[i + 1] : w[i];", "w[i] = w[i];", ("odd rows",)),
    "the last lane has nobody above": Mutation(
        "if (is_last && shift != 0) next = load", "if (false) next = load", ("odd rows",)
    ),
    "the end of a row is a whole piece": Mutation(
        "return at >= begin && at + 16 <= end ? load_aligned",
        "return true ? load_aligned",
        ("odd block",),
        ("out of bounds",),
    ),
    "a piece is stored over its neighbours": Mutation(
        "if (at >= begin && at + 16 <= end) store_aligned(at, value);",
        "store_aligned(at, value); if (at >= begin && at + 16 <= end) ;",
        ("odd rows",),
        (WRONG, "cross-block race", "race", "out of bounds"),
    ),
    "the last lane keeps its end to itself": Mutation(
        "if (is_last && shift != 0) store", "if (false) store", ("odd rows",), ("unwritten output",)
    ),
}
KEPT = {
    "nobody waits for the last copy": Mutation(
        "copy_async_wait<AHEAD>();", "copy_async_wait<AHEAD + 1>();", ("tiled",), ("cp.async", "async", "uninitialised")
    ),
    "pairs are joined before they are there": Mutation(
        "    __syncthreads();\n    return join(", "    return join(", ("tiled",), RACES
    ),
    "a copy brings too many bytes": Mutation(
        "bytes_of(from.length - first));", "16);", ("tiled end",), ("out of bounds",)
    ),
    "slots are kept in one place": Mutation(
        "(segment * DS_SLOTS + slot) * DS_GROUP", "segment * DS_SLOTS * DS_GROUP", ("tiled",), (WRONG, "race", "async")
    ),
}
SOFTMAX = {
    "a tail writes one element too many": Mutation(
        "if (first + j < from.length) store_aligned", "if (first + j <= from.length) store_aligned", ("short",), OUTSIDE
    ),
    "whole chunks are written at the end": Mutation(
        "if (aligned && first + DS_CHUNK <= from.length) {\n        store",
        "if (aligned && first < from.length) {\n        store",
        ("short",),
        OUTSIDE,
    ),
    "a tail is not written": Mutation(
        "if (first + j < from.length) store_aligned",
        "if (first + j + 1 < from.length) store_aligned",
        ("short",),
        (WRONG,),
    ),
    "element by element, one written too many": Mutation(
        "if (start + k < from.length) store",
        "if (start + k <= from.length) store",
        ("where",),
        (WRONG, "cross-block race", *OUTSIDE),
    ),
    "the result is written by the strides of x": Mutation(
        "offset(inner, Y, start + k)",
        "offset(inner, X, start + k)",
        ("steps",),
        (WRONG, "unwritten output", "cross-block race", *OUTSIDE),
    ),
    "a row with +inf is like others": Mutation("m == compute(infinity()) ? not_a_number() : d", "d", ("special",)),
    "x - (m + log d)": Mutation("sub(sub(x, m), log_of_d)", "sub(x, add(m, log_of_d))", ("far from 0",)),
    "the logarithm of what is hidden is 0": Mutation("DS_LOG ? -infinity() : 0.0", "0.0", ("where log",)),
    "hidden rows are like others": Mutation("DS_DIRECT || mine.visible >> i & 1", "true", ("where",)),
    "the last segment is not written": Mutation(
        "segment < int(segments_of(from.length)); ++segment)\n            write",
        "segment + 1 < int(segments_of(from.length)); ++segment)\n            write",
        ("tiled",),
        ("unwritten output",),
    ),
    "blocks go round in steps of their own": Mutation(
        "base += i64(gridDim.x) * ROWS_A_BLOCK", "base += ROWS_A_BLOCK", ("short", "short lse"), ("cross-block race",)
    ),
}
ELSEWHERE = {
    "2^x for e^x": Mutation("exp2_approximate(mul(x, 0x1.715476p+0f))", "exp2_approximate(x)", ("f16",)),
    "float32's exponential forgets NaN": Mutation(
        "mul(mul(e.p, near), 0x1p-64f);\n    return is_nan(x) ? x : result;",
        "mul(mul(e.p, near), 0x1p-64f);\n    return result;",
        ("special",),
    ),
    "float64's exponential forgets NaN": Mutation(
        "e.p * near * 0x1p-512;\n    return is_nan(x) ? x : result;",
        "e.p * near * 0x1p-512;\n    return result;",
        ("special f64",),
    ),
    "float32's exponential loses the low part of ln 2": Mutation(
        "fused(n, -0x1.7f7d1cp-20f, fused(n, -0x1.62e4p-1f, t))", "fused(n, -0x1.62e4p-1f, t)", ("block",)
    ),
    "a coefficient of float64's exponential": Mutation("0x1.5555555555501p-3", "0x1.5555555565501p-3", ("f64",)),
    "the logarithm of 0": Mutation("if (x == -1.0) return -infinity();", "", ("special lse",)),
    "an unaligned element is read whole": Mutation(
        "if (is_aligned<T>(p)) return load_aligned<T>(p);",
        "return load_aligned<T>(p);",
        ("unaligned",),
        ("misaligned",),
    ),
    "an unaligned element is written whole": Mutation(
        "if (is_aligned<T>(p)) { store_aligned(p, value); return; }",
        "store_aligned(p, value); return;",
        ("unaligned out",),
        ("misaligned",),
    ),
    "the outermost axis is forgotten": Mutation(
        "int(a.rank) - 1; k >= 0; --k", "int(a.rank) - 1; k > 0; --k", ("two axes",), (WRONG, "race")
    ),
    "two axes are taken for one": Mutation(
        "return a.rank == 1 ? index * a.stride[which][0]",
        "return a.rank <= 2 ? index * a.stride[which][0]",
        ("two axes",),
        (WRONG, *OUTSIDE),
    ),
    "a result past the last row": Mutation(
        "if (team::thread() != 0 || index >= at.rows) continue;",
        "if (team::thread() != 0) continue;",
        ("short lse",),
        OUTSIDE,
    ),
    "the sign of nothing is 1": Mutation("lse == -infinity() ? 0.0 : 1.0", "1.0", ("special lse",)),
    "each lane writes the row's logarithm": Mutation(
        "if (team::thread() != 0 || index >= at.rows) continue;",
        "if (index >= at.rows) continue;",
        ("short lse",),
        ("race",),
    ),
}
MUTATIONS = GROUP | PAIR | ROWS | UNALIGNED | KEPT | SOFTMAX | ELSEWHERE

EQUIVALENT = {
    "sums about m whatever m is": (
        Mutation("ZERO_SHIFT = 16.0", "ZERO_SHIFT = 0.0", ("near 0",)),
        "where it would show, small logarithms are summed once more; larger ones it brings nearer, within the bound",
    ),
    "another lane speaks for its warp": (
        Mutation("if (threadIdx.x % 32 == 0) parts", "if (threadIdx.x % 32 == 7) parts", ("block",)),
        "after the shuffles all lanes hold the same value",
    ),
    "the largest is also what is not smaller": (
        Mutation("if (x == m) ++count;", "if (x >= m) ++count;", ("short", "special")),
        "nothing is above the maximum",
    ),
    "scale is always applied": (
        Mutation(
            "if (from.is_scaled) value = mul(value, from.factor);\n        const",
            "value = mul(value, from.factor);\n        const",
            ("short",),
        ),
        "the factor is 1 where there is none: it costs a multiplication",
    ),
    "-inf - -inf": (
        Mutation(
            "return m == compute(-infinity()) ? compute(0) : m;",
            "return m;",
            ("special", "special log", "special lse", "where"),
        ),
        "where the maximum is -inf all terms are maximal and counted, none is added up",
    ),
    "the errors of a sum are lost": (
        Mutation("low = a.low + lost_in_sum(a.high, b, sum), high", "low = a.low, high", ("f64 lse", "f64")),
        "a thread adds few terms: within the bound",
    ),
    "sums of float32 in one strand": (
        Mutation("strand[i % 4] = add(strand[i % 4], term)", "strand[0] = add(strand[0], term)", ("short", "warp")),
        "a thread adds 32 terms at the most: within the bound, and one after the other",
    ),
}
