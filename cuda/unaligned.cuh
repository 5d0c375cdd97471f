// unaligned.cuh - contiguous rows at any address: memory is accessed in whole pieces of 16 bytes, of which neighbouring lanes hand each other
// what is theirs.
//
// A chunk of 16 bytes lies in two such pieces. A lane loads the one its chunk begins in, and gets the other from the lane above; it stores the
// one its chunk begins in, with the end of the chunk of the lane below. All lanes of a warp have to come along.
#pragma once
#include "convert.cuh"
#include "group.cuh"

namespace ds {

typedef words<16> piece;

// The 16 bytes that begin `shift` bytes into a and b, 0 <= shift < 16.
DS_DEVICE piece shifted(const piece& a, const piece& b, u32 shift) {
    u32 w[7];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = shift & 8 ? (i < 2 ? a.at[i + 2] : b.at[i - 2]) : a.at[i];
#pragma unroll
    for (int i = 4; i < 7; ++i) w[i] = shift & 8 ? b.at[i - 2 < 4 ? i - 2 : 3] : b.at[i - 4];
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
    piece result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.at[i] = u32((u64(w[i + 1]) << 32 | w[i]) >> (shift & 3) * 8);
    return result;
}

DS_DEVICE piece from_lane_above(const piece& a) {
    piece r;
#pragma unroll
    for (int i = 0; i < 4; ++i) r.at[i] = __shfl_down_sync(ALL_LANES, a.at[i], 1);
    return r;
}
DS_DEVICE piece from_lane_below(const piece& a) {
    piece r;
#pragma unroll
    for (int i = 0; i < 4; ++i) r.at[i] = __shfl_up_sync(ALL_LANES, a.at[i], 1);
    return r;
}

template <class T> union elements_of_piece { piece whole; T each[16 / sizeof(T)]; };

// Of a piece, what lies from `begin` up to, and without, `end`. Where that is not all of it, a subroutine goes by elements: it is for the ends
// of rows.
template <class T> static __device__ __noinline__ piece load_elements(const char* at, const char* begin, const char* end) {
    elements_of_piece<T> u = {};
#pragma unroll
    for (int j = 0; j < int(16 / sizeof(T)); ++j) {
        const char* const p = at + j * sizeof(T);
        if (p >= begin && p < end) u.each[j] = load_aligned<T>(p);
    }
    return u.whole;
}
template <class T> static __device__ __noinline__ void store_elements(char* at, piece value, const char* begin, const char* end) {
    elements_of_piece<T> u;
    u.whole = value;
#pragma unroll
    for (int j = 0; j < int(16 / sizeof(T)); ++j) {
        char* const p = at + j * sizeof(T);
        if (p >= begin && p < end) store_aligned(p, u.each[j]);
    }
}
template <class T> DS_DEVICE piece load_piece(const char* at, const char* begin, const char* end) {
    return at >= begin && at + 16 <= end ? load_aligned<piece>(at) : load_elements<T>(at, begin, end);
}
template <class T> DS_DEVICE void store_piece(char* at, const piece& value, const char* begin, const char* end) {
    if (at >= begin && at + 16 <= end) store_aligned(at, value);
    else store_elements<T>(at, value, begin, end);
}

// The 16 bytes at p, as far as they lie between `begin` and `end`. `is_last`: the lane above has not the chunk that follows.
template <class T> DS_DEVICE piece load_across(const char* p, const char* begin, const char* end, bool is_last) {
    const u32 shift = u32((u64)p & 15);
    const piece here = load_piece<T>(p - shift, begin, end);
    piece next = from_lane_above(here);
    if (is_last && shift != 0) next = load_piece<T>(p - shift + 16, begin, end);
    return shifted(here, next, shift);
}

// `is_first`, `is_last`: the lanes below and above have not the chunks before and after.
template <class T> DS_DEVICE void store_across(char* p, const piece& value, const char* end, bool is_first, bool is_last) {
    const u32 shift = u32((u64)p & 15), back = (16 - shift) & 15;
    const piece before = from_lane_below(value);
    char* const at = p - shift;
    store_piece<T>(at, shift == 0 ? value : shifted(before, value, back), is_first ? p : at, end);
    if (is_last && shift != 0) store_piece<T>(at + 16, shifted(value, value, back), at + 16, p + 16 < end ? p + 16 : end);
}

}  // namespace ds
