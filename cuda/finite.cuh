// finite.cuh - sums of terms that may be infinite: such a sum has no error to carry, which would be NaN.
#pragma once
#include "arithmetic.cuh"

namespace ds {

struct finite_accumulator {
    twofold sum = {0.0, 0.0};
    DS_DEVICE void add_term(int, f64 term) { sum = finite_plus(sum, {term, 0.0}); }
    DS_DEVICE twofold total() const { return sum; }
};
DS_DEVICE void add_to(f64& sum, f64 more) { sum += more; }
DS_DEVICE void add_to(twofold& sum, f64 more) { sum = finite_plus(sum, {more, 0.0}); }
DS_DEVICE void add_to(twofold& sum, twofold more) { sum = finite_plus(sum, more); }
struct plus_finite {
    DS_DEVICE f64 operator()(f64 a, f64 b) const { return a + b; }
    DS_DEVICE twofold operator()(twofold a, twofold b) const { return finite_plus(a, b); }
};
typedef choose<sizeof(compute) == 4, accumulator, finite_accumulator>::type any_accumulator;

}  // namespace ds
