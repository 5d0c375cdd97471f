// prelude.hpp - CUDA as a kernel sees it: built-in variables, qualifiers, vector types, synchronisation, shuffles, votes, atomics.
//
// Included before the text of a kernel, in which inline PTX has become calls of the functions in ptx.hpp.
//
// Not like CuPy's compiler: plain float arithmetic does not flush subnormal numbers here, CuPy compiles with -ftz=true. Kernels that care use PTX
// instructions, which say it in their names.
#pragma once
#include "kernel_abi.hpp"

#ifndef DS_EMULATED
#define DS_EMULATED 1
#endif

typedef decltype(sizeof 0) size_t;
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(EmulatorTriple t) : x(t.x), y(t.y), z(t.z) {}
};
#define threadIdx (emulator_thread_index())
#define blockIdx (emulator_block_index())
#define blockDim (emulator_block_extent())
#define gridDim (emulator_grid_extent())
constexpr int warpSize = 32;

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) alignas(n)

#define EMULATOR_INLINE inline __attribute__((always_inline))
#define EMULATOR_HERE int line = __builtin_LINE()

// ------------------------------------------------------------------ the three macros that kernels do not define here
#define DS_DEVICE EMULATOR_INLINE
#define DS_DYNAMIC_SHARED(name) unsigned char* const name = (unsigned char*)emulator_dynamic_shared()
// One array for each instance of the function it stands in, found again by the address of its key.
#define DS_SHARED(type, name, count)           \
    static const char name##_emulator_key = 0; \
    type(&name)[count] = *(type(*)[count])emulator_static_shared(&name##_emulator_key, sizeof(type) * (count), alignof(type))

// ------------------------------------------------------------------ vector types
#define EMULATOR_VECTORS(type, element)                                        \
    struct alignas(2 * sizeof(element)) type##2 { element x, y; };             \
    struct type##3 { element x, y, z; };                                       \
    struct alignas(sizeof(element) < 8 ? 4 * sizeof(element) : 16) type##4 { element x, y, z, w; }; \
    EMULATOR_INLINE type##2 make_##type##2(element x, element y) { return {x, y}; } \
    EMULATOR_INLINE type##3 make_##type##3(element x, element y, element z) { return {x, y, z}; } \
    EMULATOR_INLINE type##4 make_##type##4(element x, element y, element z, element w) { return {x, y, z, w}; }
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(uint, unsigned)
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)
EMULATOR_VECTORS(longlong, long long)
EMULATOR_VECTORS(ulonglong, unsigned long long)

// ------------------------------------------------------------------ bits and numbers
EMULATOR_INLINE float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
EMULATOR_INLINE float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
EMULATOR_INLINE unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
EMULATOR_INLINE int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
EMULATOR_INLINE long long __double_as_longlong(double v) { return __builtin_bit_cast(long long, v); }
EMULATOR_INLINE double __longlong_as_double(long long v) { return __builtin_bit_cast(double, v); }
EMULATOR_INLINE int __double2hiint(double v) { return int(__double_as_longlong(v) >> 32); }
EMULATOR_INLINE int __double2loint(double v) { return int(__double_as_longlong(v)); }
EMULATOR_INLINE double __hiloint2double(int high, int low) { return __longlong_as_double((long long)high << 32 | (unsigned)low); }
EMULATOR_INLINE int __popc(unsigned v) { return __builtin_popcount(v); }
EMULATOR_INLINE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
EMULATOR_INLINE int __clz(int v) { return v ? __builtin_clz(v) : 32; }
EMULATOR_INLINE int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
EMULATOR_INLINE int __ffs(int v) { return __builtin_ffs(v); }
EMULATOR_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
EMULATOR_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }

// fma is exact in one rounding, and one instruction where the machine has it; the sources are compiled without contraction.
EMULATOR_INLINE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
EMULATOR_INLINE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EMULATOR_INLINE double fmax(double a, double b) { return __builtin_fmax(a, b); }
EMULATOR_INLINE double fmin(double a, double b) { return __builtin_fmin(a, b); }
EMULATOR_INLINE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
EMULATOR_INLINE float fminf(float a, float b) { return __builtin_fminf(a, b); }
EMULATOR_INLINE double fabs(double a) { return __builtin_fabs(a); }
EMULATOR_INLINE float fabsf(float a) { return __builtin_fabsf(a); }
EMULATOR_INLINE double sqrt(double a) { return __builtin_sqrt(a); }
EMULATOR_INLINE float sqrtf(float a) { return __builtin_sqrtf(a); }
EMULATOR_INLINE double rint(double a) { return __builtin_rint(a); }
EMULATOR_INLINE float rintf(float a) { return __builtin_rintf(a); }
EMULATOR_INLINE double floor(double a) { return __builtin_floor(a); }
EMULATOR_INLINE float floorf(float a) { return __builtin_floorf(a); }

