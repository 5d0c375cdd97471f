// scores.hpp - what happens to a tile of scores between the two products: softcap, bias, alibi, hidden keys, and the running pair.
//
// A tile is [rows][KEY_BLOCK] lanes; s · unit is a score in natural units (unit is 1 but for pairs of bfloat16, which are not scaled before
// the product). Unseen is -inf, whatever made it so. The exponent is taken to base 2 after the maximum is subtracted: (s - m) · unit · log2 e.
#pragma once
#include "attention.hpp"
#include "elementary.hpp"

namespace {

template <class C> constexpr C LOWEST = -std::numeric_limits<C>::infinity();

// The running pairs of a tile's rows: m in the units of the scores (-inf in lanes past the rows), d = sum exp(s - m).
template <class C> struct row_states {
    C m[TILE_ROWS + 16];
    double d[TILE_ROWS + 16];
    void clear() {
        for (C& x : m) x = LOWEST<C>;
        for (double& x : d) x = 0;
    }
};

// Bias elements as lanes: a finite one stays finite though its storage is wider.
template <class C> void gather_bias(int code, const char* p, ptrdiff_t stride, ptrdiff_t n, C* dst) {
    if (std::is_same<C, float>::value && (code & ~CODE_SWAPPED) == CODE_F64) {
        double wide[64];
        constexpr double most = std::numeric_limits<float>::max();
        for (ptrdiff_t j = 0; j < n; j += 64) {
            const ptrdiff_t count = std::min<ptrdiff_t>(64, n - j);
            gather_for<double>(code)(p + j * stride, stride, count, wide);
            for (ptrdiff_t k = 0; k < count; ++k) {
                const double x = wide[k];
                dst[j + k] = C(std::isfinite(x) ? std::min(std::max(x, -most), most) : x);
            }
        }
        return;
    }
    gather_for<C>(code)(p, stride, n, dst);
}

// 1 - tanh(x)^2 by e = exp(-2|x|): the difference itself keeps few digits where it is small.
template <class T> DS_INLINE T slope_of_cap(T e) {
    const T sum = e + 1;
    return e / (sum * sum) * 4;
}

// All that changes the scores s[0 .. n) of keys from j on of one row, the hiding of keys included; they become natural units.
// `derivative`, if not null, takes what softcap multiplies a gradient by, 1 - tanh^2.
template <class C> void apply_options(const sequence& q, row_of at, ptrdiff_t j, ptrdiff_t n, C unit, C* s, C* derivative = nullptr) {
    const attention_task& t = *q.t;
    using V = vec_of<C>;
    constexpr int width = simd<C>::width;
    const ptrdiff_t known = std::min(n, q.keys - j);            // bias and masks end where the keys do
    if (unit != 1)
        for (ptrdiff_t k = 0; k < n; k += width) store_lanes(s + k, load_lanes(s + k) * unit);
    if (t.softcap != 0) {
        const C cap = C(t.softcap);
        const bool ordinary = t.softcap > 0x1p-100 && t.softcap < 0x1p100;     // quotient and product stay what lanes hold
        for (ptrdiff_t k = 0; derivative && ordinary && k < n; k += width)
            store_lanes(derivative + k, slope_of_cap(exp(simd<C>(vabs(simd<C>(load_lanes(s + k) / cap)).v * C(-2))).v));
        for (ptrdiff_t k = 0; derivative && !ordinary && k < n; ++k) derivative[k] = C(slope_of_cap(std::exp(-2 * std::fabs(double(s[k]) / t.softcap))));
        for (ptrdiff_t k = 0; ordinary && k < n; k += width) store_lanes(s + k, tanh(simd<C>(load_lanes(s + k) / cap)).v * cap);
        for (ptrdiff_t k = 0; !ordinary && k < n; ++k) s[k] = C(std::tanh(double(s[k]) / t.softcap) * t.softcap);
    }
    if (t.base[AT_BIAS]) {
        C bias[KEY_BLOCK<C>];
        gather_bias<C>(t.code[AT_BIAS], q.at(AT_BIAS, at.h, at.i) + j * t.item[AT_BIAS], t.item[AT_BIAS], known, bias);
        std::fill(bias + known, bias + n, C(0));
        for (ptrdiff_t k = 0; k < n; k += width) {
            const V x = load_lanes(s + k), b = load_lanes(bias + k);
            // a sum of finite numbers below the lowest is the lowest, not unseen; a NaN passes
            const V sum = max_keep(V{} - std::numeric_limits<C>::max(), x + b);
            store_lanes(s + k, ((x == LOWEST<C>) | (b == LOWEST<C>)) ? V{} + LOWEST<C> : sum);
        }
    }
    if (t.slopes) {
        const double slope = t.slopes[q.index * t.heads_q() + at.h];
        constexpr C most = std::numeric_limits<C>::max();
        const bool finite = is_finite(slope);
        const ptrdiff_t position = at.i + q.offset;
        for (ptrdiff_t k = 0; k < n; ++k) {
            const ptrdiff_t distance = position - (j + k);
            const double penalty = slope * double(distance < 0 ? -distance : distance);
            const C y = s[k] - C(finite ? std::min(double(most), std::max(-double(most), penalty)) : penalty);
            // as with biases: finite numbers do not hide, infinite ones do, and what is unseen stays so
            const bool unseen = s[k] == LOWEST<C> || (!finite && penalty > 0 && !is_finite(penalty));
            s[k] = unseen ? LOWEST<C> : finite && s[k] > LOWEST<C> && y < -most ? -most : y;
        }
    }
    if (t.base[AT_MASK]) fill_hidden(s, q.at(AT_MASK, at.h, at.i) + j * t.item[AT_MASK], t.item[AT_MASK], known, LOWEST<C>);
    if (t.base[AT_BLOCK_MASK])
        for (ptrdiff_t block = j / t.block_k; block * t.block_k < j + known; ++block)
            if (!q.block_visible(at.h, at.i / t.block_q, block))
                std::fill(s + std::max<ptrdiff_t>(0, block * t.block_k - j), s + std::min(known, (block + 1) * t.block_k - j), LOWEST<C>);
}

// Unseen by position, or past the last key: everything of s outside [lo, hi), in keys of the block.
template <class C> void hide_outside(const key_runs& runs, ptrdiff_t lo, ptrdiff_t hi, C* s) {
    for (int i = 0; i < runs.count; ++i) {
        const ptrdiff_t a = runs.start[i], b = runs.stop[i];
        if (lo > a) std::fill(s + a, s + std::min(lo, b), LOWEST<C>);
        if (hi < b) std::fill(s + std::max(hi, a), s + b, LOWEST<C>);
    }
}

// All of that for the scores of `rows` rows from row `first` on and the block of keys j0 <= j < j1. `derivatives`: null, or laid out as s.
template <class C>
void settle_scores(
    const sequence& q, ptrdiff_t head, ptrdiff_t first, ptrdiff_t rows, const key_runs& runs, ptrdiff_t j0, ptrdiff_t j1, C unit, C* s,
    C* derivatives = nullptr) {
    for (ptrdiff_t r = 0; r < rows; ++r, s += KEY_BLOCK<C>) {
        const row_of at(*q.t, head, first + r);
        for (int i = 0; q.t->has_options() && i < runs.count; ++i)
            apply_options(
                q, at, j0 + runs.start[i], runs.stop[i] - runs.start[i], unit, s + runs.start[i],
                derivatives ? derivatives + r * KEY_BLOCK<C> + runs.start[i] : nullptr);
        const key_range seen = q.seen_by(at.i);
        hide_outside(runs, std::max<ptrdiff_t>(seen.lo - j0, 0), std::min(seen.hi, j1) - j0, s);
    }
}

// A row that has seen a score of +inf: d is inf, NaN if a NaN was seen; its output will be NaN.
template <class A, class C> void settle_infinite(const key_runs& runs, C* s, typename A::word* p, double& d) {
    bool nan = d != d;
    for (int i = 0; i < runs.count; ++i) {
        for (int j = runs.start[i]; j < runs.stop[i]; ++j) nan |= s[j] != s[j];
        std::memset((void*)(p + runs.start[i] / A::terms), 0, size_t(runs.stop[i] - runs.start[i]) / A::terms * sizeof(typename A::word));
    }
    d = nan ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
}

// The largest score of each of `rows` <= width rows, with m where that is larger.
template <class C> DS_INLINE vec_of<C> row_maxima(int rows, const key_runs& runs, const C* s, const C* m) {
    constexpr int width = simd<C>::width;
    simd<C> each[width];
    for (int r = 0; r < width; ++r) {
        each[r] = simd<C>(double(LOWEST<C>));
        if (r >= rows) continue;
        vec_of<C> a = each[r].v, b = a;
        for (int i = 0; i < runs.count; ++i)
            for (int j = runs.start[i]; j < runs.stop[i]; j += 2 * width) {
                a = max_keep(load_lanes(s + r * KEY_BLOCK<C> + j), a);
                b = max_keep(load_lanes(s + r * KEY_BLOCK<C> + j + width), b);
            }
        each[r].v = max_keep(a, b);
    }
    return max_keep(max_rows(each).v, load_lanes(m));
}

// exp of `count` registers of scores, added to `sum` in order, as the left operand of the second product.
template <class A, int count, class C> DS_INLINE void exponentials(const C* s, typename A::word* p, vec_of<C> shift, vec_of<C> factor, vec_of<C> lowest, vec_of<C>& sum) {
    constexpr int width = simd<C>::width;
    simd<C> x[count];
    for (int k = 0; k < count; ++k) x[k].v = load_lanes(s + k * width) - shift;
    exp2_each<count>(x, factor, lowest);
    for (int k = 0; k < count; ++k) sum += x[k].v;
    if constexpr (A::terms == 1) {
        for (int k = 0; k < count; ++k) store_lanes(p + k * width, x[k].v);
    } else {
        // one instruction rounds two registers to nearest; it takes subnormal numbers for 0, which are nothing beside a sum of at least 1
        for (int k = 0; k < count; k += 2) A::store_narrowed(p + k / 2 * width, x[k].v, x[k + 1].v);
    }
}

// The softmax step of the online algorithm for a tile: p = exp(s - m), m and d move on, and alpha is what the outputs so far are multiplied
// by. p may be s. The order of every sum depends on the places of the keys alone.
template <class A, class C = typename A::compute>
void update_rows(int rows, const key_runs& runs, C unit, const C* s, typename A::word* p, row_states<C>& state, C* alpha) {
    constexpr int width = simd<C>::width;
    using V = vec_of<C>;
    const V factor = V{} + C(double(unit) * 1.4426950408889634), lowest = V{} + LOWEST_EXP2<C> / factor[0];
    for (int r0 = 0; r0 < rows; r0 += width) {
        const int count = std::min(rows - r0, width);
        const C* tile = s + r0 * KEY_BLOCK<C>;
        typename A::word* tile_p = p + r0 * (KEY_BLOCK<C> / A::terms);
        const V before = load_lanes(state.m + r0), m = row_maxima(count, runs, tile, state.m + r0);
        const V shift = m == LOWEST<C> ? V{} : m;
        simd<C> rescale(before - shift);
        exp2_each<1>(&rescale, factor, lowest);
        rescale.v = before == m ? V{} + 1 : rescale.v;
        store_lanes(alpha + r0, rescale.v);
        store_lanes(state.m + r0, m);
        simd<C> sums[width];
        for (int r = 0; r < width; ++r) {
            V sum{};
            if (r < count) {
                const V shift_r = V{} + shift[r];
                for (int i = 0; i < runs.count; ++i) {
                    if (m[r] == -LOWEST<C>) continue;
                    const C* row = tile + r * KEY_BLOCK<C>;
                    typename A::word* row_p = tile_p + r * (KEY_BLOCK<C> / A::terms);
                    int j = runs.start[i];
                    for (; j + 4 * width <= runs.stop[i]; j += 4 * width) exponentials<A, 4>(row + j, row_p + j / A::terms, shift_r, factor, lowest, sum);
                    if (j < runs.stop[i]) exponentials<A, 2>(row + j, row_p + j / A::terms, shift_r, factor, lowest, sum);
                }
            }
            sums[r].v = sum;
        }
        const V total = sum_rows(sums).v;
        for (int r = 0; r < count; ++r) {
            double& d = state.d[r0 + r];
            if (m[r] == -LOWEST<C>) settle_infinite<A>(runs, tile + r * KEY_BLOCK<C>, tile_p + r * (KEY_BLOCK<C> / A::terms), d);
            else d = d * double(rescale.v[r]) + double(total[r]);
        }
    }
}

}  // namespace
