// totals.cuh - sums over rows: of their losses, with the errors of the additions, and of how many count.
#pragma once
#include "convert.cuh"
#include "group.cuh"

namespace ds {

struct entry { twofold sum; f64 count; };

DS_DEVICE entry operator+(entry a, entry b) { return {finite_plus(a.sum, b.sum), a.count + b.count}; }
DS_DEVICE entry from_lane(entry a, int distance) { return {from_lane(a.sum, distance), from_lane(a.count, distance)}; }

constexpr int ENTRY_BYTES = 24;
DS_DEVICE void store_entry(char* to, i64 index, entry value) {
    char* const at = to + index * ENTRY_BYTES;
    store_aligned(at, value.sum.high);
    store_aligned(at + 8, value.sum.low);
    store_aligned(at + 16, value.count);
}
DS_DEVICE entry load_entry(const char* from, i64 index) {
    const char* const at = from + index * ENTRY_BYTES;
    return {{load_aligned<f64>(at), load_aligned<f64>(at + 8)}, load_aligned<f64>(at + 16)};
}

}  // namespace ds
