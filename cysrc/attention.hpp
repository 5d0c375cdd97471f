// attention.hpp - one call of attention: operands by pointer and strides, sequences, rows, and which keys a row sees.
//
// A sequence is one entry of the batch. Its rows, for one head of keys, are the queries of all heads that share it, ordered by position:
// row r is query r / group of head r % group, so neighbouring rows see nearly the same keys and read them once.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include "convert.hpp"
#include "products.hpp"

namespace {

constexpr int MOST_BATCH_AXES = 64;
enum attention_operand { AT_Q, AT_K, AT_V, AT_OUT, AT_LSE, AT_M, AT_D, AT_MASK, AT_BIAS, AT_BLOCK_MASK, AT_OPERANDS };

struct attention_task {
    char* base[AT_OPERANDS] = {};
    int code[AT_OPERANDS] = {};
    ptrdiff_t head[AT_OPERANDS] = {}, row[AT_OPERANDS] = {}, item[AT_OPERANDS] = {};      // strides in bytes
    int batch_axes = 0;
    ptrdiff_t batch_shape[MOST_BATCH_AXES], batch_stride[MOST_BATCH_AXES][AT_OPERANDS];
    ptrdiff_t sequences = 1, heads_k = 1, group = 1, queries = 0, keys = 0, dim = 0, dim_v = 0;
    const int64_t *lengths = nullptr, *offsets = nullptr, *q_starts = nullptr, *k_starts = nullptr, *pages = nullptr;
    ptrdiff_t pages_each = 0, page_size = 0, page_stride[AT_OPERANDS] = {};
    const double *sinks = nullptr, *slopes = nullptr;
    double scale = 1, softcap = 0;
    int64_t left = -1, right = -1;
    ptrdiff_t block_q = 0, block_k = 0;
    mutable int failed = 0;         // a thread had no memory

    ptrdiff_t heads_q() const { return heads_k * group; }
    // Whether anything but scale and position changes the scores. An infinite scale must meet the finished product: inf - inf is not what q·k is.
    bool has_options() const { return std::isinf(scale) || softcap != 0 || slopes || base[AT_BIAS] || base[AT_MASK] || base[AT_BLOCK_MASK]; }
    // A row of keys or values can be read where it lies.
    template <class S> bool direct(int op) const { return code[op] == code_of<S> && item[op] == ptrdiff_t(sizeof(S)); }
};

struct key_range { ptrdiff_t lo, hi; };

struct sequence {
    const attention_task* t;
    ptrdiff_t index, queries, keys, offset;
    char* base[AT_OPERANDS];
    const int64_t* pages;

