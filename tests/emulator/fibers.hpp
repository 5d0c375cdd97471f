// fibers.hpp - a stack for each thread of a block, and the switch between them.
#pragma once
#include <cstddef>
#include <cstdint>

// Saves the registers that a call must keep on the stack in use, leaves its address in *save, and goes on where `to` was saved.
extern "C" __attribute__((visibility("hidden"))) void emulator_switch_context(void** save, void* to);

// Address space for the stacks of the largest block. Pages cost memory only once a thread touches them.
class Stacks {
public:
    static constexpr size_t BYTES_EACH = 256 << 10;       // kernels compiled without optimisation take a few KiB

    // Makes a context that calls `start`, which must not return.
    void* prepare(unsigned thread, void (*start)());
    bool hold(uintptr_t address) const { return address - base < bytes; }

private:
    uintptr_t base = 0;
    size_t bytes = 0;
};
