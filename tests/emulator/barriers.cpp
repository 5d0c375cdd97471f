// barriers.cpp - __syncthreads and the named barriers of a block.
#include "device.hpp"

static void open(Barrier& barrier, int number) {
    const bool whole_block = barrier.expected == 0;
    // All warps at once, those too that have returned: what they did is ordered before the barrier.
    if (whole_block)
        for (unsigned warp = 0; warp < device.launch.warp_count; ++warp) device.clocks.collect(warp, barrier.joint);
    uint32_t warps = 0;
    for (unsigned i = 0; i < device.launch.thread_count; ++i) {
        Thread& thread = device.block.threads[i];
        if (thread.state != ThreadState::AT_BARRIER || thread.barrier != number) continue;
        warps |= 1u << thread.warp;
        make_ready(thread);
    }
    for (unsigned warp = 0; warp < device.launch.warp_count; ++warp)
        if (warps >> warp & 1) device.clocks.spread(warp, barrier.joint);
    device.block.barrier_result = barrier.predicates;
    barrier.arrived = 0;
}

static void open_if_complete(Barrier& barrier, int number) {
    const unsigned expected = barrier.expected ? barrier.expected : device.launch.thread_count - device.block.returned;
    if (barrier.arrived && barrier.arrived >= expected) open(barrier, number);
}

void check_open_barriers() {
    for (int number = 0; number < Block::BARRIERS; ++number) {
        Barrier& barrier = device.block.barriers[number];
        if (barrier.expected == 0) open_if_complete(barrier, number);
    }
}

static Barrier& arrive(int number, int count, int line, int predicate, const void* pc) {
    ++device.statistics.collectives;
    if (number < 0 || number >= Block::BARRIERS || count < 0 || count % 32) {
        report(kind::BARRIER_DIVERGENCE, pc, nullptr, "barrier %d of %d threads: numbers are 0 to 15, counts multiples of 32", number, count);
        stop_block();
    }
    Barrier& barrier = device.block.barriers[number];
    if (!barrier.arrived) {
        barrier = Barrier();
        barrier.expected = count;
        barrier.line = line;
        barrier.pc = pc;
    } else if (barrier.expected != count) {
        report(kind::BARRIER_DIVERGENCE, pc, barrier.pc, "threads meet at barrier %d with counts %d and %d", number, barrier.expected, count);
    }
    ++barrier.arrived;
    barrier.predicates += predicate != 0;
    if (count) device.clocks.collect(device.running->warp, barrier.joint);
    return barrier;
}

static void wait(int number, int count, int line, int predicate, const void* pc) {
    Barrier& barrier = arrive(number, count, line, predicate, pc);
    // Producers and consumers meet at named barriers from different lines; a barrier of the whole block is one place in the program.
    if (count == 0 && barrier.line != line)
        report(kind::BARRIER_DIVERGENCE, pc, barrier.pc, "threads of the block meet at different barriers, lines %d and %d", barrier.line, line);
    Thread& thread = *device.running;
    thread.state = ThreadState::AT_BARRIER;
    thread.barrier = number;
    thread.line = line;
    thread.pc = pc;
    open_if_complete(barrier, number);
    wait_for_others();
}

extern "C" void emulator_barrier(int number, int count, int line) { wait(number, count, line, 0, __builtin_return_address(0)); }

extern "C" void emulator_barrier_arrive(int number, int count, int line) {
    const void* pc = __builtin_return_address(0);
    if (count == 0) {
        report(kind::BARRIER_DIVERGENCE, pc, nullptr, "bar.arrive needs a thread count");
        stop_block();
    }
    Barrier& barrier = arrive(number, count, line, 0, pc);
    device.clocks.advance(device.running->warp);        // what the warp does from here on is not ordered by the barrier
    open_if_complete(barrier, number);
}

extern "C" int emulator_barrier_reduce(int predicate, int result, int line) {
    const unsigned threads = device.launch.thread_count - device.block.returned;
    wait(0, 0, line, predicate, __builtin_return_address(0));
    const int count = device.block.barrier_result;
    return result == EMULATOR_BARRIER_COUNT ? count : result == EMULATOR_BARRIER_OR ? count > 0 : count == (int)threads;
}
