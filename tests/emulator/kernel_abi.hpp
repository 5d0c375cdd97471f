// kernel_abi.hpp - what a kernel's library and the core of the emulator know of each other.
//
// A kernel is compiled by itself and finds these functions in the core when it is loaded. No standard header is included: every kernel variant
// reads this file, and a header such as <cstdint> would cost more than all of it.
#pragma once

// Kernels are compiled with hidden symbols, so that none of theirs can be replaced by a namesake elsewhere in the process; these come from outside.
#pragma GCC visibility push(default)
extern "C" {

struct EmulatorTriple { unsigned x, y, z; };
struct EmulatorParameter { unsigned kind, size, alignment; };     // kind: one of the letters p i u b f s, see prelude.hpp
struct EmulatorKernel {
    void (*entry)(void** arguments);
    const EmulatorParameter* parameters;
    unsigned parameter_count;
    unsigned max_threads;       // of __launch_bounds__; 0 where there is none
};

// Values of several registers travel in registers: in memory they would be on the thread's stack, and each access to them would call a hook.
struct EmulatorBytes { unsigned long long low, high; };
typedef float EmulatorFloats __attribute__((vector_size(16)));
typedef unsigned EmulatorWords __attribute__((vector_size(16)));

enum EmulatorSpace { EMULATOR_GENERIC, EMULATOR_GLOBAL, EMULATOR_SHARED, EMULATOR_GLOBAL_READ_ONLY };
enum EmulatorShuffle { EMULATOR_SHUFFLE_INDEX, EMULATOR_SHUFFLE_UP, EMULATOR_SHUFFLE_DOWN, EMULATOR_SHUFFLE_XOR };
enum EmulatorVote { EMULATOR_VOTE_ANY, EMULATOR_VOTE_ALL, EMULATOR_VOTE_BALLOT };
enum EmulatorBarrierResult { EMULATOR_BARRIER_COUNT, EMULATOR_BARRIER_AND, EMULATOR_BARRIER_OR };
enum EmulatorOperation {
    EMULATOR_ADD, EMULATOR_MIN, EMULATOR_MAX, EMULATOR_AND, EMULATOR_OR, EMULATOR_XOR, EMULATOR_EXCHANGE, EMULATOR_COMPARE_AND_SWAP
};
enum EmulatorNumber { EMULATOR_S32, EMULATOR_U32, EMULATOR_S64, EMULATOR_U64, EMULATOR_F32, EMULATOR_F64 };
enum EmulatorHalf { EMULATOR_F16, EMULATOR_BF16 };

// The same for the whole life of a thread, which has a stack of its own: calls may be merged.
EmulatorTriple emulator_thread_index(void) __attribute__((const));
EmulatorTriple emulator_block_index(void) __attribute__((const));
EmulatorTriple emulator_block_extent(void) __attribute__((const));
EmulatorTriple emulator_grid_extent(void) __attribute__((const));

// Synchronisation. `line` is the line of the call: threads that meet must have come from one line.
// count 0: all threads of the block that have not returned.
void emulator_barrier(int id, int count, int line);
void emulator_barrier_arrive(int id, int count, int line);
int emulator_barrier_reduce(int predicate, int result, int line);
void emulator_sync_warp(unsigned mask, int line);
unsigned long long emulator_shuffle(int mode, unsigned mask, unsigned long long value, int bytes, int lane, int width, int line);
unsigned emulator_vote(int mode, unsigned mask, int predicate, int line);
unsigned emulator_reduce(int operation, int number, unsigned mask, unsigned value, int line);

// Memory. Shared addresses of PTX are offsets into the block's shared memory.
void* emulator_dynamic_shared(void);
void* emulator_static_shared(const void* key, int bytes, int alignment);
unsigned emulator_shared_offset(const void* generic);
EmulatorBytes emulator_load(int space, unsigned long long address, int bytes);
void emulator_store(int space, unsigned long long address, EmulatorBytes value, int bytes);
unsigned long long emulator_atomic(
    int space, int operation, int number, unsigned long long address, unsigned long long operand, unsigned long long compare);

// Asynchronous copies of 4, 8 or 16 bytes; the bytes after source_bytes become 0.
void emulator_copy_async(unsigned to, unsigned long long from, int bytes, int source_bytes);
void emulator_copy_async_commit(void);
void emulator_copy_async_wait(int groups_left);

// Tensor cores.
EmulatorWords emulator_load_matrix(unsigned row, int count, int transposed, int line);
EmulatorFloats emulator_multiply_m16n8(EmulatorFloats accumulator, EmulatorWords a, unsigned long long b, int depth, int half, int line);
void emulator_multiply_f64(double* sums, const double* a, const double* b, int rows, int depth, int line);     // of 8 columns

// Numbers. The approximate functions depend on the settings, which do not change while a kernel runs.
float emulator_f32_from_f16(unsigned short bits) __attribute__((const));
unsigned short emulator_f16_from_f32(float value) __attribute__((const));
unsigned short emulator_f16_from_f64(double value) __attribute__((const));
unsigned short emulator_bf16_from_f64(double value) __attribute__((const));
float emulator_exp2(float value, int flush) __attribute__((const));
float emulator_log2(float value, int flush) __attribute__((const));
float emulator_reciprocal(float value, int flush) __attribute__((const));
float emulator_square_root(float value, int flush) __attribute__((const));
float emulator_reciprocal_root(float value, int flush) __attribute__((const));
float emulator_tanh(float value) __attribute__((const));

}
#pragma GCC visibility pop
