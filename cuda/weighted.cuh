// weighted.cuh - sums of exponentials with weights of either sign: m, the largest element whose weight is not 0, and sum, that of w exp(x - m).
//
// The sum carries its errors: what of it cancels, cancels exactly, and next to 1 it keeps a rest far below float64's unit.
#pragma once
#include "elementary.cuh"
#include "group.cuh"
#include "layout.cuh"
#include "convert.cuh"

namespace ds {

enum infinite_weights : u32 { POSITIVE = 1, NEGATIVE = 2 };

struct alignas(16) weighted_sum {
    twofold sum;
    f64 m;
    u32 infinite;               // signs of the weights of elements that are +inf: infinity minus infinity is NaN
};

DS_DEVICE weighted_sum no_weights() { return {{0.0, 0.0}, -infinity(), 0}; }

// Weights may be infinite, and add up to more than float64 holds: infinity has no error to carry, which would be NaN.
DS_DEVICE twofold without_error_of_infinity(twofold a, f64 plain) { return plain - plain == 0.0 ? a : twofold{plain, 0.0}; }
DS_DEVICE twofold weighted_plus(twofold a, twofold b) { return without_error_of_infinity(a + b, a.high + b.high); }
DS_DEVICE twofold weighted_times(twofold a, f64 factor) {
    const f64 high = a.high * factor;
    return without_error_of_infinity({high, fused(a.high, factor, -high) + a.low * factor}, high);
}

// The sum of both parts; swapping them changes no bit.
DS_DEVICE weighted_sum operator+(weighted_sum a, weighted_sum b) {
    // Sums of one m, which may be infinite, are added as they are.
    const f64 factor = a.m == b.m ? 1.0 : exponential(a.m > b.m ? b.m - a.m : a.m - b.m);
    const twofold sum = weighted_plus(weighted_times(a.sum, a.m < b.m ? factor : 1.0), weighted_times(b.sum, b.m < a.m ? factor : 1.0));
    return {sum, larger(a.m, b.m), a.infinite | b.infinite};
}
DS_DEVICE weighted_sum from_lane(weighted_sum value, int distance) {
    return {from_lane(value.sum, distance), from_lane(value.m, distance), u32(from_lane(i32(value.infinite), distance))};
}

// Adds a few elements, hidden ones -inf with the weight 0.
template <int count> DS_DEVICE void add_elements(weighted_sum& s, const f64 (&x)[count], const f64 (&weight)[count]) {
    f64 m = s.m;
#pragma unroll
    for (int i = 0; i < count; ++i) m = larger(m, x[i]);
    if (m > s.m) {
        s.sum = weighted_times(s.sum, exponential(s.m - m));
        s.m = m;
    }
    const f64 shift = m == -infinity() ? 0.0 : m;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        // Of the largest element, which may be infinite, the exponential is 1.
        const f64 term = x[i] == shift ? weight[i] : weight[i] * exponential(x[i] - shift);
        s.sum = weighted_plus(s.sum, {term, 0.0});
        if (x[i] == infinity()) s.infinite |= weight[i] > 0.0 ? POSITIVE : weight[i] < 0.0 ? NEGATIVE : 0;
    }
}

struct logarithm_and_sign { f64 log, sign; };

DS_DEVICE logarithm_and_sign log_of(weighted_sum s) {
    const f64 total = s.sum.high, size = total < 0.0 ? -total : total, sign = total < 0.0 ? -1.0 : 1.0;
    if (is_nan(total) || s.infinite == (POSITIVE | NEGATIVE)) return {not_a_number(), not_a_number()};
    if (s.m == infinity()) return {infinity(), s.infinite == POSITIVE ? 1.0 : -1.0};
    if (total == 0.0) return {-infinity(), 0.0};
    if (size == infinity()) return {infinity(), sign};
    const bool is_tiny = size < 0x1p-960;           // perhaps subnormal
    const f64 factor = is_tiny ? sign * 0x1p120 : sign;
    const f64 log = log_sum(total * factor, s.sum.low * factor);
    return {s.m + (is_tiny ? log - 120.0 * 0x1.62e42fefa39efp-1 : log), sign};
}

// Without `sign`, the logarithm of a negative sum is NaN.
template <class Y> DS_DEVICE void write_logarithm(weighted_sum s, char* y, char* sign) {
    const logarithm_and_sign found = log_of(s);
    if (sign) store(sign, rounded<Y>::of(found.sign));
    store(y, rounded<Y>::of(sign || !(found.sign < 0.0) ? found.log : not_a_number()));
}

// A part of a row in scratch memory.
constexpr int PART_BYTES = 32;
DS_DEVICE void store_part(char* to, weighted_sum s) {
    store_aligned(to, s.sum);
    store_aligned(to + 16, twofold{s.m, f64(s.infinite)});
}
DS_DEVICE weighted_sum load_part(const char* from) {
    const twofold rest = load_aligned<twofold>(from + 16);
    return {load_aligned<twofold>(from), rest.high, u32(rest.low)};
}

}  // namespace ds
