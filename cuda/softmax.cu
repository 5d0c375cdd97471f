// softmax.cu - softmax and, with DS_LOG, log_softmax of rows that fit the registers of their threads.
#include "results.cuh"

namespace ds {

// The row stays in registers: its exponentials, computed once, are what is divided.
DS_DEVICE void softmax_segment(const row& from, char* y, const axes& inner) {
    share mine = read(from, inner, 0);
    const compute m = largest(mine);
    if (DS_GROUP <= 32) team::meet();       // accesses that are not aligned reach what a neighbour writes in place; a block has met by now
#if DS_LOG
    const pair p = pair_of_segment(mine, m);
    write(mine, from, y, inner, 0, m, logarithm{rounded<compute>::of(log_of_sum(p))});
#else
    const compute shift = shift_by_largest(m);
    const sums<compute> s = ROUGH ? add_up<true>(mine, m, shift, rough()) : add_up<true>(mine, m, shift, precise());
    const f64 d = m == compute(-infinity()) ? value_of(s.total) : value_of(s.total + f64(s.count));
    write(mine, from, y, inner, 0, m, quotient{inverse_of(m, d)});
#endif
}

}  // namespace ds

extern "C" __global__ void __launch_bounds__(ds::BLOCK, ds::BLOCKS_AT_ONCE)
    softmax_rows(const char* x, const char* where, const char* scale, double factor, char* y, const __grid_constant__ ds::layout at) {
    using namespace ds;
    const inputs in = {x, where, scale, factor};
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < at.rows; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 index = base + team::number();
        const row from = row_of(in, at, index);
        softmax_segment(from, y + (index < at.rows ? offset(at.outer, Y, index) : 0), at.inner);
    }
}
