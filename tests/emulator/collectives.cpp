// collectives.cpp - shuffles, votes, reductions and __syncwarp.
#include "collectives.hpp"

#include <cstring>

#include "device.hpp"

static Collective& join(Warp& warp, const Meeting& meeting) {
    Collective* unused = nullptr;
    for (Collective& collective : warp.collectives) {
        if (collective.active && collective.mask == meeting.mask) return collective;
        if (!collective.active && !unused) unused = &collective;
    }
    // Each open collective holds at least one waiting lane of its own, so one of 32 is free for the lane that runs.
    *unused = {true, meeting.kind, meeting.detail, meeting.line, meeting.pc, meeting.mask, 0, {}};
    return *unused;
}

static void check(const Warp& warp, const Meeting& meeting) {
    const Thread& thread = *device.running;
    if (!(meeting.mask >> thread.lane & 1))
        report(kind::WARP_MASK, meeting.pc, nullptr, "lane %u takes part in an operation whose mask %08x leaves it out", thread.lane, meeting.mask);
    else if (meeting.mask & warp.exists & warp.returned)
        report(kind::WARP_MASK, meeting.pc, nullptr, "the mask %08x names lanes %08x, which have returned", meeting.mask,
            meeting.mask & warp.exists & warp.returned);
    else if (meeting.whole_warp && warp.exists != 0xffffffff)
        report(kind::WARP_MASK, meeting.pc, nullptr, "the instruction takes whole warps, this one has the lanes %08x", warp.exists);
    else
        return;
    stop_block();       // what the lanes would compute is undefined
}

void meet(const Meeting& meeting) {
    Thread& thread = *device.running;
    Warp& warp = device.block.warps[thread.warp];
    ++device.statistics.collectives;
    check(warp, meeting);
    Collective& collective = join(warp, meeting);
    const bool same_place = meeting.kind == CollectiveKind::SYNC_WARP || collective.line == meeting.line;
    if (collective.kind != meeting.kind || collective.detail != meeting.detail || !same_place) {
        report(kind::WARP_DIVERGENCE, meeting.pc, collective.pc, "lanes of one warp meet in different operations, lines %d and %d",
            collective.line, meeting.line);
        stop_block();
    }
    collective.lanes[thread.lane] = meeting.operands;
    collective.arrived |= 1u << thread.lane;
    if (collective.arrived != (collective.mask & warp.exists)) {
        thread.state = ThreadState::IN_COLLECTIVE;
        thread.line = meeting.line;
        thread.pc = meeting.pc;
        wait_for_others();
        return;
    }
    if (meeting.complete) meeting.complete(collective, thread.warp);
    collective.active = false;
    const uint32_t others = collective.arrived & ~(1u << thread.lane);
    for (uint32_t lanes = others; lanes; lanes &= lanes - 1) device.block.threads[thread.warp * 32 + __builtin_ctz(lanes)].state = ThreadState::READY;
    device.block.ready.add_warp(thread.warp, others);
}

// ------------------------------------------------------------------ __syncwarp
extern "C" void emulator_sync_warp(unsigned mask, int line) {
    const auto complete = [](const Collective& all, unsigned warp) {
        device.clocks.sync_warp(warp, all.arrived, device.block.warps[warp].exists);
    };
    meet({CollectiveKind::SYNC_WARP, 0, mask, nullptr, complete, false, line, __builtin_return_address(0)});
}

