// numbers.cuh - elements whose dtype is known when a kernel runs, and not before: codes as in dualsoft/dtypes.py.
#pragma once
#include "elementary.cuh"
#include "convert.cuh"

namespace ds {

enum dtype_code { CODE_F32, CODE_F64, CODE_F16, CODE_BF16, CODE_BOOL, CODE_I8, CODE_U8, CODE_I16, CODE_U16, CODE_I32, CODE_U32, CODE_I64, CODE_U64 };

DS_DEVICE bool is_finite(f32 x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
DS_DEVICE bool is_finite(f64 x) { return (u64(__double_as_longlong(x)) & 0x7ff0000000000000u) != 0x7ff0000000000000u; }

// Not inlined: a dozen ways to load, of which a call takes one.
static __device__ __noinline__ f64 uncommon_number(const char* p, int code) {
    switch (code) {
    case CODE_BOOL: return to_compute<f64>(load<boolean>(p));
    case CODE_I8: return f64(load<i8>(p));
    case CODE_U8: return f64(load<u8>(p));
    case CODE_I16: return f64(load<i16>(p));
    case CODE_U16: return f64(load<u16>(p));
    case CODE_I32: return f64(load<i32>(p));
    case CODE_U32: return f64(load<u32>(p));
    case CODE_I64: return f64(load<i64>(p));
    case CODE_U64: return f64(load<u64>(p));
    case CODE_F64: return load<f64>(p);
    case CODE_F16: return widen(from_f16(load<f16>(p).bits));
    case CODE_BF16: return widen(to_compute<f32>(load<bf16>(p)));
    default: return widen(load<f32>(p));
    }
}

// An element as C, rounded once; a finite one that C does not hold is infinite.
template <class C> DS_DEVICE C number_at(const char* p, int code) {
    if (code == CODE_F32 && is_aligned<f32>(p)) return rounded<C>::of(load_aligned<f32>(p));
    return rounded<C>::of(uncommon_number(p, code));
}

// The numbers at several places, all on their way at once; 0 for a place that is null. `is_aligned`: they lie at multiples of their size.
template <class T, class C, int count> DS_DEVICE void load_as(C (&to)[count], const char* const (&place)[count]) {
    T found[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
        found[i] = T{};
        if (place[i]) found[i] = load_aligned<T>(place[i]);
    }
    typedef typename choose<IS_NARROW<T>, f32, f64>::type wide;
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = rounded<C>::of(to_compute<wide>(found[i]));
}
template <class C, int count> DS_DEVICE void load_numbers(C (&to)[count], int code, bool is_aligned, const char* const (&place)[count]) {
    if (is_aligned && code == CODE_F32) load_as<f32>(to, place);
    else if (is_aligned && code == CODE_F16) load_as<f16>(to, place);
    else if (is_aligned && code == CODE_BF16) load_as<bf16>(to, place);
    else if (is_aligned && code == CODE_F64) load_as<f64>(to, place);
    else {
#pragma unroll
        for (int i = 0; i < count; ++i) to[i] = place[i] ? rounded<C>::of(uncommon_number(place[i], code)) : C(0);
    }
}

// The same of stores; nothing goes to a place that is null.
template <class C> static __device__ __noinline__ void store_uncommon_number(char* p, int code, C value) {
    if (code == CODE_F32) store(p, rounded<f32>::of(value));
    else if (code == CODE_F16) store(p, rounded<f16>::of(value));
    else if (code == CODE_BF16) store(p, rounded<bf16>::of(value));
    else store(p, rounded<f64>::of(value));
}
template <class T, class C, int count> DS_DEVICE void store_at(char* const (&place)[count], const C (&x)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i)
        if (place[i]) store_aligned(place[i], rounded<T>::of(x[i]));
}
template <class C, int count> DS_DEVICE void store_numbers_at(char* const (&place)[count], int code, bool is_aligned, const C (&x)[count]) {
    if (is_aligned && code == CODE_F32) store_at<f32>(place, x);
    else if (is_aligned && code == CODE_F16) store_at<f16>(place, x);
    else if (is_aligned && code == CODE_BF16) store_at<bf16>(place, x);
    else if (is_aligned && code == CODE_F64) store_at<f64>(place, x);
    else {
#pragma unroll
        for (int i = 0; i < count; ++i)
            if (place[i]) store_uncommon_number(place[i], code, x[i]);
    }
}

// `count` numbers to neighbours in memory, in the dtype of `code`, one of the four floating-point types.
template <class T, int count, class C> DS_DEVICE void store_as(char* p, i64 item, bool is_wide, const C (&x)[count], int valid) {
    if (is_wide && valid >= count) {
        chunk<T, count> v;
#pragma unroll
        for (int i = 0; i < count; ++i) v.at[i] = rounded<T>::of(x[i]);
        store_aligned(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < count; ++i)
        if (i < valid) store(p + i * item, rounded<T>::of(x[i]));
}
template <int count, class C> DS_DEVICE void store_numbers(char* p, i64 item, int code, bool is_wide, const C (&x)[count], int valid) {
    if (code == CODE_F32) store_as<f32>(p, item, is_wide, x, valid);
    else if (code == CODE_F16) store_as<f16>(p, item, is_wide, x, valid);
    else if (code == CODE_BF16) store_as<bf16>(p, item, is_wide, x, valid);
    else store_as<f64>(p, item, is_wide, x, valid);
}

}  // namespace ds
