// access.cpp - checks of each access to shared and to device memory.
#include <algorithm>

#include "device.hpp"

static const char* name_of(Access access) {
    return access == Access::WRITE ? "write" : access == Access::ATOMIC ? "atomic operation" : "read";
}
static bool writes(Access access) { return access == Access::WRITE || access == Access::ATOMIC; }

static void check_alignment(uintptr_t address, unsigned bytes, Access access, const void* pc) {
    // Sizes that no instruction has are structures, which a compiler moves in parts.
    if (bytes > 16 || bytes & (bytes - 1) || !(address & (bytes - 1))) return;
    report(kind::MISALIGNED, pc, nullptr, "%s of %u bytes at an address that is %u more than a multiple of them", name_of(access), bytes,
        (unsigned)(address & (bytes - 1)));
    stop_block();       // the GPU stops here too
}

static void report_race(Conflict conflict, Stamp other, Access access, const char* where, uint64_t offset, const void* pc) {
    report(kind::RACE, pc, pc_of(other.place()), "%s of %s at offset %llu, and the %s by thread %u is not ordered with it", name_of(access), where,
        (unsigned long long)offset, conflict == Conflict::WITH_WRITE ? "write" : "read", other.thread());
}

// ------------------------------------------------------------------ shared memory
__attribute__((noinline)) static bool report_shared_state(uint32_t offset, unsigned bytes, Access access, const void* pc) {
    const uint8_t* states = device.shared.states + offset;
    const uint32_t left = std::min<uint32_t>(bytes, SharedMemory::SIZE - offset);
    if (left < bytes || !all_states(states, left, ALLOCATED, ALLOCATED)) {
        report(kind::OUT_OF_BOUNDS, pc, nullptr, "%s of %u bytes at shared offset %u, outside of every array (dynamic: %u bytes from %u)",
            name_of(access), bytes, offset, device.shared.dynamic_bytes, SharedMemory::DYNAMIC_START);
        if (writes(access)) stop_block();
        return left == bytes;
    }
    if (!all_states(states, bytes, IN_FLIGHT, 0))
        report(kind::ASYNC_COPY, pc, nullptr, "%s of %u bytes at shared offset %u, which an asynchronous copy is still to fill", name_of(access),
            bytes, offset);
    else if (access != Access::WRITE)
        report(kind::UNINITIALISED, pc, nullptr, "%s of %u bytes at shared offset %u, which nothing has written in this block", name_of(access),
            bytes, offset);
    return true;
}

bool access_shared(Thread& thread, uint32_t offset, unsigned bytes, Access access, const void* pc) {
    check_alignment(offset, bytes, access, pc);
    uint8_t* states = device.shared.states + offset;
    const bool inside = offset + bytes <= SharedMemory::SIZE;
    const uint8_t wanted = access == Access::WRITE ? ALLOCATED : ALLOCATED | INITIALISED;
    if (!inside || !all_states(states, bytes, wanted | IN_FLIGHT, wanted)) {
        if (!report_shared_state(offset, bytes, access, pc)) return false;
    }
    if (writes(access)) add_states(states, bytes, INITIALISED);
    // Atomic operations are ordered with each other, and kernels use them for nothing else in shared memory.
    if (device.settings.races && access != Access::ATOMIC) {
        Stamp other;
        Conflict conflict = Conflict::NONE;
        const Stamp mine = device.clocks.stamp(thread, place_of(pc));
        const auto leave = [&](RaceCell& cell) {
            const Conflict found = device.clocks.leave(mine, writes(access), thread, cell, other);
            if (found != Conflict::NONE) conflict = found;
        };
        device.shared.histories.visit(offset, bytes, leave);
        if (conflict != Conflict::NONE) report_race(conflict, other, access, "shared memory", offset, pc);
    }
    if (device.settings.profile) device.profile.note(thread, pc, offset, bytes, writes(access), true);
    return true;
}

