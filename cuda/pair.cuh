// pair.cuh - the running pair of a row or a part of it: m, the largest element, and rest, the sum of exp(x - m) without the 1 that one maximal
// element adds.
//
// rest, and not d = 1 + rest, because m + log1p(rest) keeps what a d near 1 would lose. Nothing is (-inf, -1); a row with +inf has m = +inf; NaN
// rides on rest.
#pragma once
#include "elementary.cuh"
#include "group.cuh"

namespace ds {

// Below this |m|, logarithms sum exp(x) itself: x - m would be rounded in units that are large against a small result.
constexpr f64 ZERO_SHIFT = 16.0;

struct pair { f64 m; twofold rest; };

DS_DEVICE pair nothing() { return {-infinity(), {-1.0, 0.0}}; }

DS_DEVICE twofold scaled(twofold a, f64 factor) {
    const f64 high = a.high * factor;
    return {high, fused(a.high, factor, -high) + a.low * factor};
}

// The pair of both parts; swapping them changes no bit.
DS_DEVICE pair merge(pair a, pair b) {
    if (a.m == b.m) return {a.m, (a.rest + b.rest) + 1.0};
    const bool a_higher = a.m > b.m;
    const pair& high = a_higher ? a : b;
    const pair& low = a_higher ? b : a;
    return {high.m, high.rest + scaled(low.rest + 1.0, exponential(low.m - high.m))};
}

DS_DEVICE pair from_lane(pair p, int distance) { return {from_lane(p.m, distance), from_lane(p.rest, distance)}; }
struct merging {
    DS_DEVICE pair operator()(pair a, pair b) const { return merge(a, b); }
};

// The pairs of a row's parts, merged: part i by lane i % 32, in order, then the lanes with each other. Every lane of a warp gets the result.
template <class Part> DS_DEVICE pair join(i64 count, Part part) {
    pair p = nothing();
    for (i64 i = i64(threadIdx.x) % 32; i < count; i += 32) p = merge(p, part(i));
    return group<32>::reduce(p, merging());
}

DS_DEVICE f64 log_of_sum(pair p) { return log1p_of(value_of(p.rest)); }
// m + log1p(rest); -inf for a row of nothing, +inf for one with +inf.
DS_DEVICE f64 log_of(pair p) { return p.m + log_of_sum(p); }

// The sums of a segment of a row: count of the elements that equal m, and total of exp(x - shift) over the others.
template <class C> struct alignas(16) sums {
    wide_of<C> total;
    i32 count;
    DS_DEVICE sums operator+(sums other) const { return {total + other.total, count + other.count}; }
};
template <class C> DS_DEVICE sums<C> from_lane(sums<C> value, int distance) {
    return {from_lane(value.total, distance), from_lane(value.count, distance)};
}

DS_DEVICE twofold as_twofold(f64 a) { return {a, 0.0}; }
DS_DEVICE twofold as_twofold(twofold a) { return a; }

// `shift` is m, or 0: see ZERO_SHIFT.
template <class C> DS_DEVICE pair pair_of(C m, C shift, sums<C> s) {
    const twofold total = as_twofold(s.total);
    if (m == C(-infinity())) return {-infinity(), total + -1.0};       // nothing but -inf, and NaN: total is 0 or NaN
    const twofold below = shift == m ? total : scaled(total, exponential(f64(shift) - f64(m)));
    return {f64(m), below + (f64(s.count) - 1.0)};
}

}  // namespace ds
