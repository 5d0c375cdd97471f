// hooks.cpp - how kernels reach memory: the compiler's instrumentation, loads and stores written in PTX, atomics.
//
// Kernels are compiled with -fsanitize=thread and linked without its library: each load and store calls one of the hooks below with its address, and
// the return address tells its place in the program.
#include <algorithm>
#include <cstring>

#include "device.hpp"

static constexpr unsigned PREEMPT_ONE_IN = 64;

static void after_access() {
    if (device.settings.preempt && device.random.below(PREEMPT_ONE_IN) == 0) let_others_run();
}

__attribute__((noinline)) static void check_elsewhere(uintptr_t address, unsigned bytes, Access access, const void* pc) {
    const Launch& launch = device.launch;
    if (address >= launch.library_begin && address < launch.library_end) return;         // constants
    if (address >= launch.arguments_begin && address < launch.arguments_end) return;
    report(kind::OUT_OF_BOUNDS, pc, nullptr, "%s of %u bytes at %p, which is no device address", access == Access::WRITE ? "write" : "read", bytes,
        (const void*)address);
    stop_block();       // the access itself would end the process
}

// Structures have sizes that no instruction has: they are moved in the largest parts that size and address allow.
static unsigned part_of(uintptr_t address, unsigned bytes) {
    unsigned part = 16;
    while (part > bytes || address & (part - 1)) part /= 2;
    return part;
}

template <class Check> static void in_parts(uintptr_t address, unsigned bytes, Check check) {
    if (bytes <= 16 && !(bytes & (bytes - 1))) return check(address, bytes);
    while (bytes) {
        const unsigned part = part_of(address, bytes);
        check(address, part);
        address += part;
        bytes -= part;
    }
}

static inline void access(const void* pointer, unsigned bytes, Access access, const void* pc) {
    const uintptr_t address = (uintptr_t)pointer;
    Thread* thread = device.running;
    if (device.stacks.hold(address) || !thread) return;
    const bool global = device.memory.holds(address);
    if (!global && !device.shared.holds(address)) return check_elsewhere(address, bytes, access, pc);
    ++device.statistics.accesses;
    count_step(pc);
    in_parts(address, bytes, [=](uintptr_t at, unsigned part) {
        if (global) access_global(*thread, at, part, access, pc);
        else access_shared(*thread, (uint32_t)(at - (uintptr_t)device.shared.bytes), part, access, pc);
    });
    after_access();
}

#define EXPORTED __attribute__((visibility("default")))
extern "C" {
#define HOOKS(bytes)                                                                                                                         \
    EXPORTED void __tsan_read##bytes(void* p) { access(p, bytes, Access::READ, __builtin_return_address(0)); }                               \
    EXPORTED void __tsan_write##bytes(void* p) { access(p, bytes, Access::WRITE, __builtin_return_address(0)); }                             \
    EXPORTED void __tsan_unaligned_read##bytes(void* p) { access(p, bytes, Access::READ, __builtin_return_address(0)); }                     \
    EXPORTED void __tsan_unaligned_write##bytes(void* p) { access(p, bytes, Access::WRITE, __builtin_return_address(0)); }                   \
    EXPORTED void __tsan_volatile_write##bytes(void* p) { access(p, bytes, Access::WRITE, __builtin_return_address(0)); }                    \
    /* A loop on a volatile variable waits for another thread. */                                                                            \
    EXPORTED void __tsan_volatile_read##bytes(void* p) {                                                                                     \
        access(p, bytes, Access::READ, __builtin_return_address(0));                                                                         \
        if (device.running) let_others_run();                                                                                                \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
EXPORTED void __tsan_read_range(void* p, unsigned long bytes) { access(p, (unsigned)bytes, Access::READ, __builtin_return_address(0)); }
EXPORTED void __tsan_write_range(void* p, unsigned long bytes) { access(p, (unsigned)bytes, Access::WRITE, __builtin_return_address(0)); }
EXPORTED void __tsan_func_entry(void*) {}
EXPORTED void __tsan_func_exit() {}
EXPORTED void __tsan_init() {}
EXPORTED void __tsan_vptr_update(void**, void*) {}
}

// ------------------------------------------------------------------ loads and stores of PTX
namespace {
struct Location {
    void* pointer;      // nullptr: outside of all memory
    bool shared;
};

Location locate(int space, uint64_t address, unsigned bytes, const void* pc) {
    if (space == EMULATOR_SHARED) {
        if (address + bytes <= SharedMemory::SIZE) return {device.shared.bytes + address, true};
        report(kind::OUT_OF_BOUNDS, pc, nullptr, "shared address %llu of %u bytes is outside of shared memory", (unsigned long long)address, bytes);
        stop_block();
    }
    if (device.memory.holds(address)) return {(void*)address, false};
    if (device.shared.holds(address)) {
        if (space == EMULATOR_GENERIC) return {(void*)address, true};
        report(kind::ADDRESS_SPACE, pc, nullptr, "a .global instruction with an address of shared memory");
    } else {
        report(kind::OUT_OF_BOUNDS, pc, nullptr, "access of %u bytes at %p, which is no device address", bytes, (void*)address);
    }
    stop_block();
}

bool check(const Location& at, unsigned bytes, Access access, const void* pc) {
    ++device.statistics.accesses;
    count_step(pc);
    if (at.shared) return access_shared(*device.running, (uint32_t)((uint8_t*)at.pointer - device.shared.bytes), bytes, access, pc);
    return access_global(*device.running, (uintptr_t)at.pointer, bytes, access, pc);
}
}  // namespace

