// attention_scores.cuh - what happens to a score between the two products: softcap, bias, alibi, mask, block mask.
//
// Unseen is -inf, whatever made it so.
#pragma once
#include "attention_task.cuh"
#include "numbers.cuh"

namespace ds {

template <class C> constexpr C LARGEST = C(0);
template <> constexpr f32 LARGEST<f32> = 0x1.fffffep127f;
template <> constexpr f64 LARGEST<f64> = 0x1.fffffffffffffp1023;

// tanh(a) = a + a z T(z) with z = a^2 for |a| <= 5/8, where it keeps the relative accuracy; elsewhere (1 - e^-2a) / (1 + e^-2a).
DS_DEVICE f32 tanh_near_0(f32 z) { return horner(z, -0x1.55552ap-2f, 0x1.110546p-3f, -0x1.b7fbf0p-5f, 0x1.507918p-6f, -0x1.6e41f0p-8f); }
DS_DEVICE f64 tanh_near_0(f64 z) {
    return horner(z, -0x1.55555555554c9p-2, 0x1.1111111107513p-3, -0x1.ba1ba1b29213bp-5, 0x1.664f470dc874dp-6, -0x1.226e0b55d931cp-7,
                  0x1.d6cdd45d205cep-9, -0x1.7d5b62b08c67dp-10, 0x1.33118ca7e2da2p-11, -0x1.dcbafc847434bp-13, 0x1.3dc9a45cbeb6fp-14,
                  -0x1.029b6dd8617c1p-16);
}
template <class C> DS_DEVICE C tanh_of(C x) {
    const C a = x < C(0) ? -x : x, z = mul(a, a);
    const C e = exponential(mul(C(-2), a > C(20) ? C(20) : a));     // e^-40 is nothing beside 1; the order keeps a NaN
    const C y = a < C(0.625) ? fused(mul(a, z), tanh_near_0(z), a) : mul(sub(C(1), e), reciprocal(add(C(1), e)));
    return x < C(0) ? -y : y;
}
// tanh without branches, and its slope: 1 / (1 + e) for e < 0.29 by two steps of Newton from a line. That of infinities is NaN: they may be sums that
// float32 does not hold.
constexpr f64 LOG2_E = 0x1.71547652b82fep+0;
struct tanh_and_slope { f32 value, slope; };
DS_DEVICE tanh_and_slope tanh_by_exp2(f32 x) {
    const f32 a = x < 0.0f ? -x : x, z = mul(a, a);
    const f32 e = exp2_approximate(mul(a, f32(-2.0 * LOG2_E))), u = add(1.0f, e);
    f32 inverse = fused(e, -0.776f, 0.993f);
    inverse = mul(inverse, fused(-u, inverse, 2.0f));
    inverse = mul(inverse, fused(-u, inverse, 2.0f));
    const bool is_near = a < 0.625f;
    const f32 far = mul(sub(1.0f, e), inverse), near = fused(mul(a, z), tanh_near_0(z), a);
    const f32 y = fused(a, 0.0f, is_near ? near : far);
    return {x < 0.0f ? -y : y, is_near ? fused(-near, near, 1.0f) : mul(mul(4.0f, e), mul(inverse, inverse))};
}
template <class C> DS_DEVICE C capped(C s, f64 cap) {
    // the quotient and the product stay what C holds
    const bool is_ordinary = cap > 0x1p-100 && cap < 0x1p100;
    if (is_ordinary) return mul(tanh_of(mul(s, rounded<C>::of(1.0 / cap))), rounded<C>::of(cap));
    return rounded<C>::of(tanh_of(f64(s) / cap) * cap);
}

// s + b where finite numbers do not hide: their sum is at least the lowest finite number. -inf hides, whatever is beside it.
template <class C> DS_DEVICE C joined(C s, C b) {
    const C sum = add(s, b);
    if (s == C(-infinity()) || b == C(-infinity())) return C(-infinity());
    return sum < -LARGEST<C> && is_finite(s) && is_finite(b) ? -LARGEST<C> : sum;
}
// A float64 number as C, cut to what C holds.
template <class C> DS_DEVICE C cut(f64 x) { return rounded<C>::of(larger(-larger(-x, -f64(LARGEST<C>)), -f64(LARGEST<C>))); }
template <class C> DS_DEVICE C held(f64 x) { return is_finite(x) ? cut<C>(x) : rounded<C>::of(x); }

// A bias of a type that is known, or told at run time.
template <class T> constexpr int CODE_OF = CODE_F16;
template <> constexpr int CODE_OF<bf16> = CODE_BF16;
template <class T> DS_DEVICE f32 bias_at(const char* p, int) { return to_compute<f32>(load_aligned<T>(p)); }
struct any_dtype { u8 byte; };
template <> DS_DEVICE f32 bias_at<any_dtype>(const char* p, int code) { return held<f32>(number_at<f64>(p, code)); }

// What one row's scores meet.
struct row_options {
    const char *bias, *mask, *blocks;       // of the row, or null
    f64 slope;
    i64 position;                           // of the query among the keys
};
struct option_bases { const char *bias, *mask, *blocks; };
DS_DEVICE option_bases option_bases_of(const attention_task& t, const sequence& s) {
    return {s.base(t, AT_BIAS), s.base(t, AT_MASK), s.base(t, AT_BLOCKS)};
}
DS_DEVICE row_options options_of_row(const attention_task& t, const sequence& s, const option_bases& from, row_place at) {
    const placed& blocks = t.at[AT_BLOCKS];
    return {from.bias ? from.bias + offset_of_row(t.at[AT_BIAS], at) : nullptr, from.mask ? from.mask + offset_of_row(t.at[AT_MASK], at) : nullptr,
            from.blocks ? from.blocks + at.head * blocks.head + quotient_of(at.query, t.block_q) * blocks.row : nullptr,
            t.slopes ? load_aligned<f64>(t.slopes + (s.index * t.heads_k * t.group + at.head)) : 0.0, at.query + s.offset};
}

// Whether a row sees one of the blocks that keys j0 to j1 - 1 lie in.
DS_DEVICE bool is_any_block_seen(const attention_task& t, const row_options& row, i64 j0, i64 j1) {
    const i64 first = quotient_of(j0, t.block_k), blocks = quotient_of(j1 - 1, t.block_k) - first + 1;
    bool found = false;
    for (i64 k = 0; k < blocks && !found; ++k) found = load_aligned<u8>(row.blocks + (first + k) * t.at[AT_BLOCKS].item) != 0;
    return found;
}

template <class C> DS_DEVICE C with_alibi(C s, f64 slope, i64 distance) {
    const f64 penalty = -slope * f64(distance < 0 ? -distance : distance);
    if (is_finite(slope)) return joined(s, cut<C>(penalty));
    return s == C(-infinity()) || penalty == -infinity() ? C(-infinity()) : add(s, rounded<C>::of(penalty));
}

// The score of a key that the row sees as far as positions tell. It is in natural units from here on.
template <class C> DS_DEVICE C settled(const attention_task& t, const row_options& row, i64 j, C s) {
    if (row.mask && load_aligned<u8>(row.mask + j * t.at[AT_MASK].item) == 0) return C(-infinity());
    if (row.blocks && load_aligned<u8>(row.blocks + quotient_of(j, t.block_k) * t.at[AT_BLOCKS].item) == 0) return C(-infinity());
    s = mul(s, rounded<C>::of(t.unit));
    if (t.softcap != 0) s = capped(s, t.softcap);
    if (row.bias) {
        const char* const at = row.bias + j * t.at[AT_BIAS].item;
        s = joined(s, sizeof(C) == 4 && t.at[AT_BIAS].code != CODE_F32 ? held<C>(number_at<f64>(at, int(t.at[AT_BIAS].code)))
                                                                       : number_at<C>(at, int(t.at[AT_BIAS].code)));
    }
    return t.slopes ? with_alibi(s, row.slope, row.position - j) : s;
}

}  // namespace ds
