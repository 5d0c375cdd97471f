// simd.hpp - one vector type for every ISA level and dtype.
//
// simd<storage_t> holds one register of *compute* lanes (float32 for float32, float16 and bfloat16; float64 for
// float64). load and store widen and narrow between storage and lanes; everything else is arithmetic on lanes. The
// width is a constant of the level the file is compiled for (64, 32 or 16 bytes), so the same source gives one
// kernel per level. GCC and Clang vector extensions carry the plain operators; intrinsics appear only where the
// extensions cannot say what is meant: a maximum that ignores NaN, a fused multiply-add, half conversions, streaming
// stores, masked loads.
//
// Everything lives in an unnamed namespace: an inline function compiled for AVX-512 can never serve another level.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define DS_BYTES 64
#elif defined(__AVX2__)
#define DS_BYTES 32
#else
#define DS_BYTES 16
#endif
#if defined(__FMA__) || defined(__aarch64__)
#define HAS_FMA 1
#else
#define HAS_FMA 0
#endif
#define DS_INLINE inline __attribute__((always_inline))

namespace {

struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };

template <class S> struct traits { using compute = float; using integer = int32_t; };
template <> struct traits<double> { using compute = double; using integer = int64_t; };

template <class S> struct simd {
    using C = typename traits<S>::compute;
    using I = typename traits<S>::integer;
    typedef C vec __attribute__((vector_size(DS_BYTES)));
    typedef I ivec __attribute__((vector_size(DS_BYTES)));
    typedef typename std::make_unsigned<I>::type uivec __attribute__((vector_size(DS_BYTES)));
    static constexpr int width = DS_BYTES / sizeof(C);

    vec v;

    DS_INLINE simd() {}
    DS_INLINE simd(vec x) : v(x) {}
    DS_INLINE simd(double x) { v = C(x) - vec{}; }
    DS_INLINE static ptrdiff_t lanes() { return width; }
    DS_INLINE simd operator+(simd o) const { return v + o.v; }
    DS_INLINE simd operator-(simd o) const { return v - o.v; }
    DS_INLINE simd operator*(simd o) const { return v * o.v; }
    DS_INLINE simd operator/(simd o) const { return v / o.v; }
};

template <class S> using vec_of = typename simd<S>::vec;
template <class S> using ivec_of = typename simd<S>::ivec;
template <class S> using uivec_of = typename simd<S>::uivec;       // for sums that may wrap
typedef float vec_f32 __attribute__((vector_size(DS_BYTES)));
typedef double vec_f64 __attribute__((vector_size(DS_BYTES)));
typedef uint32_t uvec_32 __attribute__((vector_size(DS_BYTES)));
typedef uint16_t uvec_16 __attribute__((vector_size(DS_BYTES / 2)));

// ---------------------------------------------------------------- arithmetic that needs an instruction of its own

// max(a, b) as x86 defines it: b wherever either is NaN. With b the running maximum a NaN in a is ignored.
DS_INLINE vec_f32 max_keep(vec_f32 a, vec_f32 b) {
#if DS_BYTES == 64
    return (vec_f32)_mm512_max_ps((__m512)a, (__m512)b);
#elif DS_BYTES == 32
    return (vec_f32)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (vec_f32)_mm_max_ps((__m128)a, (__m128)b);
#else
    return a > b ? a : b;
#endif
}
DS_INLINE vec_f64 max_keep(vec_f64 a, vec_f64 b) {
#if DS_BYTES == 64
    return (vec_f64)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif DS_BYTES == 32
    return (vec_f64)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(__x86_64__)
    return (vec_f64)_mm_max_pd((__m128d)a, (__m128d)b);
#else
    return a > b ? a : b;
#endif
}

