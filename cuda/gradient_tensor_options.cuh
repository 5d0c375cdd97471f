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
DS_DEVICE settled_score settle(const block_memory& memory, const score_rules& rules, int m, int n, int i, f32 product) {
    settled_score s = {mul(product, rules.factor), 1.0f, true};
    if (rules.cap != 0.0f) {
        const tanh_and_slope x = tanh_by_exp2(s.value);
        s = {mul(x.value, rules.cap), x.slope, true};
    }
    if (!rules.has_addends) return s;
    const f32 addend = memory.addends()[memory.place_of_addend(m, n, i, int(threadIdx.x))];
    return {add(s.value, addend), s.slope, addend != f32(-infinity())};
}

// ------------------------------------------------------------------ the tile of addends
constexpr int AT_ONCE = 8;              // scores whose options are loaded side by side, of two fragments

// Scores of a thread: what their rows meet, and keys that may be read, their own or the last one.
struct some_scores {
    const attention_task& t;
    const row_options* options;
    int rows[AT_ONCE];
    i64 keys[AT_ONCE];
};
template <class T> DS_DEVICE void load_biases(const char* const (&from)[AT_ONCE], int code, f32 (&x)[AT_ONCE]) {
#pragma unroll
    for (int e = 0; e < AT_ONCE; ++e) x[e] = bias_at<T>(from[e], code);
}
DS_DEVICE void load_biases(const some_scores& of, f32 (&x)[AT_ONCE]) {
    const placed& bias = of.t.at[AT_BIAS];
    const char* from[AT_ONCE];
    i64 places = 0;
#pragma unroll
    for (int e = 0; e < AT_ONCE; ++e) {
        from[e] = of.options[of.rows[e]].bias + of.keys[e] * bias.item;
        places |= i64(from[e]);
    }
    if (bias.code == CODE_F32 && places % 4 == 0) load_biases<f32>(from, CODE_F32, x);
    else if (bias.code == CODE_OF<x_type> && places % 2 == 0) load_biases<x_type>(from, CODE_OF<x_type>, x);
    else load_biases<any_dtype>(from, int(bias.code), x);
}
DS_DEVICE void add_alibi(const some_scores& of, f32 (&x)[AT_ONCE]) {
#pragma unroll
    for (int e = 0; e < AT_ONCE; ++e) {
        const row_options& row = of.options[of.rows[e]];
        const i64 distance = row.position - of.keys[e];
        const f32 slope = rounded<f32>::of(row.slope), penalty = mul(-slope, f32(distance < 0 ? -distance : distance));
        x[e] = is_finite(slope) ? joined(x[e], larger(penalty, -LARGEST<f32>)) : add(x[e], penalty);
    }
}
template <bool are_blocks> DS_DEVICE void hide_where_false(const some_scores& of, f32 (&x)[AT_ONCE]) {
    const i64 item = of.t.at[are_blocks ? AT_BLOCKS : AT_MASK].item;
    u8 found[AT_ONCE];
#pragma unroll
    for (int e = 0; e < AT_ONCE; ++e) {
        const row_options& row = of.options[of.rows[e]];
        found[e] = load_aligned<u8>((are_blocks ? row.blocks : row.mask) + (are_blocks ? quotient_of(of.keys[e], of.t.block_k) : of.keys[e]) * item);
    }
#pragma unroll
    for (int e = 0; e < AT_ONCE; ++e)
        if (found[e] == 0) x[e] = f32(-infinity());
}

DS_DEVICE void gather(const gradient_block& in, i64 first, int turn) {
    const block_memory& memory = in.memory;
    const attention_task& t = in.g.inputs;
    some_scores of = {t, memory.options(), {}, {}};
#pragma unroll 1
    for (int k = 0; k < SETS * PASSING / 8; k += AT_ONCE / 4) {
        const int m = k / (PASSING / 8), n = k % (PASSING / 8);
        f32 x[AT_ONCE];
        bool is_seen[AT_ONCE];
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e) {
            const int row = in.row(m, n + e / 4, e % 4);
            const i64 key = in.first_key(first) + in.key(m, n + e / 4, e % 4);
            of.rows[e] = in.facts(turn) + row;
            of.keys[e] = least(key, in.w.of.keys - 1);
            is_seen[e] = in.first_row(first) + row < in.end_of_rows() && key < in.w.of.keys && key >= memory.lo()[of.rows[e]] && key < memory.hi()[of.rows[e]];
            x[e] = 0.0f;
        }
        if (t.at[AT_BIAS].base) load_biases(of, x);
        if (t.slopes) add_alibi(of, x);
        if (t.at[AT_MASK].base) hide_where_false<false>(of, x);
        if (t.at[AT_BLOCKS].base) hide_where_false<true>(of, x);
#pragma unroll
        for (int e = 0; e < AT_ONCE; ++e)
            memory.addends()[memory.place_of_addend(m, n + e / 4, e % 4, int(threadIdx.x))] = is_seen[e] ? x[e] : f32(-infinity());
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
        if ((*memory.special(turn) >> k & 1) == 0) continue;
        const int row = in.facts(turn) + (ARE_KEYS ? k : own), thread = own / WARP_ROWS * 32 + own % 8 * 4 + k % 8 / 2;
        const i64 key = in.first_key(first) + (ARE_KEYS ? own : k);
        const bool is_hidden = memory.rules()->has_addends
            && memory.addends()[memory.place_of_addend(own % WARP_ROWS / 16, k / 8, own % 16 / 8 * 2 + k % 2, thread)] == f32(-infinity());
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
