#include "shared.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "memory.hpp"

static constexpr uint32_t RED_ZONE = 128;

static uint32_t round_up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

void SharedMemory::reserve() {
    if (bytes) return;
    bytes = (uint8_t*)reserve_pages(SIZE);
    states = (uint8_t*)reserve_pages(SIZE);
    void* records = reserve_pages(Histories<RaceCell>::bytes_for(SIZE));
    if (!bytes || !states || !records) throw std::bad_alloc();
    histories.place(records, SIZE);
}

void SharedMemory::start_block(uint32_t dynamic) {
    const uint32_t touched = std::min(SIZE, std::max(used, DYNAMIC_START + dynamic));
    memset(states, 0, touched);
    memset(bytes, 0xff, touched);       // NaN in every floating-point type
    // Race cells stay: their stamps are older than everything in this block.
    dynamic_bytes = dynamic;
    static_bytes = 0;
    arrays.clear();
    memset(states + DYNAMIC_START, ALLOCATED, dynamic);
    used = round_up(DYNAMIC_START + dynamic, RED_ZONE) + RED_ZONE;
}

void* SharedMemory::array(const void* key, uint32_t count, uint32_t alignment) {
    for (const Array& known : arrays)
        if (known.key == key) return bytes + known.start;
    // The declared alignment and no more: a kernel that counts on more must say so.
    const uint32_t start = round_up(used, RED_ZONE) + (alignment < 16 ? alignment : 0);
    if (count > SIZE || start + count + RED_ZONE > SIZE) return nullptr;
    memset(states + start, ALLOCATED, count);
    used = start + count + RED_ZONE;
    static_bytes = round_up(static_bytes, alignment) + count;
    arrays.push_back({key, start});
    return bytes + start;
}

void SharedMemory::forget_races() {
    histories.clear(0, SIZE, [](RaceCell* first, uint64_t records) { memset((void*)first, 0, records * sizeof *first); });
}
