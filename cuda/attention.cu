// attention.cu - exact attention in float32 or float64: out_i = sum_j exp(s_ij - lse_i) v_j with lse_i = log sum_j exp(s_ij), all options, any strides.
//
// The online softmax (M. Milakov and N. Gimelshein, arXiv 1805.02867) over tiles of keys, as FlashAttention (T. Dao and others, arXiv 2205.14135):
// scores of a tile, their maxima, their weights exp(s - m), the weighted sum of values; what there was before is multiplied by exp(m_old - m).
#include "attention_finish.cuh"
#include "attention_tiles.cuh"

namespace ds {

typedef wide_of<compute> wide;

// Shared memory of a block. The sums of its rows take the place of the tiles.
struct block_memory {
    compute *tile, *weights, *sums;
    f64 *m, *d;                     // of the rows
    i64 *lo, *hi;                   // the keys that they see as far as positions tell
    u32* is_odd;                    // whose sums are not finite, though d is
    u64* selected;                  // rows that are wanted, a bit each
};

// Whether there may be rows that tensor cores have left, and others that have their results already.
constexpr bool IS_SELECTIVE = IS_HALF<x_type> && !IS_WIDE && !DS_FEW;

// What a thread has of its rows: m in units of t.unit, its own part of d, outputs.
struct running {
    compute m[ROWS_EACH];
    f64 d[ROWS_EACH];
    compute o[ROWS_EACH][VECTORS * VECTOR];
};
DS_DEVICE void clear(running& r, bool is_bad) {
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a) {
        r.m[a] = compute(-infinity());
        r.d[a] = is_bad ? not_a_number() : 0.0;
#pragma unroll
        for (int i = 0; i < VECTORS * VECTOR; ++i) r.o[a][i] = compute(0);
    }
}

// exp(x) for x <= 0. Above 0 is what a row has that has seen +inf, whose d has to be infinite.
DS_DEVICE compute weight_of(compute x) { return x > compute(0) ? compute(infinity()) : exponential(x); }

// Joins what the threads of a row have, each row's, for all of them.
template <class T, class Join> DS_DEVICE void reduce_rows(T (&x)[ROWS_EACH], Join join) {
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int distance = 1; distance < ROW_LANES; distance *= 2) x[a] = join(x[a], from_lane(x[a], distance));
    if (ROW_WARPS > 1) {
        DS_SHARED(T, parts, ROW_WARPS * ROWS);
        if (number_in_row() % ROW_LANES == 0)
#pragma unroll
            for (int a = 0; a < ROWS_EACH; ++a) parts[number_in_row() / ROW_LANES * ROWS + row_of_thread(a)] = x[a];
        __syncthreads();
#pragma unroll
        for (int a = 0; a < ROWS_EACH; ++a) {
            x[a] = parts[row_of_thread(a)];
#pragma unroll
            for (int k = 1; k < ROW_WARPS; ++k) x[a] = join(x[a], parts[k * ROWS + row_of_thread(a)]);
        }
    }
}

struct span { i64 j0, j1; bool is_edge; };          // keys of a tile; whether some row does not see all of them

// Hides what a row does not see by position.
DS_DEVICE void hide(const block_memory& memory, const span& keys, compute (&s)[ROWS_EACH][KEYS_EACH]) {
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a) {
        const int lo = int(most(memory.lo[row_of_thread(a)] - keys.j0, 0)), hi = int(least(memory.hi[row_of_thread(a)], keys.j1) - keys.j0);
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b)
            if (key_of_thread(b) < lo || key_of_thread(b) >= hi) s[a][b] = compute(-infinity());
    }
}

