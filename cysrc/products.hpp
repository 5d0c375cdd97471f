// products.hpp - the two products of attention as one register-tiled micro-kernel, and the packing of what they read.
//
//   scores  s[r, j] = sum_e q[r, e] k[j, e]          values  o[r, e] = alpha[r] o[r, e] + sum_j p[r, j] v[j, e]
//
// Both broadcast words of a left operand (queries, probabilities) and stream vectors of a right one (keys, values), which lies in
// panels of PANEL columns: [inner][PANEL]. A tile of TILE_ROWS x PANEL results stays in registers. An `arithmetic` says what a word is:
// one lane, or a pair of bfloat16 multiplied by one instruction (x86_64_v4_bf16).
#pragma once
#include <algorithm>
#include "simd.hpp"

namespace {

#if DS_BYTES == 64 || defined(__aarch64__)
constexpr int TILE_ROWS = 12;           // 24 registers of results, 2 of the panel, 1 broadcast, of 32
#else
constexpr int TILE_ROWS = 6;            // of 16
#endif
constexpr int PANEL_VECTORS = 2;
// Keys of a block: a tile of scores stays in the first-level cache.
template <class C> constexpr int KEY_BLOCK = 1024 / int(sizeof(C));
template <class C> constexpr int PANEL = PANEL_VECTORS * simd<C>::width;
template <class C> constexpr int PANELS = KEY_BLOCK<C> / PANEL<C>;      // of a block; at most 64

// Runs of keys of a block that some row of a tile sees, in whole panels.
struct key_runs {
    int count = 0, start[33], stop[33];
    int first() const { return start[0]; }
    int last() const { return stop[count - 1]; }
};

template <class C> struct lane_arithmetic {
    using compute = C;
    using word = C;
    using vec = vec_of<C>;
    static constexpr int terms = 1;     // of the inner sum in a word
    DS_INLINE static vec scaled(vec x, C factor) { return x * factor; }
    DS_INLINE static vec spread(word x) { return x - vec{}; }
    DS_INLINE static vec multiply_add(vec a, vec b, vec c) { return fused(a, b, c); }
    // x, but 0 where y is 0.
    DS_INLINE static vec where_nonzero(vec x, vec y) { return zero_where_equal(simd<C>(x), simd<C>(y), simd<C>(0.0)).v; }
};
struct bf16_pair { uint32_t bits; };
#if defined(__AVX512BF16__)
struct interleaved_order {
    alignas(64) uint16_t at[32];
    constexpr interleaved_order() : at() {
        for (int i = 0; i < 32; ++i) at[i] = uint16_t(i / 2 + i % 2 * 16);
    }
};
static constexpr interleaved_order INTERLEAVED_WORDS;
struct pair_arithmetic {
    using compute = float;
    using word = bf16_pair;
    using vec = vec_f32;                // the bits of 32 bfloat16
    static constexpr int terms = 2;
    // By a power of two: exact, but for numbers below the normal ones.
    DS_INLINE static vec scaled(vec x, float factor) {
        const __m512i high = _mm512_set1_epi32(int(0xffff0000u)), bits = (__m512i)x;
        const vec_f32 a = (vec_f32)_mm512_slli_epi32(bits, 16) * factor, b = (vec_f32)_mm512_and_si512(bits, high) * factor;
        return (vec)_mm512_or_si512(_mm512_srli_epi32((__m512i)a, 16), _mm512_and_si512((__m512i)b, high));
    }
    DS_INLINE static vec spread(word x) { return (vec)_mm512_set1_epi32(int(x.bits)); }
    DS_INLINE static vec multiply_add(vec a, vec b, vec c) { return (vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b); }
    DS_INLINE static vec where_nonzero(vec x, vec y) {
        return (vec)_mm512_maskz_mov_epi16(_mm512_test_epi16_mask((__m512i)y, _mm512_set1_epi16(0x7fff)), (__m512i)x);
    }
    DS_INLINE static void store_narrowed(word* p, vec low, vec high) {
        const __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        std::memcpy((void*)p, &both, sizeof both);
    }
    // Lane i of both makes word i.
    DS_INLINE static void store_interleaved(word* p, vec first, vec second) {
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
        _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_load_si512(INTERLEAVED_WORDS.at), both));
    }
};
#endif

