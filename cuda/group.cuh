// group.cuh - reductions over the `size` neighbouring threads that work on one row: a part of a warp, a warp, or a whole block.
//
// Partners meet in an order that depends on `size` alone, and both sides of a meeting compute the same bits: every thread ends with the same
// result.
#pragma once
#include "twofold.cuh"

namespace ds {

constexpr u32 ALL_LANES = 0xffffffffu;

template <class T> DS_DEVICE T from_lane(T value, int distance) { return __shfl_xor_sync(ALL_LANES, value, distance); }
DS_DEVICE twofold from_lane(twofold value, int distance) { return {from_lane(value.high, distance), from_lane(value.low, distance)}; }

struct maximum {
    template <class T> DS_DEVICE T operator()(T a, T b) const { return larger(a, b); }
};
struct larger_integer {
    DS_DEVICE int operator()(int a, int b) const { return a > b ? a : b; }
};
struct plus {
    template <class T> DS_DEVICE T operator()(T a, T b) const { return a + b; }
};

template <int size> struct group {
    static constexpr int SIZE = size;
    static constexpr int WARPS = size > 32 ? size / 32 : 1;

    static DS_DEVICE int thread() { return int(threadIdx.x) % size; }
    // Of the group in its block.
    static DS_DEVICE int number() { return size > 32 ? 0 : int(threadIdx.x) / size; }
    // Until then, what threads of the group have written to shared memory is not there for the others.
    static DS_DEVICE void meet() {
        if (size > 32) __syncthreads();
        else __syncwarp();
    }

    // In how many threads of the group a condition holds. All threads of the block must come here.
    static DS_DEVICE int count(bool condition) {
        if (size > 32) return __syncthreads_count(condition);
        const u32 votes = __ballot_sync(ALL_LANES, condition);
        return __popc(size == 32 ? votes : votes >> (threadIdx.x % 32 / size * size) & ((1u << size % 32) - 1));
    }

    // Every thread of the block must come here; above 32 threads the block is one group.
    template <class T, class Join> static DS_DEVICE T reduce(T value, Join join) {
#pragma unroll
        for (int distance = 1; distance < size && distance < 32; distance *= 2) value = join(value, from_lane(value, distance));
        if (WARPS > 1) {
            DS_SHARED(T, parts, WARPS);
            __syncthreads();                    // the parts of the reduction before may still be read
            if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
            __syncthreads();
            value = parts[0];
#pragma unroll
            for (int warp = 1; warp < WARPS; ++warp) value = join(value, parts[warp]);
        }
        return value;
    }
};

}  // namespace ds
