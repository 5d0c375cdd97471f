// attention_threads.cuh - how threads share the exact kernel's tiles, and the two products, by fused multiply-adds.
//
// Scores: thread (x, y) has rows y + THREADS_Y a and keys x + THREADS_X b. Outputs: the same rows and vectors of columns; with few rows, warps share
// the keys of a tile instead, each with all rows.
#pragma once

namespace ds {

constexpr int THREADS_X = DS_FEW ? 128 : 16, THREADS_Y = THREADS / THREADS_X;
constexpr int ROWS_EACH = ROWS / THREADS_Y, KEYS_EACH = KEYS / THREADS_X;
constexpr int ROW_LANES = DS_FEW ? 32 : 16, ROW_WARPS = DS_FEW ? 4 : 1;     // that share a row: of a warp, of the block
constexpr int LANES = DS_FEW ? 32 : 16;             // that share a row's columns
constexpr int VECTORS = DS_FEW ? 1 : 2;
constexpr int SHARES = DS_FEW ? THREADS / LANES : 1;            // of the keys of a tile, for the second product
static_assert(LANES * VECTORS * VECTOR == COLUMNS, "each column is some thread's");
constexpr bool ARE_CHAINS = true;                   // whether products are fused multiply-adds in order, as far as manuals tell

// Pitches that keep rows apart in the banks of shared memory.
constexpr int SLICE_PITCH = SLICE + VECTOR, VALUE_PITCH = COLUMNS + VECTOR, WEIGHT_PITCH = KEYS + 16;

DS_DEVICE int row_of_thread(int a) { return int(threadIdx.x) / THREADS_X + THREADS_Y * a; }
DS_DEVICE int key_of_thread(int b) { return int(threadIdx.x) % THREADS_X + THREADS_X * b; }
DS_DEVICE int column_of_thread(int c) { return (c * LANES + int(threadIdx.x) % LANES) * VECTOR; }
// Which it is of the threads that share its rows.
DS_DEVICE int number_in_row() { return int(threadIdx.x) % THREADS_X; }
DS_DEVICE int share_of_thread() { return DS_FEW ? int(threadIdx.x) / LANES : 0; }

DS_DEVICE void add_slice(const compute* tile, int steps, compute (&s)[ROWS_EACH][KEYS_EACH]) {
    const compute* const q = tile + row_of_thread(0) * SLICE_PITCH;
    const compute* const k = tile + (ROWS + key_of_thread(0)) * SLICE_PITCH;
#pragma unroll 1
    for (int e = 0; e < steps; e += VECTOR) {
        vector y[KEYS_EACH];
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) y[b] = *(const vector*)(k + b * THREADS_X * SLICE_PITCH + e);
#pragma unroll
        for (int a = 0; a < ROWS_EACH; ++a) {
            const vector x = *(const vector*)(q + a * THREADS_Y * SLICE_PITCH + e);
#pragma unroll
            for (int b = 0; b < KEYS_EACH; ++b)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) s[a][b] = fused(x.at[i], y[b].at[i], s[a][b]);
        }
    }
}

DS_DEVICE void add_values(const compute* tile, const compute* weights, int steps, compute (&o)[ROWS_EACH][VECTORS * VECTOR]) {
    const compute* const p = weights + row_of_thread(0) * WEIGHT_PITCH;
#pragma unroll 1
    for (int j = share_of_thread() * VECTOR; j < steps; j += SHARES * VECTOR) {
        vector x[ROWS_EACH];
#pragma unroll
        for (int a = 0; a < ROWS_EACH; ++a) x[a] = *(const vector*)(p + a * THREADS_Y * WEIGHT_PITCH + j);
#pragma unroll
        for (int k = 0; k < VECTOR; ++k)
#pragma unroll
            for (int c = 0; c < VECTORS; ++c) {
                const vector y = *(const vector*)(tile + (j + k) * VALUE_PITCH + column_of_thread(c));
#pragma unroll
                for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i) o[a][c * VECTOR + i] = fused(x[a].at[k], y.at[i], o[a][c * VECTOR + i]);
            }
    }
}

}  // namespace ds