// a * b + c, one rounding where the level has the instruction (x86_64_v2 has none: two roundings there).
DS_INLINE vec_f32 fused(vec_f32 a, vec_f32 b, vec_f32 c) {
#if DS_BYTES == 64
    return (vec_f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif DS_BYTES == 32
    return (vec_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec_f32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
DS_INLINE vec_f64 fused(vec_f64 a, vec_f64 b, vec_f64 c) {
#if DS_BYTES == 64
    return (vec_f64)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif DS_BYTES == 32
    return (vec_f64)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
    return (vec_f64)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}

template <class S> DS_INLINE simd<S> vmax(simd<S> a, simd<S> b) { return max_keep(a.v, b.v); }
template <class S> DS_INLINE simd<S> fma(simd<S> a, simd<S> b, simd<S> c) { return fused(a.v, b.v, c.v); }

// ---------------------------------------------------------------- selection by comparison

// How many lanes of x equal m. A NaN equals nothing.
template <class S> DS_INLINE ptrdiff_t count_equal(simd<S> x, simd<S> m) {
#if DS_BYTES == 64
    if constexpr (sizeof(typename simd<S>::C) == 4)
        return __builtin_popcount(_mm512_cmp_ps_mask((__m512)x.v, (__m512)m.v, _CMP_EQ_OQ));
    else
        return __builtin_popcount(_mm512_cmp_pd_mask((__m512d)x.v, (__m512d)m.v, _CMP_EQ_OQ));
#elif DS_BYTES == 32
    if constexpr (sizeof(typename simd<S>::C) == 4)
        return __builtin_popcount(_mm256_movemask_ps(_mm256_cmp_ps((__m256)x.v, (__m256)m.v, _CMP_EQ_OQ)));
    else
        return __builtin_popcount(_mm256_movemask_pd(_mm256_cmp_pd((__m256d)x.v, (__m256d)m.v, _CMP_EQ_OQ)));
#elif defined(__x86_64__)
    if constexpr (sizeof(typename simd<S>::C) == 4)
        return __builtin_popcount(_mm_movemask_ps(_mm_cmpeq_ps((__m128)x.v, (__m128)m.v)));
    else
        return __builtin_popcount(_mm_movemask_pd(_mm_cmpeq_pd((__m128d)x.v, (__m128d)m.v)));
#else
    auto mask = x.v == m.v;
    ptrdiff_t n = 0;
    for (int i = 0; i < simd<S>::width; ++i) n -= mask[i];
    return n;
#endif
}
// e where x differs from m, 0 where it equals m.
template <class S> DS_INLINE simd<S> zero_where_equal(simd<S> e, simd<S> x, simd<S> m) {
#if DS_BYTES == 64
    if constexpr (sizeof(typename simd<S>::C) == 4)
        return (vec_f32)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x.v, (__m512)m.v, _CMP_NEQ_UQ), (__m512)e.v);
    else
        return (vec_f64)_mm512_maskz_mov_pd(_mm512_cmp_pd_mask((__m512d)x.v, (__m512d)m.v, _CMP_NEQ_UQ), (__m512d)e.v);
#else
    return (vec_of<S>)((ivec_of<S>)e.v & (x.v != m.v));
#endif
}
// a where x equals m, b elsewhere.
template <class S> DS_INLINE simd<S> pick_equal(simd<S> x, simd<S> m, simd<S> a, simd<S> b) {
    return x.v == m.v ? a.v : b.v;
}
// a where x < y, b elsewhere (also where x or y is NaN).
template <class S> DS_INLINE simd<S> pick_less(simd<S> x, simd<S> y, simd<S> a, simd<S> b) {
    return x.v < y.v ? a.v : b.v;
}
template <class S> DS_INLINE simd<S> vabs(simd<S> x) {
    return (vec_of<S>)((ivec_of<S>)x.v & (ivec_of<S>{} + std::numeric_limits<typename simd<S>::I>::max()));
}

// ---------------------------------------------------------------- float16 and bfloat16 to lanes and back

#if defined(__F16C__) && DS_BYTES == 64
DS_INLINE vec_f32 widen_f16(uvec_16 h) { return (vec_f32)_mm512_cvtph_ps((__m256i)h); }
DS_INLINE uvec_16 narrow_f16(vec_f32 x) { return (uvec_16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(__F16C__) && DS_BYTES == 32
DS_INLINE vec_f32 widen_f16(uvec_16 h) { return (vec_f32)_mm256_cvtph_ps((__m128i)h); }
DS_INLINE uvec_16 narrow_f16(vec_f32 x) { return (uvec_16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(__aarch64__)
DS_INLINE vec_f32 widen_f16(uvec_16 h) { return (vec_f32)vcvt_f32_f16((float16x4_t)h); }
DS_INLINE uvec_16 narrow_f16(vec_f32 x) { return (uvec_16)vcvt_f16_f32((float32x4_t)x); }
#else
// Exponent and mantissa moved into place and multiplied by 2^112: exact, subnormals included.
DS_INLINE vec_f32 widen_f16(uvec_16 h) {
    uvec_32 u = __builtin_convertvector(h, uvec_32);
    uvec_32 magnitude = (u & 0x7fff) << 13;
    vec_f32 x = (vec_f32)magnitude * 0x1p112f;
    uvec_32 special = (uvec_32)(magnitude >= 0x0f800000u);
    uvec_32 bits = ((uvec_32)x & ~special) | ((magnitude | 0x7f800000u) & special);
    return (vec_f32)(bits | ((u & 0x8000) << 16));
}
// Adding a power of two that is 2^13 ulps of the result leaves the rounding (to nearest, ties to even) to the adder.
DS_INLINE uvec_16 narrow_f16(vec_f32 x) {
    uvec_32 u = (uvec_32)x, sign = u & 0x80000000u, a = u ^ sign;
    uvec_32 is_nan = (uvec_32)(a > 0x7f800000u), is_big = (uvec_32)(a >= 0x477ff000u), is_small = (uvec_32)(a < 0x38800000u);
    uvec_32 small = (uvec_32)((vec_f32)a + 0.5f) - 0x3f000000u;
    uvec_32 normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13;
    uvec_32 r = (small & is_small) | (normal & ~is_small);
    r = (r & ~is_big) | (0x7c00u & is_big);
    r = (r & ~is_nan) | ((0x7e00u | ((a >> 13) & 0x3ffu)) & is_nan);
    return __builtin_convertvector(r | (sign >> 16), uvec_16);
}
#endif
// With AVX-512 one permute of 16-bit words puts the halves in place, and another takes them out.
#if DS_BYTES == 64
struct word_order {
    alignas(64) uint16_t at[32];
    constexpr word_order(int scale, int shift) : at() {
        for (int i = 0; i < 32; ++i) at[i] = uint16_t((scale == 2 ? i * 2 + shift : i >> 1) & 31);
    }
};
static constexpr word_order SPREAD_WORDS(1, 0), GATHER_WORDS(2, 1);
DS_INLINE vec_f32 widen_bf16(uvec_16 h) {
    return (vec_f32)_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, _mm512_load_si512(SPREAD_WORDS.at), _mm512_castsi256_si512((__m256i)h));
}
#else
DS_INLINE vec_f32 widen_bf16(uvec_16 h) { return (vec_f32)(__builtin_convertvector(h, uvec_32) << 16); }
#endif
// To nearest, ties to even: add half an ulp, less one bit where the kept part is even. NaN becomes the quiet NaN.
DS_INLINE uvec_16 narrow_bf16(vec_f32 x) {
#if DS_BYTES == 64
    const __m512i u = (__m512i)x, half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_add_epi32(half, odd, half, _mm512_set1_epi32(1));
    const __m512i kept = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
    return (uvec_16)_mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_load_si512(GATHER_WORDS.at), kept));
#else
    const uvec_32 u = (uvec_32)x, is_nan = (uvec_32)(x != x);
    const uvec_32 rounded = u + 0x7fffu + ((u >> 16) & 1);
    return __builtin_convertvector(((rounded & ~is_nan) | (0x7fc00000u & is_nan)) >> 16, uvec_16);
#endif
}

// ---------------------------------------------------------------- load, store

template <class V, class T> DS_INLINE V load_bits(const T* p) { V v; std::memcpy(&v, p, sizeof(V)); return v; }
DS_INLINE vec_f32 load_lanes(const float* p) { return load_bits<vec_f32>(p); }
DS_INLINE vec_f64 load_lanes(const double* p) { return load_bits<vec_f64>(p); }
DS_INLINE vec_f32 load_lanes(const f16* p) { return widen_f16(load_bits<uvec_16>(p)); }
DS_INLINE vec_f32 load_lanes(const bf16* p) { return widen_bf16(load_bits<uvec_16>(p)); }
DS_INLINE void store_lanes(float* p, vec_f32 v) { std::memcpy((void*)p, &v, sizeof v); }
DS_INLINE void store_lanes(double* p, vec_f64 v) { std::memcpy((void*)p, &v, sizeof v); }
DS_INLINE void store_lanes(f16* p, vec_f32 v) { uvec_16 h = narrow_f16(v); std::memcpy((void*)p, &h, sizeof h); }
DS_INLINE void store_lanes(bf16* p, vec_f32 v) { uvec_16 h = narrow_bf16(v); std::memcpy((void*)p, &h, sizeof h); }

template <class S> DS_INLINE simd<S> load(const S* p) { return load_lanes(p); }
template <class S> DS_INLINE void store(S* p, simd<S> x) { store_lanes(p, x.v); }

// The first n < width lanes from p, -inf in the rest: exp gives exactly 0 there and a maximum ignores them.
template <class S> DS_INLINE simd<S> load_partial(const S* p, ptrdiff_t n) {
#if DS_BYTES == 64
    if constexpr (std::is_same<S, float>::value)
        return (vec_f32)_mm512_mask_loadu_ps(_mm512_set1_ps(-__builtin_inff()), (__mmask16)((1u << n) - 1), p);
    else if constexpr (std::is_same<S, double>::value)
        return (vec_f64)_mm512_mask_loadu_pd(_mm512_set1_pd(-__builtin_inf()), (__mmask8)((1u << n) - 1), p);
    else {
        const short inf = std::is_same<S, f16>::value ? short(0xfc00) : short(0xff80);
        __m256i h = _mm256_mask_loadu_epi16(_mm256_set1_epi16(inf), (__mmask16)((1u << n) - 1), p);
        if constexpr (std::is_same<S, f16>::value) return widen_f16((uvec_16)h);
        else return widen_bf16((uvec_16)h);
    }
#else
    S buffer[simd<S>::width];
    typename std::conditional<sizeof(S) == 2, uint16_t, S>::type fill;
    if constexpr (std::is_same<S, f16>::value) fill = 0xfc00;
    else if constexpr (std::is_same<S, bf16>::value) fill = 0xff80;
    else fill = -std::numeric_limits<S>::infinity();
    for (int i = 0; i < simd<S>::width; ++i) std::memcpy((void*)&buffer[i], &fill, sizeof fill);
    std::memcpy((void*)buffer, p, size_t(n) * sizeof(S));
    return load_lanes(buffer);
#endif
}
template <class S> DS_INLINE void store_partial(S* p, simd<S> x, ptrdiff_t n) {
#if DS_BYTES == 64
    if constexpr (std::is_same<S, float>::value)
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x.v);
    else if constexpr (std::is_same<S, double>::value)
        _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)x.v);
    else if constexpr (std::is_same<S, f16>::value)
        _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), (__m256i)narrow_f16(x.v));
    else
        _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), (__m256i)narrow_bf16(x.v));
