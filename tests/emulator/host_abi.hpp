// host_abi.hpp - what the Python side calls, by ctypes.
#pragma once
#include <cstdint>

#include "kernel_abi.hpp"

#pragma GCC visibility push(default)
extern "C" {

enum EmulatorSchedule : uint32_t { EMULATOR_ASCENDING, EMULATOR_DESCENDING, EMULATOR_RANDOM };

struct EmulatorSettings {
    uint32_t schedule;      // EmulatorSchedule, of threads and of blocks
    uint32_t preempt;       // also switch threads at memory accesses
    uint32_t races;         // look for races
    uint32_t profile;
    uint32_t perturb;       // move the results of approximate instructions within their documented error
    uint32_t reserved;
    uint64_t seed;
    uint64_t budget;        // accesses and switches of one block, after which it is stopped as endless; 0: a default
};

struct EmulatorLaunch {
    const EmulatorKernel* kernel;
    void** arguments;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t dynamic_shared;        // bytes
    uint32_t static_limit;          // bytes
    uint32_t total_limit;           // bytes, static and dynamic together
    uint32_t reserved;
};

struct EmulatorFault {
    const char* kind;
    const char* text;
    uint32_t block[3];
    uint32_t thread[3];
    uint64_t pc;            // return address in the kernel's library, or 0
    uint64_t other_pc;      // of the other party to a race or a divergence, or 0
};

struct EmulatorStatistics { uint64_t switches, accesses, collectives, matrix_products, blocks, static_shared; };

struct EmulatorProfileRow {
    uint64_t pc;
    uint64_t requests;      // of warps
    uint64_t units;         // 32-byte sectors of global memory, wavefronts of shared memory
    uint64_t ideal;         // units that the same bytes would take at best
    uint32_t bytes;         // of one thread
    uint32_t shared, write, reserved;
};

uint64_t emulator_allocate(uint64_t bytes);
int32_t emulator_free(uint64_t address);
void emulator_arena(uint64_t* base, uint64_t* bytes);
int32_t emulator_find_allocation(uint64_t address, uint64_t* start, uint64_t* bytes);
void emulator_mark_initialised(uint64_t address, uint64_t bytes);
void emulator_mark_uninitialised(uint64_t address, uint64_t bytes);
uint64_t emulator_count_unwritten(uint64_t address, uint64_t bytes);
void emulator_mark_elements(uint64_t address, uint32_t ndim, const int64_t* shape, const int64_t* strides, uint32_t itemsize);
uint64_t emulator_count_unwritten_elements(
    uint64_t address, uint32_t ndim, const int64_t* shape, const int64_t* strides, uint32_t itemsize);
void emulator_copy_state(uint64_t to, uint64_t from, uint64_t bytes);
void emulator_copy_element_states(uint64_t to, const int64_t* to_strides, uint64_t from, const int64_t* from_strides, uint32_t ndim,
    const int64_t* shape, uint32_t to_itemsize, uint32_t from_itemsize);

void emulator_configure(const EmulatorSettings* settings);
int32_t emulator_launch(const EmulatorLaunch* request);
uint32_t emulator_fault_count(void);
int32_t emulator_fault(uint32_t index, EmulatorFault* fault);
void emulator_statistics(EmulatorStatistics* statistics);
uint32_t emulator_profile_count(void);
int32_t emulator_profile_row(uint32_t index, EmulatorProfileRow* row);
void emulator_profile_reset(void);

}
#pragma GCC visibility pop
