// gradient_tile.hpp - what the gradients of attention do with a tile of scores, and the product that sums over its rows.
//
// A tile is [rows][KEY_BLOCK] lanes, as in scores.hpp. Hidden scores are -inf: their weights and gradients are 0 by selection, whatever the
// key, the value or the gradient of the output held.
#pragma once
#include "tiled.hpp"

namespace {

// What a row of scores needs to become weights and their gradients: p = exp((s - shift) unit - rest) weight. rest is inf where nothing is seen, NaN
// where all that is seen is NaN. The shift, in the units of the scores, is subtracted first: it takes no digits from what is left.
template <class C> struct row_numbers {
    C *shift = nullptr, *rest = nullptr, *weight = nullptr, *delta = nullptr;
    row_numbers from(ptrdiff_t r) const { return {shift + r, rest + r, weight + r, delta + r}; }
};
template <class C> struct row_values { C shift, rest, weight, delta; };

template <int count, bool gradients, class C> DS_INLINE void weigh_lanes(C* s, C* dp, const row_values<C>& of, vec_of<C> unit, vec_of<C> factor, vec_of<C> lowest) {
    constexpr int width = simd<C>::width;
    using V = vec_of<C>;
    V scores[count];
    simd<C> x[count];
    for (int k = 0; k < count; ++k) scores[k] = load_lanes(s + k * width);
    for (int k = 0; k < count; ++k) x[k].v = fused(scores[k] - of.shift, unit, V{} - of.rest);
    exp2_each<count>(x, factor, lowest);
    for (int k = 0; k < count; ++k) {
        const V p = scores[k] == LOWEST<C> ? V{} : x[k].v * of.weight;
        store_lanes(s + k * width, p);
        if (gradients) store_lanes(dp + k * width, scores[k] == LOWEST<C> ? V{} : p * (load_lanes(dp + k * width) - of.delta));
    }
}

// s becomes p and, with `gradients`, dp becomes ds.
template <class C, bool gradients> void weigh(ptrdiff_t rows, const key_runs& runs, C unit, const row_numbers<C>& of, C* s, C* dp) {
    constexpr int width = simd<C>::width;
    using V = vec_of<C>;
    const V units = V{} + unit, factor = V{} + C(1.4426950408889634), lowest = V{} + LOWEST_EXP2<C> / factor[0];
    for (ptrdiff_t r = 0; r < rows; ++r, s += KEY_BLOCK<C>, dp += gradients ? KEY_BLOCK<C> : 0) {
        const row_values<C> row{of.shift[r], of.rest[r], of.weight[r], of.delta[r]};
        for (int i = 0; i < runs.count; ++i) {
            int j = runs.start[i];
            const int stop = runs.stop[i];
            if (row.rest == -LOWEST<C>) {
                std::fill(s + j, s + stop, C(0));
                if (gradients) std::fill(dp + j, dp + stop, C(0));
                continue;
            }
            for (; j + 4 * width <= stop; j += 4 * width) weigh_lanes<4, gradients>(s + j, dp + j, row, units, factor, lowest);
            if (j < stop) weigh_lanes<2, gradients>(s + j, dp + j, row, units, factor, lowest);
        }
    }
}
// Panels that the rows of a tile do not see, and others of the block do: of the left operands of the products over rows.
template <class A> void clear_rows(ptrdiff_t rows, uint64_t panels, typename A::word* p, typename A::word* ds) {
    using C = typename A::compute;
    if (!panels) return;
    const key_runs runs = runs_of<C>(panels);
    for (ptrdiff_t r = 0; r < (rows + A::terms - 1) / A::terms; ++r)
        for (int i = 0; i < runs.count; ++i) {
            const ptrdiff_t a = r * KEY_BLOCK<C> + runs.start[i], b = r * KEY_BLOCK<C> + runs.stop[i];
            std::fill(p + a, p + b, typename A::word{});
            if (ds) std::fill(ds + a, ds + b, typename A::word{});
        }
}
// A tile of lanes as the left operand of a product over rows, whose words are pairs of rows (a lone last one with 0), and over keys. Null: not wanted.
template <class A> void narrow_rows(ptrdiff_t rows, const key_runs& runs, const typename A::compute* s, typename A::word* by_rows, typename A::word* by_keys) {
    using C = typename A::compute;
    constexpr ptrdiff_t width = simd<C>::width, step = KEY_BLOCK<C>;
    for (ptrdiff_t r = 0; r < rows; r += 2, s += 2 * step, by_rows += by_rows ? step : 0, by_keys += by_keys ? step : 0)
        for (int i = 0; i < runs.count; ++i)
            for (ptrdiff_t j = runs.start[i]; j < runs.stop[i]; j += 2 * width) {
                const vec_of<C> zero{}, a = load_lanes(s + j), b = load_lanes(s + j + width);
                const vec_of<C> c = r + 1 < rows ? load_lanes(s + step + j) : zero, d = r + 1 < rows ? load_lanes(s + step + j + width) : zero;
                if (by_rows) {
                    A::store_interleaved(by_rows + j, a, c);
                    A::store_interleaved(by_rows + j + width, b, d);
                }
                if (by_keys) {
                    A::store_narrowed(by_keys + j / 2, a, b);
                    A::store_narrowed(by_keys + (step + j) / 2, c, d);
                }
            }
}
template <class C> void multiply_rows(ptrdiff_t rows, const key_runs& runs, const C* factor, C* ds) {
    for (ptrdiff_t r = 0; r < rows; ++r)
        for (int i = 0; i < runs.count; ++i)
            for (ptrdiff_t j = r * KEY_BLOCK<C> + runs.start[i]; j < r * KEY_BLOCK<C> + runs.stop[i]; ++j) ds[j] = ds[j] == 0 ? C(0) : ds[j] * factor[j];
}
// Added to float64 elements `stride` bytes apart; to one, where the axis is broadcast.
template <class C> void add_run(const C* x, ptrdiff_t n, char* p, ptrdiff_t stride) {
    for (ptrdiff_t i = 0; i < n; ++i, p += stride) {
        double sum;
        std::memcpy(&sum, p, sizeof sum);
        sum += double(x[i]);
        std::memcpy(p, &sum, sizeof sum);
    }
}

// The rows of a block between the first and the last tile that see a panel.
template <class C> struct row_hull {
    ptrdiff_t first[PANELS<C>], last[PANELS<C>];
    row_hull(const uint64_t* panels, int tiles, ptrdiff_t rows) {
        std::fill(first, first + PANELS<C>, rows);
        std::fill(last, last + PANELS<C>, 0);
        for (int tile = 0; tile < tiles; ++tile)
            for (int n = 0; n < PANELS<C>; ++n)
                if (panels[tile] >> n & 1) {
                    first[n] = std::min<ptrdiff_t>(first[n], tile * TILE_ROWS);
                    last[n] = std::min<ptrdiff_t>(rows, (tile + 1) * TILE_ROWS);
                }
    }
};

// o[k, e] += sum_r p[r, k] b[r, e] for `keys` keys: the left operand's rows, by words, are the inner index here.
template <class A, int keys, int vectors>
void key_tile(const typename A::word* p, const typename A::word* b, ptrdiff_t inner, typename A::compute* o, ptrdiff_t o_step) {
    using C = typename A::compute;
    constexpr int width = simd<C>::width;
    typename A::vec acc[keys][vectors] = {};
    multiply<A, keys, vectors, 1, KEY_BLOCK<C>>(p, b, inner, acc);
#pragma GCC unroll 16
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; ++j) {
            C* at = o + i * o_step + j * width;
            store_lanes(at, load_lanes(at) + acc[i][j]);
        }
}
template <class A, int vectors>
void key_column(
    const typename A::word* p, const typename A::word* b, const key_runs& runs, const row_hull<typename A::compute>& hull, typename A::compute* o,
    ptrdiff_t columns) {
    using C = typename A::compute;
    static_assert(PANEL<C> % (TILE_ROWS / 3) == 0, "a run of panels is cut into tiles without a rest");
    static_assert(TILE_ROWS % A::terms == 0, "a word has rows of one tile");
    for (int i = 0; i < runs.count; ++i)
        for (int k = runs.start[i], keys; k < runs.stop[i]; k += keys) {
            const int left = runs.stop[i] - k;
            keys = left >= TILE_ROWS ? TILE_ROWS : tile_rows_for(left);
            const int a = k / PANEL<C>, c = (k + keys - 1) / PANEL<C>;
            const ptrdiff_t first = std::min(hull.first[a], hull.first[c]) / A::terms;
            const ptrdiff_t inner = (std::max(hull.last[a], hull.last[c]) + A::terms - 1) / A::terms - first;
            const typename A::word *left_operand = p + first * KEY_BLOCK<C> + k, *right = b + first * (vectors * simd<C>::width);
            C* at = o + k * columns;
            switch (keys) {
                case TILE_ROWS: key_tile<A, TILE_ROWS, vectors>(left_operand, right, inner, at, columns); break;
                case TILE_ROWS * 2 / 3: key_tile<A, TILE_ROWS * 2 / 3, vectors>(left_operand, right, inner, at, columns); break;
                default: key_tile<A, TILE_ROWS / 3, vectors>(left_operand, right, inner, at, columns);
            }
        }
}
// Panels of gradients: p lies as [rows, in words][KEY_BLOCK], b as values do.
template <class A>
void key_product(
    const typename A::word* p, const typename A::word* b, const key_runs& runs, const row_hull<typename A::compute>& hull, typename A::compute* o,
    ptrdiff_t columns) {
    using C = typename A::compute;
    ptrdiff_t c = 0;
    for (; c + PANEL<C> <= columns; c += PANEL<C>) key_column<A, PANEL_VECTORS>(p, b + c * (KEY_BLOCK<C> / A::terms), runs, hull, o + c, columns);
    if (c < columns) key_column<A, 1>(p, b + c * (KEY_BLOCK<C> / A::terms), runs, hull, o + c, columns);
}

}  // namespace
