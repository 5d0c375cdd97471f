// rows.hpp - checks of blocks.hpp: the sums of a row element by element in the documented order, to the bit, in every layout.
#pragma once
#include "registers.hpp"

namespace {

// exp of one element by the register function, which check_exp holds to libm.
template <class S> typename simd<S>::C exp_of(typename simd<S>::C x) { return exp(simd<S>(double(x))).v[0]; }

// Elements of a row; `ties` of them, at random places, are its maximum.
template <class S> std::vector<S> row_of(ptrdiff_t n, double m, int ties, generator& random) {
    std::vector<S> x;
    for (ptrdiff_t i = 0; i < n; ++i) x.push_back(element_of<S>(random.bits() % 16 ? m - random.uniform(0.5, 20) : -INF));
    for (int i = 0; i < ties; ++i) x[size_t(random.bits() % uint64_t(n))] = element_of<S>(m);
    return x;
}

// n elements one at a time: per lane the sum in the documented order, for float64 with the errors of its additions, and the number of maxima.
template <class S> struct scalar_sum {
    using C = typename simd<S>::C;
    static constexpr ptrdiff_t w = simd<S>::width;
    C lane[w], error[w];
    ptrdiff_t count = 0;

    scalar_sum(const S* x, ptrdiff_t n, C m, C c, bool tied) {
        for (ptrdiff_t l = 0; l < w; ++l) {
            error[l] = 0;
            for (ptrdiff_t first = 0; first == 0 || first < n; first += GROUP * w) {
                C t[GROUP];
                for (ptrdiff_t j = 0; j < GROUP; ++j) {
                    const ptrdiff_t i = first + j * w + l;
                    const bool largest = tied && i < n && lane_of(x[i]) == m;
                    count += largest;
                    t[j] = i >= n || largest ? C(0) : exp_of<S>(lane_of(x[i]) - c);
                }
                const C low = plus(t[0], t[1], l), high = plus(t[2], t[3], l), group = plus(low, high, l);
                lane[l] = first ? plus(lane[l], group, l) : group;
            }
        }
    }
    C plus(C a, C b, ptrdiff_t l) {
        const C s = a + b, v = s - a;
        error[l] += (a - (s - v)) + (b - v);
        return s;
    }
    // The sum of the lanes in float64, as wide<S> folds it.
    double total() const {
        constexpr int wide_width = simd<double>::width;
        double sums[wide_width] = {};
        for (ptrdiff_t l = 0; l < w; ++l) sums[l % wide_width] += double(lane[l]);
        const auto add = [](double a, double b) { return a + b; };
        if constexpr (std::is_same<S, double>::value) return folded(sums, wide_width, add) + folded(error, wide_width, add);
        else return folded(sums, wide_width, add);
    }
};

template <class S> void check_kept(group& g, const std::vector<S>& x, typename simd<S>::C c, const typename simd<S>::C* e) {
    for (size_t i = 0; i < x.size(); ++i) {
        const auto want = exp_of<S>(lane_of(x[i]) - c);
        g.that(same(e[i], want), "exponential %zu of %zu is %a, not %a", i, x.size(), double(e[i]), double(want));
    }
}
template <class S> void check_sum(group& g, const char* what, ptrdiff_t n, const block_total<S>& got, ptrdiff_t count, const scalar_sum<S>& want) {
    const simd<S> sum = got.sum;
    g.that(count == want.count, "%s of %td: %td maxima, not %td", what, n, count, want.count);
    for (int l = 0; l < simd<S>::width; ++l) {
        g.that(same(sum.v[l], want.lane[l]), "%s of %td: lane %d is %a, not %a", what, n, l, double(sum.v[l]), double(want.lane[l]));
        if constexpr (std::is_same<S, double>::value)
            g.that(same(got.error[l], want.error[l]), "%s of %td: error of lane %d is %a, not %a", what, n, l, got.error[l], want.error[l]);
    }
}

template <class S> void check_blocks() {
    using C = typename simd<S>::C;
    constexpr ptrdiff_t w = simd<S>::width, n = BLOCK * w;
    const title name("block_max, block_sum", dtype_name<S>());
    group g(name.text);
    generator random{12};
    alignas(64) C e[n];
    for (int round = 0; round < 12; ++round)
        for (int tied = 0; tied < 2; ++tied)
            for (int keep = 0; keep < 2; ++keep) {
                const double m = 3, c = round % 3 ? 3 : 0;
                const std::vector<S> x = row_of<S>(n, m, tied ? 3 : 0, random), next = row_of<S>(n, 5, 1, random);
                const simd<S> largest = block_max(next.data());
                ptrdiff_t count = 0;
                simd<S> next_max;
                const block_total<S> sum = block_sum<S>(x.data(), simd<S>(m), simd<S>(c), lane_buffer<S>(e), tied, keep, count, next.data(), next_max);
                check_sum(g, "block_sum", n, sum, count, scalar_sum<S>(x.data(), n, C(m), C(c), tied));
                if (keep) check_kept(g, x, C(c), e);
                for (ptrdiff_t l = 0; l < w; ++l) {
                    C want = -C(INF);
                    for (ptrdiff_t i = l; i < n; i += w) want = std::max(want, C(lane_of(next[size_t(i)])));
                    g.that(largest.v[l] == want && next_max.v[l] == want, "block_max: lane %td is %a", l, double(largest.v[l]));
                }
            }
}

// Rows that end where memory ends: nothing beyond is read.
template <class S> void check_parts() {
    using C = typename simd<S>::C;
    constexpr ptrdiff_t w = simd<S>::width;
    const title name("part_sum of every length", dtype_name<S>());
    group g(name.text);
    generator random{13};
    fenced_page page;
    alignas(64) C e[BLOCK * w];
    for (ptrdiff_t n = 1; n < BLOCK * w; ++n)
        for (int tied = 0; tied < 2; ++tied)
            for (int keep = 0; keep < 2; ++keep) {
                const std::vector<S> x = row_of<S>(n, 3, tied, random);
                S* p = (S*)(page.end() - n * sizeof(S));
                std::copy(x.begin(), x.end(), p);
                ptrdiff_t count = 0;
                const block_total<S> sum = part_sum<S>(p, n, simd<S>(3.0), simd<S>(3.0), lane_buffer<S>(e), tied, keep, count);
                check_sum(g, "part_sum", n, sum, count, scalar_sum<S>(p, n, 3, 3, tied));
                if (keep) check_kept(g, x, C(3), e);
            }
}

template <class S> void check_few_output(group& g, const std::vector<std::vector<S>>& rows, const S* const* x, const double* c, lane_buffer<S> e, bool is_log) {
    using C = typename simd<S>::C;
    constexpr ptrdiff_t w = simd<S>::width;
    const ptrdiff_t n = ptrdiff_t(rows[0].size());
    double value[w];
    for (ptrdiff_t j = 0; j < w; ++j) value[j] = 0.25 + double(j);
    enum { ALONE, ALONE_PAST_CACHE, ONE_PIECE, SHORT_PIECE, WAYS };
    for (int way = 0; way < WAYS; ++way) {
        const bool piece = way >= ONE_PIECE;
        const ptrdiff_t pitch = piece ? n : GROUP * w + 64, k = way == SHORT_PIECE ? w - 1 : w;
        alignas(64) S memory[w * (GROUP * w + 64)];
        S* out[w];
        for (ptrdiff_t j = 0; j < w; ++j) out[j] = memory + j * pitch + (piece ? 3 : j % 3);
        std::fill(memory, memory + w * (GROUP * w + 64), element_of<S>(-77));
        few_output<S>(out, x, n, k, is_log, e, c, value, way != ALONE);
        stream_fence();
        if (piece) g.that(lane_of(memory[2]) == lane_of(element_of<S>(-77)), "few_output: wrote before its rows");
        for (ptrdiff_t j = 0; j < k; ++j) {
            for (ptrdiff_t i = 0; i < n; ++i) {
                const C v = lane_of(rows[size_t(j)][size_t(i)]);
                const C want = is_log ? (v - C(c[j])) - C(value[j]) : exp_of<S>(v - C(c[j])) * C(value[j]);
                g.that(same(lane_of(out[j][i]), lane_of(element_of<S>(double(want)))), "few_output %td of %td: %a", i, n, double(lane_of(out[j][i])));
            }
            if (!piece || j + 1 == k) g.that(lane_of(out[j][n]) == lane_of(element_of<S>(-77)), "few_output: wrote beyond %td", n);
        }
    }
}
template <class S> void check_few_rows() {
    using C = typename simd<S>::C;
    constexpr ptrdiff_t w = simd<S>::width;
    const title name("few_stats, few_output of every length", dtype_name<S>());
    group g(name.text);
    generator random{14};
    alignas(64) C e[w * GROUP * w];
    for (ptrdiff_t n = 1; n <= GROUP * w; ++n)
        for (int to_zero = 0; to_zero < 2; ++to_zero)
            for (int keep = 0; keep < 2; ++keep) {
                std::vector<std::vector<S>> rows;
                const S* x[w];
                for (ptrdiff_t j = 0; j < w; ++j) rows.push_back(row_of<S>(n, j % 4 == 3 ? 40 : j % 4, 1 + int(j % 2), random));
                if (n % 5 == 0) std::fill(rows[0].begin(), rows[0].end(), element_of<S>(-INF));
                for (ptrdiff_t j = 0; j < w; ++j) x[j] = rows[size_t(j)].data();
                double m[w], c[w], total[w], count[w];
                few_stats<S>(x, n, keep, to_zero, lane_buffer<S>(e), m, c, total, count);
                for (ptrdiff_t j = 0; j < w; ++j) {
                    double largest = -INF;
                    for (const S& v : rows[size_t(j)]) largest = std::max(largest, double(lane_of(v)));
                    const double shift = to_zero && (std::fabs(largest) < ZERO_SHIFT || largest == -INF) ? 0 : largest;
                    const scalar_sum<S> want(x[j], n, C(largest), C(shift), true);
                    g.that(m[j] == largest && c[j] == shift, "few_stats of %td: row %td has m %g, c %g", n, j, m[j], c[j]);
                    // of a row of -inf the count has no meaning: lanes beyond n hold -inf too
                    g.that(count[j] == double(want.count) || largest == -INF, "few_stats of %td: row %td has %g maxima, not %td", n, j, count[j], want.count);
                    g.that(same(total[j], want.total()), "few_stats of %td: row %td has %a, not %a", n, j, total[j], want.total());
                }
                if (!to_zero) check_few_output<S>(g, rows, x, c, lane_buffer<S>(e), !keep);
            }
}

template <class S> void check_writes() {
    using C = typename simd<S>::C;
    constexpr ptrdiff_t w = simd<S>::width, most = 5 * w;
    const title name("write_scaled, write_row", dtype_name<S>());
    group g(name.text);
    generator random{15};
    const std::vector<S> x = row_of<S>(most, 3, 1, random);
    alignas(64) C e[most + w];
    alignas(64) S memory[most + 2 * w];
    for (ptrdiff_t i = 0; i < most; ++i) e[i] = exp_of<S>(lane_of(x[size_t(i)]) - 3);
    const simd<S> c = simd<S>(3.0), s = simd<S>(0.75);
    enum { SCALED, EXP, LOG, KINDS };
    for (ptrdiff_t n = 0; n <= most; ++n)
        for (ptrdiff_t offset : {ptrdiff_t(0), ptrdiff_t(1), w - 1})
            for (int kind = 0; kind < KINDS; ++kind)
                for (int past_cache = 0; past_cache < 2; ++past_cache) {
                    std::fill(memory, memory + most + 2 * w, element_of<S>(-77));
                    S* out = memory + offset;
                    if (kind == SCALED) write_scaled<S>(out, lane_buffer<S>(e), n, s, past_cache);
                    else write_row<S>(out, x.data(), n, c, s, kind == LOG, past_cache);
                    stream_fence();
                    for (ptrdiff_t i = 0; i < most + 2 * w; ++i) {
                        const ptrdiff_t at = i - offset;
                        C want = -77;
                        if (at >= 0 && at < n) want = kind == LOG ? (C(lane_of(x[size_t(at)])) - C(3)) - C(0.75) : e[at] * C(0.75);
                        const C got = lane_of(memory[i]);
                        g.that(same(got, C(lane_of(element_of<S>(double(want))))), "kind %d, %td of %td: %a", kind, at, n, double(got));
                    }
                }
}

// Columns side by side give each the bits of a row on its own.
template <class S> void check_strips() {
    constexpr ptrdiff_t w = simd<S>::width, size = BLOCK * w, most = 2 * size + size / 2 + 3;
    const title name("strip_sum, strip_totals", dtype_name<S>());
    group g(name.text);
    generator random{16};
    for (ptrdiff_t n : {ptrdiff_t(1), w - 1, w + 1, GROUP * w + w + 1, size - 1, size, size + 5, most})
        for (int keep = 0; keep < 2; ++keep) {
            alignas(64) S strip[most * w];
            alignas(64) wide<S> sums[w];
            std::vector<std::vector<S>> columns;
            for (ptrdiff_t j = 0; j < w; ++j) {
                columns.push_back(row_of<S>(n, 2 + double(j), int(n) / 8 + 1, random));
                for (ptrdiff_t i = 0; i < n; ++i) strip[i * w + j] = columns[size_t(j)][size_t(i)];
            }
            S largest[w];
            for (ptrdiff_t j = 0; j < w; ++j) largest[j] = S(2 + double(j));
            const simd<S> m = load(largest);
            simd<S> count = simd<S>(0.0);
            for (ptrdiff_t i = 0; i < n; i += size) strip_sum<S>(lane_buffer<S>(strip + i * w), std::min(size, n - i), m, m, keep, sums, count);
            double totals[w];
            strip_totals<S>(sums, n, totals);
            for (ptrdiff_t j = 0; j < w; ++j) {
                const std::vector<S>& x = columns[size_t(j)];
                const simd<S> mj = simd<S>(double(largest[j]));
                wide<S> row;
                ptrdiff_t maxima = 0;
                for (ptrdiff_t i = 0; i < n; i += size) {
                    const scalar_sum<S> one(&x[size_t(i)], std::min(size, n - i), largest[j], largest[j], true);
                    maxima += one.count;
                    ptrdiff_t counted = 0;
                    row.add(part_sum<S>(&x[size_t(i)], std::min(size, n - i), mj, mj, lane_buffer<S>(strip), true, false, counted));
                    g.that(counted == one.count, "part_sum counts %td, not %td", counted, one.count);
                }
                g.that(same(totals[j], row.total()), "column %td of %td: %a, not %a", j, n, totals[j], row.total());
                g.that(double(count.v[j]) == double(maxima), "column %td of %td: %g maxima, not %td", j, n, double(count.v[j]), maxima);
                for (ptrdiff_t i = 0; keep && i < n; ++i)
                    g.that(same(strip[i * w + j], exp_of<S>(x[size_t(i)] - largest[j])), "column %td: exponential %td", j, i);
            }
        }
}

}  // namespace
