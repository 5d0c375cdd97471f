// softmax_columns.cu - softmax and, with DS_LOG, log_softmax of columns of one part: read once where they fit in shared memory, else twice.
#define DS_OWN 1
#include "results_columns.cuh"

extern "C" __global__ void __launch_bounds__(ds::MOST_THREADS, 1)
    softmax_columns(const char* x, double factor, char* y, const __grid_constant__ ds::layout at, const __grid_constant__ ds::tiling by) {
    using namespace ds;
    for (i64 tile = blockIdx.x; tile < by.tiles(at); tile += gridDim.x) {
        const place where = place_of_lane(by, at, tile, by.lane());
        const source from = source_of(x, factor, by, at, where, 0);
        compute m[DS_WIDTH];
        pairs_of_tile<DS_LOG>(by, from, at.inner, m, nothing_besides());
        for_columns(by, [&](int column) {
            const pair p = *meeting{by}.of_column<pair>(column);
            normalizer_of_column(by, column) = normalizer_of(p.m, state_rest(p));
        });
        __syncthreads();
        write_columns(by, from, at.inner, y + (where.count ? offset(at.outer, Y, where.row) : 0));
        __syncthreads();
    }
}
