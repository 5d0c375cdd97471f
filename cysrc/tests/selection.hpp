// selection.hpp - select.hpp against a stable sort, and philox.hpp against known answers and the C library.
#pragma once
#include <algorithm>
#include <numeric>

#include "check.hpp"
#include "philox.hpp"
#include "select.hpp"

namespace {

void check_philox() {
    group checks("philox_rounds, row_noise");
    // Counter, key and answer, published with Random123 as kat_vectors.
    const uint32_t known[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (const uint32_t* line : {known[0], known[1], known[2]}) {
        uint64_t c[4];
        uvec_64 lanes[4];
        for (int i = 0; i < 4; ++i) lanes[i] = uvec_64{} + (c[i] = line[i]);
        philox_rounds(c, line[4], line[5]);
        philox_rounds(lanes, line[4], line[5]);
        for (int i = 0; i < 4; ++i) {
            checks.that(c[i] == line[6 + i], "word %d is %08x, not %08x", i, unsigned(c[i]), line[6 + i]);
            for (int lane = 0; lane < DS_BYTES / 8; ++lane) checks.that(lanes[i][lane] == c[i], "word %d of lane %d", i, lane);
        }
    }
    const uint32_t key[4] = {1, 2, 3, 4};
    const row_noise noise(key, 0x500000007);
    uint32_t words[row_noise::together];
    for (ptrdiff_t j = 0; j < 4096; j += row_noise::together) {
        noise.high_words(j, words);
        for (ptrdiff_t i = 0; i < row_noise::together; ++i) {
            uint64_t c[4] = {uint64_t(j + i) / 4, 0, 7 ^ 3, 5 ^ 4};
            philox_rounds(c, 1, 2);
            checks.that(words[i] == c[i % 4], "high word of element %ld", long(j + i));
            uint64_t low[4] = {uint64_t(j + i) / 4, uint64_t(1) << 31, 7 ^ 3, 5 ^ 4};
            philox_rounds(low, 1, 2);
            checks.that(noise.low_word(j + i) == low[i % 4], "low word of element %ld", long(j + i));
        }
    }
}

void check_gumbel(long share) {
    group checks("plain_exp, gumbel");
    generator draw{17};
    for (long i = 0; i < 100000 / share; ++i) {
        const double s = -draw.uniform(0, 1) * (i % 2 ? 64 : 1);
        const vec_f64 y = plain_exp(vec_f64{} + s);
        checks.within(ulp_between<double>(y[0], std::exp((long double)s)), 2, s, y[0]);
    }
    checks.that(plain_exp(vec_f64{} - 65.0)[0] == 0 && plain_exp(vec_f64{} - INF)[0] == 0 && plain_exp(vec_f64{})[0] == 1, "exp at its ends");
    for (long i = 0; i < 100000 / share; ++i) {
        const uint64_t bits = draw.bits() >> draw.bits() % 60;
        // The uniform number is what float64 holds of these bits.
        const double v = std::min((double(bits >> 32) * 0x1p32 + (double(uint32_t(bits)) + 0.5)) * 0x1p-64, 1 - 0x1p-53);
        const long double inner = -std::log1p(-(long double)v), want = -std::log(inner);
        const double got = gumbel(uint32_t(bits >> 32), uint32_t(bits));
        // The inner logarithm is good to some units, which show as absolute ones in the outer.
        const double error = double(std::abs(got - want)) / (0x1p-52 * std::max(1.0, double(std::abs(want))));
        checks.within(error, 8, v, got);
    }
}

template <class C> std::vector<ptrdiff_t> order_of_row(const std::vector<C>& x, ptrdiff_t k) {
    std::vector<ptrdiff_t> order;
    for (ptrdiff_t i = 0; i < ptrdiff_t(x.size()); ++i)
        if (x[i] > -std::numeric_limits<C>::infinity()) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](ptrdiff_t a, ptrdiff_t b) { return x[a] > x[b]; });
    order.resize(std::min<size_t>(order.size(), size_t(k)));
    return order;
}

