// logsumexp_columns.cu - the logarithm of the sum of exponentials of each column, or its state, or the pairs of the parts of long columns.
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

// With `pairs`, m and rest of each part of each row go there. Else rows have one part; with `is_state`, y and sign are float64 and get m and
// d - 1.
extern "C" __global__ void __launch_bounds__(ds::MOST_THREADS)
    logsumexp_columns(const char* x, double factor, char* y, char* sign, int is_state, double* pairs, const __grid_constant__ ds::layout at,
                      const __grid_constant__ ds::tiling by) {
    using namespace ds;
    const i64 parts = by.parts(at);
    for (i64 unit = blockIdx.x; unit < by.tiles(at) * parts; unit += gridDim.x) {
        const i64 tile = unit / parts, part = unit - tile * parts;
        const source from = source_of(x, factor, by, at, place_of_lane(by, at, tile, by.lane()), part);
        compute m[DS_WIDTH];
        pairs_of_tile<true>(by, from, at.inner, m);
        if (!pairs && !is_state) logarithms_of_tile(by, from, at.inner, m);
        // neighbouring threads write neighbouring columns
        for (int k = int(threadIdx.x); k < by.columns(); k += int(blockDim.x)) {
            const int column = k % DS_WIDTH * by.lanes + k / DS_WIDTH;
            const i64 row = row_of_column(by, at, tile, column);
            if (row < 0) continue;
            const meeting found = {by};
            if (pairs) {
                store_pair(pairs, row * parts + part, *found.of_column<pair>(column));
                continue;
            }
            char* const to = y + offset(at.outer, Y, row);
            char* const beside = sign ? sign + offset(at.outer, SIGN, row) : nullptr;
            if (is_state) store_state(to, beside, *found.of_column<pair>(column));
            else store_logarithm<y_type>(to, beside, found.of_column<found_logarithm>(column)->lse);
        }
        __syncthreads();
    }
}
