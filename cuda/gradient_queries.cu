// gradient_queries.cu - what every row needs before its weights can be told: delta, and an lse whose rounding does not show.
#include "gradient_tile.cuh"

namespace ds {

// sum_e g o of a block's rows, by the product that makes dp = g v^T: where a row sees one key alone, o is its value and ds is 0 exactly.
DS_DEVICE void multiply_results(const gradient_block& in) {
    const lines o = lines_of_queries(in.t, in.w.of, in.w.head, AT_OUT, in.t.dim_v), g = in.grad_out();
    compute s[ROWS_EACH][KEYS_EACH];
    multiply({g, in.w.first, in.w.last}, {o, in.w.first, in.w.last}, in.tile, in.weights, s);
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b)
            if (key_of_thread(b) == row_of_thread(a)) in.rows.delta[row_of_thread(a)] = s[a][b];
    __syncthreads();
}

// The same of one row, in the order in which fused multiply-adds make dp. Where o is 0, g is not asked: rows that see nothing have no gradient.
DS_DEVICE compute product_of_results(const gradient_block& in, i64 row) {
    const lines o = lines_of_queries(in.t, in.w.of, in.w.head, AT_OUT, in.t.dim_v), g = in.grad_out();
    const char *const of_o = o.at(row), *const of_g = g.at(row);
    compute total = compute(0), sum = compute(0);
    for (i64 e = 0; e < o.length; e += AT_ONCE) {
        if (e > 0 && e % LONG == 0) {
            total = e == LONG ? sum : add(total, sum);
            sum = compute(0);
        }
        compute x[AT_ONCE], y[AT_ONCE];
        read_elements(o, of_o, e, x);
        read_elements(g, of_g, e, y);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (x[i] != compute(0)) sum = fused(y[i], x[i], sum);
    }
    return o.length > LONG ? add(total, sum) : sum;
}

// m and d of a row by its scores: each thread's share of its keys first, in memory, then those of a row in order by the row's own thread.
constexpr int PAIRS = ROWS * THREADS_X;
static_assert(PAIRS * sizeof(row_pair) <= MEMORY_LENGTH * sizeof(compute), "pairs take the place of the tiles");
DS_DEVICE void sum_rows(const gradient_block& in, row_pair* pairs) {
    compute m[ROWS_EACH];
    f64 d[ROWS_EACH];
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a) {
        m[a] = compute(-infinity());
        d[a] = 0.0;
    }
    const key_range keys = in.passing();
    for (i64 j0 = keys.lo - keys.lo % PASSING; j0 < keys.hi; j0 += PASSING) {
        compute s[ROWS_EACH][KEYS_EACH];
        multiply_sides(in, in.queries(), in.keys(), j0, least(keys.hi, j0 + PASSING), s);
        __syncthreads();
        settle_tile<false>(in, j0, s);
#pragma unroll
        for (int a = 0; a < ROWS_EACH; ++a) {
            compute largest = m[a], sum = compute(0);
#pragma unroll
            for (int b = 0; b < KEYS_EACH; ++b) largest = larger(largest, s[a][b]);
#pragma unroll
            for (int b = 0; b < KEYS_EACH; ++b) sum = add(sum, s[a][b] == compute(-infinity()) ? compute(0) : exponential(sub(s[a][b], largest)));
            d[a] = d[a] * f64(m[a] == largest ? compute(1) : exponential(sub(m[a], largest))) + f64(sum);
            m[a] = largest;
        }
    }
    __syncthreads();
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a) pairs[row_of_thread(a) * THREADS_X + number_in_row()] = {f64(m[a]), d[a]};
    __syncthreads();
}
DS_DEVICE row_pair pair_of_row(const row_pair* pairs, int row) {
    row_pair p = pairs[row * THREADS_X];
    for (int lane = 1; lane < THREADS_X; ++lane) p = meet(p, pairs[row * THREADS_X + lane]).both;
    return p;
}

// An lse that the row's own scores give but for rounding is taken from them: maximum and sum are known better than their lse, whose spacing grows
// with it. Any other lse stays what it is: these keys are then a part of all.
DS_DEVICE void refine(const gradient_task& g, i64 head, f64 lse, row_pair p, row_numbers& x) {
    if (!is_finite(p.m) || !is_finite(p.d)) return;
    if (g.inputs.sinks) p.d += exponential_above(load_aligned<f64>(g.inputs.sinks + head) - p.m);
    if (!is_finite(p.d)) return;
    const f64 size = larger(1.0, lse < 0.0 ? -lse : lse), away = p.m + log_sum(p.d, 0.0) - lse;
    const f64 spacing = IS_WIDE && g.inputs.at[AT_LSE].code == CODE_F64 ? 0x1p-49 : 0x1p-20;
    if ((away < 0.0 ? -away : away) <= spacing * size) x = {p.m, 0.0, 1.0 / p.d, x.delta};
}

DS_DEVICE void prepare_rows(const gradient_block& in, row_numbers* numbers) {
    const i64 row = in.w.first + threadIdx.x;
    const bool has_row = row < in.w.last;
    const row_place at = place_of_row(in.t, in.w.head, has_row ? row : in.w.first);
    row_numbers x = {0.0, 0.0, 1.0, 0.0};
    f64 lse = 0.0;
    if (!ARE_CHAINS) multiply_results(in);
    if (has_row) {
        const char *const of_lse = in.w.of.base(in.t, AT_LSE), *const of_grad = in.w.of.base(in.u, AT_LSE);
        const placed &where = in.t.at[AT_LSE], &grad = in.u.at[AT_LSE];
        lse = number_at<f64>(of_lse + offset_of_row(where, at), int(where.code));
        x.shift = is_finite(lse) ? f64(rounded<compute>::of(lse)) : 0.0;
        x.rest = is_finite(lse) ? lse - x.shift : lse == -infinity() ? infinity() : not_a_number();
        if (lse != -infinity()) {
            const compute product = ARE_CHAINS ? compute(not_a_number()) : in.rows.delta[threadIdx.x];
            x.delta = f64(is_finite(product) ? product : product_of_results(in, row));
            if (of_grad) x.delta -= number_at<f64>(of_grad + offset_of_row(grad, at), int(grad.code));
        }
    }
    const bool is_large = is_finite(lse) && (lse < 0.0 ? -lse : lse) > largest_exact_lse(in.g, in.w.of);
    if (__syncthreads_or(is_large)) {
        load_rows(in, in.w.first, in.w.last, nullptr);
        row_pair* const pairs = (row_pair*)in.tile;
        sum_rows(in, pairs);
        if (is_large) refine(in.g, at.head, lse, pair_of_row(pairs, int(threadIdx.x)), x);
    }
    if (has_row) numbers[number_of_row(in.g, in.w.of, at)] = x;
}

}  // namespace ds

extern "C" __global__ void __launch_bounds__(ds::THREADS, 2)
    gradient_queries(const __grid_constant__ ds::gradient_task g, double* numbers) {
    using namespace ds;
    const block_memory memory = memory_of_block();
    row_numbers* const of = (row_numbers*)numbers;
    for (i64 index = blockIdx.x; index < g.inputs.work; index += gridDim.x) {
        __syncthreads();
        const owned_rows w = owned_of(g.inputs, index, ROWS, false);
        if (w.is_any) prepare_rows(block_of(g, OF_ROWS, w, of, memory), of);
    }
}
