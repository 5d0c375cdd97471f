// topk.hpp - what softmax_topk makes of a row's statistics and its k largest elements.
//
// The order is that of x itself: with a scale, rows are gathered twice, as keys (x, or -x under a negative scale) and as lanes (scale·x, rounded).
#pragma once
#include <cmath>
#include "elementary.hpp"
#include "select.hpp"

namespace {

// The operands of a task that softmax_topk and sample use in their own way.
constexpr int OP_INDICES = OP_REST, OP_LSE = OP_M, OP_OPTIONS = OP_M;

// Elements [start, start + n) of row r without a scale; -inf where `where` hides one. Of `hidden`, if given, 1 where it does.
template <class C> void gather_plain(const task& t, ptrdiff_t r, ptrdiff_t start, ptrdiff_t n, C* dst, uint8_t* hidden) {
    const auto gather = gather_for<C>(t.x_code);
    const axis_group& g = t.reduced;
    ptrdiff_t done = 0;
    each_run(g, start, n, [&](ptrdiff_t at, ptrdiff_t count) {
        gather(t.row(OP_X, r) + g.offset(at, OP_X), g.inner_stride(OP_X), count, dst + done);
        if (t.base[OP_WHERE]) {
            const char* where = t.row(OP_WHERE, r) + g.offset(at, OP_WHERE);
            const ptrdiff_t step = g.inner_stride(OP_WHERE);
            fill_hidden(dst + done, where, step, count, -std::numeric_limits<C>::infinity());
            if (hidden) for (ptrdiff_t i = 0; i < count; ++i) hidden[done + i] = !where[i * step];
        } else if (hidden) {
            std::memset(hidden + done, 0, size_t(count));
        }
        done += count;
    });
}
// x in the order that counts under a scale; NaN where scale·x is.
template <class C> DS_INLINE C key_of(C x, double scale) {
    const C product = C(double(x) * scale);
    if (product != product) return product;
    return scale > 0 ? x : scale < 0 ? -x : C(0);
}
template <class C> void gather_keys(const task& t, ptrdiff_t r, ptrdiff_t start, ptrdiff_t n, C* keys) {
    constexpr C lowest = -std::numeric_limits<C>::infinity();
    uint8_t hidden[1024];
    const double scale = t.row_scale(r);
    for (ptrdiff_t i = 0; i < n; i += 1024) {
        const ptrdiff_t count = std::min(n - i, ptrdiff_t(1024));
        gather_plain(t, r, start + i, count, keys + i, hidden);
        for (ptrdiff_t j = 0; j < count; ++j) keys[i + j] = hidden[j] ? lowest : key_of(keys[i + j], scale);
    }
}

// What a row's values need.
struct topk_row {
    double m, d;
    bool is_nan;
};

// Rank i of row r.
struct topk_place {
    const task& t;
    char *out, *indices;
    ptrdiff_t out_step, index_step;
    topk_place(const task& t, ptrdiff_t r, ptrdiff_t out_step, ptrdiff_t index_step)
        : t(t), out(t.row(OP_OUT, r)), indices(t.row(OP_INDICES, r)), out_step(out_step), index_step(index_step) {}
    void put(ptrdiff_t i, ptrdiff_t n, const double* values, const ptrdiff_t* at) const {
        scatter_for<double>(t.out_code)(values, n, out + i * out_step, out_step);
        for (ptrdiff_t j = 0; j < n; ++j) {
            const int64_t index = at[j];
            std::memcpy(indices + (i + j) * index_step, &index, sizeof index);
        }
    }
    void put_one(ptrdiff_t i, double value, ptrdiff_t at) const { put(i, 1, &value, &at); }
};

// The ranks that the elements above -inf leave free: NaN goes before them, -inf and then hidden elements after them.
// pass 0 looks for NaN, 1 for -inf, 2 for what is hidden; returns the next free rank.
template <class C> ptrdiff_t fill_ranks(const task& t, ptrdiff_t r, const topk_place& place, int pass, ptrdiff_t i, ptrdiff_t k, double value) {
    C x[512];
    uint8_t hidden[512];
    const double scale = t.row_scale(r);
    for (ptrdiff_t start = 0; start < t.cols() && i < k; start += 512) {
        const ptrdiff_t n = std::min(t.cols() - start, ptrdiff_t(512));
        gather_plain(t, r, start, n, x, hidden);
        for (ptrdiff_t j = 0; j < n && i < k; ++j) {
            const C key = key_of(x[j], scale);
            const int kind = hidden[j] ? 2 : key != key ? 0 : key == -std::numeric_limits<C>::infinity() ? 1 : 3;
            if (kind == pass) place.put_one(i++, value, start + j);
        }
    }
    return i;
}

// The largest elements of rows that lie as S, and their way to the outputs.
template <class S> struct topk_list : selector<typename simd<S>::C> {
    using C = typename simd<S>::C;
    using base = selector<C>;
    topk_list() {}
    topk_list(void* memory, ptrdiff_t k, ptrdiff_t n) : base(memory, k, n) {}

    static ptrdiff_t needs(ptrdiff_t k, ptrdiff_t n) { return ptrdiff_t(base::bytes(k, n)); }
    void scan_row(const S* x, ptrdiff_t n, lane_buffer<S> tops, ptrdiff_t first) { this->scan(x, n, tops.p, first); }
    void store_list(char* keys, ptrdiff_t* indices) const {
        std::memcpy(keys, this->key, size_t(this->count) * sizeof(C));
        std::memcpy(indices, this->index, size_t(this->count) * sizeof *indices);
    }
    void offer_list(const char* keys, const ptrdiff_t* indices, ptrdiff_t n) {
        for (ptrdiff_t i = 0; i < n; ++i) this->offer_one(((const C*)keys)[i], indices[i]);
    }

    // All ranks of row r, given its elements above -inf in order.
    void put(const task& t, ptrdiff_t r, ptrdiff_t out_step, ptrdiff_t index_step, const topk_row& row) const {
        constexpr ptrdiff_t w = simd<double>::width, together = 8 * w;
        const topk_place place(t, r, out_step, index_step);
        const bool undefined = row.is_nan || row.m - row.m != 0;
        const double nan = std::numeric_limits<double>::quiet_NaN(), scale = std::abs(t.row_scale(r));
        const ptrdiff_t k = this->k;
        ptrdiff_t at = row.is_nan ? fill_ranks<C>(t, r, place, 0, 0, k, nan) : 0;
        double y[together], before = 1;
        for (ptrdiff_t i = 0; i < this->count && at < k; i += together) {
            const ptrdiff_t n = std::min(std::min(this->count - i, k - at), together);
            for (ptrdiff_t j = 0; j < n; ++j) y[j] = double(C(double(this->key[i + j]) * scale)) - row.m;
            for (ptrdiff_t j = n; j % w; ++j) y[j] = 0;
            for (ptrdiff_t j = 0; j < n; j += w) store(y + j, exp(load(y + j)) / simd<double>(row.d));
            // exp is within its bound, but neighbours may change places
            for (ptrdiff_t j = 0; j < n; ++j) before = y[j] = undefined ? nan : std::min(before, y[j]);
            place.put(at, n, y, this->index + i);
            at += n;
        }
        if (at < k) at = fill_ranks<C>(t, r, place, 1, at, k, undefined ? nan : 0);
        if (at < k) fill_ranks<C>(t, r, place, 2, at, k, 0);
    }
};

}  // namespace
