// runs.hpp - checks of convert.hpp: every dtype, byte order and stride to compute lanes, and the way back.
#pragma once
#include "check.hpp"

namespace {

template <class C, class T> C value_of(const char* p, bool swapped) {
    char bytes[sizeof(T)];
    for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = p[swapped ? sizeof(T) - 1 - i : i];
    T x;
    std::memcpy((void*)&x, bytes, sizeof x);
    return C(lane_of(x));
}
template <class C> C value_by_code(int code, const char* p) {
    const bool swapped = code & CODE_SWAPPED;
    switch (code & ~CODE_SWAPPED) {
        case CODE_F32: return value_of<C, float>(p, swapped);
        case CODE_F64: return value_of<C, double>(p, swapped);
        case CODE_F16: return value_of<C, f16>(p, swapped);
        case CODE_BF16: return value_of<C, bf16>(p, swapped);
        case CODE_I8: return value_of<C, int8_t>(p, swapped);
        case CODE_I16: return value_of<C, int16_t>(p, swapped);
        case CODE_U16: return value_of<C, uint16_t>(p, swapped);
        case CODE_I32: return value_of<C, int32_t>(p, swapped);
        case CODE_U32: return value_of<C, uint32_t>(p, swapped);
        case CODE_I64: return value_of<C, int64_t>(p, swapped);
        case CODE_U64: return value_of<C, uint64_t>(p, swapped);
        default: return value_of<C, uint8_t>(p, swapped);     // bool, uint8
    }
}

constexpr ptrdiff_t RUN_LENGTHS[] = {0, 1, 3, 16, 37};
// Contiguous, with gaps, unaligned, backwards, repeated.
struct run_strides {
    ptrdiff_t stride[6];
    explicit run_strides(ptrdiff_t item) : stride{item, 3 * item, 2 * item + 1, -item, -2 * item - 1, 0} {}
};

template <class C> void check_gather() {
    const title name("gather: codes, orders, strides, to", dtype_name<C>());
    group g(name.text);
    constexpr ptrdiff_t room = 1 << 10, most = 37;
    std::vector<char> memory(2 * room);
    generator random{10};
    for (int code = 0; code < 2 * CODE_SWAPPED; ++code) {
        if ((code & ~CODE_SWAPPED) >= CODE_COUNT) continue;
        for (char& byte : memory) byte = char(random.bits());
        for (ptrdiff_t stride : run_strides(item_size(code)).stride)
            for (ptrdiff_t n : RUN_LENGTHS)
                for (ptrdiff_t start : {room, room + 1}) {
                    C to[most + 1];
                    for (C& x : to) x = C(-77);
                    gather_for<C>(code)(&memory[size_t(start)], stride, n, to);
                    for (ptrdiff_t i = 0; i < n; ++i) {
                        const C want = value_by_code<C>(code, &memory[size_t(start + i * stride)]);
                        g.that(same<C>(to[i], want), "code %d, stride %td, %td of %td: %a, not %a", code, stride, i, n, double(to[i]), double(want));
                    }
                    g.that(to[n] == C(-77), "code %d, stride %td: wrote beyond %td", code, stride, n);
                }
    }
}

template <class C, class T> bool is_element(const char* p, C x) {
    T y;
    std::memcpy((void*)&y, p, sizeof y);
    const T want = element_of<T>(double(x));
    return std::memcmp(&y, &want, sizeof y) == 0 || (lane_of(y) != lane_of(y) && x != x);
}
template <class C> bool is_element_of(int code, const char* p, C x) {
    switch (code) {
        case CODE_F32: return is_element<C, float>(p, x);
        case CODE_F16: return is_element<C, f16>(p, x);
        case CODE_BF16: return is_element<C, bf16>(p, x);
        default: return is_element<C, double>(p, x);
    }
}
template <class C> void check_scatter() {
    const title name("scatter: codes, strides, from", dtype_name<C>());
    group g(name.text);
    constexpr ptrdiff_t room = 1 << 10, most = 37;
    std::vector<char> memory(2 * room);
    generator random{11};
    C from[most];
    for (C& x : from) x = C(std::ldexp(random.uniform(-2, 2), int(random.bits() % 40) - 30));
    from[0] = C(NAN); from[1] = C(INF); from[2] = C(-0.0);
    for (int code : {CODE_F32, CODE_F64, CODE_F16, CODE_BF16})
        for (ptrdiff_t stride : run_strides(item_size(code)).stride)
            for (ptrdiff_t n : RUN_LENGTHS)
                for (ptrdiff_t start : {room, room + 1}) {
                    if (stride == 0 && n > 1) continue;       // outputs never overlap themselves
                    std::fill(memory.begin(), memory.end(), char(0x5a));
                    scatter_for<C>(code)(from, n, &memory[size_t(start)], stride);
                    for (ptrdiff_t i = 0; i < n; ++i) {
                        char* p = &memory[size_t(start + i * stride)];
                        g.that(is_element_of<C>(code, p, from[i]), "code %d, stride %td, %td of %td: %a", code, stride, i, n, double(from[i]));
                        std::fill(p, p + item_size(code), char(0x5a));
                    }
                    const ptrdiff_t touched = ptrdiff_t(memory.size()) - std::count(memory.begin(), memory.end(), char(0x5a));
                    g.that(touched == 0, "code %d, stride %td: %td bytes outside were written", code, stride, touched);
                }
}

}  // namespace