    sequence(const attention_task& task, ptrdiff_t s) : t(&task), index(s), queries(task.queries), keys(task.keys), pages(nullptr) {
        std::copy(task.base, task.base + AT_OPERANDS, base);
        ptrdiff_t rest = s;
        for (int i = task.batch_axes - 1; i >= 0; --i) {
            for (int op = 0; op < AT_OPERANDS; ++op)
                if (base[op]) base[op] += rest % task.batch_shape[i] * task.batch_stride[i][op];
            rest /= task.batch_shape[i];
        }
        if (task.q_starts) {
            const int64_t q = task.q_starts[s], k = task.k_starts[s];
            queries = task.q_starts[s + 1] - q;
            keys = task.k_starts[s + 1] - k;
            for (int op = 0; op < AT_OPERANDS; ++op)
                if (base[op]) base[op] += (op == AT_K || op == AT_V ? k : q) * task.row[op];
        }
        if (task.lengths) keys = std::min<ptrdiff_t>(keys, task.lengths[s]);
        if (task.pages) pages = task.pages + s * task.pages_each;
        offset = task.offsets ? task.offsets[s] : 0;
    }
    char* at(int op, ptrdiff_t h, ptrdiff_t i) const { return base[op] + h * t->head[op] + i * t->row[op]; }
    const char* key(int op, ptrdiff_t hk, ptrdiff_t j) const {
        if (!pages) return at(op, hk, j);
        return base[op] + pages[j / t->page_size] * t->page_stride[op] + hk * t->head[op] + j % t->page_size * t->row[op];
    }
    // Where `count` keys or values from j on lie; those from `stop` > 0 on repeat the one before it.
    void keys_at(int op, ptrdiff_t hk, ptrdiff_t j, int count, ptrdiff_t stop, const char** rows) const {
        const ptrdiff_t step = t->row[op];
        int i = 0;
        while (i < count) {
            const ptrdiff_t from = std::min(j + i, stop - 1), page = pages ? t->page_size - from % t->page_size : stop;
            const int last = int(std::min<ptrdiff_t>(count, i + std::max<ptrdiff_t>(1, std::min(page, stop - from))));
            const char* p = key(op, hk, from);
            if (from == stop - 1) {
                for (; i < count; ++i) rows[i] = p;
                return;
            }
            for (; i < last; ++i, p += step) rows[i] = p;
        }
    }
    // The keys that query i can see as far as its position tells.
    key_range seen_by(ptrdiff_t i) const {
        const ptrdiff_t at = i + offset;
        return {t->left < 0 ? 0 : std::max<ptrdiff_t>(0, at - t->left), t->right < 0 ? keys : std::min<ptrdiff_t>(keys, at + t->right + 1)};
    }
    // Those that any of the rows first <= r < last can see.
    key_range seen_by_rows(ptrdiff_t first, ptrdiff_t last) const {
        const key_range a = seen_by(first / t->group), b = seen_by((last - 1) / t->group);
        return {a.lo, b.hi};
    }
    bool block_visible(ptrdiff_t h, ptrdiff_t block_i, ptrdiff_t block_j) const {
        return *(base[AT_BLOCK_MASK] + h * t->head[AT_BLOCK_MASK] + block_i * t->row[AT_BLOCK_MASK] + block_j * t->item[AT_BLOCK_MASK]) != 0;
    }
};

// Rows r of one head of keys: their heads and queries.
struct row_of {
    ptrdiff_t h, i;
    row_of(const attention_task& t, ptrdiff_t hk, ptrdiff_t r) : h(hk * t.group + r % t.group), i(r / t.group) {}
};

// scale = fold · unit. The power of two is folded into the queries, which rounds nothing; scores are then in units of `unit`, from 1 to 2:
// they overflow no sooner than the scaled ones, and it costs nothing where the exponent is taken. Only scales beyond what lanes hold leave more
// to unit; `lanes` is what lanes hold of it.
template <class C> struct score_scale {
    C fold, lanes;
    double unit;
    explicit score_scale(double scale) : fold(C(scale)), lanes(1), unit(1) {
        if (scale == 0 || scale != scale) return;
        constexpr int most = sizeof(C) == 4 ? 100 : 1000;
        int exponent;
        const double size = std::fabs(scale);
        std::frexp(size, &exponent);
        exponent = std::isinf(scale) ? 0 : std::min(most, std::max(-most, exponent - 1));
        fold = C(std::copysign(std::ldexp(1.0, exponent), scale));
        unit = std::ldexp(size, -exponent);
        lanes = C(std::isinf(scale) ? size : std::min(std::ldexp(1.0, most), std::max(std::ldexp(1.0, -most), unit)));
    }
};

// The panels of the block of keys j0 <= j < j1 that some of the rows first <= r < last see, one bit each.
template <class C> uint64_t visible_panels(const sequence& s, ptrdiff_t hk, ptrdiff_t first, ptrdiff_t last, ptrdiff_t j0, ptrdiff_t j1) {
    const key_range seen = s.seen_by_rows(first, last);
    const ptrdiff_t lo = std::max(seen.lo, j0), hi = std::min(seen.hi, j1);
    if (lo >= hi) return 0;
    const int from = int((lo - j0) / PANEL<C>), to = int((hi - j0 + PANEL<C> - 1) / PANEL<C>);
    const uint64_t in_range = (to == 64 ? ~uint64_t(0) : (uint64_t(1) << to) - 1) & ~((uint64_t(1) << from) - 1);
    const attention_task& t = *s.t;
    if (!t.base[AT_BLOCK_MASK]) return in_range;
    uint64_t found = 0;
    ptrdiff_t block_before = -1;
    for (ptrdiff_t i = first / t.group; i <= (last - 1) / t.group; ++i) {
        const ptrdiff_t block_i = i / t.block_q;
        if (block_i == block_before) continue;
        block_before = block_i;
        for (ptrdiff_t g = 0; g < t.group; ++g)
            for (ptrdiff_t block_j = lo / t.block_k; block_j * t.block_k < hi; ++block_j)
                if (s.block_visible(hk * t.group + g, block_i, block_j)) {
                    const ptrdiff_t a = std::max(lo, block_j * t.block_k) - j0, b = std::min(hi, (block_j + 1) * t.block_k) - j0;
                    for (ptrdiff_t p = a / PANEL<C>; p * PANEL<C> < b; ++p) found |= uint64_t(1) << p;
                }
    }
    return found;
}
template <class C> key_runs runs_of(uint64_t panels) {
    key_runs runs;
    for (int p = 0; p < PANELS<C>; ++p)
        if (panels >> p & 1) {
            if (runs.count && runs.stop[runs.count - 1] == p * PANEL<C>) runs.stop[runs.count - 1] += PANEL<C>;
            else {
                runs.start[runs.count] = p * PANEL<C>;
                runs.stop[runs.count++] = (p + 1) * PANEL<C>;
            }
        }
    return runs;
}

// What a thread is given: rows of one head of keys of one sequence, and a range of keys.
struct work_item {
    ptrdiff_t sequence, head, first, last, lo, hi;
    ptrdiff_t run;                  // keys are taken in runs of so many, at multiples of it
    double cost;
    ptrdiff_t slot;                 // of its first row in the partial results; -1 where its rows are finished by it
};
// One run of keys of some rows: their outputs sum exp(s - m) v and running pairs.
template <class C> struct partial_rows {
    C* o = nullptr;                 // [slots][columns]
    double *m = nullptr, *d = nullptr;
    ptrdiff_t columns = 0;
};

// What the outputs of runs are added up in.
template <class C> struct wider { using type = double; };
template <> struct wider<double> { using type = long double; };

template <class T> DS_INLINE bool is_finite(T x) { return x - x == 0; }

// Joins sinks to a row's pair; returns what its outputs so far count for.
inline double join_sink(const attention_task& t, ptrdiff_t h, double& m, double& d) {
    const double inf = std::numeric_limits<double>::infinity();
    if (!t.sinks || t.base[AT_M]) return 1;
    const double sink = t.sinks[h], top = std::max(m, sink);
    if (sink != sink) d = sink;
    else if (sink == inf) d = d == d ? inf : d, m = inf;
    else if (sink > -inf && m < inf) {
        const double alpha = m == -inf ? 0 : std::exp(m - top);
        d = d * alpha + std::exp(sink - top);
        m = top;
        return alpha;
    }
    return 1;
}
// The end of a row: o = sum exp(s - m) v, in lanes or wider, and its pair become the output and its lse, or the three arrays of a state.
// `out` is memory for the output's lanes and may be o.
template <class C, class O> void finish_row(const sequence& q, row_of at, O* o, C* out, double m, double d) {
    const attention_task& t = *q.t;
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const double alpha = join_sink(t, at.h, m, d);
    if (d != d || m == inf) std::fill(out, out + t.dim_v, C(nan));
    else if (d == 0) std::fill(out, out + t.dim_v, C(0));
    else if (t.base[AT_M]) {
        // sums that only the wider type holds become their mean, of weight 1
        bool fits = true;
        for (ptrdiff_t e = 0; e < t.dim_v; ++e) fits &= !is_finite(o[e]) || is_finite(C(o[e]));
        for (ptrdiff_t e = 0; e < t.dim_v; ++e) out[e] = C(fits ? o[e] : o[e] / O(d));
        if (!fits) m += std::log(d), d = 1;
    } else if (alpha == 1) {
        const O divisor = O(d);
        for (ptrdiff_t e = 0; e < t.dim_v; ++e) out[e] = C(o[e] / divisor);
    } else {
        const O share = O(alpha / d);
        for (ptrdiff_t e = 0; e < t.dim_v; ++e) out[e] = C(is_finite(o[e]) ? o[e] * share : o[e]);
    }
    scatter_for<C>(t.code[AT_OUT])(out, t.dim_v, q.at(AT_OUT, at.h, at.i), t.item[AT_OUT]);
    if (t.base[AT_M]) {
        std::memcpy(q.at(AT_M, at.h, at.i), &m, sizeof m);
        std::memcpy(q.at(AT_D, at.h, at.i), &d, sizeof d);
    }
    if (t.base[AT_LSE]) {
        const C lse = C(d != d ? nan : d == 0 ? -inf : m + std::log(d));
        std::memcpy(q.at(AT_LSE, at.h, at.i), &lse, sizeof lse);
    }
}

// A row whose keys come in several runs, in order. Sums are wider than lanes: they neither overflow nor err more with every run.
template <class C> struct merged_row {
    using W = typename wider<C>::type;
    W* o;
    double m, d;
    int runs;                       // that had a key to see

    void clear(W* memory) {
        o = memory;
        m = -std::numeric_limits<double>::infinity();
        d = 0;
        runs = 0;
    }
    // What is infinite or NaN in o came from such a value, whose weight is above 0 however small: it stays.
    void add(ptrdiff_t columns, const C* o_b, double m_b, double d_b) {
        if (d_b == 0) return;
        if (runs++ == 0) {
            std::copy(o_b, o_b + columns, o);
            m = m_b;
            d = d_b;
            return;
        }
        const double inf = std::numeric_limits<double>::infinity(), top = std::max(m, m_b);
        if (top == inf) {
            d = d != d || d_b != d_b ? d + d_b : inf;
            m = top;
            return;
        }
        // a row of NaN scores alone has m = -inf, and its d is NaN whatever it is multiplied by
        const double a = m == top ? 1 : std::exp(m - top), b = m_b == top ? 1 : std::exp(m_b - top);
        for (ptrdiff_t e = 0; e < columns; ++e) o[e] = (is_finite(o[e]) ? o[e] * W(a) : o[e]) + (is_finite(o_b[e]) ? W(o_b[e]) * W(b) : W(o_b[e]));
        d = d * a + d_b * b;
        m = top;
    }
    // One run's outputs are lanes still: its row ends as if there were no other.
    void finish(const sequence& q, row_of at, C* out) const {
        if (runs > 1) return finish_row(q, at, o, out, m, d);
        if (runs) std::copy(o, o + q.t->dim_v, out);
        else std::fill(out, out + q.t->dim_v, C(0));
        finish_row(q, at, out, out, m, d);
    }
};

// Where the sums of a row overflowed though every value is finite, a second try with values that are `shrunk` by a power of two gives the mean,
// of weight 1: the same state in another form.
template <class C> constexpr C SHRINK = C(0x1p-64);
template <class C> void settle_overflow(ptrdiff_t columns, C* o, const C* shrunk, double d_shrunk, double& m, double& d) {
    for (ptrdiff_t e = 0; e < columns; ++e) o[e] = is_finite(o[e]) ? o[e] / C(d) : shrunk[e] / C(d_shrunk) / SHRINK<C>;
    m += std::log(d);
    d = 1;
}
// Whether that happened to a row: something in o (whole registers) is not finite, and no score is to blame.
template <class C> bool overflowed(ptrdiff_t columns, const C* o, double m, double d) {
    if (!is_finite(d) || m == std::numeric_limits<double>::infinity()) return false;
    vec_of<C> differences{};
    for (ptrdiff_t e = 0; e < columns; e += simd<C>::width) differences += load_lanes(o + e) - load_lanes(o + e);
    return any_nonzero<C>(differences);
}

// The same rows once more, by lanes, with values that are shrunk.
template <class kernel> struct shrunk {
    std::unique_ptr<char, decltype(&std::free)> memory;
    kernel rows;
    shrunk(const attention_task& t, const work_item& w)
        : memory((char*)std::aligned_alloc(64, kernel::bytes(t, w)), &std::free), rows(t, w, memory.get()) {
        if (!memory) throw std::bad_alloc();
        rows.shrink = true;
        rows.attend();
    }
};
// What comes after a kernel has attended to its keys: each of its rows is finished, or kept as one of the partial results.
template <class kernel> void end_rows(const kernel& k, const partial_rows<typename kernel::compute>& kept) {
    std::unique_ptr<shrunk<typename kernel::by_lanes>> again;
    const ptrdiff_t columns = k.plan.columns;
    for (ptrdiff_t r = 0; r < k.w.last - k.w.first; ++r) {
        auto* o = k.outputs(r);
        double m = k.largest(r), d = k.weight(r);
        if (overflowed(columns, o, m, d)) {
            if (!again) again.reset(new shrunk<typename kernel::by_lanes>(k.t, k.w));
            settle_overflow(columns, o, again->rows.outputs(r), again->rows.weight(r), m, d);
        }
        for (ptrdiff_t e = 0; k.infinite && e < columns; ++e) o[e] += k.infinite[r * columns + e];
        if (k.w.slot >= 0) {
            std::copy(o, o + columns, kept.o + (k.w.slot + r) * columns);
            kept.m[k.w.slot + r] = m;
            kept.d[k.w.slot + r] = d;
        } else finish_row(k.q, row_of(k.t, k.w.head, k.w.first + r), o, o, m, d);
    }
}

}  // namespace
