// layout.hpp - from shapes and strides to rows: which axes are reduced, where a row starts, how its elements follow.
//
// The axes of a call are split into two groups, kept and reduced. Inside a group the axes are ordered by the input's strides and neighbours
// that follow each other in memory are merged, for all operands at once. A row is one index of the kept group; its elements are the reduced group
// read in order. Nothing is copied or moved: an operand is a base pointer and one stride per axis.
#pragma once
#include <algorithm>
#include <cstdlib>
#include "blocks.hpp"
#include "convert.hpp"

namespace {

constexpr int MAX_AXES = 64;
constexpr int MAX_COLUMNS = 64;        // of a tile
enum operand { OP_X, OP_OUT, OP_WHERE, OP_WEIGHTS, OP_SCALE, OP_M, OP_REST, OP_SIGN, OP_SECOND, OP_LABEL, OP_GRAD, OPERANDS };

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
    mutable int failed = 0;         // a thread had no memory: nothing was written by it
    double scale = 1;
    ptrdiff_t out_step = 0;         // cumulative: from one element of out to the next
    int initial = 0;                // cumulative: out begins with that of no element
    // Losses and gradients: OP_SECOND is read beside x element by element (probabilities, an incoming gradient, weights), OP_LABEL holds class
    // indices and OP_GRAD the factor of each row.
    int second_code = 0, loss_code = 0, lse_code = 0;
    int in_rows = 0;                // sums that only rows have: columns are gathered row by row
    int has_ignored = 0;
    int64_t ignored = 0;            // the label of rows that do not count
    double hard = 1, uniform = 0;   // the target is hard * label + uniform
    double z_loss = 0, grad = 1;
    double roundoff = 0;            // how far a given lse may be off, relatively

