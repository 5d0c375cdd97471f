// beside.cuh - what is read beside the elements of a row, element by element: labels, gradients, weights.
//
// Macro of a variant: DS_W   its type; with DS_DIRECT it is that of the elements, and lies contiguous too
#pragma once
#include "rows.cuh"

namespace ds {

typedef DS_W w_type;

// Of the elements of a share, in its order; 0 beside those that are hidden or past the end.
struct company { compute value[ITEMS]; };

DS_DEVICE void read_any_beside(company& with, const char* w, i64 length, const axes& inner, i64 segment, int slot) {
    const passage through = passage_of_team();
    const i64 start = segment * SEGMENT + i64(slot) * passage::LENGTH;
    team::meet();
#pragma unroll 1
    for (int k = team::thread(); k < passage::LENGTH; k += DS_GROUP)
        through.value[k] = start + k < length ? to_compute<compute>(load<w_type>(w + offset(inner, WEIGHT, start + k))) : compute(0);
    team::meet();
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j) with.value[slot * DS_CHUNK + j] = through.value[team::thread() * DS_CHUNK + j];
}

DS_DEVICE company read_beside(const share& mine, const char* w, i64 length, const axes& inner, i64 segment) {
    company with;
    const row from = {w, nullptr, compute(1), false, length};
    const bool aligned = DS_DIRECT && are_aligned<vector>(w);
#pragma unroll
    for (int slot = 0; slot < DS_SLOTS; ++slot) {
        if (DS_DIRECT) {
            const vector v = load_chunk(from, first_of(segment, slot), aligned);
#pragma unroll
            for (int j = 0; j < DS_CHUNK; ++j) with.value[slot * DS_CHUNK + j] = to_compute<compute>(v.at[j]);
        } else read_any_beside(with, w, length, inner, segment, slot);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (!(mine.visible >> i & 1)) with.value[i] = compute(0);
    return with;
}

// As `accumulator`, of terms that may be infinite.
struct finite_accumulator {
    twofold sum = {0.0, 0.0};
    DS_DEVICE void add_term(int, f64 term) { sum = finite_plus(sum, {term, 0.0}); }
    DS_DEVICE twofold total() const { return sum; }
};
struct plus_finite {
    DS_DEVICE f64 operator()(f64 a, f64 b) const { return a + b; }
    DS_DEVICE twofold operator()(twofold a, twofold b) const { return finite_plus(a, b); }
};

// The sum of term(i) over the elements of a team that are visible.
template <class Term> DS_DEVICE f64 sum_over(const share& mine, Term term) {
    typename choose<sizeof(compute) == 4, accumulator, finite_accumulator>::type sum;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) sum.add_term(i, mine.visible >> i & 1 ? term(i) : compute(0));
    return value_of(team::reduce(sum.total(), plus_finite()));
}

}  // namespace ds
