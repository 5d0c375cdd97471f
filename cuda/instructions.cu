// instructions.cu - one small kernel for each function of ptx.cuh and for the exchanges between lanes, and the functions built on them: what the
// instructions of a card compute, number by number.
#include "convert.cuh"
#include "elementary.cuh"
#include "group.cuh"
#include "ptx_f64.cuh"

using namespace ds;

DS_DEVICE int element() { return int(blockIdx.x * blockDim.x + threadIdx.x); }

#define DS_KERNEL(name) extern "C" __global__ void name
#define DS_UNARY(name, Y, A, function) \
    DS_KERNEL(name)(const A* a, Y* y, int n) { const int i = element(); if (i < n) y[i] = function(a[i]); }
#define DS_BINARY(name, T, function) \
    DS_KERNEL(name)(const T* a, const T* b, T* y, int n) { const int i = element(); if (i < n) y[i] = function(a[i], b[i]); }
#define DS_TERNARY(name, T, function) \
    DS_KERNEL(name)(const T* a, const T* b, const T* c, T* y, int n) { const int i = element(); if (i < n) y[i] = function(a[i], b[i], c[i]); }

// ------------------------------------------------------------------ arithmetic
DS_BINARY(add_f32, f32, add)
DS_BINARY(sub_f32, f32, sub)
DS_BINARY(mul_f32, f32, mul)
DS_TERNARY(fused_f32, f32, fused)
DS_BINARY(larger_f32, f32, larger)
DS_BINARY(divide_f32, f32, divide)
DS_UNARY(reciprocal_f32, f32, f32, reciprocal)
DS_UNARY(exp2_approximate_f32, f32, f32, exp2_approximate)
DS_BINARY(add_f64, f64, add)
DS_BINARY(sub_f64, f64, sub)
DS_BINARY(mul_f64, f64, mul)
DS_TERNARY(fused_f64, f64, fused)
DS_BINARY(larger_f64, f64, larger)
DS_BINARY(divide_f64, f64, divide)
DS_UNARY(reciprocal_f64, f64, f64, reciprocal)

// ------------------------------------------------------------------ conversions
DS_DEVICE u16 bf16_of(f64 a) { return rounded<bf16>::of(a).bits; }
DS_DEVICE f32 from_bf16(u16 bits) { return to_compute<f32>(bf16{bits}); }

DS_UNARY(widen_f32, f64, f32, widen)
DS_UNARY(narrow_f64, f32, f64, narrow)
DS_UNARY(narrow_to_zero_f64, f32, f64, narrow_to_zero)
DS_UNARY(is_nan_f32, i32, f32, is_nan)
DS_UNARY(is_nan_f64, i32, f64, is_nan)
DS_UNARY(from_f16_u16, f32, u16, from_f16)
DS_UNARY(from_bf16_u16, f32, u16, from_bf16)
DS_UNARY(to_f16_f32, u16, f32, to_f16)
DS_UNARY(to_f16_f64, u16, f64, to_f16)
DS_UNARY(to_bf16_f32, u16, f32, to_bf16)
DS_UNARY(to_bf16_f64, u16, f64, bf16_of)

// Two neighbours a thread.
#define DS_PAIRS(function) { const int i = element(); if (2 * i < n) y[i] = function(a[2 * i], a[2 * i + 1]); }
DS_KERNEL(pair_to_f16_f32)(const f32* a, u32* y, int n) DS_PAIRS(pair_to_f16)
DS_KERNEL(pair_to_bf16_f32)(const f32* a, u32* y, int n) DS_PAIRS(pair_to_bf16)

// ------------------------------------------------------------------ elementary functions
DS_UNARY(exponential_f32, f32, f32, exponential)
DS_UNARY(exponential_f64, f64, f64, exponential)
DS_UNARY(exponential_above_f32, f32, f32, exponential_above)
DS_UNARY(exponential_above_f64, f64, f64, exponential_above)
DS_UNARY(exponential_rough_f32, f32, f32, exponential_rough)
DS_UNARY(log1p_of_f64, f64, f64, log1p_of)

