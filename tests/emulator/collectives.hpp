// collectives.hpp - operations that the lanes of a warp carry out together.
//
// A lane that arrives leaves its operands and waits; the last one to arrive computes the results of all and wakes the others.
#pragma once
#include <cstdint>

#include "thread.hpp"

enum class CollectiveKind : uint8_t { SHUFFLE, VOTE, REDUCE, SYNC_WARP, LOAD_MATRIX, MULTIPLY };

struct Collective {
    bool active;
    CollectiveKind kind;
    int detail;                 // what else must be the same in all lanes
    int line;
    const void* pc;
    uint32_t mask, arrived;
    void* lanes[32];            // operands, on the stacks of the waiting lanes
};

struct Warp {
    // Lanes may have split into groups, each in a collective of its own mask; more than 32 groups there cannot be.
    static constexpr int COLLECTIVES = 32;

    uint32_t exists = 0;        // lanes that the block has
    uint32_t returned = 0;
    Collective collectives[COLLECTIVES] = {};
};

struct Meeting {
    CollectiveKind kind;
    int detail;
    uint32_t mask;
    void* operands;
    void (*complete)(const Collective& all, unsigned warp);
    bool whole_warp;            // .aligned instructions: all 32 lanes
    int line;
    const void* pc;
};

// Returns when all lanes of the mask have come and `complete` has run.
void meet(const Meeting& meeting);
