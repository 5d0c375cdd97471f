// convert.hpp - runs of elements of any dtype and stride to and from contiguous compute lanes.
//
// The kernels read contiguous rows of four storage types. Everything else (integers, the other byte order, strides, unaligned
// addresses, a mask, a scale) is brought there a run at a time by these functions, so no array is ever copied whole.
#pragma once
#include "simd.hpp"

namespace {

enum dtype_code {
    CODE_F32, CODE_F64, CODE_F16, CODE_BF16, CODE_BOOL, CODE_I8, CODE_U8, CODE_I16, CODE_U16, CODE_I32, CODE_U32, CODE_I64,
    CODE_U64, CODE_COUNT, CODE_SWAPPED = 16
};
template <class S> constexpr int code_of = std::is_same<S, float>::value ? CODE_F32 : std::is_same<S, double>::value ? CODE_F64
                                         : std::is_same<S, f16>::value ? CODE_F16 : CODE_BF16;
DS_INLINE ptrdiff_t item_size(int code) {
    switch (code & ~CODE_SWAPPED) {
        case CODE_F64: case CODE_I64: case CODE_U64: return 8;
        case CODE_F32: case CODE_I32: case CODE_U32: return 4;
        case CODE_F16: case CODE_BF16: case CODE_I16: case CODE_U16: return 2;
        default: return 1;
    }
}

DS_INLINE uint8_t swap_bytes(uint8_t b) { return b; }
DS_INLINE uint16_t swap_bytes(uint16_t b) { return __builtin_bswap16(b); }
DS_INLINE uint32_t swap_bytes(uint32_t b) { return __builtin_bswap32(b); }
DS_INLINE uint64_t swap_bytes(uint64_t b) { return __builtin_bswap64(b); }
template <size_t bytes> struct bits_of;
template <> struct bits_of<1> { using type = uint8_t; };
template <> struct bits_of<2> { using type = uint16_t; };
template <> struct bits_of<4> { using type = uint32_t; };
template <> struct bits_of<8> { using type = uint64_t; };

// One half value, by way of the vector conversion so that both round alike.
DS_INLINE float widen_one(f16 x) { return widen_f16(uvec_16{} + x.bits)[0]; }
DS_INLINE float widen_one(bf16 x) { return widen_bf16(uvec_16{} + x.bits)[0]; }
template <class T> DS_INLINE T widen_one(T x) { return x; }

template <class T, bool swapped> DS_INLINE T load_element(const char* p) {
    typename bits_of<sizeof(T)>::type bits;
    std::memcpy(&bits, p, sizeof bits);
    if (swapped) bits = swap_bytes(bits);
    T x;
    std::memcpy((void*)&x, &bits, sizeof x);
    return x;
}

template <class T, class C> constexpr bool has_lanes =
    std::is_same<C, typename traits<T>::compute>::value && (std::is_same<T, C>::value || sizeof(T) == 2) && !std::is_integral<T>::value;

template <class T, bool swapped, class C> void gather_run(const char* src, ptrdiff_t stride, ptrdiff_t n, C* dst) {
    if (stride == ptrdiff_t(sizeof(T)) && !swapped) {
        if constexpr (has_lanes<T, C>) {
            ptrdiff_t i = 0;
            for (; i + simd<T>::width <= n; i += simd<T>::width) store_lanes(dst + i, load((const T*)src + i).v);
            if (i < n) store_partial<C>(dst + i, load_partial((const T*)src + i, n - i).v, n - i);
        } else {
            for (ptrdiff_t i = 0; i < n; ++i) dst[i] = C(widen_one(load_element<T, false>(src + i * sizeof(T))));
        }
        return;
    }
    for (ptrdiff_t i = 0; i < n; ++i) dst[i] = C(widen_one(load_element<T, swapped>(src + i * stride)));
}

template <class C> using gather_function = void (*)(const char*, ptrdiff_t, ptrdiff_t, C*);
template <class C, bool swapped> gather_function<C> gather_by_code(int code) {
    switch (code) {
        case CODE_F32: return gather_run<float, swapped, C>;
        case CODE_F64: return gather_run<double, swapped, C>;
        case CODE_F16: return gather_run<f16, swapped, C>;
        case CODE_BF16: return gather_run<bf16, swapped, C>;
        case CODE_I8: return gather_run<int8_t, swapped, C>;
        case CODE_I16: return gather_run<int16_t, swapped, C>;
        case CODE_U16: return gather_run<uint16_t, swapped, C>;
        case CODE_I32: return gather_run<int32_t, swapped, C>;
        case CODE_U32: return gather_run<uint32_t, swapped, C>;
        case CODE_I64: return gather_run<int64_t, swapped, C>;
        case CODE_U64: return gather_run<uint64_t, swapped, C>;
        default: return gather_run<uint8_t, swapped, C>;
    }
}
template <class C> gather_function<C> gather_for(int code) {
    return code & CODE_SWAPPED ? gather_by_code<C, true>(code & ~CODE_SWAPPED) : gather_by_code<C, false>(code);
}

template <class T, class C> void scatter_run(const C* src, ptrdiff_t n, char* dst, ptrdiff_t stride) {
    if constexpr (has_lanes<T, C>) {
        if (stride == ptrdiff_t(sizeof(T))) {
            ptrdiff_t i = 0;
            for (; i + simd<T>::width <= n; i += simd<T>::width) store((T*)dst + i, simd<T>(load_lanes(src + i)));
            if (i < n) store_partial((T*)dst + i, simd<T>(load_partial(src + i, n - i).v), n - i);
            return;
        }
    }
    if constexpr (std::is_arithmetic<T>::value) {
        // the same with a stride that the compiler knows, so that it uses vectors
        if (stride == ptrdiff_t(sizeof(T))) {
            for (ptrdiff_t i = 0; i < n; ++i) {
                const T y = T(src[i]);
                std::memcpy(dst + i * sizeof(T), &y, sizeof y);
            }
            return;
        }
    }
    for (ptrdiff_t i = 0; i < n; ++i) {
        T y;
        if constexpr (std::is_same<T, f16>::value) y.bits = narrow_f16(float(src[i]) - vec_f32{})[0];
        else if constexpr (std::is_same<T, bf16>::value) y.bits = narrow_bf16(float(src[i]) - vec_f32{})[0];
        else y = T(src[i]);
        std::memcpy(dst + i * stride, &y, sizeof y);
    }
}
template <class C> using scatter_function = void (*)(const C*, ptrdiff_t, char*, ptrdiff_t);
template <class C> scatter_function<C> scatter_for(int code) {
    switch (code) {
        case CODE_F32: return scatter_run<float, C>;
        case CODE_F16: return scatter_run<f16, C>;
        case CODE_BF16: return scatter_run<bf16, C>;
        default: return scatter_run<double, C>;
    }
}

// dst[i] = value where the mask byte is 0.
template <class C> void fill_hidden(C* dst, const char* mask, ptrdiff_t stride, ptrdiff_t n, C value) {
    if (stride == 1) {
        for (ptrdiff_t i = 0; i < n; ++i) dst[i] = mask[i] ? dst[i] : value;
        return;
    }
    for (ptrdiff_t i = 0; i < n; ++i) dst[i] = mask[i * stride] ? dst[i] : value;
}

}  // namespace
