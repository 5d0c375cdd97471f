// softmax_kept.cu - softmax and, with DS_LOG, log_softmax of rows that fit the shared memory of a block: read once from memory, twice from there.
//
// Each thread keeps what it reads and reads what it kept: no thread waits for another between its two looks at the row.
#include "reduced.cuh"
#include "results.cuh"

namespace ds {

// Segments on their way while one is summed up.
#if __CUDA_ARCH__ >= 800
constexpr int AHEAD = 4;
#else
constexpr int AHEAD = 0;
#endif
constexpr int MOST_SEGMENTS = 64;
static_assert(sizeof(vector) == 16, "what one copy moves");

DS_DEVICE vector* place_of(int segment, int slot) {
    DS_DYNAMIC_SHARED(kept);
    return (vector*)kept + (segment * DS_SLOTS + slot) * DS_GROUP + team::thread();
}

DS_DEVICE int bytes_of(i64 elements) { return int(elements < 0 ? 0 : elements < DS_CHUNK ? elements : i64(DS_CHUNK)) * int(sizeof(x_type)); }

// Sets out to keep a segment. Past the last one there is nothing to do.
DS_DEVICE void keep(const row& from, int segment, bool aligned) {
#if __CUDA_ARCH__ >= 800
    if (aligned) {
#pragma unroll
        for (int slot = 0; slot < DS_SLOTS; ++slot) {
            const i64 first = first_of(segment, slot);
            if (first < from.length) copy_async(place_of(segment, slot), (const x_type*)from.x + first, bytes_of(from.length - first));
        }
    }
    copy_async_commit();
    if (aligned) return;
#endif
#pragma unroll 1
    for (int slot = 0; slot < DS_SLOTS; ++slot) {
        const i64 first = first_of(segment, slot);
        const vector v = load_chunk(from, first, aligned);
        if (first < from.length) *place_of(segment, slot) = v;
    }
}

DS_DEVICE share kept_share(const row& from, int segment) {
    share mine;
    mine.visible = 0;
#pragma unroll
    for (int slot = 0; slot < DS_SLOTS; ++slot) {
        const i64 first = first_of(segment, slot);
        unpack(mine, first < from.length ? *place_of(segment, slot) : vector{}, from, first, slot);
    }
    return mine;
}

struct part_of_block {
    const pair* pairs;
    DS_DEVICE pair operator()(i64 i) const { return pairs[i]; }
};

// The pair of the row; the row stays in shared memory.
DS_DEVICE pair pair_of_kept(const row& from, const axes& inner) {
    DS_SHARED(pair, pairs, MOST_SEGMENTS);
    const int segments = int(segments_of(from.length));
    const bool aligned = are_aligned<vector>(from.x);
#pragma unroll 1
    for (int segment = 0; segment < AHEAD; ++segment) keep(from, segment, aligned);
    for (int segment = 0; segment < segments; ++segment) {
        keep(from, segment + AHEAD, aligned);
#if __CUDA_ARCH__ >= 800
        copy_async_wait<AHEAD>();
#endif
        share mine = kept_share(from, segment);
        const pair p = pair_of_segment(mine, largest(mine));
        if (threadIdx.x == 0) pairs[segment] = p;
    }
    __syncthreads();
    return join(segments, part_of_block{pairs});
}

}  // namespace ds

extern "C" __global__ void __launch_bounds__(ds::BLOCK, 2)
    softmax_kept(const char* x, const char* scale, double factor, char* y, const __grid_constant__ ds::layout at) {
    using namespace ds;
    const inputs in = {x, nullptr, scale, factor};
    for (i64 index = blockIdx.x; index < at.rows; index += gridDim.x) {
        const row from = row_of(in, at, index);
        char* const to = y + offset(at.outer, Y, index);
        const pair p = pair_of_kept(from, at.inner);
        const normalizer by = normalizer_of(p.m, state_rest(p));
#if DS_LOG
        const logarithm result = {rounded<compute>::of(by.log_of_d)};
#else
        const probability result = {rounded<compute>::of(by.inverse)};
#endif
        for (int segment = 0; segment < int(segments_of(from.length)); ++segment)
            write(kept_share(from, segment), from, to, at.inner, segment, by.shift, result);
    }
}
