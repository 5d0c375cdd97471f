// gradient_tensor.cu - the gradients of attention of half types on tensor cores: dq of the queries that a block owns, or dk and dv of its keys.
//
//   queries: s = q k^T    dp = g v^T    ds = p (dp - delta)    dq += ds k
//   keys:    s = k q^T    dp = v g^T    the same               dk += ds q    dv += p g
//
// Products take halves and sum in float32; p and ds are rounded to the half type for the last ones, which read them from registers. ds of float16 is
// multiplied by a power of 2 of its own line, which moves as the maximum of an online softmax does: small gradients keep their digits. Each element has
// one owner, and all that it depends on passes by in order. Lines that special values concern are left to the exact kernel; which they are follows from
// what they see, and from nothing else. T. Dao, FlashAttention-2, 2023 (arXiv 2307.08691).
#include "gradient_tensor_options.cuh"

namespace ds {

// What a thread has of lines g, g + 8, ... of its warp: sums, and the power of 2 that those of ds are multiplied by.
struct running {
    line_sums o[PRODUCTS];
    f32 power[HALVES];
};
constexpr bool IS_FITTED = EXPONENT_OF_WEIGHTS<x_type> != 0;
constexpr f32 HIGHEST_POWER = IS_FITTED ? 0x1p100f : 1.0f, TOO_LARGE = 0x1p15f;
constexpr u32 EXPONENT_FITTED = 10;                     // largest numbers are brought to 2^10 and more: they may grow 2^5 times until it is done again
DS_DEVICE void clear(running& r) {
#pragma unroll
    for (int k = 0; k < PRODUCTS; ++k) products::clear(r.o[k]);
#pragma unroll
    for (int h = 0; h < HALVES; ++h) r.power[h] = HIGHEST_POWER;
}

// ------------------------------------------------------------------ on their way
DS_DEVICE line_source source_of(const gradient_block& in, bool are_keys, bool is_second, i64 lo, i64 hi) {
    const attention_task &t = in.g.inputs, &of = !are_keys && is_second ? in.g.gradients : t;
    const int operand = are_keys ? is_second ? AT_V : AT_K : is_second ? AT_OUT : AT_Q;
    const i64 group = are_keys ? 1 : t.group;
    const placed& at = of.at[operand];
    return {in.w.of.base(of, operand) + in.w.head * group * at.head, at.row, at.head, group, lo, hi, is_second ? t.dim_v : t.dim};
}
DS_DEVICE void prepare(const gradient_block& in) {
    const attention_task& t = in.g.inputs;
    const block_memory& memory = in.memory;
    const int thread = int(threadIdx.x);
    if (thread < 4) {
        const bool is_passing = thread >= 2;
        const key_range seen = ARE_KEYS ? rows_that_see(t, in.w.of, in.w.first, in.w.last) : keys_seen_by(t, in.w.of, in.w.first, in.w.last);
        memory.sources()[thread] = source_of(in, is_passing != ARE_KEYS, thread % 2 == 1, is_passing ? seen.lo : in.w.first, is_passing ? seen.hi : in.w.last);
    }
    if (thread == 0) *memory.rules() = rules_of(t);
    if (thread < 4) memory.is_odd()[thread] = 0;
    __syncthreads();
    if (!ARE_KEYS && thread < ROWS) {
        const row_place at = place_of_row(t, in.w.head, least(in.w.first + thread, in.w.last - 1));
        put_facts(memory, thread, in.w.first + thread < in.w.last, load_aligned<row_numbers>(in.numbers_of(at)), in.w.of.seen_by(t, at.query));
        if (memory.rules()->has_addends) memory.options()[thread] = in.options_of(at);
    }
    __syncthreads();
}

DS_DEVICE void fetch_passing(const gradient_block& in, i64 first, int turn) {
    fetch<PASSING>(in.memory.sources()[2], first, in.memory.passing(turn, 0));
    fetch<PASSING>(in.memory.sources()[3], first, in.memory.passing(turn, 1));
    if (!ARE_KEYS || threadIdx.x >= PASSING) return;
    const row_place at = place_of_row(in.g.inputs, in.w.head, least(first + threadIdx.x, in.all_rows() - 1));
    const char* const from = (const char*)in.numbers_of(at);
    piece* const to = (piece*)(in.memory.raw() + threadIdx.x);
    copy_piece(to, from, true);
    copy_piece(to + 1, from + sizeof(piece), true);
}
// Once the copies of this thread are there: what it brought of the rows. Whether some line does not see all of the others.
DS_DEVICE bool settle_passing(const gradient_block& in, i64 first, int turn) {
    const block_memory& memory = in.memory;
    const int thread = int(threadIdx.x), at = in.facts(turn) + thread;
    if (thread >= (ARE_KEYS ? PASSING : ROWS)) return false;
    if (ARE_KEYS) {
        const row_place place = place_of_row(in.g.inputs, in.w.head, least(first + thread, in.all_rows() - 1));
        put_facts(memory, at, first + thread < in.all_rows(), memory.raw()[thread], in.w.of.seen_by(in.g.inputs, place.query));
        if (memory.rules()->has_addends) memory.options()[at] = in.options_of(place);
    }
    return memory.lo()[at] > in.first_key(first) || memory.hi()[at] < (ARE_KEYS ? in.w.last : first + PASSING);
}

// ------------------------------------------------------------------ from products to gradients
// The products become p and ds.
template <bool is_natural> DS_DEVICE void make_gradients(const block_memory& memory, int turn, tile_sums& s, tile_sums& dp) {
    const score_rules rules = *memory.rules();
    const row_terms* const terms = memory.terms() + gradient_block::facts(turn);
#pragma unroll
    for (int n = 0; n < PASSING / 8; ++n) {
        const chunk<row_terms, 2> of_columns = *(const chunk<row_terms, 2>*)(terms + column_of_thread(n));
#pragma unroll
        for (int m = 0; m < SETS; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const row_terms row = ARE_KEYS ? of_columns.at[i % 2] : terms[row_of_thread(2 * m + i / 2)];
                settled_score x = {s[m][n][i], 1.0f, true};
                if (is_natural) x = settle(memory, rules, m, n, i, x.value);
                const f32 p = exp2_approximate(fused(x.value, rules.c, -row.shift)), ds = mul(p, sub(dp[m][n][i], row.delta));
                s[m][n][i] = x.is_seen ? p : 0.0f;
                dp[m][n][i] = !x.is_seen ? 0.0f : is_natural ? mul(ds, x.slope) : ds;
            }
    }
}
// What is hidden by its position has neither, whatever it was.
DS_DEVICE int within(i64 x, int most_of_all) { return int(least(most(x, 0), most_of_all)); }
DS_DEVICE void hide(const gradient_block& in, i64 first, int turn, tile_sums& p, tile_sums& ds) {
    const i64 *const lo = in.memory.lo() + in.facts(turn), *const hi = in.memory.hi() + in.facts(turn), from = in.first_key(first);
#pragma unroll
    for (int m = 0; m < SETS; ++m)
#pragma unroll
        for (int n = 0; n < PASSING / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = in.row(m, n, i), key = in.key(m, n, i);
                if (key >= within(lo[row] - from, ROWS) && key < within(hi[row] - from, ROWS)) continue;
                p[m][n][i] = ds[m][n][i] = 0.0f;
            }
}

// Multiplies each line by its power of 2, which is a lower one from now on where a number would be too large.
DS_DEVICE f32 with_exponent(int biased) { return __uint_as_float(u32(biased) << 23); }
DS_DEVICE f32 size_of(f32 x) { return __uint_as_float(__float_as_uint(x) & 0x7fffffffu); }
DS_DEVICE int exponent_of(f32 x) { return int(__float_as_uint(x) >> 23 & 0xffu); }
DS_DEVICE void fit(tile_sums& ds, running& r) {
    bool is_risen = false;
    f32 alpha[HALVES];
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
        const int i = h % 2 * 2;
        f32 largest = 0.0f;
#pragma unroll
        for (int n = 0; n < PASSING / 8; ++n) largest = larger(largest, larger(size_of(ds[h / 2][n][i]), size_of(ds[h / 2][n][i + 1])));
        largest = larger(largest, from_lane(largest, 1));
        largest = larger(largest, from_lane(largest, 2));
        alpha[h] = 1.0f;
        if (is_finite(largest) && mul(largest, r.power[h]) >= TOO_LARGE) {
            const int next = 2 * 127 + int(EXPONENT_FITTED) - exponent_of(largest), step = next - exponent_of(r.power[h]) + 127;
            alpha[h] = step > 0 ? with_exponent(step) : 0.0f;
            r.power[h] = with_exponent(next);
            is_risen = true;
        }
#pragma unroll
        for (int n = 0; n < PASSING / 8; ++n)
#pragma unroll
            for (int k = 0; k < 2; ++k) ds[h / 2][n][i + k] = mul(ds[h / 2][n][i + k], r.power[h]);
    }
    if (!__any_sync(ALL_LANES, is_risen)) return;
    products::rescale(alpha, r.o[0]);
}

