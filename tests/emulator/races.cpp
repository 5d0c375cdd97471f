#include "races.hpp"

#include <algorithm>
#include <cstring>

bool Clocks::start_block(unsigned warp_count) {
    base = std::max(base, highest);
    if (base > Stamp::MAX_CLOCK / 2) return false;
    highest = base;
    for (unsigned warp = 0; warp < warp_count; ++warp) {
        now[warp] = floor[warp] = base + 1;
        split[warp] = false;
        std::fill(known[warp], known[warp] + MAX_WARPS, base);
        highest = base + 1;
    }
    return true;
}

void Clocks::advance(unsigned warp) {
    // After millions of barriers in one block the clock stands still, and `ordered` takes all for ordered: races are missed, none is invented.
    if (now[warp] < Stamp::MAX_CLOCK) ++now[warp];
    highest = std::max(highest, now[warp]);
}

void Clocks::sync_warp(unsigned warp, uint32_t lanes, uint32_t all_lanes) {
    auto& table = lane_known[warp];
    advance(warp);
    if (lanes == all_lanes) {
        floor[warp] = now[warp];
        split[warp] = false;
        return;
    }
    if (!split[warp]) std::fill(&table[0][0], &table[0][0] + 32 * 32, floor[warp]);
    split[warp] = true;
    uint32_t joint[32] = {};
    for (unsigned lane = 0; lane < 32; ++lane)
        if (lanes >> lane & 1)
            for (unsigned of = 0; of < 32; ++of) joint[of] = std::max(joint[of], table[lane][of]);
    for (unsigned lane = 0; lane < 32; ++lane)
        if (lanes >> lane & 1) joint[lane] = now[warp];
    for (unsigned lane = 0; lane < 32; ++lane)
        if (lanes >> lane & 1) memcpy(table[lane], joint, sizeof joint);
}

void Clocks::collect(unsigned warp, Joint& joint) const {
    for (unsigned of = 0; of < MAX_WARPS; ++of) joint.clock[of] = std::max(joint.clock[of], of == warp ? now[warp] : known[warp][of]);
}

void Clocks::spread(unsigned warp, const Joint& joint) {
    for (unsigned of = 0; of < MAX_WARPS; ++of) known[warp][of] = std::max(known[warp][of], joint.clock[of]);
    advance(warp);
    floor[warp] = now[warp];
    split[warp] = false;
}