// ------------------------------------------------------------------ barriers and memory order
EMULATOR_INLINE void __syncthreads(EMULATOR_HERE) { emulator_barrier(0, 0, line); }
EMULATOR_INLINE int __syncthreads_count(int p, EMULATOR_HERE) { return emulator_barrier_reduce(p, EMULATOR_BARRIER_COUNT, line); }
EMULATOR_INLINE int __syncthreads_and(int p, EMULATOR_HERE) { return emulator_barrier_reduce(p, EMULATOR_BARRIER_AND, line); }
EMULATOR_INLINE int __syncthreads_or(int p, EMULATOR_HERE) { return emulator_barrier_reduce(p, EMULATOR_BARRIER_OR, line); }
EMULATOR_INLINE void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_HERE) { emulator_sync_warp(mask, line); }
// Threads of the emulator see each other's writes in order: a fence only keeps the compiler from moving accesses across it.
EMULATOR_INLINE void __threadfence() { __asm__ volatile("" ::: "memory"); }
EMULATOR_INLINE void __threadfence_block() { __threadfence(); }
EMULATOR_INLINE size_t __cvta_generic_to_shared(const void* p) { return emulator_shared_offset(p); }

// ------------------------------------------------------------------ shuffles and votes
namespace emulator {
template <int bytes> struct bits_of;
template <> struct bits_of<4> { typedef unsigned type; };
template <> struct bits_of<8> { typedef unsigned long long type; };
template <class T> EMULATOR_INLINE T shuffle(int mode, unsigned mask, T value, int lane, int width, int line) {
    typedef typename bits_of<sizeof(T)>::type bits;     // as in CUDA: values of 4 or 8 bytes
    return __builtin_bit_cast(T, bits(emulator_shuffle(mode, mask, __builtin_bit_cast(bits, value), sizeof(T), lane, width, line)));
}
}  // namespace emulator
template <class T> EMULATOR_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMULATOR_HERE) {
    return emulator::shuffle(EMULATOR_SHUFFLE_INDEX, mask, value, lane, width, line);
}
template <class T> EMULATOR_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, EMULATOR_HERE) {
    return emulator::shuffle(EMULATOR_SHUFFLE_UP, mask, value, distance, width, line);
}
template <class T> EMULATOR_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, EMULATOR_HERE) {
    return emulator::shuffle(EMULATOR_SHUFFLE_DOWN, mask, value, distance, width, line);
}
template <class T> EMULATOR_INLINE T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32, EMULATOR_HERE) {
    return emulator::shuffle(EMULATOR_SHUFFLE_XOR, mask, value, distance, width, line);
}
EMULATOR_INLINE int __any_sync(unsigned mask, int p, EMULATOR_HERE) { return emulator_vote(EMULATOR_VOTE_ANY, mask, p, line); }
EMULATOR_INLINE int __all_sync(unsigned mask, int p, EMULATOR_HERE) { return emulator_vote(EMULATOR_VOTE_ALL, mask, p, line); }
EMULATOR_INLINE unsigned __ballot_sync(unsigned mask, int p, EMULATOR_HERE) { return emulator_vote(EMULATOR_VOTE_BALLOT, mask, p, line); }
#if __CUDA_ARCH__ >= 800
#define EMULATOR_REDUCE(name, type, operation, number)                                                          \
    EMULATOR_INLINE type __reduce_##name##_sync(unsigned mask, type value, EMULATOR_HERE) {                     \
        return (type)emulator_reduce(operation, number, mask, (unsigned)value, line);                           \
    }
EMULATOR_REDUCE(add, int, EMULATOR_ADD, EMULATOR_S32)
EMULATOR_REDUCE(add, unsigned, EMULATOR_ADD, EMULATOR_U32)
EMULATOR_REDUCE(min, int, EMULATOR_MIN, EMULATOR_S32)
EMULATOR_REDUCE(min, unsigned, EMULATOR_MIN, EMULATOR_U32)
EMULATOR_REDUCE(max, int, EMULATOR_MAX, EMULATOR_S32)
EMULATOR_REDUCE(max, unsigned, EMULATOR_MAX, EMULATOR_U32)
EMULATOR_REDUCE(and, unsigned, EMULATOR_AND, EMULATOR_U32)
EMULATOR_REDUCE(or, unsigned, EMULATOR_OR, EMULATOR_U32)
EMULATOR_REDUCE(xor, unsigned, EMULATOR_XOR, EMULATOR_U32)
#endif

