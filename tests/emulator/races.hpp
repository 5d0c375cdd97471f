// races.hpp - which accesses of a block are ordered by its barriers.
//
// Each warp has a clock that advances when the warp takes part in a barrier or a __syncwarp. An access leaves a stamp (clock, thread, place) with the
// bytes it touches. A later access by another thread is ordered after it only if synchronisation has carried that clock to the later thread: so a
// missing barrier is found whatever order the threads happened to run in. Shuffles and votes order no memory, in CUDA as here.
#pragma once
#include <cstdint>

#include "thread.hpp"

class Stamp {
public:
    static constexpr uint32_t MAX_CLOCK = (1u << 24) - 1;

    Stamp() = default;
    Stamp(uint32_t clock, unsigned thread, uint32_t place) : bits(clock | (uint64_t)thread << 24 | (uint64_t)place << 34 | 1ull << 63) {}
    bool used() const { return bits >> 63; }
    uint32_t clock() const { return bits & MAX_CLOCK; }
    unsigned thread() const { return bits >> 24 & 1023; }
    uint32_t place() const { return bits >> 34 & 0x1fffffff; }
    bool operator==(const Stamp& other) const { return bits == other.bits; }
    static Stamp impossible() { return Stamp(MAX_CLOCK, 1023, 0x1fffffff); }

private:
    uint64_t bits;      // zero pages of memory are unused stamps
};

// Of a byte, or a word. Two readers are enough to catch a write that is unordered with any of them in practice; keeping all would take a list.
struct RaceCell {
    Stamp write, read, other_read;

    bool is_split() const { return write == Stamp::impossible(); }
    void mark_split() { write = Stamp::impossible(); }
};

enum class Conflict { NONE, WITH_WRITE, WITH_READ };

class Clocks {
public:
    // False when the clocks are about to overflow: all cells must then be cleared, and `reset` called.
    bool start_block(unsigned warp_count);
    void reset() { base = 0; }

    Stamp stamp(const Thread& thread, uint32_t place) const { return Stamp(now[thread.warp], thread.number, place); }
    // Compares an access with the stamps that others left, and leaves its own.
    Conflict leave(Stamp mine, bool write, const Thread& thread, RaceCell& cell, Stamp& other) const {
        Conflict conflict = Conflict::NONE;
        if (!ordered(cell.write, thread)) {
            conflict = Conflict::WITH_WRITE;
            other = cell.write;
        }
        if (write) {
            for (Stamp reader : {cell.read, cell.other_read}) {
                if (ordered(reader, thread)) continue;
                conflict = Conflict::WITH_READ;
                other = reader;
            }
            cell = {mine, Stamp(), Stamp()};
        } else if (ordered(cell.read, thread)) {
            cell.read = mine;
        } else {
            cell.other_read = mine;
        }
        return conflict;
    }
    bool ordered(Stamp stamp, const Thread& thread) const {
        const unsigned warp = stamp.thread() / 32, lane = stamp.thread() % 32;
        if (!stamp.used() || stamp.thread() == thread.number || stamp.clock() == Stamp::MAX_CLOCK) return true;
        if (warp != thread.warp) return stamp.clock() <= known[thread.warp][warp];
        return stamp.clock() < floor[warp] || (split[warp] && stamp.clock() < lane_known[warp][thread.lane][lane]);
    }
    void sync_warp(unsigned warp, uint32_t lanes, uint32_t all_lanes);

    // A barrier collects what its threads know, and gives it to those that wait.
    struct Joint { uint32_t clock[MAX_WARPS]; };
    void collect(unsigned warp, Joint& joint) const;
    void spread(unsigned warp, const Joint& joint);
    void advance(unsigned warp);

private:
    uint32_t base = 0, highest = 0;         // stamps of blocks before lie at or below base: ordered
    uint32_t now[MAX_WARPS];
    uint32_t known[MAX_WARPS][MAX_WARPS];   // [a][b]: accesses of warp b up to this clock come before what warp a does now
    uint32_t floor[MAX_WARPS];              // accesses in the warp below this clock come before what any of its lanes does now
    bool split[MAX_WARPS];                  // a part of the warp has synchronised by itself: lanes know different things
    uint32_t lane_known[MAX_WARPS][32][32];
};
