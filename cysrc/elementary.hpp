// elementary.hpp - exp, exp2 and log1p on registers, at most 1 ulp off over their whole domain; expm1, tanh.
//
// exp      [-inf, 16]  NaN stays NaN, exp(-inf) = 0 exactly, subnormal results rounded once
// exp2     [-inf, 23]  the same; at x86_64_v2, which has no fused multiply-add, 1.2 ulp
// tanh     all         at most 2 ulp; NaN stays NaN
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
    // 2^f = 1 + f P(f), whose first coefficient is ln 2: what it lost would add to the rounding of the last step
    static constexpr float p2[] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f, 0x1.c6af88p-5f, 0x1.3b2e0cp-7f, 0x1.5f03dap-10f, 0x1.414f00p-13f};
    static constexpr int terms2 = 6;
    // tanh(x) = x + x z T(z) with z = x^2, for |x| <= 5/8
    static constexpr float t[] = {-0x1.55552ap-2f, 0x1.110546p-3f, -0x1.b7fbf0p-5f, 0x1.507918p-6f, -0x1.6e41f0p-8f};
    static constexpr int tanh_terms = 5;
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
    static constexpr double p2[] = {0x1.62e42fefa39efp-1, 0x1.ebfbdff82c5a1p-3, 0x1.c6b08d704a046p-5, 0x1.3b2ab6fba0799p-7,
                                    0x1.5d87fe78c3736p-10, 0x1.4309130dc3d26p-13, 0x1.ffcbfbc7c5e44p-17, 0x1.62bfc9f9cee0ep-20,
                                    0x1.b52652ef4b85cp-24, 0x1.e617aceacf80bp-28, 0x1.e7c6a6a6ee5e8p-32};
    static constexpr int terms2 = 11;
    static constexpr double t[] = {-0x1.55555555554c9p-2, 0x1.1111111107513p-3, -0x1.ba1ba1b29213bp-5, 0x1.664f470dc874dp-6,
                                   -0x1.226e0b55d931cp-7, 0x1.d6cdd45d205cep-9, -0x1.7d5b62b08c67dp-10, 0x1.33118ca7e2da2p-11,
                                   -0x1.dcbafc847434bp-13, 0x1.3dc9a45cbeb6fp-14, -0x1.029b6dd8617c1p-16};
    static constexpr int tanh_terms = 11;
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

// e^f or 2^f, scaled by 2^n. z holds the integer n in its low bits, above an offset that keeps the product normal.
template <class K, class S> DS_INLINE vec_of<S> scaled(vec_of<S> p, vec_of<S> n, vec_of<S> z, vec_of<S> f) {
#if DS_BYTES == 64
    (void)z, (void)f;
    return times_power_of_two(p, n);
#else
    using V = vec_of<S>;
    (void)n;
    // The sum f * 0 changes nothing but a NaN, whose payload the integer addition may have carried into the exponent.
    return fused((V)((uivec_of<S>)p + ((uivec_of<S>)z << K::mantissa)), V{} + K::restore, f * 0);
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
    for (int j = 0; j < count; ++j) x[j] = scaled<K, S>(p[j], n[j], z[j], f[j]);
}
template <class S> DS_INLINE simd<S> exp(simd<S> x) { exp_each<1>(&x); return x; }

template <class C> constexpr C LOWEST_EXP2 = sizeof(C) == 4 ? C(-151) : C(-1076);      // 2^that rounds to 0

// exp2(x · factor) of `count` registers in lockstep. The product is rounded only after its nearest integer was taken out, and no constant has
// to be taken out in two parts, which saves two steps against exp.
// lowest: LOWEST_EXP2 / factor.
template <int count, class S> DS_INLINE void exp2_each(simd<S>* x, vec_of<S> factor, vec_of<S> lowest) {
    using K = exp_constants<typename simd<S>::C>;
    using V = vec_of<S>;
    const V shift = V{} + (K::round + (DS_BYTES == 64 ? 0 : K::offset));
    V f[count], z[count], n[count], p[count];
    for (int j = 0; j < count; ++j) f[j] = max_keep(lowest, x[j].v);
    for (int j = 0; j < count; ++j) z[j] = fused(f[j], factor, shift);
    for (int j = 0; j < count; ++j) n[j] = z[j] - shift;
    for (int j = 0; j < count; ++j) f[j] = fused(f[j], factor, -n[j]);
    for (int j = 0; j < count; ++j) p[j] = V{} + K::p2[K::terms2 - 1];
    for (int i = K::terms2 - 2; i >= 0; --i)
        for (int j = 0; j < count; ++j) p[j] = fused(p[j], f[j], V{} + K::p2[i]);
    for (int j = 0; j < count; ++j) p[j] = fused(p[j], f[j], V{} + 1);
    for (int j = 0; j < count; ++j) x[j] = scaled<K, S>(p[j], n[j], z[j], f[j]);
}

// Near 0 by a polynomial, which keeps the relative accuracy; elsewhere 1 - 2 / (e^2|x| + 1).
template <class S> DS_INLINE simd<S> tanh(simd<S> x) {
    using C = typename simd<S>::C;
    using K = exp_constants<C>;
    using V = vec_of<S>;
    const V a = vabs(x).v, z = a * a;
    V q = V{} + K::t[K::tanh_terms - 1];
    for (int i = K::tanh_terms - 2; i >= 0; --i) q = fused(q, z, V{} + K::t[i]);
    const V near = fused(a * z, q, a);
    // e^-40 is nothing beside 1; the order keeps a NaN.
    const V e = exp(simd<S>(-2 * (a > V{} + 20 ? V{} + 20 : a))).v;
    const V far = (1 - e) / (1 + e);
    const V y = a < V{} + C(0.625) ? near : far;
    constexpr auto sign = std::numeric_limits<typename simd<S>::I>::min();
    return (V)((ivec_of<S>)y | ((ivec_of<S>)x.v & (ivec_of<S>{} + sign)));
}

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