template <class C> void check_selector(long share) {
    group checks(sizeof(C) == 4 ? "selector, float32" : "selector, float64");
    generator draw{19};
    constexpr ptrdiff_t w = simd<C>::width, size = BLOCK * w;
    for (long round = 0; round < 600 / share; ++round) {
        const ptrdiff_t n = 1 + ptrdiff_t(draw.bits() % (round % 3 ? 300 : 6000)), k = ptrdiff_t(draw.bits() % uint64_t(n + 1));
        std::vector<C> x(n);
        // Many equal elements, a few values, a run that rises (which every threshold must follow), special values.
        for (ptrdiff_t i = 0; i < n; ++i) {
            const double drawn = draw.uniform(-10, 10);
            x[i] = C(round % 4 == 0 ? std::rint(drawn) : round % 4 == 1 ? double(i) : drawn);
            if (round % 4 == 3 && draw.bits() % 3 == 0) x[i] = draw.bits() % 2 ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::quiet_NaN();
            if (draw.bits() % 500 == 0) x[i] = draw.bits() % 2 ? std::numeric_limits<C>::infinity() : C(-0.0);
        }
        std::vector<C> tops((n + size - 1) / size * w, -std::numeric_limits<C>::infinity());
        for (ptrdiff_t i = 0; i < n; ++i) {
            C& top = tops[i / size * w + i % w];
            if (x[i] > top) top = x[i];
        }
        std::vector<char> memory(selector<C>::bytes(k, n));
        selector<C> found(memory.data(), k, n);
        found.scan(x.data(), n, tops.data(), 0);
        C value;
        ptrdiff_t last;
        found.border(n, value, last);
        found.finish();
        const std::vector<ptrdiff_t> want = order_of_row(x, k);
        checks.that(found.count == ptrdiff_t(want.size()), "n %ld, k %ld: %ld found, not %zu", long(n), long(k), long(found.count), want.size());
        for (ptrdiff_t i = 0; i < std::min(found.count, ptrdiff_t(want.size())); ++i)
            checks.that(found.index[i] == want[i] && found.key[i] == x[want[i]], "n %ld, k %ld, rank %ld", long(n), long(k), long(i));
        if (k && ptrdiff_t(want.size()) == k) {
            ptrdiff_t border = 0;
            for (ptrdiff_t at : want)
                if (x[at] == x[want.back()]) border = std::max(border, at);
            checks.that(value == x[want.back()] && last == border, "n %ld, k %ld: the border is %ld, not %ld", long(n), long(k), long(last), long(border));
        } else if (k) checks.that(std::isinf(value) && last == n, "n %ld, k %ld: fewer than k have no border", long(n), long(k));
    }
}

template <class C> void check_order() {
    group checks("to_order, next_above, sort_falling");
    generator draw{23};
    for (C x : {C(0), C(1), C(-1), std::numeric_limits<C>::lowest(), std::numeric_limits<C>::denorm_min()}) {
        checks.that(same(from_order<C>(to_order(x)), x), "%g does not come back", double(x));
        const C above = next_above(x);
        checks.that(above == std::nextafter(x, std::numeric_limits<C>::infinity()), "above %g comes %g", double(x), double(above));
    }
    checks.that(to_order(C(-0.0)) + 1 == to_order(C(0)), "-0 is just below 0");
    checks.that(next_above(std::numeric_limits<C>::infinity()) != next_above(std::numeric_limits<C>::infinity()), "nothing is above inf");
    for (ptrdiff_t n : {0, 1, 2, 40, 41, 500, 3000}) {
        std::vector<C> key(n), spare_key(n);
        std::vector<ptrdiff_t> index(n), spare_index(n);
        for (ptrdiff_t i = 0; i < n; ++i) key[i] = C(std::rint(draw.uniform(-50, 50)) * (n % 2 ? 1 : 1e-3)) + C(0);
        std::iota(index.begin(), index.end(), ptrdiff_t(0));
        const std::vector<C> given = key;
        const std::vector<ptrdiff_t> want = order_of_row(given, n);
        sort_falling(key.data(), index.data(), n, spare_key.data(), spare_index.data());
        for (ptrdiff_t i = 0; i < n; ++i) checks.that(index[i] == want[i] && key[i] == given[want[i]], "rank %ld of %ld", long(i), long(n));
    }
}

}  // namespace
