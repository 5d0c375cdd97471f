// attention_tensor.cu - attention of half types on tensor cores: out_i = sum_j exp(s_ij - lse_i) v_j, all options; or the state of some keys.
//
// Both products take halves and sum in float32 (T. Dao, FlashAttention-2, arXiv 2307.08691); weights p = 2^(c s - c m), c = scale log2 e, are rounded
// to the type of the values for the second one. A block has 64 rows, a warp 16 or 32 of them. Keys and values lie in one tile each, filled while the other
// one is multiplied. Rows that special values concern are left to the exact kernel: those with a score or a sum that is not finite, and those that see
// a value that is not. Which they are follows from what a row sees, and from nothing else.
#include "attention_tensor_options.cuh"

namespace ds {

// What a thread has of rows g, g + 8, ... of its warp: raw maxima, its own part of d as a sum and what that lost, outputs.
struct running {
    f32 m[HALVES], d[HALVES], d_lost[HALVES];
    products::sums o;
};
DS_DEVICE void clear(running& r) {
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
        r.m[h] = f32(-infinity());
        r.d[h] = r.d_lost[h] = 0.0f;
    }
    products::clear(r.o);
}

// ------------------------------------------------------------------ the online softmax
// sum += term, and what is lost of it.
DS_DEVICE void add_kept(f32& sum, f32& lost, f32 term) {
    const f32 total = add(sum, term), back = sub(total, sum);
    lost = add(lost, add(sub(sum, sub(total, back)), sub(term, back)));
    sum = total;
}

// One step of the online softmax: the scores become weights; m, d and o move on.
DS_DEVICE void weigh(f32 c, tile_scores& s, tile_weights& p, running& r) {
    f32 alpha[HALVES];
    bool is_risen = false;
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
        f32 largest = r.m[h];
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n) largest = larger(largest, larger(s[h / 2][n][h % 2 * 2], s[h / 2][n][h % 2 * 2 + 1]));
        largest = larger(largest, from_lane(largest, 1));
        largest = larger(largest, from_lane(largest, 2));
        const f32 shift = largest == f32(-infinity()) ? 0.0f : mul(largest, c);
        alpha[h] = largest == r.m[h] ? 1.0f : exp2_approximate(sub(mul(r.m[h], c), shift));
        r.m[h] = largest;
        f32 sum = 0.0f;
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                f32& weight = s[h / 2][n][h % 2 * 2 + i];
                weight = exp2_approximate(fused(weight, c, -shift));
                sum = add(sum, weight);
            }
        r.d[h] = mul(r.d[h], alpha[h]);
        r.d_lost[h] = mul(r.d_lost[h], alpha[h]);
        add_kept(r.d[h], r.d_lost[h], sum);
        is_risen |= alpha[h] != 1.0f;
    }
    // rounded at once: they wait for their values in half as many registers
    products::round(s, p);
    if (!__any_sync(ALL_LANES, is_risen)) return;
    products::rescale(alpha, r.o);
}

// ------------------------------------------------------------------ all keys
// Adds them up. With is_clean, values that are not finite are 0, and rows that see them odd.
DS_DEVICE void add_keys(const attention_task& t, const work_item& w, const block_memory& memory, bool is_clean, running& r) {
    fetch_queries(t, w, memory.queries);
    copies_have_arrived();
    __syncthreads();
    held_queries q;
    hold_queries(memory, q);
    if (ARE_QUERIES_HELD) __syncthreads();
    clear(r);
    const i64& stop = memory.sources[0].hi;
    i64 j0 = next_tile(t, memory, memory.sources[0].lo / KEYS * KEYS, stop);
    if (j0 < stop) fetch(memory.sources[0], j0, memory.keys);
    for (int turn = 0; j0 < stop; turn ^= 1) {
        const int first = warp_row(), last = first + WARP_ROWS - 1;
        const bool is_seen = j0 < memory.hi[last] && j0 + KEYS > memory.lo[first];
        if (is_seen && memory.rules->has_addends) gather(t, memory, j0);
        copies_have_arrived();
        __syncthreads();                // the keys are there, and the values before are no longer needed
        fetch(memory.sources[1], j0, memory.values);
        tile_weights p;
        if (is_seen) {
            tile_scores s;
            multiply(memory, q, s);
            settle(memory, s);
            if (j0 < memory.lo[last] || j0 + KEYS > memory.hi[first]) hide(memory, j0, s);
            weigh(memory.rules->c, s, p, r);
        }
        copies_have_arrived();
        if (is_clean) {
            if (threadIdx.x < KEY_WORDS) memory.special[turn ^ 1][threadIdx.x] = 0;
            clean_lines<x_type, THREADS, KEYS>(memory.values, memory.special[turn]);
        }
        __syncthreads();                // the values are there, and the keys no longer needed
        if (is_clean) {
            note_rows(memory, j0, memory.special[turn]);
            __syncthreads();            // which looks at the addends of all
        }
        j0 = next_tile(t, memory, j0 + KEYS, stop);
        if (j0 < stop) fetch(memory.sources[0], j0, memory.keys);
        if (is_seen) products::add_lines(p, memory.values, r.o);
    }
}