template <class A, int rows, int vectors, int row_step, int inner_step>
DS_INLINE void multiply(const typename A::word* a, const typename A::word* b, ptrdiff_t inner, typename A::vec (&acc)[rows][vectors]) {
    using vec = typename A::vec;
    constexpr int width = sizeof(vec) / sizeof(typename A::word);
    for (ptrdiff_t k = 0; k < inner; ++k, a += inner_step, b += vectors * width) {
        vec column[vectors];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; ++j) column[j] = load_bits<vec>(b + j * width);
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i) {
            const vec x = A::spread(a[i * row_step]);
#pragma GCC unroll 4
            for (int j = 0; j < vectors; ++j) acc[i][j] = A::multiply_add(x, column[j], acc[i][j]);
        }
    }
}

// One panel of scores of `rows` rows. Queries lie as [inner][TILE_ROWS]. Long sums are cut, so that their error does not grow with the head's
// dimension.
constexpr ptrdiff_t INNER_BLOCK = 256;
template <class A, int rows> void score_tile(const typename A::word* q, const typename A::word* keys, ptrdiff_t inner, typename A::compute* s) {
    using C = typename A::compute;
    for (ptrdiff_t k = 0; k < inner; k += INNER_BLOCK) {
        typename A::vec acc[rows][PANEL_VECTORS] = {};
        multiply<A, rows, PANEL_VECTORS, 1, TILE_ROWS>(q + k * TILE_ROWS, keys + k * PANEL<C>, std::min(INNER_BLOCK, inner - k), acc);
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < PANEL_VECTORS; ++j) {
                C* at = s + i * KEY_BLOCK<C> + j * simd<C>::width;
                store_lanes(at, k == 0 ? acc[i][j] : load_lanes(at) + acc[i][j]);
            }
    }
}

// Panels of values: probabilities lie as [TILE_ROWS][KEY_BLOCK]. The block is summed by itself and then joins o: the error of a sum
// does not grow with what is in o already.
template <class A, int rows, int vectors>
void value_tile(
    const typename A::word* p, const typename A::word* values, const key_runs& runs, const typename A::compute* alpha, typename A::compute* o,
    ptrdiff_t o_step) {
    using C = typename A::compute;
    using vec = typename A::vec;
    constexpr int width = simd<C>::width;
    vec acc[rows][vectors] = {};
    for (int i = 0; i < runs.count; ++i) {
        const ptrdiff_t start = runs.start[i] / A::terms, inner = (runs.stop[i] - runs.start[i]) / A::terms;
        multiply<A, rows, vectors, KEY_BLOCK<C> / A::terms, 1>(p + start, values + start * vectors * width, inner, acc);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
        const vec a = alpha[i] - vec{};
#pragma GCC unroll 4
        for (int j = 0; j < vectors; ++j) {
            C* at = o + i * o_step + j * width;
            store_lanes(at, fused(a, load_lanes(at), acc[i][j]));
        }
    }
}

// The smallest kernel that covers `rows` rows; the rows beyond are padding.
constexpr int tile_rows_for(int rows) { return rows > TILE_ROWS * 2 / 3 ? TILE_ROWS : rows > TILE_ROWS / 3 ? TILE_ROWS * 2 / 3 : TILE_ROWS / 3; }

