// logsumexp.cu - the logarithm of the sum of exponentials of each row, or its state, of rows that fit the registers of their threads.
#include "reduced.cuh"
#include "rows.cuh"

namespace ds {

// Two units in the last place of a small logarithm are less than what exponentials round. Where |m| and the logarithm are both below 1 a row
// is summed once more, beyond float64: the excess over 1 of the whole sum, log of which is wanted.
DS_DEVICE bool wants_more(f64 m, f64 lse) { return -1.0 < m && m < 1.0 && -1.0 < lse && lse < 1.0 && lse != m; }

DS_DEVICE twofold plus_exponential(twofold sum, f64 x) {
    if (x < -40.0) return sum + exponential(x);        // its own rounding is no matter next to 1, nor where it is all there is
    const exponential_parts e = split_exponential(x);
    sum = (sum + e.power) + e.power * e.high;
    sum.low += e.power * e.low;
    return sum;
}

DS_DEVICE f64 log_beyond_float64(const share& mine, compute m) {
    sums<f64> s = {{0.0, 0.0}, 0};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const compute x = mine.value[i];
        if (x == m) ++s.count;
        else s.total = plus_exponential(s.total, f64(x));
    }
    s = team::reduce(s, plus());
    // one maximal element is taken off: exp(m) - 1 instead of exp(m)
    const exponential_parts e = split_exponential(f64(m));
    twofold largest = {e.power - 1.0, 0.0};
    largest = largest + e.power * e.high;
    largest.low += e.power * e.low;
    const twofold excess = (s.total + largest) + scaled(largest + 1.0, f64(s.count) - 1.0);
    const f64 sum = excess.high + excess.low;
    return log1p_of(sum) + ((excess.high - sum) + excess.low) / (1.0 + sum);
}

DS_DEVICE f64 log_of_segment(const share& mine, compute m, f64 quick) {
    if (IS_HALF<y_type>) return quick;
    const bool wanted = wants_more(f64(m), quick);
    if (!any_in_team(wanted)) return quick;
    const f64 exact = log_beyond_float64(mine, m);
    return wanted ? exact : quick;
}

}  // namespace ds

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