// Applies the options to what is left. Scores pass through shared memory, one by one: the code stands once, and registers are few.
DS_DEVICE void apply_options(const attention_task& t, const work_item& w, const option_bases& from, const span& keys, compute* weights,
                             compute (&s)[ROWS_EACH][KEYS_EACH]) {
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) weights[place_of_score(a, b)] = s[a][b];
#pragma unroll 1
    for (int a = 0; a < ROWS_EACH; ++a) {
        const i64 row = least(w.first + row_of_thread(a), w.last - 1);
        const row_options options = options_of_row(t, w.of, from, place_of_row(t, w.head, row));
        const key_range seen = w.of.seen_by(t, quotient_of(row, t.group));
#pragma unroll 1
        for (int b = 0; b < KEYS_EACH; ++b) {
            const i64 j = keys.j0 + key_of_thread(b);
            compute& score = weights[place_of_score(a, b)];
            score = j >= seen.lo && j < least(seen.hi, keys.j1) ? settled(t, options, j, score) : compute(-infinity());
        }
    }
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) s[a][b] = weights[place_of_score(a, b)];
}

// One step of the online softmax: the scores become weights, in shared memory; m, d and o move on.
DS_DEVICE void weigh(compute unit, int kind, compute (&s)[ROWS_EACH][KEYS_EACH], running& r, compute* weights) {
    compute largest[ROWS_EACH];
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a) {
        largest[a] = r.m[a];
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) largest[a] = larger(largest[a], s[a][b]);
    }
    reduce_rows(largest, maximum());
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a) {
        const compute m = largest[a], shift = is_finite(m) ? m : compute(0);
        const bool stays = m == r.m[a] || m == compute(infinity()) || kind == COUNTED;
        const compute alpha = stays ? compute(1) : weight_of(mul(sub(r.m[a], shift), unit));
        r.m[a] = m;
        compute sum = compute(0);
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) {
            compute p = weight_of(mul(sub(s[a][b], shift), unit));
            sum = add(sum, p);
            if (kind == COUNTED) p = compute(s[a][b] > compute(-infinity()));
            weights[place_of_score(a, b)] = p;
        }
        r.d[a] = fused(r.d[a], f64(alpha), f64(sum));
#pragma unroll
        for (int i = 0; i < VECTORS * VECTOR; ++i) r.o[a][i] = mul(r.o[a][i], alpha);
    }
}

// Whether some score of a tile lies in a block that is not hidden. All threads of the block ask.
DS_DEVICE bool is_tile_visible(const attention_task& t, const work_item& w, const option_bases& from, const span& keys) {
    if (!DS_OPTIONS || !from.blocks) return true;
    bool found = false;
    for (i64 row = w.first + threadIdx.x; row < w.last && !found; row += THREADS)
        found = is_any_block_seen(t, options_of_row(t, w.of, from, place_of_row(t, w.head, row)), keys.j0, keys.j1);
    return __syncthreads_or(found) != 0;
}

// The keys that any of a block's rows sees, and those that all of them see.
struct reach { key_range any, all; };
DS_DEVICE reach reach_of(const attention_task& t, const work_item& w) {
    const key_range first = w.of.seen_by(t, quotient_of(w.first, t.group)), last = w.of.seen_by(t, quotient_of(w.last - 1, t.group));
    return {{first.lo, last.hi}, {last.lo, first.hi}};
}

struct summing {
    const attention_task& t;
    const work_item& w;
    const reach& seen;
    const option_bases& from;
    compute unit;
    f64 exact_unit;
    block_memory memory;
};

