// attention_tensor_options.cuh - what scores on tensor cores meet beside their scale, outside of the products.
//
// A softcap meets them in registers. Bias, alibi and what hides are gathered before the product, while the tile of keys is on its way: one addend a
// score, -inf where it is hidden, in shared memory, where each thread comes back to its own. A call without them asks once a tile, and no more.
#pragma once
#include "attention_tensor_tiles.cuh"

namespace ds {

// What addends pull below that is there: all of it is nothing beside a score that float32 holds well, and rows that have no other are odd.
constexpr f32 LOWEST = -0x1p100f;
DS_DEVICE f32 not_below(f32 s) { return s < LOWEST ? LOWEST : s; }

DS_DEVICE score_rules rules_of(const attention_task& t) {
    const f64 scale = t.fold * t.exact_unit;
    const bool has_addends = t.at[AT_BIAS].base || t.at[AT_MASK].base || t.at[AT_BLOCKS].base || t.slopes;
    const bool is_natural = has_addends || t.softcap != 0 || !(scale > 0.0);
    const f64 factor = t.softcap != 0 ? scale / t.softcap : scale;
    return {rounded<f32>::of(is_natural ? LOG2_E : scale * LOG2_E), rounded<f32>::of(factor), rounded<f32>::of(t.softcap), is_natural, has_addends,
            t.at[AT_BLOCKS].base != nullptr};
}

// ------------------------------------------------------------------ while scores are in registers
// A thread's two neighbours of its row h, in the tile of addends.
typedef chunk<f32, 2> two;
DS_DEVICE two* addends_of(const block_memory& memory, int n, int h) { return memory.addends + ((n * HALVES + h) * THREADS + int(threadIdx.x)); }
// That of any row and key of a tile.
DS_DEVICE f32 addend_at(const block_memory& memory, int row, int key) {
    const int h = row % WARP_ROWS / 8, thread = row / WARP_ROWS * 32 + row % 8 * 4 + key % 8 / 2;
    return memory.addends[(key / 8 * HALVES + h) * THREADS + thread].at[key % 2];
}

// Makes natural units of the products and applies what there is.
DS_DEVICE void settle(const block_memory& memory, tile_scores& s) {
    const score_rules& rules = *memory.rules;
    if (!rules.is_natural) return;
    const f32 factor = rules.factor, cap = rules.cap;
    if (cap != 0.0f) {
#pragma unroll
        for (int m = 0; m < SETS; ++m)
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = mul(tanh_by_exp2(mul(s[m][n][i], factor)).value, cap);
    } else {
#pragma unroll
        for (int m = 0; m < SETS; ++m)
#pragma unroll
            for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = not_below(mul(s[m][n][i], factor));
    }
    if (!rules.has_addends) return;
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int h = 0; h < HALVES; ++h) {
            const two x = *addends_of(memory, n, h);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                f32& score = s[h / 2][n][h % 2 * 2 + i];
                score = x.at[i] == f32(-infinity()) ? x.at[i] : not_below(add(score, x.at[i]));
            }
        }
}

// ------------------------------------------------------------------ the tile of addends
constexpr int AT_ONCE = DIM <= 128 ? 4 : 2;         // pairs of neighbours that are loaded side by side: as many as registers are left for

// A row of the thread in a tile, and the keys that it sees there, counted from j0.
struct tile_row {
    const row_options& of;
    i64 j0;
    int lo, hi, h;

    DS_DEVICE static int key(int n, int i) { return n * 8 + int(threadIdx.x % 4) * 2 + i; }
    // A key of the tile that may be read: the nearest one that the row sees.
    DS_DEVICE i64 readable(int n, int i) const {
        const int k = key(n, i);
        return j0 + (k < lo ? lo : k < hi ? k : hi - 1);
    }
};

