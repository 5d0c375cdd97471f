// numbers.cpp - conversions to and from 16 bits, and the instructions whose results are approximate.
#include "numbers.hpp"

#include <algorithm>
#include <cmath>

#include "device.hpp"

static constexpr uint32_t NAN_F32 = 0x7fffffff;
static constexpr uint16_t NAN_F16 = 0x7fff;

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

const HalfTable half_table;
HalfTable::HalfTable() {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const uint32_t sign = bits >> 15 << 31, exponent = bits >> 10 & 31, fraction = bits & 1023;
        if (exponent == 31) value[bits] = fraction ? float_of(NAN_F32) : float_of(sign | 0x7f800000);
        else if (exponent) value[bits] = float_of(sign | (exponent + 112) << 23 | fraction << 13);
        else value[bits] = (sign ? -1.0f : 1.0f) * std::ldexp((float)fraction, -24);
    }
}

// The nearest multiple of the spacing of halfs around the number, ties to even.
static uint16_t f16_magnitude(double magnitude) {
    if (magnitude == 0) return 0;
    if (magnitude >= 65520) return 0x7c00;      // from half a unit above the largest half on: infinity
    int exponent;
    std::frexp(magnitude, &exponent);       // magnitude < 2^exponent
    const int spacing = std::max(exponent - 11, -24);
    const double rounded = std::nearbyint(std::ldexp(magnitude, -spacing));      // <= 2^11
    // Subnormal numbers and the lowest normal ones share the spacing 2^-24: the carry into the exponent is right by itself.
    return (uint16_t)((spacing + 24) * 1024 + (int)rounded);
}

static uint16_t f16_from(double value) {
    if (value != value) return NAN_F16;
    return (uint16_t)((std::signbit(value) ? 0x8000 : 0) | f16_magnitude(std::fabs(value)));
}

static uint16_t f16_from_normal_f32(uint32_t bits) {        // for magnitudes of 2^-14 and more
    const uint32_t magnitude = bits & 0x7fffffff, rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    const uint32_t half = (rounded >> 13) - (112 << 10);
    return (uint16_t)(bits >> 31 << 15 | std::min(half, 0x7c00u));
}

extern "C" float emulator_f32_from_f16(unsigned short bits) { return f32_from_f16(bits); }
extern "C" unsigned short emulator_f16_from_f32(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return NAN_F16;
    return magnitude >= 0x38800000 ? f16_from_normal_f32(bits) : f16_from(value);
}
extern "C" unsigned short emulator_f16_from_f64(double value) { return f16_from(value); }
extern "C" unsigned short emulator_bf16_from_f64(double value) {
    if (value != value) return NAN_F16;
    // To float32 first, where a bit set for anything lost keeps the second rounding right.
    float near = (float)value;
    uint32_t bits = bits_of(near);
    if (std::isfinite(near) && (double)near != value) {
        if (std::fabs((double)near) > std::fabs(value)) --bits;
        bits |= 1;
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// ------------------------------------------------------------------ approximate instructions
// Correct to about a unit in the last place. With the setting `perturb` they are moved by up to as many units as the PTX manual allows, by a hash of
// the operand: a kernel that counts on more than the manual says gives other answers then.
static uint32_t hash(uint32_t bits) {
    uint64_t mixed = (bits + device.settings.seed * 0x9e3779b97f4a7c15ull + 1) * 0xbf58476d1ce4e5b9ull;
    mixed ^= mixed >> 31;
    return (uint32_t)(mixed * 0x94d049bb133111ebull >> 32);
}

static float perturbed(float result, float operand, int units) {
    if (!device.settings.perturb || !std::isfinite(result) || result == 0) return result;
    const int moved = (int)(hash(bits_of(operand)) % (2 * units + 1)) - units;
    const float moved_result = float_of(bits_of(result) + moved);
    return std::isfinite(moved_result) && std::signbit(moved_result) == std::signbit(result) ? moved_result : result;
}

static float canonical(float value) { return value == value ? value : float_of(NAN_F32); }
static float flush_if(float value, int flush) { return flush && std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

// Units in the last place: 2 for ex2 (a relative error of 2^-22), 1 for rcp and sqrt, 2 for rsqrt.
extern "C" float emulator_exp2(float value, int flush) {
    value = flush_if(value, flush);
    if (value == 0) return 1.0f;        // the manual's table of exact results
    return flush_if(perturbed(canonical(std::exp2(value)), value, 2), flush);
}

// An absolute error of 2^-22 for results below 1 in magnitude, a relative one above.
extern "C" float emulator_log2(float value, int flush) {
    value = flush_if(value, flush);
    const float result = canonical(std::log2(value));
    if (!device.settings.perturb || !std::isfinite(result) || std::fabs(result) >= 1) return perturbed(result, value, 2);
    return result + ((int)(hash(bits_of(value)) % 5) - 2) * 0x1p-23f;
}

extern "C" float emulator_reciprocal(float value, int flush) {
    value = flush_if(value, flush);
    return flush_if(perturbed(canonical(1.0f / value), value, 1), flush);
}

extern "C" float emulator_square_root(float value, int flush) {
    value = flush_if(value, flush);
    return perturbed(canonical(std::sqrt(value)), value, 1);
}

extern "C" float emulator_reciprocal_root(float value, int flush) {
    value = flush_if(value, flush);
    return perturbed(canonical((float)(1.0 / std::sqrt((double)value))), value, 2);
}

// A relative error of 2^-11: 2^12 units.
extern "C" float emulator_tanh(float value) { return perturbed(canonical(std::tanh(value)), value, 1 << 12); }
