// convert.cuh - elements of memory to the type of the arithmetic and back, at any alignment.
#pragma once
#include "ptx.cuh"

namespace ds {

template <class C> DS_DEVICE C to_compute(f16 a) { return C(from_f16(a.bits)); }
template <class C> DS_DEVICE C to_compute(bf16 a) { return C(__uint_as_float(u32(a.bits) << 16)); }
template <class C> DS_DEVICE C to_compute(boolean a) { return C(a.byte != 0); }
template <class C, class T> DS_DEVICE C to_compute(T a) { return C(a); }

// From a result in the type of the arithmetic, rounded once. float64 to bfloat16 goes by float32 rounded to odd, which keeps what a second
// rounding needs to know.
template <class T> struct rounded;
template <> struct rounded<f64> { static DS_DEVICE f64 of(f64 a) { return a; } static DS_DEVICE f64 of(f32 a) { return widen(a); } };
template <> struct rounded<f32> { static DS_DEVICE f32 of(f32 a) { return a; } static DS_DEVICE f32 of(f64 a) { return narrow(a); } };
template <> struct rounded<f16> { template <class C> static DS_DEVICE f16 of(C a) { return f16{to_f16(a)}; } };
template <> struct rounded<bf16> {
    static DS_DEVICE bf16 of(f32 a) { return bf16{to_bf16(a)}; }
    static DS_DEVICE bf16 of(f64 a) {
        const f32 near = narrow_to_zero(a);
        const bool exact = widen(near) == a || is_nan(near);
        return bf16{to_bf16(exact ? near : __uint_as_float(__float_as_uint(near) | 1u))};
    }
};

// A scale in the type of the arithmetic. One that is not 0 stays so: 0 times an infinity would be NaN.
template <class C> DS_DEVICE C scale_of(f64 factor) {
    constexpr f64 SMALLEST = sizeof(C) == 4 ? 0x1p-149 : 0x1p-1074;
    const C near = rounded<C>::of(factor);
    return near == C(0) && factor != 0.0 ? rounded<C>::of(factor < 0.0 ? -SMALLEST : SMALLEST) : near;
}

// ------------------------------------------------------------------ global memory
// Of a type of 1, 2, 4, 8 or 16 bytes, or several times 16, at an address that is aligned to it.
template <class T> DS_DEVICE T load_aligned(const void* p) {
    constexpr int size = smaller<int>(16, sizeof(T)), count = sizeof(T) / size;
    union { T value; words<size> part[count]; } u;
#pragma unroll
    for (int i = 0; i < count; ++i) load_words(u.part[i], (const char*)p + i * size);
    return u.value;
}
template <class T> DS_DEVICE void store_aligned(void* p, const T& value) {
    constexpr int size = smaller<int>(16, sizeof(T)), count = sizeof(T) / size;
    union { T value; words<size> part[count]; } u;
    u.value = value;
#pragma unroll
    for (int i = 0; i < count; ++i) store_words((char*)p + i * size, u.part[i]);
}

template <class T> DS_DEVICE bool is_aligned(const void* p) { return ((u64)p & (sizeof(T) - 1)) == 0; }

// Elements of views need not be aligned to their size: such are moved by bytes.
template <class T> DS_DEVICE T load(const char* p) {
    if (is_aligned<T>(p)) return load_aligned<T>(p);
    union { T value; u8 bytes[sizeof(T)]; } u;
#pragma unroll
    for (int i = 0; i < int(sizeof(T)); ++i) u.bytes[i] = load_aligned<u8>(p + i);
    return u.value;
}
template <class T> DS_DEVICE void store(char* p, T value) {
    if (is_aligned<T>(p)) { store_aligned(p, value); return; }
    union { T value; u8 bytes[sizeof(T)]; } u;
    u.value = value;
#pragma unroll
    for (int i = 0; i < int(sizeof(T)); ++i) store_aligned(p + i, u.bytes[i]);
}

}  // namespace ds
