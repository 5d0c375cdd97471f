// gradient_sinks.cu - the gradients of sinks: a sink's weight is exp(sink - lse), and it has no value. A block has one head, and all of its rows.
#include "gradient_task.cuh"
#include "numbers.cuh"
#include "group.cuh"

namespace ds {

constexpr int SINK_THREADS = 128;

DS_DEVICE f64 sink_term(f64 sink, const row_numbers& x) {
    if (sink == -infinity() || x.rest == infinity()) return 0.0;
    return is_nan(x.rest) ? x.rest : -exponential_above(sink - x.shift - x.rest) * x.weight * x.delta;
}

}  // namespace ds

extern "C" __global__ void __launch_bounds__(ds::SINK_THREADS) gradient_sinks(const double* sinks, double* gradients, const double* numbers, long long rows) {
    using namespace ds;
    const f64 sink = load_aligned<f64>(sinks + blockIdx.x);
    const row_numbers* const of = (const row_numbers*)numbers + blockIdx.x * rows;
    f64 sum = 0.0;
    for (i64 r = threadIdx.x; r < rows; r += SINK_THREADS) sum += sink_term(sink, of[r]);
    sum = group<SINK_THREADS>::reduce(sum, plus());
    if (threadIdx.x == 0) store_aligned(gradients + blockIdx.x, sum);
}
