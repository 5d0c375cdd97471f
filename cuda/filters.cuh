// filters.cuh - which elements of a row sample keeps: the first of a sorted list, or all up to a border.
#pragma once
#include "largest.cuh"
#include "philox.cuh"

namespace ds {

struct sampled_row {
    const char* x;
    const axes* inner;
    i64 n;
    f64 m, temperature;

    DS_DEVICE compute at(i64 i) const { return to_compute<compute>(load<x_type>(x + offset(*inner, X, i))); }
    DS_DEVICE f64 difference(compute v) const { return (f64(v) - m) / temperature; }
};

// What stays: above an element in the order of `order_of`, or equal to it up to the index `last`; with at least `least` for its difference.
struct border {
    integer order;
    i64 last;
    f64 least;
    DS_DEVICE bool keeps(compute v, i64 i) const {
        const integer mine = order_of(v);
        return mine > order || (mine == order && i <= last);
    }
};

struct counted {
    DS_DEVICE u64 operator()(f64) const { return 1; }
};
struct weighed {
    f64 unit;
    DS_DEVICE u64 operator()(f64 s) const { return mass_of(s, unit); }
};

// The weight of what stays, of every thread's every DS_GROUP-th element.
template <class Weight, class Visit> DS_DEVICE void each_weight(const sampled_row& row, const border& by, Weight weight, Visit visit) {
#pragma unroll 1
    for (i64 i = team::thread(); i < row.n; i += DS_GROUP) {
        const compute v = row.at(i);
        if (!by.keeps(v, i)) continue;
        const f64 s = row.difference(v);
        if (s >= by.least) visit(order_of(v), weight(s));
    }
}
template <class Weight> DS_DEVICE u64 total_weight(const sampled_row& row, const border& by, Weight weight) {
    u64 sum = 0;
    each_weight(row, by, weight, [&](integer, u64 w) { sum += w; });
    return team::reduce(sum, plus());
}

// The index of the wanted one, counted from 1, of the elements that are of an order.
DS_DEVICE i64 index_of_equal(const sampled_row& row, integer order, u64 wanted) {
    for (i64 base = 0; base < row.n; base += DS_GROUP) {
        const i64 i = base + team::thread();
        const bool equal = i < row.n && order_of(row.at(i)) == order;
        const u64 here = u64(team::count(equal));
        if (here < wanted) { wanted -= here; continue; }
        int low = 0, high = DS_GROUP;                   // that many elements from `base` on have fewer, or enough
        while (high - low > 1) {
            const int middle = (low + high) / 2, count = team::count(equal && team::thread() < middle);
            if (u64(count) < wanted) low = middle;
            else high = middle;
        }
        return base + high - 1;
    }
    return row.n - 1;
}

// The border behind which the weights of what `by` keeps, the largest element first, reach `target`, which they do: digit by digit of the order,
// the mass of each digit added up in shared memory.
template <class Weight> DS_DEVICE border border_of(const sampled_row& row, const border& by, Weight weight, u64 target) {
    constexpr int BITS = 8 * sizeof(integer), DIGITS = 256;
    DS_SHARED(u64, mass, DIGITS);
    integer prefix = 0;
#pragma unroll 1
    for (int shift = BITS - 8;; shift -= 8) {
        __syncthreads();
        for (int digit = team::thread(); digit < DIGITS; digit += DS_GROUP) mass[digit] = 0;
        __syncthreads();
        each_weight(row, by, weight, [&](integer order, u64 w) {
            if (w && (shift == BITS - 8 || order >> shift >> 8 == prefix)) atomicAdd(&mass[int(order >> shift & 255)], w);
        });
        __syncthreads();
        int digit = DIGITS - 1;
        for (; digit > 0 && mass[digit] < target; --digit) target -= mass[digit];
        prefix = prefix << 8 | integer(digit);
        if (mass[digit] == target) return {integer(prefix << shift), row.n, by.least};      // all of them stay
        if (shift == 0) break;
    }
    const u64 each = weight(row.difference(from_order(prefix)));
    return {prefix, index_of_equal(row, prefix, (target + each - 1) / each), by.least};
}

// ------------------------------------------------------------------ of a sorted list
// The sum of what the threads before this one hold; `total` of all.
DS_DEVICE u64 sum_before(u64 mine, u64& total) {
    DS_SHARED(u64, sums_of_warps, team::WARPS);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = mine;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const u64 other = __shfl_up_sync(ALL_LANES, sum, distance);
        if (lane >= distance) sum += other;
    }
    __syncthreads();
    if (lane == 31) sums_of_warps[warp] = sum;
    __syncthreads();
    sum -= mine;
    total = 0;
    for (int w = 0; w < team::WARPS; ++w) {
        if (w < warp) sum += sums_of_warps[w];
        total += sums_of_warps[w];
    }
    return sum;
}

constexpr int AT_ONCE = CAPACITY / 2 / DS_GROUP;        // entries of a thread
static_assert(AT_ONCE * DS_GROUP * 2 == CAPACITY, "half a list");

struct masses { u64 before, at[AT_ONCE], total; };

DS_DEVICE f64 difference_of(const sampled_row& row, const entry& e) { return row.difference(from_order(integer(e.order()))); }

// Of the entries that are at least `least`, those of each thread side by side.
DS_DEVICE masses masses_of(const sampled_row& row, const list& found, f64 least) {
    const f64 unit = unit_of_mass(row.n);
    masses m;
    u64 sum = 0;
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
        const int i = team::thread() * AT_ONCE + j;
        const f64 s = i < found.most ? difference_of(row, found.at[i]) : -infinity();
        m.at[j] = i < found.most && s >= least ? mass_of(s, unit) : 0;
        sum += m.at[j];
    }
    m.before = sum_before(sum, m.total);
    return m;
}
// How many of them, from the first on, it takes to reach a mass.
DS_DEVICE int count_to_reach(const masses& m, u64 target) {
    u64 before = m.before;
    int count = 0;
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
        count += before < target && m.at[j] != 0;
        before += m.at[j];
    }
    return team::reduce(count, plus());
}

}  // namespace ds