DS_DEVICE void add_tile(const gradient_block& in, i64 first, int turn, bool is_edge, running& r) {
    const block_memory& memory = in.memory;
    tile_sums dp, s;
    multiply(memory.owned(1), memory.passing(turn, 1), dp);
    multiply(memory.owned(0), memory.passing(turn, 0), s);
    if (memory.rules()->is_natural) make_gradients<true>(memory, turn, s, dp);
    else make_gradients<false>(memory, turn, s, dp);
    if (is_edge) hide(in, first, turn, s, dp);
    tile_halves halves;
    if (ARE_KEYS) {
        products::round(s, halves);
        products::add_lines(halves, memory.passing(turn, 1), r.o[PRODUCTS - 1]);
    }
    if (IS_FITTED) fit(dp, r);
    products::round(dp, halves);
    products::add_lines(halves, memory.passing(turn, 0), r.o[0]);
}

// ------------------------------------------------------------------ all that passes by
// With is_clean, what is not finite is 0, and who sees it odd.
DS_DEVICE void add_passing(const gradient_block& in, bool is_clean, running& r) {
    const block_memory& memory = in.memory;
    const i64 lo = memory.sources()[2].lo, stop = memory.sources()[2].hi;
    clear(r);
    fetch<ROWS>(memory.sources()[0], in.w.first, memory.owned(0));
    fetch<ROWS>(memory.sources()[1], in.w.first, memory.owned(1));
    i64 first = next_tile(in, lo - lo % PASSING, stop);
    if (first < stop) fetch_passing(in, first, 0);
    copies_have_arrived();
    if (is_clean) {
        clean_lines<x_type, THREADS, ROWS>(memory.owned(0), memory.is_odd());
        clean_lines<x_type, THREADS, ROWS>(memory.owned(1), memory.is_odd());
    }
    for (int turn = 0; first < stop; turn ^= 1) {
        copies_have_arrived();
        if (is_clean) {
            clean_lines<x_type, THREADS, PASSING>(memory.passing(turn, 0), memory.special(turn));
            clean_lines<x_type, THREADS, PASSING>(memory.passing(turn, 1), memory.special(turn));
        }
        const bool is_edge = __syncthreads_or(settle_passing(in, first, turn)) != 0;     // the tile is there, and the one before no longer needed
        const i64 next = next_tile(in, first + PASSING, stop);
        if (next < stop) fetch_passing(in, next, turn ^ 1);
        if (memory.rules()->has_addends) gather(in, first, turn);
        if (is_clean) {
            __syncthreads();            // addends of all are there
            note_lines(in, first, turn);
            if (threadIdx.x == 0) *memory.special(turn ^ 1) = 0;
            __syncthreads();
        }
        add_tile(in, first, turn, is_edge, r);
        first = next;
    }
}

