// loss_terms.cuh - the cross-entropy of a row, from its pair and from sums that no exponential is in.
//
// With k = m, or 0 where that is infinite, and log d = log1p(rest) a row's loss is
//     hard (mass (log d + (m - k)) - dot) + uniform (n (log d + (m - k)) - linear) + z_loss lse^2
// where mass = sum t, dot = sum t (x - k) and linear = sum (x - k). Differences with the maximum lose nothing to what all elements share.
#pragma once
#include "layout.cuh"
#include "reduced.cuh"
#include "totals.cuh"

namespace ds {

struct loss_terms {
    f64 hard, uniform, z_loss;
    i64 ignored;
    i32 ignores;                // whether `ignored` counts
    i32 labels_code;            // the type of labels that are probabilities; -1: class indices, 64-bit integers

    DS_DEVICE bool is_soft() const { return labels_code >= 0; }
};

template <class C> DS_DEVICE C zero_for(C m) { return m - m == C(0) ? m : C(0); }

// Relative to some k.
struct linear_sums {
    f64 mass, dot, linear;

    // The same relative to another k, which is lower by `fall`; of `count` elements.
    DS_DEVICE linear_sums moved(f64 fall, f64 count) const {
        return fall == 0.0 ? *this : linear_sums{mass, mass == 0.0 ? dot : dot + mass * fall, linear + count * fall};
    }
    DS_DEVICE linear_sums operator+(linear_sums other) const { return {mass + other.mass, dot + other.dot, linear + other.linear}; }
};

// Of a row or a part of it; the sums are relative to the k of its own m.
struct row_sums { pair p; linear_sums s; f64 count; };

DS_DEVICE row_sums nothing_summed() { return {nothing(), {0.0, 0.0, 0.0}, 0.0}; }
// The sums of both parts; swapping them changes no bit.
DS_DEVICE row_sums joined(const row_sums& a, const row_sums& b) {
    const pair p = merge(a.p, b.p);
    const f64 k = zero_for(p.m);
    return {p, a.s.moved(zero_for(a.p.m) - k, a.count) + b.s.moved(zero_for(b.p.m) - k, b.count), a.count + b.count};
}

DS_DEVICE row_sums from_lane(const row_sums& a, int distance) {
    return {from_lane(a.p, distance), {from_lane(a.s.mass, distance), from_lane(a.s.dot, distance), from_lane(a.s.linear, distance)}, from_lane(a.count, distance)};
}
struct joining {
    DS_DEVICE row_sums operator()(const row_sums& a, const row_sums& b) const { return joined(a, b); }
};

// Sums of parts wait in memory, seven numbers each.
constexpr int SUMS = 7;
DS_DEVICE void store_sums(f64* sums, i64 index, const row_sums& of) {
    f64* const at = sums + SUMS * index;
    const f64 numbers[SUMS] = {of.p.m, of.p.rest.high, of.p.rest.low, of.s.mass, of.s.dot, of.s.linear, of.count};
#pragma unroll
    for (int k = 0; k < SUMS; ++k) store_aligned(at + k, numbers[k]);
}
DS_DEVICE row_sums load_sums(const f64* sums, i64 index) {
    f64 numbers[SUMS];
#pragma unroll
    for (int k = 0; k < SUMS; ++k) numbers[k] = load_aligned<f64>(sums + SUMS * index + k);
    return {{numbers[0], {numbers[1], numbers[2]}}, {numbers[3], numbers[4], numbers[5]}, numbers[6]};
}

// A row's loss, and whether it counts.
struct finished { f64 loss; bool counts; };

// `x_at(i)`: an element.
template <class Element> DS_DEVICE finished finish(row_sums of, i64 n, const loss_terms& terms, const char* labels, Element x_at) {
    if (!terms.is_soft()) {
        const i64 label = load<i64>(labels);
        if (terms.ignores && label == terms.ignored) return {0.0, false};
        if (label < 0 || label >= n) return {not_a_number(), true};
        of.s.mass = 1.0;
        of.s.dot = x_at(label) - zero_for(of.p.m);
    }
    const f64 log_d = of.p.m == -infinity() ? not_a_number() : log_of_sum(of.p);
    const f64 over = log_d + (of.p.m - zero_for(of.p.m)), lse = of.p.m + log_d;
    f64 loss = 0.0;
    if (terms.hard != 0.0) loss = terms.hard * (of.s.mass * over - of.s.dot);
    if (terms.uniform != 0.0) loss += terms.uniform * (f64(n) * over - of.s.linear);
    if (terms.z_loss != 0.0) loss += terms.z_loss * (lse * lse);
    return {loss, true};
}

// Where it goes: the loss to y, lse to `logarithm`, the loss as a part of a total to `entries`; each may be null.
struct loss_results {
    char* y;
    char* logarithm;
    char* entries;

    template <class T> DS_DEVICE void put(const layout& at, i64 index, finished found, f64 lse) const {
        if (logarithm) store_logarithm<T>(logarithm + offset(at.outer, SIGN, index), nullptr, lse);
        if (y) store(y + offset(at.outer, Y, index), rounded<T>::of(found.loss));
        if (entries) store_entry(entries, index, {{found.loss, 0.0}, found.counts ? 1.0 : 0.0});
    }
};

}  // namespace ds
