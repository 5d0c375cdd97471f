// ptx.hpp - what PTX instructions compute: operands, arithmetic, conversions, bits.
//
// Each inline asm statement of a kernel has become a call of the function named after its opcode, `ptx_` and the opcode with . and :: as _, with the
// line of the statement and then the operands in the order of its text. An opcode that is missing here is a compile error, and so is one that the
// architecture lacks. float32 add, sub, mul and fma exist with a rounding mode only: without, ptxas may contract them.
#pragma once
#include "kernel_abi.hpp"

#define EMULATOR_PTX EMULATOR_INLINE void

namespace emulator {
typedef unsigned short b16;
typedef unsigned b32;
typedef unsigned long long b64;

// ------------------------------------------------------------------ operands: constraint letters check the types as ptxas would
template <class T> constexpr bool is_number = !__is_class(T) && !__is_union(T);
template <class T> constexpr bool is_floating = false;
template <> constexpr bool is_floating<float> = true;
template <> constexpr bool is_floating<double> = true;
template <class T> EMULATOR_INLINE b32 in_r(T v) {
    static_assert(sizeof(T) == 4 && !is_floating<T>, "constraint \"r\" takes a 32-bit integer");
    return (b32)v;
}
template <class T> EMULATOR_INLINE b16 in_h(T v) {
    static_assert(sizeof(T) == 2 && !is_floating<T>, "constraint \"h\" takes a 16-bit integer");
    return (b16)v;
}
template <class T> EMULATOR_INLINE b64 in_l(T v) {
    static_assert(sizeof(T) == 8 && !is_floating<T>, "constraint \"l\" takes a 64-bit integer or a pointer");
    return (b64)v;
}
EMULATOR_INLINE float in_f(float v) { return v; }
EMULATOR_INLINE double in_d(double v) { return v; }
void in_f(double) = delete;     // constraint "f" takes a float
void in_d(float) = delete;      // constraint "d" takes a double
constexpr long long in_n(long long v) { return v; }
template <class T> EMULATOR_INLINE b32& out_r(T& v) {
    static_assert(sizeof(T) == 4 && !is_floating<T> && is_number<T>, "constraint \"r\" takes a 32-bit integer");
    return (b32&)v;
}
template <class T> EMULATOR_INLINE b16& out_h(T& v) {
    static_assert(sizeof(T) == 2 && is_number<T>, "constraint \"h\" takes a 16-bit integer");
    return (b16&)v;
}
template <class T> EMULATOR_INLINE b64& out_l(T& v) {
    static_assert(sizeof(T) == 8 && !is_floating<T> && is_number<T>, "constraint \"l\" takes a 64-bit integer");
    return (b64&)v;
}
EMULATOR_INLINE float& out_f(float& v) { return v; }
EMULATOR_INLINE double& out_d(double& v) { return v; }

// ------------------------------------------------------------------ properties of PTX's floating point
EMULATOR_INLINE float bits_f32(b32 v) { return __builtin_bit_cast(float, v); }
EMULATOR_INLINE b32 f32_bits(float v) { return __builtin_bit_cast(b32, v); }
EMULATOR_INLINE float canonical(float v) { return v == v ? v : bits_f32(0x7fffffff); }     // float32 instructions make one NaN only
EMULATOR_INLINE double canonical(double v) { return v; }
EMULATOR_INLINE float flushed(float v) { return (f32_bits(v) & 0x7f800000) ? v : bits_f32(f32_bits(v) & 0x80000000); }
template <class T> EMULATOR_INLINE bool sign_of(T v) { return __builtin_signbit(v); }
// NaN is no number to compare with: the other operand is the result. -0 is less than +0.
template <class T> EMULATOR_INLINE T maximum(T a, T b) {
    return a != a ? canonical(b) : b != b ? a : a > b ? a : a < b ? b : sign_of(a) ? b : a;
}
template <class T> EMULATOR_INLINE T minimum(T a, T b) {
    return a != a ? canonical(b) : b != b ? a : a < b ? a : a > b ? b : sign_of(a) ? a : b;
}
template <class T> EMULATOR_INLINE bool unordered(T a, T b) { return a != a || b != b; }
}  // namespace emulator