// ------------------------------------------------------------------ results
DS_DEVICE bool is_sum_odd(const running& r, int h) {
    bool odd = false;
#pragma unroll
    for (int k = 0; k < PRODUCTS; ++k)
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n) odd |= !is_finite(r.o[k][h / 2][n][h % 2 * 2]) || !is_finite(r.o[k][h / 2][n][h % 2 * 2 + 1]);
    return odd;
}

// Sums wait as float32 in the place of the owned lines, each warp's own ones, until they are stored 8 elements at a time.
DS_DEVICE f32* staged(const block_memory& memory, int row, int column) {
    return (f32*)memory.first + row * DIM + ((column / 4 ^ row % 4 * 2) * 4 + column % 4);
}
DS_DEVICE void store_lines(const gradient_block& in, int operand, const line_sums& o, f32 factor, const f32 (&power)[HALVES]) {
    const placed& to = in.g.gradients.at[operand];
    const i64 group = ARE_KEYS ? 1 : in.g.inputs.group, length = operand == AT_V ? in.g.inputs.dim_v : in.g.inputs.dim;
    if (!to.base) return;
    __syncwarp();
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
        const f32 back = with_exponent(2 * 127 - exponent_of(power[h]));
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                *staged(in.memory, row_of_thread(h), column_of_thread(n) + i) = mul(mul(o[h / 2][n][h % 2 * 2 + i], back), factor);
    }
    __syncwarp();
    char* const base = in.w.of.base(in.g.gradients, operand) + in.w.head * group * to.head;
    const int p = int(threadIdx.x) % PIECES * ELEMENTS_A_PIECE;
