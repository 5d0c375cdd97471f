// blocks.hpp - the micro-kernels: what happens to BLOCK registers of a row at a time.
//
// Sums leave out the elements equal to the maximum and count them instead: sum exp(x - m) = count + rest, and a rest far below
// one ulp of 1 survives (logsumexp([0, -40]) is 4.2e-18, not 0).
#pragma once
#include "accumulate.hpp"
#include "elementary.hpp"
#include "runtime.hpp"

namespace {

// Compute lanes kept between two passes over a row.
template <class S> struct lane_buffer {
    typename simd<S>::C* p;
    DS_INLINE lane_buffer() : p(nullptr) {}
    DS_INLINE lane_buffer(void* memory) : p((typename simd<S>::C*)memory) {}
    DS_INLINE simd<S> get(ptrdiff_t i) const { return load_lanes(p + i); }
    DS_INLINE void put(ptrdiff_t i, simd<S> x) const { store_lanes(p + i, x.v); }
    DS_INLINE lane_buffer at(ptrdiff_t i) const { return lane_buffer(p + i); }
    DS_INLINE void* memory() const { return p; }
};

// ---------------------------------------------------------------- one row: lanes are consecutive elements

template <class S> DS_INLINE simd<S> block_max(const S* x) {
    constexpr ptrdiff_t w = simd<S>::width;
    simd<S> m[GROUP];
    for (ptrdiff_t j = 0; j < GROUP; ++j) m[j] = vmax(load(x + j * w), simd<S>(-std::numeric_limits<double>::infinity()));
    for (ptrdiff_t i = GROUP; i < BLOCK; i += GROUP)
        for (ptrdiff_t j = 0; j < GROUP; ++j) m[j] = vmax(load(x + (i + j) * w), m[j]);
    return vmax(vmax(m[0], m[1]), vmax(m[2], m[3]));
}

// One register of elements: exp(x - c), kept if asked; without the maxima, which are counted.
template <bool tied, bool keep, class S>
DS_INLINE simd<S> term(simd<S> x, simd<S> m, simd<S> c, lane_buffer<S> e, ptrdiff_t i, ptrdiff_t& count) {
    const simd<S> y = exp(x - c);
    if (keep) e.put(i, y);
    if (!tied) return y;
    count += count_equal(x, m);
    return zero_where_equal(y, x, m);
}

template <bool tied, bool keep, class S>
DS_INLINE simd<S> block_terms(const S* x, simd<S> m, simd<S> c, lane_buffer<S> e, ptrdiff_t ahead, ptrdiff_t& count) {
    constexpr ptrdiff_t w = simd<S>::width;
    simd<S> sum;
    for (ptrdiff_t i = 0; i < BLOCK; i += GROUP) {
        simd<S> t[GROUP];
        for (ptrdiff_t j = 0; j < GROUP; ++j) {
            prefetch((const char*)(x + (i + j) * w) + ahead);
            t[j] = term<tied, keep>(load(x + (i + j) * w), m, c, e, (i + j) * w, count);
        }
        const simd<S> group = (t[0] + t[1]) + (t[2] + t[3]);
        sum = i ? sum + group : group;
    }
    return sum;
}
// A whole block. `tied`: the block holds a maximum of the row. `ahead`: how many bytes further on to fetch memory for what comes next.
template <class S>
DS_INLINE simd<S> block_sum(const S* x, simd<S> m, simd<S> c, lane_buffer<S> e, bool tied, bool keep, ptrdiff_t ahead, ptrdiff_t& count) {
    if (tied) return keep ? block_terms<true, true>(x, m, c, e, ahead, count) : block_terms<true, false>(x, m, c, e, ahead, count);
    return keep ? block_terms<false, true>(x, m, c, e, ahead, count) : block_terms<false, false>(x, m, c, e, ahead, count);
}
// The last n < BLOCK * width elements: the same terms in the same order, those that are not there being 0.
template <bool keep, class S>
DS_INLINE simd<S> part_terms(const S* x, ptrdiff_t n, simd<S> m, simd<S> c, lane_buffer<S> e, ptrdiff_t& count) {
    constexpr ptrdiff_t w = simd<S>::width;
    simd<S> sum = simd<S>(0.0);
    for (ptrdiff_t i = 0; i < n; i += GROUP * w) {
        simd<S> t[GROUP];
        for (ptrdiff_t j = 0; j < GROUP; ++j) {
            const ptrdiff_t at = i + j * w;
            if (at + w <= n) t[j] = term<true, keep>(load(x + at), m, c, e, at, count);
            else if (at < n) t[j] = term<true, keep>(load_partial(x + at, n - at), m, c, e, at, count);
            else t[j] = simd<S>(0.0);
        }
        const simd<S> group = (t[0] + t[1]) + (t[2] + t[3]);
        sum = i ? sum + group : group;
    }
    return sum;
}
template <class S>
DS_INLINE simd<S> part_sum(const S* x, ptrdiff_t n, simd<S> m, simd<S> c, lane_buffer<S> e, bool keep, ptrdiff_t& count) {
    return keep ? part_terms<true>(x, n, m, c, e, count) : part_terms<false>(x, n, m, c, e, count);
}

// What a softmax function makes of an element or of its kept exponential.
enum output_kind { OUT_SCALED, OUT_EXP, OUT_LOG };
template <int kind, class S> DS_INLINE simd<S> output(simd<S> v, simd<S> c, simd<S> s) {
    if (kind == OUT_SCALED) return v * s;                 // v = exp(x - c)
    if (kind == OUT_EXP) return exp(v - c) * s;
    return (v - c) - s;
}
template <class S> DS_INLINE simd<S> output_of(int kind, simd<S> v, simd<S> c, simd<S> s) {
    if (kind == OUT_SCALED) return output<OUT_SCALED>(v, c, s);
    return kind == OUT_EXP ? output<OUT_EXP>(v, c, s) : output<OUT_LOG>(v, c, s);
}
template <int kind, class S, class Get, class GetPart>
DS_INLINE void write_run(S* out, ptrdiff_t n, simd<S> c, simd<S> s, bool past_cache, Get get, GetPart get_part) {
    constexpr ptrdiff_t w = simd<S>::width;
    ptrdiff_t i = 0;
    if (past_cache && uintptr_t(out) % sizeof(S) == 0) {
        const ptrdiff_t line = w * sizeof(S);
        const ptrdiff_t head = ptrdiff_t((line - uintptr_t(out) % line) % line / sizeof(S));
        if (head && head <= n) { store_partial(out, output<kind>(get_part(0, head), c, s), head); i = head; }
        if (head <= n) for (; i + w <= n; i += w) stream(out + i, output<kind>(get(i), c, s));
    }
    for (; i + w <= n; i += w) store(out + i, output<kind>(get(i), c, s));
    if (i < n) store_partial(out + i, output<kind>(get_part(i, n - i), c, s), n - i);
}
template <class S> DS_INLINE void write_scaled(S* out, lane_buffer<S> e, ptrdiff_t n, simd<S> s, bool past_cache) {
    write_run<OUT_SCALED>(out, n, s, s, past_cache, [=](ptrdiff_t i) { return e.get(i); }, [=](ptrdiff_t i, ptrdiff_t) { return e.get(i); });
}
template <class S> DS_INLINE void write_row(S* out, const S* x, ptrdiff_t n, simd<S> c, simd<S> s, bool is_log, bool past_cache) {
    auto get = [=](ptrdiff_t i) { return load(x + i); };
    auto get_part = [=](ptrdiff_t i, ptrdiff_t k) { return load_partial(x + i, k); };
    if (is_log) write_run<OUT_LOG>(out, n, c, s, past_cache, get, get_part);
    else write_run<OUT_EXP>(out, n, c, s, past_cache, get, get_part);
}

// ---------------------------------------------------------------- a strip of columns: lanes are neighbouring rows

// Adds elements 0 .. n - 1 (n <= BLOCK * width) of `width` columns to one wide sum a lane of terms. tile holds the elements of the columns,
// `pitch` lanes from one to the next; with keep, their exponentials take their place. Elements `step` apart are consecutive registers of a lane.
template <bool keep, class S>
DS_INLINE void strip_terms(lane_buffer<S> tile, ptrdiff_t n, ptrdiff_t pitch, simd<S> m, simd<S> c, wide<S>* sums, simd<S>& count) {
    constexpr ptrdiff_t w = simd<S>::width;
    for (ptrdiff_t lane = 0; lane < w && lane < n; ++lane) {
        simd<S> sum;
        for (ptrdiff_t i = lane; i < n; i += GROUP * w) {
            simd<S> t[GROUP];
            for (ptrdiff_t j = 0; j < GROUP; ++j) {
                const ptrdiff_t at = i + j * w;
                if (at >= n) { t[j] = simd<S>(0.0); continue; }
                const simd<S> x = tile.get(at * pitch), y = exp(x - c);
                if (keep) tile.put(at * pitch, y);
                t[j] = zero_where_equal(y, x, m);
                count = count + pick_equal(x, m, simd<S>(1.0), simd<S>(0.0));
            }
            const simd<S> group = (t[0] + t[1]) + (t[2] + t[3]);
            sum = i == lane ? group : sum + group;
        }
        sums[lane].add(sum);
    }
}
template <class S>
DS_INLINE void strip_sum(lane_buffer<S> tile, ptrdiff_t n, ptrdiff_t pitch, simd<S> m, simd<S> c, bool keep, wide<S>* sums, simd<S>& count) {
    if (keep) strip_terms<true>(tile, n, pitch, m, c, sums, count);
    else strip_terms<false>(tile, n, pitch, m, c, sums, count);
}
// Folds the lanes of terms as wide::total folds them in a row.
template <class S> DS_INLINE void strip_totals(wide<S>* sums, double* totals) {
    for (ptrdiff_t half = simd<S>::width / 2; half > 0; half /= 2)
        for (ptrdiff_t lane = 0; lane < half; ++lane) sums[lane].join(sums[lane + half]);
    sums[0].store(totals);
}

}  // namespace