// ------------------------------------------------------------------ global memory
template <int size> DS_DEVICE void move_words(const char* x, char* y, int n) {
    const int i = element();
    if (i >= n) return;
    words<size> w;
    load_words(w, x + i64(i) * size);
    store_words(y + i64(i) * size, w);
}
DS_KERNEL(move_words_1)(const char* x, char* y, int n) { move_words<1>(x, y, n); }
DS_KERNEL(move_words_2)(const char* x, char* y, int n) { move_words<2>(x, y, n); }
DS_KERNEL(move_words_4)(const char* x, char* y, int n) { move_words<4>(x, y, n); }
DS_KERNEL(move_words_8)(const char* x, char* y, int n) { move_words<8>(x, y, n); }
DS_KERNEL(move_words_16)(const char* x, char* y, int n) { move_words<16>(x, y, n); }

// ------------------------------------------------------------------ to shared memory: one warp, 16 bytes a lane, of which lane / 2 come from memory
DS_KERNEL(copy_async_void)(const char* x, char* y) {
    typedef chunk<u8, 16> sixteen;
    DS_SHARED(sixteen, there, 32);
    const int lane = int(threadIdx.x), bytes = lane / 2;
#if __CUDA_ARCH__ >= 800
    copy_async(there + lane, x + 16 * lane, bytes);
    copy_async_commit();
    copy_async_wait<0>();
#else
    sixteen mine = {};
    for (int i = 0; i < bytes; ++i) mine.at[i] = load_aligned<u8>(x + 16 * lane + i);
    there[lane] = mine;
#endif
    store_aligned(y + 16 * lane, there[lane]);
}

// ------------------------------------------------------------------ matrices: one warp
// Four matrices of 8 x 8 halves, a row a lane, and what every lane gets of each.
DS_DEVICE u32 row_of_lane(const char* x) {
    typedef chunk<u8, 16> row;
    DS_SHARED(row, rows, 32);
    rows[threadIdx.x] = load_aligned<row>(x + 16 * threadIdx.x);
    __syncwarp();
    return u32(__cvta_generic_to_shared(rows + threadIdx.x));
}
DS_DEVICE void put_matrices(const u32 (&a)[4], u32* y) {
    for (int i = 0; i < 4; ++i) y[4 * threadIdx.x + i] = a[i];
}
DS_KERNEL(load_matrices_u32)(const char* x, u32* y) { u32 a[4]; load_matrices(a, row_of_lane(x)); put_matrices(a, y); }
DS_KERNEL(load_transposed_u32)(const char* x, u32* y) { u32 a[4]; load_transposed(a, row_of_lane(x)); put_matrices(a, y); }

// y = a b + c by rows, of 16 x 16 and 16 x 8, from the fragments that lanes have.
DS_DEVICE u32 two(const u16* x, int step) { return u32(x[step]) << 16 | x[0]; }
struct product {
    f32 d[4];
    u32 a[4], b[2];
    int row, column;
    DS_DEVICE product(const u16* x, const u16* z, const f32* c) : row(int(threadIdx.x) / 4), column(int(threadIdx.x) % 4 * 2) {
        for (int i = 0; i < 4; ++i) a[i] = two(x + (row + i % 2 * 8) * 16 + column + i / 2 * 8, 1);
        for (int i = 0; i < 2; ++i) b[i] = two(z + (column + i * 8) * 8 + row, 8);
        for (int i = 0; i < 4; ++i) d[i] = c[place(i)];
    }
    DS_DEVICE int place(int i) const { return (row + i / 2 * 8) * 8 + column + i % 2; }
    DS_DEVICE void put(f32* y) const {
        for (int i = 0; i < 4; ++i) y[place(i)] = d[i];
    }
};
DS_KERNEL(multiply_f16_f32)(const u16* a, const u16* b, const f32* c, f32* y) {
    product p(a, b, c);
    multiply_f16(p.d, p.a, p.b[0], p.b[1]);
    p.put(y);
}
DS_KERNEL(multiply_bf16_f32)(const u16* a, const u16* b, const f32* c, f32* y) {
    product p(a, b, c);
#if __CUDA_ARCH__ >= 800
    multiply_bf16(p.d, p.a, p.b[0], p.b[1]);
#else
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k) p.d[i] = fused(from_bf16(a[p.place(i) / 8 * 16 + k]), from_bf16(b[k * 8 + p.place(i) % 8]), p.d[i]);
#endif
    p.put(y);
}

