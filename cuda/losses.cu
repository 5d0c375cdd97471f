// losses.cu - the cross-entropy of each row: an end of the running pair. The elements are read once, and the one at the label once more.
//
// With k = m, or 0 where that is infinite, and log d = log1p(rest) a row's loss is
//     hard (mass (log d + (m - k)) - dot) + uniform (n (log d + (m - k)) - linear) + z_loss lse^2
// where mass = sum t, dot = sum t (x - k) and linear = sum (x - k). Differences with the maximum lose nothing to what all elements share.
//
// Macro of a variant: DS_SOFT   1: labels are probabilities of type DS_W; 0: they are class indices, 64-bit integers
#include "beside.cuh"
#include "logarithms.cuh"
#include "totals.cuh"

namespace ds {

struct loss_terms {
    f64 hard, uniform, z_loss;
    i64 ignored;
    i32 ignores;                // whether `ignored` counts
};

struct row_sums {
    pair p;
    f64 mass, dot, linear;
};

template <class C> DS_DEVICE C zero_for(C m) { return m - m == C(0) ? m : C(0); }

// Takes in a segment of n elements. `before` elements have come.
DS_DEVICE void add_segment(row_sums& sums, const share& mine, compute m, pair p, const char* labels, i64 length, const axes& inner, i64 segment,
                           const loss_terms& terms) {
    const compute k = zero_for(m);
    const i64 before = segment * SEGMENT, count = smaller(before + SEGMENT, length) - before;
    const f64 k_before = zero_for(sums.p.m);
    sums.p = segment == 0 ? p : merge(sums.p, p);
    const f64 zero = zero_for(sums.p.m), from_before = k_before - zero, from_here = f64(k) - zero;
#if DS_SOFT
    const company t = read_beside(mine, labels, length, inner, segment);
    const f64 mass = sum_over(mine, [&](int i) { return t.value[i]; });
    const f64 dot = sum_over(mine, [&](int i) { return t.value[i] == compute(0) ? compute(0) : mul(t.value[i], sub(mine.value[i], k)); });
    sums.dot = (sums.dot + sums.mass * from_before) + (dot + mass * from_here);
    sums.mass += mass;
#endif
    if (terms.uniform == 0.0) return;
    const f64 linear = sum_over(mine, [&](int i) { return sub(mine.value[i], k); });
    sums.linear = (sums.linear + f64(before) * from_before) + (linear + f64(count) * from_here);
}

DS_DEVICE f64 loss_of(const row_sums& sums, i64 n, const loss_terms& terms) {
    const f64 log_d = sums.p.m == -infinity() ? not_a_number() : log_of_sum(sums.p);
    const f64 over = log_d + (sums.p.m - zero_for(sums.p.m)), lse = sums.p.m + log_d;
    f64 loss = 0.0;
    if (terms.hard != 0.0) loss = terms.hard * (sums.mass * over - sums.dot);
    if (terms.uniform != 0.0) loss += terms.uniform * (f64(n) * over - sums.linear);
    if (terms.z_loss != 0.0) loss += terms.z_loss * (lse * lse);
    return loss;
}

}  // namespace ds

// The loss goes to y, lse to `logarithm`, the loss as a part of a total to `entries`; each may be null.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, ds::BLOCKS_AT_ONCE)
    loss_rows(const char* x, const char* labels, char* y, char* logarithm, char* entries, double hard, double uniform, double z_loss,
              long long ignored, int ignores, const __grid_constant__ ds::layout at) {
    using namespace ds;
    const inputs in = {x, nullptr, nullptr, 1.0};
    const loss_terms terms = {hard, uniform, z_loss, ignored, ignores};
    const i64 segments = segments_of(at.n);
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < at.rows; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 index = base + team::number();
        const bool is_there = index < at.rows;
        const row from = row_of(in, at, index);
        const char* const beside = labels + (is_there ? offset(at.outer, WEIGHT, index) : 0);
        row_sums sums = {nothing(), 0.0, 0.0, 0.0};
        f64 lse = 0.0;
        for (i64 segment = 0; segment < segments; ++segment) {
            share mine = read(from, at.inner, segment);
            const compute m = largest(mine);
            const pair p = pair_of_segment(mine, m);
            add_segment(sums, mine, m, p, beside, from.length, at.inner, segment, terms);
            if (logarithm && segments == 1) lse = log_of_segment(mine, m, log_of(p));
        }
        if (segments > 1) lse = log_of(sums.p);
        if (team::thread() != 0 || !is_there) continue;
        bool counts = true, is_wrong = false;
#if !DS_SOFT
        const i64 label = load<i64>(beside);
        counts = !terms.ignores || label != terms.ignored;
        is_wrong = counts && (label < 0 || label >= at.n);
        sums.mass = 1.0;
        if (counts && !is_wrong) sums.dot = to_compute<f64>(load<x_type>(from.x + offset(at.inner, X, label))) - zero_for(sums.p.m);
#endif
        const f64 loss = is_wrong ? not_a_number() : counts ? loss_of(sums, at.n, terms) : 0.0;
        if (logarithm) store_logarithm<y_type>(logarithm + offset(at.outer, SIGN, index), nullptr, lse);
        if (y) store(y + offset(at.outer, Y, index), rounded<y_type>::of(loss));
        if (entries) store_entry(entries, index, {{loss, 0.0}, counts ? 1.0 : 0.0});
    }
}
