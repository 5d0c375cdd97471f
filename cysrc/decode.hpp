// decode.hpp - attention of few rows (decoding with a cache): keys and values are read once, where they lie, by all rows that share them.
//
// Nothing is packed: scores are dot products along the head dimension, outputs are sums of value rows. What counts is that memory is read
// in one stream. Rows that share a head of keys go through a block of keys together.
#pragma once
#include "scores.hpp"

namespace {

constexpr ptrdiff_t FEW_ROWS = 12;
constexpr int ROW_TILE = 4;
constexpr int VALUE_KEYS = 32;          // value rows that all columns are summed over before the next ones are touched
constexpr bool MANY_REGISTERS = DS_BYTES == 64 || TILE_ROWS == 12;

// Keys and columns at once for `rows` rows: what the registers hold.
template <class C, int rows> constexpr int DOT_KEYS =
    std::min(simd<C>::width, rows <= 2 ? (MANY_REGISTERS ? 8 : 4) : (MANY_REGISTERS ? 4 : 2));
template <int rows> constexpr int STRIP = rows == 1 ? 8 : MANY_REGISTERS ? (rows == 4 ? 4 : 8) : (rows == 4 ? 2 : 4);

struct decode_plan {
    ptrdiff_t padded, columns, rows;
    size_t q, s, s_again, sums, o, states, gathered, total;
    template <class C> static decode_plan of(const attention_task& t, ptrdiff_t rows) {
        constexpr int width = simd<C>::width;
        decode_plan p;
        p.rows = rows;
        p.padded = (t.dim + width - 1) / width * width;
        p.columns = (t.dim_v + width - 1) / width * width;
        p.total = 0;
        const auto take = [&p](size_t bytes) { const size_t at = p.total; p.total += (bytes + 127) / 64 * 64; return at; };
        p.q = take(size_t(rows * p.padded) * sizeof(C));
        p.s = take(size_t(rows) * KEY_BLOCK<C> * sizeof(C));
        p.s_again = take(size_t(rows) * KEY_BLOCK<C> * sizeof(C));
        p.sums = take(size_t(rows * p.columns) * sizeof(C));
        p.o = take(size_t(rows * p.columns) * sizeof(C));
        p.states = take(sizeof(row_states<C>));
        p.gathered = take(size_t(std::max(width * t.dim, VALUE_KEYS * t.dim_v)) * sizeof(C));
        return p;
    }
};

// Asks memory for the line at `offset` of a row that is read soon, into the second level: the first has too few lines in flight. Half types
// come to this twice a line.
template <class S> DS_INLINE void fetch_ahead(const char* row, ptrdiff_t offset) {
    if (sizeof(S) > 2 || offset % 64 == 0) __builtin_prefetch(row + offset, 0, 2);
}

// parts[r * width + j] = lanes of the products of query row r and key j, for `keys` keys.
template <class C, class S, int rows, int keys, bool fetch>
DS_INLINE void dot_tile(const C* q, ptrdiff_t q_step, const char* const* k, const char* const* ahead, ptrdiff_t dim, simd<C>* parts) {
    constexpr int width = simd<C>::width;
    using reader = row_reader<lane_arithmetic<C>, S>;
    vec_of<C> acc[rows][keys] = {};
    ptrdiff_t e = 0;
    for (; e + width <= dim; e += width) {
        vec_of<C> x[rows];
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) x[r] = load_lanes(q + r * q_step + e);
#pragma GCC unroll 8
        for (int j = 0; j < keys; ++j) {
            if (fetch) fetch_ahead<S>(ahead[j], e * ptrdiff_t(sizeof(S)));
            const vec_of<C> y = reader::read((const S*)k[j] + e);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) acc[r][j] = fused(x[r], y, acc[r][j]);
        }
    }
    if (e < dim)
        for (int j = 0; j < keys; ++j) {
            const vec_of<C> y = reader::read((const S*)k[j] + e, dim - e);
            for (int r = 0; r < rows; ++r) acc[r][j] = fused(load_lanes(q + r * q_step + e), y, acc[r][j]);
        }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int j = 0; j < keys; ++j) parts[r * width + j].v = acc[r][j];
}
// The scores of `width` keys for `rows` rows.
template <class C, class S, int rows> void dot_rows(const C* q, ptrdiff_t q_step, const char* const* k, const char* const* ahead, ptrdiff_t dim, C* s) {
    constexpr int width = simd<C>::width, keys = DOT_KEYS<C, rows>;
    simd<C> parts[rows * width];
    for (int j = 0; j < width; j += keys) {
        if (ahead) dot_tile<C, S, rows, keys, true>(q, q_step, k + j, ahead + j, dim, parts + j);
        else dot_tile<C, S, rows, keys, false>(q, q_step, k + j, nullptr, dim, parts + j);
    }
    for (int r = 0; r < rows; ++r) store_lanes(s + r * KEY_BLOCK<C>, sum_rows(parts + r * width).v);
}

