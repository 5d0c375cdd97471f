// results_columns.cuh - where what the elements of columns become is written.
#pragma once
#include "columns.cuh"
#include "normalizer.cuh"

namespace ds {

// The normalizers of a tile: in the places of its columns.
DS_DEVICE normalizer& normalizer_of_column(const tiling& by, int column) {
    static_assert(sizeof(normalizer) <= meeting::SIZE, "it takes the place of a pair");
    return *(normalizer*)meeting{by}.of_column(column);
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

// Writes the results of the thread's elements, which it reads, or reads again.
DS_DEVICE void write_columns(const tiling& by, const source& from, const axes& inner, char* y) {
    for (i64 batch = 0; batch < from.batches(); ++batch) {
        const batch_of_vectors v = load_batch(from, inner, batch, true);
        y_vector results[BATCH];
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j) {
            const normalizer with = normalizer_of_column(by, by.lane() * DS_WIDTH + j);
            const column_result result = result_of(with);
#pragma unroll
            for (int i = 0; i < BATCH; ++i) results[i].at[j] = rounded<y_type>::of(result(from.value(v.at[i].at[j]), with.shift));
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const i64 e = from.element(batch, i);
            if (e < from.last) store_vector(y + offset_in_column(inner, Y, e), results[i], from.count);
        }
    }
}

}  // namespace ds
