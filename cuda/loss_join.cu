// loss_join.cu - the cross-entropy of rows in parts, whose sums are joined: a warp a row, part i by lane i % 32, then the lanes with each other.
#include "loss_terms.cuh"
#include "numbers.cuh"

extern "C" __global__ void __launch_bounds__(128, 1)
    join_losses(const char* x, int x_code, const char* labels, char* y, char* logarithm, char* entries, int y_code, const double* sums, long long parts,
                const __grid_constant__ ds::loss_terms terms, const __grid_constant__ ds::layout at) {
    using namespace ds;
    typedef group<32> warp;
    for (i64 base = i64(blockIdx.x) * 4; base < at.rows; base += i64(gridDim.x) * 4) {
        const i64 index = base + warp::number();
        row_sums of = nothing_summed();
        for (i64 part = warp::thread(); index < at.rows && part < parts; part += 32) of = joined(of, load_sums(sums, index * parts + part));
        of = warp::reduce(of, joining());
        if (warp::thread() != 0 || index >= at.rows) continue;
        const char* const row = x + offset(at.outer, X, index);
        const auto element = [&](i64 i) { return number_at<f64>(row + offset(at.inner, X, i), x_code); };
        const finished found = finish(of, at.n, terms, labels + offset(at.outer, WEIGHT, index), element);
        const loss_results to = {y, logarithm, entries};
        if (y_code == CODE_F32) to.put<f32>(at, index, found, log_of(of.p));
        else to.put<f64>(at, index, found, log_of(of.p));
    }
}