// ------------------------------------------------------------------ results
DS_DEVICE f64 whole_d(const running& r, int h) {
    f64 d = widen(r.d[h]) + widen(r.d_lost[h]);
    d += from_lane(d, 1);
    return d + from_lane(d, 2);
}

// Whether some output of a row is not finite, in all of its lanes.
DS_DEVICE bool are_outputs_odd(const running& r, int h) {
    bool odd = false;
#pragma unroll
    for (int n = 0; n < DIM / 8; ++n) odd |= !is_finite(r.o[h / 2][n][h % 2 * 2]) || !is_finite(r.o[h / 2][n][h % 2 * 2 + 1]);
    i32 any = odd;
    any |= from_lane(any, 1);
    return (any | from_lane(any, 2)) != 0;
}

// The pairs of the rows, and which rows are odd beside those that already are.
DS_DEVICE void settle_pairs(const block_memory& memory, const running& r, bool is_bad, const bool (&are_odd)[HALVES]) {
    const score_rules rules = *memory.rules;
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
        const int row = row_of_thread(h);
        const f64 d = whole_d(r, h);
        const f32 shift = mul(r.m[h], rules.c);
        const bool is_small = shift < LARGEST_SHIFT && shift > -LARGEST_SHIFT;
        // of -inf though there are keys: products that are, or that float32 does not hold; in natural units all are hidden
        const bool is_lost = r.m[h] == f32(-infinity()) ? !rules.is_natural && memory.lo[row] < memory.hi[row] : !is_small;
        const bool is_odd = are_odd[h] || is_bad || !is_finite(d) || is_lost;
        if (threadIdx.x % 4 != 0) continue;
        memory.m[row] = is_small ? widen(shift) * LN_2 : -infinity();
        memory.d[row] = d;
        if (is_odd) mark_odd(memory, row);
    }
    __syncthreads();
}
// A thread a row.
DS_DEVICE void finish_rows(const attention_task& t, const work_item& w, const block_memory& memory) {
    const int row = int(threadIdx.x);
    if (row < ROWS && w.first + row < w.last) {
        const row_place place = place_of_row(t, w.head, w.first + row);
        const row_end end = end_of_row(t, place.head, {memory.m[row], memory.d[row]});
        memory.factors[row] = end.pair.d == 0.0 ? 0.0f : narrow(end.alpha / end.pair.d);
        store_statistics(t, statistics_of(t, w.of), place, end.pair);
    }
    __syncthreads();
}

// Outputs wait in shared memory until they are stored, 16 bytes at a time.
DS_DEVICE void stage(const block_memory& memory, i64 rows, const running& r) {
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
        const int row = row_of_thread(h);
        const f32 factor = row < rows ? memory.factors[row] : 0.0f;
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n)
            memory.outputs.at(row, n)->at[threadIdx.x % 4] = tensor<x_type>::pair(mul(r.o[h / 2][n][h % 2 * 2], factor), mul(r.o[h / 2][n][h % 2 * 2 + 1], factor));
    }
    __syncwarp();
}
DS_DEVICE void store_rows(const attention_task& t, const work_item& w, const block_memory& memory) {
    typedef chunk<x_type, ELEMENTS_A_PIECE> elements;
    const placed& out = t.at[AT_OUT];
    char* const base = w.of.base(t, AT_OUT);
    const int p = int(threadIdx.x % PIECES);
    for (int row = warp_row() + int(threadIdx.x % 32 / PIECES); row < warp_row() + WARP_ROWS; row += 32 / PIECES) {
        if (w.first + row >= w.last || p * ELEMENTS_A_PIECE >= t.dim_v) continue;
        char* const to = base + offset_of_row(out, place_of_row(t, w.head, w.first + row)) + p * ELEMENTS_A_PIECE * out.item;
        const elements x = *(const elements*)memory.outputs.at(row, p);
        if (out.is_wide) {
            store_aligned(to, x);
            continue;
        }
#pragma unroll
        for (int i = 0; i < ELEMENTS_A_PIECE; ++i) store(to + i * out.item, x.at[i]);
    }
}

