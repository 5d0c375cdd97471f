// philox.hpp - the noise of sample, as dualsoft/philox.py defines it to the bit: Philox4x32-10 by element, uniforms, Gumbel.
//
// Plain products and sums, nothing fused, so that every level rounds alike.
#pragma once
#include <algorithm>

#include "elementary.hpp"

namespace {

typedef uint64_t uvec_64 __attribute__((vector_size(DS_BYTES)));

// Products of the lower 32 bits of each lane.
DS_INLINE uvec_64 multiply_words(uvec_64 a, uvec_64 b) {
#if DS_BYTES == 64
    return (uvec_64)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif DS_BYTES == 32
    return (uvec_64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return (uvec_64)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (uvec_64)vmull_u32(vmovn_u64((uint64x2_t)a), vmovn_u64((uint64x2_t)b));
#endif
}
DS_INLINE uint64_t multiply_words(uint64_t a, uint64_t b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }

// Ten rounds on words that stand in 64-bit lanes, whose upper halves are 0 before and after.
template <class U> DS_INLINE void philox_rounds(U* c, uint32_t k0, uint32_t k1) {
    const U m0 = U{} + uint64_t(0xD2511F53), m1 = U{} + uint64_t(0xCD9E8D57), word = U{} + uint64_t(0xffffffff);
    for (int i = 0; i < 10; ++i) {
        const U first = multiply_words(c[0], m0), second = multiply_words(c[2], m1);
        const U c1 = c[1], c3 = c[3];
        c[0] = (second >> 32) ^ c1 ^ (U{} + uint64_t(k0));
        c[1] = second & word;
        c[2] = (first >> 32) ^ c3 ^ (U{} + uint64_t(k1));
        c[3] = first & word;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// The noise of one row.
struct row_noise {
    uint32_t k0, k1;
    uint64_t c2, c3;
    row_noise(const uint32_t* key, uint64_t row) : k0(key[0]), k1(key[1]), c2((row & 0xffffffffu) ^ key[2]), c3((row >> 32) ^ key[3]) {}

    static constexpr ptrdiff_t together = DS_BYTES / 8 * 4;
    // The high words of the elements j .. j + together - 1, j a multiple of 4.
    template <size_t... I> DS_INLINE static void interleave(uvec_64 a, uvec_64 b, uint32_t* out, std::index_sequence<I...>) {
        constexpr int n = int(sizeof...(I));
        const uvec_64 low = __builtin_shufflevector(a, b, int(I % 2 * n + I / 2)...);
        const uvec_64 high = __builtin_shufflevector(a, b, int(I % 2 * n + I / 2 + n / 2)...);
        std::memcpy(out, &low, sizeof low);
        std::memcpy(out + DS_BYTES / 4, &high, sizeof high);
    }
    DS_INLINE void high_words(ptrdiff_t j, uint32_t* out) const {
        uvec_64 block;
        for (int i = 0; i < DS_BYTES / 8; ++i) block[i] = uint64_t(j / 4 + i);
        uvec_64 c[4] = {block & 0xffffffffu, block >> 32, uvec_64{} + c2, uvec_64{} + c3};
        philox_rounds(c, k0, k1);
        interleave(c[0] | c[1] << 32, c[2] | c[3] << 32, out, std::make_index_sequence<DS_BYTES / 8>{});
    }
    uint32_t low_word(ptrdiff_t j) const {
        const uint64_t block = uint64_t(j / 4);
        uint64_t c[4] = {block & 0xffffffffu, block >> 32 | uint64_t(1) << 31, c2, c3};
        philox_rounds(c, k0, k1);
        return uint32_t(c[j % 4]);
    }
};

// log(u) + c / u of normal u > 0 and small c.
inline double plain_log(double u, double c) {
    int64_t bits;
    std::memcpy(&bits, &u, sizeof bits);
    const int64_t k = (bits - 0x3fe6a09e00000000) >> 52;
    bits -= int64_t(uint64_t(k) << 52);
    double f;
    std::memcpy(&f, &bits, sizeof f);
    f = f - 1;
    const double s = f / (f + 2), z = s * s, half = f * f * 0.5, exponent = double(k);
    double p = LOG_C[6];
    for (int i = 5; i >= 0; --i) p = p * z + LOG_C[i];
    const double low = s * (p * z + half) + (exponent * exp_constants<double>::ln2_low + c / u);
    return exponent * exp_constants<double>::ln2_high + (f - (half - low));
}
// exp(s) of s <= 0; 0 below -64.
DS_INLINE vec_f64 plain_exp(vec_f64 s) {
    using K = exp_constants<double>;
    typedef vec_f64 V;
    const V x = max_keep(s, V{} - 64.0), shift = V{} + K::round;
    const V z = x * K::log2e + shift, n = z - shift;
    const V f = (x - n * K::ln2_high) - n * K::ln2_low;
    V q = V{} + K::c[K::degree - 1];
    for (int i = K::degree - 2; i >= 0; --i) q = q * f + K::c[i];
    const V y = (V)((uivec_of<double>)((f * f * q + f) + 1) + ((uivec_of<double>)z << 52));
    return s < V{} - 64.0 ? V{} : y;
}
// -log(-log1p(-v)) with v from 64 bits, near 0 as fine as float64 is.
inline double gumbel(uint32_t high, uint32_t low) {
    const double v = std::min((double(high) * 0x1p32 + (double(low) + 0.5)) * 0x1p-64, 1 - 0x1p-53);
    const double y = 1 - v;
    return -plain_log(-plain_log(y, (1 - y) - v), 0);
}

}  // namespace
