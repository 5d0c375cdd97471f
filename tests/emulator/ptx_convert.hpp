// ptx_convert.hpp - cvt between the number types of PTX.
#pragma once

namespace emulator {
// NaN becomes the one NaN that PTX makes of 16 bits.
EMULATOR_INLINE b16 bf16_from_f32(float v) {
    const b32 bits = f32_bits(v);
    return v == v ? (b16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : (b16)0x7fff;
}
EMULATOR_INLINE float f32_from_bf16(b16 v) { return bits_f32((b32)v << 16); }

// float64 to float32, rounded in one direction: the nearest float, moved by one where it lies on the wrong side.
enum direction { TOWARDS_ZERO, DOWN, UP };
EMULATOR_INLINE float narrowed(double v, direction where) {
    const float nearest = (float)v;
    if (nearest != nearest) return canonical(nearest);
    const bool negative = sign_of(v);
    const bool magnitude_up = where == UP ? !negative : where == DOWN ? negative : false;
    const double distance = negative ? v - (double)nearest : (double)nearest - v;      // > 0: the magnitude was rounded up
    const b32 bits = f32_bits(nearest);
    if (distance > 0 && !magnitude_up) return bits_f32(bits - 1);
    if (distance < 0 && magnitude_up) return bits_f32(bits + 1);
    return nearest;
}

enum rounding { TO_EVEN, TO_ZERO, TO_FLOOR, TO_CEILING };
EMULATOR_INLINE double integral(double v, rounding how) {
    return how == TO_EVEN ? __builtin_rint(v) : how == TO_ZERO ? __builtin_trunc(v) : how == TO_FLOOR ? __builtin_floor(v) : __builtin_ceil(v);
}
// Numbers out of range become the nearest integer of the type. NaN becomes 0, or the highest bit alone where 64 bits take part.
template <class Integer> EMULATOR_INLINE Integer integer(double v, rounding how, bool from_f64) {
    constexpr bool is_signed = Integer(-1) < Integer(0);
    constexpr int bits = sizeof(Integer) * 8;
    constexpr unsigned long long top = 1ull << (bits - 1);
    if (v != v) return from_f64 || bits == 64 ? (Integer)top : (Integer)0;
    constexpr double limit = is_signed ? (double)top : 2.0 * (double)top;      // the first number that is too large
    const double rounded = integral(v, how);
    if (rounded >= limit) return is_signed ? (Integer)(top - 1) : (Integer)(top - 1 + top);
    if (is_signed ? rounded < -limit : rounded < 0) return is_signed ? (Integer)top : (Integer)0;
    return (Integer)rounded;
}
}  // namespace emulator

// ------------------------------------------------------------------ between floating-point types
EMULATOR_PTX ptx_cvt_f32_f16(int, float& d, unsigned short a) { d = emulator_f32_from_f16(a); }
EMULATOR_PTX ptx_cvt_f64_f16(int, double& d, unsigned short a) { d = emulator_f32_from_f16(a); }
EMULATOR_PTX ptx_cvt_rn_f16_f32(int, unsigned short& d, float a) { d = emulator_f16_from_f32(a); }
EMULATOR_PTX ptx_cvt_rn_f16_f64(int, unsigned short& d, double a) { d = emulator_f16_from_f64(a); }
EMULATOR_PTX ptx_cvt_f64_f32(int, double& d, float a) { d = a; }
EMULATOR_PTX ptx_cvt_ftz_f64_f32(int, double& d, float a) { d = emulator::flushed(a); }
EMULATOR_PTX ptx_cvt_rn_f32_f64(int, float& d, double a) { d = emulator::canonical((float)a); }
EMULATOR_PTX ptx_cvt_rn_ftz_f32_f64(int, float& d, double a) { d = emulator::flushed(emulator::canonical((float)a)); }
EMULATOR_PTX ptx_cvt_rz_f32_f64(int, float& d, double a) { d = emulator::narrowed(a, emulator::TOWARDS_ZERO); }
EMULATOR_PTX ptx_cvt_rm_f32_f64(int, float& d, double a) { d = emulator::narrowed(a, emulator::DOWN); }
EMULATOR_PTX ptx_cvt_rp_f32_f64(int, float& d, double a) { d = emulator::narrowed(a, emulator::UP); }
#if __CUDA_ARCH__ >= 800
EMULATOR_PTX ptx_cvt_rn_bf16_f32(int, unsigned short& d, float a) { d = emulator::bf16_from_f32(a); }
EMULATOR_PTX ptx_cvt_rn_f16x2_f32(int, unsigned& d, float high, float low) {
    d = (unsigned)emulator_f16_from_f32(high) << 16 | emulator_f16_from_f32(low);
}
EMULATOR_PTX ptx_cvt_rn_bf16x2_f32(int, unsigned& d, float high, float low) {
    d = (unsigned)emulator::bf16_from_f32(high) << 16 | emulator::bf16_from_f32(low);
}
#endif
#if __CUDA_ARCH__ >= 900
EMULATOR_PTX ptx_cvt_f32_bf16(int, float& d, unsigned short a) { d = emulator::f32_from_bf16(a); }
EMULATOR_PTX ptx_cvt_rn_bf16_f64(int, unsigned short& d, double a) { d = emulator_bf16_from_f64(a); }
#endif

// ------------------------------------------------------------------ to an integral value, to and from integers
#define EMULATOR_CONVERT_INTEGER(name, type, in_type, out_type)                                                                             \
    EMULATOR_PTX ptx_cvt_rn_f32_##name(int, float& d, in_type a) { d = (float)(type)a; }                                                     \
    EMULATOR_PTX ptx_cvt_rn_f64_##name(int, double& d, in_type a) { d = (double)(type)a; }                                                   \
    EMULATOR_PTX ptx_cvt_rni_##name##_f32(int, out_type& d, float a) { d = emulator::integer<type>(a, emulator::TO_EVEN, false); }           \
    EMULATOR_PTX ptx_cvt_rzi_##name##_f32(int, out_type& d, float a) { d = emulator::integer<type>(a, emulator::TO_ZERO, false); }           \
    EMULATOR_PTX ptx_cvt_rmi_##name##_f32(int, out_type& d, float a) { d = emulator::integer<type>(a, emulator::TO_FLOOR, false); }          \
    EMULATOR_PTX ptx_cvt_rpi_##name##_f32(int, out_type& d, float a) { d = emulator::integer<type>(a, emulator::TO_CEILING, false); }        \
    EMULATOR_PTX ptx_cvt_rni_##name##_f64(int, out_type& d, double a) { d = emulator::integer<type>(a, emulator::TO_EVEN, true); }           \
    EMULATOR_PTX ptx_cvt_rzi_##name##_f64(int, out_type& d, double a) { d = emulator::integer<type>(a, emulator::TO_ZERO, true); }           \
    EMULATOR_PTX ptx_cvt_rmi_##name##_f64(int, out_type& d, double a) { d = emulator::integer<type>(a, emulator::TO_FLOOR, true); }          \
    EMULATOR_PTX ptx_cvt_rpi_##name##_f64(int, out_type& d, double a) { d = emulator::integer<type>(a, emulator::TO_CEILING, true); }        \
    EMULATOR_PTX ptx_cvt_rni_##name##_f16(int line, out_type& d, unsigned short a) { ptx_cvt_rni_##name##_f32(line, d, emulator_f32_from_f16(a)); } \
    EMULATOR_PTX ptx_cvt_rzi_##name##_f16(int line, out_type& d, unsigned short a) { ptx_cvt_rzi_##name##_f32(line, d, emulator_f32_from_f16(a)); }
EMULATOR_CONVERT_INTEGER(s32, int, unsigned, unsigned)
EMULATOR_CONVERT_INTEGER(u32, unsigned, unsigned, unsigned)
EMULATOR_CONVERT_INTEGER(s64, long long, unsigned long long, unsigned long long)
EMULATOR_CONVERT_INTEGER(u64, unsigned long long, unsigned long long, unsigned long long)
EMULATOR_PTX ptx_cvt_rn_f16_s32(int, unsigned short& d, unsigned a) { d = emulator_f16_from_f64((int)a); }
EMULATOR_PTX ptx_cvt_rn_f16_u32(int, unsigned short& d, unsigned a) { d = emulator_f16_from_f64(a); }
EMULATOR_PTX ptx_cvt_s64_s32(int, unsigned long long& d, unsigned a) { d = (long long)(int)a; }
EMULATOR_PTX ptx_cvt_u64_u32(int, unsigned long long& d, unsigned a) { d = a; }
EMULATOR_PTX ptx_cvt_u32_u64(int, unsigned& d, unsigned long long a) { d = (unsigned)a; }
EMULATOR_PTX ptx_cvt_u32_u16(int, unsigned& d, unsigned short a) { d = a; }
EMULATOR_PTX ptx_cvt_u16_u32(int, unsigned short& d, unsigned a) { d = (unsigned short)a; }
#define EMULATOR_CONVERT_INTEGRAL(mode, how)                                                                                                 \
    EMULATOR_PTX ptx_cvt_##mode##_f32_f32(int, float& d, float a) { d = emulator::canonical((float)emulator::integral(a, emulator::how)); }  \
    EMULATOR_PTX ptx_cvt_##mode##_f64_f64(int, double& d, double a) { d = emulator::integral(a, emulator::how); }
EMULATOR_CONVERT_INTEGRAL(rni, TO_EVEN)
EMULATOR_CONVERT_INTEGRAL(rzi, TO_ZERO)
EMULATOR_CONVERT_INTEGRAL(rmi, TO_FLOOR)
EMULATOR_CONVERT_INTEGRAL(rpi, TO_CEILING)
