// logsumexp.cu - the logarithm of the sum of exponentials of each row, or its state, of rows that fit the registers of their threads.
#include "logarithms.cuh"

// With `is_state`, y and sign are float64 and get m and d - 1.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, ds::BLOCKS_AT_ONCE)
    logsumexp_rows(const char* x, const char* where, const char* scale, double factor, char* y, char* sign, int is_state,
                   const __grid_constant__ ds::layout at) {
    using namespace ds;
    const inputs in = {x, where, scale, factor};
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < at.rows; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 index = base + team::number();
        share mine = read(row_of(in, at, index), at.inner, 0);
        const compute m = largest(mine);
        const pair p = pair_of_segment(mine, m);
        const f64 lse = is_state ? 0.0 : log_of_segment(mine, m, log_of(p));
        if (team::thread() != 0 || index >= at.rows) continue;
        char* const to = y + offset(at.outer, Y, index);
        char* const beside = sign ? sign + offset(at.outer, SIGN, index) : nullptr;
        if (is_state) store_state(to, beside, p);
        else store_logarithm<y_type>(to, beside, lse);
    }
}