// The sums of a state as they are: the lanes of a row have a sector between them, 8 bytes each.
DS_DEVICE void store_sums(const attention_task& t, const work_item& w, const running& r) {
    char* const base = w.of.base(t, AT_OUT);
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
        const i64 row = w.first + row_of_thread(h);
        if (row >= w.last) continue;
        char* const to = base + offset_of_row(t.at[AT_OUT], place_of_row(t, w.head, row));
#pragma unroll
        for (int n = 0; n < DIM / 8; ++n) {
            const int column = n * 8 + int(threadIdx.x % 4) * 2;
            const chunk<f32, 2> x = {{r.o[h / 2][n][h % 2 * 2], r.o[h / 2][n][h % 2 * 2 + 1]}};
            if (column < t.dim_v) store_aligned(to + column * i64(sizeof(f32)), x);
        }
    }
}

DS_DEVICE void prepare(const attention_task& t, const work_item& w, const block_memory& memory) {
    const int thread = int(threadIdx.x);
    if (thread < ROWS) {
        const key_range own = w.of.seen_by(t, quotient_of(least(w.first + thread, w.last - 1), t.group));
        memory.lo[thread] = own.lo;
        memory.hi[thread] = most(own.hi, 0);
    }
    if (thread < 2 * KEY_WORDS) memory.special[thread / KEY_WORDS][thread % KEY_WORDS] = 0;
    if (thread < ROWS / 32) memory.is_odd[thread] = 0;
    if (thread == 0) *memory.rules = rules_of(t);
    __syncthreads();
    if (thread < ROWS && memory.rules->has_addends)
        memory.options[thread] = options_of_row(t, w.of, option_bases_of(t, w.of), place_of_row(t, w.head, least(w.first + thread, w.last - 1)));
    if (thread < 2) {
        const bool is_key = thread == 0;
        memory.sources[thread] = {keys_of(t, w.of, w.head, is_key ? AT_K : AT_V), memory.lo[0], memory.hi[ROWS - 1], is_key ? t.dim : t.dim_v, is_key};
    }
    __syncthreads();
}

// The rows of one block; those that are left to the exact kernel, a bit each.
DS_DEVICE u64 attend(const attention_task& t, const work_item& w, const block_memory& memory) {
    prepare(t, w, memory);
    running r;
    bool are_odd[HALVES];
#pragma unroll 1
    for (bool is_clean = false;; is_clean = true) {
        add_keys(t, w, memory, is_clean, r);
#pragma unroll
        for (int h = 0; h < HALVES; ++h) are_odd[h] = are_outputs_odd(r, h);
        if (!__syncthreads_or(are_odd[0] || are_odd[1]) || is_clean) break;
    }
    settle_pairs(memory, r, w.of.is_bad, are_odd);
    finish_rows(t, w, memory);
    if (t.at[AT_M].base) {
        store_sums(t, w, r);
    } else {
        stage(memory, w.last - w.first, r);
        store_rows(t, w, memory);
    }
    return u64(memory.is_odd[1]) << 32 | memory.is_odd[0];
}

}  // namespace ds

// A block for each piece of work: they have to fit a grid.
extern "C" __global__ void __launch_bounds__(ds::THREADS, ds::SETS == 2 ? 4 : 2)
    attention_tensor(const __grid_constant__ ds::attention_task t, unsigned long long* odd) {
    using namespace ds;
    DS_DYNAMIC_SHARED(tiles);
    DS_SHARED(work_item, work, 1);
    DS_SHARED(tile_source, sources, 2);
    DS_SHARED(f64, m, ROWS);
    DS_SHARED(f64, d, ROWS);
    DS_SHARED(f32, factors, ROWS);
    DS_SHARED(i64, lo, ROWS);
    DS_SHARED(i64, hi, ROWS);
    DS_SHARED(u32, special, 2 * KEY_WORDS);
    DS_SHARED(u32, is_odd, ROWS / 32);
    DS_SHARED(score_rules, rules, 1);
    piece* const first = (piece*)tiles;
    const tile<DIM> queries = {ARE_QUERIES_HELD ? first : first + 2 * KEYS * PIECES};
    two* const addends = (two*)(first + (2 * KEYS + (ARE_QUERIES_HELD ? 0 : ROWS)) * PIECES);
    row_options* const options = (row_options*)(addends + ROWS * KEYS / 2);
    const block_memory memory = {queries, {first}, {first + KEYS * PIECES}, queries, sources, m, d, factors, lo, hi, (u32(*)[KEY_WORDS])special, is_odd,
                                 rules, addends, options};
    if (threadIdx.x == 0) work[0] = work_of(t, in_sections(t, blockIdx.x, true), ROWS, false);
    __syncthreads();
    const u64 rows = work[0].is_any ? attend(t, work[0], memory) : 0;
    if (threadIdx.x == 0) store_aligned(odd + in_sections(t, blockIdx.x, true), rows);
}
