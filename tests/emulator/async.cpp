// async.cpp - cp.async: copies from device to shared memory that end when their group is waited for.
#include <cstring>

#include "device.hpp"

// Source and target are checked when the copy is issued. Its target stays poisoned until a wait, the latest time at which a GPU may fill it.
extern "C" void emulator_copy_async(unsigned to, unsigned long long from, int bytes, int source_bytes) {
    const void* pc = __builtin_return_address(0);
    Thread& thread = *device.running;
    ++device.statistics.accesses;
    count_step(pc);
    const bool has_size = bytes == 4 || bytes == 8 || bytes == 16;
    if (!has_size || source_bytes < 0 || source_bytes > bytes || (uint64_t)to + (has_size ? bytes : 0) > SharedMemory::SIZE) {
        report(kind::ASYNC_COPY, pc, nullptr, "cp.async of %d bytes, %d of them from memory, to shared offset %u", bytes, source_bytes, to);
        stop_block();
    }
    if (from % bytes) {
        report(kind::MISALIGNED, pc, nullptr, "cp.async of %d bytes from an address that is %u more than a multiple of them", bytes,
            (unsigned)(from % bytes));
        stop_block();
    }
    if (source_bytes) {
        if (!device.memory.holds(from)) {
            report(kind::OUT_OF_BOUNDS, pc, nullptr, "cp.async from %p, which is no device address", (void*)from);
            stop_block();
        }
        if (!access_global(thread, from, source_bytes, Access::READ, pc)) source_bytes = 0;
    }
    if (!access_shared(thread, to, bytes, Access::WRITE, pc)) return;
    memset(device.shared.bytes + to, 0xff, bytes);
    for (int i = 0; i < bytes; ++i) device.shared.states[to + i] |= IN_FLIGHT;
    thread.open_copies.push_back({to, (const uint8_t*)from, (uint8_t)bytes, (uint8_t)source_bytes, pc});
}

extern "C" void emulator_copy_async_commit(void) {
    Thread& thread = *device.running;
    thread.copy_groups.push_back(std::move(thread.open_copies));
    thread.open_copies.clear();
}

// The copied bytes count as written now by the waiting thread: others still need a barrier to see them.
static void finish(Thread& thread, const AsyncCopy& copy) {
    uint8_t* target = device.shared.bytes + copy.to;
    memset(target, 0, copy.bytes);
    if (copy.source_bytes) memcpy(target, copy.from, copy.source_bytes);
    for (int i = 0; i < copy.bytes; ++i) device.shared.states[copy.to + i] &= (uint8_t)~IN_FLIGHT;
    const uint32_t profile = device.settings.profile;
    device.settings.profile = 0;        // the copy was counted when it was issued
    access_shared(thread, copy.to, copy.bytes, Access::WRITE, copy.pc);
    device.settings.profile = profile;
}

extern "C" void emulator_copy_async_wait(int groups_left) {
    Thread& thread = *device.running;
    auto& groups = thread.copy_groups;
    while (groups.size() > (size_t)groups_left) {
        for (const AsyncCopy& copy : groups.front()) finish(thread, copy);
        groups.erase(groups.begin());
    }
}