#else
    S buffer[simd<S>::width];
    store_lanes(buffer, x.v);
    std::memcpy((void*)p, buffer, size_t(n) * sizeof(S));
#endif
}

// Past the cache: p is aligned to the bytes that one vector takes in storage.
template <class V> DS_INLINE void stream_bits(void* p, V v) {
#if DS_BYTES == 64
    if constexpr (sizeof(V) == 64) _mm512_stream_si512((__m512i*)p, (__m512i)v);
    else _mm256_stream_si256((__m256i*)p, (__m256i)v);
#elif DS_BYTES == 32
    if constexpr (sizeof(V) == 32) _mm256_stream_si256((__m256i*)p, (__m256i)v);
    else _mm_stream_si128((__m128i*)p, (__m128i)v);
#elif defined(__x86_64__)
    if constexpr (sizeof(V) == 16) _mm_stream_si128((__m128i*)p, (__m128i)v);
    else { long long bits; std::memcpy(&bits, &v, 8); _mm_stream_si64((long long*)p, bits); }
#else
    std::memcpy(p, &v, sizeof v);
#endif
}
DS_INLINE void stream_lanes(float* p, vec_f32 v) { stream_bits(p, v); }
DS_INLINE void stream_lanes(double* p, vec_f64 v) { stream_bits(p, v); }
DS_INLINE void stream_lanes(f16* p, vec_f32 v) { stream_bits(p, narrow_f16(v)); }
DS_INLINE void stream_lanes(bf16* p, vec_f32 v) { stream_bits(p, narrow_bf16(v)); }
template <class S> DS_INLINE void stream(S* p, simd<S> x) { stream_lanes(p, x.v); }
// Streamed lines become visible to other threads in order only after a fence.
DS_INLINE void stream_fence() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
// Memory from one place to another past the cache, but for the ends, which share their lines with neighbours.
DS_INLINE void stream_copy(void* to, const void* from, ptrdiff_t bytes) {
    typedef char piece __attribute__((vector_size(DS_BYTES)));
    char* p = (char*)to;
    const char* q = (const char*)from;
    const ptrdiff_t before = ptrdiff_t((64 - uintptr_t(p) % 64) % 64), head = before < bytes ? before : bytes;
    ptrdiff_t i = head;
    std::memcpy(p, q, size_t(head));
    for (; i + 64 <= bytes; i += 64)
        for (ptrdiff_t j = i; j < i + 64; j += DS_BYTES) {
            piece v;
            std::memcpy(&v, q + j, sizeof v);
            stream_bits(p + j, v);
        }
    std::memcpy(p + i, q + i, size_t(bytes - i));
}
DS_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// ---------------------------------------------------------------- across lanes

