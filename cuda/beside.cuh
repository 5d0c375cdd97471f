// beside.cuh - what is read beside the elements of a row, element by element: labels, gradients, weights.
#pragma once
#include "finite.cuh"
#include "numbers.cuh"
#include "rows.cuh"

namespace ds {

// Where it lies, along one row. With `is_alike` it is contiguous and of the elements' type.
struct beside_row {
    const char* w;
    i64 length;
    i32 code;
    bool is_alike;
};

// Of the elements of a share, in its order; 0 beside those that are hidden or past the end.
struct company { compute value[ITEMS]; };

DS_DEVICE void read_any_beside(company& with, const beside_row& from, const axes& inner, i64 segment, int slot) {
    const passage through = passage_of_team();
    const i64 start = segment * SEGMENT + i64(slot) * passage::LENGTH;
    team::meet();
#pragma unroll 1
    for (int k = team::thread(); k < passage::LENGTH; k += DS_GROUP)
        through.value[k] = start + k < from.length ? number_at<compute>(from.w + offset(inner, WEIGHT, start + k), from.code) : compute(0);
    team::meet();
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j) with.value[slot * DS_CHUNK + j] = through.value[team::thread() * DS_CHUNK + j];
}

DS_DEVICE company read_beside(const share& mine, const beside_row& from, const axes& inner, i64 segment) {
    company with;
    if (from.is_alike) {
        const row contiguous = {from.w, nullptr, compute(1), false, from.length};
        const bool aligned = are_aligned<vector>(from.w);
#pragma unroll
        for (int slot = 0; slot < DS_SLOTS; ++slot) {
            const vector v = load_chunk(contiguous, first_of(segment, slot), aligned);
#pragma unroll
            for (int j = 0; j < DS_CHUNK; ++j) with.value[slot * DS_CHUNK + j] = to_compute<compute>(v.at[j]);
        }
    } else {
#pragma unroll
        for (int slot = 0; slot < DS_SLOTS; ++slot) read_any_beside(with, from, inner, segment, slot);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (!(mine.visible >> i & 1)) with.value[i] = compute(0);
    return with;
}

// The sum of term(i) over the elements of a team that are visible.
template <class Term> DS_DEVICE f64 sum_over(const share& mine, Term term) {
    any_accumulator sum;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) sum.add_term(i, mine.visible >> i & 1 ? term(i) : compute(0));
    return value_of(team::reduce(sum.total(), plus_finite()));
}

}  // namespace ds
