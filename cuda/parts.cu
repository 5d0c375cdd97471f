// parts.cu - the pairs of the parts of long rows: a block takes one part.
#include "reduced.cuh"
#include "rows.cuh"

namespace ds {

// Of the segments from `first` up to, and without, `last`.
DS_DEVICE pair pair_of_segments(const row& from, const axes& inner, i64 first, i64 last) {
    pair p = nothing();
    for (i64 segment = first; segment < last; ++segment) {
        share mine = read(from, inner, segment);
        p = merge(p, pair_of_segment(mine, largest(mine)));
    }
    return p;
}

}  // namespace ds

// `parts` of `length` segments each for every row from `first` on, `rows` of them; m and rest of each to `pairs`.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, ds::BLOCKS_AT_ONCE)
    parts_of_rows(const char* x, const char* where, const char* scale, double factor, double* pairs, const __grid_constant__ ds::layout at,
                  long long first, long long rows, long long parts, long long length) {
    using namespace ds;
    const inputs in = {x, where, scale, factor};
    for (i64 unit = blockIdx.x; unit < rows * parts; unit += gridDim.x) {
        const i64 part = unit % parts;
        const row from = row_of(in, at, first + unit / parts);
        const i64 end = (part + 1) * length, segments = segments_of(from.length);
        const pair p = pair_of_segments(from, at.inner, part * length, end < segments ? end : segments);
        if (threadIdx.x == 0) store_pair(pairs, unit, p);
    }
}
