// elementary.cuh - exp and log1p, at most 1 ulp off (in float32, subnormal results included), and exp by the special-function unit.
//
// exp: x = n ln2 + f with |f| <= ln2 / 2 (Cody and Waite: n ln2 subtracted in two parts, the first exact), e^f by a polynomial that is minimax
// for the relative error, times 2^n.
#pragma once
#include "ptx.cuh"

namespace ds {

DS_DEVICE f64 infinity() { return __longlong_as_double(0x7ff0000000000000); }
DS_DEVICE f64 not_a_number() { return __longlong_as_double(0x7ff8000000000000); }

DS_DEVICE f64 absolute(f64 a) { return a < 0.0 ? -a : a; }

// a + b x + c x^2 + ...
template <class C> DS_DEVICE C horner(C, C a) { return a; }
template <class C, class... Rest> DS_DEVICE C horner(C x, C a, Rest... rest) { return fused(horner(x, rest...), x, a); }

// (e^f - 1 - f) / f^2
DS_DEVICE f32 exponential_tail(f32 f) {
    return horner(f, 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.123a20p-7f, 0x1.6a23d0p-10f);
}
DS_DEVICE f64 exponential_tail(f64 f) {
    return horner(f, 0x1p-1, 0x1.5555555555501p-3, 0x1.55555555531fep-5, 0x1.1111111128967p-7, 0x1.6c16c17cc6363p-10,
                  0x1.a01a011bddcd4p-13, 0x1.a019ab22fbfc9p-16, 0x1.71df55c2f8663p-19, 0x1.289f95b6d3391p-22, 0x1.ad1f7252e8036p-26);
}

// e^t = p 2^n for t that is no NaN; n is also in the low bits of z.
template <class C> struct power { C p, z, n; };
DS_DEVICE power<f32> power_of(f32 t) {
    constexpr f32 round = 0x1.8p23f;            // adding it leaves the nearest integer in the low bits
    const f32 z = fused(t, 0x1.715476p+0f, round);
    const f32 n = sub(z, round);
    const f32 f = fused(n, -0x1.7f7d1cp-20f, fused(n, -0x1.62e4p-1f, t));
    return {fused(fused(exponential_tail(f), f, 1.0f), f, 1.0f), z, n};
}
DS_DEVICE power<f64> power_of(f64 t) {
    constexpr f64 round = 0x1.8p52;
    const f64 z = fused(t, 0x1.71547652b82fep+0, round);
    const f64 n = z - round;
    const f64 f = fused(n, -0x1.3de6af278ece6p-42, fused(n, -0x1.62e42fefa3p-1, t));
    return {fused(fused(exponential_tail(f), f, 1.0), f, 1.0), z, n};
}

// exp of x <= 40. 2^n is applied in two factors: the first keeps the product normal, the second rounds it once.
DS_DEVICE f32 exponential(f32 x) {
    const power<f32> e = power_of(larger(x, -110.0f));      // e^-110 rounds to 0
    const f32 near = __uint_as_float((__float_as_uint(e.z) << 23) + (127u + 64u << 23));
    const f32 result = mul(mul(e.p, near), 0x1p-64f);
    return is_nan(x) ? x : result;
}
DS_DEVICE f64 exponential(f64 x) {
    const power<f64> e = power_of(larger(x, -760.0));
    const f64 near = __longlong_as_double((__double_as_longlong(e.z) << 52) + (i64(1023 + 512) << 52));
    const f64 result = e.p * near * 0x1p-512;
    return is_nan(x) ? x : result;
}

// exp of any x: +inf where it overflows. 2^n is applied in two halves.
DS_DEVICE f32 exponential_above(f32 x) {
    const power<f32> e = power_of(larger(x < 89.0f ? x : 89.0f, -110.0f));
    const i32 n = i32(e.n), half = n / 2;
    const f32 first = __uint_as_float(u32(half + 127) << 23), second = __uint_as_float(u32(n - half + 127) << 23);
    return is_nan(x) ? x : mul(mul(e.p, first), second);
}
// Not inlined: it is for the rare element that lies far above what its row is normalised by.
static __device__ __noinline__ f64 exponential_above(f64 x) {
    const power<f64> e = power_of(larger(x < 710.0 ? x : 710.0, -760.0));
    const i64 n = i64(e.n), half = n / 2;
    const f64 first = __longlong_as_double((half + 1023) << 52), second = __longlong_as_double((n - half + 1023) << 52);
    return is_nan(x) ? x : e.p * first * second;
}

// exp within 3 + 1.5 |x| units for results of 2^-126 and more, 0 below: enough where the result is rounded to a half type.
DS_DEVICE f32 exponential_rough(f32 x) { return exp2_approximate(mul(x, 0x1.715476p+0f)); }

// e^x = power (1 + high + low) for |x| <= 40, with power = 2^n exact and high + low = e^f - 1 to some 55 bits.
struct exponential_parts { f64 power, high, low; };
DS_DEVICE exponential_parts split_exponential(f64 x) {
    constexpr f64 round = 0x1.8p52;
    const f64 z = x * 0x1.71547652b82fep+0 + round, n = z - round;
    const f64 top = x - n * 0x1.62e42fefa3p-1, bottom = n * 0x1.3de6af278ece6p-42;
    const f64 f = top - bottom, f_low = (top - f) - bottom;
    const f64 square = f * f * exponential_tail(f), high = f + square;
    const f64 low = ((f - high) + square) + (f_low + f_low * high);
    return {__longlong_as_double((__double_as_longlong(z) << 52) + (i64(1023) << 52)), high, low};
}

// log(u) + c / u for normal u and small c. u = 2^k (1 + f), and log(1 + f) = f - (f^2/2 - s (f^2/2 + R)) with s = f / (2 + f), R = s^2 P(s^2).
DS_DEVICE f64 log_sum(f64 u, f64 c) {
    const i64 k = (__double_as_longlong(u) - 0x3fe6a09e00000000) >> 52;
    const f64 f = __longlong_as_double(__double_as_longlong(u) - (k << 52)) - 1.0;
    const f64 exponent = f64(i32(k));
    const f64 s = f / (f + 2.0), z = s * s, half = f * f * 0.5;
    const f64 p = horner(z, 0x1.5555555555558p-1, 0x1.9999999995273p-2, 0x1.2492492dfd86cp-2, 0x1.c71c62d5e53e0p-3, 0x1.7462b91b8df65p-3,
                         0x1.39fdcceb4bb45p-3, 0x1.2b5f68a50d903p-3);
    const f64 low = fused(s, fused(p, z, half), fused(exponent, 0x1.3de6af278ece6p-42, c / u));
    return fused(exponent, 0x1.62e42fefa3p-1, f - (half - low));
}

// x >= -1; -inf at -1
DS_DEVICE f64 log1p_of(f64 x) {
    const f64 u = x + 1.0, t = u - 1.0;                 // u rounded, and what that lost
    const f64 result = log_sum(u, (1.0 - (u - t)) + (x - t));
    if (x == -1.0) return -infinity();
    return x < infinity() ? result : x;                   // NaN and +inf are their own
}

}  // namespace ds
