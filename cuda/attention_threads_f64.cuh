// attention_threads_f64.cuh - the same on tensor cores, in float64.
//
// Two warps have 16 rows, each half of the keys, or columns: four products of 16 x 8 and 8 x 8 a step of eight elements, or keys. With g = lane / 4
// and t = lane % 4 a thread has rows g and g + 8 of them and columns 2t and 2t + 1 of each product: the fragments of ptx_f64.cuh.
#pragma once
#include "ptx_f64.cuh"

namespace ds {

constexpr int THREADS_X = 8;
constexpr int ROWS_EACH = 2, KEYS_EACH = KEYS / THREADS_X;
constexpr int ROW_LANES = 4, ROW_WARPS = 2;
constexpr int VECTORS = 4;
constexpr int SHARES = 1;
constexpr bool ARE_CHAINS = false;
static_assert(ROWS == 32 && KEYS == 64 && COLUMNS == 64 && VECTOR == 2, "four warps of 16 rows and 32 keys, or columns");

// Rows begin 8 banks apart: the 16 numbers that half a warp loads of a fragment, four of each of four rows, lie in all banks once.
constexpr int SLICE_PITCH = SLICE + 4, VALUE_PITCH = COLUMNS + 4, WEIGHT_PITCH = KEYS + 4;

DS_DEVICE int lane_group() { return int(threadIdx.x) % 32 / 4; }
DS_DEVICE int lane_of_group() { return int(threadIdx.x) % 4; }
DS_DEVICE int first_of_warp() { return int(threadIdx.x) / 32 % ROW_WARPS * 32; }         // its keys, or columns
DS_DEVICE int row_of_thread(int a) { return int(threadIdx.x) / 64 * 16 + lane_group() + 8 * a; }
// Of eight keys the one that is column c of a product. In this order neither the loads of keys nor the stores of weights meet in a bank.
DS_DEVICE int key_of_column(int c) { return c / 4 * 4 + c / 2 % 2 + (c ^ c / 4) % 2 * 2; }
DS_DEVICE int key_of_thread(int b) { return first_of_warp() + b / 2 * 8 + key_of_column(2 * lane_of_group() + b % 2); }
DS_DEVICE int column_of_thread(int c) { return first_of_warp() + c * 8 + 2 * lane_of_group(); }
DS_DEVICE int number_in_row() { return int(threadIdx.x) / 32 % ROW_WARPS * ROW_LANES + lane_of_group(); }
DS_DEVICE int share_of_thread() { return 0; }

// d += a b for the rows of a warp and 32 columns of b. `a` and `b` are the first numbers of the lane's fragments, the others of b lie `by_depth` and
// `by_column` apart. Steps that are not there up to a multiple of eight are 0 on both sides.
template <int pitch, int by_depth, int by_column> DS_DEVICE void add_products(const f64* a, const f64* b, int steps, f64 (&d)[2][8]) {
#pragma unroll 1
    for (int k = 0; k < steps; k += 8, a += 8, b += 8 * by_depth) {
        const f64 x[4] = {a[0], a[8 * pitch], a[4], a[8 * pitch + 4]};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            f64 sums[4] = {d[0][2 * n], d[0][2 * n + 1], d[1][2 * n], d[1][2 * n + 1]};
            multiply_f64(sums, x, b[8 * n * by_column], b[8 * n * by_column + 4 * by_depth]);
#pragma unroll
            for (int i = 0; i < 4; ++i) d[i / 2][2 * n + i % 2] = sums[i];
        }
    }
}

DS_DEVICE void add_slice(const compute* tile, int steps, compute (&s)[ROWS_EACH][KEYS_EACH]) {
    const compute *const q = tile + row_of_thread(0) * SLICE_PITCH, *const k = tile + (ROWS + first_of_warp() + key_of_column(lane_group())) * SLICE_PITCH;
    add_products<SLICE_PITCH, 1, SLICE_PITCH>(q + lane_of_group(), k + lane_of_group(), steps, s);
}

DS_DEVICE void add_values(const compute* tile, const compute* weights, int steps, compute (&o)[ROWS_EACH][VECTORS * VECTOR]) {
    const compute *const p = weights + row_of_thread(0) * WEIGHT_PITCH, *const v = tile + first_of_warp() + lane_group();
    add_products<WEIGHT_PITCH, VALUE_PITCH, 1>(p + lane_of_group(), v + lane_of_group() * VALUE_PITCH, steps, o);
}

}  // namespace ds
