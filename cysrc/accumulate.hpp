// accumulate.hpp - sums whose error does not grow with the number of terms.
//
// A row's terms are added in one fixed order at every level, in every layout and by any number of threads: term i belongs
// to lane i % width; four consecutive registers of a lane are added as (0 + 1) + (2 + 3), four such groups one after the
// other make a block, and blocks enter wide<storage_t>: float64 lanes for float32 arithmetic, sum and error (Knuth's
// two-sum) for float64. At the end the lanes are folded, upper half onto lower half. The same class serves a row (lanes are
// consecutive terms) and columns side by side (one wide per lane of terms, its own lanes being columns).
#pragma once
#include "elementary.hpp"

namespace {

constexpr ptrdiff_t GROUP = 4;                 // registers added before they enter the block's sum
constexpr ptrdiff_t BLOCK = 4 * GROUP;         // registers added before they enter a wide sum

template <class S> struct wide {
    typedef float half __attribute__((vector_size(DS_BYTES / 2)));
    vec_f64 low, high;
    DS_INLINE wide() : low(vec_f64{}), high(vec_f64{}) {}
    DS_INLINE void add(simd<S> x) {
#if DS_BYTES == 64
        low += (vec_f64)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x.v));
        high += (vec_f64)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x.v, 1));
#else
        half h[2];
        std::memcpy(h, &x.v, sizeof h);
        low += __builtin_convertvector(h[0], vec_f64);
        high += __builtin_convertvector(h[1], vec_f64);
#endif
    }
    DS_INLINE wide(simd<S> x) : wide() { add(x); }
    DS_INLINE void join(const wide& o) { low += o.low; high += o.high; }
    DS_INLINE simd<double> lanes() const { return low + high; }
    DS_INLINE double total() const { return hsum(lanes()); }
    DS_INLINE void store(double* p) const {
        std::memcpy(p, &low, sizeof low);
        std::memcpy(p + simd<double>::width, &high, sizeof high);
    }
};

template <> struct wide<double> {
    vec_f64 sum, error;
    DS_INLINE wide() : sum(vec_f64{}), error(vec_f64{}) {}
    DS_INLINE void add(simd<double> x) {
        const vec_f64 s = sum + x.v, b = s - sum;
        error += (sum - (s - b)) + (x.v - b);
        sum = s;
    }
    DS_INLINE wide(simd<double> x) : sum(x.v), error(vec_f64{}) {}
    DS_INLINE void join(const wide& o) { sum += o.sum; error += o.error; }
    DS_INLINE simd<double> lanes() const { return sum + error; }
    // An infinite weight makes the sum infinite and its error NaN: the sum alone is right then.
    DS_INLINE double total() const {
        const double s = hsum(simd<double>(sum));
        return s - s == 0 ? s + hsum(simd<double>(error)) : s;
    }
    DS_INLINE void store(double* p) const { const vec_f64 v = sum + error; std::memcpy(p, &v, sizeof v); }
};

// The sum of exp(x) - 1 over one register of maxima less the rest of it, and of exp(x) over others, beyond float64: for logarithms near 0.
struct excess_sum {
    wide<double> sum;
    DS_INLINE void add_exp(simd<double> x) {
        // below -40 a term's own rounding is no matter next to 1, nor where it is all there is
        const exp_parts e = split_exp(max_keep(vec_f64{} - 40.0, x.v));
        const simd<double> far = simd<double>(-40.0), zero = simd<double>(0.0);
        sum.add(pick_less(x, far, exp(x), simd<double>(e.power)));
        sum.add(pick_less(x, far, zero, simd<double>(e.power * e.high)));
        sum.error += pick_less(x, far, zero, simd<double>(e.power * e.low)).v;
    }
    // exp(m) - 1, once
    DS_INLINE void add_largest(double m) {
        const exp_parts e = split_exp(vec_f64{} + m);
        vec_f64 rise = {e.power[0] - 1}, high = {e.power[0] * e.high[0]}, low = {e.power[0] * e.low[0]};
        sum.add(simd<double>(rise));
        sum.add(simd<double>(high));
        sum.error += low;
    }
    // log(1 + sum)
    DS_INLINE double log() const {
        double high = 0, low = 0;
        for (int i = 0; i < simd<double>::width; ++i) {
            const double s = high + sum.sum[i], b = s - high;
            low += ((high - (s - b)) + (sum.sum[i] - b)) + sum.error[i];
            high = s;
        }
        const double s = high + low;
        return log1p(simd<double>(s)).v[0] + ((high - s) + low) / (1 + s);
    }
};

}  // namespace
