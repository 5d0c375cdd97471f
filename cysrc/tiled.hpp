// tiled.hpp - attention of many rows: blocks of keys and values are packed once and shared by as many rows as the second-level cache holds.
//
// Rows go in tiles of TILE_ROWS, keys in blocks of at most KEY_BLOCK at fixed places (multiples from key 0), so a row's bits depend on
// neither the rows beside it nor the number of threads. T. Dao, FlashAttention-2, 2023 (arXiv 2307.08691).
#pragma once
#include "scores.hpp"

namespace {

constexpr ptrdiff_t ROWS_MOST = 384;
constexpr size_t SECOND_LEVEL = 896 << 10;      // bytes of the second-level cache that rows and a packed block may take

template <class A> struct tile_plan {
    using C = typename A::compute;
    using word = typename A::word;
    ptrdiff_t dim, dim_v, inner, columns, block, rows;
    size_t q, k, v, s, p, o, states, gathered, total;       // offsets in a thread's memory

    // `rows`: at most, a multiple of TILE_ROWS.
    tile_plan(const attention_task& t, ptrdiff_t most) : dim(t.dim), dim_v(t.dim_v) {
        constexpr int width = simd<C>::width;
        inner = (dim + A::terms - 1) / A::terms;
        columns = (dim_v + width - 1) / width * width;
        block = KEY_BLOCK<C>;
        while (block > PANEL<C> && size_t(block * (inner + columns / A::terms)) * sizeof(word) > SECOND_LEVEL / 2) block /= 2;
        const size_t packed = size_t(block * (inner + columns / A::terms)) * sizeof(word), each = size_t(inner) * sizeof(word) + size_t(columns) * sizeof(C);
        const ptrdiff_t fit = packed < SECOND_LEVEL ? ptrdiff_t((SECOND_LEVEL - packed) / each) / TILE_ROWS * TILE_ROWS : 0;
        rows = std::min(most, std::min(ROWS_MOST, std::max<ptrdiff_t>(4 * TILE_ROWS, fit)));
        const size_t tiles = size_t((rows + TILE_ROWS - 1) / TILE_ROWS);
        total = 0;
        const auto take = [this](size_t bytes) { const size_t at = total; total += (bytes + 127) / 64 * 64; return at; };
        q = take((tiles * TILE_ROWS * size_t(inner) + 16) * sizeof(word));
        k = take(size_t(KEY_BLOCK<C> * inner) * sizeof(word) + 64);
        v = take(size_t(KEY_BLOCK<C> / A::terms * columns) * sizeof(word));
        s = take(TILE_ROWS * KEY_BLOCK<C> * sizeof(C));
        p = take(A::terms > 1 ? TILE_ROWS * KEY_BLOCK<C> / A::terms * sizeof(word) : 0);
        o = take(tiles * TILE_ROWS * size_t(columns) * sizeof(C));
        states = take(tiles * sizeof(row_states<C>));
        gathered = take(size_t(width) * size_t(std::max(dim, dim_v)) * sizeof(C));
    }
};

// A row of bfloat16 as it lies, or gathered into `memory`.
inline const bf16* row_of_halves(const attention_task& t, int op, const char* row, ptrdiff_t dim, bf16* memory) {
    if (t.direct<bf16>(op)) return (const bf16*)row;
    for (ptrdiff_t e = 0; e < dim; ++e, row += t.item[op]) std::memcpy((void*)(memory + e), row, sizeof(bf16));
    return memory;
}
// Up to one register's width of rows of an operand, widened where they lie or gathered, to columns.
template <class A, class address> void pack_rows(
    const attention_task& t, int op, address at, int count, ptrdiff_t dim, typename A::compute* gathered, typename A::word* dst, ptrdiff_t step) {
    using C = typename A::compute;
    constexpr int width = simd<C>::width;
    const char* rows[width];
    for (int i = 0; i < count; ++i) rows[i] = at(i);
    if constexpr (A::terms > 1) {
        for (int i = 0; i < count; ++i) rows[i] = (const char*)row_of_halves(t, op, rows[i], dim, (bf16*)gathered + i * dim);
        pack_transposed<A, bf16>(rows, count, dim, dst, step);
    } else {
        if (t.direct<C>(op)) return pack_transposed<A, C>(rows, count, dim, dst, step);
        if constexpr (std::is_same<C, float>::value) {
            if (t.direct<f16>(op)) return pack_transposed<A, f16>(rows, count, dim, dst, step);
            if (t.direct<bf16>(op)) return pack_transposed<A, bf16>(rows, count, dim, dst, step);
        }
        for (int i = 0; i < count; ++i) {
            gather_for<C>(t.code[op])(rows[i], t.item[op], dim, gathered + i * dim);
            rows[i] = (const char*)(gathered + i * dim);
        }
        pack_transposed<A, C>(rows, count, dim, dst, step);
    }
}

// [inner][TILE_ROWS]: the rows first <= r < first + count of one head of keys, the last repeated to a whole tile. Writes up to a register past it.
template <class A> void pack_tile(
    const attention_task& t, const sequence& q, int op, ptrdiff_t head, ptrdiff_t first, ptrdiff_t count, ptrdiff_t dim, typename A::compute* gathered,
    typename A::word* dst) {
    constexpr int width = simd<typename A::compute>::width;
    // Blocks of a register's width, the last first: each writes past its rows.
    for (ptrdiff_t i = (TILE_ROWS - 1) / width * width; i >= 0; i -= width) {
        const auto at = [&](ptrdiff_t r) {
            const row_of row(t, head, first + std::min(i + r, count - 1));
            return q.at(op, row.h, row.i);
        };
        pack_rows<A>(t, op, at, width, dim, gathered, dst + i, TILE_ROWS);
    }
}
// By the power of two that is folded into queries. Whole registers: the memory goes on behind the last tile.
template <class A> void scale_words(typename A::word* p, ptrdiff_t count, typename A::compute factor) {
    if (factor == 1) return;
    constexpr ptrdiff_t words = sizeof(typename A::vec) / sizeof(typename A::word);
    for (ptrdiff_t i = 0; i < count; i += words) {
        const typename A::vec x = A::scaled(load_bits<typename A::vec>(p + i), factor);
        std::memcpy((void*)(p + i), &x, sizeof x);
    }
}
// One panel of keys, [inner][PANEL], from key `start` on; those from `stop` on repeat the one before it.
template <class A> void pack_key_panel(
    const attention_task& t, const sequence& q, int op, ptrdiff_t head, ptrdiff_t start, ptrdiff_t stop, ptrdiff_t dim, typename A::compute* gathered,
    typename A::word* dst) {
    constexpr int width = simd<typename A::compute>::width, panel = PANEL<typename A::compute>;
    for (int i = 0; i < panel; i += width) {
        const auto at = [&](ptrdiff_t r) { return q.key(op, head, std::min(start + i + r, stop - 1)); };
        pack_rows<A>(t, op, at, width, dim, gathered, dst + i, panel);
    }
}
// One row of an operand into the panels of a right one at inner index k, from where it lies or gathered. Returns whether all was finite; what was
// not is 0 there.
template <class A> bool pack_value_lanes(
    const attention_task& t, int op, const char* row, ptrdiff_t dim, ptrdiff_t k, ptrdiff_t columns, typename A::compute* gathered,
    typename A::word* dst) {
    using C = typename A::compute;
    if (t.direct<C>(op)) return value_packer<A, C>::pack((const C*)row, nullptr, dim, k, columns, dst);
    if constexpr (std::is_same<C, float>::value) {
        if (t.direct<f16>(op)) return value_packer<A, f16>::pack((const f16*)row, nullptr, dim, k, columns, dst);
        if (t.direct<bf16>(op)) return value_packer<A, bf16>::pack((const bf16*)row, nullptr, dim, k, columns, dst);
    }
    gather_for<C>(t.code[op])(row, t.item[op], dim, gathered);
    return value_packer<A, C>::pack(gathered, nullptr, dim, k, columns, dst);
}
// The same of as many rows as a word has terms; `next`, where there are two, may be null: 0.
template <class A> bool pack_value_rows(
    const attention_task& t, int op, const char* row, const char* next, ptrdiff_t dim, ptrdiff_t k, ptrdiff_t columns,
    typename A::compute* gathered, typename A::word* dst) {
    if constexpr (A::terms > 1) {
        bf16* memory = (bf16*)gathered;
        const bf16* second = next ? row_of_halves(t, op, next, dim, memory + dim) : nullptr;
        return value_packer<A, bf16>::pack(row_of_halves(t, op, row, dim, memory), second, dim, k, columns, dst);
    } else return pack_value_lanes<A>(t, op, row, dim, k, columns, gathered, dst);
}

template <class A> struct tiled_rows {
    using C = typename A::compute;
    using word = typename A::word;
    using compute = C;
    using by_lanes = tiled_rows<lane_arithmetic<C>>;
    static constexpr int width = simd<C>::width;

    const attention_task& t;
    const work_item& w;
    const tile_plan<A> plan;
    const sequence q;
    char* memory;
    const score_scale<C> scale;
    bool shrink = false;                    // values by SHRINK, so that their sums cannot overflow
    std::unique_ptr<C[]> infinite;          // what values that are not finite add to each row's output; made when the first is met
    ptrdiff_t not_finite[KEY_BLOCK<C>];     // keys of the block with such values
    int not_finite_count = 0;

    tiled_rows(const attention_task& task, const work_item& item, char* scratch)
        : t(task), w(item), plan(task, item.last - item.first), q(task, item.sequence), memory(scratch), scale(task.scale) {}
    static size_t bytes(const attention_task& t, const work_item& w) { return tile_plan<A>(t, w.last - w.first).total; }
    template <class T> T* part(size_t offset) const { return (T*)(memory + offset); }
    int tiles() const { return int((w.last - w.first + TILE_ROWS - 1) / TILE_ROWS); }
    ptrdiff_t first_row(int tile) const { return w.first + tile * TILE_ROWS; }
    ptrdiff_t last_row(int tile) const { return std::min(w.last, first_row(tile) + TILE_ROWS); }
    word* queries(int tile) const { return part<word>(plan.q) + tile * plan.inner * TILE_ROWS; }

    void pack_queries() {
        for (int tile = 0; tile < tiles(); ++tile)
            pack_tile<A>(t, q, AT_Q, w.head, first_row(tile), last_row(tile) - first_row(tile), plan.dim, part<C>(plan.gathered), queries(tile));
        scale_words<A>(queries(0), tiles() * plan.inner * TILE_ROWS, scale.fold);
    }

    void pack_block(ptrdiff_t j0, uint64_t panels) {
        constexpr int panel = PANEL<C>;
        not_finite_count = 0;
        for (int n = 0; n < PANELS<C>; ++n) {
            if (!(panels >> n & 1)) continue;
            const ptrdiff_t start = j0 + n * panel, stop = std::min(start + panel, q.keys);
            pack_key_panel<A>(t, q, AT_K, w.head, start, stop, plan.dim, part<C>(plan.gathered), part<word>(plan.k) + n * panel * plan.inner);
            for (ptrdiff_t j = start; j < start + panel; j += A::terms) pack_value(j, j0, stop);
        }
    }
    void pack_value(ptrdiff_t j, ptrdiff_t j0, ptrdiff_t stop) {
        word* dst = part<word>(plan.v);
        const ptrdiff_t inner = (j - j0) / A::terms;
        if (j >= stop) {
            for (ptrdiff_t c = 0; c < plan.columns; c += width) std::memset((void*)(dst + value_offset<A>(c, inner, plan.columns)), 0, sizeof(vec_of<C>));
            return;
        }
        const char *row = q.key(AT_V, w.head, j), *next = A::terms > 1 && j + 1 < stop ? q.key(AT_V, w.head, j + 1) : nullptr;
        if (!pack_value_word(row, next, inner, dst))
            for (ptrdiff_t k = j; k < std::min(j + A::terms, stop); ++k) not_finite[not_finite_count++] = k;
    }
    bool pack_value_word(const char* row, const char* next, ptrdiff_t inner, word* dst) {
        C* gathered = part<C>(plan.gathered);
        if constexpr (A::terms == 1)                // a second try is by lanes
            if (shrink) {
                gather_for<C>(t.code[AT_V])(row, t.item[AT_V], plan.dim_v, gathered);
                for (ptrdiff_t e = 0; e < plan.dim_v; ++e) gathered[e] *= SHRINK<C>;
                return value_packer<A, C>::pack(gathered, nullptr, plan.dim_v, inner, plan.columns, dst);
            }
        return pack_value_rows<A>(t, AT_V, row, next, plan.dim_v, inner, plan.columns, gathered, dst);
    }

    // Values that are not finite were packed as 0: every row that sees one gets it here.
    void add_not_finite(int tile, ptrdiff_t j0, uint64_t panels, const C* s) {
        if (!infinite) infinite.reset(new C[size_t(tiles() * TILE_ROWS * plan.columns)]());
        C* value = part<C>(plan.gathered);
        for (int n = 0; n < not_finite_count; ++n) {
            const ptrdiff_t j = not_finite[n], k = j - j0;
            if (!(panels >> (k / PANEL<C>) & 1)) continue;
            gather_for<C>(t.code[AT_V])(q.key(AT_V, w.head, j), t.item[AT_V], plan.dim_v, value);
            for (ptrdiff_t r = 0; r < last_row(tile) - first_row(tile); ++r) {
                if (s[r * KEY_BLOCK<C> + k] == LOWEST<C>) continue;
                C* row = infinite.get() + (tile * TILE_ROWS + r) * plan.columns;
                for (ptrdiff_t e = 0; e < plan.dim_v; ++e) row[e] += is_finite(value[e]) ? C(0) : value[e];
            }
        }
    }

    void run_tile(int tile, ptrdiff_t j0, ptrdiff_t j1, uint64_t panels) {
        const ptrdiff_t first = first_row(tile), rows = last_row(tile) - first;
        const key_runs runs = runs_of<C>(panels);
        C *s = part<C>(plan.s), *o = part<C>(plan.o) + tile * TILE_ROWS * plan.columns;
        row_states<C>& state = part<row_states<C>>(plan.states)[tile];
        for (int i = 0; i < runs.count; ++i)
            for (int j = runs.start[i]; j < runs.stop[i]; j += PANEL<C>)
                score_panel<A>(int(rows), queries(tile), part<word>(plan.k) + j * plan.inner, plan.inner, s + j);
        settle_scores(q, w.head, first, rows, runs, j0, j1, scale.lanes, s);
        if (not_finite_count) add_not_finite(tile, j0, panels, s);
        C alpha[TILE_ROWS + 16];
        word* p = A::terms == 1 ? (word*)s : part<word>(plan.p);
        update_rows<A>(int(rows), runs, t.has_options() ? C(1) : scale.lanes, s, p, state, alpha);
        std::fill(alpha + rows, alpha + TILE_ROWS, C(1));
        value_product<A>(int(rows), p, part<word>(plan.v), runs, alpha, o, plan.columns);
    }

    C* outputs(ptrdiff_t r) const { return part<C>(plan.o) + r * plan.columns; }
    double largest(ptrdiff_t r) const {
        return double(part<row_states<C>>(plan.states)[r / TILE_ROWS].m[r % TILE_ROWS]) * (t.has_options() ? 1 : scale.unit);
    }
    double& weight(ptrdiff_t r) const { return part<row_states<C>>(plan.states)[r / TILE_ROWS].d[r % TILE_ROWS]; }

    // Every row's o and pair over the item's keys.
    void attend() {
        for (int tile = 0; tile < tiles(); ++tile) part<row_states<C>>(plan.states)[tile].clear();
        std::memset(part<C>(plan.o), 0, size_t(tiles() * TILE_ROWS * plan.columns) * sizeof(C));
        std::memset(part<C>(plan.s), 0, TILE_ROWS * KEY_BLOCK<C> * sizeof(C));
        pack_queries();
        uint64_t panels[ROWS_MOST / TILE_ROWS];
        const key_range seen = q.seen_by_rows(w.first, w.last);
        const ptrdiff_t lo = std::max(seen.lo, w.lo), hi = std::min(seen.hi, w.hi);
        for (ptrdiff_t j0 = lo / plan.block * plan.block; j0 < hi; j0 += plan.block) {
            const ptrdiff_t j1 = std::min(j0 + plan.block, hi);
            uint64_t any = 0;
            for (int tile = 0; tile < tiles(); ++tile) any |= panels[tile] = visible_panels<C>(q, w.head, first_row(tile), last_row(tile), j0, j1);
            if (!any) continue;
            pack_block(j0, any);
            for (int tile = 0; tile < tiles(); ++tile)
                if (panels[tile]) run_tile(tile, j0, j1, panels[tile]);
        }
    }
};

}  // namespace
