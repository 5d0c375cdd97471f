// beyond.cuh - small logarithms, of sums beyond float64.
#pragma once
#include "pair.cuh"

namespace ds {

// Two units in the last place of a small logarithm are less than what exponentials round. Where |m| and the logarithm are both below 1 a row
// is summed once more, beyond float64: the excess over 1 of the whole sum, log of which is wanted.
DS_DEVICE bool wants_more(f64 m, f64 lse) { return -1.0 < m && m < 1.0 && -1.0 < lse && lse < 1.0 && lse != m; }

DS_DEVICE twofold plus_exponential(twofold sum, f64 x) {
    if (x < -40.0) return sum + exponential(x);        // its own rounding is no matter next to 1, nor where it is all there is
    const exponential_parts e = split_exponential(x);
    sum = (sum + e.power) + e.power * e.high;
    sum.low += e.power * e.low;
    return sum;
}

// log of the sum of exponentials: `s` counts the elements that equal m and sums exp(x) of the others.
DS_DEVICE f64 log_beyond_float64(sums<f64> s, f64 m) {
    // one maximal element is taken off: exp(m) - 1 instead of exp(m)
    const exponential_parts e = split_exponential(m);
    twofold largest = {e.power - 1.0, 0.0};
    largest = largest + e.power * e.high;
    largest.low += e.power * e.low;
    const twofold excess = (s.total + largest) + scaled(largest + 1.0, f64(s.count) - 1.0);
    const f64 sum = excess.high + excess.low;
    return log1p_of(sum) + ((excess.high - sum) + excess.low) / (1.0 + sum);
}

}  // namespace ds