// ------------------------------------------------------------------ floating-point arithmetic
#define EMULATOR_BINARY(opcode, expression)                                                                                         \
    EMULATOR_PTX ptx_##opcode##_rn_f32(int, float& d, float a, float b) { d = emulator::canonical(expression); }                     \
    EMULATOR_PTX ptx_##opcode##_rn_f64(int, double& d, double a, double b) { d = expression; }                                       \
    EMULATOR_PTX ptx_##opcode##_f64(int, double& d, double a, double b) { d = expression; }                                          \
    EMULATOR_PTX ptx_##opcode##_rn_ftz_f32(int, float& d, float a, float b) {                                                        \
        a = emulator::flushed(a); b = emulator::flushed(b);                                                                          \
        d = emulator::flushed(emulator::canonical(expression));                                                                      \
    }
EMULATOR_BINARY(add, a + b)
EMULATOR_BINARY(sub, a - b)
EMULATOR_BINARY(mul, a * b)
EMULATOR_PTX ptx_fma_rn_f32(int, float& d, float a, float b, float c) { d = emulator::canonical(__builtin_fmaf(a, b, c)); }
EMULATOR_PTX ptx_fma_rn_f64(int, double& d, double a, double b, double c) { d = __builtin_fma(a, b, c); }
EMULATOR_PTX ptx_fma_rn_ftz_f32(int, float& d, float a, float b, float c) {
    d = emulator::flushed(emulator::canonical(__builtin_fmaf(emulator::flushed(a), emulator::flushed(b), emulator::flushed(c))));
}
#define EMULATOR_EXTREME(opcode, function)                                                                                          \
    EMULATOR_PTX ptx_##opcode##_f32(int, float& d, float a, float b) { d = emulator::function(a, b); }                               \
    EMULATOR_PTX ptx_##opcode##_f64(int, double& d, double a, double b) { d = emulator::function(a, b); }                            \
    EMULATOR_PTX ptx_##opcode##_ftz_f32(int, float& d, float a, float b) {                                                           \
        d = emulator::function(emulator::flushed(a), emulator::flushed(b));                                                          \
    }                                                                                                                                \
    EMULATOR_PTX ptx_##opcode##_s32(int, unsigned& d, unsigned a, unsigned b) { int x = a, y = b; d = emulator::function##_int(x, y); } \
    EMULATOR_PTX ptx_##opcode##_u32(int, unsigned& d, unsigned a, unsigned b) { d = emulator::function##_int(a, b); }
namespace emulator {
template <class T> EMULATOR_INLINE T maximum_int(T a, T b) { return a > b ? a : b; }
template <class T> EMULATOR_INLINE T minimum_int(T a, T b) { return a < b ? a : b; }
}  // namespace emulator
EMULATOR_EXTREME(max, maximum)
EMULATOR_EXTREME(min, minimum)
#if __CUDA_ARCH__ >= 800
#define EMULATOR_EXTREME_NAN(opcode, function)                                                                                       \
    EMULATOR_PTX ptx_##opcode##_NaN_f32(int, float& d, float a, float b) {                                                           \
        d = emulator::unordered(a, b) ? emulator::bits_f32(0x7fffffff) : emulator::function(a, b);                                   \
    }                                                                                                                                \
    EMULATOR_PTX ptx_##opcode##_ftz_NaN_f32(int line, float& d, float a, float b) {                                                  \
        ptx_##opcode##_NaN_f32(line, d, emulator::flushed(a), emulator::flushed(b));                                                 \
    }
EMULATOR_EXTREME_NAN(max, maximum)
EMULATOR_EXTREME_NAN(min, minimum)
#endif
#define EMULATOR_UNARY(opcode, type, expression) \
    EMULATOR_PTX ptx_##opcode(int, type& d, type a) { d = emulator::canonical(expression); }
EMULATOR_UNARY(rcp_rn_f32, float, 1.0f / a)
EMULATOR_UNARY(rcp_rn_f64, double, 1.0 / a)
EMULATOR_UNARY(rcp_rn_ftz_f32, float, emulator::flushed(1.0f / emulator::flushed(a)))
EMULATOR_UNARY(sqrt_rn_f32, float, __builtin_sqrtf(a))
EMULATOR_UNARY(sqrt_rn_f64, double, __builtin_sqrt(a))
EMULATOR_UNARY(sqrt_rn_ftz_f32, float, __builtin_sqrtf(emulator::flushed(a)))
EMULATOR_UNARY(abs_f32, float, __builtin_fabsf(a))
EMULATOR_UNARY(abs_f64, double, __builtin_fabs(a))
EMULATOR_UNARY(neg_f32, float, -a)
EMULATOR_UNARY(neg_f64, double, -a)
EMULATOR_PTX ptx_div_rn_f32(int, float& d, float a, float b) { d = emulator::canonical(a / b); }
EMULATOR_PTX ptx_div_rn_f64(int, double& d, double a, double b) { d = a / b; }
EMULATOR_PTX ptx_div_rn_ftz_f32(int, float& d, float a, float b) {
    d = emulator::flushed(emulator::canonical(emulator::flushed(a) / emulator::flushed(b)));
}

