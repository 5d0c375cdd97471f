// pairs.hpp - checks of scores.hpp and of the ends of rows in attention.hpp: the running pair over blocks, options, merged and finished rows.
#pragma once
#include "scores.hpp"
#include "tiles.hpp"

namespace {

// A score of any kind: near the others, far from them, unseen, infinite, NaN.
inline double odd_score(int kind, generator& random) {
    const uint64_t dice = random.bits() % 64;
    if (kind == 1 || (kind > 2 && dice < 8)) return -INF;
    if (kind == 2) return dice < 32 ? random.uniform(-1e30, 1e30) : random.uniform(-3e4, 3e4);
    if (kind == 4 && dice == 8) return NAN;
    if (kind >= 5 && dice == 9) return INF;
    return kind == 6 && dice < 40 ? NAN : random.uniform(-12, 12);
}
constexpr int ROW_KINDS = 8;       // of kind 0 and 7 all is ordinary

// A row's pair by the definition, over all that it has seen.
struct plain_pair {
    double m = -INF, d = 0;
    bool nan = false;
    void add(const std::vector<double>& s) {
        double top = m;
        for (double x : s) {
            nan |= x != x;
            top = x > top ? x : top;
        }
        if (top > m && m > -INF && std::isfinite(top)) d *= std::exp(m - top);
        if (std::isfinite(top))
            for (double x : s) d += x == x ? std::exp(x - top) : 0;
        m = top;
    }
};

// `unit` times a score is natural; blocks come one after the other, with runs of their own, between which nothing may be read.
template <class A> void check_update(long share) {
    using C = typename A::compute;
    using word = typename A::word;
    constexpr ptrdiff_t step = KEY_BLOCK<C>, most = TILE_ROWS > 12 ? TILE_ROWS : 12;
    const title name("update_rows over blocks,", arithmetic_name<A>());
    group g(name.text);
    generator random{24};
    const double eps = std::numeric_limits<C>::epsilon();
    for (int round = 0; round < int(60 / share); ++round) {
        const int rows = 1 + round * 7 % int(most);
        const double unit = A::terms > 1 ? random.uniform(0.05, 2) : 1;
        row_states<C> state;
        state.clear();
        plain_pair plain[most];
        for (int block = 0; block < 4; ++block) {
            const key_runs runs = plain_runs<C>(random_panels(PANELS<C>, random));
            const exact_array<C> s(rows * step, C(NAN));
            const exact_array<word> own(A::terms > 1 ? rows * step / A::terms : 0);
            C before[most], alpha[TILE_ROWS + 28];
            std::copy(state.m, state.m + rows, before);
            for (int r = 0; r < rows; ++r) {
                std::vector<double> seen;
                for (int i = 0; i < runs.count; ++i)
                    for (int j = runs.start[i]; j < runs.stop[i]; ++j) {
                        s[r * step + j] = C(odd_score((round + r) % ROW_KINDS, random) + 5 * block);
                        seen.push_back(double(s[r * step + j]) * unit);
                    }
                plain[r].add(seen);
            }
            const std::vector<C> scores(s.data(), s.data() + s.size());
            word* p = A::terms > 1 ? own.data() : (word*)s.data();
            update_rows<A>(rows, runs, C(unit), s.data(), p, state, alpha);
            for (int r = 0; r < rows; ++r) {
                const plain_pair& want = plain[r];
                const double m = double(state.m[r]) * unit, d = state.d[r], old = double(before[r]) * unit;
                // a difference of scores is rounded, and so is the factor it is multiplied by
                const double gap = std::isfinite(old) && std::isfinite(m) ? m - old : 0;
                g.that(m == want.m, "row %d, block %d: m is %g, not %g", r, block, m, want.m);
                const double weight = m == old ? 1 : std::isfinite(m) && std::isfinite(old) ? std::exp(old - m) : 0;
                g.that(std::fabs(double(alpha[r]) - weight) <= 4 * eps * (1 + std::min(gap, 1e3)) * weight + std::numeric_limits<C>::denorm_min(),
                       "row %d, block %d: alpha is %g, not %g", r, block, double(alpha[r]), weight);
                if (want.nan) g.that(d != d, "row %d, block %d: d is %g after a NaN", r, block, d);
                else if (want.m == INF) g.that(d == INF, "row %d, block %d: d is %g after +inf", r, block, d);
                else g.that(std::fabs(d - want.d) <= 300 * eps * want.d, "row %d, block %d: d is %.17g, not %.17g", r, block, d, want.d);
                for (int i = 0; i < runs.count; ++i)
                    for (int j = runs.start[i]; j < runs.stop[i]; ++j) {
                        const double x = double(scores[size_t(r * step + j)]) * unit, got = double(term_of(p[(r * step + j) / A::terms], j % A::terms));
                        if (m == INF) { g.that(got == 0, "row %d: weight %g beside +inf", r, got); continue; }
                        if (x != x) { g.that(got != got, "row %d: weight %g of a NaN", r, got); continue; }
                        const double e = x == -INF ? 0 : std::exp(x - m), limit = 4 * eps * (1 + std::min(m - x, 1e3)) + (A::terms > 1 ? 0x1p-8 : 0);
                        g.that(x == -INF ? got == 0 : std::fabs(got - e) <= limit * e + (A::terms > 1 ? 1.2e-38 : double(std::numeric_limits<C>::denorm_min())),
                               "row %d, key %d: weight %g, not %g", r, j, got, e);
                    }
            }
        }
    }
}

template <class C> void check_slope_of_cap() {
    const title name("slope_of_cap,", dtype_name<C>());
    group g(name.text);
    generator random{27};
    for (int round = 0; round < 4000; ++round) {
        const C x = C(random.uniform(0, round % 2 ? 1 : sizeof(C) == 4 ? 40 : 340));
        const long double cosh = std::cosh((long double)x);
        g.within(ulp_between<C>(slope_of_cap(exp(simd<C>(double(-2 * x))).v)[0], 1 / (cosh * cosh)), 6, double(x), double(x));
    }
}

template <class C> void check_hide_outside() {
    const title name("hide_outside", dtype_name<C>());
    group g(name.text);
    generator random{25};
    for (int round = 0; round < 300; ++round) {
        const key_runs runs = plain_runs<C>(random_panels(PANELS<C>, random));
        const exact_array<C> s(KEY_BLOCK<C>, C(1));
        const ptrdiff_t lo = ptrdiff_t(random.bits() % (KEY_BLOCK<C> + 40)), hi = ptrdiff_t(random.bits() % (2 * KEY_BLOCK<C>)) - KEY_BLOCK<C> / 2;
        hide_outside(runs, lo, hi, s.data());
        for (int i = 0; i < runs.count; ++i)
            for (int j = runs.start[i]; j < runs.stop[i]; ++j)
                g.that(s[j] == (j < lo || j >= hi ? LOWEST<C> : 1), "key %d outside [%td, %td) is %g", j, lo, hi, double(s[j]));
    }
}

template <class C> void check_score_scale() {
    const title name("score_scale,", dtype_name<C>());
    group g(name.text);
    int exponent;
    for (double scale : {1.0, -1.0, 0.125, -4.0, 0.1, -0.3, 3.0, 1 / std::sqrt(80.0), 0x1.8p-20, 0x1.8p19, -1e-19, 1e19, 1e39, -1e-46, 1e300, 1e-300, 5e-324}) {
        const score_scale<C> made(scale);
        g.that(double(made.fold) * made.unit == scale, "%g = %g times %g", scale, double(made.fold), made.unit);
        g.that(std::fabs(std::frexp(double(made.fold), &exponent)) == 0.5, "%g: queries times %g are rounded", scale, double(made.fold));
        g.that(made.unit > 0 && made.lanes > 0 && is_finite(made.lanes), "%g: scores in units of %g, %g", scale, made.unit, double(made.lanes));
        if (std::fabs(scale) > 1e-25 && std::fabs(scale) < 1e25)
            g.that(made.unit >= 1 && made.unit < 2 && made.lanes == C(made.unit), "%g: scores in units of %g", scale, made.unit);
    }
    const score_scale<C> zero(0), infinite(-INF), nan(NAN);
    g.that(zero.fold == 0 && zero.unit == 1, "0 = %g times %g", double(zero.fold), zero.unit);
    g.that(infinite.fold == -1 && infinite.unit == INF && infinite.lanes == C(INF), "-inf = %g times %g", double(infinite.fold), infinite.unit);
    g.that(nan.fold != nan.fold, "NaN = %g times %g", double(nan.fold), nan.unit);
}

// One sequence, one head, whose bias and mask end with the keys, at the edge of memory.
struct one_row {
    attention_task t;
    exact_memory bias;
    exact_array<bool> mask;
    one_row(int code, const std::vector<double>& values) : bias(values.size() * size_t(item_size(code))), mask(ptrdiff_t(values.size()), true) {
        t.queries = 1;
        t.keys = ptrdiff_t(values.size());
        t.base[AT_BIAS] = bias.data();
        t.item[AT_BIAS] = item_size(code);
        t.code[AT_BIAS] = code;
        t.item[AT_MASK] = 1;
        for (size_t j = 0; j < values.size(); ++j) {
            const float x = float(values[j]);
            if (code == CODE_F64) std::memcpy(bias.data() + j * 8, &values[j], 8);
            else std::memcpy(bias.data() + j * 4, &x, 4);
        }
    }
};

template <class C> void check_bias() {
    const title name("bias and mask of a row, finite sums", dtype_name<C>());
    group g(name.text);
    constexpr double most = std::numeric_limits<C>::max();
    const double values[] = {0, -1, -most, most, -INF, INF, NAN, -std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
    const double scores[] = {3, -most, most, -INF, INF, NAN, -most / 2};
    for (int code : {CODE_F32, CODE_F64}) {
        if (code == CODE_F32 && sizeof(C) == 8) continue;
        std::vector<double> bias;
        for (size_t i = 0; i < std::size(scores); ++i)
            for (double b : values) bias.push_back(code == CODE_F64 || !std::isfinite(b) || std::fabs(b) <= most ? b : 0);
        const ptrdiff_t keys = ptrdiff_t(bias.size()), n = (keys + PANEL<C> - 1) / PANEL<C> * PANEL<C>;
        one_row row(code, bias);
        for (bool masked : {false, true}) {
            row.t.base[AT_MASK] = masked ? (char*)row.mask.data() : nullptr;
            for (ptrdiff_t j = 0; j < keys; ++j) row.mask[j] = j % 3 != 1;
            const sequence q(row.t, 0);
            const exact_array<C> s(n, C(0));
            for (ptrdiff_t j = 0; j < keys; ++j) s[j] = C(scores[size_t(j) / std::size(values)]);
            apply_options(q, row_of(row.t, 0, 0), 0, n, C(1), s.data());
            for (ptrdiff_t j = 0; j < keys; ++j) {
                const double x = double(C(scores[size_t(j) / std::size(values)])), b = bias[size_t(j)];
                const double rounded = std::isfinite(b) ? std::min(std::max(b, -most), most) : b;
                C want = C(x) + C(rounded);
                if (x == -INF || b == -INF || (masked && !row.mask[j])) want = LOWEST<C>;
                else if (want < -C(most)) want = -C(most);
                g.that(same(s[j], want), "%g + %g is %g, not %g", x, b, double(s[j]), double(want));
            }
        }
    }
}

// ---------------------------------------------------------------- the ends of rows

template <class C> struct kept_row {
    double m, d;
    std::vector<C> o;
};
template <class C> void check_merged_row() {
    const title name("merged_row: edge rules", dtype_name<C>());
    group g(name.text);
    const C inf = C(INF), nan = C(NAN), junk = C(7);
    struct { const char* what; kept_row<C> a, b, want; } table[] = {
        {"empty with empty", {-INF, 0, {0, 0}}, {-INF, 0, {junk, nan}}, {-INF, 0, {0, 0}}},
        {"later empty, whatever it holds", {1, 2, {3, 4}}, {-INF, 0, {nan, inf}}, {1, 2, {3, 4}}},
        {"earlier empty, whatever it holds", {-INF, 0, {nan, inf}}, {1, 2, {3, 4}}, {1, 2, {3, 4}}},
        {"equal maxima", {1, 2, {3, 4}}, {1, 5, {1, 1}}, {1, 7, {4, 5}}},
        {"far apart, the later larger", {-1e6, 2, {3, 4}}, {1e6, 5, {1, 2}}, {1e6, 5, {1, 2}}},
        {"far apart, the earlier larger", {1e6, 2, {3, 4}}, {-1e6, 5, {1, 2}}, {1e6, 2, {3, 4}}},
        {"half the weight", {0, 2, {4, 8}}, {std::log(2.0), 1, {1, 1}}, {std::log(2.0), 2, {3, 5}}},
        {"an infinite value keeps its weight", {-1e6, 2, {inf, 4}}, {1e6, 5, {1, -inf}}, {1e6, 5, {inf, -inf}}},
        {"a later infinite value keeps its weight", {1e6, 5, {1, -inf}}, {-1e6, 2, {inf, 4}}, {1e6, 5, {inf, -inf}}},
        {"infinite values of both signs", {0, 1, {inf, 1}}, {0, 1, {-inf, nan}}, {0, 2, {nan, nan}}},
        {"+inf and finite", {INF, INF, {0, 0}}, {1, 2, {3, 4}}, {INF, INF, {}}},
        {"finite and +inf", {1, 2, {3, 4}}, {INF, INF, {0, 0}}, {INF, INF, {}}},
        {"+inf twice", {INF, INF, {0, 0}}, {INF, INF, {0, 0}}, {INF, INF, {}}},
        {"+inf and NaN", {INF, INF, {0, 0}}, {1, NAN, {nan, nan}}, {INF, NAN, {}}},
        {"NaN and +inf", {-INF, NAN, {nan, nan}}, {INF, INF, {0, 0}}, {INF, NAN, {}}},
        {"NaN and finite", {-INF, NAN, {nan, nan}}, {1, 2, {3, 4}}, {1, NAN, {nan, nan}}},
        {"finite and NaN", {1, 2, {3, 4}}, {-INF, NAN, {nan, nan}}, {1, NAN, {nan, nan}}},
        {"NaN scores alone, twice", {-INF, NAN, {nan, nan}}, {-INF, NAN, {nan, nan}}, {-INF, NAN, {nan, nan}}},
        {"NaN and empty", {-INF, NAN, {nan, nan}}, {-INF, 0, {junk, junk}}, {-INF, NAN, {nan, nan}}},
        {"empty and NaN", {-INF, 0, {junk, junk}}, {-INF, NAN, {nan, nan}}, {-INF, NAN, {nan, nan}}},
    };
    const auto close = [](double got, double want) { return got == want || (got != got && want != want) || std::fabs(got - want) <= 1e-6 * std::fabs(want); };
    for (auto& c : table) {
        typename wider<C>::type sums[2] = {};
        merged_row<C> row;
        row.clear(sums);
        row.add(2, c.a.o.data(), c.a.m, c.a.d);
        row.add(2, c.b.o.data(), c.b.m, c.b.d);
        g.that(close(row.m, c.want.m) && close(row.d, c.want.d), "%s: (%g, %g)", c.what, row.m, row.d);
        for (size_t e = 0; e < c.want.o.size(); ++e) g.that(close(double(sums[e]), double(c.want.o[e])), "%s: o[%zu] = %g", c.what, e, double(sums[e]));
    }
}

// o = 6 in the first column and, where it may be, inf in the second.
template <class C> void check_finish_row() {
    const title name("finish_row: edge rules", dtype_name<C>());
    group g(name.text);
    const double e = std::exp(1.0);
    struct { const char* what; double m, d, sink, out, lse; } table[] = {
        {"ordinary", 1, 2, NAN, 3, 1 + std::log(2.0)}, {"no key", -INF, 0, NAN, 0, -INF}, {"NaN", 1, NAN, NAN, NAN, NAN}, {"NaN alone", -INF, NAN, NAN, NAN, NAN},
        {"+inf", INF, INF, NAN, NAN, INF}, {"+inf and NaN", INF, NAN, NAN, NAN, NAN}, {"sink", 1, 2, 1, 2, 1 + std::log(3.0)},
        {"larger sink", 0, 2, 1, 6 / (2 + e), std::log(2 + e)}, {"smaller sink", 1, 2, 0, 6 * e / (2 * e + 1), std::log(2 * e + 1)},
        {"no key but a sink", -INF, 0, -3, 0, -3}, {"sink of -inf", 1, 2, -INF, 3, 1 + std::log(2.0)}, {"no key, sink of -inf", -INF, 0, -INF, 0, -INF},
        {"sink of +inf", 1, 2, INF, NAN, INF}, {"no key, sink of +inf", -INF, 0, INF, NAN, INF}, {"NaN, sink of +inf", 1, NAN, INF, NAN, NAN},
        {"+inf and a sink", INF, INF, 3, NAN, INF}, {"NaN and a sink", -INF, NAN, 3, NAN, NAN}, {"far smaller scores", -1e6, 2, 1e6, 0, 1e6},
    };
    const auto close = [](double got, double want) { return got == want || (got != got && want != want) || std::fabs(got - want) <= 1e-6 * std::fabs(want); };
    const auto finish = [&](bool state, const double* sink, double& m, double& d, C* o, C* out) {
        attention_task t;
        C lse = 0;
        t.queries = 1, t.dim_v = 2, t.sinks = sink;
        t.base[AT_OUT] = (char*)out, t.item[AT_OUT] = sizeof(C), t.code[AT_OUT] = sizeof(C) == 4 ? CODE_F32 : CODE_F64;
        double pair[2] = {m, d};
        if (state) t.base[AT_M] = (char*)&pair[0], t.base[AT_D] = (char*)&pair[1];
        else t.base[AT_LSE] = (char*)&lse;
        finish_row(sequence(t, 0), row_of(t, 0, 0), (const C*)o, o, pair[0], pair[1]);
        m = pair[0], d = pair[1];
        return double(lse);
    };
    for (auto& c : table) {
        const bool sink = std::strstr(c.what, "sink") || std::strstr(c.what, "far");
        const double none = c.d == 0 ? 0 : 1;
        double m = c.m, d = c.d;
        C o[2] = {C(6 * none), C(none ? INF : 0)}, out[2];
        const double lse = finish(false, sink ? &c.sink : nullptr, m, d, o, out);
        g.that(close(double(out[0]), c.out) && close(lse, c.lse), "%s: out %g, lse %g", c.what, double(out[0]), lse);
        const double second = c.out != c.out ? NAN : none ? INF : 0;
        g.that(close(double(out[1]), second), "%s: an infinite value gives %g", c.what, double(out[1]));
        if (sink) continue;
        C o_state[2] = {C(6 * none), C(none ? INF : 0)};
        finish(true, nullptr, m = c.m, d = c.d, o_state, out);
        const double kept = c.out != c.out ? NAN : 6 * none;
        g.that(close(m, c.m) && close(d, c.d) && close(double(out[0]), kept), "state, %s: (%g, %g), out %g", c.what, m, d, double(out[0]));
    }
    // a NaN sink, and the sinks of a state, which join only when it is finalized
    double sink = NAN, m = 1, d = 2;
    C o[2] = {6, 6}, out[2];
    const double lse = finish(false, &sink, m, d, o, out);
    g.that(out[0] != out[0] && lse != lse, "sink of NaN: out %g, lse %g", double(out[0]), lse);
    C again[2] = {6, 6};
    sink = 5, m = 1, d = 2;
    finish(true, &sink, m, d, again, out);
    g.that(m == 1 && d == 2 && out[0] == 6, "sink of a state: (%g, %g), out %g", m, d, double(out[0]));
}

}  // namespace
