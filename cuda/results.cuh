// results.cuh - where what the elements of a row become is written.
#pragma once
#include "normalizer.cuh"
#include "rows.cuh"

namespace ds {

DS_DEVICE void write_direct(const chunk<y_type, DS_CHUNK>& v, const row& from, char* y, i64 first) {
    if (first + DS_CHUNK <= from.length) {
        store_aligned((y_type*)y + first, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j)
        if (first + j < from.length) store_aligned((y_type*)y + first + j, v.at[j]);
}

DS_DEVICE void write_any(const compute (&result)[DS_CHUNK], const row& from, char* y, const axes& inner, i64 segment, int slot) {
    const passage through = passage_of_team();
    const i64 start = segment * SEGMENT + i64(slot) * passage::LENGTH;
    team::meet();
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j) through.value[team::thread() * DS_CHUNK + j] = result[j];
    team::meet();
#pragma unroll 1
    for (int k = team::thread(); k < passage::LENGTH; k += DS_GROUP)
        if (start + k < from.length) store(y + offset(inner, Y, start + k), rounded<y_type>::of(through.value[k]));
}

template <class Result> DS_DEVICE void write(const share& mine, const row& from, char* y, const axes& inner, i64 segment, compute m, Result result) {
    const compute hidden = compute(DS_LOG ? -infinity() : 0.0);
#pragma unroll
    for (int slot = 0; slot < DS_SLOTS; ++slot) {
        compute results[DS_CHUNK];
        chunk<y_type, DS_CHUNK> v;
#pragma unroll
        for (int j = 0; j < DS_CHUNK; ++j) {
            const int i = slot * DS_CHUNK + j;
            results[j] = DS_DIRECT || mine.visible >> i & 1 ? result(mine.value[i], m) : hidden;
            v.at[j] = rounded<y_type>::of(results[j]);
        }
        if (DS_DIRECT) write_direct(v, from, y, first_of(segment, slot));
        else write_any(results, from, y, inner, segment, slot);
    }
}

}  // namespace ds
