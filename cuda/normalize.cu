// normalize.cu - exp(x - m) / d and, with DS_LOG, x - m - log d of rows whose m and d are there already. A team takes one segment of a row.
//
// m and d need not be the row's own: an element may lie far above m.
#include "results.cuh"

// The rows from `first` on, `rows` of them, from the last one to the first: what was read last is still in the cache.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, ds::BLOCKS_AT_ONCE)
    normalize_rows(const char* x, const char* where, const char* scale, double factor, const char* m, const char* rest, char* y,
                   const __grid_constant__ ds::layout at, long long first, long long rows) {
    using namespace ds;
    const inputs in = {x, where, scale, factor};
    const i64 segments = segments_of(at.n), units = rows * segments;
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < units; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 unit = units - 1 - (base + team::number());
        const i64 index = unit < 0 ? at.rows : first + unit / segments, segment = unit < 0 ? 0 : unit % segments;
        const row from = row_of(in, at, index);
        const share mine = read(from, at.inner, segment);
        const bool is_there = unit >= 0;
        const f64 m_of_row = is_there ? load<f64>(m + offset(at.outer, M, index)) : 0.0;
        const f64 rest_of_row = is_there ? load<f64>(rest + offset(at.outer, REST, index)) : 0.0;
        const normalizer by = normalizer_of(m_of_row, rest_of_row);
        char* const to = y + (is_there ? offset(at.outer, Y, index) : 0);
        team::meet();                       // accesses that are not aligned reach what a neighbour writes in place
#if DS_LOG
        write(mine, from, to, at.inner, segment, by.shift, logarithm{rounded<compute>::of(by.log_of_d)});
#else
        write(mine, from, to, at.inner, segment, by.shift, scaled_exponential(by.inverse));
#endif
    }
}
