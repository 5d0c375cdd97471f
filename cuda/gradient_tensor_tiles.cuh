// gradient_tensor_tiles.cuh - what a block of gradients on tensor cores keeps in shared memory: its own lines, those that pass by, what rows need.
//
// A block owns 64 queries (rows, as everywhere: of all heads that share a head of keys) or 64 keys, 16 or 32 a warp. Of the other side PASSING lines at a
// time pass by, in two places in turn: while one is multiplied the other is filled. Lines come in pairs: q with the gradient of out, k with v.
//
// Macros of a variant: DS_X     type of q, k, v and of the gradient of out
//                      DS_DIM   head dims, of keys and of values, are at most that
//                      DS_KEYS  1: keys are owned, and queries pass by
#pragma once
#include "attention_finish.cuh"
#include "attention_scores.cuh"
#include "gradient_task.cuh"
#include "group.cuh"
#include "tensor_products.cuh"

namespace ds {

typedef DS_X x_type;

constexpr bool ARE_KEYS = DS_KEYS;
// A warp has SETS times 16 lines, which share what it reads of those that pass by: as many as registers hold sums of.
constexpr int DIM = DS_DIM, ROWS = 64, SETS = DIM <= 64 && !ARE_KEYS ? 2 : 1, WARP_ROWS = 16 * SETS, THREADS = ROWS / WARP_ROWS * 32, PIECES = tile<DIM>::PIECES;
constexpr int HALVES = 2 * SETS;                        // lines of a thread: half h of a set is g or g + 8
#if __CUDA_ARCH__ >= 800
constexpr int PASSING = 32;
#else
constexpr int PASSING = DIM <= 64 ? 32 : 16;            // 64 KiB of shared memory
#endif
constexpr int PRODUCTS = ARE_KEYS ? 2 : 1;              // with what passes by: of ds with its first lines, of p with its second ones
constexpr int FACTS = ARE_KEYS ? 2 * PASSING : ROWS;

// Weights are multiplied by a power of 2, so that float16 holds small ones with all their digits, up to a p of 4.
template <class T> constexpr int EXPONENT_OF_WEIGHTS = 0;
template <> constexpr int EXPONENT_OF_WEIGHTS<f16> = 14;
// Beyond, the rounding of c s and of an lse that is multiplied by c shows among halves.
constexpr f64 LARGEST_SHIFT = 0x1p13;

// Lines of one operand for one head of keys; those outside of [lo, hi) are 0.
struct line_source {
    const char* base;
    i64 row, head, group, lo, hi, dim;

    DS_DEVICE const char* at(i64 i) const {
        if (group == 1) return base + i * row;
        const i64 query = quotient_of(i, group);
        return base + (i - query * group) * head + query * row;
    }
};

// p is 2^(c s - shift) of a score s. A plain score is a product as it is; others are in natural units: products times factor, or with a cap, 0 without
// one, cap tanh(factor product), and their addends.
struct alignas(16) score_rules {
    f32 c, factor, cap;
    bool is_natural, has_addends, has_blocks;
};

// The logarithm that is subtracted from a row's scores, in units of the exponent, and its delta.
struct row_terms { f32 shift, delta; };

struct block_memory {
    unsigned char* first;

    static constexpr int TILE = DIM * 2, FIRST = 2 * (ROWS + 2 * PASSING) * TILE;        // bytes: of a line, and where the tiles end
    // Of pairs of lines: that are owned; that pass by, in two places in turn.
    DS_DEVICE tile<DIM> owned(int which) const { return {(piece*)(first + which * ROWS * TILE)}; }
    DS_DEVICE tile<DIM> passing(int turn, int which) const { return {(piece*)(first + (2 * ROWS + (2 * turn + which) * PASSING) * TILE)}; }
    // What rows need, of those that are owned or in two places in turn: logarithms, delta, the keys that they see.
    DS_DEVICE row_numbers* raw() const { return (row_numbers*)(first + FIRST); }         // of rows on their way
    DS_DEVICE i64* lo() const { return (i64*)(raw() + PASSING); }
    DS_DEVICE i64* hi() const { return lo() + FACTS; }
    DS_DEVICE line_source* sources() const { return (line_source*)(hi() + FACTS); }      // owned, owned, passing, passing
    DS_DEVICE row_terms* terms() const { return (row_terms*)(sources() + 4); }
    DS_DEVICE score_rules* rules() const { return (score_rules*)(terms() + FACTS); }
    DS_DEVICE u32* is_odd() const { return (u32*)(rules() + 1); }                        // owned lines left to the exact kernel, a bit each
    DS_DEVICE u32* special(int turn) const { return is_odd() + 2 + turn; }               // lines that pass by and are not finite
    // Of calls with addends alone: what rows need for them, and one for each score of a tile, where each thread comes back to its own.
    DS_DEVICE row_options* options() const { return (row_options*)special(2); }
    DS_DEVICE f32* addends() const { return (f32*)(options() + FACTS); }
    static DS_DEVICE int place_of_addend(int m, int n, int i, int thread) { return ((m * (PASSING / 8) + n) * 4 + i) * THREADS + thread; }
};

DS_DEVICE int warp_row() { return int(threadIdx.x) / 32 * WARP_ROWS; }
DS_DEVICE int row_of_thread(int h) { return warp_row() + int(threadIdx.x % 32 / 4) + 8 * h; }
DS_DEVICE int column_of_thread(int n) { return n * 8 + int(threadIdx.x % 4) * 2; }

struct gradient_block {
    const gradient_task& g;
    const owned_rows& w;
    const row_numbers* numbers;
    block_memory memory;

