// normalize_columns.cu - exp(x - m) / d and, with DS_LOG, x - m - log d of columns whose m and d are there already, which need not be their own.
#define DS_OWN 0
#include "results_columns.cuh"

// Units of work from the last one to the first: what was read last is still in the cache.
extern "C" __global__ void __launch_bounds__(ds::MOST_THREADS, 1)
    normalize_columns(const char* x, double factor, const char* m, const char* rest, char* y, const __grid_constant__ ds::layout at,
                      const __grid_constant__ ds::tiling by) {
    using namespace ds;
    const i64 parts = by.parts(at), units = by.tiles(at) * parts;
    for (i64 base = blockIdx.x; base < units; base += gridDim.x) {
        const i64 unit = units - 1 - base, tile = unit / parts;
        const place where = place_of_lane(by, at, tile, by.lane());
        const source from = source_of(x, factor, by, at, where, unit - tile * parts);
        for_columns(by, [&](int column) {
            const i64 row = row_of_column(by, at, tile, column);
            const bool is_there = row >= 0;
            normalizer_of_column(by, column) = normalizer_of(is_there ? load<f64>(m + offset(at.outer, M, row)) : 0.0,
                                                             is_there ? load<f64>(rest + offset(at.outer, REST, row)) : 0.0);
        });
        __syncthreads();
        write_columns(by, from, at.inner, y + (where.count ? offset(at.outer, Y, where.row) : 0));
        __syncthreads();
    }
}