#pragma unroll 1
    for (int row = warp_row() + int(threadIdx.x) % 32 / PIECES; row < warp_row() + WARP_ROWS; row += 32 / PIECES) {
        const i64 line = in.w.first + row, query = quotient_of(line, group);
        if (line >= in.w.last || p >= length) continue;
        f32 x[ELEMENTS_A_PIECE];
#pragma unroll
        for (int i = 0; i < ELEMENTS_A_PIECE; ++i) x[i] = *staged(in.memory, row, p + i);
        char* const at = base + (line - query * group) * to.head + query * to.row + p * to.item;
        store_numbers(at, to.item, int(to.code), to.is_wide != 0, x, ELEMENTS_A_PIECE);
    }
}

// The lines of one block; those that are left to the exact kernel, a bit each.
DS_DEVICE u64 sum_up(const gradient_block& in) {
    if (in.w.of.is_bad) return ~u64(0);
    prepare(in);
    running r;
    bool are_odd[HALVES];
#pragma unroll 1
    for (bool is_clean = false;; is_clean = true) {
        add_passing(in, is_clean, r);
#pragma unroll
        for (int h = 0; h < HALVES; ++h) are_odd[h] = in.w.first + row_of_thread(h) < in.w.last && is_sum_odd(r, h);
        bool is_any = false;
#pragma unroll
        for (int h = 0; h < HALVES; ++h) is_any |= are_odd[h];
        if (!__syncthreads_or(is_any) || is_clean) break;
    }
#pragma unroll
    for (int h = 0; h < HALVES; ++h)
        if (are_odd[h]) mark(in.memory.is_odd(), row_of_thread(h));
    f32 unfitted[HALVES];
#pragma unroll
    for (int h = 0; h < HALVES; ++h) unfitted[h] = 1.0f;
    const f32 weights = with_exponent(127 - EXPONENT_OF_WEIGHTS<x_type>);
    store_lines(in, ARE_KEYS ? AT_K : AT_Q, r.o[0], mul(rounded<f32>::of(in.g.scale), weights), r.power);
    if (ARE_KEYS) store_lines(in, AT_V, r.o[PRODUCTS - 1], weights, unfitted);
    __syncthreads();
    return u64(in.memory.is_odd()[1]) << 32 | in.memory.is_odd()[0];
}

}  // namespace ds

// A block for each piece of work: they have to fit a grid.
extern "C" __global__ void __launch_bounds__(ds::THREADS, 2 * ds::SETS)
    gradient_tensor(const __grid_constant__ ds::gradient_task g, double* numbers, unsigned long long* odd) {
    using namespace ds;
    DS_DYNAMIC_SHARED(tiles);
    DS_SHARED(owned_rows, work, 1);
    const i64 index = in_sections(g.inputs, blockIdx.x, !ARE_KEYS);      // queries: the last ones have the most keys; keys: the first ones, most queries
    if (threadIdx.x == 0) work[0] = owned_of(g.inputs, index, ROWS, ARE_KEYS);
    __syncthreads();
    const u64 lines = work[0].is_any ? sum_up({g, work[0], (const row_numbers*)numbers, {tiles}}) : 0;
    if (threadIdx.x == 0) store_aligned(odd + index, lines);
}
