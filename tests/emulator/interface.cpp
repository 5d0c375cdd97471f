// interface.cpp - the functions that the Python side calls, apart from the launch itself.
#include <cstring>

#include "device.hpp"

static uint8_t* states_at(uint64_t address) { return device.memory.states + device.memory.offset(address); }

// ------------------------------------------------------------------ memory
extern "C" uint64_t emulator_allocate(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    return device.memory.allocate(bytes);
}

extern "C" int32_t emulator_free(uint64_t address) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    return device.memory.release(address) ? 0 : -1;
}

extern "C" void emulator_arena(uint64_t* base, uint64_t* bytes) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.memory.reserve();
    *base = (uint64_t)device.memory.bytes;
    *bytes = device.memory.size;
}

extern "C" int32_t emulator_find_allocation(uint64_t address, uint64_t* start, uint64_t* bytes) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    return device.memory.find(address, *start, *bytes) ? 0 : -1;
}

// ------------------------------------------------------------------ which bytes have been written
extern "C" void emulator_mark_initialised(uint64_t address, uint64_t bytes) { memset(states_at(address), ALLOCATED | INITIALISED, bytes); }

extern "C" void emulator_mark_uninitialised(uint64_t address, uint64_t bytes) {
    memset(states_at(address), ALLOCATED, bytes);
    memset((void*)address, 0xff, bytes);
}

static bool written(uint64_t address, uint64_t bytes) { return all_states(states_at(address), (unsigned)bytes, INITIALISED, INITIALISED); }

extern "C" uint64_t emulator_count_unwritten(uint64_t address, uint64_t bytes) {
    const uint8_t* states = states_at(address);
    uint64_t count = 0;
    for (uint64_t i = 0; i < bytes; ++i) count += !(states[i] & INITIALISED);
    return count;
}

extern "C" void emulator_copy_state(uint64_t to, uint64_t from, uint64_t bytes) { memmove(states_at(to), states_at(from), bytes); }

// Calls visit(offset in the first array, offset in the second) for each element.
template <class Visit>
static void for_each_element(uint32_t ndim, const int64_t* shape, const int64_t* strides, const int64_t* other_strides, const Visit& visit,
    int64_t offset = 0, int64_t other_offset = 0) {
    if (ndim == 0) return visit(offset, other_offset);
    for (int64_t i = 0; i < shape[0]; ++i)
        for_each_element(ndim - 1, shape + 1, strides + 1, other_strides + 1, visit, offset + i * strides[0], other_offset + i * other_strides[0]);
}

extern "C" void emulator_mark_elements(uint64_t address, uint32_t ndim, const int64_t* shape, const int64_t* strides, uint32_t itemsize) {
    for_each_element(ndim, shape, strides, strides, [=](int64_t offset, int64_t) { emulator_mark_initialised(address + offset, itemsize); });
}

extern "C" uint64_t emulator_count_unwritten_elements(
    uint64_t address, uint32_t ndim, const int64_t* shape, const int64_t* strides, uint32_t itemsize) {
    uint64_t count = 0;
    for_each_element(ndim, shape, strides, strides, [&](int64_t offset, int64_t) { count += !written(address + offset, itemsize); });
    return count;
}

extern "C" void emulator_copy_element_states(uint64_t to, const int64_t* to_strides, uint64_t from, const int64_t* from_strides, uint32_t ndim,
    const int64_t* shape, uint32_t to_itemsize, uint32_t from_itemsize) {
    for_each_element(ndim, shape, to_strides, from_strides, [=](int64_t to_offset, int64_t from_offset) {
        memset(states_at(to + to_offset), written(from + from_offset, from_itemsize) ? ALLOCATED | INITIALISED : ALLOCATED, to_itemsize);
    });
}

// ------------------------------------------------------------------ settings and results
extern "C" void emulator_configure(const EmulatorSettings* settings) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.settings = *settings;
    device.random.seed(settings->seed);
}

extern "C" uint32_t emulator_fault_count(void) { return (uint32_t)device.log.faults.size(); }

extern "C" int32_t emulator_fault(uint32_t index, EmulatorFault* out) {
    if (index >= device.log.faults.size()) return -1;
    const Fault& fault = device.log.faults[index];
    out->kind = fault.kind;
    out->text = fault.text.c_str();
    memcpy(out->block, fault.block, sizeof out->block);
    memcpy(out->thread, fault.thread, sizeof out->thread);
    out->pc = (uint64_t)fault.pc;
    out->other_pc = (uint64_t)fault.other_pc;
    return 0;
}

extern "C" void emulator_statistics(EmulatorStatistics* out) { *out = device.statistics; }

extern "C" uint32_t emulator_profile_count(void) { return (uint32_t)device.profile.rows().size(); }

extern "C" int32_t emulator_profile_row(uint32_t index, EmulatorProfileRow* out) {
    if (index >= device.profile.rows().size()) return -1;
    *out = device.profile.rows()[index];
    return 0;
}

extern "C" void emulator_profile_reset(void) { device.profile.reset(); }