template <class A> void score_panel(int rows, const typename A::word* q, const typename A::word* keys, ptrdiff_t inner, typename A::compute* s) {
    switch (tile_rows_for(rows)) {
        case TILE_ROWS: return score_tile<A, TILE_ROWS>(q, keys, inner, s);
        case TILE_ROWS * 2 / 3: return score_tile<A, TILE_ROWS * 2 / 3>(q, keys, inner, s);
        default: return score_tile<A, TILE_ROWS / 3>(q, keys, inner, s);
    }
}
template <class A, int rows>
DS_INLINE void value_panels(
    const typename A::word* p, const typename A::word* values, const key_runs& runs, const typename A::compute* alpha, typename A::compute* o,
    ptrdiff_t columns) {
    // columns: a multiple of the register's width; the last panel may be half as wide.
    using C = typename A::compute;
    ptrdiff_t c = 0;
    for (; c + PANEL<C> <= columns; c += PANEL<C>) value_tile<A, rows, PANEL_VECTORS>(p, values + c * (KEY_BLOCK<C> / A::terms), runs, alpha, o + c, columns);
    if (c < columns) value_tile<A, rows, 1>(p, values + c * (KEY_BLOCK<C> / A::terms), runs, alpha, o + c, columns);
}
template <class A>
void value_product(
    int rows, const typename A::word* p, const typename A::word* values, const key_runs& runs, const typename A::compute* alpha,
    typename A::compute* o, ptrdiff_t columns) {
    switch (tile_rows_for(rows)) {
        case TILE_ROWS: return value_panels<A, TILE_ROWS>(p, values, runs, alpha, o, columns);
        case TILE_ROWS * 2 / 3: return value_panels<A, TILE_ROWS * 2 / 3>(p, values, runs, alpha, o, columns);
        default: return value_panels<A, TILE_ROWS / 3>(p, values, runs, alpha, o, columns);
    }
}

// ---------------------------------------------------------------- packing

// a0 b0 a1 b1 ..., from the first or the second halves of a and b.
template <bool second, class V, size_t... I> DS_INLINE V interleave(V a, V b, std::index_sequence<I...>) {
    constexpr size_t width = sizeof...(I);
    return __builtin_shufflevector(a, b, int(I / 2 + (second ? width / 2 : 0) + (I % 2 ? width : 0))...);
}
// Lane i of register j changes places with lane j of register i: as many perfect shuffles of all lanes as their number has bits.
template <class V> DS_INLINE void transpose(V* r) {
    constexpr int width = sizeof(V) / sizeof(r[0][0]);
    using lanes = std::make_index_sequence<size_t(width)>;
#pragma GCC unroll 4
    for (int stage = 1; stage < width; stage *= 2) {
        V t[width];
#pragma GCC unroll 16
        for (int i = 0; i < width / 2; ++i) {
            t[2 * i] = interleave<false>(r[i], r[i + width / 2], lanes{});
            t[2 * i + 1] = interleave<true>(r[i], r[i + width / 2], lanes{});
        }
#pragma GCC unroll 16
        for (int i = 0; i < width; ++i) r[i] = t[i];
    }
}

// What a row is read as: lanes, widened from its storage, or pairs of bfloat16 as they lie. Past the end: 0.
template <class A, class S> struct row_reader {
    static constexpr int per_vector = simd<S>::width;
    DS_INLINE static typename A::vec read(const S* p) { return load(p).v; }
    DS_INLINE static typename A::vec read(const S* p, ptrdiff_t n) {
#if DS_BYTES == 64
        if constexpr (std::is_same<S, float>::value) return (vec_f32)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
        else if constexpr (std::is_same<S, double>::value) return (vec_f64)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
        else {
            const uvec_16 h = (uvec_16)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
            if constexpr (std::is_same<S, f16>::value) return widen_f16(h);
            else return widen_bf16(h);
        }
#else
        S buffer[per_vector] = {};
        // element by element: a copy of unknown length costs a call
        for (ptrdiff_t i = 0; i < n; ++i) std::memcpy((void*)&buffer[i], (const char*)p + i * ptrdiff_t(sizeof(S)), sizeof(S));
        return load(buffer).v;
#endif
    }
};
#if defined(__AVX512BF16__)
template <> struct row_reader<pair_arithmetic, bf16> {
    static constexpr int per_vector = 32;
    DS_INLINE static vec_f32 read(const bf16* p) { return load_bits<vec_f32>(p); }
    DS_INLINE static vec_f32 read(const bf16* p, ptrdiff_t n) { return (vec_f32)_mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p); }
};
#endif

// Rows of `dim` elements to columns: dst[e * step + i] = rows[i][e] in words, for i < width. The lanes past `count` repeat the last row.
template <class A, class S> void pack_transposed(const char* const* rows, int count, ptrdiff_t dim, typename A::word* dst, ptrdiff_t step) {
    using vec = typename A::vec;
    using reader = row_reader<A, S>;
    constexpr int width = sizeof(vec) / sizeof(typename A::word);
    for (ptrdiff_t e = 0; e < dim; e += reader::per_vector) {
        const ptrdiff_t n = dim - e < reader::per_vector ? dim - e : reader::per_vector;
        vec block[width];
        for (int i = 0; i < width; ++i) {
            const S* p = (const S*)rows[i < count ? i : count - 1] + e;
            block[i] = n == reader::per_vector ? reader::read(p) : reader::read(p, n);
        }
        transpose(block);
        const ptrdiff_t words = (n + A::terms - 1) / A::terms;
        for (ptrdiff_t i = 0; i < words; ++i, dst += step) std::memcpy((void*)dst, &block[i], sizeof(vec));
    }
}

