// twofold.cuh - sums wider than the terms: float32 terms are added up in float64, float64 terms in a pair that carries its errors.
#pragma once
#include "ptx.cuh"

namespace ds {

// high + low, |low| at most half a unit of high.
struct alignas(16) twofold { f64 high, low; };

// What a + b rounded loses (Knuth).
DS_DEVICE f64 lost_in_sum(f64 a, f64 b, f64 sum) {
    const f64 t = sum - a;
    return (a - (sum - t)) + (b - t);
}
DS_DEVICE twofold operator+(twofold a, f64 b) {
    const f64 sum = a.high + b, low = a.low + lost_in_sum(a.high, b, sum), high = sum + low;
    return {high, (sum - high) + low};
}
// Symmetric by bits: each step is.
DS_DEVICE twofold operator+(twofold a, twofold b) {
    const f64 sum = a.high + b.high, low = lost_in_sum(a.high, b.high, sum) + (a.low + b.low), high = sum + low;
    return {high, (sum - high) + low};
}

// What is not finite has no error to carry, which would be NaN.
DS_DEVICE twofold finite_plus(twofold a, twofold b) {
    const f64 plain = a.high + b.high;
    return plain - plain == 0.0 ? a + b : twofold{plain, 0.0};
}

// The sum's type for terms of C.
template <class C> using wide_of = typename choose<sizeof(C) == 4, f64, twofold>::type;

DS_DEVICE f64 value_of(f64 a) { return a; }
DS_DEVICE f64 value_of(twofold a) { return a.high + a.low; }

}  // namespace ds
