// arithmetic.cuh - the arithmetic between types of input and output: exponentials, what they subtract, how their sums are added up.
//
// Macros of a variant: DS_X, DS_Y   types of input and output
#pragma once
#include "pair.cuh"

namespace ds {

typedef DS_X x_type;
typedef DS_Y y_type;
typedef compute_of<x_type, y_type> compute;
constexpr bool ROUGH = IS_HALF<x_type> && IS_HALF<y_type>;

// Adds up one thread's terms: float32 in four strands, float64 with its errors.
struct accumulator_f32 {
    f32 strand[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    DS_DEVICE void add_term(int i, f32 term) { strand[i % 4] = add(strand[i % 4], term); }
    DS_DEVICE f64 total() const { return widen(add(add(strand[0], strand[1]), add(strand[2], strand[3]))); }
};
struct accumulator_f64 {
    twofold sum = {0.0, 0.0};
    DS_DEVICE void add_term(int, f64 term) { sum = sum + term; }
    DS_DEVICE twofold total() const { return sum; }
};
typedef choose<sizeof(compute) == 4, accumulator_f32, accumulator_f64>::type accumulator;

struct precise { template <class C> DS_DEVICE C operator()(C x) const { return exponential(x); } };
struct rough {
    DS_DEVICE f32 operator()(f32 x) const { return exponential_rough(x); }
    DS_DEVICE f64 operator()(f64 x) const { return exponential(x); }
};

// What exp(x - m) subtracts: m, or 0 where all is -inf.
DS_DEVICE compute shift_by_largest(compute m) { return m == compute(-infinity()) ? compute(0) : m; }
DS_DEVICE compute shift_for_logarithm(compute m) {
    return -ZERO_SHIFT < m && m < ZERO_SHIFT ? compute(0) : shift_by_largest(m);
}

// Where rough exponentials leave so little that those below 2^-126, which they take for 0, may show.
constexpr f64 LITTLE = 0x1p-60;

}  // namespace ds
