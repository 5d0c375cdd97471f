// gradients.hpp - sums over a row that exponentials have no part in, and the gradients of a row: one exponential and one multiply-add an element.
//
// A row's gradient is one of
//     GRAD_EXP         exp(x - c) a + b                logsumexp; cross-entropy with class indices
//     GRAD_EXP_TIMES   exp(x - c) a t                  logsumexp with weights t; 0 where t is 0
//     GRAD_EXP_PLUS    exp(x - c) a + b + w t          log_softmax (x its result, t the incoming gradient); cross-entropy with probabilities t
//     GRAD_TIMES       x (w t + b)                     softmax (x its result, t the incoming gradient)
// and may take the place of x or of t. Sums follow accumulate.hpp: element i belongs to lane i % width.
#pragma once
#include <algorithm>

#include "blocks.hpp"

namespace {

// Calls block(at, count) for every BLOCK registers of n elements; the last may be shorter.
template <class S, class F> DS_INLINE void each_block(ptrdiff_t n, F&& block) {
    constexpr ptrdiff_t size = BLOCK * simd<S>::width;
    for (ptrdiff_t i = 0; i < n; i += size) block(i, std::min(size, n - i));
}
// The sum of BLOCK registers or less: term(at, count) of `count` elements from `at`, with 0 in the lanes beyond.
template <class S, class F> DS_INLINE block_total<S> block_of(ptrdiff_t from, ptrdiff_t n, F&& term) {
    constexpr ptrdiff_t w = simd<S>::width;
    block_total<S> sum;
    for (ptrdiff_t i = 0; i < n; i += GROUP * w) {
        simd<S> t[GROUP];
        for (ptrdiff_t j = 0; j < GROUP; ++j) {
            const ptrdiff_t at = i + j * w;
            t[j] = at < n ? term(from + at, std::min(w, n - at)) : simd<S>(0.0);
        }
        if (i) sum.add(t);
        else sum = block_total<S>(t);
    }
    return sum;
}
// x where it is there, `fill` in the lanes beyond. T may be another storage type of the same lanes.
template <class S, class T> DS_INLINE simd<S> load_filled(const T* x, ptrdiff_t n, simd<S> fill) {
    constexpr ptrdiff_t w = simd<S>::width;
    if (n == w) return simd<S>(load(x).v);
    typename simd<S>::C lanes[w], others[w];
    store_lanes(lanes, load_partial(x, n).v);
    store_lanes(others, fill.v);
    for (ptrdiff_t i = n; i < w; ++i) lanes[i] = others[i];
    return simd<S>(load_lanes(lanes));
}

// sum (x - k)
template <class S> DS_INLINE void add_differences(const S* x, ptrdiff_t n, simd<S> k, wide<S>& sum) {
    each_block<S>(n, [&](ptrdiff_t from, ptrdiff_t size) {
        sum.add(block_of<S>(from, size, [&](ptrdiff_t at, ptrdiff_t count) { return load_filled<S>(x + at, count, k) - k; }));
    });
}
// What is read beside x: in the storage of x where it lies so, else gathered into compute lanes.
template <class S> struct beside {
    const void* p = nullptr;
    bool gathered = false;
    DS_INLINE beside() {}
    DS_INLINE beside(const void* p, bool gathered) : p(p), gathered(gathered) {}
    template <class F> DS_INLINE void use(F&& with) const {
        if (gathered) with((const typename simd<S>::C*)p);
        else with((const S*)p);
    }
};
// sum t
template <class S> DS_INLINE void add_all(beside<S> beside_x, ptrdiff_t n, wide<S>& sum) {
    beside_x.use([&](auto* t) {
        each_block<S>(n, [&](ptrdiff_t from, ptrdiff_t size) {
            sum.add(block_of<S>(from, size, [&](ptrdiff_t at, ptrdiff_t count) { return load_filled<S>(t + at, count, simd<S>(0.0)); }));
        });
    });
}
// sum t (x - k), where a weight t of 0 counts as nothing, whatever x is
template <class S> DS_INLINE void add_weighted(const S* x, beside<S> beside_x, ptrdiff_t n, simd<S> k, wide<S>& sum) {
    const simd<S> zero = simd<S>(0.0);
    beside_x.use([&](auto* t) {
        each_block<S>(n, [&](ptrdiff_t from, ptrdiff_t size) {
            sum.add(block_of<S>(from, size, [&](ptrdiff_t at, ptrdiff_t count) {
                const simd<S> weight = load_filled<S>(t + at, count, zero);
                return zero_where_equal(weight * (load_filled<S>(x + at, count, k) - k), weight, zero);
            }));
        });
    });
}
// sum t x
template <class S> DS_INLINE void add_products(const S* x, beside<S> beside_x, ptrdiff_t n, wide<S>& sum) {
    const simd<S> zero = simd<S>(0.0);
    beside_x.use([&](auto* t) {
        each_block<S>(n, [&](ptrdiff_t from, ptrdiff_t size) {
            sum.add(block_of<S>(from, size, [&](ptrdiff_t at, ptrdiff_t count) {
                return load_filled<S>(x + at, count, zero) * load_filled<S>(t + at, count, zero);
            }));
        });
    });
}

enum gradient_kind { GRAD_EXP, GRAD_EXP_TIMES, GRAD_EXP_PLUS, GRAD_TIMES };

// What one row's gradients need; `zero`: all of them are 0, whatever the row holds.
struct row_gradient {
    double c = 0, a = 0, b = 0, w = 0;
    bool zero = false;
};

template <class C> struct far_exp;
template <> struct far_exp<float> { static constexpr double half = 44, most = 88.722839; };
template <> struct far_exp<double> { static constexpr double half = 354, most = 709.782712893384; };

// exp of registers that may be far above 0: the logarithm of weights, or of other elements than a row's own, may be far below x.
template <int count, class S> DS_INLINE void exp_anywhere(simd<S>* y) {
    using K = far_exp<typename simd<S>::C>;
    const simd<S> limit = simd<S>(16.0);
    simd<S> largest = limit;
    for (int j = 0; j < count; ++j) largest = vmax(y[j], largest);
    if (__builtin_expect(count_equal(largest, limit) == simd<S>::width, 1)) return exp_each<count>(y);
    for (int j = 0; j < count; ++j) {
        const simd<S> half = y[j] * simd<S>(0.5), capped = pick_less(simd<S>(K::half), half, simd<S>(K::half), half);
        const simd<S> e = exp(pick_less(limit, y[j], capped, y[j]));
        const simd<S> far = pick_less(simd<S>(K::most), y[j], simd<S>(std::numeric_limits<double>::infinity()), e * e);
        y[j] = pick_less(limit, y[j], far, e);
    }
}

template <int kind, int count, class S>
DS_INLINE void gradient_of(simd<S>* x, const simd<S>* t, simd<S> c, simd<S> a, simd<S> b, simd<S> w) {
    const simd<S> zero = simd<S>(0.0);
    if (kind == GRAD_TIMES) {
        for (int j = 0; j < count; ++j) x[j] = x[j] * fma(w, t[j], b);
        return;
    }
    for (int j = 0; j < count; ++j) x[j] = x[j] - c;
    exp_anywhere<count>(x);
    for (int j = 0; j < count; ++j) {
        if (kind == GRAD_EXP) x[j] = fma(x[j], a, b);
        if (kind == GRAD_EXP_TIMES) x[j] = zero_where_equal(x[j] * (a * t[j]), t[j], zero);
        if (kind == GRAD_EXP_PLUS) x[j] = fma(x[j], a, fma(w, t[j], b));
    }
}

template <int kind, class S, class T>
DS_INLINE void write_gradient_kind(S* out, const S* x, const T* t, ptrdiff_t n, const row_gradient& g, bool past_cache) {
    constexpr ptrdiff_t width = simd<S>::width;
    const simd<S> c = simd<S>(g.c), a = simd<S>(g.a), b = simd<S>(g.b), w = simd<S>(g.w), zero = simd<S>(0.0);
    auto part = [&](ptrdiff_t i, ptrdiff_t count) {
        simd<S> v = load_partial(x + i, count), u = zero;
        if (kind != GRAD_EXP) u = load_filled<S>(t + i, count, zero);
        gradient_of<kind, 1>(&v, &u, c, a, b, w);
        store_partial(out + i, v, count);
    };
    ptrdiff_t i = 0;
    bool lines = past_cache && uintptr_t(out) % sizeof(S) == 0;
    if (lines) {
        const ptrdiff_t head = std::min(n, aligned_head(out));
        if (head) part(0, head);
        i = head;
    }
    for (; i + GROUP * width <= n; i += GROUP * width) {
        simd<S> v[GROUP], u[GROUP];
        for (ptrdiff_t at = 0; at < GROUP * width; at += 64 / sizeof(S)) read_ahead(x + i + at);
        for (ptrdiff_t j = 0; j < GROUP; ++j) {
            v[j] = load(x + i + j * width);
            if (kind != GRAD_EXP) u[j] = simd<S>(load(t + i + j * width).v);
        }
        gradient_of<kind, GROUP>(v, u, c, a, b, w);
        for (ptrdiff_t j = 0; j < GROUP; ++j) {
            if (lines) stream(out + i + j * width, v[j]);
            else store(out + i + j * width, v[j]);
        }
    }
    for (; i < n; i += width) {
        if (i + width > n) {
            part(i, n - i);
            continue;
        }
        simd<S> v = load(x + i), u = zero;
        if (kind != GRAD_EXP) u = simd<S>(load(t + i).v);
        gradient_of<kind, 1>(&v, &u, c, a, b, w);
        store(out + i, v);
    }
}
template <class S>
DS_INLINE void write_gradient(int kind, S* out, const S* x, beside<S> beside_x, ptrdiff_t n, const row_gradient& g, bool past_cache) {
    if (g.zero) {
        std::memset((void*)out, 0, size_t(n) * sizeof(S));
        return;
    }
    if (kind == GRAD_EXP) return write_gradient_kind<GRAD_EXP>(out, x, x, n, g, past_cache);
    beside_x.use([&](auto* t) {
        if (kind == GRAD_EXP_TIMES) write_gradient_kind<GRAD_EXP_TIMES>(out, x, t, n, g, past_cache);
        else if (kind == GRAD_EXP_PLUS) write_gradient_kind<GRAD_EXP_PLUS>(out, x, t, n, g, past_cache);
        else write_gradient_kind<GRAD_TIMES>(out, x, t, n, g, past_cache);
    });
}

// ---------------------------------------------------------------- strips of columns: lanes are neighbouring rows, element i of them at i * width

// Adds terms 0 .. n - 1 of every column to one wide sum a lane of terms, in the order of a row.
template <class S, class F> DS_INLINE void strip_add(ptrdiff_t n, wide<S>* sums, F&& term) {
    constexpr ptrdiff_t w = simd<S>::width, size = BLOCK * w;
    for (ptrdiff_t first = 0; first < n; first += size) {
        const ptrdiff_t count = std::min(size, n - first);
        for (ptrdiff_t lane = 0; lane < w && lane < count; ++lane) {
            block_total<S> sum;
            for (ptrdiff_t i = lane; i < count; i += GROUP * w) {
                simd<S> t[GROUP];
                for (ptrdiff_t j = 0; j < GROUP; ++j) t[j] = i + j * w < count ? term(first + i + j * w) : simd<S>(0.0);
                if (i > lane) sum.add(t);
                else sum = block_total<S>(t);
            }
            sums[lane].add(sum);
        }
    }
}
// sum t, or sum t x
template <class S> void strip_sum_beside(bool are_products, lane_buffer<S> x, lane_buffer<S> t, ptrdiff_t n, wide<S>* sums) {
    constexpr ptrdiff_t w = simd<S>::width;
    if (are_products) strip_add<S>(n, sums, [=](ptrdiff_t i) { return x.get(i * w) * t.get(i * w); });
    else strip_add<S>(n, sums, [=](ptrdiff_t i) { return t.get(i * w); });
}

// What the gradients of neighbouring rows need, a lane each.
template <class S> struct lane_gradients {
    typename simd<S>::C c[simd<S>::width], a[simd<S>::width], b[simd<S>::width], w[simd<S>::width], is_zero[simd<S>::width];
    DS_INLINE void set(ptrdiff_t lane, const row_gradient& g) {
        typedef typename simd<S>::C C;
        c[lane] = C(g.c), a[lane] = C(g.a), b[lane] = C(g.b), w[lane] = C(g.w), is_zero[lane] = C(g.zero);
    }
};
// The gradients take the place of x.
template <int kind, class S> DS_INLINE void strip_gradient_kind(lane_buffer<S> x, lane_buffer<S> t, ptrdiff_t n, const lane_gradients<S>& of) {
    constexpr ptrdiff_t width = simd<S>::width;
    const simd<S> c = load_lanes(of.c), a = load_lanes(of.a), b = load_lanes(of.b), w = load_lanes(of.w), none = load_lanes(of.is_zero), one = simd<S>(1.0);
    auto write = [&](auto count, ptrdiff_t i) {
        simd<S> v[count], u[count];
        for (int j = 0; j < count; ++j) {
            v[j] = x.get((i + j) * width);
            u[j] = kind == GRAD_EXP ? v[j] : t.get((i + j) * width);
        }
        gradient_of<kind, count>(v, u, c, a, b, w);
        for (int j = 0; j < count; ++j) x.put((i + j) * width, zero_where_equal(v[j], none, one));
    };
    ptrdiff_t i = 0;
    for (; i + GROUP <= n; i += GROUP) write(std::integral_constant<int, int(GROUP)>{}, i);
    for (; i < n; ++i) write(std::integral_constant<int, 1>{}, i);
}
template <class S> void strip_gradient(int kind, lane_buffer<S> x, lane_buffer<S> t, ptrdiff_t n, const lane_gradients<S>& of) {
    if (kind == GRAD_EXP) return strip_gradient_kind<GRAD_EXP>(x, t, n, of);
    if (kind == GRAD_EXP_TIMES) return strip_gradient_kind<GRAD_EXP_TIMES>(x, t, n, of);
    if (kind == GRAD_EXP_PLUS) return strip_gradient_kind<GRAD_EXP_PLUS>(x, t, n, of);
    return strip_gradient_kind<GRAD_TIMES>(x, t, n, of);
}

}  // namespace
