// elementary.hpp - exp and log1p on registers, at most 1 ulp off over their whole domain; expm1.
//
// exp      [-inf, 16]  NaN stays NaN, exp(-inf) = 0 exactly, subnormal results rounded once
// expm1    [-16, 16]   float64 only, at most 2.5 ulp
// log1p    [-1/2, inf] float64 only; NaN stays NaN
//
// exp: t = n ln2 + f with |f| <= ln2 / 2 (Cody and Waite: n ln2 subtracted in two parts, the first exact), e^f by a polynomial,
// 2^n put into the exponent. The polynomials are minimax for the relative error, which is below 0.04 ulp.
#pragma once
#include "simd.hpp"

namespace {

template <class C> struct exp_constants;
template <> struct exp_constants<float> {
    static constexpr float lowest = -110.0f;            // e^lowest rounds to 0
    static constexpr float round = 0x1.8p23f;           // adding it leaves the nearest integer in the low bits
    static constexpr int offset = 64, mantissa = 23;    // keeps the exponent of 2^n e^f normal; taken back by a product
    static constexpr float restore = 0x1p-64f;
    static constexpr float log2e = 0x1.715476p+0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    static constexpr float c[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123a20p-7f, 0x1.6a23d0p-10f};
    static constexpr int degree = 5;
};
template <> struct exp_constants<double> {
    static constexpr double lowest = -760.0;
    static constexpr double round = 0x1.8p52;
    static constexpr int offset = 512, mantissa = 52;
    static constexpr double restore = 0x1p-512;
    static constexpr double log2e = 0x1.71547652b82fep+0, ln2_high = 0x1.62e42fefa3p-1, ln2_low = 0x1.3de6af278ece6p-42;
    static constexpr double c[] = {0x1p-1, 0x1.5555555555501p-3, 0x1.55555555531fep-5, 0x1.1111111128967p-7,
                                   0x1.6c16c17cc6363p-10, 0x1.a01a011bddcd4p-13, 0x1.a019ab22fbfc9p-16,
                                   0x1.71df55c2f8663p-19, 0x1.289f95b6d3391p-22, 0x1.ad1f7252e8036p-26};
    static constexpr int degree = 10;
};

#if DS_BYTES == 64
DS_INLINE vec_f32 times_power_of_two(vec_f32 p, vec_f32 n) { return (vec_f32)_mm512_scalef_ps((__m512)p, (__m512)n); }
DS_INLINE vec_f64 times_power_of_two(vec_f64 p, vec_f64 n) { return (vec_f64)_mm512_scalef_pd((__m512d)p, (__m512d)n); }
#endif

// 1 + f + f^2 q. Without a fused multiply-add the largest term is added last, so that only it is rounded in units of the result.
template <class V> DS_INLINE V one_plus(V q, V f) {
#if HAS_FMA
    return fused(fused(q, f, V{} + 1), f, V{} + 1);
#else
    return (f * f * q + f) + 1;
#endif
}

// exp of `count` registers in lockstep: the steps of one wait for each other, those of several fill the time.
template <int count, class S> DS_INLINE void exp_each(simd<S>* x) {
    using K = exp_constants<typename simd<S>::C>;
    using V = vec_of<S>;
    const V shift = V{} + (K::round + (DS_BYTES == 64 ? 0 : K::offset));
    V f[count], z[count], n[count], p[count];
    for (int j = 0; j < count; ++j) f[j] = max_keep(V{} + K::lowest, x[j].v);
    for (int j = 0; j < count; ++j) z[j] = fused(f[j], V{} + K::log2e, shift);
    for (int j = 0; j < count; ++j) n[j] = z[j] - shift;
    for (int j = 0; j < count; ++j) f[j] = fused(n[j], V{} - K::ln2_high, f[j]);
    for (int j = 0; j < count; ++j) f[j] = fused(n[j], V{} - K::ln2_low, f[j]);
    for (int j = 0; j < count; ++j) p[j] = V{} + K::c[K::degree - 1];
    for (int i = K::degree - 2; i >= 0; --i)
        for (int j = 0; j < count; ++j) p[j] = fused(p[j], f[j], V{} + K::c[i]);
    for (int j = 0; j < count; ++j) p[j] = one_plus(p[j], f[j]);
    for (int j = 0; j < count; ++j) {
#if DS_BYTES == 64
        x[j] = times_power_of_two(p[j], n[j]);
#else
        // The sum f * 0 changes nothing but a NaN, whose payload the integer addition may have carried into the exponent.
        const V scaled = (V)((uivec_of<S>)p[j] + ((uivec_of<S>)z[j] << K::mantissa));
        x[j] = fused(scaled, V{} + K::restore, f[j] * 0);
#endif
    }
}
template <class S> DS_INLINE simd<S> exp(simd<S> x) { exp_each<1>(&x); return x; }
DS_INLINE double exp_one(double x) { return exp(simd<double>(x)).v[0]; }

// (log((1 + s) / (1 - s)) - 2 s) / s^3 as a polynomial in s^2, for |s| <= (sqrt 2 - 1) / (sqrt 2 + 1)
static constexpr double LOG_C[] = {0x1.5555555555558p-1, 0x1.9999999995273p-2, 0x1.2492492dfd86cp-2, 0x1.c71c62d5e53e0p-3,
                                   0x1.7462b91b8df65p-3, 0x1.39fdcceb4bb45p-3, 0x1.2b5f68a50d903p-3};

// e^x = power (1 + high + low) for |x| <= 40, with power = 2^n exact and high + low = e^f - 1 to some 55 bits.
struct exp_parts { vec_f64 power, high, low; };
DS_INLINE exp_parts split_exp(vec_f64 x) {
    using K = exp_constants<double>;
    typedef vec_f64 V;
    const V shift = V{} + K::round;
    const V z = x * K::log2e + shift, n = z - shift;
    const V top = x - n * K::ln2_high, bottom = n * K::ln2_low;
    const V f = top - bottom, f_low = (top - f) - bottom;
    V q = V{} + K::c[K::degree - 1];
    for (int i = K::degree - 2; i >= 0; --i) q = fused(q, f, V{} + K::c[i]);
    const V square = f * f * q, high = f + square;
    const V low = ((f - high) + square) + (f_low + f_low * high);
    return {(V)(((uivec_of<double>)z << 52) + (uivec_of<double>)(V{} + 1)), high, low};
}
// e^x - 1 = power (e^f - 1) + (power - 1)
DS_INLINE simd<double> expm1(simd<double> x) {
    const exp_parts e = split_exp(x.v);
    return fused(e.power, e.high, e.power - 1);
}

// log(u) + c / u for normal u and small c. u = 2^k (1 + f), and log(1 + f) = f - (f^2/2 - s (f^2/2 + R)) with
// s = f / (2 + f), R = s^2 P(s^2).
DS_INLINE vec_f64 log_sum(vec_f64 u, vec_f64 c) {
    typedef ivec_of<double> I;
    typedef vec_f64 V;
    const I k = ((I)u - 0x3fe6a09e00000000) >> 52;
    const V f = (V)((I)u - (k << 52)) - 1;
    const V kf = __builtin_convertvector(k, V);
    const V s = f / (f + 2), z = s * s, half = f * f * 0.5;
    V p = V{} + LOG_C[6];
    for (int i = 5; i >= 0; --i) p = fused(p, z, V{} + LOG_C[i]);
    const V low = fused(s, fused(p, z, half), fused(kf, V{} + exp_constants<double>::ln2_low, c / u));
    return fused(kf, V{} + exp_constants<double>::ln2_high, f - (half - low));
}
// u = 1 + r rounded, c what the rounding lost.
DS_INLINE simd<double> log1p(simd<double> r) {
    const vec_f64 x = r.v, u = x + 1, t = u - 1;
    const vec_f64 result = log_sum(u, (1 - (u - t)) + (x - t));
    return pick_less<double>(x, vec_f64{} + std::numeric_limits<double>::infinity(), result, x);
}
DS_INLINE double log1p_one(double x) { return log1p(simd<double>(x)).v[0]; }

}  // namespace
