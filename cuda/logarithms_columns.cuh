// logarithms_columns.cuh - the logarithms of the columns of a tile: once more, beyond float64, where they are small.
#pragma once
#include "beyond.cuh"
#include "columns.cuh"

namespace ds {

struct adding_beyond {
    DS_DEVICE void operator()(sums<f64>& s, const elements& x, compute m) const {
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (x.at[i] == m) ++s.count;
            else s.total = plus_exponential(s.total, f64(x.at[i]));
        }
    }
};

struct found_logarithm { f64 lse; bool wants_more; };

// Without a use for half types, whose strands have less room to meet.
template <class Sums> DS_DEVICE void sum_beyond(const tiling& by, const source& from, const axes& inner, const compute (&m)[DS_WIDTH]) {
    const meeting at = {by};
    Sums s[DS_WIDTH];
#pragma unroll
    for (int j = 0; j < DS_WIDTH; ++j) s[j] = {{0.0, 0.0}, 0};
    add_again(at, from, inner, m, s, adding_beyond());
#pragma unroll
    for (int j = 0; j < DS_WIDTH; ++j) {
        found_logarithm* const found = at.of_column<found_logarithm>(by.column(j));
        if (by.strand() == 0 && found->wants_more) found->lse = log_beyond_float64(s[j], f64(m[j]));
    }
    __syncthreads();
}

template <bool is_half> struct second_sum {
    static DS_DEVICE void of(const tiling& by, const source& from, const axes& inner, const compute (&m)[DS_WIDTH], bool wanted) {
        if (__syncthreads_or(wanted)) sum_beyond<sums<f64>>(by, from, inner, m);
    }
};
template <> struct second_sum<true> {
    static DS_DEVICE void of(const tiling&, const source&, const axes&, const compute (&)[DS_WIDTH], bool) {}
};

// The logarithms of a tile take the places of its pairs.
DS_DEVICE void logarithms_of_tile(const tiling& by, const source& from, const axes& inner, const compute (&m)[DS_WIDTH]) {
    bool wanted = false;
    for_columns(by, [&](int column) {
        const pair p = *meeting{by}.of_column<pair>(column);
        const f64 lse = log_of(p);
        const bool is_small = wants_more(p.m, lse);
        *meeting{by}.of_column<found_logarithm>(column) = {lse, is_small};
        wanted |= is_small;
    });
    __syncthreads();
    second_sum<IS_HALF<y_type>>::of(by, from, inner, m, wanted);
}

}  // namespace ds