// sums[r, c ..] += sum_j p[r, j] v[j, c ..] over a strip of registers; `tail` > 0: only so many elements of the last one exist.
template <class C, class S, int rows, int vectors>
DS_INLINE void value_strip(
    const C* p, const char* const* v, const char* const* ahead, int keys, ptrdiff_t c, ptrdiff_t tail, C* sums, ptrdiff_t columns) {
    constexpr int width = simd<C>::width;
    using reader = row_reader<lane_arithmetic<C>, S>;
    vec_of<C> acc[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < vectors; ++i) acc[r][i] = load_lanes(sums + r * columns + c + i * width);
    for (int j = 0; j < keys; ++j) {
        vec_of<C> x[rows];
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) x[r] = p[r * KEY_BLOCK<C> + j] - vec_of<C>{};
#pragma GCC unroll 8
        for (int i = 0; i < vectors; ++i) {
            if (ahead) fetch_ahead<S>(ahead[j], (c + i * width) * ptrdiff_t(sizeof(S)));
            const vec_of<C> y = vectors == 1 && tail ? reader::read((const S*)v[j] + c, tail) : reader::read((const S*)v[j] + c + i * width);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) acc[r][i] = fused(x[r], y, acc[r][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < vectors; ++i) store_lanes(sums + r * columns + c + i * width, acc[r][i]);
}
template <class C, class S, int rows>
void value_rows(const C* p, const char* const* v, const char* const* ahead, int keys, ptrdiff_t dim_v, C* sums, ptrdiff_t columns) {
    constexpr int width = simd<C>::width, strip = STRIP<rows>;
    ptrdiff_t c = 0;
    for (; c + strip * width <= dim_v; c += strip * width) value_strip<C, S, rows, strip>(p, v, ahead, keys, c, 0, sums, columns);
    for (; c + 2 * width <= dim_v; c += 2 * width) value_strip<C, S, rows, 2>(p, v, ahead, keys, c, 0, sums, columns);
    for (; c + width <= dim_v; c += width) value_strip<C, S, rows, 1>(p, v, ahead, keys, c, 0, sums, columns);
    if (c < dim_v) value_strip<C, S, rows, 1>(p, v, ahead, keys, c, dim_v - c, sums, columns);
}

template <class C, class K, class V> struct decode_rows {
    using compute = C;
    using by_lanes = decode_rows<C, C, C>;
    static constexpr int width = simd<C>::width;
    const attention_task& t;
    const work_item& w;
    const ptrdiff_t rows;
    const decode_plan plan;
    const sequence q;
    char* memory;
    const score_scale<C> scale;
    bool shrink = false;                    // values by SHRINK, so that their sums cannot overflow
    std::unique_ptr<C[]> infinite;          // what values that are not finite add to each row's output; made when the first is met

    decode_rows(const attention_task& task, const work_item& item, char* scratch)
        : t(task), w(item), rows(item.last - item.first), plan(decode_plan::of<C>(task, rows)), q(task, item.sequence), memory(scratch), scale(task.scale) {}
    static size_t bytes(const attention_task& t, const work_item& w) { return decode_plan::of<C>(t, w.last - w.first).total; }
    template <class T> T* part(size_t offset) const { return (T*)(memory + offset); }
    bool gathers(int op) const { return op == AT_K ? !t.direct<K>(op) : shrink || !t.direct<V>(op); }

    void widen_queries() {
        C* dst = part<C>(plan.q);
        std::fill(dst, dst + rows * plan.padded, C(0));
        for (ptrdiff_t r = 0; r < rows; ++r, dst += plan.padded) {
            const row_of at(t, w.head, w.first + r);
            gather_for<C>(t.code[AT_Q])(q.at(AT_Q, at.h, at.i), t.item[AT_Q], t.dim, dst);
            for (ptrdiff_t e = 0; e < t.dim; ++e) dst[e] *= scale.fold;
        }
    }
    // Rows j .. j + count of keys or values; those past `stop` repeat the last one.
    template <class S> void rows_at(int op, ptrdiff_t j, int count, ptrdiff_t stop, ptrdiff_t dim, const char** rows_out) const {
        q.keys_at(op, w.head, j, count, stop, rows_out);
        if constexpr (std::is_same<S, C>::value) {
            if (!gathers(op)) return;
            C* gathered = part<C>(plan.gathered);
            for (int i = 0; i < count;) {
                const bool block = i + width <= count && j + i + width <= stop && gather_columns(op, rows_out[i], dim, gathered + i * dim);
                if (!block) gather_for<C>(t.code[op])(rows_out[i], t.item[op], dim, gathered + i * dim);
                for (const int end = i + (block ? width : 1); i < end; ++i) rows_out[i] = (const char*)(gathered + i * dim);
            }
            if (shrink && op == AT_V)
                for (ptrdiff_t e = 0; e < count * dim; ++e) gathered[e] *= SHRINK<C>;
        }
    }
    // Where the keys, not their elements, lie side by side: a register's width of keys is read along them and transposed.
    bool gather_columns(int op, const char* p, ptrdiff_t dim, C* dst) const {
        if (q.pages || t.row[op] != item_size(t.code[op])) return false;
        if (t.code[op] == code_of<C>) gather_transposed<C, C>(p, t.item[op], dim, dst);
        else if constexpr (std::is_same<C, float>::value) {
            if (t.code[op] == CODE_F16) gather_transposed<C, f16>(p, t.item[op], dim, dst);
            else if (t.code[op] == CODE_BF16) gather_transposed<C, bf16>(p, t.item[op], dim, dst);
            else return false;
        } else return false;
        return true;
    }

    // Where `count` rows from j on lie, those past `stop` taken from key `then` of the other operand on: what is read next. Null where rows are
    // gathered first.
    const char* const* rows_ahead(int op, ptrdiff_t j, int count, ptrdiff_t stop, ptrdiff_t then, const char** ahead) const {
        const int other = op == AT_K ? AT_V : AT_K;
        if (gathers(AT_K) || gathers(AT_V)) return nullptr;
        const int here = int(std::max<ptrdiff_t>(0, std::min<ptrdiff_t>(count, stop - j)));
        if (here) q.keys_at(op, w.head, j, here, stop, ahead);
        if (here < count) q.keys_at(other, w.head, std::max(then, then + j - stop), count - here, q.keys, ahead + here);
        return ahead;
    }

    // The scores of a block with all that changes them.
    void score_block(const key_runs& runs, ptrdiff_t j0, ptrdiff_t j1, C* s) {
        const C* queries = part<C>(plan.q);
        const char* k[width];
        const char* lines[width];
        for (int i = 0; i < runs.count; ++i)
            for (int j = runs.start[i]; j < runs.stop[i]; j += width) {
                if (j0 + j >= q.keys) continue;
                rows_at<K>(AT_K, j0 + j, width, q.keys, t.dim, k);
                const char* const* ahead = rows_ahead(AT_K, j0 + j + 3 * width, width, std::min<ptrdiff_t>(j1, j0 + runs.stop[i]), j0 + runs.first(), lines);
                for (ptrdiff_t r = 0; r < rows; r += ROW_TILE, ahead = nullptr) {
                    const C* x = queries + r * plan.padded;
                    C* y = s + r * KEY_BLOCK<C> + j;
                    switch (std::min<ptrdiff_t>(ROW_TILE, rows - r)) {
                        case 4: dot_rows<C, K, 4>(x, plan.padded, k, ahead, t.dim, y); break;
                        case 3: dot_rows<C, K, 3>(x, plan.padded, k, ahead, t.dim, y); break;
                        case 2: dot_rows<C, K, 2>(x, plan.padded, k, ahead, t.dim, y); break;
                        default: dot_rows<C, K, 1>(x, plan.padded, k, ahead, t.dim, y);
                    }
                }
            }
        settle_scores(q, w.head, w.first, rows, runs, j0, j1, scale.lanes, s);
    }

    void sum_values(const key_runs& runs, ptrdiff_t j0, ptrdiff_t j1, const C* p, C* sums) {
        const char* v[VALUE_KEYS];
        const char* lines[VALUE_KEYS];
        for (int i = 0; i < runs.count; ++i) {
            const ptrdiff_t stop = std::min<ptrdiff_t>(runs.stop[i], j1 - j0);
            for (ptrdiff_t j = runs.start[i]; j < stop; j += VALUE_KEYS) {
                const int keys = int(std::min<ptrdiff_t>(VALUE_KEYS, stop - j));
                rows_at<V>(AT_V, j0 + j, keys, j1, t.dim_v, v);
                const char* const* ahead = rows_ahead(AT_V, j0 + j + 2 * keys, keys, j0 + stop, j0 + stop, lines);
                for (ptrdiff_t r = 0; r < rows; r += ROW_TILE, ahead = nullptr) {
                    const C* x = p + r * KEY_BLOCK<C> + j;
                    C* y = sums + r * plan.columns;
                    switch (std::min<ptrdiff_t>(ROW_TILE, rows - r)) {
                        case 4: value_rows<C, V, 4>(x, v, ahead, keys, t.dim_v, y, plan.columns); break;
                        case 3: value_rows<C, V, 3>(x, v, ahead, keys, t.dim_v, y, plan.columns); break;
                        case 2: value_rows<C, V, 2>(x, v, ahead, keys, t.dim_v, y, plan.columns); break;
                        default: value_rows<C, V, 1>(x, v, ahead, keys, t.dim_v, y, plan.columns);
                    }
                }
            }
        }
    }

    // The block once more, where its sums are not finite: values that are not count as 0 in the sums, and are added to the rows that see them.
    void sum_finite_values(const key_runs& runs, ptrdiff_t j0, ptrdiff_t j1, const C* p, C* sums) {
        if (!infinite) infinite.reset(new C[size_t(rows * plan.columns)]());
        C *s = part<C>(plan.s_again), *value = part<C>(plan.gathered);
        score_block(runs, j0, j1, s);
        std::fill(sums, sums + rows * plan.columns, C(0));
        for (int i = 0; i < runs.count; ++i)
            for (ptrdiff_t j = runs.start[i]; j < std::min<ptrdiff_t>(runs.stop[i], j1 - j0); ++j) {
                gather_for<C>(t.code[AT_V])(q.key(AT_V, w.head, j0 + j), t.item[AT_V], t.dim_v, value);
                for (ptrdiff_t r = 0; r < rows; ++r) {
                    const bool seen = s[r * KEY_BLOCK<C> + j] != LOWEST<C>;
                    for (ptrdiff_t e = 0; e < t.dim_v; ++e) {
                        if (is_finite(value[e])) sums[r * plan.columns + e] = fused_one(p[r * KEY_BLOCK<C> + j], value[e] * (shrink ? SHRINK<C> : C(1)), sums[r * plan.columns + e]);
                        else if (seen) infinite[r * plan.columns + e] += value[e];
                    }
                }
            }
    }
    // As one lane of `fused`, so that a column has the same bits beside one that is not finite.
    static C fused_one(C a, C b, C c) { return HAS_FMA ? std::fma(a, b, c) : a * b + c; }

    void run_block(ptrdiff_t j0, ptrdiff_t j1, uint64_t panels) {
        const key_runs runs = runs_of<C>(panels);
        C *s = part<C>(plan.s), *sums = part<C>(plan.sums), *o = part<C>(plan.o);
        score_block(runs, j0, j1, s);
        C alpha[FEW_ROWS + 16];
        update_rows<lane_arithmetic<C>>(int(rows), runs, t.has_options() ? C(1) : scale.lanes, s, s, *part<row_states<C>>(plan.states), alpha);
        std::fill(sums, sums + rows * plan.columns, C(0));
        sum_values(runs, j0, j1, s, sums);
        vec_of<C> differences{};
        for (ptrdiff_t c = 0; c < rows * plan.columns; c += width) differences += load_lanes(sums + c) - load_lanes(sums + c);
        if (any_nonzero<C>(differences)) sum_finite_values(runs, j0, j1, s, sums);
        for (ptrdiff_t r = 0; r < rows; ++r)
            for (ptrdiff_t c = r * plan.columns; c < (r + 1) * plan.columns; c += width)
                store_lanes(o + c, fused(alpha[r] - vec_of<C>{}, load_lanes(o + c), load_lanes(sums + c)));
    }

    C* outputs(ptrdiff_t r) const { return part<C>(plan.o) + r * plan.columns; }
    double largest(ptrdiff_t r) const { return double(part<row_states<C>>(plan.states)->m[r]) * (t.has_options() ? 1 : scale.unit); }
    double& weight(ptrdiff_t r) const { return part<row_states<C>>(plan.states)->d[r]; }

    // Every row's o and pair over the item's keys.
    void attend() {
        row_states<C>& state = *part<row_states<C>>(plan.states);
        state.clear();
        C* o = part<C>(plan.o);
        std::fill(o, o + rows * plan.columns, C(0));
        std::fill(part<C>(plan.s), part<C>(plan.s) + rows * KEY_BLOCK<C>, C(0));
        widen_queries();
        const key_range seen = q.seen_by_rows(w.first, w.last);
        const ptrdiff_t lo = std::max(seen.lo, w.lo), hi = std::min(seen.hi, w.hi);
        for (ptrdiff_t j0 = lo / KEY_BLOCK<C> * KEY_BLOCK<C>; j0 < hi; j0 += KEY_BLOCK<C>) {
            const ptrdiff_t j1 = std::min<ptrdiff_t>(j0 + KEY_BLOCK<C>, hi);
            const uint64_t panels = visible_panels<C>(q, w.head, w.first, w.last, j0, j1);
            if (panels) run_block(j0, j1, panels);
        }
    }
};

}  // namespace