// The same in float64, of 16 x 8 and 8 x 8.
DS_KERNEL(multiply_f64_f64)(const f64* a, const f64* b, const f64* c, f64* y) {
    const int g = int(threadIdx.x) / 4, t = int(threadIdx.x) % 4;
    const auto place = [=](int i) { return (g + i / 2 * 8) * 8 + 2 * t + i % 2; };
    f64 d[4] = {c[place(0)], c[place(1)], c[place(2)], c[place(3)]};
#if __CUDA_ARCH__ >= 800
    const f64 x[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    multiply_f64(d, x, b[t * 8 + g], b[(t + 4) * 8 + g]);
#else
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k) d[i] = fused(a[place(i) / 8 * 8 + k], b[k * 8 + place(i) % 8], d[i]);
#endif
    for (int i = 0; i < 4; ++i) y[place(i)] = d[i];
}

// ------------------------------------------------------------------ between lanes: one warp, y[k][lane] from the lane at distance 2^k
template <class T> DS_DEVICE void exchange(const T* x, T* y) {
    const int lane = int(threadIdx.x);
    const T mine = x[lane];
#pragma unroll
    for (int k = 0; k < 5; ++k) y[k * 32 + lane] = from_lane(mine, 1 << k);
}
DS_KERNEL(from_lane_i32)(const i32* x, i32* y) { exchange(x, y); }
DS_KERNEL(from_lane_f32)(const f32* x, f32* y) { exchange(x, y); }
DS_KERNEL(from_lane_f64)(const f64* x, f64* y) { exchange(x, y); }
DS_KERNEL(from_lane_twofold)(const twofold* x, twofold* y) { exchange(x, y); }

// From the lane at that distance below; the lanes that have none keep their own.
DS_KERNEL(lane_before_f64)(const f64* x, f64* y) {
    const int lane = int(threadIdx.x);
    for (int k = 0; k < 5; ++k) y[k * 32 + lane] = __shfl_up_sync(ALL_LANES, x[lane], 1 << k);
}
DS_KERNEL(last_lane_f64)(const f64* x, f64* y) { y[threadIdx.x] = __shfl_sync(ALL_LANES, x[threadIdx.x], 31); }

DS_KERNEL(any_lane)(const i32* x, i32* y) { y[element()] = __any_sync(ALL_LANES, x[element()] != 0); }

// ------------------------------------------------------------------ over the threads of a group: one block, every thread writes what it ended with
#define DS_REDUCTIONS(size)                                                                                                          \
    DS_KERNEL(reduce_maximum_f32_##size)(const f32* x, f32* y) { y[threadIdx.x] = group<size>::reduce(x[threadIdx.x], maximum()); }   \
    DS_KERNEL(reduce_plus_f64_##size)(const f64* x, f64* y) { y[threadIdx.x] = group<size>::reduce(x[threadIdx.x], plus()); }         \
    DS_KERNEL(reduce_plus_twofold_##size)(const twofold* x, twofold* y) { y[threadIdx.x] = group<size>::reduce(x[threadIdx.x], plus()); }
DS_REDUCTIONS(8)
DS_REDUCTIONS(32)
DS_REDUCTIONS(128)
DS_REDUCTIONS(512)
