// gradient_tile.cuh - tiles of scores of the gradients: owned rows down, what passes by across; weights and their gradients by selection.
//
// A hidden score has the weight +0, a weight that is seen and 0 is -0: so both are told apart, and a sum is the same.
#pragma once
#include "attention_finish.cuh"
#include "attention_tiles.cuh"
#include "gradient_task.cuh"

namespace ds {

constexpr int PASSING = KEYS;               // lines that pass by at a time
constexpr int MOST_ROWS = ROWS > PASSING ? ROWS : PASSING;

// The rows of queries of a tile, in shared memory.
struct tile_rows {
    compute *shift, *rest, *weight, *delta;
    i64 *head, *query, *lo, *hi;            // lo, hi: the keys that they see as far as positions tell
};

struct block_memory { compute *tile, *of_rows; i64* of_places; };
DS_DEVICE block_memory memory_of_block() {
    DS_SHARED(vector, tiles, MEMORY_LENGTH / VECTOR);
    DS_SHARED(compute, of_rows, 4 * MOST_ROWS);
    DS_SHARED(i64, of_places, 4 * MOST_ROWS);
    return {(compute*)tiles, of_rows, of_places};
}

struct gradient_block {
    const gradient_task& g;
    const attention_task &t, &u;
    const owned_rows& w;
    const row_numbers* numbers;
    option_bases from;
    i64 kind;
    bool are_keys;                          // that are owned
    compute *tile, *weights;
    tile_rows rows;

