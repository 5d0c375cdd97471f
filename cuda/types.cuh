// types.cuh - names of the fixed-width types, the 16-bit storage types, and what differs between NVRTC and the emulator.
#pragma once

#ifndef DS_EMULATED     // the emulator's prelude supplies these
#define DS_DEVICE __device__ __forceinline__
#define DS_SHARED(type, name, count) __shared__ type name[count]
#define DS_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

namespace ds {

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct boolean { u8 byte; };      // any byte but 0 is true

template <bool condition, class A, class B> struct choose { typedef A type; };
template <class A, class B> struct choose<false, A, B> { typedef B type; };

template <class T> constexpr bool IS_HALF = false;
template <> constexpr bool IS_HALF<f16> = true;
template <> constexpr bool IS_HALF<bf16> = true;

// The type of the arithmetic: float32 for the half types and float32, float64 for float64 and all integers.
template <class T> constexpr bool IS_NARROW = IS_HALF<T>;
template <> constexpr bool IS_NARROW<f32> = true;
template <class X, class Y> using compute_of = typename choose<IS_NARROW<X> && IS_NARROW<Y>, f32, f64>::type;

template <class T> constexpr T smaller(T a, T b) { return a < b ? a : b; }

// `count` neighbours in memory, moved 16 bytes at a time.
template <class T, int count> struct alignas(smaller<int>(16, sizeof(T) * count)) chunk { T at[count]; };

}  // namespace ds
