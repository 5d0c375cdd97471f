// philox.cuh - the noise of sample, as dualsoft/philox.py defines it to the bit: Philox4x32-10 by element, uniforms, Gumbel, and what counts as mass.
//
// Plain products and sums: nothing is fused where it is not written, so every card rounds as the CPU does.
#pragma once
#include "ptx.cuh"

namespace ds {

struct four_words { u32 at[4]; };

DS_DEVICE four_words philox(four_words c, u32 k0, u32 k1) {
#pragma unroll
    for (int i = 0; i < 10; ++i) {
        const u64 first = u64(c.at[0]) * 0xD2511F53u, second = u64(c.at[2]) * 0xCD9E8D57u;
        c = {{u32(second >> 32) ^ c.at[1] ^ k0, u32(second), u32(first >> 32) ^ c.at[3] ^ k1, u32(first)}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// The noise of one row.
struct row_noise {
    u32 k0, k1, c2, c3;
    // Of the elements 4·block .. 4·block + 3.
    DS_DEVICE four_words high_words(i64 block) const { return philox({{u32(block), u32(block >> 32), c2, c3}}, k0, k1); }
    DS_DEVICE four_words low_words(i64 block) const { return philox({{u32(block), u32(block >> 32) | 0x80000000u, c2, c3}}, k0, k1); }
};
DS_DEVICE u32 word_of(const four_words& words, int j) {
    return j == 0 ? words.at[0] : j == 1 ? words.at[1] : j == 2 ? words.at[2] : words.at[3];
}

// log(u) + c / u of normal u > 0 and small c
DS_DEVICE f64 plain_log(f64 u, f64 c) {
    const i64 k = (__double_as_longlong(u) - 0x3fe6a09e00000000) >> 52;
    const f64 f = __longlong_as_double(__double_as_longlong(u) - (k << 52)) - 1.0;
    const f64 s = f / (f + 2.0), z = s * s, half = f * f * 0.5, exponent = f64(i32(k));
    f64 p = 0x1.2b5f68a50d903p-3;
    p = p * z + 0x1.39fdcceb4bb45p-3;
    p = p * z + 0x1.7462b91b8df65p-3;
    p = p * z + 0x1.c71c62d5e53e0p-3;
    p = p * z + 0x1.2492492dfd86cp-2;
    p = p * z + 0x1.9999999995273p-2;
    p = p * z + 0x1.5555555555558p-1;
    const f64 low = s * (p * z + half) + (exponent * 0x1.3de6af278ece6p-42 + c / u);
    return exponent * 0x1.62e42fefa3p-1 + (f - (half - low));
}
// exp(s) of s <= 0; 0 below -64
DS_DEVICE f64 plain_exp(f64 s) {
    constexpr f64 round = 0x1.8p52;
    const f64 x = larger(s, -64.0), z = x * 0x1.71547652b82fep+0 + round, n = z - round;
    const f64 f = (x - n * 0x1.62e42fefa3p-1) - n * 0x1.3de6af278ece6p-42;
    f64 q = 0x1.ad1f7252e8036p-26;
    q = q * f + 0x1.289f95b6d3391p-22;
    q = q * f + 0x1.71df55c2f8663p-19;
    q = q * f + 0x1.a019ab22fbfc9p-16;
    q = q * f + 0x1.a01a011bddcd4p-13;
    q = q * f + 0x1.6c16c17cc6363p-10;
    q = q * f + 0x1.1111111128967p-7;
    q = q * f + 0x1.55555555531fep-5;
    q = q * f + 0x1.5555555555501p-3;
    q = q * f + 0x1p-1;
    const f64 y = (f * f * q + f) + 1.0;
    return s < -64.0 ? 0.0 : __longlong_as_double(__double_as_longlong(y) + (__double_as_longlong(z) << 52));
}
// -log(-log1p(-v)) with v from 64 bits
DS_DEVICE f64 gumbel(u32 high, u32 low) {
    const f64 v = smaller((f64(high) * 0x1p32 + (f64(low) + 0.5)) * 0x1p-64, 1.0 - 0x1p-53), y = 1.0 - v;
    return -plain_log(-plain_log(y, (1.0 - y) - v), 0.0);
}

// Mass in whole numbers: those of n elements sum to less than 2^63.
DS_DEVICE f64 unit_of_mass(i64 n) { return __longlong_as_double(i64(1023 + 62 - (64 - __clzll(n))) << 52); }
DS_DEVICE u64 mass_of(f64 s, f64 unit) {
    const f64 e = plain_exp(s) * unit;
    return u64(e < 0x1p52 ? (e + 0x1p52) - 0x1p52 : e);
}
// What the mass has to reach: at least 1, at most all of it.
DS_DEVICE u64 mass_to_reach(f64 share, u64 total) {
    const f64 wanted = share * f64(total);
    u64 target = u64(wanted);
    if (f64(target) < wanted) ++target;
    target = target < 1 ? 1 : target;
    return target < total ? target : total;
}

}  // namespace ds
