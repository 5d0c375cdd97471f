// join.cu - the pairs of the parts of rows become logarithms or states: a warp takes one row.
//
// Macros of a variant: DS_Y   type of the logarithm
#include "layout.cuh"
#include "reduced.cuh"

namespace ds {

constexpr int JOINING = 128;

}  // namespace ds

// `pairs` has `parts` of each row from `first` on, `rows` of them. With `is_state`, y and sign are float64 and get m and d - 1.
extern "C" __global__ void __launch_bounds__(ds::JOINING)
    join_parts(const double* pairs, long long parts, char* y, char* sign, int is_state, const __grid_constant__ ds::layout at, long long first,
               long long rows) {
    using namespace ds;
    constexpr int WARPS = JOINING / 32;
    const i64 warp = i64(threadIdx.x) / 32;
    for (i64 base = i64(blockIdx.x) * WARPS; base < rows; base += i64(gridDim.x) * WARPS) {
        const i64 row = base + warp;
        if (row >= rows) continue;              // a warp goes together
        const pair p = join(parts, pairs_in_memory{pairs + 3 * row * parts});
        if (threadIdx.x % 32 != 0) continue;
        char* const to = y + offset(at.outer, Y, first + row);
        char* const beside = sign ? sign + offset(at.outer, SIGN, first + row) : nullptr;
        if (is_state) store_state(to, beside, p);
        else store_logarithm<DS_Y>(to, beside, log_of(p));
    }
}