template <class T> DS_DEVICE void gather_bias(const attention_task& t, const block_memory& memory, const tile_row& row) {
    const placed& bias = t.at[AT_BIAS];
#pragma unroll 1
    for (int n = 0; n < KEYS / 8; n += AT_ONCE) {
        two x[AT_ONCE];
#pragma unroll
        for (int a = 0; a < AT_ONCE; ++a)
#pragma unroll
            for (int i = 0; i < 2; ++i) x[a].at[i] = bias_at<T>(row.of.bias + row.readable(n + a, i) * bias.item, int(bias.code));
#pragma unroll
        for (int a = 0; a < AT_ONCE; ++a) *addends_of(memory, n + a, row.h) = x[a];
    }
}
DS_DEVICE void gather_biases(const attention_task& t, const block_memory& memory, const tile_row& row) {
    const i64 code = t.at[AT_BIAS].code, places = i64(row.of.bias) | t.at[AT_BIAS].item;
    if (code == CODE_F32 && places % 4 == 0) gather_bias<f32>(t, memory, row);
    else if (code == CODE_OF<x_type> && places % 2 == 0) gather_bias<x_type>(t, memory, row);
    else gather_bias<any_dtype>(t, memory, row);
}

DS_DEVICE void fill_addends(const block_memory& memory, int h, f32 value) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n) *addends_of(memory, n, h) = {{value, value}};
}

DS_DEVICE void add_alibi(const block_memory& memory, const tile_row& row) {
    const f32 slope = rounded<f32>::of(row.of.slope);
    const i64 ahead = row.of.position - row.j0;
#pragma unroll 1
    for (int n = 0; n < KEYS / 8; ++n) {
        two& x = *addends_of(memory, n, row.h);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const i64 distance = ahead - tile_row::key(n, i);
            x.at[i] = add(x.at[i], mul(-slope, f32(distance < 0 ? -distance : distance)));
        }
    }
}

// Hides where an element is false: one for each `block` keys.
DS_DEVICE void hide_where_false(const block_memory& memory, const tile_row& row, const char* from, i64 item, i64 block) {
#pragma unroll 1
    for (int n = 0; n < KEYS / 8; n += AT_ONCE) {
        u8 x[AT_ONCE][2];
#pragma unroll
        for (int a = 0; a < AT_ONCE; ++a)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const i64 j = row.readable(n + a, i);
                x[a][i] = load_aligned<u8>(from + (block == 1 ? j : quotient_of(j, block)) * item);
            }
#pragma unroll
        for (int a = 0; a < AT_ONCE; ++a)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (x[a][i] == 0) addends_of(memory, n + a, row.h)->at[i] = f32(-infinity());
    }
}

DS_DEVICE void gather_row(const attention_task& t, const block_memory& memory, const tile_row& row) {
    if (row.lo >= row.hi) return fill_addends(memory, row.h, f32(-infinity()));
    if (row.of.bias) gather_biases(t, memory, row);
    else fill_addends(memory, row.h, 0.0f);
    if (t.slopes) add_alibi(memory, row);
    if (row.of.mask) hide_where_false(memory, row, row.of.mask, t.at[AT_MASK].item, 1);
    if (row.of.blocks) hide_where_false(memory, row, row.of.blocks, t.at[AT_BLOCKS].item, t.block_k);
}
// Of keys that a row does not see by its position addends may be anything.
DS_DEVICE void gather(const attention_task& t, const block_memory& memory, i64 j0) {
#pragma unroll 1
    for (int h = 0; h < HALVES; ++h) {
        const int row = row_of_thread(h);
        gather_row(t, memory, {memory.options[row], j0, int(most(memory.lo[row] - j0, 0)), int(least(memory.hi[row] - j0, KEYS)), h});
    }
}

// Rows that see one of the keys noted are odd.
DS_DEVICE void note_rows(const block_memory& memory, i64 j0, const u32* special) {
    if (threadIdx.x >= ROWS) return;
    const int row = int(threadIdx.x);
    bool found = false;
#pragma unroll 1
    for (int k = int(most(memory.lo[row] - j0, 0)), end = int(least(memory.hi[row] - j0, KEYS)); k < end; ++k)
        if ((special[k / 32] >> k % 32 & 1) != 0)
            found |= !memory.rules->has_addends || addend_at(memory, row, k) != f32(-infinity());
    if (found) mark_odd(memory, row);
}

// The first tile from j0 on of which some row sees a block, or `stop`. All threads of the block ask.
DS_DEVICE i64 next_tile(const attention_task& t, const block_memory& memory, i64 j0, i64 stop) {
    while (memory.rules->has_blocks && j0 < stop) {
        const bool is_any = threadIdx.x < ROWS && is_any_block_seen(t, memory.options[threadIdx.x], j0, least(j0 + KEYS, stop));
        if (__syncthreads_or(is_any)) break;
        j0 += KEYS;
    }
    return j0;
}

}  // namespace ds
