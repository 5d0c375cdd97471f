// layout.cuh - where the elements of the rows lie: any strides, in bytes, along any number of axes.
#pragma once
#include "types.cuh"

namespace ds {

constexpr int MAX_RANK = 24;
// A kernel has weights and a sign, or a state: m and d - 1.
enum operand { X, Y, WHERE, SCALE, WEIGHT, SIGN, OPERANDS, M = WEIGHT, REST = SIGN };

struct axes {
    i64 rank;
    i64 length[MAX_RANK];
    i64 stride[OPERANDS][MAX_RANK];
};

// Not inlined: a division of 64 bits is a hundred instructions, and this is the way of unusual layouts.
static __device__ __noinline__ i64 offset_along_axes(const axes& a, const i64* stride, i64 index) {
    i64 bytes = 0;
    for (int k = int(a.rank) - 1; k >= 0; --k) {
        const i64 length = a.length[k];
        const i64 above = (index | length) >> 32 == 0 ? i64(u32(index) / u32(length)) : index / length;
        bytes += (index - above * length) * stride[k];
        index = above;
    }
    return bytes;
}
DS_DEVICE i64 offset(const axes& a, operand which, i64 index) {
    return a.rank == 1 ? index * a.stride[which][0] : offset_along_axes(a, a.stride[which], index);
}

// Of operands beyond those: along the outer axes alone, they have one element a row.
constexpr int MORE = 3;
struct more_strides { i64 stride[MORE][MAX_RANK]; };
DS_DEVICE i64 offset(const axes& a, const more_strides& more, int which, i64 index) {
    return a.rank == 1 ? index * more.stride[which][0] : offset_along_axes(a, more.stride[which], index);
}

// A row is one index of the outer axes; its elements are those of the inner ones.
struct layout {
    i64 rows, n;
    axes outer, inner;
};

}  // namespace ds