#define EMULATOR_APPROXIMATE(opcode, function)                                                               \
    EMULATOR_PTX ptx_##opcode##_approx_f32(int, float& d, float a) { d = emulator_##function(a, 0); }        \
    EMULATOR_PTX ptx_##opcode##_approx_ftz_f32(int, float& d, float a) { d = emulator_##function(a, 1); }
EMULATOR_APPROXIMATE(ex2, exp2)
EMULATOR_APPROXIMATE(lg2, log2)
EMULATOR_APPROXIMATE(rcp, reciprocal)
EMULATOR_APPROXIMATE(sqrt, square_root)
EMULATOR_APPROXIMATE(rsqrt, reciprocal_root)
EMULATOR_PTX ptx_tanh_approx_f32(int, float& d, float a) { d = emulator_tanh(a); }

// ------------------------------------------------------------------ bits
EMULATOR_PTX ptx_mov_b32(int, unsigned& d, unsigned a) { d = a; }
EMULATOR_PTX ptx_mov_b32(int, float& d, unsigned a) { d = emulator::bits_f32(a); }
EMULATOR_PTX ptx_mov_b32(int, unsigned& d, float a) { d = emulator::f32_bits(a); }
EMULATOR_PTX ptx_mov_b64(int, unsigned long long& d, unsigned low, unsigned high) { d = (unsigned long long)high << 32 | low; }
EMULATOR_PTX ptx_mov_b64(int, unsigned& low, unsigned& high, unsigned long long a) { low = (unsigned)a; high = (unsigned)(a >> 32); }
EMULATOR_PTX ptx_mov_b32(int, unsigned& d, unsigned short low, unsigned short high) { d = (unsigned)high << 16 | low; }
// Each nibble of the selector names a byte of b:a; its top bit asks for the byte's sign eight times instead.
EMULATOR_PTX ptx_prmt_b32(int, unsigned& d, unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> 4 * i & 15, byte = bytes >> 8 * (nibble & 7) & 255;
        result |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    d = result;
}
EMULATOR_PTX ptx_shf_l_wrap_b32(int, unsigned& d, unsigned a, unsigned b, unsigned count) {
    d = (unsigned)(((unsigned long long)b << 32 | a) << (count & 31) >> 32);
}
EMULATOR_PTX ptx_shf_r_wrap_b32(int, unsigned& d, unsigned a, unsigned b, unsigned count) {
    d = (unsigned)(((unsigned long long)b << 32 | a) >> (count & 31));
}
EMULATOR_PTX ptx_lop3_b32(int, unsigned& d, unsigned a, unsigned b, unsigned c, unsigned table) {
    unsigned result = 0;
    for (int i = 0; i < 8; ++i)
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    d = result;
}
EMULATOR_PTX ptx_bfe_u32(int, unsigned& d, unsigned a, unsigned position, unsigned length) {
    position &= 255; length &= 255;
    const unsigned field = position < 32 ? a >> position : 0;
    d = length == 0 ? 0 : length < 32 ? field & ((1u << length) - 1) : field;
}
EMULATOR_PTX ptx_bfe_s32(int, unsigned& d, unsigned a, unsigned position, unsigned length) {
    position &= 255; length &= 255;
    if (length == 0) { d = 0; return; }
    const unsigned last = position + length - 1 < 31 ? position + length - 1 : 31, sign = a >> last & 1 ? ~0u : 0;
    const unsigned field = position < 32 ? a >> position : sign, kept = last >= position ? last - position + 1 : 0;
    d = kept >= 32 ? field : (field & ((1u << kept) - 1)) | sign << kept;
}

#include "ptx_convert.hpp"
#include "ptx_memory.hpp"
#include "ptx_warp.hpp"
