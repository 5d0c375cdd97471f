// device.hpp - the emulated device: everything that a launch works with.
#pragma once
#include <cstdint>
#include <mutex>

#include "collectives.hpp"
#include "faults.hpp"
#include "fibers.hpp"
#include "host_abi.hpp"
#include "memory.hpp"
#include "profile.hpp"
#include "races.hpp"
#include "shared.hpp"
#include "thread.hpp"

class Random {
public:
    void seed(uint64_t seed) { state = (seed + 1) * 0x9e3779b97f4a7c15ull | 1; }
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    unsigned below(unsigned bound) { return (unsigned)((next() >> 32) * bound >> 32); }

private:
    uint64_t state = 1;
};

// What stays the same for all blocks of a launch.
struct Launch {
    const EmulatorLaunch* request = nullptr;
    EmulatorTriple grid = {}, block = {};
    unsigned thread_count = 0, warp_count = 0;
    void** arguments = nullptr;
    uintptr_t library_begin = 0, library_end = 0;           // the kernel's code and constants
    uintptr_t arguments_begin = 0, arguments_end = 0;       // the copy of the arguments
    uint32_t first_serial = 0;                              // of this launch's blocks
    uint64_t budget = 0;
};

struct Barrier {
    unsigned arrived = 0;
    int expected = 0;           // 0: all threads that have not returned
    int line = 0;
    const void* pc = nullptr;
    int predicates = 0;         // how many threads came with a true one
    Clocks::Joint joint = {};
};

struct Block {
    static constexpr int BARRIERS = 16;

    EmulatorTriple index = {};
    uint32_t serial = 0;
    Thread threads[MAX_THREADS];
    ThreadSet ready, yielded;       // yielded: ready too, but the others come first
    unsigned returned = 0;
    uint64_t steps = 0;             // accesses and switches
    Barrier barriers[BARRIERS];
    int barrier_result = 0;
    Warp warps[MAX_WARPS];
    bool stopping = false;
    void* launcher = nullptr;       // the context to return to when no thread can go on
};

struct Device {
    std::mutex mutex;
    EmulatorSettings settings = {};
    EmulatorStatistics statistics = {};
    Random random;
    Memory memory;
    SharedMemory shared;
    Stacks stacks;
    Clocks clocks;
    FaultLog log;
    Profile profile;
    Launch launch;
    Block block;
    Thread* running = nullptr;      // nullptr outside of kernels
    uint32_t next_serial = 1;
};

extern Device device;

// The place of a program counter in a stamp, and back. Kernel libraries are small: 29 bits from their start.
inline uint32_t place_of(const void* pc) { return (uint32_t)((uintptr_t)pc - device.launch.library_begin); }
inline const void* pc_of(uint32_t place) { return (const void*)(device.launch.library_begin + place); }

// Of the scheduler (scheduler.cpp).
void run_block();
void wait_for_others();                     // leaves the running thread, whose state says what it waits for
void let_others_run();                      // leaves the running thread, which stays ready
void make_ready(Thread& thread);
[[noreturn]] void stop_block();             // nothing of the block runs on
[[noreturn]] void stop_endless_block(const void* pc);
void check_open_barriers();                 // after a thread has returned

// Counts an access or a switch against the block's budget.
inline void count_step(const void* pc) {
    if (++device.block.steps > device.launch.budget) stop_endless_block(pc);
}

// Checks of memory (access.cpp), for accesses that no hook announces.
enum class Access : uint8_t { READ, WRITE, READ_ONLY_PATH, ATOMIC };
bool access_shared(Thread& thread, uint32_t offset, unsigned bytes, Access access, const void* pc);
bool access_global(Thread& thread, uintptr_t address, unsigned bytes, Access access, const void* pc);
