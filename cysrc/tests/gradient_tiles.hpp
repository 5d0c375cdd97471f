// gradient_tiles.hpp - gradient_tile.hpp against plain loops: weights and their gradients, and the product that sums over rows.
#pragma once
#include "gradient_tile.hpp"
#include "tiles.hpp"

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

// o += p^T b, for every run of panels and number of columns. Past the last row, words of several hold 0.
template <class A> void check_key_product() {
    using C = typename A::compute;
    using word = typename A::word;
    const title name("key_product,", arithmetic_name<A>());
    group checks(name.text);
    generator draw{11};
    constexpr int width = simd<C>::width, block = KEY_BLOCK<C>, terms = A::terms;
    for (int columns = width; columns <= 3 * PANEL<C>; columns += width)
        for (uint64_t panels : {~uint64_t(0) >> (64 - PANELS<C>), uint64_t(1), uint64_t(6)}) {
            const int rows = 3 * TILE_ROWS - 3, inner = (rows + terms - 1) / terms;
            const auto p = random_words<A>(inner * block, draw), b = random_words<A>(block / terms * columns, draw);
            std::vector<C> o(block * columns);
            for (C& x : o) x = C(draw.uniform(-1, 1));
            if constexpr (terms > 1)
                for (int k = 0; k < block; ++k) p[(inner - 1) * block + k].bits &= 0xffff;
            const std::vector<C> before = o;
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
                        const word left = p[r / terms * block + k], right = b[value_place<C>(e, r / terms, columns, block / terms)];
                        const long double term = (long double)term_of(left, r % terms) * term_of(right, r % terms);
                        want += term, size += std::abs(term);
                    }
                    const double ulps = double(std::abs(o[at] - want) / (size * std::numeric_limits<C>::epsilon()));
                    checks.within(ulps, rows, double(want), o[at]);
                }
        }
}

// Words of two rows and of two keys, of a tile with a lone last row too.
#if defined(__AVX512BF16__)
inline void check_narrow_rows() {
    using A = pair_arithmetic;
    group checks("narrow_rows");
    generator draw{17};
    constexpr int block = KEY_BLOCK<float>, untouched = 0x12345678;
    for (int rows = 1; rows <= TILE_ROWS; ++rows)
        for (uint64_t panels : {~uint64_t(0) >> (64 - PANELS<float>), uint64_t(1), uint64_t(6)})
            for (int wanted = 1; wanted < 4; ++wanted) {
                const int pairs = (rows + 1) / 2;
                const exact_array<float> s(rows * block);
                for (int i = 0; i < rows * block; ++i) s[i] = draw.bits() % 9 ? float(draw.uniform(-2, 2)) : draw.bits() % 2 ? 0.0f : float(INF);
                const exact_array<bf16_pair> by_rows(pairs * block, bf16_pair{untouched}), by_keys(pairs * block, bf16_pair{untouched});
                narrow_rows<A>(rows, runs_of<float>(panels), s.data(), wanted & 1 ? by_rows.data() : nullptr, wanted & 2 ? by_keys.data() : nullptr);
                const auto is = [](bf16_pair word, float a, float b) { return word.bits == (narrowed<bf16>(a).bits | uint32_t(narrowed<bf16>(b).bits) << 16); };
                for (int r = 0; r < rows; ++r)
                    for (int k = 0; k < block; ++k) {
                        const bool seen = panels >> k / PANEL<float> & 1;
                        const bf16_pair of_rows = by_rows[r / 2 * block + k], of_keys = by_keys[(r * block + k) / 2];
                        if (!(wanted & 1 && seen)) checks.that(of_rows.bits == untouched, "%d rows: row %d, key %d changed by rows", rows, r, k);
                        else if (r % 2 == 0) checks.that(is(of_rows, s[r * block + k], r + 1 < rows ? s[(r + 1) * block + k] : 0), "%d rows: row %d, key %d", rows, r, k);
                        if (!(wanted & 2 && seen)) checks.that(of_keys.bits == untouched, "%d rows: row %d, key %d changed by keys", rows, r, k);
                        else if (k % 2 == 0) checks.that(is(of_keys, s[r * block + k], s[r * block + k + 1]), "%d rows: keys %d of row %d", rows, k, r);
                    }
            }
}
#endif

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
    clear_rows<lane_arithmetic<C>>(rows, 2, p.data(), ds.data());
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
