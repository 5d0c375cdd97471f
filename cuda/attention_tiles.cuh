// attention_tiles.cuh - the exact kernel's tiles: how threads share them, how they are loaded, and the two products.
//
// A block of 128 threads has ROWS rows and takes keys KEYS at a time; threads have some rows each, of these some keys and vectors of columns.
// Keys and values lie at fixed places of a tile, counted from key 0, and sums follow these: a row's bits depend on nothing else.
//
// Macros of a variant: DS_X        type of q, k and v, or `anything`: told by codes at run time
//                      DS_C        type of the arithmetic
//                      DS_OPTIONS  1: scores meet more than their scale
//                      DS_FEW      1: few rows
#pragma once
#include "attention_scores.cuh"
#include "attention_work.cuh"
#include "group.cuh"

// Whether products are those of tensor cores: of float64 with many rows, where cards have them at the rate of fused multiply-adds or more. Of the
// cards above sm_80 others have some, at a small part of it.
#define DS_HAS_F64_PRODUCTS (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)
#define DS_IS_WIDE_f32 0
#define DS_IS_WIDE_f64 1
#define DS_JOINED(a, b) a##b
#define DS_IS_WIDE(type) DS_JOINED(DS_IS_WIDE_, type)
#define DS_ON_TENSOR_CORES (DS_HAS_F64_PRODUCTS && DS_IS_WIDE(DS_C) && !DS_FEW)

namespace ds {

struct anything { u8 byte; };
typedef DS_X x_type;
typedef DS_C compute;

constexpr bool IS_WIDE = sizeof(compute) == 8;
constexpr int THREADS = 128;
constexpr int VECTOR = 16 / int(sizeof(compute));
constexpr int ROWS = DS_FEW ? 8 : IS_WIDE ? 32 : 64;
constexpr int KEYS = DS_FEW ? 128 : 64;
constexpr i64 RUN = DS_FEW ? 1024 : 2048;           // keys whose sums are not merged yet
constexpr int COLUMNS = 32 * VECTOR;
constexpr int SLICE = 128 / int(sizeof(compute));               // elements of the head dim at a time
constexpr int LONG = 8 * SLICE;                     // a score is summed by so many elements
constexpr int VALUE_KEYS = 32;

typedef chunk<compute, VECTOR> vector;

}  // namespace ds

#if DS_ON_TENSOR_CORES
#include "attention_threads_f64.cuh"
#else
#include "attention_threads.cuh"
#endif

namespace ds {

constexpr int OPERANDS_LENGTH = (ROWS + KEYS) * SLICE_PITCH, VALUES_LENGTH = VALUE_KEYS * VALUE_PITCH;
constexpr int TILE_LENGTH = OPERANDS_LENGTH > VALUES_LENGTH ? OPERANDS_LENGTH : VALUES_LENGTH;
constexpr int WEIGHTS_LENGTH = ROWS * WEIGHT_PITCH, MEMORY_LENGTH = TILE_LENGTH + WEIGHTS_LENGTH;
static_assert(SHARES * ROWS * COLUMNS <= MEMORY_LENGTH, "the outputs of a block take the place of its tiles");

// The place of one of the thread's scores in the tile of weights.
DS_DEVICE int place_of_score(int a, int b) { return row_of_thread(a) * WEIGHT_PITCH + key_of_thread(b); }

// ------------------------------------------------------------------ loading
template <class T> constexpr int ELEMENTS_AT_ONCE = 16 / int(sizeof(T));
template <> constexpr int ELEMENTS_AT_ONCE<anything> = 4;
constexpr int AT_ONCE = ELEMENTS_AT_ONCE<x_type> > VECTOR ? ELEMENTS_AT_ONCE<x_type> : VECTOR;

template <class T> DS_DEVICE compute element_at(const char* p, int) { return to_compute<compute>(load<T>(p)); }
template <> DS_DEVICE compute element_at<anything>(const char* p, int code) { return number_at<compute>(p, code); }

template <class T> DS_DEVICE void read_at_once(const char* p, compute (&to)[AT_ONCE]) {
    const chunk<T, AT_ONCE> v = load_aligned<chunk<T, AT_ONCE>>(p);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) to[i] = to_compute<compute>(v.at[i]);
}
template <> DS_DEVICE void read_at_once<anything>(const char*, compute (&)[AT_ONCE]) {}

// One side of a product: rows of an operand, by queries or by keys, and what they are multiplied by.
struct lines {
    key_rows keys;                  // with the base and the step of either
    i64 head, head_step, group;     // by queries: of the head of keys
    i64 item, length;               // elements of a line
    int code;
    bool is_wide, are_keys, is_scaled;
    compute factor;

    DS_DEVICE const char* at(i64 i) const {
        if (are_keys) return keys.at(i);
        const i64 query = quotient_of(i, group);
        return keys.base + (head * group + (i - query * group)) * head_step + query * keys.row;
    }
};
DS_DEVICE lines lines_of_keys(const attention_task& t, const sequence& s, i64 head_k, int operand, i64 length) {
    const placed& at = t.at[operand];
    return {keys_of(t, s, head_k, operand), head_k, at.head, 1, at.item, length, int(at.code), at.is_wide != 0, true, false, compute(1)};
}
DS_DEVICE lines lines_of_queries(const attention_task& t, const sequence& s, i64 head_k, int operand, i64 length) {
    const placed& at = t.at[operand];
    const key_rows rows = {s.base(t, operand), at.row, 0, 1, 0, nullptr};
    return {rows, head_k, at.head, t.group, at.item, length, int(at.code), at.is_wide != 0, false, false, compute(1)};
}
DS_DEVICE lines scaled(lines of, compute factor) {
    of.is_scaled = true;
    of.factor = factor;
    return of;
}

