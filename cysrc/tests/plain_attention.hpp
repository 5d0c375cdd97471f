// plain_attention.hpp - attention by a loop over all pairs of query and key, in a wider type, and operands in memory of exactly their size.
#pragma once
#include "check.hpp"
#include "runs.hpp"
#include "schedule.hpp"

namespace {

enum memory_order { IN_ORDER, HEADS_INSIDE, BACKWARDS, UNALIGNED, ORDERS };

// A 4-d array (batch or page, head, row, element): strides, bytes of its own and no others, and its elements as numbers.
struct tensor {
    ptrdiff_t shape[4], stride[4];
    int code;
    exact_memory memory;
    char* base;
    std::vector<double> values;

    static ptrdiff_t item_stride(memory_order order, int code) { return order == BACKWARDS ? -2 * item_size(code) : item_size(code); }
    static size_t bytes(const ptrdiff_t (&n)[4], memory_order order, int code) {
        size_t total = size_t(item_size(code)) * (order == BACKWARDS ? 2 : 1);
        for (ptrdiff_t extent : n) total *= size_t(extent);
        if (total && order == BACKWARDS) total -= size_t(item_size(code));      // no gap after the last element
        return total + (order == UNALIGNED ? 2 : 0);
    }
    tensor(std::initializer_list<ptrdiff_t> extents, memory_order order, int dtype) : code(dtype), memory(size_of(extents, order, dtype)) {
        std::copy(extents.begin(), extents.end(), shape);
        const int inner[4] = {3, order == HEADS_INSIDE ? 1 : 2, order == HEADS_INSIDE ? 2 : 1, 0};
        ptrdiff_t step = item_stride(order, code);
        for (int axis : inner) {
            stride[axis] = step;
            step *= shape[axis];
        }
        base = memory.data() + (order == UNALIGNED ? 1 : order == BACKWARDS && memory.size() ? ptrdiff_t(memory.size()) - item_size(code) : 0);
        values.resize(size_t(shape[0] * shape[1] * shape[2] * shape[3]));
        std::memset(memory.data(), 0x5a, memory.size());
    }
    static size_t size_of(std::initializer_list<ptrdiff_t> extents, memory_order order, int dtype) {
        ptrdiff_t n[4];
        std::copy(extents.begin(), extents.end(), n);
        return bytes(n, order, dtype);
    }
    char* at(ptrdiff_t a, ptrdiff_t b, ptrdiff_t c, ptrdiff_t d) const { return base + a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]; }
    double get(ptrdiff_t a, ptrdiff_t b, ptrdiff_t c, ptrdiff_t d) const {
        return values[size_t(((a % shape[0] * shape[1] + b % shape[1]) * shape[2] + c % shape[2]) * shape[3] + d % shape[3])];     // an extent of 1 repeats
    }
    // Each element from make(), rounded to the dtype; read() takes what is in memory for the values.
    template <class F> void fill(F make) {
        each([&](char* p, double&) {
            const double x = make();
            char bytes[8];
            switch (code & ~CODE_SWAPPED) {
                case CODE_F32: { const float y = float(x); std::memcpy(bytes, &y, 4); break; }
                case CODE_F64: std::memcpy(bytes, &x, 8); break;
                case CODE_F16: { const f16 y = narrowed<f16>(float(x)); std::memcpy(bytes, &y, 2); break; }
                case CODE_BF16: { const bf16 y = narrowed<bf16>(float(x)); std::memcpy(bytes, &y, 2); break; }
                default: bytes[0] = char(int(x));
            }
            const ptrdiff_t n = item_size(code);
            for (ptrdiff_t i = 0; i < n; ++i) p[i] = bytes[code & CODE_SWAPPED ? n - 1 - i : i];
        });
        read();
    }
    void read() { each([&](char* p, double& value) { value = value_by_code<double>(code, p); }); }
    template <class F> void each(F f) {
        size_t n = 0;
        for (ptrdiff_t a = 0; a < shape[0]; ++a)
            for (ptrdiff_t b = 0; b < shape[1]; ++b)
                for (ptrdiff_t c = 0; c < shape[2]; ++c)
                    for (ptrdiff_t d = 0; d < shape[3]; ++d) f(at(a, b, c, d), values[n++]);
    }
    // A byte that belongs to no element was written. The elements are used up.
    bool wrote_outside() {
        each([&](char* p, double&) { std::memset(p, 0x5a, size_t(item_size(code))); });
        return std::count(memory.data(), memory.data() + memory.size(), char(0x5a)) != ptrdiff_t(memory.size());
    }
};