    DS_DEVICE i64 all_rows() const { return w.of.queries * g.inputs.group; }
    DS_DEVICE row_numbers* numbers_of(row_place at) const { return (row_numbers*)numbers + number_of_row(g, w.of, at); }
    DS_DEVICE row_options options_of(row_place at) const { return options_of_row(g.inputs, w.of, option_bases_of(g.inputs, w.of), at); }
    // Which row and key element i of fragment n of a set belong to, both counted in their tiles.
    static DS_DEVICE int row(int m, int n, int i) { return ARE_KEYS ? column_of_thread(n) + i % 2 : row_of_thread(2 * m + i / 2); }
    static DS_DEVICE int key(int m, int n, int i) { return ARE_KEYS ? row_of_thread(2 * m + i / 2) : column_of_thread(n) + i % 2; }
    // Where a tile's rows begin among what rows need; the first row and key of a tile, and where those end that are there.
    static DS_DEVICE int facts(int turn) { return ARE_KEYS ? turn * PASSING : 0; }
    DS_DEVICE i64 first_row(i64 first) const { return ARE_KEYS ? first : w.first; }
    DS_DEVICE i64 end_of_rows() const { return ARE_KEYS ? all_rows() : w.last; }
    DS_DEVICE i64 first_key(i64 first) const { return ARE_KEYS ? w.first : first; }
};

// ------------------------------------------------------------------ lines
template <int count> DS_DEVICE void fetch(const line_source& from, i64 first, const tile<DIM>& to) {
    const int p = int(threadIdx.x) % PIECES;
    const int lo = p * ELEMENTS_A_PIECE < from.dim ? int(most(from.lo - first, 0)) : count, hi = int(least(from.hi - first, count));
#pragma unroll
    for (int i = 0; i < count / (THREADS / PIECES); ++i) {
        const int k = int(threadIdx.x) / PIECES + i * (THREADS / PIECES);
        const bool is_there = k >= lo && k < hi;
        copy_piece(to.at(k, p), is_there ? from.at(first + k) + p * i64(sizeof(piece)) : from.base, is_there);
    }
}

// ------------------------------------------------------------------ what rows need
// What is beyond all bounds is NaN, and odd for whoever sees it. A row without an lse sees nothing, and one that is not there has no weight.
DS_DEVICE void put_facts(const block_memory& memory, int at, bool is_there, const row_numbers& x, key_range seen) {
    const bool is_empty = x.rest == infinity();
    f64 lse = x.shift + x.rest;
    if (x.weight != 1.0) lse += log_sum(1.0 / x.weight, 0.0);
    const f64 shift = lse * LOG2_E - f64(EXPONENT_OF_WEIGHTS<x_type>);
    const bool is_small = shift < LARGEST_SHIFT && shift > -LARGEST_SHIFT;
    memory.terms()[at] = {is_empty || !is_there ? f32(infinity()) : is_small ? narrow(shift) : f32(not_a_number()), is_there ? narrow(x.delta) : 0.0f};
    memory.lo()[at] = is_there && !is_empty ? seen.lo : 0;
    memory.hi()[at] = !is_there ? i64(1) << 62 : is_empty ? 0 : seen.hi;
}

// ------------------------------------------------------------------ products
typedef warp_products<x_type, DIM, SETS, PASSING> products;
typedef products::scores tile_sums;
typedef products::halves tile_halves;
typedef products::sums line_sums;

// A product of the warp's own lines with those that pass by.
DS_DEVICE void multiply(const tile<DIM>& owned, const tile<DIM>& passing, tile_sums& s) {
    products::clear(s);
    const u32 left = owned.lane_of_rows(), right = passing.lane_of_columns();
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k) {
        u32 a[SETS][4];
#pragma unroll
        for (int m = 0; m < SETS; ++m) tile<DIM>::left(a[m], left, warp_row() + 16 * m, k * 16);
        products::add_columns(a, right, k * 16, s);
    }
}

}  // namespace ds
