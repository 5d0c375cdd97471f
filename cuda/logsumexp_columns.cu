// logsumexp_columns.cu - the logarithm of the sum of exponentials of each column, or its state, or the pairs of the parts of long columns.
#include "logarithms_columns.cuh"

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
        pairs_of_tile<true>(by, from, at.inner, m, nothing_besides());
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
