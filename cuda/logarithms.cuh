// logarithms.cuh - the logarithm of a row in the registers of its threads: once more, beyond float64, where it is small.
#pragma once
#include "beyond.cuh"
#include "reduced.cuh"
#include "rows.cuh"

namespace ds {

DS_DEVICE f64 log_beyond_float64(const share& mine, compute m) {
    sums<f64> s = {{0.0, 0.0}, 0};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const compute x = mine.value[i];
        if (x == m) ++s.count;
        else s.total = plus_exponential(s.total, f64(x));
    }
    s = team::reduce(s, plus());
    return log_beyond_float64(s, f64(m));
}

DS_DEVICE f64 log_of_segment(const share& mine, compute m, f64 quick) {
    if (IS_HALF<y_type>) return quick;
    const bool wanted = wants_more(f64(m), quick);
    if (!any_in_team(wanted)) return quick;
    const f64 exact = log_beyond_float64(mine, m);
    return wanted ? exact : quick;
}

}  // namespace ds