// What one row of one head comes to, and how far a computation in C may be off.
struct plain_row {
    std::vector<double> out, off;
    double m, d, lse, lse_off;
};

// One call in logical terms. `page` is empty, or the pages of all sequences; starts are empty but for sequences one after the other.
struct plain_attention {
    const tensor *q, *k, *v, *mask = nullptr, *bias = nullptr, *block_mask = nullptr;
    std::vector<int64_t> lengths, offsets, q_starts, k_starts, page;
    std::vector<double> sinks, slopes;
    ptrdiff_t sequences, heads_k, group, queries, keys, pages_each = 0, page_size = 0, block_q = 0, block_k = 0;
    double scale = 1, softcap = 0;
    int64_t left = -1, right = -1;

    ptrdiff_t queries_of(ptrdiff_t s) const { return q_starts.empty() ? queries : ptrdiff_t(q_starts[size_t(s) + 1] - q_starts[size_t(s)]); }
    ptrdiff_t keys_of(ptrdiff_t s) const {
        const ptrdiff_t all = k_starts.empty() ? keys : ptrdiff_t(k_starts[size_t(s) + 1] - k_starts[size_t(s)]);
        return lengths.empty() ? all : std::min<ptrdiff_t>(all, lengths[size_t(s)]);
    }
    // The place of a sequence's row in a tensor that has one a query: batch index and row.
    std::pair<ptrdiff_t, ptrdiff_t> row(ptrdiff_t s, ptrdiff_t i) const {
        return q_starts.empty() ? std::pair<ptrdiff_t, ptrdiff_t>(s, i) : std::pair<ptrdiff_t, ptrdiff_t>(0, q_starts[size_t(s)] + i);
    }
    double key(const tensor& x, ptrdiff_t s, ptrdiff_t h, ptrdiff_t j, ptrdiff_t e) const {
        if (!page.empty()) return x.get(page[size_t(s * pages_each + j / page_size)], h, j % page_size, e);
        return k_starts.empty() ? x.get(s, h, j, e) : x.get(0, h, k_starts[size_t(s)] + j, e);
    }
    bool visible(ptrdiff_t s, ptrdiff_t h, ptrdiff_t i, ptrdiff_t j) const {
        const auto at = row(s, i);
        const ptrdiff_t position = i + (offsets.empty() ? 0 : offsets[size_t(s)]);
        return (left < 0 || j >= position - left) && (right < 0 || j <= position + right) && (!mask || mask->get(at.first, h, at.second, j) != 0) &&
               (!block_mask || block_mask->get(s, h, i / block_q, j / block_k) != 0);
    }
    // Score and a bound of its rounding. `eps` is the unit of the arithmetic.
    template <class W> std::pair<W, double> score(ptrdiff_t s, ptrdiff_t h, ptrdiff_t i, ptrdiff_t j, double eps) const {
        const auto at = row(s, i);
        const ptrdiff_t dim = q->shape[3], position = i + (offsets.empty() ? 0 : offsets[size_t(s)]);
        W x = 0;
        double size = 0;
        for (ptrdiff_t e = 0; e < dim; ++e) {
            const W term = W(q->get(at.first, h, at.second, e)) * W(key(*k, s, h / group, j, e));
            x += term;
            size += std::fabs(double(term));
        }
        x *= W(scale);
        double off = (double(dim) + 4) * eps * size * std::fabs(scale);
        if (softcap != 0) {
            x = W(softcap) * std::tanh(x / W(softcap));
            off += 4 * eps * std::fabs(double(x));
        }
        if (bias) {
            const double b = bias->get(at.first, h, at.second, j);
            off += 2 * eps * (std::fabs(double(x)) + (std::isfinite(b) ? std::fabs(b) : 0));
            x = b == -INF ? W(-INF) : x + W(b);
        }
        if (!slopes.empty()) {
            const W slope = W(slopes[size_t(s * heads_k * group + h)]) * W(std::abs(position - j));
            off += 4 * eps * (std::fabs(double(slope)) + std::fabs(double(x)));
            x -= slope;
        }
        return {x, off};
    }
    template <class W> plain_row answer(ptrdiff_t s, ptrdiff_t h, ptrdiff_t i, double eps, double weight_eps) const {
        std::vector<std::pair<ptrdiff_t, W>> seen;
        const ptrdiff_t keys_here = keys_of(s), dim_v = v->shape[3];
        bool nan = false;
        W m = -INF;
        double off = 0;
        for (ptrdiff_t j = 0; j < keys_here; ++j) {
            if (!visible(s, h, i, j)) continue;
            const auto [x, x_off] = score<W>(s, h, i, j, eps);
            if (x == W(-INF)) continue;
            nan |= x != x;
            seen.push_back({j, x});
            m = x > m ? x : m;
            off = x_off > off ? x_off : off;
        }
        plain_row y{std::vector<double>(size_t(dim_v), 0.0), std::vector<double>(size_t(dim_v), 0.0), double(m), 0, -INF, 0};
        W d = 0;
        for (auto& [j, x] : seen) d += x = std::exp(x - m);
        const W sink = sinks.empty() ? W(-INF) : W(sinks[size_t(h)]), top = sink > m ? sink : m;
        y.d = double(d);
        const W whole = seen.empty() && sink == W(-INF) ? 0 : (seen.empty() ? 0 : d * std::exp(m - top)) + std::exp(sink - top);
        y.lse = nan ? NAN : whole == 0 ? -INF : double(top + std::log(whole));
        // m and s move together by at most `off` each; the sums have two dozen roundings in a row and an exponential each
        const double relative = 2 * off + (40 + double(keys_here) / 8) * eps + weight_eps;
        y.lse_off = relative + 2 * eps * (std::fabs(y.lse) + std::fabs(y.m));
        if (nan || m == W(INF) || sink == W(INF)) {
            y.d = nan ? NAN : m == W(INF) ? INF : y.d;
            y.lse = nan ? NAN : INF;
        }
        if (nan || m == W(INF)) y.out.assign(size_t(dim_v), NAN);
        else if (!seen.empty())
            for (ptrdiff_t e = 0; e < dim_v; ++e) {
                W sum = 0, size = 0;
                for (const auto& [j, p] : seen) {
                    const W x = W(key(*v, s, h / group, j, e));
                    sum += std::isfinite(x) ? p * x : x;
                    size += std::isfinite(x) ? p * std::fabs(x) : 0;
                }
                y.out[size_t(e)] = double(sum);
                y.off[size_t(e)] = double(size) * relative;
            }
        return y;
    }
    // Divided by the sum, sinks included.
    static void normalize(plain_row& y) {
        if (y.lse == -INF || y.d == 0) return;
        for (size_t e = 0; e < y.out.size(); ++e) {
            const double by = std::exp(y.lse - y.m);
            y.out[e] /= by;
            y.off[e] = y.off[e] / by + std::fabs(std::isfinite(y.out[e]) ? y.out[e] : 0) * y.lse_off;
        }
    }
};

}  // namespace