    bool counts(ptrdiff_t r, int64_t* label) const {
        std::memcpy(label, row(OP_LABEL, r), sizeof *label);
        return !has_ignored || *label != ignored;
    }
    double row_grad(ptrdiff_t r) const {
        if (!base[OP_GRAD]) return grad;
        double g;
        std::memcpy(&g, row(OP_GRAD, r), sizeof g);
        return g;
    }
    // Element `index` of row r.
    double element(ptrdiff_t r, ptrdiff_t index) const {
        double x;
        gather_for<double>(x_code)(row(OP_X, r) + reduced.offset(index, OP_X), 0, 1, &x);
        return x;
    }

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
    // Several rows side by side: when there are enough and neighbouring rows are closer in memory than neighbouring elements of one row.
    bool columns() const {
        if (in_rows || base[OP_WEIGHTS] || kept.inner_stride(OP_X) == 0 || reduced.ndim == 0) return false;
        return kept.inner_shape() >= 4 && std::abs(kept.inner_stride(OP_X)) < std::abs(reduced.inner_stride(OP_X));
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
    const double scale = t.row_scale(r);
    ptrdiff_t done = 0;
    each_run(g, start, n, [&](ptrdiff_t at, ptrdiff_t count) {
        C* to = dst + done;
        gather(x + g.offset(at, OP_X), g.inner_stride(OP_X), count, to);
        if (scaled) for (ptrdiff_t i = 0; i < count; ++i) to[i] = C(double(to[i]) * scale);     // one rounding
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

// Elements [start, start + n) of an operand as they are, `hidden` where `where` leaves them out.
template <class C> void gather_operand(const task& t, int op, int code, ptrdiff_t r, ptrdiff_t start, ptrdiff_t n, C* dst, C hidden) {
    const axis_group& g = t.reduced;
    ptrdiff_t done = 0;
    each_run(g, start, n, [&](ptrdiff_t at, ptrdiff_t count) {
        gather_for<C>(code)(t.row(op, r) + g.offset(at, op), g.inner_stride(op), count, dst + done);
        if (t.base[OP_WHERE])
            fill_hidden(dst + done, t.row(OP_WHERE, r) + g.offset(at, OP_WHERE), g.inner_stride(OP_WHERE), count, hidden);
        done += count;
    });
}

// Where rows r .. r + n - 1 of an operand begin.
template <class S> DS_INLINE void row_starts(const task& t, int op, ptrdiff_t r, ptrdiff_t n, S** starts) {
    if (t.kept.ndim == 1) {
        const ptrdiff_t step = t.kept.stride[0][op];
        char* first = t.base[op] + r * step;
        for (ptrdiff_t j = 0; j < n; ++j) starts[j] = (S*)(first + j * step);
    } else {
        for (ptrdiff_t j = 0; j < n; ++j) starts[j] = (S*)t.row(op, r + j);
    }
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

// A tile of columns: rows r .. r + cols - 1 (along the inner kept axis), elements start .. start + n - 1. It lies in the cache in strips of
// one register of columns: element i of column j at [j / width * plane + i * width + j % width]. Strips that stood side by side would
// share the same few sets of the cache.

// Rows of memory further on that are fetched while this one is converted: the strides are too long for the hardware to foresee. Into the second
// level, since rows a power of two apart share a set of the first.
constexpr ptrdiff_t ROWS_AHEAD = 40;

template <class T, class C>
void gather_strips(const char* from, ptrdiff_t cols, ptrdiff_t plane, C* to) {
    constexpr ptrdiff_t w = simd<T>::width;
    ptrdiff_t j = 0;
    for (; j + w <= cols; j += w, to += plane) store_lanes(to, load((const T*)from + j).v);
    if (j < cols) store_lanes(to, load_partial((const T*)from + j, cols - j).v);
}
template <class C> using strips_function = void (*)(const char*, ptrdiff_t, ptrdiff_t, C*);
template <class C> strips_function<C> strips_for(int code) {
    if constexpr (std::is_same<C, double>::value) return code == CODE_F64 ? gather_strips<double, double> : nullptr;
    else switch (code) {
        case CODE_F32: return gather_strips<float, float>;
        case CODE_F16: return gather_strips<f16, float>;
        case CODE_BF16: return gather_strips<bf16, float>;
        default: return nullptr;
    }
}

// What a tile is of: an operand as it is, `hidden` where `where` leaves an element out; x may be scaled.
template <class C> struct tile_source {
    int op, code;
    bool is_scaled;
    C hidden;
};
template <class C>
void gather_tile_of(const task& t, tile_source<C> of, ptrdiff_t r, ptrdiff_t cols, ptrdiff_t start, ptrdiff_t n, ptrdiff_t plane, C* dst) {
    constexpr ptrdiff_t w = simd<C>::width;
    const ptrdiff_t step = t.kept.inner_stride(of.op), scale_step = t.kept.inner_stride(OP_SCALE), where_step = t.kept.inner_stride(OP_WHERE);
    const char* x = t.row(of.op, r);
    const char* where = t.base[OP_WHERE] ? t.row(OP_WHERE, r) : nullptr;
    const char* scales = of.is_scaled && t.base[OP_SCALE] ? t.row(OP_SCALE, r) : nullptr;
    const bool has_scale = of.is_scaled && t.has_scale;
    const ptrdiff_t ahead = t.reduced.ndim == 1 ? ROWS_AHEAD * t.reduced.stride[0][of.op] : 0;
    const ptrdiff_t next = t.cols() <= ROWS_AHEAD ? cols * step : 0;       // few rows of memory: those of the next tile
    const auto strips = step == item_size(of.code) && !where && !scales && !has_scale ? strips_for<C>(of.code) : nullptr;
    const auto gather = gather_for<C>(of.code);
    C line[MAX_COLUMNS];
    for (ptrdiff_t i = 0; i < n; ++i) {
        const char* from = x + t.reduced.offset(start + i, of.op);
        if (const ptrdiff_t far = next ? next : start + i + ROWS_AHEAD < t.cols() ? ahead : 0) {
            const char* line = from + far - uintptr_t(from + far) % 64;
            for (; line < from + far + cols * step; line += 64) __builtin_prefetch(line, 0, 2);
        }
        if (strips) {
            strips(from, cols, plane, dst + i * w);
            continue;
        }
        gather(from, step, cols, line);
        for (ptrdiff_t j = 0; j < cols && (scales || has_scale); ++j) {
            double s = t.scale;
            if (scales) std::memcpy(&s, scales + j * scale_step, sizeof s);
            line[j] = C(double(line[j]) * s);
        }
        if (where) fill_hidden(line, where + t.reduced.offset(start + i, OP_WHERE), where_step, cols, of.hidden);
        for (ptrdiff_t j = cols; j % w; ++j) line[j] = of.hidden;
        for (ptrdiff_t j = 0; j < cols; j += w) store_lanes(dst + j / w * plane + i * w, load_lanes(line + j));
    }
}
// Elements of x, scaled, -inf where they are hidden.
template <class C> void gather_tile(const task& t, ptrdiff_t r, ptrdiff_t cols, ptrdiff_t start, ptrdiff_t n, ptrdiff_t plane, C* dst) {
    gather_tile_of<C>(t, {OP_X, t.x_code, true, -std::numeric_limits<C>::infinity()}, r, cols, start, n, plane, dst);
}

// Outputs of a tile straight to `out`, where its rows lie side by side.
template <int kind, class T, class C>
void write_tile_as(const task& t, ptrdiff_t r, ptrdiff_t cols, ptrdiff_t start, ptrdiff_t n, ptrdiff_t plane, const C* src, const C* c, const C* value) {
    constexpr ptrdiff_t w = simd<T>::width;
    char* out = t.row(OP_OUT, r);
    for (ptrdiff_t i = 0; i < n; ++i) {
        T* to = (T*)(out + t.reduced.offset(start + i, OP_OUT));
        const bool lines = t.past_cache && uintptr_t(to) % (w * sizeof(T)) == 0;
        for (ptrdiff_t j = 0; j < cols; j += w) {
            const simd<T> v = simd<T>(load_lanes(src + j / w * plane + i * w));
            const simd<T> y = output<kind>(v, simd<T>(load_lanes(c + j)), simd<T>(load_lanes(value + j)));
            if (j + w > cols) store_partial(to + j, y, cols - j);
            else if (lines) stream(to + j, y);
            else store(to + j, y);
        }
    }
}
template <int kind, class C>
bool write_tile_kind(const task& t, ptrdiff_t r, ptrdiff_t cols, ptrdiff_t start, ptrdiff_t n, ptrdiff_t plane, const C* src, const C* c, const C* value) {
    if (t.base[OP_WHERE] || t.kept.inner_stride(OP_OUT) != item_size(t.out_code)) return false;
    if constexpr (std::is_same<C, double>::value) {
        if (t.out_code != CODE_F64) return false;
        write_tile_as<kind, double>(t, r, cols, start, n, plane, src, c, value);
    } else {
        switch (t.out_code) {
            case CODE_F32: write_tile_as<kind, float>(t, r, cols, start, n, plane, src, c, value); break;
            case CODE_F16: write_tile_as<kind, f16>(t, r, cols, start, n, plane, src, c, value); break;
            case CODE_BF16: write_tile_as<kind, bf16>(t, r, cols, start, n, plane, src, c, value); break;
            default: return false;
        }
    }
    return true;
}
// False where the tile must go by way of scatter_tile: strides, a mask, a conversion.
template <class C>
bool write_tile(const task& t, ptrdiff_t r, ptrdiff_t cols, ptrdiff_t start, ptrdiff_t n, ptrdiff_t plane, const C* src, int kind, const C* c, const C* value) {
    if (kind == OUT_SCALED) return write_tile_kind<OUT_SCALED>(t, r, cols, start, n, plane, src, c, value);
    if (kind == OUT_EXP) return write_tile_kind<OUT_EXP>(t, r, cols, start, n, plane, src, c, value);
    return write_tile_kind<OUT_LOG>(t, r, cols, start, n, plane, src, c, value);
}
template <class C> void scatter_tile(const task& t, ptrdiff_t r, ptrdiff_t cols, ptrdiff_t start, ptrdiff_t n, ptrdiff_t plane, const C* src, C hidden) {
    constexpr ptrdiff_t w = simd<C>::width;
    const auto scatter = scatter_for<C>(t.out_code);
    char* out = t.row(OP_OUT, r);
    const char* where = t.base[OP_WHERE] ? t.row(OP_WHERE, r) : nullptr;
    C line[MAX_COLUMNS];
    for (ptrdiff_t i = 0; i < n; ++i) {
        for (ptrdiff_t j = 0; j < cols; j += w) store_lanes(line + j, load_lanes(src + j / w * plane + i * w));
        if (where) fill_hidden(line, where + t.reduced.offset(start + i, OP_WHERE), t.kept.inner_stride(OP_WHERE), cols, hidden);
        scatter(line, cols, out + t.reduced.offset(start + i, OP_OUT), t.kept.inner_stride(OP_OUT));
    }
}
// How many columns the first tile is short, so that the others begin where a line of memory does: of `out` if that is streamed, else of x.
DS_INLINE ptrdiff_t tile_shift(const task& t) {
    const int op = t.past_cache ? OP_OUT : OP_X;
    const ptrdiff_t item = item_size(t.past_cache ? t.out_code : t.x_code);
    if (t.kept.inner_stride(op) != item || uintptr_t(t.base[op]) % item) return 0;
    return ptrdiff_t(uintptr_t(t.base[op]) % 64) / item;
}

}  // namespace
