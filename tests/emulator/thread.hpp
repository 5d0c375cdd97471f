// thread.hpp - one thread of a block, and sets of threads.
#pragma once
#include <cstdint>
#include <vector>

#include "kernel_abi.hpp"

constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned MAX_WARPS = MAX_THREADS / 32;

struct AsyncCopy {
    uint32_t to;                // offset in shared memory
    const uint8_t* from;
    uint8_t bytes, source_bytes;
    const void* pc;
};

enum class ThreadState : uint8_t { READY, AT_BARRIER, IN_COLLECTIVE, RETURNED };

struct Thread {
    void* context;
    EmulatorTriple index;
    uint16_t number;            // in the block
    uint8_t warp, lane;
    ThreadState state;
    uint8_t barrier;            // where it waits: number, line, program counter
    int line;
    const void* pc;
    std::vector<AsyncCopy> open_copies;                     // not in a group yet
    std::vector<std::vector<AsyncCopy>> copy_groups;        // oldest first
};

class ThreadSet {
public:
    bool empty() const { return !occupied; }
    void clear() { for (uint64_t& word : words) word = 0; occupied = 0; }
    void add(unsigned thread) { words[thread / 64] |= 1ull << thread % 64; occupied |= 1u << thread / 64; }
    void add_warp(unsigned warp, uint32_t lanes) {
        words[warp / 2] |= (uint64_t)lanes << warp % 2 * 32;
        if (lanes) occupied |= 1u << warp / 2;
    }
    void remove(unsigned thread) {
        if (!(words[thread / 64] &= ~(1ull << thread % 64))) occupied &= ~(1u << thread / 64);
    }
    unsigned first() const { return lowest(__builtin_ctz(occupied)); }
    unsigned last() const {
        const unsigned word = 31 - __builtin_clz(occupied);
        return word * 64 + 63 - __builtin_clzll(words[word]);
    }
    // The first at or after `thread`, going round.
    unsigned next(unsigned thread) const {
        const uint64_t here = words[thread / 64] >> thread % 64;
        if (here) return thread + __builtin_ctzll(here);
        const uint32_t above = occupied & ~((2u << thread / 64) - 1);
        return above ? lowest(__builtin_ctz(above)) : first();
    }

private:
    unsigned lowest(unsigned word) const { return word * 64 + __builtin_ctzll(words[word]); }

    uint64_t words[MAX_THREADS / 64] = {};
    uint32_t occupied = 0;      // a bit for each word that is not 0
};
