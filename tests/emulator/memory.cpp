#include "memory.hpp"

#include <sys/mman.h>

#include <cstring>
#include <iterator>

void* reserve_pages(uint64_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

static uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

void Memory::reserve() {
    if (bytes) return;
    // A limit on address space may forbid the full size: half of it serves most uses.
    for (uint64_t trial = 4ull << 30; trial >= 64 << 20; trial /= 2) {
        uint8_t* start = (uint8_t*)reserve_pages(2 * trial + Histories<History>::bytes_for(trial));
        if (!start) continue;
        bytes = start;
        states = bytes + trial;
        histories.place(states + trial, trial);
        size = trial;
        holes[RED_ZONE] = trial - RED_ZONE;
        return;
    }
}

uint64_t Memory::allocate(uint64_t count) {
    reserve();
    if (count == 0) count = 1;
    if (count > size) return 0;
    const uint64_t needed = round_up(count, ALIGNMENT) + RED_ZONE;
    auto fits = [&](auto from, auto to) {
        while (from != to && from->second < needed) ++from;
        return from;
    };
    auto start = holes.lower_bound(rover);
    auto hole = fits(start, holes.end());
    if (hole == holes.end()) {
        hole = fits(holes.begin(), start);
        if (hole == start) return 0;
    }
    const uint64_t offset = hole->first, left = hole->second - needed;
    holes.erase(hole);
    if (left) holes[offset + needed] = left;
    rover = offset + needed;
    allocations[offset] = count;
    memset(bytes + offset, 0xff, count);        // NaN in every floating-point type
    memset(states + offset, ALLOCATED, count);
    return (uint64_t)(bytes + offset);
}

bool Memory::release(uint64_t address) {
    if (!holds(address)) return false;
    auto found = allocations.find(offset(address));
    if (found == allocations.end()) return false;
    const uint64_t start = found->first, count = found->second;
    allocations.erase(found);
    clear(start, count);
    auto [hole, inserted] = holes.emplace(start, round_up(count, ALIGNMENT) + RED_ZONE);
    const auto following = std::next(hole);
    if (following != holes.end() && hole->first + hole->second == following->first) {
        hole->second += following->second;
        holes.erase(following);
    }
    if (hole != holes.begin()) {
        const auto before = std::prev(hole);
        if (before->first + before->second == hole->first) {
            before->second += hole->second;
            holes.erase(hole);
        }
    }
    return true;
}

// Histories must not outlive the allocation. Whole pages are given back, which clears them too.
template <class T> static void clear_range(T* array, uint64_t start, uint64_t count) {
    constexpr uintptr_t PAGE = 4096, LARGE = 64 << 10;
    uintptr_t from = (uintptr_t)(array + start), to = (uintptr_t)(array + start + count);
    if (to - from >= LARGE) {
        const uintptr_t inner_from = round_up(from, PAGE), inner_to = to / PAGE * PAGE;
        if (madvise((void*)inner_from, inner_to - inner_from, MADV_DONTNEED) == 0) {
            memset((void*)from, 0, inner_from - from);
            from = inner_to;
        }
    }
    memset((void*)from, 0, to - from);
}

void Memory::clear(uint64_t start, uint64_t count) {
    clear_range(bytes, start, count);
    clear_range(states, start, count);
    histories.clear(start, count, [](History* first, uint64_t records) { clear_range(first, 0, records); });
}

bool Memory::find(uint64_t address, uint64_t& start, uint64_t& count) const {
    if (!holds(address)) return false;
    auto found = allocations.upper_bound(offset(address));
    if (found == allocations.begin()) return false;
    --found;
    if (offset(address) >= found->first + found->second) return false;
    start = (uint64_t)(bytes + found->first);
    count = found->second;
    return true;
}

void Memory::nearest(uint64_t offset, int64_t& distance, uint64_t& count) const {
    distance = 0;
    count = 0;
    auto found = allocations.upper_bound(offset);
    // Just before an allocation: say so, instead of far behind the one before.
    if (found != allocations.end() && found->first - offset <= RED_ZONE / 2) {
        distance = (int64_t)(offset - found->first);
        count = found->second;
    } else if (found != allocations.begin()) {
        --found;
        distance = (int64_t)(offset - found->first);
        count = found->second;
    }
}

void Memory::forget_histories() {
    histories.clear(0, size, [](History* first, uint64_t records) { clear_range(first, 0, records); });
}
