// layout.hpp - from shapes and strides to rows: which axes are reduced, where a row starts, how its elements follow.
//
// The axes of a call are split into two groups, kept and reduced. Inside a group the axes are ordered by the input's strides and neighbours
// that follow each other in memory are merged, for all operands at once. A row is one index of the kept group; its elements are the reduced group
// read in order. Nothing is copied or moved: an operand is a base pointer and one stride per axis.
#pragma once
#include <algorithm>
#include <cstdlib>
#include "convert.hpp"

namespace {

constexpr int MAX_AXES = 64;
enum operand { OP_X, OP_OUT, OP_WHERE, OP_WEIGHTS, OP_SCALE, OP_M, OP_REST, OP_SIGN, OPERANDS };

struct axis_group {
    int ndim = 0;
    ptrdiff_t size = 1;
    ptrdiff_t shape[MAX_AXES];
    ptrdiff_t stride[MAX_AXES][OPERANDS];

    void add(ptrdiff_t extent, const ptrdiff_t* strides) {
        size *= extent;
        if (extent == 1) return;
        int at = ndim++;
        for (; at > 0 && std::abs(stride[at - 1][OP_X]) < std::abs(strides[OP_X]); --at) {
            shape[at] = shape[at - 1];
            std::memcpy(stride[at], stride[at - 1], sizeof stride[at]);
        }
        shape[at] = extent;
        std::memcpy(stride[at], strides, sizeof stride[at]);
    }
    void merge_neighbours() {
        int top = 0;
        for (int i = 1; i < ndim; ++i) {
            bool follows = true;
            for (int op = 0; op < OPERANDS; ++op) follows &= stride[top][op] == stride[i][op] * shape[i];
            if (follows) shape[top] *= shape[i];
            else shape[++top] = shape[i];
            std::memcpy(stride[top], stride[i], sizeof stride[i]);
        }
        if (ndim) ndim = top + 1;
    }
    // The innermost axis, or one of a single element.
    ptrdiff_t inner_shape() const { return ndim ? shape[ndim - 1] : 1; }
    ptrdiff_t inner_stride(int op) const { return ndim ? stride[ndim - 1][op] : 0; }
    ptrdiff_t offset(ptrdiff_t index, int op) const {
        if (ndim == 1) return index * stride[0][op];
        ptrdiff_t sum = 0;
        for (int i = ndim - 1; i >= 0; --i) {
            sum += index % shape[i] * stride[i][op];
            index /= shape[i];
        }
        return sum;
    }
};

// One call of a kernel: operands, groups, dtypes and options.
struct task {
    char* base[OPERANDS] = {};
    axis_group kept, reduced;
    int x_code = 0, out_code = 0, weights_code = 0;
    int operation = 0;
    int has_out = 0, has_scale = 0, past_cache = 0, direct = 0;
    double scale = 1;

    void set(int op, void* pointer) { base[op] = (char*)pointer; }
    void add_axis(int is_reduced, ptrdiff_t extent, const ptrdiff_t* strides) { (is_reduced ? reduced : kept).add(extent, strides); }
    void finish() {
        kept.merge_neighbours();
        reduced.merge_neighbours();
        direct = lie_ready();
    }