// The other way round: dst[i * dim + e] = element i of the run at p + e * stride, for i < width.
template <class C, class S> void gather_transposed(const char* p, ptrdiff_t stride, ptrdiff_t dim, C* dst) {
    constexpr int width = simd<C>::width;
    for (ptrdiff_t e = 0; e < dim; e += width) {
        const ptrdiff_t n = std::min<ptrdiff_t>(width, dim - e);
        vec_of<C> block[width] = {};
        for (ptrdiff_t i = 0; i < n; ++i) block[i] = load_lanes((const S*)(p + (e + i) * stride));
        transpose(block);
        for (int i = 0; i < width; ++i) {
            if (n == width) store_lanes(dst + i * dim + e, block[i]);
            else store_partial<C>(dst + i * dim + e, block[i], n);
        }
    }
}

// Where a panel of values begins for column c (a multiple of the register's width) and inner index k; the last one may be half as wide.
template <class A> DS_INLINE ptrdiff_t value_offset(ptrdiff_t c, ptrdiff_t k, ptrdiff_t columns) {
    using C = typename A::compute;
    const ptrdiff_t first = c / PANEL<C> * PANEL<C>, wide = columns - first < PANEL<C> ? simd<C>::width : PANEL<C>;
    return first * (KEY_BLOCK<C> / A::terms) + k * wide + (c - first);
}
// 0 in place of NaN and infinities, which may be hidden from some of the rows: 0 times them would not be 0. x - x is 0 for all others.
template <class V> DS_INLINE V finite_or_zero(V x, V& differences) {
    const V difference = x - x;
    differences += difference;
    return difference == 0 ? x : V{};
}
template <class C, class V> DS_INLINE bool any_nonzero(V x) { return count_equal(simd<C>(x), simd<C>(0.0)) != simd<C>::width; }

// One row of values (two for pairs; the second may be null: 0) into the panels at inner index k. Returns whether all were finite.
template <class A, class S> struct value_packer {
    static bool pack(const S* row, const S*, ptrdiff_t dim, ptrdiff_t k, ptrdiff_t columns, typename A::word* dst) {
        using vec = typename A::vec;
        constexpr int width = simd<S>::width;
        vec differences{};
        for (ptrdiff_t c = 0; c < columns; c += width) {
            const ptrdiff_t n = dim - c;
            const vec x = n >= width ? row_reader<A, S>::read(row + c) : row_reader<A, S>::read(row + c, n);
            store_lanes(dst + value_offset<A>(c, k, columns), finite_or_zero(x, differences));
        }
        return !any_nonzero<typename A::compute>(differences);
    }
};
#if defined(__AVX512BF16__)
template <> struct value_packer<pair_arithmetic, bf16> {
    static bool pack(const bf16* first, const bf16* second, ptrdiff_t dim, ptrdiff_t k, ptrdiff_t columns, bf16_pair* dst) {
        vec_f32 differences{};
        for (ptrdiff_t c = 0; c < columns; c += 16) {
            const ptrdiff_t n = dim - c < 16 ? dim - c : 16;
            const __mmask16 mask = __mmask16((1u << n) - 1);
            const auto read = [&](const bf16* p) { return (vec_f32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p + c)), 16); };
            const vec_f32 a = finite_or_zero(read(first), differences), b = finite_or_zero(second ? read(second) : vec_f32{}, differences);
            const __m512i pair = _mm512_or_si512(_mm512_srli_epi32((__m512i)a, 16), (__m512i)b);
            _mm512_storeu_si512(dst + value_offset<pair_arithmetic>(c, k, columns), pair);
        }
        return !any_nonzero<float>(differences);
    }
};
#endif

}  // namespace
