// profile.hpp - what memory requests of whole warps cost: sectors of global memory, wavefronts of shared memory.
//
// The lanes of a warp run one after the other here. Their accesses belong to one request if they come from the same place in the program, for the
// same time in each lane.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "host_abi.hpp"
#include "thread.hpp"

class Profile {
public:
    struct Request {
        const void* pc;
        uint32_t lanes;             // bits
        uint32_t bytes;             // of one lane
        bool write, shared;
        uint64_t address[32];       // in shared memory, offsets
    };

    void note(const Thread& thread, const void* pc, uint64_t address, unsigned bytes, bool write, bool shared);
    void count(const Request& request);
    void finish_block();            // counts requests that not all lanes took part in
    void reset() { row_index.clear(); all_rows.clear(); }
    const std::vector<EmulatorProfileRow>& rows() const { return all_rows; }

private:
    // A place in the program, for one warp.
    struct Site {
        uint64_t first_turn = 0;                // of the oldest request that waits for lanes
        uint64_t turns[32] = {};                // how often each lane has been here
        std::deque<Request> open;
    };

    std::unordered_map<uint64_t, Site> sites[MAX_WARPS];
    std::unordered_map<uint64_t, size_t> row_index;
    std::vector<EmulatorProfileRow> all_rows;
};
