// attention_tensor_tiles.cuh - tiles of queries, keys and values in shared memory, filled by asynchronous copies, and the scores of a tile.
//
// Macros of a variant: DS_X    type of q, k, v and out
//                      DS_DIM  head dims, of keys and of values, are at most that
#pragma once
#include "attention_finish.cuh"
#include "attention_scores.cuh"
#include "attention_work.cuh"
#include "group.cuh"
#include "tensor_products.cuh"

namespace ds {

typedef DS_X x_type;

// A warp has SETS times 16 rows, which share what it reads of keys and values: as many as registers hold outputs of.
constexpr int DIM = DS_DIM, ROWS = 64, SETS = DIM <= 64 ? 2 : 1, WARP_ROWS = 16 * SETS, THREADS = ROWS / WARP_ROWS * 32;
constexpr int HALVES = 2 * SETS;                        // rows of a thread: half h of a set is g or g + 8
#if __CUDA_ARCH__ >= 1000
constexpr int KEYS = DIM == 128 ? 64 : 32;              // with 64 keys and two sets of rows some registers spill
#elif __CUDA_ARCH__ >= 800
constexpr int KEYS = DIM <= 128 ? 64 : 32;
#else
constexpr int KEYS = DIM <= 128 ? 64 : 16;              // 64 KiB of shared memory
#endif
constexpr bool ARE_QUERIES_HELD = DIM <= 128;           // in registers, once they have passed the tiles of keys and values
constexpr int PIECES = tile<DIM>::PIECES, KEY_WORDS = (KEYS + 31) / 32;
constexpr f64 LN_2 = 0x1.62e42fefa39efp-1;
// Beyond, the rounding of c m shows in every weight of a row.
constexpr f32 LARGEST_SHIFT = 0x1p20f;
static_assert(!ARE_QUERIES_HELD || ROWS <= 2 * KEYS, "queries pass, and outputs, through the tiles");

struct tile_source { key_rows from; i64 lo, hi, dim; bool is_key; };

// How scores are made of products.
struct alignas(16) score_rules {
    f32 c;                              // exponents of 2 are scores times c
    f32 factor, cap;                    // of products: into natural units, or with a cap, 0 without one, into the argument of tanh
    bool is_natural;                    // scores are in natural units, else products as they are
    bool has_addends, has_blocks;
};

// Shared memory of a block, which has what is the same for all threads too: registers are few.
struct block_memory {
    tile<DIM> queries, keys, values, outputs;
    tile_source* sources;               // of keys and of values
    f64 *m, *d;                         // of the rows, in natural units
    f32* factors;                       // that make outputs of sums
    i64 *lo, *hi;                       // the keys that the rows see
    u32 (*special)[KEY_WORDS];          // keys whose values are not finite, of two tiles in turn
    u32* is_odd;                        // rows that are left to the exact kernel, a bit each
    score_rules* rules;
    chunk<f32, 2>* addends;             // of a tile's scores, where there are some
    row_options* options;               // of the rows, likewise
};

DS_DEVICE int warp_row() { return int(threadIdx.x / 32) * WARP_ROWS; }
DS_DEVICE int row_of_thread(int h) { return warp_row() + int(threadIdx.x % 32 / 4) + 8 * h; }

// Leaves a row to the exact kernel. The words are found without an address of the thread's own, which would wait in a register.
DS_DEVICE void mark_odd(const block_memory& memory, int row) {
#pragma unroll
    for (int k = 0; k < ROWS / 32; ++k)
        if (row / 32 == k) atomicOr(&memory.is_odd[k], 1u << row % 32);
}

// ------------------------------------------------------------------ tiles
DS_DEVICE void fetch_queries(const attention_task& t, const work_item& w, const tile<DIM>& to) {
    const placed& q = t.at[AT_Q];
    const char* const base = w.of.base(t, AT_Q);
    const int p = int(threadIdx.x % PIECES);
#pragma unroll 4
    for (int row = int(threadIdx.x / PIECES); row < ROWS; row += THREADS / PIECES) {
        const bool is_there = w.first + row < w.last && p * ELEMENTS_A_PIECE < t.dim;
        const i64 offset = is_there ? offset_of_row(q, place_of_row(t, w.head, w.first + row)) + p * i64(sizeof(piece)) : 0;
        copy_piece(to.at(row, p), base + offset, is_there);
    }
}

// Keys outside [lo, hi) are 0: nobody sees them. A key that no page has is NaN.
DS_DEVICE void fetch_paged(const tile_source& source, i64 j0, const tile<DIM>& to, int row, int p) {
#pragma unroll 1
    for (; row < KEYS; row += THREADS / PIECES) {
        const bool is_inside = j0 + row >= source.lo && j0 + row < source.hi && p * ELEMENTS_A_PIECE < source.dim;
        const char* const at = is_inside ? source.from.at(j0 + row) : nullptr;
        if (is_inside && !at && source.is_key) *to.at(row, p) = piece{{~0u, ~0u, ~0u, ~0u}};
        else copy_piece(to.at(row, p), at ? at + p * i64(sizeof(piece)) : source.from.base, at != nullptr);
    }
}
DS_DEVICE void fetch(const tile_source& source, i64 j0, const tile<DIM>& to) {
    constexpr int ROWS_AT_ONCE = THREADS / PIECES;
    const int first = int(threadIdx.x / PIECES), p = int(threadIdx.x % PIECES);
    if (source.from.pages) return fetch_paged(source, j0, to, first, p);
    const char* const base = source.from.base;
    const i64 row = source.from.row;
    const int lo = p * ELEMENTS_A_PIECE < source.dim ? int(most(source.lo - j0, 0)) : KEYS, hi = int(least(source.hi - j0, KEYS));
    const char* at = base + (j0 + first) * row + p * i64(sizeof(piece));
#pragma unroll
    for (int i = 0; i < KEYS / ROWS_AT_ONCE; ++i, at += row * ROWS_AT_ONCE) {
        const int k = first + i * ROWS_AT_ONCE;
        const bool is_inside = k >= lo && k < hi;
        copy_piece(to.at(k, p), is_inside ? at : base, is_inside);
    }
}

// ------------------------------------------------------------------ a tile's scores and sums
constexpr int HELD = ARE_QUERIES_HELD ? DIM / 16 : 1;
typedef u32 held_queries[SETS][HELD][4];
typedef warp_products<x_type, DIM, SETS, KEYS> products;
typedef products::scores tile_scores;
typedef products::halves tile_weights;
DS_DEVICE void hold_queries(const block_memory& memory, held_queries& q) {
    const u32 from = memory.queries.lane_of_rows();
    if (ARE_QUERIES_HELD)
#pragma unroll
        for (int m = 0; m < SETS; ++m)
#pragma unroll
            for (int k = 0; k < DIM / 16; ++k) tile<DIM>::left(q[m][k % HELD], from, warp_row() + 16 * m, k * 16);
}

DS_DEVICE void multiply(const block_memory& memory, const held_queries& q, tile_scores& s) {
    products::clear(s);
    const u32 queries = memory.queries.lane_of_rows(), keys = memory.keys.lane_of_columns();
#pragma unroll (ARE_QUERIES_HELD ? DIM / 16 : 4)
    for (int k = 0; k < DIM / 16; ++k) {
        u32 a[SETS][4];
#pragma unroll
        for (int m = 0; m < SETS; ++m)
            if (!ARE_QUERIES_HELD) tile<DIM>::left(a[m], queries, warp_row() + 16 * m, k * 16);
            else
#pragma unroll
                for (int i = 0; i < 4; ++i) a[m][i] = q[m][k % HELD][i];
        products::add_columns(a, keys, k * 16, s);
    }
}

// Hides what a row does not see by position.
DS_DEVICE void hide(const block_memory& memory, i64 j0, tile_scores& s) {
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
        const int row = row_of_thread(h), column = int(threadIdx.x % 4) * 2;
        const int lo = int(least(most(memory.lo[row] - j0, 0), KEYS)) - column, hi = int(least(most(memory.hi[row] - j0, 0), KEYS)) - column;
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (n * 8 + i < lo || n * 8 + i >= hi) s[h / 2][n][h % 2 * 2 + i] = f32(-infinity());
    }
}

}  // namespace ds
