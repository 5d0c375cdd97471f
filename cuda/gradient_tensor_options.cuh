// gradient_tensor_options.cuh - what scores meet beside their scale, outside of the products: a softcap, and one addend for bias, alibi and masks.
//
// Addends wait in shared memory, -inf where a score is hidden, by position too.
#pragma once
#include "gradient_tensor_tiles.cuh"

namespace ds {

DS_DEVICE score_rules rules_of(const attention_task& t) {
    const f64 scale = t.fold * t.exact_unit;
    const bool has_addends = t.at[AT_BIAS].base || t.at[AT_MASK].base || t.at[AT_BLOCKS].base || t.slopes, is_natural = has_addends || t.softcap != 0;
    return {rounded<f32>::of(is_natural ? LOG2_E : scale * LOG2_E), rounded<f32>::of(t.softcap != 0 ? scale / t.softcap : scale),
            rounded<f32>::of(t.softcap), is_natural, has_addends, t.at[AT_BLOCKS].base != nullptr};
}

// A score in natural units, and its derivative by what it was without a cap.
struct settled_score { f32 value, slope; bool is_seen; };
DS_DEVICE settled_score settle(const block_memory& memory, const score_rules& rules, int n, int i, f32 product) {
    settled_score s = {mul(product, rules.factor), 1.0f, true};
    if (rules.cap != 0.0f) {
        const tanh_and_slope x = tanh_by_exp2(s.value);
        s = {mul(x.value, rules.cap), x.slope, true};
    }
    if (!rules.has_addends) return s;
    const f32 addend = memory.addends()[memory.place_of_addend(n, i, int(threadIdx.x))];
    return {add(s.value, addend), s.slope, addend != f32(-infinity())};
}

// What options make of a score of 0.
DS_DEVICE void gather(const gradient_block& in, i64 first, int turn) {
    const block_memory& memory = in.memory;
#pragma unroll 1
    for (int n = 0; n < PASSING / 8; ++n)
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
            const int at = in.facts(turn) + in.row(n, i);
            const i64 key = in.first_key(first) + in.key(n, i);
            const bool is_there = in.first_row(first) + in.row(n, i) < in.end_of_rows() && key < in.w.of.keys;
            const bool is_seen = is_there && key >= memory.lo()[at] && key < memory.hi()[at];
            memory.addends()[memory.place_of_addend(n, i, int(threadIdx.x))] =
                is_seen ? settled(in.g.inputs, memory.options()[at], key, 0.0f) : f32(-infinity());
        }
}

// Owned lines that see a line noted are odd.
DS_DEVICE void note_lines(const gradient_block& in, i64 first, int turn) {
    const block_memory& memory = in.memory;
    const int own = int(threadIdx.x);
    if (own >= ROWS) return;
    bool found = false;
#pragma unroll 1
    for (int k = 0; k < PASSING; ++k) {
        if ((memory.special(turn)[k / 32] >> k % 32 & 1) == 0) continue;
        const int row = in.facts(turn) + (ARE_KEYS ? k : own), thread = own / WARP_ROWS * 32 + own % 8 * 4 + k % 8 / 2;
        const i64 key = in.first_key(first) + (ARE_KEYS ? own : k);
        const bool is_hidden = memory.rules()->has_addends
            && memory.addends()[memory.place_of_addend(k / 8, own % WARP_ROWS / 8 * 2 + k % 2, thread)] == f32(-infinity());
        found |= !is_hidden && key >= memory.lo()[row] && key < memory.hi()[row];
    }
    if (found) mark(memory.is_odd(), own);
}

// The first tile from `first` on of which some row sees a block, or `stop`. All threads of the block ask.
DS_DEVICE i64 next_tile(const gradient_block& in, i64 first, i64 stop) {
    const int thread = int(threadIdx.x);
    while (in.memory.rules()->has_blocks && first < stop) {
        const i64 row = in.first_row(first) + thread, key = in.first_key(first);
        const bool is_row = thread < (ARE_KEYS ? PASSING : ROWS) && row < in.end_of_rows();
        const bool is_any = is_row && is_any_block_seen(in.g.inputs, in.options_of(place_of_row(in.g.inputs, in.w.head, row)), key,
                                                        ARE_KEYS ? in.w.last : least(key + PASSING, stop));
        if (__syncthreads_or(is_any)) break;
        first += PASSING;
    }
    return first;
}

}  // namespace ds
