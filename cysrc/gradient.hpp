// gradient.hpp - the gradients of attention for one head of keys: five products a tile, on the micro-kernel of products.hpp.
//
//   s = q k^T    p = exp(s - lse)    dp = g v^T    ds = p (dp - delta)         g: the gradient of out; delta = sum_e g o - the gradient of lse
//   dv += p^T g  dk += ds^T q        dq += ds k
//
// A block of keys owns its dk and dv, in the second-level cache, while blocks of rows pass by; dq is a sum over blocks of keys in their order.
// Tiles lie where the forward's lie, so scores are its scores to the bit. T. Dao, FlashAttention-2, 2023 (arXiv 2307.08691).
#pragma once
#include "gradient_tile.hpp"

namespace {

constexpr ptrdiff_t GRADIENT_ROWS = 96;         // of a block, at most; no more than KEY_BLOCK

// The left operands of the last three products are tiles of weights and of gradients of scores. Lanes are multiplied where they stand, so a block
// keeps them; pairs of bfloat16 are made of one tile of lanes: words of two rows for the sums over rows, of two keys for dq.

struct gradient_task {
    attention_task inputs;          // AT_OUT and AT_LSE are inputs here
    attention_task gradients;       // each in the place of what it is the gradient of. Of AT_OUT and AT_LSE it is given, of the others written where wanted
    bool bias_sums = false;         // the gradient of the bias is float64 and added to: some of its axes are broadcast
    double* sinks = nullptr;        // (heads,)