    DS_DEVICE key_range passing() const { return are_keys ? rows_that_see(t, w.of, w.first, w.last) : keys_seen_by(t, w.of, w.first, w.last); }
    // The operands of s, and of dp; made anew for each tile, as they would take many registers.
    DS_DEVICE lines queries() const { return scaled(lines_of_queries(t, w.of, w.head, AT_Q, t.dim), rounded<compute>::of(t.fold)); }
    DS_DEVICE lines grad_out() const { return lines_of_queries(u, w.of, w.head, AT_OUT, t.dim_v); }
    DS_DEVICE lines keys() const { return lines_of_keys(t, w.of, quotient_of(w.head, g.heads_share), AT_K, t.dim); }
    DS_DEVICE lines values() const { return lines_of_keys(t, w.of, quotient_of(w.head, g.heads_share), AT_V, t.dim_v); }
};

// `kind` is that of the task; kernels that serve one of them know it.
DS_DEVICE gradient_block block_of(const gradient_task& g, i64 kind, const owned_rows& w, const row_numbers* numbers, const block_memory& memory) {
    const attention_task &t = g.inputs, &u = g.gradients;
    compute *const tile = memory.tile, *const x = memory.of_rows;
    i64* const p = memory.of_places;
    const tile_rows rows = {x, x + MOST_ROWS, x + 2 * MOST_ROWS, x + 3 * MOST_ROWS, p, p + MOST_ROWS, p + 2 * MOST_ROWS, p + 3 * MOST_ROWS};
    return {g, t, u, w, numbers, option_bases_of(t, w.of), kind, kind == OF_K || kind == OF_V, tile, tile + TILE_LENGTH, rows};
}

// The product of one kind of lines of queries with one of keys, for owned rows and the lines first <= i < last that pass by.
DS_DEVICE void multiply_sides(const gradient_block& in, const lines& of_queries, const lines& of_keys, i64 first, i64 last,
                              compute (&s)[ROWS_EACH][KEYS_EACH]) {
    const lines left = in.are_keys ? of_keys : of_queries, right = in.are_keys ? of_queries : of_keys;
    multiply({left, in.w.first, in.w.last}, {right, first, last}, in.tile, in.weights, s);
}

// What the rows first <= r < last need, those past the end nothing. `numbers` may be null: not known yet.
DS_DEVICE void load_rows(const gradient_block& in, i64 first, i64 last, const row_numbers* numbers) {
    for (int i = int(threadIdx.x); i < MOST_ROWS; i += THREADS) {
        const bool is_there = first + i < last;
        const row_place at = place_of_row(in.t, in.w.head, is_there ? first + i : first);
        const key_range seen = in.w.of.seen_by(in.t, at.query);
        row_numbers x = {0.0, 0.0, 1.0, 0.0};
        if (numbers) x = numbers[number_of_row(in.g, in.w.of, at)];
        in.rows.shift[i] = rounded<compute>::of(x.shift);
        in.rows.rest[i] = rounded<compute>::of(x.rest);
        in.rows.weight[i] = rounded<compute>::of(x.weight);
        in.rows.delta[i] = rounded<compute>::of(x.delta);
        in.rows.head[i] = at.head;
        in.rows.query[i] = at.query;
        in.rows.lo[i] = seen.lo;
        in.rows.hi[i] = is_there ? seen.hi : 0;
    }
}

DS_DEVICE compute exponential_anywhere(compute x) { return x > compute(40) ? rounded<compute>::of(exponential_above(f64(x))) : exponential(x); }

// 1 - tanh^2(s / cap) = 4 e / (1 + e)^2 with e = exp(-2 |s| / cap)
DS_DEVICE compute slope_of_cap(compute s, f64 cap) {
    const f64 x = f64(s) / cap;
    const compute e = exponential(rounded<compute>::of(-2.0 * larger(x < 0.0 ? -x : x, 0.0)));
    const compute r = reciprocal(add(compute(1), e));
    return mul(mul(compute(4), e), mul(r, r));
}

// The score of a key that row i sees as far as positions tell, or -inf.
DS_DEVICE compute score_of(const gradient_block& in, int i, i64 j, compute s) {
    if (j < in.rows.lo[i] || j >= in.rows.hi[i]) return compute(-infinity());
    return settled(in.t, options_of_row(in.t, in.w.of, in.from, {in.rows.head[i], in.rows.query[i]}), j, s);
}
DS_DEVICE compute weight_of(const gradient_block& in, int i, i64 j, compute s) {
    const compute score = score_of(in, i, j, s);
    if (score == compute(-infinity()) || in.rows.rest[i] == compute(infinity())) return compute(0);
    compute p = mul(exponential_anywhere(sub(sub(score, in.rows.shift[i]), in.rows.rest[i])), in.rows.weight[i]);
    if (in.t.softcap != 0 && (in.kind == OF_Q || in.kind == OF_K)) p = mul(p, slope_of_cap(mul(s, rounded<compute>::of(in.t.unit)), in.t.softcap));
    return p == compute(0) ? compute(-0.0) : p;
}
DS_DEVICE bool is_seen(f32 weight) { return __float_as_uint(weight) != 0; }
DS_DEVICE bool is_seen(f64 weight) { return __double_as_longlong(weight) != 0; }

// Scores of owned rows against lines first <= i < last that pass by become scores with their options or weights. They go through shared memory
// one by one: the code stands once, and registers are few.
template <bool are_weights> DS_DEVICE void settle_tile(const gradient_block& in, i64 first, compute (&s)[ROWS_EACH][KEYS_EACH]) {
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) in.weights[place_of_score(a, b)] = s[a][b];
#pragma unroll 1
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll 1
        for (int b = 0; b < KEYS_EACH; ++b) {
            compute& score = in.weights[place_of_score(a, b)];
            const int i = in.are_keys ? key_of_thread(b) : row_of_thread(a);
            const i64 j = in.are_keys ? in.w.first + row_of_thread(a) : first + key_of_thread(b);
            score = are_weights ? weight_of(in, i, j, score) : score_of(in, i, j, score);
        }
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) s[a][b] = in.weights[place_of_score(a, b)];
}

// Leaves p, or ds (p times the slope of the cap), of a tile in the tile of weights.
DS_DEVICE void weigh_tile(const gradient_block& in, i64 first, i64 last) {
    compute s[ROWS_EACH][KEYS_EACH], dp[ROWS_EACH][KEYS_EACH];
    __syncthreads();
    if (in.are_keys) load_rows(in, first, last, in.numbers);
    const bool are_gradients = in.kind != OF_V;
#pragma unroll 1
    for (int is_last = !are_gradients; is_last < 2; ++is_last) {
        multiply_sides(in, is_last ? in.queries() : in.grad_out(), is_last ? in.keys() : in.values(), first, last, s);
#pragma unroll
        for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
            for (int b = 0; b < KEYS_EACH; ++b)
                if (!is_last) dp[a][b] = s[a][b];
    }
    __syncthreads();
    settle_tile<true>(in, first, s);
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) {
            if (!are_gradients) continue;
            const compute delta = in.rows.delta[in.are_keys ? key_of_thread(b) : row_of_thread(a)];
            in.weights[place_of_score(a, b)] = is_seen(s[a][b]) ? mul(s[a][b], sub(dp[a][b], delta)) : compute(0);
        }
    __syncthreads();
}

}  // namespace ds