// ------------------------------------------------------------------ plain and atomic accesses by function
template <class T> EMULATOR_INLINE T __ldg(const T* p) {
    static_assert(sizeof(T) <= 16, "16 bytes at most are loaded at once");
    EmulatorBytes raw = emulator_load(EMULATOR_GLOBAL_READ_ONLY, (unsigned long long)p, sizeof(T));
    T value;
    __builtin_memcpy(&value, &raw, sizeof(T));
    return value;
}
namespace emulator {
template <class T> struct number_of;
template <> struct number_of<int> { static constexpr int value = EMULATOR_S32; };
template <> struct number_of<unsigned> { static constexpr int value = EMULATOR_U32; };
template <> struct number_of<long long> { static constexpr int value = EMULATOR_S64; };
template <> struct number_of<unsigned long long> { static constexpr int value = EMULATOR_U64; };
template <> struct number_of<float> { static constexpr int value = EMULATOR_F32; };
template <> struct number_of<double> { static constexpr int value = EMULATOR_F64; };
template <class T> struct itself { typedef T type; };
template <class T> EMULATOR_INLINE T atomic(int operation, T* p, T operand, T compare = T()) {
    typedef typename bits_of<sizeof(T)>::type bits;
    return __builtin_bit_cast(T, bits(emulator_atomic(EMULATOR_GENERIC, operation, number_of<T>::value, (unsigned long long)p,
        __builtin_bit_cast(bits, operand), __builtin_bit_cast(bits, compare))));
}
}  // namespace emulator
#define EMULATOR_ATOMIC(name, operation) \
    template <class T> EMULATOR_INLINE T name(T* p, typename emulator::itself<T>::type v) { return emulator::atomic<T>(operation, p, v); }
EMULATOR_ATOMIC(atomicAdd, EMULATOR_ADD)
EMULATOR_ATOMIC(atomicMin, EMULATOR_MIN)
EMULATOR_ATOMIC(atomicMax, EMULATOR_MAX)
EMULATOR_ATOMIC(atomicAnd, EMULATOR_AND)
EMULATOR_ATOMIC(atomicOr, EMULATOR_OR)
EMULATOR_ATOMIC(atomicXor, EMULATOR_XOR)
EMULATOR_ATOMIC(atomicExch, EMULATOR_EXCHANGE)
template <class T>
EMULATOR_INLINE T atomicCAS(T* p, typename emulator::itself<T>::type compare, typename emulator::itself<T>::type v) {
    return emulator::atomic<T>(EMULATOR_COMPARE_AND_SWAP, p, v, compare);
}

// ------------------------------------------------------------------ how the core calls a kernel
namespace emulator {
// The letter that tells the host which kind of argument a parameter takes.
template <class T, bool is_class = __is_class(T) || __is_union(T)> struct kind { static constexpr unsigned value = 's'; };
template <class T> struct kind<T, false> { static constexpr unsigned value = T(-1) < T(0) ? 'i' : 'u'; };
template <class T> struct kind<T*, false> { static constexpr unsigned value = 'p'; };
template <> struct kind<bool, false> { static constexpr unsigned value = 'b'; };
template <> struct kind<float, false> { static constexpr unsigned value = 'f'; };
template <> struct kind<double, false> { static constexpr unsigned value = 'f'; };

template <int... indices> struct sequence {};
template <int count, int... indices> struct sequence_to : sequence_to<count - 1, count - 1, indices...> {};
template <int... indices> struct sequence_to<0, indices...> { typedef sequence<indices...> type; };

template <auto function> struct kernel_of;
template <class... P, void (*function)(P...)> struct kernel_of<function> {
    static constexpr unsigned count = sizeof...(P);
    static constexpr EmulatorParameter parameters[count + 1] = {
        {kind<P>::value, (unsigned)sizeof(P), (unsigned)alignof(P)}..., {0, 0, 0}};
    template <int... indices> static void call(void** arguments, sequence<indices...>) {
        function(*(P*)arguments[indices]...);
    }
    static void entry(void** arguments) { call(arguments, typename sequence_to<count>::type()); }
};
constexpr unsigned bound() { return 0; }
template <class... Rest> constexpr unsigned bound(unsigned max_threads, Rest...) { return max_threads; }
}  // namespace emulator

// EMULATOR_ENTRY(name) or EMULATOR_ENTRY(name, max_threads, ...) with the arguments of the kernel's __launch_bounds__.
#define EMULATOR_ENTRY(name, ...)                                                                                    \
    extern "C" __attribute__((visibility("default"))) const EmulatorKernel emulator_kernel_##name = {                \
        emulator::kernel_of<&name>::entry, emulator::kernel_of<&name>::parameters, emulator::kernel_of<&name>::count, \
        emulator::bound(__VA_ARGS__)};

#include "ptx.hpp"
