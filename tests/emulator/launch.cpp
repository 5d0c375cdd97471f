// launch.cpp - a launch: its checks, its blocks one after the other, its faults.
#include <link.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

#include "device.hpp"

Device device;

static constexpr uint64_t DEFAULT_BUDGET = 1ull << 29;

void report(const char* kind, const void* pc, const void* other_pc, const char* format, ...) {
    FaultLog& log = device.log;
    if (!log.known(kind, pc)) {
        char text[400];
        va_list values;
        va_start(values, format);
        vsnprintf(text, sizeof text, format, values);
        va_end(values);
        Fault fault = {kind, text, {}, {}, pc, other_pc};
        if (const Thread* thread = device.running) {
            const EmulatorTriple block = device.block.index, index = thread->index;
            memcpy(fault.block, &block, sizeof block);
            memcpy(fault.thread, &index, sizeof index);
        }
        log.faults.push_back(std::move(fault));
    }
    if (log.full() && device.running) stop_block();
}

// ------------------------------------------------------------------ built-in variables
extern "C" EmulatorTriple emulator_thread_index(void) { return device.running->index; }
extern "C" EmulatorTriple emulator_block_index(void) { return device.block.index; }
extern "C" EmulatorTriple emulator_block_extent(void) { return device.launch.block; }
extern "C" EmulatorTriple emulator_grid_extent(void) { return device.launch.grid; }

// ------------------------------------------------------------------ what a launch needs to know
static int32_t refuse(int32_t code, const char* text) {
    report(kind::LAUNCH, nullptr, nullptr, "%s", text);
    return code;
}

static int32_t check(const EmulatorLaunch& request) {
    char text[200];
    const uint32_t *grid = request.grid, *block = request.block;
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535) {
        snprintf(text, sizeof text, "a grid of (%u, %u, %u) blocks: from 1 to (2147483647, 65535, 65535) can be", grid[0], grid[1],
            grid[2]);
        return refuse(1, text);
    }
    if (!threads || block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > MAX_THREADS) {
        snprintf(text, sizeof text, "a block of (%u, %u, %u) threads: up to (1024, 1024, 64) and 1024 in all can be", block[0], block[1],
            block[2]);
        return refuse(2, text);
    }
    if (request.kernel->max_threads && threads > request.kernel->max_threads) {
        snprintf(text, sizeof text, "%u threads a block, and the kernel's __launch_bounds__ are %u", (unsigned)threads, request.kernel->max_threads);
        return refuse(3, text);
    }
    if (request.dynamic_shared > request.total_limit) {
        snprintf(text, sizeof text, "%u bytes of dynamic shared memory, and the limit is %u", request.dynamic_shared, request.total_limit);
        return refuse(4, text);
    }
    return 0;
}

static int find_library(dl_phdr_info* info, size_t, void* entry) {
    uintptr_t begin = ~(uintptr_t)0, end = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        begin = std::min<uintptr_t>(begin, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        end = std::max<uintptr_t>(end, info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz);
    }
    if ((uintptr_t)entry < begin || (uintptr_t)entry >= end) return 0;
    device.launch.library_begin = begin;
    device.launch.library_end = end;
    return 1;
}

// The arguments as the driver takes them at a launch: a copy of their own.
struct Arguments {
    explicit Arguments(const EmulatorLaunch& request) {
        const EmulatorKernel& kernel = *request.kernel;
        size_t total = 0;
        std::vector<size_t> offsets;
        for (unsigned i = 0; i < kernel.parameter_count; ++i) {
            const size_t unit = std::max(16u, kernel.parameters[i].alignment);
            total = (total + unit - 1) / unit * unit;
            offsets.push_back(total);
            total += kernel.parameters[i].size;
        }
        constexpr size_t LARGEST_ALIGNMENT = 128;
        const size_t pointers_at = (total + 15) / 16 * 16;
        storage.resize(pointers_at + kernel.parameter_count * sizeof(void*) + LARGEST_ALIGNMENT);
        uint8_t* base = (uint8_t*)(((uintptr_t)storage.data() + LARGEST_ALIGNMENT - 1) / LARGEST_ALIGNMENT * LARGEST_ALIGNMENT);
        pointers = (void**)(base + pointers_at);
        for (unsigned i = 0; i < kernel.parameter_count; ++i) {
            pointers[i] = base + offsets[i];
            memcpy(pointers[i], request.arguments[i], kernel.parameters[i].size);
        }
    }

    std::vector<uint8_t> storage;
    void** pointers;
};

static void prepare(const EmulatorLaunch& request, Arguments& arguments) {
    Launch& launch = device.launch;
    launch = Launch();
    launch.request = &request;
    launch.grid = {request.grid[0], request.grid[1], request.grid[2]};
    launch.block = {request.block[0], request.block[1], request.block[2]};
    launch.thread_count = request.block[0] * request.block[1] * request.block[2];
    launch.warp_count = (launch.thread_count + 31) / 32;
    launch.arguments = arguments.pointers;
    launch.arguments_begin = (uintptr_t)arguments.storage.data();
    launch.arguments_end = launch.arguments_begin + arguments.storage.size();
    launch.budget = device.settings.budget ? device.settings.budget : DEFAULT_BUDGET;
    dl_iterate_phdr(find_library, (void*)request.kernel->entry);
}

// ------------------------------------------------------------------ blocks in the order of the schedule
static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Visits all blocks: up, down, or from a random one in random steps that reach every block because they share no divisor with the count.
static void run_blocks() {
    const EmulatorTriple grid = device.launch.grid;
    const uint64_t count = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t number = 0, step = 1;
    if (device.settings.schedule == EMULATOR_DESCENDING) {
        number = count - 1;
        step = count - 1;
    } else if (device.settings.schedule == EMULATOR_RANDOM) {
        number = device.random.next() % count;
        do step = device.random.next() % count + 1;
        while (greatest_common_divisor(step, count) != 1);
    }
    for (uint64_t i = 0; i < count && !device.log.full(); ++i) {
        device.block.index = {(uint32_t)(number % grid.x), (uint32_t)(number / grid.x % grid.y), (uint32_t)(number / grid.x / grid.y)};
        // In the order of the grid, so that a serial tells which block it was.
        device.block.serial = device.launch.first_serial + (uint32_t)(number % (History::SEVERAL / 2));
        device.shared.start_block(device.launch.request->dynamic_shared);
        run_block();
        ++device.statistics.blocks;
        number = (number + step) % count;
    }
}

static void reserve_serials() {
    const EmulatorTriple grid = device.launch.grid;
    const uint64_t count = std::min<uint64_t>((uint64_t)grid.x * grid.y * grid.z, History::SEVERAL / 2);
    if (device.next_serial + count >= History::SEVERAL) {
        device.memory.forget_histories();
        device.next_serial = 1;
    }
    device.launch.first_serial = device.next_serial;
    device.next_serial += (uint32_t)count;
}

extern "C" int32_t emulator_launch(const EmulatorLaunch* request) {
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.log.faults.clear();
    device.statistics = {};
    device.memory.reserve();
    device.shared.reserve();
    if (const int32_t refused = check(*request)) return refused;
    Arguments arguments(*request);
    prepare(*request, arguments);
    reserve_serials();
    run_blocks();
    device.launch.request = nullptr;
    return 0;
}
