// faults.hpp - what was found wrong in a launch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

struct Fault {
    const char* kind;
    std::string text;
    uint32_t block[3], thread[3];
    const void *pc, *other_pc;
};

class FaultLog {
public:
    static constexpr size_t CAPACITY = 16;

    bool full() const { return faults.size() >= CAPACITY; }
    // One fault a kind and place: a loop, or the other threads, would only repeat it.
    bool known(const char* kind, const void* pc) const {
        for (const Fault& fault : faults)
            if (fault.kind == kind && fault.pc == pc) return true;
        return false;
    }

    std::vector<Fault> faults;
};

// Kinds are compared by address.
namespace kind {
inline constexpr char OUT_OF_BOUNDS[] = "out of bounds";
inline constexpr char MISALIGNED[] = "misaligned";
inline constexpr char UNINITIALISED[] = "uninitialised";
inline constexpr char RACE[] = "race";
inline constexpr char CROSS_BLOCK_RACE[] = "cross-block race";
inline constexpr char ASYNC_COPY[] = "async copy";
inline constexpr char BARRIER_DIVERGENCE[] = "barrier divergence";
inline constexpr char WARP_DIVERGENCE[] = "warp divergence";
inline constexpr char WARP_MASK[] = "warp mask";
inline constexpr char DEADLOCK[] = "deadlock";
inline constexpr char ADDRESS_SPACE[] = "address space";
inline constexpr char SHARED_MEMORY[] = "shared memory";
inline constexpr char ENDLESS[] = "endless";
inline constexpr char LAUNCH[] = "launch";
inline constexpr char MATRIX[] = "matrix";
}  // namespace kind

// Reports a fault of the running thread. Once the log is full, the launch stops here and the call does not return.
__attribute__((format(printf, 4, 5))) void report(const char* kind, const void* pc, const void* other_pc, const char* format, ...);