    ptrdiff_t rows() const { return kept.size; }
    ptrdiff_t cols() const { return reduced.size; }
    bool float64() const {
        auto is_wide = [](int code) { return code >= 0 && (code & ~CODE_SWAPPED) != CODE_F32 && (code & ~CODE_SWAPPED) != CODE_F16 && code != CODE_BF16; };
        return is_wide(x_code) || is_wide(out_code) || (base[OP_WEIGHTS] && is_wide(weights_code));
    }
    // Rows that the kernels can read and write where they lie.
    bool lie_ready() const {
        if (x_code > CODE_BF16 || base[OP_WHERE] || base[OP_WEIGHTS] || base[OP_SCALE] || has_scale || reduced.ndim > 1) return false;
        if (out_code >= 0 && out_code != x_code) return false;
        const ptrdiff_t item = item_size(x_code);
        return reduced.ndim == 0 || (reduced.stride[0][OP_X] == item && (!has_out || reduced.stride[0][OP_OUT] == item));
    }
    // Several rows side by side: when neighbouring rows are closer in memory than neighbouring elements of one row.
    bool columns() const {
        if (base[OP_WEIGHTS] || kept.inner_stride(OP_X) == 0 || reduced.ndim == 0) return false;
        return std::abs(kept.inner_stride(OP_X)) < std::abs(reduced.inner_stride(OP_X));
    }
    char* row(int op, ptrdiff_t r) const { return base[op] + kept.offset(r, op); }
    double row_scale(ptrdiff_t r) const {
        if (!base[OP_SCALE]) return scale;
        double s;
        std::memcpy(&s, row(OP_SCALE, r), sizeof s);
        return s;
    }
};

// Elements [start, start + n) of row r as compute lanes, scaled, with -inf where `where` leaves an element out or its weight is 0.
template <class C> void gather_row(const task& t, ptrdiff_t r, ptrdiff_t start, ptrdiff_t n, C* dst, C* weights) {
    const auto gather = gather_for<C>(t.x_code);
    const axis_group& g = t.reduced;
    const char* x = t.row(OP_X, r);
    const bool scaled = t.has_scale || t.base[OP_SCALE];
    const C scale = C(t.row_scale(r));
    ptrdiff_t done = 0;
    each_run(g, start, n, [&](ptrdiff_t at, ptrdiff_t count) {
        C* to = dst + done;
        gather(x + g.offset(at, OP_X), g.inner_stride(OP_X), count, to);
        if (scaled) for (ptrdiff_t i = 0; i < count; ++i) to[i] *= scale;
        if (t.base[OP_WEIGHTS]) {
            C* w = weights + done;
            gather_for<C>(t.weights_code)(t.row(OP_WEIGHTS, r) + g.offset(at, OP_WEIGHTS), g.inner_stride(OP_WEIGHTS), count, w);
            for (ptrdiff_t i = 0; i < count; ++i) to[i] = w[i] == 0 ? -std::numeric_limits<C>::infinity() : to[i];
        }
        if (t.base[OP_WHERE] && t.base[OP_WEIGHTS])
            fill_hidden(weights + done, t.row(OP_WHERE, r) + g.offset(at, OP_WHERE), g.inner_stride(OP_WHERE), count, C(0));
        if (t.base[OP_WHERE])
            fill_hidden(to, t.row(OP_WHERE, r) + g.offset(at, OP_WHERE), g.inner_stride(OP_WHERE), count, -std::numeric_limits<C>::infinity());
        done += count;
    });
}
// The way back: compute lanes to out, `hidden` where `where` leaves an element out. src is overwritten there.
template <class C> void scatter_row(const task& t, ptrdiff_t r, ptrdiff_t start, ptrdiff_t n, C* src, C hidden) {
    const auto scatter = scatter_for<C>(t.out_code);
    const axis_group& g = t.reduced;
    char* out = t.row(OP_OUT, r);
    ptrdiff_t done = 0;
    each_run(g, start, n, [&](ptrdiff_t at, ptrdiff_t count) {
        C* from = src + done;
        if (t.base[OP_WHERE]) fill_hidden(from, t.row(OP_WHERE, r) + g.offset(at, OP_WHERE), g.inner_stride(OP_WHERE), count, hidden);
        scatter(from, count, out + g.offset(at, OP_OUT), g.inner_stride(OP_OUT));
        done += count;
    });
}

// Calls run(first, n) for each stretch of [start, start + count) that stays on the group's inner axis.
template <class F> DS_INLINE void each_run(const axis_group& g, ptrdiff_t start, ptrdiff_t count, F&& run) {
    const ptrdiff_t inner = g.inner_shape();
    while (count > 0) {
        const ptrdiff_t n = std::min(inner - start % inner, count);
        run(start, n);
        start += n;
        count -= n;
    }
}

DS_INLINE void gather_run_of(int code, const char* src, ptrdiff_t stride, ptrdiff_t n, double* dst) { gather_for<double>(code)(src, stride, n, dst); }
DS_INLINE void scatter_run_of(int code, const double* src, ptrdiff_t n, char* dst, ptrdiff_t stride) { scatter_for<double>(code)(src, n, dst, stride); }

// A reduced value of row r.
DS_INLINE void put_value(const task& t, int op, int code, ptrdiff_t r, double value) {
    scatter_for<double>(code)(&value, 1, t.row(op, r), 0);
}
// Reduced values of rows r .. r + n - 1.
inline void put_values(const task& t, int op, int code, ptrdiff_t r, ptrdiff_t n, const double* values) {
    const auto scatter = scatter_for<double>(code);
    each_run(t.kept, r, n, [&](ptrdiff_t at, ptrdiff_t count) {
        scatter(values + (at - r), count, t.row(op, at), t.kept.inner_stride(op));
    });
}
DS_INLINE double get_value(const task& t, int op, ptrdiff_t r) {
    double v;
    std::memcpy(&v, t.row(op, r), sizeof v);
    return v;
}

// A tile of columns: rows r .. r + cols - 1 (along the inner kept axis), elements start .. start + n - 1, stored element by element with
// `pitch` lanes from one to the next.
template <class C> void gather_tile(const task& t, ptrdiff_t r, ptrdiff_t cols, ptrdiff_t start, ptrdiff_t n, ptrdiff_t pitch, C* dst) {
    const auto gather = gather_for<C>(t.x_code);
    const char* x = t.row(OP_X, r);
    const char* where = t.base[OP_WHERE] ? t.row(OP_WHERE, r) : nullptr;
    for (ptrdiff_t i = 0; i < n; ++i) {
        C* to = dst + i * pitch;
        const char* from = x + t.reduced.offset(start + i, OP_X);
        gather(from, t.kept.inner_stride(OP_X), cols, to);
        if (t.base[OP_SCALE]) {
            const char* s = t.row(OP_SCALE, r);
            for (ptrdiff_t j = 0; j < cols; ++j) { double v; std::memcpy(&v, s + j * t.kept.inner_stride(OP_SCALE), 8); to[j] *= C(v); }
        } else if (t.has_scale) {
            for (ptrdiff_t j = 0; j < cols; ++j) to[j] *= C(t.scale);
        }
        if (where) fill_hidden(to, where + t.reduced.offset(start + i, OP_WHERE), t.kept.inner_stride(OP_WHERE), cols, -std::numeric_limits<C>::infinity());
        for (ptrdiff_t j = cols; j < pitch; ++j) to[j] = -std::numeric_limits<C>::infinity();
    }
}
template <class C> void scatter_tile(const task& t, ptrdiff_t r, ptrdiff_t cols, ptrdiff_t start, ptrdiff_t n, ptrdiff_t pitch, C* src, C hidden) {
    const auto scatter = scatter_for<C>(t.out_code);
    char* out = t.row(OP_OUT, r);
    const char* where = t.base[OP_WHERE] ? t.row(OP_WHERE, r) : nullptr;
    for (ptrdiff_t i = 0; i < n; ++i) {
        C* from = src + i * pitch;
        if (where) fill_hidden(from, where + t.reduced.offset(start + i, OP_WHERE), t.kept.inner_stride(OP_WHERE), cols, hidden);
        scatter(from, cols, out + t.reduced.offset(start + i, OP_OUT), t.kept.inner_stride(OP_OUT));
    }
}

}  // namespace
