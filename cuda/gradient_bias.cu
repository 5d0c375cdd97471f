// gradient_bias.cu - the gradient of the bias: an element for every score, or the sum over the axes in which it is broadcast.
//
// A block owns elements of the gradient, for one query head at a time, and visits all scores that share them: sequences, heads, rows and keys in order.
#include "gradient_tile.cuh"

namespace ds {

// Sequence number `share` of those that share the elements of owner `own`: digits along axes that are broadcast come from `share`.
DS_DEVICE i64 sequence_that_shares(const attention_task& u, i64 own, i64 share) {
    i64 index = 0, step = 1;
    for (int k = int(u.batch_axes) - 1; k >= 0; --k) {
        const i64 length = u.batch_shape[k];
        const bool is_shared = u.at[AT_BIAS].batch[k] == 0;
        const i64 digits = is_shared ? share : own, above = quotient_of(digits, length);
        index += (digits - above * length) * step;
        step *= length;
        share = is_shared ? above : share;
        own = is_shared ? own : above;
    }
    return index;
}

DS_DEVICE void add_to(char* p, f64 x) { store_aligned(p, load_aligned<f64>(p) + x); }

// Adds a tile, in float64. Each element of the gradient is one thread's.
DS_DEVICE void add_bias(const gradient_block& in, char* base, i64 j0, i64 j1) {
    const placed& to = in.u.at[AT_BIAS];
    const int rows = int(in.w.last - in.w.first), keys = int(j1 - j0);
    f64* const sums = (f64*)in.tile;
    const bool by_row = to.row != 0, by_key = to.item != 0;
    base += in.w.head * to.head;
    if (by_row && by_key) {
        for (int n = int(threadIdx.x); n < rows * KEYS; n += THREADS) {
            const int r = n / KEYS, k = n % KEYS;
            if (k < keys) add_to(base + (in.w.first + r) * to.row + (j0 + k) * to.item, f64(in.weights[r * WEIGHT_PITCH + k]));
        }
    } else if (by_row) {
        for (int r = int(threadIdx.x); r < rows; r += THREADS) {
            f64 sum = 0.0;
            for (int k = 0; k < keys; ++k) sum += f64(in.weights[r * WEIGHT_PITCH + k]);
            add_to(base + (in.w.first + r) * to.row, sum);
        }
    } else {
        for (int k = int(threadIdx.x); k < keys; k += THREADS) {
            sums[k] = 0.0;
            for (int r = 0; r < rows; ++r) sums[k] += f64(in.weights[r * WEIGHT_PITCH + k]);
            if (by_key) add_to(base + (j0 + k) * to.item, sums[k]);
        }
        __syncthreads();
        if (!by_key && threadIdx.x == 0) {
            f64 sum = 0.0;
            for (int k = 0; k < keys; ++k) sum += sums[k];
            add_to(base, sum);
        }
    }
}
DS_DEVICE void store_bias(const gradient_block& in, char* base, i64 j0, i64 j1) {
    const placed& to = in.u.at[AT_BIAS];
    const int rows = int(in.w.last - in.w.first), keys = int(j1 - j0);
    for (int n = int(threadIdx.x); n < rows * KEYS; n += THREADS) {
        const int r = n / KEYS, k = n % KEYS;
        const compute x[1] = {in.weights[r * WEIGHT_PITCH + k]};
        if (k < keys) store_numbers(base + in.w.head * to.head + (in.w.first + r) * to.row + (j0 + k) * to.item, 0, int(to.code), false, x, 1);
    }
}

// One row block of one head; of the keys those of one block, or all of them.
DS_DEVICE void bias_of_rows(const gradient_task& g, const owned_rows& w, const row_numbers* numbers, const block_memory& memory, i64 key_block) {
    const gradient_block in = block_of(g, OF_BIAS, w, numbers, memory);
    const key_range seen = in.passing();
    const i64 lo = most(seen.lo - seen.lo % PASSING, key_block < 0 ? 0 : key_block * PASSING), hi = key_block < 0 ? seen.hi : least(seen.hi, (key_block + 1) * PASSING);
    char* const base = w.of.base(g.gradients, AT_BIAS);
    if (lo >= hi) return;
    __syncthreads();
    load_rows(in, w.first, w.last, numbers);
    for (i64 j0 = lo; j0 < hi; j0 += PASSING) {
        const i64 j1 = least(hi, j0 + PASSING);
        weigh_tile(in, j0, j1);
        if (g.bias_sums) add_bias(in, base, j0, j1);
        else store_bias(in, base, j0, j1);
    }
}

// The scores that share the elements of one owner.
DS_DEVICE void bias_of_owner(const gradient_task& g, i64 index, const row_numbers* numbers, const block_memory& memory) {
    const attention_task& t = g.inputs;
    const placed& to = g.gradients.at[AT_BIAS];
    const i64 key_block = to.item != 0 ? index % g.key_blocks : -1, by_key = to.item != 0 ? index / g.key_blocks : index;
    const i64 row_block = to.row != 0 ? by_key % t.row_blocks : -1, by_row = to.row != 0 ? by_key / t.row_blocks : by_key;
    const i64 head = by_row % g.heads_own, own = by_row / g.heads_own, sharing = t.sequences / g.sequences_own;
    for (i64 share = 0; share < sharing; ++share) {
        const i64 number = t.q_starts ? (g.sequences_own > 1 ? own : share) : sequence_that_shares(g.gradients, own, share);
        owned_rows w;
        w.of = sequence_of(t, number);
        if (t.q_starts && !are_rows_its_own(t, w.of)) continue;
        w.slice = 0;
        for (w.head = head; w.head < t.heads_k; w.head += g.heads_own) {
            const i64 first = row_block < 0 ? 0 : row_block * ROWS, stop = row_block < 0 ? w.of.queries : least(w.of.queries, first + ROWS);
            for (w.first = first; w.first < stop; w.first += ROWS) {
                w.last = least(w.first + ROWS, w.of.queries);
                bias_of_rows(g, w, numbers, memory, key_block);
            }
        }
    }
}

}  // namespace ds

extern "C" __global__ void __launch_bounds__(ds::THREADS, 2)
    gradient_bias(const __grid_constant__ ds::gradient_task g, double* numbers) {
    using namespace ds;
    const block_memory memory = memory_of_block();
    row_numbers* const of = (row_numbers*)numbers;
    for (i64 index = blockIdx.x; index < g.inputs.work; index += gridDim.x) {
        __syncthreads();
        bias_of_owner(g, index, of, memory);
    }
}
