// losses.cu - the cross-entropy of contiguous rows: an end of the running pair. The elements are read once, and the one at the label once more.
#include "beside.cuh"
#include "logarithms.cuh"
#include "loss_terms.cuh"

namespace ds {

DS_DEVICE row_sums sums_of_segment(const share& mine, compute m, pair p, const beside_row& labels, i64 n, const axes& inner, i64 segment,
                                   const loss_terms& terms) {
    const compute k = zero_for(m);
    row_sums of = nothing_summed();
    of.p = p;
    of.count = f64(smaller<i64>(SEGMENT, n - segment * SEGMENT));
    if (terms.is_soft()) {
        const company t = read_beside(mine, labels, inner, segment);
        of.s.mass = sum_over(mine, [&](int i) { return t.value[i]; });
        of.s.dot = sum_over(mine, [&](int i) { return t.value[i] == compute(0) ? compute(0) : mul(t.value[i], sub(mine.value[i], k)); });
    }
    if (terms.uniform != 0.0) of.s.linear = sum_over(mine, [&](int i) { return sub(mine.value[i], k); });
    return of;
}

}  // namespace ds

// `is_alike`: labels are probabilities of the type of x, and contiguous. A row has `parts` parts of `length` segments; if there are several,
// `sums` gets what is known of each.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, ds::BLOCKS_AT_ONCE)
    loss_rows(const char* x, const char* labels, int is_alike, char* y, char* logarithm, char* entries, double* sums, long long parts, long long length,
              const __grid_constant__ ds::loss_terms terms, const __grid_constant__ ds::layout at) {
    using namespace ds;
    const inputs in = {x, nullptr, nullptr, 1.0};
    const i64 units = at.rows * parts, segments = segments_of(at.n);
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < units; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 unit = base + team::number();
        const bool is_there = unit < units;
        const i64 index = unit / parts, part = unit - index * parts;
        const row from = row_of(in, at, index);
        const beside_row beside = {labels + (is_there ? offset(at.outer, WEIGHT, index) : 0), from.length, terms.labels_code, is_alike != 0};
        row_sums found = nothing_summed();
        f64 lse = 0.0;
        for (i64 segment = part * length; segment < smaller((part + 1) * length, segments); ++segment) {
            share mine = read(from, at.inner, segment);
            const compute m = largest(mine);
            const pair p = pair_of_segment(mine, m);
            const row_sums more = sums_of_segment(mine, m, p, beside, at.n, at.inner, segment, terms);
            found = segment == part * length ? more : joined(found, more);
            if (logarithm && segments == 1) lse = log_of_segment(mine, m, log_of(p));
        }
        if (team::thread() != 0 || !is_there) continue;
        if (parts > 1) {
            store_sums(sums, unit, found);
            continue;
        }
        const auto element = [&](i64 i) { return to_compute<f64>(load_aligned<x_type>((const x_type*)from.x + i)); };
        loss_results{y, logarithm, entries}.put<y_type>(at, index, finish(found, at.n, terms, beside.w, element), lse);
    }
}