    bool wants(int op) const { return gradients.base[op] != nullptr; }
    bool wants_scores() const { return wants(AT_Q) || wants(AT_K) || wants(AT_BIAS); }      // ds is needed
};

template <class A> struct gradient_plan {
    using C = typename A::compute;
    using word = typename A::word;
    ptrdiff_t dim, dim_v, inner, inner_v, columns, columns_v, block, rows;
    size_t q, q_rows, g, g_rows, k, k_rows, v, s, ds, p_words, ds_words, ds_keys, factor, dk, dv, gathered, total;      // offsets in a thread's memory

    explicit gradient_plan(const attention_task& t) : dim(t.dim), dim_v(t.dim_v) {
        constexpr int width = simd<C>::width;
        inner = (dim + A::terms - 1) / A::terms;
        inner_v = (dim_v + A::terms - 1) / A::terms;
        columns = (dim + width - 1) / width * width;
        columns_v = (dim_v + width - 1) / width * width;
        const size_t each_key = size_t(inner + inner_v + columns / A::terms) * sizeof(word) + size_t(columns + columns_v) * sizeof(C);
        const size_t each_row =
            size_t(inner + inner_v + (columns + columns_v) / A::terms) * sizeof(word) + (A::terms > 1 ? 3 : 2) * KEY_BLOCK<C> / A::terms * sizeof(word);
        block = KEY_BLOCK<C>;
        while (block > PANEL<C> && size_t(block) * each_key > SECOND_LEVEL / 4 * 3) block /= 2;
        const size_t packed = size_t(block) * each_key;
        const ptrdiff_t fit = packed < SECOND_LEVEL ? ptrdiff_t((SECOND_LEVEL - packed) / each_row) / TILE_ROWS * TILE_ROWS : 0;
        rows = std::min(GRADIENT_ROWS, std::max<ptrdiff_t>(2 * TILE_ROWS, fit));
        const size_t tiles = size_t(rows / TILE_ROWS), scores = size_t(A::terms > 1 ? TILE_ROWS : rows) * KEY_BLOCK<C>;
        total = 0;
        const auto take = [this](size_t bytes) { const size_t at = total; total += (bytes + 127) / 64 * 64; return at; };
        q = take((tiles * TILE_ROWS * size_t(inner) + 16) * sizeof(word));
        g = take((tiles * TILE_ROWS * size_t(inner_v) + 16) * sizeof(word));
        q_rows = take(size_t(KEY_BLOCK<C> / A::terms * columns) * sizeof(word));
        g_rows = take(size_t(KEY_BLOCK<C> / A::terms * columns_v) * sizeof(word) + 64);
        k = take(size_t(block * inner) * sizeof(word) + 64);
        v = take(size_t(block * inner_v) * sizeof(word) + 64);
        k_rows = take(size_t(KEY_BLOCK<C> / A::terms * columns) * sizeof(word));
        s = take(scores * sizeof(C));
        ds = take(scores * sizeof(C));
        const size_t words = size_t(rows) * KEY_BLOCK<C> / A::terms * sizeof(word);
        p_words = A::terms > 1 ? take(words) : s;
        ds_words = A::terms > 1 ? take(words) : ds;
        ds_keys = A::terms > 1 ? take(words) : ds;
        factor = take(t.softcap != 0 ? TILE_ROWS * KEY_BLOCK<C> * sizeof(C) : 0);
        dk = take(size_t(block * columns) * sizeof(C));
        dv = take((size_t(std::max<ptrdiff_t>(block, TILE_ROWS) * columns_v) + 16) * sizeof(C));
        gathered = take(size_t(width) * size_t(std::max(dim, dim_v)) * sizeof(C));
    }
};

// The queries that see a key of j0 <= j < j1 as far as positions tell.
inline key_range queries_that_see(const sequence& q, ptrdiff_t j0, ptrdiff_t j1) {
    const attention_task& t = *q.t;
    const ptrdiff_t lo = t.right < 0 ? 0 : std::max<ptrdiff_t>(0, j0 - t.right - q.offset);
    return {lo, t.left < 0 ? q.queries : std::min<ptrdiff_t>(q.queries, j1 + t.left - q.offset)};
}

// All rows of one head of keys of one sequence, with a range of its keys at a time.
template <class A> struct gradient_rows {
    using C = typename A::compute;
    using word = typename A::word;
    static constexpr int width = simd<C>::width;

    const gradient_task& g;
    const attention_task &t, &u;
    const gradient_plan<A> plan;
    const sequence q, d;                    // the inputs and the gradients
    const ptrdiff_t head, row_count;
    char* memory;
    const score_scale<C> scale;
    const row_numbers<C> numbers;           // of the head's rows
    C* dq = nullptr;                        // (row_count rounded up to tiles, columns): is added to
    std::unique_ptr<C[]> infinite;          // what gradients of out that are not finite add to dv of the block; made when the first is met
    ptrdiff_t not_finite[GRADIENT_ROWS];    // rows of the block with such gradients
    int not_finite_count = 0;
    uint64_t panels[GRADIENT_ROWS / TILE_ROWS], packed = 0;

    gradient_rows(const gradient_task& task, ptrdiff_t index, ptrdiff_t key_head, char* scratch, const row_numbers<C>& of_rows)
        : g(task), t(task.inputs), u(task.gradients), plan(t), q(t, index), d(u, index), head(key_head), row_count(q.queries * t.group),
          memory(scratch), scale(t.scale), numbers(of_rows) {}
    static size_t bytes(const attention_task& t) { return gradient_plan<A>(t).total; }
    template <class T> T* part(size_t offset) const { return (T*)(memory + offset); }
    // The tile of lanes that begins at a row of the block, and its rows' words.
    C* scores(ptrdiff_t at) const { return part<C>(plan.s) + (A::terms > 1 ? 0 : at * KEY_BLOCK<C>); }
    C* score_gradients(ptrdiff_t at) const { return part<C>(plan.ds) + (A::terms > 1 ? 0 : at * KEY_BLOCK<C>); }
    word* words(size_t offset, ptrdiff_t at) const { return part<word>(offset) + at / A::terms * KEY_BLOCK<C>; }
    C unit() const { return t.has_options() ? C(1) : scale.lanes; }

    // ---- packing
    void pack_keys(ptrdiff_t j0, ptrdiff_t j1, uint64_t wanted) {
        for (int n = 0; n < PANELS<C>; ++n) {
            if (!((wanted & ~packed) >> n & 1)) continue;
            const ptrdiff_t start = j0 + n * PANEL<C>;
            pack_key_panel<A>(t, q, AT_K, head, start, j1, plan.dim, part<C>(plan.gathered), part<word>(plan.k) + n * PANEL<C> * plan.inner);
            if (g.wants_scores())
                pack_key_panel<A>(t, q, AT_V, head, start, j1, plan.dim_v, part<C>(plan.gathered), part<word>(plan.v) + n * PANEL<C> * plan.inner_v);
            for (ptrdiff_t j = start; g.wants(AT_Q) && j < start + PANEL<C>; j += A::terms) {
                // a score's gradient is NaN where a key that is not finite is seen, and 0 where it is not
                const char *row = q.key(AT_K, head, std::min(j, j1 - 1)), *next = q.key(AT_K, head, std::min(j + 1, j1 - 1));
                pack_value_rows<A>(t, AT_K, row, next, plan.dim, (j - j0) / A::terms, plan.columns, part<C>(plan.gathered), part<word>(plan.k_rows));
            }
        }
        packed |= wanted;
    }
    void pack_rows_of(ptrdiff_t first, ptrdiff_t last) {
        not_finite_count = 0;
        for (ptrdiff_t r = first; r < last; r += TILE_ROWS) {
            const ptrdiff_t count = std::min<ptrdiff_t>(TILE_ROWS, last - r);
            pack_tile<A>(t, q, AT_Q, head, r, count, plan.dim, part<C>(plan.gathered), part<word>(plan.q) + (r - first) * plan.inner);
            if (g.wants_scores())
                pack_tile<A>(u, d, AT_OUT, head, r, count, plan.dim_v, part<C>(plan.gathered), part<word>(plan.g) + (r - first) * plan.inner_v);
        }
        scale_words<A>(part<word>(plan.q), (last - first + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * plan.inner, scale.fold);
        for (ptrdiff_t r = first; r < last; r += A::terms) {
            if (g.wants(AT_K)) pack_summed(t, q, AT_Q, r, first, last, plan.dim, plan.columns, plan.q_rows);
            if (!g.wants(AT_V)) continue;
            if (!pack_summed(u, d, AT_OUT, r, first, last, plan.dim_v, plan.columns_v, plan.g_rows))
                for (ptrdiff_t i = r; i < std::min(r + A::terms, last); ++i) not_finite[not_finite_count++] = i - first;
        }
    }
    // The rows of one word, from r on, as the right operand of a sum over rows. Returns whether all were finite.
    bool pack_summed(
        const attention_task& of, const sequence& s, int op, ptrdiff_t r, ptrdiff_t first, ptrdiff_t last, ptrdiff_t dim, ptrdiff_t columns, size_t offset) const {
        const row_of at(t, head, r), after(t, head, std::min(r + 1, last - 1));
        const char* next = r + 1 < last ? s.at(op, after.h, after.i) : nullptr;
        return pack_value_rows<A>(of, op, s.at(op, at.h, at.i), next, dim, (r - first) / A::terms, columns, part<C>(plan.gathered), part<word>(offset));
    }

    // ---- a tile
    void score_tile_of(ptrdiff_t at, ptrdiff_t first, ptrdiff_t count, ptrdiff_t j0, ptrdiff_t j1, const key_runs& runs) {
        for (int i = 0; i < runs.count; ++i)
            for (int j = runs.start[i]; j < runs.stop[i]; j += PANEL<C>)
                score_panel<A>(int(count), part<word>(plan.q) + at * plan.inner, part<word>(plan.k) + j * plan.inner, plan.inner, scores(at) + j);
        if (scale.unit < 1 || scale.unit >= 2) natural_scores(at, count, runs);
        settle_scores(q, head, first, count, runs, j0, j1, scale.lanes, scores(at), t.softcap != 0 ? part<C>(plan.factor) : nullptr);
    }
    // The rest of a scale that lanes do not hold.
    void natural_scores(ptrdiff_t at, ptrdiff_t count, const key_runs& runs) {
        const double more = scale.unit / double(scale.lanes);
        if (!(more < 1 || more > 1) || std::isinf(scale.unit)) return;
        C* s = scores(at);
        for (ptrdiff_t r = 0; r < count; ++r, s += KEY_BLOCK<C>)
            for (int i = 0; i < runs.count; ++i)
                for (int j = runs.start[i]; j < runs.stop[i]; ++j) s[j] = C(double(s[j]) * more);
    }
    // Weights and gradients of scores in the place of scores.
    void weigh_tile(ptrdiff_t at, ptrdiff_t first, ptrdiff_t count, ptrdiff_t j0, ptrdiff_t j1, const key_runs& runs) {
        score_tile_of(at, first, count, j0, j1, runs);
        if (not_finite_count) add_not_finite(at, count, runs);
        if (!g.wants_scores()) return weigh<C, false>(count, runs, unit(), numbers.from(first), scores(at), nullptr);
        for (int i = 0; i < runs.count; ++i)
            for (int j = runs.start[i]; j < runs.stop[i]; j += PANEL<C>)
                score_panel<A>(int(count), part<word>(plan.g) + at * plan.inner_v, part<word>(plan.v) + j * plan.inner_v, plan.inner_v, score_gradients(at) + j);
        weigh<C, true>(count, runs, unit(), numbers.from(first), scores(at), score_gradients(at));
        if (g.wants(AT_BIAS)) add_bias(at, first, count, j0, j1, runs);
        if (t.softcap != 0) multiply_rows(count, runs, part<C>(plan.factor), score_gradients(at));
    }
    // The words that the other products read. Lanes are read where they are.
    void narrow_tile(ptrdiff_t at, ptrdiff_t count, const key_runs& runs) const {
        if (g.wants(AT_V)) narrow_rows<A>(count, runs, scores(at), words(plan.p_words, at), nullptr);
        if (!g.wants(AT_Q) && !g.wants(AT_K)) return;
        word *by_rows = g.wants(AT_K) ? words(plan.ds_words, at) : nullptr, *by_keys = g.wants(AT_Q) ? words(plan.ds_keys, at) : nullptr;
        narrow_rows<A>(count, runs, score_gradients(at), by_rows, by_keys);
    }
    void run_tile(ptrdiff_t at, ptrdiff_t first, ptrdiff_t count, ptrdiff_t j0, ptrdiff_t j1, uint64_t seen) {
        const key_runs runs = runs_of<C>(seen);
        weigh_tile(at, first, count, j0, j1, runs);
        if constexpr (A::terms > 1) narrow_tile(at, count, runs);
    }
    // Gradients of out that are not finite were packed as 0: every key that such a row sees gets them here.
    void add_not_finite(ptrdiff_t at, ptrdiff_t count, const key_runs& runs) {
        if (!infinite) infinite.reset(new C[size_t(KEY_BLOCK<C> * plan.columns_v)]());
        C* value = part<C>(plan.gathered);
        for (int n = 0; n < not_finite_count; ++n) {
            const ptrdiff_t r = not_finite[n];
            if (r < at || r >= at + count) continue;
            const row_of row(t, head, block_first + r);
            gather_for<C>(u.code[AT_OUT])(d.at(AT_OUT, row.h, row.i), u.item[AT_OUT], plan.dim_v, value);
            for (int i = 0; i < runs.count; ++i)
                for (int j = runs.start[i]; j < runs.stop[i]; ++j) {
                    if (scores(at)[(r - at) * KEY_BLOCK<C> + j] == LOWEST<C>) continue;
                    for (ptrdiff_t e = 0; e < plan.dim_v; ++e) infinite[size_t(j * plan.columns_v + e)] += is_finite(value[e]) ? C(0) : value[e];
                }
        }
    }
    // The gradient of the bias is that of the scores before the bias was added.
    void add_bias(ptrdiff_t at, ptrdiff_t first, ptrdiff_t count, ptrdiff_t j0, ptrdiff_t j1, const key_runs& runs) {
        for (ptrdiff_t r = 0; r < count; ++r) {
            const row_of row(t, head, first + r);
            for (int i = 0; i < runs.count; ++i) {
                const ptrdiff_t a = runs.start[i], n = std::min<ptrdiff_t>(runs.stop[i], j1 - j0) - a, item = u.item[AT_BIAS];
                char* p = d.at(AT_BIAS, row.h, row.i) + (j0 + a) * item;
                const C* ds = score_gradients(at) + r * KEY_BLOCK<C> + a;
                if (g.bias_sums) add_run(ds, n, p, item);
                else scatter_for<C>(u.code[AT_BIAS])(ds, n, p, item);
            }
        }
    }

    // ---- a block
    ptrdiff_t block_first = 0;
    void run_rows(ptrdiff_t first, ptrdiff_t last, ptrdiff_t j0, ptrdiff_t j1) {
        uint64_t any = 0;
        int tiles = 0;
        for (ptrdiff_t r = first; r < last; r += TILE_ROWS) any |= panels[tiles++] = visible_panels<C>(q, head, r, std::min(last, r + TILE_ROWS), j0, j1);
        if (!any) return;
        block_first = first;
        pack_keys(j0, j1, any);
        pack_rows_of(first, last);
        for (int tile = 0; tile < tiles; ++tile) {
            const ptrdiff_t at = tile * TILE_ROWS, count = std::min<ptrdiff_t>(TILE_ROWS, last - first - at);
            if (panels[tile]) run_tile(at, first + at, count, j0, j1, panels[tile]);
            clear_rows<A>(count, any & ~panels[tile], words(plan.p_words, at), g.wants_scores() ? words(plan.ds_words, at) : nullptr);
        }
        const key_runs runs = runs_of<C>(any);
        const row_hull<C> hull(panels, tiles, last - first);
        if (g.wants(AT_V)) key_product<A>(words(plan.p_words, 0), part<word>(plan.g_rows), runs, hull, part<C>(plan.dv), plan.columns_v);
        if (g.wants(AT_K)) key_product<A>(words(plan.ds_words, 0), part<word>(plan.q_rows), runs, hull, part<C>(plan.dk), plan.columns);
        if (!g.wants(AT_Q)) return;
        C ones[TILE_ROWS];
        std::fill(ones, ones + TILE_ROWS, C(1));
        for (int tile = 0; tile < tiles; ++tile) {
            if (!panels[tile]) continue;
            const ptrdiff_t at = tile * TILE_ROWS, count = std::min<ptrdiff_t>(TILE_ROWS, last - first - at);
            value_product<A>(int(count), words(plan.ds_keys, at), part<word>(plan.k_rows), runs_of<C>(panels[tile]), ones, dq + (first + at) * plan.columns, plan.columns);
        }
    }
    void run_keys(ptrdiff_t j0, ptrdiff_t j1) {
        const key_range seen = queries_that_see(q, j0, j1);
        packed = 0;
        std::memset(part<C>(plan.dk), 0, size_t(plan.block * plan.columns) * sizeof(C));
        std::memset(part<C>(plan.dv), 0, size_t(plan.block * plan.columns_v) * sizeof(C));
        for (ptrdiff_t first = seen.lo * t.group / plan.rows * plan.rows; first < seen.hi * t.group; first += plan.rows) run_rows(first, std::min(row_count, first + plan.rows), j0, j1);
        if (packed) finish_keys(j0, j1);
    }
    void finish_keys(ptrdiff_t j0, ptrdiff_t j1) {
        for (ptrdiff_t j = j0; j < j1; ++j) {
            C *dk = part<C>(plan.dk) + (j - j0) * plan.columns, *dv = part<C>(plan.dv) + (j - j0) * plan.columns_v;
            if (g.wants(AT_K)) {
                for (ptrdiff_t e = 0; e < plan.dim; ++e) dk[e] = C(double(dk[e]) * t.scale);
                scatter_for<C>(u.code[AT_K])(dk, plan.dim, d.at(AT_K, head, j), u.item[AT_K]);
            }
            if (g.wants(AT_V)) {
                for (ptrdiff_t e = 0; infinite && e < plan.dim_v; ++e) dv[e] += infinite[size_t((j - j0) * plan.columns_v + e)];
                scatter_for<C>(u.code[AT_V])(dv, plan.dim_v, d.at(AT_V, head, j), u.item[AT_V]);
            }
        }
        infinite.reset();
    }
    // The keys lo <= j < hi, lo at a block's begin.
    void run(ptrdiff_t lo, ptrdiff_t hi) {
        // rows past the last one are multiplied with the others of their tile
        const size_t tiles = size_t(plan.rows) * KEY_BLOCK<C> / A::terms * sizeof(word);
        for (size_t offset : {plan.p_words, plan.ds_words, plan.ds_keys}) std::memset((void*)(memory + offset), 0, tiles);
        for (ptrdiff_t j0 = lo; j0 < hi; j0 += plan.block) run_keys(j0, std::min(j0 + plan.block, hi));
    }

    // sum_e g o of rows, in the order in which a tile sums dp = g v^T: where a row sees one key alone, o is its value and ds is 0 exactly. Where o is
    // 0, g is not asked: rows that see nothing have no gradient.
    void settle_deltas(ptrdiff_t first, ptrdiff_t last, C* delta) {
        using vec = typename A::vec;
        word *o = part<word>(plan.g_rows), *of_o = part<word>(plan.dv);
        for (ptrdiff_t r = first; r < last; r += TILE_ROWS) {
            const ptrdiff_t count = std::min<ptrdiff_t>(TILE_ROWS, last - r);
            pack_tile<A>(t, q, AT_OUT, head, r, count, plan.dim_v, part<C>(plan.gathered), o);
            pack_tile<A>(u, d, AT_OUT, head, r, count, plan.dim_v, part<C>(plan.gathered), of_o);
            for (ptrdiff_t i = 0; i < count; i += width) {
                vec sum{};
                for (ptrdiff_t e = 0; e < plan.inner_v; e += INNER_BLOCK) {
                    vec acc{};
                    for (ptrdiff_t k = e; k < std::min(plan.inner_v, e + INNER_BLOCK); ++k) {
                        const vec x = load_bits<vec>(o + k * TILE_ROWS + i);
                        acc = A::multiply_add(A::where_nonzero(load_bits<vec>(of_o + k * TILE_ROWS + i), x), x, acc);
                    }
                    sum = e == 0 ? acc : sum + acc;
                }
                for (ptrdiff_t k = 0; k < width && i + k < count; ++k) delta[r - first + i + k] = sum[k];
            }
        }
    }

    // ---- the maximum and the sum of rows whose lse is too large for its digits to tell the weights
    void sum_rows(ptrdiff_t first, ptrdiff_t last, row_states<C>* states) {
        for (ptrdiff_t i = 0; i * TILE_ROWS < last - first; ++i) states[i].clear();
        for (ptrdiff_t r = first; r < last; r += TILE_ROWS)
            pack_tile<A>(t, q, AT_Q, head, r, std::min<ptrdiff_t>(TILE_ROWS, last - r), plan.dim, part<C>(plan.gathered), part<word>(plan.q) + (r - first) * plan.inner);
        scale_words<A>(part<word>(plan.q), (last - first + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS * plan.inner, scale.fold);
        const key_range seen = q.seen_by_rows(first, last);
        for (ptrdiff_t j0 = seen.lo / plan.block * plan.block; j0 < seen.hi; j0 += plan.block) {
            const ptrdiff_t j1 = std::min(j0 + plan.block, q.keys);
            packed = 0;
            for (ptrdiff_t r = first; r < last; r += TILE_ROWS) {
                const ptrdiff_t count = std::min<ptrdiff_t>(TILE_ROWS, last - r);
                const uint64_t wanted = visible_panels<C>(q, head, r, r + count, j0, j1);
                if (!wanted) continue;
                for (int n = 0; n < PANELS<C>; ++n)
                    if ((wanted & ~packed) >> n & 1)
                        pack_key_panel<A>(t, q, AT_K, head, j0 + n * PANEL<C>, j1, plan.dim, part<C>(plan.gathered), part<word>(plan.k) + n * PANEL<C> * plan.inner);
                packed |= wanted;
                const key_runs runs = runs_of<C>(wanted);
                C alpha[TILE_ROWS + 16];
                score_tile_of(r - first, r, count, j0, j1, runs);
                update_rows<lane_arithmetic<C>>(int(count), runs, unit(), scores(r - first), scores(r - first), states[(r - first) / TILE_ROWS], alpha);
            }
        }
    }
};

}  // namespace