// Adds one run of keys, all of its tiles. Returns whether a value was met that is not finite.
DS_DEVICE bool add_run(const summing& in, i64 run, int kind, running& r) {
    const attention_task& t = in.t;
    const work_item& w = in.w;
    const i64 stop = least(in.seen.any.hi, (run + 1) * RUN);
    bool is_met = false;
    i64 j0 = most(in.seen.any.lo, run * RUN);
    for (j0 -= j0 % KEYS; j0 < stop; j0 += KEYS) {
        const i64 j1 = least(j0 + KEYS, stop);
        const span keys = {j0, j1, j0 < in.seen.all.lo || j0 + KEYS > in.seen.all.hi};
        if (!is_tile_visible(t, w, in.from, keys)) continue;
        compute s[ROWS_EACH][KEYS_EACH];
        // operands are made anew for each tile: they would take many registers
        const lines q = scaled(lines_of_queries(t, w.of, w.head, AT_Q, t.dim), rounded<compute>::of(t.fold));
        const lines k = lines_of_keys(t, w.of, w.head, AT_K, t.dim);
        multiply({q, w.first, w.last}, {k, j0, j1}, in.memory.tile, in.memory.weights, s);
        if (DS_OPTIONS) apply_options(t, w, in.from, keys, in.memory.weights, s);
        else if (keys.is_edge) hide(in.memory, keys, s);
        weigh(in.unit, kind, s, r, in.memory.weights);
        const lines v = lines_of_keys(t, w.of, w.head, AT_V, t.dim_v);
        for (i64 j = j0; j < j1; j += VALUE_KEYS) {
            __syncthreads();
            load_values(v, j, j1, w.slice * COLUMNS, kind, in.memory.tile, is_met);
            __syncthreads();
            add_values(in.memory.tile, in.memory.weights + (j - j0), int(least(VALUE_KEYS, j1 - j)), r.o);
        }
    }
    return is_met;
}

// Leaves the sums of the rows, and their pairs, in shared memory. With few rows each share of keys has sums of its own.
DS_DEVICE void collect(const running& r, const block_memory& memory) {
    f64 d[ROWS_EACH];
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a) d[a] = r.d[a];
    reduce_rows(d, plus());
    __syncthreads();
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a) {
        const int row = row_of_thread(a);
        if (number_in_row() == 0) {
            memory.m[row] = f64(r.m[a]);
            memory.d[row] = d[a];
        }
#pragma unroll
        for (int c = 0; c < VECTORS; ++c) {
            vector v;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) v.at[i] = r.o[a][c * VECTOR + i];
            *(vector*)(memory.sums + (share_of_thread() * ROWS + row) * COLUMNS + column_of_thread(c)) = v;
        }
    }
    __syncthreads();
}

}  // namespace ds

#include "attention_emit.cuh"

// `selected`, if given, has a word for each block of rows, a bit a row; the others have their results already.
extern "C" __global__ void __launch_bounds__(ds::THREADS, 2)
    attention(const __grid_constant__ ds::attention_task t, char* sums, double* pairs, const unsigned long long* selected) {
    using namespace ds;
    const u64* const wanted = IS_SELECTIVE ? selected : nullptr;
    DS_SHARED(vector, tiles, MEMORY_LENGTH / VECTOR);
    DS_SHARED(f64, m, ROWS);
    DS_SHARED(f64, d, ROWS);
    DS_SHARED(i64, lo, ROWS);
    DS_SHARED(i64, hi, ROWS);
    DS_SHARED(u32, is_odd, ROWS);
    DS_SHARED(u64, rows, 1);
    DS_SHARED(work_item, work, 1);          // the same for all threads: registers are few
    compute* const tile = (compute*)tiles;
    const block_memory memory = {tile, tile + TILE_LENGTH, tile, m, d, lo, hi, is_odd, rows};
    const kept_rows<wide> kept = {(wide*)sums, (row_pair*)pairs};
    for (i64 index = next_work<THREADS>(t, wanted, blockIdx.x); index < t.work; index = next_work<THREADS>(t, wanted, index + gridDim.x)) {
        if (threadIdx.x == 0) {
            work[0] = work_of(t, index, ROWS, DS_FEW);
            if (wanted && !t.at[AT_M].base) work[0].slot = i64(blockIdx.x) * ROWS;
            if (IS_SELECTIVE) rows[0] = wanted ? load_aligned<u64>(wanted + quotient_of(index, t.slices)) : ~u64(0);
        }
        __syncthreads();
        if (work[0].is_any) attend(t, work[0], memory, kept, wanted != nullptr);
        __syncthreads();
    }
}
