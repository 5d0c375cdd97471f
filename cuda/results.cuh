// results.cuh - what the elements of a row become, and where that is written.
#pragma once
#include "rows.cuh"

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

    explicit DS_DEVICE scaled_exponential(f64 factor)
        : inverse(factor), rounded_inverse(rounded<compute>::of(factor)), is_ordinary(!(factor < 0x1p-100) && !(factor > 0x1p100)) {}
    DS_DEVICE compute operator()(compute x, compute m) const {
        const compute t = sub(x, m);
        if (t > compute(40) || !is_ordinary) return rounded<compute>::of(exponential_above(f64(t)) * inverse);
        return mul(ROUGH ? rough()(t) : precise()(t), rounded_inverse);
    }
};

DS_DEVICE void write_direct(const y_vector& v, const row& from, char* y, i64 first, bool aligned) {
    y_type* const to = (y_type*)y + first;
    if (aligned && first + DS_CHUNK <= from.length) {
        store_aligned(to, v);
        return;
    }
    if (!aligned && sizeof(y_vector) == 16) {
        union { piece whole; y_vector v; } u;
        u.v = v;
        store_across<y_type>((char*)to, u.whole, (char*)((y_type*)y + from.length), is_first_of_lanes(), is_last_of_lanes());
        return;
    }
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j)
        if (first + j < from.length) store_aligned(to + j, v.at[j]);
}

DS_DEVICE void write_any(const compute (&result)[DS_CHUNK], const row& from, char* y, const axes& inner, i64 segment, int slot) {
    const passage through = passage_of_team();
    const i64 start = segment * SEGMENT + i64(slot) * passage::LENGTH;
    team::meet();
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j) through.value[team::thread() * DS_CHUNK + j] = result[j];
    team::meet();
#pragma unroll 1
    for (int k = team::thread(); k < passage::LENGTH; k += DS_GROUP)
        if (start + k < from.length) store(y + offset(inner, Y, start + k), rounded<y_type>::of(through.value[k]));
}

template <class Result> DS_DEVICE void write(const share& mine, const row& from, char* y, const axes& inner, i64 segment, compute m, Result result) {
    const compute hidden = compute(DS_LOG ? -infinity() : 0.0);
    const bool aligned = DS_DIRECT && are_aligned<y_vector>(y);
#pragma unroll
    for (int slot = 0; slot < DS_SLOTS; ++slot) {
        compute results[DS_CHUNK];
        y_vector v;
#pragma unroll
        for (int j = 0; j < DS_CHUNK; ++j) {
            const int i = slot * DS_CHUNK + j;
            results[j] = DS_DIRECT || mine.visible >> i & 1 ? result(mine.value[i], m) : hidden;
            v.at[j] = rounded<y_type>::of(results[j]);
        }
        if (DS_DIRECT) write_direct(v, from, y, first_of(segment, slot), aligned);
        else write_any(results, from, y, inner, segment, slot);
    }
}

}  // namespace ds
