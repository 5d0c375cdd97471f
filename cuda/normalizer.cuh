// normalizer.cuh - what elements become, given the maximum and the sum of their row.
#pragma once
#include "arithmetic.cuh"
#include "convert.cuh"

namespace ds {

// Each visible element becomes exp(x - m) / d, or x - m - log d.
struct probability {
    compute inverse;
    DS_DEVICE compute operator()(compute x, compute m) const {
        const compute t = sub(x, m);
        return mul(ROUGH ? rough()(t) : precise()(t), inverse);
    }
};
struct logarithm {
    compute log_of_d;
    DS_DEVICE compute operator()(compute x, compute m) const { return sub(sub(x, m), log_of_d); }
};
// The exponentials are there already.
struct quotient {
    compute inverse;
    DS_DEVICE compute operator()(compute e, compute) const { return mul(e, inverse); }
};

// 1 / d; NaN for a row with +inf.
DS_DEVICE compute inverse_of(compute m, f64 d) { return reciprocal(rounded<compute>::of(m == compute(infinity()) ? not_a_number() : d)); }

// What exp(x - m) / d is computed with: `shift`, m as the arithmetic has it, and a factor or a summand that makes good what that rounds.
struct normalizer {
    compute shift;
    f64 inverse;            // exp(shift - m) / d
    f64 log_of_d;           // log d + m - shift
};

DS_DEVICE normalizer normalizer_of(f64 m, f64 rest) {
    constexpr f64 LARGEST = sizeof(compute) == 4 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;
    const bool is_finite = -infinity() < m && m < infinity();
    const f64 near = m > LARGEST ? LARGEST : m < -LARGEST ? -LARGEST : m;
    const compute shift = is_finite ? rounded<compute>::of(near) : compute(m);
    const f64 lost = is_finite ? m - f64(shift) : 0.0;
    const f64 factor = lost == 0.0 ? 1.0 : exponential_above(-lost);
    return {shift, is_finite ? factor / (1.0 + rest) : not_a_number(), log1p_of(rest) + lost};
}

struct scaled_exponential {
    f64 inverse;
    compute rounded_inverse;
    bool is_ordinary;       // whether `inverse` is far from what overflows or underflows in the arithmetic

    scaled_exponential() = default;
    explicit DS_DEVICE scaled_exponential(f64 factor)
        : inverse(factor), rounded_inverse(rounded<compute>::of(factor)), is_ordinary(!(factor < 0x1p-100) && !(factor > 0x1p100)) {}
    DS_DEVICE compute operator()(compute x, compute m) const {
        const compute t = sub(x, m);
        if (t > compute(40) || !is_ordinary) return rounded<compute>::of(exponential_above(f64(t)) * inverse);
        return mul(ROUGH ? rough()(t) : precise()(t), rounded_inverse);
    }
};

}  // namespace ds
