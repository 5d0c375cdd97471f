// scheduler.cpp - which thread runs, and what happens when none can.
#include "device.hpp"

static Block& block() { return device.block; }

static Thread* next_thread() {
    ThreadSet& ready = block().ready;
    if (ready.empty()) std::swap(ready, block().yielded);
    if (ready.empty()) return nullptr;
    unsigned number = 0;
    switch (device.settings.schedule) {
        case EMULATOR_ASCENDING: number = ready.first(); break;
        case EMULATOR_DESCENDING: number = ready.last(); break;
        default: number = ready.next(device.random.below(device.launch.thread_count));
    }
    ready.remove(number);
    return &block().threads[number];
}

static void report_deadlock() {
    unsigned at_barrier = 0, in_collective = 0;
    const Thread *first_barrier = nullptr, *first_collective = nullptr;
    for (unsigned i = 0; i < device.launch.thread_count; ++i) {
        const Thread& thread = block().threads[i];
        if (thread.state == ThreadState::AT_BARRIER && !at_barrier++) first_barrier = &thread;
        if (thread.state == ThreadState::IN_COLLECTIVE && !in_collective++) first_collective = &thread;
    }
    const Thread* first = first_collective ? first_collective : first_barrier;
    const Thread* second = first_collective ? first_barrier : nullptr;
    device.running = const_cast<Thread*>(first);
    report(kind::DEADLOCK, first->pc, second ? second->pc : nullptr,
        "no thread can go on: %u wait at a barrier, %u for lanes of their warp, %u have returned", at_barrier, in_collective, block().returned);
}

static void switch_to(Thread& next) {
    Thread& before = *device.running;
    device.running = &next;
    ++device.statistics.switches;
    count_step(nullptr);
    emulator_switch_context(&before.context, next.context);
}

static void leave_for_launcher() {
    void* abandoned;
    emulator_switch_context(&abandoned, block().launcher);
}

void stop_block() {
    block().stopping = true;
    leave_for_launcher();
    __builtin_unreachable();
}

void stop_endless_block(const void* pc) {
    device.block.steps = 0;         // reporting counts too
    report(kind::ENDLESS, pc, nullptr, "the block was stopped after %llu accesses and switches", (unsigned long long)device.launch.budget);
    stop_block();
}

void wait_for_others() {
    Thread* next = next_thread();
    if (next == device.running) return;
    if (!next) {
        if (block().returned < device.launch.thread_count) report_deadlock();
        stop_block();
    }
    switch_to(*next);
}

void let_others_run() {
    block().yielded.add(device.running->number);
    wait_for_others();
}

void make_ready(Thread& thread) {
    thread.state = ThreadState::READY;
    block().ready.add(thread.number);
}

static void run_thread() {
    device.launch.request->kernel->entry(device.launch.arguments);
    Thread& thread = *device.running;
    if (!thread.open_copies.empty())
        report(kind::ASYNC_COPY, thread.open_copies.front().pc, nullptr, "the thread returns with copies that it never committed to a group");
    thread.state = ThreadState::RETURNED;
    ++block().returned;
    block().warps[thread.warp].returned |= 1u << thread.lane;
    check_open_barriers();
    wait_for_others();
    __builtin_unreachable();
}

static void start_thread(unsigned number) {
    Thread& thread = block().threads[number];
    const EmulatorTriple extent = device.launch.block;
    thread.index = {number % extent.x, number / extent.x % extent.y, number / (extent.x * extent.y)};
    thread.number = number;
    thread.warp = number / 32;
    thread.lane = number % 32;
    thread.open_copies.clear();
    thread.copy_groups.clear();
    thread.context = device.stacks.prepare(number, run_thread);
    make_ready(thread);
}

void run_block() {
    const unsigned count = device.launch.thread_count;
    Block& b = block();
    if (!device.clocks.start_block(device.launch.warp_count)) {
        device.memory.forget_histories();
        device.shared.forget_races();
        device.clocks.reset();
        device.clocks.start_block(device.launch.warp_count);
    }
    b.ready.clear();
    b.yielded.clear();
    b.returned = 0;
    b.steps = 0;
    b.stopping = false;
    for (Barrier& barrier : b.barriers) barrier.arrived = 0;
    for (unsigned w = 0; w < device.launch.warp_count; ++w) {
        Warp& warp = b.warps[w];
        warp.exists = count - w * 32 >= 32 ? 0xffffffffu : (1u << (count - w * 32)) - 1;
        warp.returned = 0;
        for (Collective& collective : warp.collectives) collective.active = false;
    }
    for (unsigned i = 0; i < count; ++i) start_thread(i);
    device.running = next_thread();
    emulator_switch_context(&b.launcher, device.running->context);
    device.running = nullptr;
    if (device.settings.profile) device.profile.finish_block();
}