// Elements e, e + 1, ... of a line, 0 past its end.
DS_DEVICE void read_elements(const lines& from, const char* row, i64 e, compute (&to)[AT_ONCE]) {
    if (from.is_wide && e + AT_ONCE <= from.length) {
        read_at_once<x_type>(row + e * i64(sizeof(x_type)), to);
        return;
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) to[i] = e + i < from.length ? element_at<x_type>(row + (e + i) * from.item, from.code) : compute(0);
}
DS_DEVICE void fill(compute (&to)[AT_ONCE], compute value) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) to[i] = value;
}
DS_DEVICE void put_elements(compute* to, const compute (&x)[AT_ONCE]) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; i += VECTOR) {
        vector v;
#pragma unroll
        for (int k = 0; k < VECTOR; ++k) v.at[k] = x[i + k];
        *(vector*)(to + i) = v;
    }
}

// What the second product is of. Values that are not finite are 0 in ordinary sums: 0 NaN never arises, and a weight that underflowed beside an
// infinite value is not lost. They are counted by themselves, where they are seen: +inf as 1, -inf as DOWN, NaN as both.
enum summand { ORDINARY, SHRUNK, COUNTED, NOT_FINITE };
constexpr compute SHRINK = compute(0x1p-64);        // sums of values that are shrunk do not overflow
constexpr compute DOWN = compute(4096);
static_assert(RUN < 4096 && RUN * 4097 <= 1 << 24, "counts are exact in float32, and told apart");
DS_DEVICE compute as_summand(compute v, int kind, bool& is_met) {
    const bool finite = is_finite(v);
    is_met |= !finite;
    if (kind == ORDINARY) return finite ? v : compute(0);
    if (kind == SHRUNK) return finite ? mul(v, SHRINK) : compute(0);
    if (kind == NOT_FINITE) return finite ? compute(0) : v;
    return finite ? compute(0) : v == compute(infinity()) ? compute(1) : v == compute(-infinity()) ? DOWN : add(DOWN, compute(1));
}

// ------------------------------------------------------------------ the first product
// Some lines of one side: those of a tile.
struct tile_side { const lines& of; i64 first, last; };

// Lines past the end are 0; those of pages that the table does not name are NaN.
DS_DEVICE void load_unit(const tile_side& side, i64 i, i64 e, compute* to) {
    compute x[AT_ONCE];
    const char* const at = i < side.last ? side.of.at(i) : nullptr;
    if (at) read_elements(side.of, at, e, x);
    else fill(x, i < side.last ? compute(not_a_number()) : compute(0));
    if (side.of.is_scaled)
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) x[k] = mul(x[k], side.of.factor);
    put_elements(to, x);
}
DS_DEVICE void load_slices(const tile_side& a, const tile_side& b, i64 e0, compute* tile) {
    constexpr int UNITS = SLICE / AT_ONCE;
    for (int n = int(threadIdx.x); n < (ROWS + KEYS) * UNITS; n += THREADS) {
        const int row = n / UNITS, e = n % UNITS * AT_ONCE;
        compute* const to = tile + row * SLICE_PITCH + e;
        if (row < ROWS) load_unit(a, a.first + row, e0 + e, to);
        else load_unit(b, b.first + (row - ROWS), e0 + e, to);
    }
}

// s = a b^T. Long sums are made of several, which wait in the tile of weights; each thread comes back to its own.
DS_DEVICE void multiply(const tile_side& left, const tile_side& right, compute* tile, compute* weights, compute (&s)[ROWS_EACH][KEYS_EACH]) {
    const i64 length = left.of.length;
#pragma unroll
    for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
        for (int b = 0; b < KEYS_EACH; ++b) s[a][b] = compute(0);
    for (i64 e = 0; e < length; e += SLICE) {
        __syncthreads();
        if (e > 0 && e % LONG == 0) {
#pragma unroll
            for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
                for (int b = 0; b < KEYS_EACH; ++b) {
                    compute& sum = weights[place_of_score(a, b)];
                    sum = e == LONG ? s[a][b] : add(sum, s[a][b]);
                    s[a][b] = compute(0);
                }
        }
        load_slices(left, right, e, tile);
        __syncthreads();
        add_slice(tile, int(least(SLICE, length - e)), s);
    }
    if (length > LONG) {
#pragma unroll
        for (int a = 0; a < ROWS_EACH; ++a)
#pragma unroll
            for (int b = 0; b < KEYS_EACH; ++b) s[a][b] = add(weights[place_of_score(a, b)], s[a][b]);
    }
}

// ------------------------------------------------------------------ the second product
DS_DEVICE void load_values(const lines& v, i64 j0, i64 j1, i64 column, int kind, compute* tile, bool& is_met) {
    constexpr int UNITS = COLUMNS / AT_ONCE;
    compute x[AT_ONCE];
    for (int n = int(threadIdx.x); n < VALUE_KEYS * UNITS; n += THREADS) {
        const int row = n / UNITS, c = n % UNITS * AT_ONCE;
        const char* const at = j0 + row < j1 && column + c < v.length ? v.at(j0 + row) : nullptr;
        if (at) read_elements(v, at, column + c, x);
        else fill(x, compute(0));
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) x[i] = as_summand(x[i], kind, is_met);
        put_elements(tile + row * VALUE_PITCH + c, x);
    }
}

}  // namespace ds
