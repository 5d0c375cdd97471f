// attention_gradient.cu - the gradients of exact attention in float32 or float64, one of them a launch: all options, any strides, no atomics.
//
// Whose rows a block owns is told at run time: queries, of which keys pass by, or keys, of which queries pass by. Either way the tile of weights is
// multiplied from the right by what passes by.
#include "gradient_tile.cuh"

namespace ds {

typedef compute sums_of_thread[ROWS_EACH][VECTORS * VECTOR];

// Gradients of out that are not finite reach every key that is seen, whatever its weight.
DS_DEVICE void add_not_finite(const compute* tile, const compute* weights, int steps, sums_of_thread& o) {
    for (int j = 0; j < steps; ++j)
#pragma unroll
        for (int a = 0; a < ROWS_EACH; ++a) {
            if (!is_seen(weights[row_of_thread(a) * WEIGHT_PITCH + j])) continue;
#pragma unroll
            for (int c = 0; c < VECTORS; ++c)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i)
                    o[a][c * VECTOR + i] = add(o[a][c * VECTOR + i], tile[j * VALUE_PITCH + column_of_thread(c) + i]);
        }
}

// What is multiplied by the weights is finite here: NaN and infinities of keys and queries are in their scores already.
DS_DEVICE void add_passing(const gradient_block& in, i64 first, i64 last, sums_of_thread& o) {
    const lines right = in.kind == OF_Q ? in.keys() : in.kind == OF_K ? in.queries() : in.grad_out();
    for (i64 j = first; j < last; j += VALUE_KEYS) {
        const compute* const weights = in.weights + (j - first);
        const int steps = int(least(VALUE_KEYS, last - j));
        bool is_met = false;
        __syncthreads();
        load_values(right, j, last, in.w.slice * COLUMNS, ORDINARY, in.tile, is_met);
        const bool is_any_met = __syncthreads_or(is_met) != 0;
        add_values(in.tile, weights, steps, o);
        if (in.kind != OF_V || !is_any_met) continue;
        __syncthreads();
        load_values(right, j, last, in.w.slice * COLUMNS, NOT_FINITE, in.tile, is_met);
        __syncthreads();
        add_not_finite(in.tile, weights, steps, o);
    }
}

// Whether there may be rows that tensor cores have left, and others that have their results already.
constexpr bool IS_SELECTIVE = IS_HALF<x_type> && !IS_WIDE;

// `wanted` has a bit for each row.
DS_DEVICE void store_gradient(const gradient_block& in, u64 wanted, const sums_of_thread& o) {
    const int operand = in.kind == OF_Q ? AT_Q : in.kind == OF_K ? AT_K : AT_V;
    const i64 length = operand == AT_V ? in.t.dim_v : in.t.dim;
    const f64 factor = operand == AT_V ? 1.0 : in.g.scale;
    const lines to = in.are_keys ? lines_of_keys(in.u, in.w.of, in.w.head, operand, length) : lines_of_queries(in.u, in.w.of, in.w.head, operand, length);
#pragma unroll 1
    for (int n = 0; n < ROWS_EACH * VECTORS; ++n) {
        f64 x[VECTOR];
        int a = 0, c = 0;
#pragma unroll
        for (int k = 0; k < ROWS_EACH * VECTORS; ++k)
            if (k == n) {
                a = k / VECTORS;
                c = k % VECTORS;
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) x[i] = f64(o[k / VECTORS][k % VECTORS * VECTOR + i]) * factor;
            }
        const i64 row = in.w.first + row_of_thread(a), e = in.w.slice * COLUMNS + column_of_thread(c);
        if (IS_SELECTIVE && (wanted >> row_of_thread(a) & 1) == 0) continue;
        if (row < in.w.last && e < length) store_numbers((char*)to.at(row) + e * to.item, to.item, to.code, to.is_wide, x, int(least(VECTOR, length - e)));
    }
}

DS_DEVICE void sum_up(const gradient_block& in, u64 wanted) {
    sums_of_thread o;
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int i = 0; i < VECTORS * VECTOR; ++i) o[a][i] = compute(in.w.of.is_bad ? not_a_number() : 0.0);
    const key_range passing = in.passing();
    if (!in.are_keys) load_rows(in, in.w.first, in.w.last, in.numbers);
    for (i64 first = passing.lo - passing.lo % PASSING; first < passing.hi; first += PASSING) {
        const i64 last = least(passing.hi, first + PASSING);
        weigh_tile(in, first, last);
        add_passing(in, first, last, o);
    }
    store_gradient(in, wanted, o);
}

}  // namespace ds

// `selected`, if given, has a word for each block of rows, a bit a row; the others have their results already.
extern "C" __global__ void __launch_bounds__(ds::THREADS, 2)
    attention_gradient(const __grid_constant__ ds::gradient_task g, double* numbers, const unsigned long long* selected) {
    using namespace ds;
    const block_memory memory = memory_of_block();
    row_numbers* const of = (row_numbers*)numbers;
    const u64* const wanted = IS_SELECTIVE ? selected : nullptr;
    const attention_task& t = g.inputs;
    for (i64 index = next_work<THREADS>(t, wanted, blockIdx.x); index < t.work; index = next_work<THREADS>(t, wanted, index + gridDim.x)) {
        __syncthreads();
        const owned_rows w = owned_of(t, index, ROWS, g.kind != OF_Q);
        if (w.is_any) sum_up(block_of(g, g.kind, w, of, memory), wanted ? load_aligned<u64>(wanted + quotient_of(index, t.slices)) : ~u64(0));
    }
}
