// gradient_tiles.hpp - gradient_tile.hpp against plain loops: weights and their gradients, and the product that sums over rows.
#pragma once
#include "check.hpp"
#include "gradient_tile.hpp"

namespace {

// Numbers of a row: usual ones, rows that see nothing, and rows that are NaN.
template <class C> row_values<C> row_drawn(generator& draw, int r) {
    const C rest = r % 5 == 3 ? C(INF) : r % 5 == 4 ? std::numeric_limits<C>::quiet_NaN() : C(draw.uniform(-1, 8));
    return {C(draw.uniform(-30, 30)), rest, C(draw.uniform(0, 1)), C(draw.uniform(-2, 2))};
}

template <class C, bool gradients> void check_weigh(const char* name) {
    group checks(name);
    generator draw{7};
    constexpr int rows = 11, block = KEY_BLOCK<C>;
    const double unit = 0.3;
    for (uint64_t panels : {~uint64_t(0) >> (64 - PANELS<C>), uint64_t(1), uint64_t(5), uint64_t(2)}) {
        std::vector<C> s(rows * block), dp(rows * block), numbers(4 * rows);
        for (C& x : s) x = draw.bits() % 4 ? C(draw.uniform(-40, 30)) : -std::numeric_limits<C>::infinity();
        for (C& x : dp) x = C(draw.uniform(-3, 3));
        row_numbers<C> of{&numbers[0], &numbers[rows], &numbers[2 * rows], &numbers[3 * rows]};
        for (int r = 0; r < rows; ++r) {
            const row_values<C> drawn = row_drawn<C>(draw, r);
            of.shift[r] = drawn.shift, of.rest[r] = drawn.rest, of.weight[r] = drawn.weight, of.delta[r] = drawn.delta;
        }
        const std::vector<C> given = s, products = dp;
        const key_runs runs = runs_of<C>(panels);
        weigh<C, gradients>(rows, runs, C(unit), of, s.data(), dp.data());
        for (int r = 0; r < rows; ++r)
            for (int j = 0; j < block; ++j) {
                const int at = r * block + j;
                if (!(panels >> j / PANEL<C> & 1)) {
                    checks.that(same(s[at], given[at]) && same(dp[at], products[at]), "row %d, key %d is of no run and changed", r, j);
                    continue;
                }
                if (std::isinf(given[at]) || of.rest[r] == C(INF)) {
                    checks.that(s[at] == 0 && (!gradients || dp[at] == 0), "row %d, key %d is hidden and has a weight", r, j);
                    continue;
                }
                const long double x = ((long double)given[at] - of.shift[r]) * (long double)C(unit) - of.rest[r];
                const long double p = std::exp(x) * of.weight[r];
                // The difference is rounded once and the exponent once: their sizes in units of the exponential, as accuracy.py has it.
                const double spread = std::isnan(x) ? 0 : double(std::abs(x) + std::abs((long double)of.rest[r]));
                checks.within(p < std::numeric_limits<C>::min() ? 0 : ulp_between<C>(s[at], p), 6 + 2 * spread, double(x), s[at]);
                if (!gradients) continue;
                const C want = s[at] * (products[at] - of.delta[r]);
                checks.that(same(dp[at], want), "row %d, key %d: ds is %g, not %g", r, j, double(dp[at]), double(want));
            }
    }
}

// o += p^T b, for every run of panels and number of columns.
template <class C> void check_key_product() {
    using A = lane_arithmetic<C>;
    group checks(sizeof(C) == 4 ? "key_product, float32" : "key_product, float64");
    generator draw{11};
    constexpr int width = simd<C>::width, block = KEY_BLOCK<C>;
    for (int columns = width; columns <= 3 * PANEL<C>; columns += width)
        for (uint64_t panels : {~uint64_t(0) >> (64 - PANELS<C>), uint64_t(1), uint64_t(6)}) {
            const int rows = 3 * TILE_ROWS - 2;
            std::vector<C> p(block * block), b(block * (columns + PANEL<C>)), o(block * columns), before;
            for (C& x : p) x = C(draw.uniform(-1, 1));
            for (C& x : o) x = C(draw.uniform(-1, 1));
            std::vector<C> values(rows * columns);
            for (int r = 0; r < rows; ++r)
                for (int e = 0; e < columns; ++e) {
                    const int wide = columns / PANEL<C> * PANEL<C>, step = e < wide ? PANEL<C> : width, c = e < wide ? e / step * step : wide;
                    values[r * columns + e] = b[c * block + r * step + e - c] = C(draw.uniform(-1, 1));
                }
            before = o;
            // The second tile of rows sees nothing: its rows are summed over, since they lie between others that do.
            const uint64_t seen[] = {panels, 0, panels};
            const row_hull<C> hull(seen, 3, rows);
            key_product<A>(p.data(), b.data(), runs_of<C>(panels), hull, o.data(), columns);
            for (int k = 0; k < block; ++k)
                for (int e = 0; e < columns; ++e) {
                    const int at = k * columns + e;
                    if (!(panels >> k / PANEL<C> & 1)) {
                        checks.that(same(o[at], before[at]), "key %d of no run, column %d changed", k, e);
                        continue;
                    }
                    long double want = before[at], size = std::abs(want);
                    for (int r = 0; r < rows; ++r) {
                        const long double term = (long double)p[r * block + k] * values[r * columns + e];
                        want += term, size += std::abs(term);
                    }
                    const double ulps = double(std::abs(o[at] - want) / (size * std::numeric_limits<C>::epsilon()));
                    checks.within(ulps, rows, double(want), o[at]);
                }
        }
}

template <class C> void check_rest_of_tiles() {
    group checks("clear_rows, multiply_rows, add_run, row_hull");
    generator draw{13};
    constexpr int rows = 5, block = KEY_BLOCK<C>;
    std::vector<C> p(rows * block), ds(rows * block), factor(rows * block);
    for (auto* array : {&p, &ds, &factor})
        for (C& x : *array) x = C(draw.uniform(1, 2));
    ds[0] = 0, factor[0] = std::numeric_limits<C>::quiet_NaN();
    const std::vector<C> old_p = p, old_ds = ds;
    multiply_rows<C>(rows, runs_of<C>(1), factor.data(), ds.data());
    for (int at = 0; at < rows * block; ++at) {
        const C want = at % block >= PANEL<C> ? old_ds[at] : old_ds[at] == 0 ? C(0) : old_ds[at] * factor[at];
        checks.that(same(ds[at], want), "element %d is %g", at, double(ds[at]));
    }
    const std::vector<C> multiplied = ds;
    clear_rows<C>(rows, 2, p.data(), ds.data());
    for (int at = 0; at < rows * block; ++at) {
        const bool cleared = at % block / PANEL<C> == 1;
        checks.that(same(p[at], cleared ? C(0) : old_p[at]) && same(ds[at], cleared ? C(0) : multiplied[at]), "element %d", at);
    }
    double one = 0.5, apart[6] = {1, 2, 3, 4, 5, 6}, sum = 0.5;
    add_run(old_p.data(), 3, (char*)&one, 0);
    for (int i = 0; i < 3; ++i) sum += double(old_p[i]);
    checks.that(one == sum, "a run in one element is %g, not %g", one, sum);
    add_run(old_p.data(), 3, (char*)apart, 2 * sizeof(double));
    for (int i = 0; i < 6; ++i) checks.that(apart[i] == i + 1 + (i % 2 ? 0 : double(old_p[i / 2])), "element %d of a strided run", i);
    const uint64_t seen[] = {0, 1, 3, 0};
    const row_hull<C> hull(seen, 4, 3 * TILE_ROWS - 1);
    checks.that(hull.first[0] == TILE_ROWS && hull.last[0] == 3 * TILE_ROWS - 1, "panel 0");
    checks.that(hull.first[1] == 2 * TILE_ROWS && hull.last[1] == 3 * TILE_ROWS - 1, "panel 1");
    checks.that(hull.last[2] == 0 && hull.first[2] == 3 * TILE_ROWS - 1, "a panel that nobody sees");
}

}  // namespace
