// weighted_join.cu - the logarithms of rows whose parts' weighted sums are in scratch memory.
//
// Macro of a variant: DS_Y   type of the results
#include "weighted.cuh"

// A warp a row.
extern "C" __global__ void __launch_bounds__(128, 4)
    weighted_join(const char* scratch, char* y, char* sign, long long parts, const __grid_constant__ ds::layout at) {
    using namespace ds;
    typedef group<32> team;
    for (i64 row = i64(blockIdx.x) * 4 + team::number(); row < at.rows; row += i64(gridDim.x) * 4) {
        weighted_sum s = no_weights();
        for (i64 part = team::thread(); part < parts; part += 32) s = s + load_part(scratch + (row * parts + part) * PART_BYTES);
        s = team::reduce(s, plus());
        if (team::thread() == 0) write_logarithm<DS_Y>(s, y + offset(at.outer, Y, row), sign ? sign + offset(at.outer, SIGN, row) : nullptr);
    }
}
