// shared.hpp - the shared memory of the running block.
#pragma once
#include <cstdint>
#include <vector>

#include "histories.hpp"
#include "races.hpp"

class SharedMemory {
public:
    static constexpr uint32_t SIZE = 512 << 10;             // room for the largest block's memory and red zones
    static constexpr uint32_t DYNAMIC_START = 1024;         // the alignment that kernels may count on for dynamic memory

    void reserve();
    bool holds(uintptr_t address) const { return address - (uintptr_t)bytes < SIZE; }
    void start_block(uint32_t dynamic_bytes);
    // The array of a key, made at its first use in the block; nullptr if there is no room.
    void* array(const void* key, uint32_t count, uint32_t alignment);
    void forget_races();

    uint8_t* bytes = nullptr;
    uint8_t* states = nullptr;
    Histories<RaceCell> histories;
    uint32_t dynamic_bytes = 0;
    uint32_t static_bytes = 0;      // as the GPU would count them, without red zones

private:
    struct Array { const void* key; uint32_t start; };

    uint32_t used = 0;              // bytes from the start, red zones included
    std::vector<Array> arrays;
};
