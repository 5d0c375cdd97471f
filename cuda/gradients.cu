// gradients.cu - the gradients of contiguous rows, which may take the place of what they are computed from.
//
// A row that fits the registers of its threads is read once. Longer ones go segment by segment, and once more, from the end, where they need a
// sum first. Without one, and not in place, a few long rows are shared by more blocks, which changes no bit.
#define DS_LOG 0
#include "beside.cuh"
#include "gradient_terms.cuh"
#include "results.cuh"

namespace ds {

struct as_it_is { DS_DEVICE compute operator()(compute value, compute) const { return value; } };

// The elements give way to their gradients.
DS_DEVICE void become_gradients(share& mine, const company& with, const answer& by, i64 segment) {
    const i64 k = by.label - segment * SEGMENT, of_chunk = k / DS_CHUNK;
    const bool is_here = by.label >= 0 && k >= 0 && k < SEGMENT && of_chunk % DS_GROUP == team::thread();
    const int item = is_here ? int(of_chunk / DS_GROUP) * DS_CHUNK + int(k % DS_CHUNK) : -1;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const compute value = gradient_of(mine.value[i], with.value[i], by);
        mine.value[i] = i == item ? rounded<compute>::of(by.at_label) : value;
    }
}

}  // namespace ds

// `labels` are class indices, or null. m, rest and `grads` have one number a row. A row has `parts` parts of `length` segments, one if it needs a
// sum or is in place.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, 1)
    gradient_rows(const char* x, const char* scale, const char* beside, const char* labels, const char* m, const char* rest, const char* grads, char* y,
                  long long parts, long long length, const __grid_constant__ ds::question q, const __grid_constant__ ds::layout at, const __grid_constant__ ds::more_strides more) {
    using namespace ds;
    const inputs in = {x, nullptr, scale, q.factor};
    const i64 segments = segments_of(at.n);
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < at.rows * parts; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 unit = base + team::number(), index = unit / parts, first = (unit - index * parts) * length, last = smaller(first + length, segments);
        const bool is_there = index < at.rows;
        const i64 place = is_there ? index : 0;
        const row from = row_of(in, at, index);
        const beside_row t = {beside + (q.has_beside() ? offset(at.outer, WEIGHT, place) : 0), from.length, q.beside_code, q.is_alike != 0};
        row_numbers given = numbers_of_row(m, rest, grads, q, at, more, place);
        // The segments are visited for the row's own pair and for a sum, where these are needed, and, from the end back, for the gradients.
        const i64 refining = needs_pair(q, given.m) ? segments : 0, summing = q.needs_sum() ? segments : 0;
        char* const to = y + offset(at.outer, Y, place);
        share mine = {};
        company with = {};
        pair own = nothing();
        f64 sum = 0.0;
        answer by = {};
        i64 held = -1;                          // the segment in the registers
        for (i64 visit = 0; visit < refining + summing + (last - first); ++visit) {
            const i64 written = visit - refining - summing, segment = written >= 0 ? last - 1 - written : visit % segments;
            if (segment != held) {
                team::meet();                   // accesses that are not aligned reach what a neighbour has written
                mine = read(from, at.inner, segment);
                if (q.has_beside()) with = read_beside(mine, t, at.inner, segment);
                held = segment;
            }
            if (visit < refining) {
                const compute m_of_segment = largest(mine);
                own = merge(own, pair_of_segment(mine, m_of_segment));
                if (visit == refining - 1) refine(given, own, q.roundoff);
                continue;
            }
            if (written < 0) {
                if (q.of == OF_SOFTMAX) sum += sum_over(mine, [&](int i) { return mul(mine.value[i], with.value[i]); });
                else sum += sum_over(mine, [&](int i) { return with.value[i]; });
                continue;
            }
            if (written == 0) {
                by = answer_for(q, sum, given);
                if (labels && is_there) {
                    const auto element = [&](i64 i) { return to_compute<f64>(load_aligned<x_type>((const x_type*)from.x + i)); };
                    heed_label(by, load<i64>(labels + offset(at.outer, SIGN, place)), at.n, given, q, element);
                }
            }
            team::meet();                       // and what it reads
            become_gradients(mine, with, by, segment);
            write(mine, from, to, at.inner, segment, compute(0), as_it_is());
        }
    }
}
