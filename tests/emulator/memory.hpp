// memory.hpp - device memory: one arena, its allocator, and what is known of each byte.
#pragma once
#include <cstdint>
#include <map>

#include "histories.hpp"
#include "races.hpp"

enum ByteState : uint8_t { ALLOCATED = 1, INITIALISED = 2, IN_FLIGHT = 4 };      // IN_FLIGHT: the target of an asynchronous copy

// Whether all bytes have, of the states in `mask`, exactly those in `wanted`.
inline bool all_states(const uint8_t* states, unsigned bytes, uint8_t mask, uint8_t wanted) {
    constexpr uint64_t EACH = 0x0101010101010101;
    unsigned i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t eight;
        __builtin_memcpy(&eight, states + i, 8);
        if ((eight & EACH * mask) != EACH * wanted) return false;
    }
    for (; i < bytes; ++i)
        if ((states[i] & mask) != wanted) return false;
    return true;
}

inline void add_states(uint8_t* states, unsigned bytes, uint8_t added) {
    constexpr uint64_t EACH = 0x0101010101010101;
    unsigned i = 0;
    for (; i + 8 <= bytes; i += 8) {
        uint64_t eight;
        __builtin_memcpy(&eight, states + i, 8);
        eight |= EACH * added;
        __builtin_memcpy(states + i, &eight, 8);
    }
    for (; i < bytes; ++i) states[i] |= added;
}

// Who touched a byte. Blocks have serial numbers that go on from launch to launch: those of an earlier launch are smaller.
struct History {
    static constexpr uint32_t SEVERAL = 1u << 31;       // reader: more than one block; writer: by atomic operations, which may meet

    uint32_t writer, reader;
    RaceCell cell;

    bool is_split() const { return cell.is_split(); }
    void mark_split() { cell.mark_split(); }
};

class Memory {
public:
    // Reserves the arena at the first use. Where there is no room at all it stays empty, and allocations fail.
    void reserve();
    bool holds(uintptr_t address) const { return address - (uintptr_t)bytes < size; }
    uint64_t offset(uintptr_t address) const { return address - (uintptr_t)bytes; }

    uint64_t allocate(uint64_t count);                      // an address, 0 if there is no room
    bool release(uint64_t address);
    bool find(uint64_t address, uint64_t& start, uint64_t& count) const;
    void nearest(uint64_t offset, int64_t& distance, uint64_t& count) const;       // from the start of the allocation before; count 0: none

    void forget_histories();

    uint8_t* bytes = nullptr;
    uint8_t* states = nullptr;      // ByteState of each byte of the arena
    Histories<History> histories;
    uint64_t size = 0;

private:
    static constexpr uint64_t ALIGNMENT = 512;              // as CuPy's pool
    static constexpr uint64_t RED_ZONE = 4096;              // between allocations

    void clear(uint64_t start, uint64_t count);

    std::map<uint64_t, uint64_t> allocations, holes;        // offset to size; a hole's size includes the red zones
    uint64_t rover = 0;             // the search for a hole starts here, so that freed memory is used again as late as possible
};

// Address space that costs memory only where it is touched, filled with 0; nullptr if there is none.
void* reserve_pages(uint64_t bytes);
