// results_columns.cuh - where what the elements of columns become is written.
#pragma once
#include "columns.cuh"
#include "normalizer.cuh"

namespace ds {

// The normalizers of a tile: in the places of its columns.
DS_DEVICE normalizer& normalizer_of_column(const tiling& by, int column) {
    return *meeting{by}.of_column<normalizer>(column);
}

#if DS_LOG
typedef logarithm column_result;
DS_DEVICE column_result result_of(const normalizer& by) { return {rounded<compute>::of(by.log_of_d)}; }
#elif DS_OWN
typedef probability column_result;
DS_DEVICE column_result result_of(const normalizer& by) { return {rounded<compute>::of(by.inverse)}; }
#else
typedef scaled_exponential column_result;
DS_DEVICE column_result result_of(const normalizer& by) { return column_result(by.inverse); }
#endif

DS_DEVICE void store_vector(char* p, const y_vector& v, int count) {
    if (DS_WIDTH == 1) {
        store(p, v.at[0]);
    } else if (count == DS_WIDTH) {
        store_aligned(p, v);
    } else {
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j)
            if (j < count) store_aligned((y_type*)p + j, v.at[j]);
    }
}

// Elements at a time that are written: 64 bytes on their way suffice, and results of 8 columns take registers.
constexpr int WRITTEN = DS_WIDTH == 8 ? 4 : BATCH;

// Writes the results of the thread's elements, which it reads, or reads again.
DS_DEVICE void write_columns(const tiling& by, const source& from, const axes& inner, char* y) {
    column_result result[DS_WIDTH];
    compute shift[DS_WIDTH];
#pragma unroll
    for (int j = 0; j < DS_WIDTH; ++j) {
        const normalizer with = normalizer_of_column(by, by.column(j));
        result[j] = result_of(with);
        shift[j] = with.shift;
    }
    for (i64 batch = 0; batch < from.batches<WRITTEN>(); ++batch) {
        const batch_of_vectors<WRITTEN> v = load_batch<WRITTEN>(from, inner, batch, true);
#pragma unroll
        for (int i = 0; i < WRITTEN; ++i) {
            y_vector results;
#pragma unroll
            for (int j = 0; j < DS_WIDTH; ++j) results.at[j] = rounded<y_type>::of(result[j](from.value(v.at[i].at[j]), shift[j]));
            const i64 e = from.element<WRITTEN>(batch, i);
            if (e < from.last) store_vector(y + offset_in_column(inner, Y, e), results, from.count);
        }
    }
}

}  // namespace ds
