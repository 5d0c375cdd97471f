// numbers.hpp - 16-bit floating point.
#pragma once
#include <cstdint>
#include <cstring>

extern const struct HalfTable { HalfTable(); float value[65536]; } half_table;

inline float f32_from_f16(uint16_t bits) { return half_table.value[bits]; }
inline float f32_from_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
