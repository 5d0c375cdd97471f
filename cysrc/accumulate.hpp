// accumulate.hpp - sums whose error does not grow with the number of terms.
//
// A row's terms are added in one fixed order at every level, in every layout and by any number of threads: term i belongs
// to lane i % width; four consecutive registers of a lane are added as (0 + 1) + (2 + 3), four such groups one after the
// other make a block (block_total), and blocks enter wide<storage_t>: float64 lanes for float32 arithmetic; for float64,
// which nothing wider is at hand for, every sum carries its rounding error along (Knuth's two-sum). At the end the lanes are
// folded, upper half onto lower half. The same class serves a row (lanes are
// consecutive terms) and columns side by side (one wide per lane of terms, its own lanes being columns).
#pragma once
#include "elementary.hpp"

namespace {

constexpr ptrdiff_t GROUP = 4;                 // registers added before they enter the block's sum
constexpr ptrdiff_t BLOCK = 4 * GROUP;         // registers added before they enter a wide sum

// The sum of a block's groups.
template <class S> struct block_total {
    simd<S> sum;
    DS_INLINE block_total() : sum(0.0) {}
    DS_INLINE block_total(const simd<S>* t) : sum((t[0] + t[1]) + (t[2] + t[3])) {}
    DS_INLINE void add(const simd<S>* t) { sum = sum + ((t[0] + t[1]) + (t[2] + t[3])); }
};
DS_INLINE vec_f64 two_sum(vec_f64 a, vec_f64 b, vec_f64& error) {
    const vec_f64 s = a + b, v = s - a;
    error += (a - (s - v)) + (b - v);
    return s;
}
template <> struct block_total<double> {
    vec_f64 sum, error;
    DS_INLINE block_total() : sum(vec_f64{}), error(vec_f64{}) {}
    DS_INLINE block_total(const simd<double>* t) : error(vec_f64{}) { sum = group(t); }
    DS_INLINE void add(const simd<double>* t) { sum = two_sum(sum, group(t), error); }
    DS_INLINE vec_f64 group(const simd<double>* t) {
        const vec_f64 a = two_sum(t[0].v, t[1].v, error), b = two_sum(t[2].v, t[3].v, error);
        return two_sum(a, b, error);
    }
};

template <class S> struct wide {
    typedef float half __attribute__((vector_size(DS_BYTES / 2)));
    vec_f64 low, high;
    DS_INLINE wide() : low(vec_f64{}), high(vec_f64{}) {}
    DS_INLINE explicit wide(simd<S> x) {
#if DS_BYTES == 64
        low = (vec_f64)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x.v));
        high = (vec_f64)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x.v, 1));
#else
        half h[2];
        std::memcpy(h, &x.v, sizeof h);
        low = __builtin_convertvector(h[0], vec_f64);
        high = __builtin_convertvector(h[1], vec_f64);
#endif
    }
    DS_INLINE explicit wide(const block_total<S>& b) : wide(b.sum) {}
    DS_INLINE void add(simd<S> x) { join(wide(x)); }
    DS_INLINE void add(const block_total<S>& b) { add(b.sum); }
    DS_INLINE void join(const wide& o) { low += o.low; high += o.high; }
    DS_INLINE double total() const { return hsum(simd<double>(low + high)); }
    // `count` of the sums of neighbouring rows, folded together as far as they go, and the totals of `width` rows from theirs.
    template <int count> struct folded {
        simd<double> lanes;
        DS_INLINE folded() {}
        DS_INLINE explicit folded(const wide* sums) {
            simd<double> each[count];
            for (int i = 0; i < count; ++i) each[i] = sums[i].low + sums[i].high;
            lanes = sum_some_rows<count>(each);
        }
    };
    template <int count> DS_INLINE static void totals(const folded<count>* sums, double* p) {
        constexpr int w64 = simd<double>::width;
        for (int j = 0; j < simd<S>::width; j += w64) {
            simd<double> left[w64 / count];
            for (int i = 0; i < w64 / count; ++i) left[i] = sums[j / count + i].lanes;
            ::store(p + j, sum_rows<count>(left));
        }
    }
    DS_INLINE void store(double* p) const {
        std::memcpy(p, &low, sizeof low);
        std::memcpy(p + simd<double>::width, &high, sizeof high);
    }
};

template <> struct wide<double> {
    vec_f64 sum, error;
    DS_INLINE wide() : sum(vec_f64{}), error(vec_f64{}) {}
    DS_INLINE explicit wide(simd<double> x) : sum(x.v), error(vec_f64{}) {}
    DS_INLINE explicit wide(const block_total<double>& b) : sum(b.sum), error(b.error) {}
    DS_INLINE void add(simd<double> x) { sum = two_sum(sum, x.v, error); }
    DS_INLINE void add(const block_total<double>& b) {
        sum = two_sum(sum, b.sum, error);
        error += b.error;
    }
    DS_INLINE void join(const wide& o) { sum += o.sum; error += o.error; }
    // An infinite weight makes the sum infinite and its error NaN: the sum alone is right then.
    DS_INLINE double total() const {
        const double s = hsum(simd<double>(sum));
        return s - s == 0 ? s + hsum(simd<double>(error)) : s;
    }
    template <int count> struct folded {
        simd<double> lanes, errors;
        DS_INLINE folded() {}
        DS_INLINE explicit folded(const wide* sums) {
            simd<double> each[count], error[count];
            for (int i = 0; i < count; ++i) { each[i] = sums[i].sum; error[i] = sums[i].error; }
            lanes = sum_some_rows<count>(each);
            errors = sum_some_rows<count>(error);
        }
    };
    template <int count> DS_INLINE static void totals(const folded<count>* sums, double* p) {
        constexpr int parts = simd<double>::width / count;
        simd<double> left[parts], errors[parts];
        for (int i = 0; i < parts; ++i) { left[i] = sums[i].lanes; errors[i] = sums[i].errors; }
        ::store(p, sum_rows<count>(left) + sum_rows<count>(errors));
    }
    DS_INLINE void store(double* p) const {
        const simd<double> finite = simd<double>(sum - sum), zero = simd<double>(0.0);
        ::store(p, pick_equal(finite, zero, simd<double>(sum + error), simd<double>(sum)));
    }
};

// exp(m) - 1 of one maximal element plus exp(x) of the others, summed beyond float64: for logarithms near 0.
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