extern "C" EmulatorBytes emulator_load(int space, unsigned long long address, int bytes) {
    const void* pc = __builtin_return_address(0);
    const Location at = locate(space, address, bytes, pc);
    EmulatorBytes value = {~0ull, ~0ull};
    check(at, bytes, space == EMULATOR_GLOBAL_READ_ONLY ? Access::READ_ONLY_PATH : Access::READ, pc);
    memcpy(&value, at.pointer, bytes);
    after_access();
    return value;
}

extern "C" void emulator_store(int space, unsigned long long address, EmulatorBytes value, int bytes) {
    const void* pc = __builtin_return_address(0);
    const Location at = locate(space, address, bytes, pc);
    if (check(at, bytes, Access::WRITE, pc)) memcpy(at.pointer, &value, bytes);
    after_access();
}

// ------------------------------------------------------------------ atomics
template <class T> static uint64_t apply(int operation, void* pointer, uint64_t operand_bits, uint64_t compare_bits) {
    T before, operand, compare;
    memcpy(&before, pointer, sizeof(T));
    memcpy(&operand, &operand_bits, sizeof(T));
    memcpy(&compare, &compare_bits, sizeof(T));
    T after = before;
    switch (operation) {
        case EMULATOR_ADD: after = before + operand; break;
        case EMULATOR_MIN: after = std::min(before, operand); break;
        case EMULATOR_MAX: after = std::max(before, operand); break;
        case EMULATOR_EXCHANGE: after = operand; break;
        case EMULATOR_COMPARE_AND_SWAP: after = before == compare ? operand : before; break;
        default:
            if constexpr (T(1) / 2 == 0) {
                after = operation == EMULATOR_AND ? before & operand : operation == EMULATOR_OR ? before | operand : before ^ operand;
            }
    }
    memcpy(pointer, &after, sizeof(T));
    uint64_t result = 0;
    memcpy(&result, &before, sizeof(T));
    return result;
}

extern "C" unsigned long long emulator_atomic(
    int space, int operation, int number, unsigned long long address, unsigned long long operand, unsigned long long compare) {
    const void* pc = __builtin_return_address(0);
    const unsigned bytes = number == EMULATOR_S64 || number == EMULATOR_U64 || number == EMULATOR_F64 ? 8 : 4;
    const Location at = locate(space, address, bytes, pc);
    let_others_run();       // the order of atomic operations is not to be relied on
    if (!check(at, bytes, Access::ATOMIC, pc)) return ~0ull;
    switch (number) {
        case EMULATOR_S32: return apply<int32_t>(operation, at.pointer, operand, compare);
        case EMULATOR_U32: return apply<uint32_t>(operation, at.pointer, operand, compare);
        case EMULATOR_S64: return apply<int64_t>(operation, at.pointer, operand, compare);
        case EMULATOR_U64: return apply<uint64_t>(operation, at.pointer, operand, compare);
        case EMULATOR_F32: return apply<float>(operation, at.pointer, operand, compare);
        default: return apply<double>(operation, at.pointer, operand, compare);
    }
}

// ------------------------------------------------------------------ shared memory's arrays and addresses
extern "C" void* emulator_dynamic_shared(void) { return device.shared.bytes + SharedMemory::DYNAMIC_START; }

extern "C" void* emulator_static_shared(const void* key, int bytes, int alignment) {
    void* array = device.shared.array(key, bytes, alignment);
    const EmulatorLaunch& request = *device.launch.request;
    const uint32_t total = device.shared.static_bytes;
    if (!array || total > request.static_limit || total + request.dynamic_shared > request.total_limit) {
        report(kind::SHARED_MEMORY, __builtin_return_address(0), nullptr,
            "%u bytes of static and %u of dynamic shared memory; the limits are %u static and %u in all", array ? total : bytes,
            request.dynamic_shared, request.static_limit, request.total_limit);
        stop_block();
    }
    device.statistics.static_shared = total;
    return array;
}

extern "C" unsigned emulator_shared_offset(const void* generic) {
    if (!device.shared.holds((uintptr_t)generic)) {
        report(kind::ADDRESS_SPACE, __builtin_return_address(0), nullptr, "%p, to be made a shared address, is not in shared memory", generic);
        stop_block();
    }
    return (unsigned)((const uint8_t*)generic - device.shared.bytes);
}
