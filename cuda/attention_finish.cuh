// attention_finish.cuh - partial results of rows: merging those of several runs of keys, and the end, where they become outputs.
//
// A partial result is o = sum exp(s - m) v with the pair (m, d), d = sum exp(s - m), m in natural units. Nothing seen: d = 0. NaN seen: d = NaN.
// Else +inf seen: m = inf. Runs merge in order, in sums wider than the arithmetic: they neither overflow nor err more with every run.
#pragma once
#include "attention_task.cuh"
#include "numbers.cuh"
#include "pair.cuh"

namespace ds {

struct alignas(16) row_pair { f64 m, d; };

DS_DEVICE bool is_finite(twofold x) { return is_finite(x.high); }
DS_DEVICE f64 times(f64 a, f64 factor) { return a * factor; }
DS_DEVICE twofold times(twofold a, f64 factor) { return scaled(a, factor); }
template <class W> DS_DEVICE W widened(f32 a);
template <> DS_DEVICE f64 widened<f64>(f32 a) { return widen(a); }
DS_DEVICE twofold to_wide(f64 a) { return {a, 0.0}; }
DS_DEVICE f64 to_wide(f32 a) { return widen(a); }

// What the outputs of two sides are multiplied by where they meet, and the pair of both.
struct meeting { f64 a, b; row_pair both; };
DS_DEVICE meeting meet(row_pair a, row_pair b) {
    if (b.d == 0.0) return {1.0, 0.0, a};
    if (a.d == 0.0) return {0.0, 1.0, b};
    const f64 m = larger(a.m, b.m);
    if (m == infinity()) return {1.0, 1.0, {m, is_nan(a.d) || is_nan(b.d) ? a.d + b.d : infinity()}};
    // a side of NaN alone has m = -inf, and its d is NaN whatever it is multiplied by
    const f64 alpha = a.m == m ? 1.0 : exponential(a.m - m), beta = b.m == m ? 1.0 : exponential(b.m - m);
    return {alpha, beta, {m, a.d * alpha + b.d * beta}};
}
// What is infinite or NaN in an output came from such a value, whose weight is above 0 however small: it stays.
template <class W> DS_DEVICE W weighed(W o, f64 factor) { return is_finite(o) ? times(o, factor) : o; }
template <class W> DS_DEVICE W united(const meeting& at, W a, W b) {
    if (at.a == 0.0) return b;
    return at.b == 0.0 ? a : weighed(a, at.a) + weighed(b, at.b);
}

// A row's end: its pair once the sink has joined it, and what its outputs count for beside that.
struct row_end { row_pair pair; f64 alpha; };
DS_DEVICE row_end end_of_row(const attention_task& t, i64 head, row_pair p) {
    if (!t.sinks) return {p, 1.0};
    const f64 sink = load_aligned<f64>(t.sinks + head);
    if (is_nan(sink)) return {{p.m, sink}, 1.0};
    if (sink == infinity()) return {{sink, is_nan(p.d) ? p.d : sink}, 1.0};
    if (sink == -infinity() || p.m == infinity()) return {p, 1.0};
    const f64 m = larger(p.m, sink), alpha = p.m == -infinity() ? 0.0 : exponential(p.m - m);
    return {{m, p.d * alpha + exponential(sink - m)}, is_nan(p.d) ? 1.0 : alpha};
}

DS_DEVICE f64 lse_of(row_pair p) {
    if (is_nan(p.d)) return p.d;
    if (p.d == 0.0) return -infinity();
    return p.m == infinity() ? p.m : p.m + log_sum(p.d, 0.0);
}

// An output that is divided by d. Quotients of float64 sums are rounded once.
DS_DEVICE f64 share_of(f64 o, f64 alpha, f64 d) { return weighed(o, alpha / d); }
DS_DEVICE f64 share_of(twofold o, f64 alpha, f64 d) {
    if (!is_finite(o)) return o.high;
    return alpha == 1.0 ? o.high / d : value_of(o) * (alpha / d);
}
template <class W> DS_DEVICE f64 output_of(W o, const row_end& end) {
    if (is_nan(end.pair.d) || end.pair.m == infinity()) return not_a_number();
    return end.pair.d == 0.0 ? 0.0 : share_of(o, end.alpha, end.pair.d);
}
// The same of a state, which is not divided.
template <class W> DS_DEVICE f64 sum_of_state(W o, row_pair p) {
    if (is_nan(p.d) || p.m == infinity()) return not_a_number();
    return p.d == 0.0 ? 0.0 : value_of(o);
}

// A float64 next to others like it: lse, m, d.
DS_DEVICE void store_statistic(const attention_task& t, int operand, char* base, row_place at, f64 value) {
    if (base) {
        const f64 one[1] = {value};
        store_numbers(base + offset_of_row(t.at[operand], at), 0, int(t.at[operand].code), false, one, 1);
    }
}
struct statistics { char *lse, *m, *d; };
DS_DEVICE statistics statistics_of(const attention_task& t, const sequence& s) {
    return {s.base(t, AT_LSE), s.base(t, AT_M), s.base(t, AT_D)};
}
DS_DEVICE void store_statistics(const attention_task& t, const statistics& to, row_place at, row_pair p) {
    if (to.lse) store_statistic(t, AT_LSE, to.lse, at, lse_of(p));
    store_statistic(t, AT_M, to.m, at, p.m);
    store_statistic(t, AT_D, to.d, at, p.d);
}

// Where the partial results of a row's runs lie: rows of `columns` sums, and their pairs.
template <class W> struct kept_rows {
    W* sums;
    row_pair* pairs;
    DS_DEVICE W* sum(i64 slot, int columns) const { return sums + slot * columns; }
};

}  // namespace ds