// ------------------------------------------------------------------ shuffles
namespace {
struct Shuffled { uint64_t value, result; int lane, width; };

// The lane that `lane` reads from; itself where the lane it asks for is outside of its part of the warp.
int source_lane(int mode, int lane, const Shuffled& operands) {
    const int first = lane & ~(operands.width - 1), asked = operands.lane;
    switch (mode) {
        case EMULATOR_SHUFFLE_INDEX: return first + (asked & (operands.width - 1));
        case EMULATOR_SHUFFLE_UP: return lane - asked >= first ? lane - asked : lane;
        case EMULATOR_SHUFFLE_DOWN: return lane + asked < first + operands.width ? lane + asked : lane;
        default: return (lane ^ asked) < first + operands.width ? lane ^ asked : lane;
    }
}

void complete_shuffle(const Collective& all, unsigned) {
    const int mode = all.detail & 3;
    for (uint32_t lanes = all.arrived; lanes; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        Shuffled& mine = *(Shuffled*)all.lanes[lane];
        const int source = source_lane(mode, lane, mine);
        // Undefined on the GPU where the other lane takes no part: poison shows that a kernel uses it.
        mine.result = source >= 0 && source < 32 && all.arrived >> source & 1 ? ((Shuffled*)all.lanes[source])->value : ~0ull;
    }
}
}  // namespace

extern "C" unsigned long long emulator_shuffle(int mode, unsigned mask, unsigned long long value, int bytes, int lane, int width, int line) {
    const void* pc = __builtin_return_address(0);
    if (width < 1 || width > 32 || (width & (width - 1))) {
        report(kind::WARP_MASK, pc, nullptr, "a shuffle's width is a power of 2 up to 32, not %d", width);
        stop_block();
    }
    Shuffled operands = {value, 0, lane, width};
    meet({CollectiveKind::SHUFFLE, bytes << 2 | mode, mask, &operands, complete_shuffle, false, line, pc});
    return operands.result;
}

// ------------------------------------------------------------------ votes and reductions
namespace {
struct Voted { bool predicate; uint32_t ballot; };

void complete_vote(const Collective& all, unsigned) {
    uint32_t ballot = 0;
    for (uint32_t lanes = all.arrived; lanes; lanes &= lanes - 1)
        if (((Voted*)all.lanes[__builtin_ctz(lanes)])->predicate) ballot |= lanes & -lanes;
    for (uint32_t lanes = all.arrived; lanes; lanes &= lanes - 1) ((Voted*)all.lanes[__builtin_ctz(lanes)])->ballot = ballot;
}

uint32_t reduce(int operation, bool is_signed, uint32_t a, uint32_t b) {
    switch (operation) {
        case EMULATOR_ADD: return a + b;
        case EMULATOR_MIN: return (is_signed ? (int32_t)a < (int32_t)b : a < b) ? a : b;
        case EMULATOR_MAX: return (is_signed ? (int32_t)a > (int32_t)b : a > b) ? a : b;
        case EMULATOR_AND: return a & b;
        case EMULATOR_OR: return a | b;
        default: return a ^ b;
    }
}

void complete_reduce(const Collective& all, unsigned) {
    uint32_t* first = (uint32_t*)all.lanes[__builtin_ctz(all.arrived)];
    uint32_t result = *first;
    for (uint32_t lanes = all.arrived & (all.arrived - 1); lanes; lanes &= lanes - 1)
        result = reduce(all.detail >> 1, all.detail & 1, result, *(uint32_t*)all.lanes[__builtin_ctz(lanes)]);
    for (uint32_t lanes = all.arrived; lanes; lanes &= lanes - 1) *(uint32_t*)all.lanes[__builtin_ctz(lanes)] = result;
}
}  // namespace

extern "C" unsigned emulator_vote(int mode, unsigned mask, int predicate, int line) {
    Voted operands = {predicate != 0, 0};
    const uint32_t existing = mask & device.block.warps[device.running->warp].exists;
    meet({CollectiveKind::VOTE, mode, mask, &operands, complete_vote, false, line, __builtin_return_address(0)});
    return mode == EMULATOR_VOTE_ANY ? operands.ballot != 0 : mode == EMULATOR_VOTE_ALL ? operands.ballot == existing : operands.ballot;
}

extern "C" unsigned emulator_reduce(int operation, int number, unsigned mask, unsigned value, int line) {
    uint32_t operand = value;
    const int detail = operation << 1 | (number == EMULATOR_S32);
    meet({CollectiveKind::REDUCE, detail, mask, &operand, complete_reduce, false, line, __builtin_return_address(0)});
    return operand;
}
