#include "fibers.hpp"

#include <sys/mman.h>

#include <cstring>
#include <new>

#if defined(__x86_64__)
// Called like a function, so only the registers that functions keep are saved. The floating-point control words are the same in all fibers.
asm(R"(
.text
.hidden emulator_switch_context
.globl emulator_switch_context
.type emulator_switch_context, @function
emulator_switch_context:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size emulator_switch_context, .-emulator_switch_context
)");
static constexpr size_t SAVED_WORDS = 8;       // six registers, the address to go on at, and 0 where a caller's address would be
static constexpr size_t START_WORD = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.hidden emulator_switch_context
.globl emulator_switch_context
.type emulator_switch_context, %function
emulator_switch_context:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emulator_switch_context, .-emulator_switch_context
)");
static constexpr size_t SAVED_WORDS = 20;
static constexpr size_t START_WORD = 11;       // x30, to which ret goes
#else
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif

void* Stacks::prepare(unsigned thread, void (*start)()) {
    constexpr size_t MAX_THREADS = 1024;
    if (!base) {
        void* p = mmap(nullptr, MAX_THREADS * BYTES_EACH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        base = (uintptr_t)p;
        bytes = MAX_THREADS * BYTES_EACH;
    }
    // All stacks at one offset from a page would share a few sets of the cache.
    const uintptr_t top = base + (thread + 1) * BYTES_EACH - 256 - thread % 16 * 64;
    uintptr_t* context = (uintptr_t*)top - SAVED_WORDS;
    memset(context, 0, SAVED_WORDS * sizeof *context);
    context[START_WORD] = (uintptr_t)start;
    return context;
}