// ------------------------------------------------------------------ device memory
__attribute__((noinline)) static void report_global_state(uint64_t offset, unsigned bytes, Access access, const void* pc) {
    if (!all_states(device.memory.states + offset, bytes, ALLOCATED, ALLOCATED)) {
        int64_t distance;
        uint64_t count;
        device.memory.nearest(offset, distance, count);
        report(kind::OUT_OF_BOUNDS, pc, nullptr, "%s of %u bytes at offset %lld of an allocation of %llu bytes", name_of(access), bytes,
            (long long)distance, (unsigned long long)count);
        if (writes(access)) stop_block();
        return;
    }
    report(kind::UNINITIALISED, pc, nullptr, "%s of %u bytes of device memory that nothing has written", name_of(access), bytes);
}

// What other blocks of this launch did with the bytes. Blocks run one after the other here, and at the same time on a GPU.
struct BlockConflict { uint32_t writer = 0, reader = 0; };

static void check_blocks(History& history, Access access, BlockConflict& conflict) {
    const uint32_t first = device.launch.first_serial, mine = device.block.serial;
    const uint32_t writing_block = history.writer & ~History::SEVERAL, reading_block = history.reader & ~History::SEVERAL;
    const bool by_atomics = history.writer & History::SEVERAL;
    if (writing_block >= first) {
        const bool meets = access == Access::ATOMIC ? !by_atomics && writing_block != mine : by_atomics || writing_block != mine;
        if (meets || access == Access::READ_ONLY_PATH) conflict.writer = writing_block;
    }
    if (writes(access)) {
        if (reading_block >= first && history.reader != mine) conflict.reader = reading_block;
        history.writer = access == Access::ATOMIC ? mine | History::SEVERAL : mine;
    } else if (reading_block < first) {
        history.reader = mine;
    } else if (history.reader != mine) {
        history.reader = mine | History::SEVERAL;
    }
}

__attribute__((noinline)) static void report_blocks(const BlockConflict& conflict, Access access, const void* pc) {
    const uint32_t first = device.launch.first_serial;
    if (conflict.writer && access == Access::READ_ONLY_PATH)
        report(kind::CROSS_BLOCK_RACE, pc, nullptr, "read through the read-only path (.nc) of bytes that block number %u of this launch writes",
            conflict.writer - first);
    else if (conflict.writer)
        report(kind::CROSS_BLOCK_RACE, pc, nullptr, "%s of bytes that block number %u of this launch writes%s", name_of(access),
            conflict.writer - first, conflict.writer == device.block.serial ? " by atomic operations" : "");
    else if (conflict.reader)
        report(kind::CROSS_BLOCK_RACE, pc, nullptr, "%s of bytes that block number %u of this launch reads", name_of(access),
            conflict.reader - first);
}

static void check_races(const Thread& thread, uint64_t offset, unsigned bytes, Access access, const void* pc) {
    BlockConflict blocks;
    Stamp other;
    Conflict conflict = Conflict::NONE;
    const Stamp mine = device.clocks.stamp(thread, place_of(pc));
    const auto leave = [&](History& history) {
        check_blocks(history, access, blocks);
        if (access == Access::ATOMIC) return;
        const Conflict found = device.clocks.leave(mine, writes(access), thread, history.cell, other);
        if (found != Conflict::NONE) conflict = found;
    };
    device.memory.histories.visit(offset, bytes, leave);
    if (blocks.writer || blocks.reader) report_blocks(blocks, access, pc);
    if (conflict == Conflict::NONE) return;
    int64_t distance;
    uint64_t count;
    device.memory.nearest(offset, distance, count);
    report_race(conflict, other, access, "an allocation in device memory", distance, pc);
}

bool access_global(Thread& thread, uintptr_t address, unsigned bytes, Access access, const void* pc) {
    check_alignment(address, bytes, access, pc);
    const uint64_t offset = device.memory.offset(address);
    uint8_t* states = device.memory.states + offset;
    const uint8_t wanted = access == Access::WRITE ? ALLOCATED : ALLOCATED | INITIALISED;
    if (!all_states(states, bytes, wanted, wanted)) {
        report_global_state(offset, bytes, access, pc);
        if (!all_states(states, bytes, ALLOCATED, ALLOCATED)) return false;
    }
    if (writes(access)) add_states(states, bytes, INITIALISED);
    if (device.settings.races) check_races(thread, offset, bytes, access, pc);
    if (device.settings.profile) device.profile.note(thread, pc, address, bytes, writes(access), false);
    return true;
}