// One level of folding two registers at once: both are sequences of parts of `part` lanes; every part is folded to
// its lower half op upper half, and the results stand in order, those of a before those of b.
template <int part, bool high, class V, size_t... I> DS_INLINE V take_halves(V a, V b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, int(I / (part / 2) * part + I % (part / 2) + (high ? part / 2 : 0))...);
}
struct add_op { template <class V> DS_INLINE static V apply(V a, V b) { return a + b; } };
struct max_op { template <class V> DS_INLINE static V apply(V a, V b) { return max_keep(a, b); } };

template <class op, int part, int width, class V> DS_INLINE V fold_pair(V a, V b) {
    using lanes = std::make_index_sequence<size_t(width)>;
    return op::apply(take_halves<part, false>(a, b, lanes{}), take_halves<part, true>(a, b, lanes{}));
}
template <class op, int count, int width, int done, class V> DS_INLINE V fold_rows(const V* rows) {
    if constexpr (count == done) return rows[0];
    else {
        V a = fold_rows<op, count / 2, width, done>(rows);
        V b = fold_rows<op, count / 2, width, done>(rows + count / 2 / done);
        return fold_pair<op, width * 2 / count, width>(a, b);
    }
}
// Lane r of the result is the fold of rows[r]: width registers are reduced with width - 1 steps in all. Each one is folded
// upper half onto lower half until one lane is left; fold_lanes does the same to a single register, to the bit.
template <class S> DS_INLINE simd<S> max_rows(const simd<S>* rows) {
    return fold_rows<max_op, simd<S>::width, simd<S>::width, 1>(&rows[0].v);
}
// The same in two steps: `count` neighbouring rows with each other, then what is left of `width` rows.
template <int count, class S> DS_INLINE simd<S> sum_some_rows(const simd<S>* rows) {
    return fold_rows<add_op, count, simd<S>::width, 1>(&rows[0].v);
}
template <int count = 1, class S> DS_INLINE simd<S> sum_rows(const simd<S>* sums) {
    return fold_rows<add_op, simd<S>::width, simd<S>::width, count>(&sums[0].v);
}
template <class op, int part, int width, class V> DS_INLINE auto fold_lanes(V v) {
    if constexpr (part == 1) return v[0];
    else return fold_lanes<op, part / 2, width>(fold_pair<op, part, width>(v, v));
}
template <class S> DS_INLINE double hmax(simd<S> a) { return fold_lanes<max_op, simd<S>::width, simd<S>::width>(a.v); }
template <class S> DS_INLINE double hsum(simd<S> a) { return fold_lanes<add_op, simd<S>::width, simd<S>::width>(a.v); }

// All lanes as float64.
template <class S> DS_INLINE void to_doubles(simd<S> x, double* p) {
    for (int i = 0; i < simd<S>::width; ++i) p[i] = double(x.v[i]);
}

}  // namespace
