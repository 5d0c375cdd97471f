// results.cuh - where what the elements of a row become is written.
#pragma once
#include "normalizer.cuh"
#include "rows.cuh"

namespace ds {

DS_DEVICE void write_direct(const y_vector& v, const row& from, char* y, i64 first, bool aligned) {
    y_type* const to = (y_type*)y + first;
    if (aligned && first + DS_CHUNK <= from.length) {
        store_aligned(to, v);
        return;
    }
    if (!aligned && sizeof(y_vector) == 16) {
        union { piece whole; y_vector v; } u;
        u.v = v;
        store_across<y_type>((char*)to, u.whole, (char*)((y_type*)y + from.length), is_first_of_lanes(), is_last_of_lanes());
        return;
    }
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j)
        if (first + j < from.length) store_aligned(to + j, v.at[j]);
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
    const bool aligned = DS_DIRECT && are_aligned<y_vector>(y);
#pragma unroll
    for (int slot = 0; slot < DS_SLOTS; ++slot) {
        compute results[DS_CHUNK];
        y_vector v;
#pragma unroll
        for (int j = 0; j < DS_CHUNK; ++j) {
            const int i = slot * DS_CHUNK + j;
            results[j] = DS_DIRECT || mine.visible >> i & 1 ? result(mine.value[i], m) : hidden;
            v.at[j] = rounded<y_type>::of(results[j]);
        }
        if (DS_DIRECT) write_direct(v, from, y, first_of(segment, slot), aligned);
        else write_any(results, from, y, inner, segment, slot);
    }
}

}  // namespace ds
