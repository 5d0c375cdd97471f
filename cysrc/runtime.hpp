// runtime.hpp - threads, their scratch memory, and the size of the cache.
#pragma once
#include <cstdlib>
#include <unistd.h>
#if defined(_OPENMP)
#include <omp.h>
#endif
#include "simd.hpp"

namespace {

#if defined(_OPENMP)
constexpr int HAS_OPENMP = 1;
inline int openmp_threads() { return omp_get_max_threads(); }
inline int in_parallel() { return omp_in_parallel(); }
// A forked child of libgomp waits for threads that do not exist there: give them back before the fork. A soft pause does so; after a
// hard one LLVM's libomp, which needs none, ends the child with a failed assertion.
inline void openmp_pause() { if (!omp_in_parallel()) omp_pause_resource_all(omp_pause_soft); }
#else
constexpr int HAS_OPENMP = 0;
inline int openmp_threads() { return 1; }
inline int in_parallel() { return 0; }
inline void openmp_pause() {}
#endif

// What a thread keeps between calls: fresh pages would cost more than the arithmetic of a small call. One allocation of fixed parts, of which only
// what is used becomes resident; the sizes follow from the constants in kernels.pyx.
enum scratch_slot { SLOT_EXP, SLOT_SOURCE, SLOT_WEIGHTS, SLOT_BLOCK_MAX, SLOT_WIDE, SLOT_COUNT };
constexpr size_t KB = 1024, SLOT_BYTES[SLOT_COUNT] = {520 * KB, 776 * KB, 68 * KB, 40 * KB, 16 * KB};

struct scratch_memory {
    char* at[SLOT_COUNT] = {};
    scratch_memory() {
        size_t total = 0;
        for (size_t bytes : SLOT_BYTES) total += bytes;
        char* p = (char*)std::aligned_alloc(4096, (total + 4095) / 4096 * 4096);
        for (int slot = 0; p && slot < SLOT_COUNT; p += SLOT_BYTES[slot++]) at[slot] = p;
    }
    ~scratch_memory() { std::free(at[0]); }
};
inline scratch_memory& my_scratch() {
    static thread_local scratch_memory mine;
    return mine;
}
inline bool scratch_ready() { return my_scratch().at[0] != nullptr; }
inline void* scratch(int slot) { return my_scratch().at[slot]; }

// Memory of any size that a thread keeps for its next call, or nullptr. What was in it is lost.
struct grown_memory {
    void* at = nullptr;
    size_t size = 0;
    ~grown_memory() { std::free(at); }
};
inline void* work_memory(size_t bytes) {
    static thread_local grown_memory mine;
    if (bytes > mine.size) {
        std::free(mine.at);
        mine.size = (bytes + 4095) / 4096 * 4096;
        mine.at = std::aligned_alloc(4096, mine.size);
        if (!mine.at) mine.size = 0;
    }
    return mine.at;
}

// Outputs of more bytes than this bypass the cache: with their inputs they would take up most of the last level. Some systems report the
// caches of all sockets as one, so no more than a common size is believed.
inline ptrdiff_t stream_threshold() {
    constexpr long common = 32L << 20;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    static const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (l3 > 0) return (l3 < common ? l3 : common) / 3;
#endif
    return common / 3;
}

}  // namespace
