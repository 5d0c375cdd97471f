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

// Memory is asked for this far ahead of its first reading, into the second-level cache: nearer, it comes too late; into the first level, the few
// lines that may be on their way at a time would limit the rate.
constexpr ptrdiff_t READ_AHEAD = 8192;
DS_INLINE void read_ahead(const void* p) { __builtin_prefetch((const char*)p + READ_AHEAD, 0, 2); }

template <class S> DS_INLINE simd<S> block_max(const S* x) {
    constexpr ptrdiff_t w = simd<S>::width;
    simd<S> m[GROUP];
    for (ptrdiff_t at = 0; at < BLOCK * w; at += 64 / sizeof(S)) read_ahead(x + at);
    for (ptrdiff_t j = 0; j < GROUP; ++j) m[j] = vmax(load(x + j * w), simd<S>(-std::numeric_limits<double>::infinity()));
    for (ptrdiff_t i = GROUP; i < BLOCK; i += GROUP)
        for (ptrdiff_t j = 0; j < GROUP; ++j) m[j] = vmax(load(x + (i + j) * w), m[j]);
    return vmax(vmax(m[0], m[1]), vmax(m[2], m[3]));
}

// exp(x - c) of `registers` registers, kept if asked. Maxima become 0 and are counted if there may be any.
template <int registers, bool tied, bool keep, class S>
DS_INLINE void terms(const simd<S>* x, simd<S> m, simd<S> c, simd<S>* y, lane_buffer<S> e, ptrdiff_t& count) {
    for (int j = 0; j < registers; ++j) y[j] = x[j] - c;
    exp_each<registers>(y);
    for (int j = 0; j < registers; ++j) {
        if (keep) e.put(j * simd<S>::width, y[j]);
        if (!tied) continue;
        count += count_equal(x[j], m);
        y[j] = zero_where_equal(y[j], x[j], m);
    }
}

template <bool tied, bool keep, class S>
DS_INLINE block_total<S> block_terms(const S* x, simd<S> m, simd<S> c, lane_buffer<S> e, ptrdiff_t& count, const S* next, simd<S>& next_max) {
    constexpr ptrdiff_t w = simd<S>::width;
    block_total<S> sum;
    simd<S> largest = simd<S>(-std::numeric_limits<double>::infinity());
    for (ptrdiff_t i = 0; i < BLOCK; i += GROUP) {
        simd<S> v[GROUP], t[GROUP];
        for (ptrdiff_t at = 0; at < GROUP * w; at += 64 / sizeof(S)) read_ahead(next + i * w + at);
        for (ptrdiff_t j = 0; j < GROUP; ++j) v[j] = load(x + (i + j) * w);
        for (ptrdiff_t j = 0; j < GROUP; ++j) largest = vmax(load(next + (i + j) * w), largest);
        terms<GROUP, tied, keep>(v, m, c, t, e.at(i * w), count);
        if (i) sum.add(t);
        else sum = block_total<S>(t);
    }
    next_max = largest;
    return sum;
}
// A whole block of x, and the maximum of a block of what comes next: its reading fills the time of this one's arithmetic. `tied`: the block
// holds a maximum of the row.
template <class S>
DS_INLINE block_total<S> block_sum(const S* x, simd<S> m, simd<S> c, lane_buffer<S> e, bool tied, bool keep, ptrdiff_t& count, const S* next, simd<S>& next_max) {
    if (tied) return keep ? block_terms<true, true>(x, m, c, e, count, next, next_max) : block_terms<true, false>(x, m, c, e, count, next, next_max);
    return keep ? block_terms<false, true>(x, m, c, e, count, next, next_max) : block_terms<false, false>(x, m, c, e, count, next, next_max);
}
// The last n < BLOCK * width elements: the same terms in the same order, those that are not there being 0.
template <bool tied, bool keep, class S>
DS_INLINE block_total<S> part_terms(const S* x, ptrdiff_t n, simd<S> m, simd<S> c, lane_buffer<S> e, ptrdiff_t& count) {
    constexpr ptrdiff_t w = simd<S>::width;
    block_total<S> sum;
    for (ptrdiff_t i = 0; i < n; i += GROUP * w) {
        simd<S> v[GROUP], t[GROUP];
        if (i + GROUP * w <= n) {
            for (ptrdiff_t j = 0; j < GROUP; ++j) v[j] = load(x + i + j * w);
            terms<GROUP, tied, keep>(v, m, c, t, e.at(i), count);
        } else {
            for (ptrdiff_t j = 0; j < GROUP; ++j) {
                const ptrdiff_t at = i + j * w;
                if (at + w <= n) v[j] = load(x + at);
                else if (at < n) v[j] = load_partial(x + at, n - at);
                else v[j] = simd<S>(-std::numeric_limits<double>::infinity());
                t[j] = v[j] - c;
            }
            exp_each<GROUP>(t);
            for (ptrdiff_t j = 0; j < GROUP; ++j) {
                const ptrdiff_t at = i + j * w;
                if (at >= n) { t[j] = simd<S>(0.0); continue; }
                if (keep) e.put(at, t[j]);
                if (!tied) continue;
                count += count_equal(v[j], m);
                t[j] = zero_where_equal(t[j], v[j], m);
            }
        }
        if (i) sum.add(t);
        else sum = block_total<S>(t);
    }
    return sum;
}
template <class S>
DS_INLINE block_total<S> part_sum(const S* x, ptrdiff_t n, simd<S> m, simd<S> c, lane_buffer<S> e, bool tied, bool keep, ptrdiff_t& count) {
    if (tied) return keep ? part_terms<true, true>(x, n, m, c, e, count) : part_terms<true, false>(x, n, m, c, e, count);
    return keep ? part_terms<false, true>(x, n, m, c, e, count) : part_terms<false, false>(x, n, m, c, e, count);
}

// ---------------------------------------------------------------- rows of a few registers: `width` of them at a time

constexpr double ZERO_SHIFT = 16;
// Where c, the shift of the exponent, is m: everywhere but for logarithms, which use 0 while |m| < 16 (see finish.pxi).
template <class S> DS_INLINE simd<S> shifts(simd<S> m, bool to_zero) {
    if (!to_zero) return m;
    const simd<S> zero = simd<S>(0.0);
    return pick_less(vabs(m), simd<S>(ZERO_SHIFT), zero, pick_equal(m, simd<S>(-std::numeric_limits<double>::infinity()), zero, m));
}
template <class S> struct few_rows {
    double *m, *c, *total, *count;
};
// `width` rows of n elements, (registers - 1) * width < n <= registers * width <= GROUP * width. Their exponentials go to e, a row every
// registers * width lanes. Maxima and sums of all rows are folded together; exponentials are taken of about four registers at a time.
template <int registers, bool keep, class S>
DS_INLINE void few_terms(const S* const* x, ptrdiff_t n, bool to_zero, lane_buffer<S> e, few_rows<S> r) {
    constexpr ptrdiff_t w = simd<S>::width, most = 4 / registers, side = most < w ? most : w, together = side * registers;
    constexpr int w64 = simd<double>::width, fold = side < w64 ? int(side) : w64;
    const ptrdiff_t tail = n - (registers - 1) * w;
    auto get = [=](ptrdiff_t j, int i) {
        return i < registers - 1 || tail == w ? load(x[j] + i * w) : load_partial(x[j] + i * w, tail);
    };
    simd<S> rows[w];
    for (ptrdiff_t j = 0; j < w; ++j) {
        for (int i = 0; i < registers; ++i) read_ahead(x[j] + i * w);
        rows[j] = vmax(get(j, 0), simd<S>(-std::numeric_limits<double>::infinity()));
        for (int i = 1; i < registers; ++i) rows[j] = vmax(get(j, i), rows[j]);
    }
    const simd<S> m = max_rows(rows), c = shifts(m, to_zero);
    typename simd<S>::C each_m[w], each_c[w];
    store_lanes(each_m, m.v);
    store_lanes(each_c, c.v);
    to_doubles(m, r.m);
    to_doubles(c, r.c);
    typename wide<S>::template folded<fold> folds[w / fold];
    int32_t counts[w];
    for (ptrdiff_t j = 0; j < w; j += side) {
        simd<S> v[together], y[together];
        for (ptrdiff_t q = 0; q < together; ++q) {
            v[q] = get(j + q / registers, int(q % registers));
            y[q] = v[q] - simd<S>(each_c[j + q / registers]);
        }
        exp_each<together>(y);
        wide<S> sums[side];
        for (ptrdiff_t q = 0; q < side; ++q) {
            const simd<S> largest = simd<S>(each_m[j + q]);
            simd<S> t[GROUP];
            ptrdiff_t count = 0;
            for (int i = 0; i < GROUP; ++i) {
                if (i >= registers) { t[i] = simd<S>(0.0); continue; }
                const ptrdiff_t at = q * registers + i;
                if (keep) e.put((j * registers + at) * w, y[at]);
                count += count_equal(v[at], largest);
                t[i] = zero_where_equal(y[at], v[at], largest);
            }
            counts[j + q] = int32_t(count);
            if (registers == 1) sums[q] = wide<S>(t[0]);
            else sums[q] = wide<S>(block_total<S>(t));
        }
        for (ptrdiff_t q = 0; q < side; q += fold) folds[(j + q) / fold] = typename wide<S>::template folded<fold>(sums + q);
    }
    for (ptrdiff_t j = 0; j < w; ++j) r.count[j] = counts[j];
    wide<S>::template totals<fold>(folds, r.total);
}
template <class S>
DS_INLINE void few_stats(const S* const* x, ptrdiff_t n, bool keep, bool to_zero, lane_buffer<S> e, double* m, double* c, double* total, double* count) {
    const few_rows<S> r = {m, c, total, count};
    switch ((n - 1) / simd<S>::width * 2 + keep) {
        case 0: return few_terms<1, false>(x, n, to_zero, e, r);
        case 1: return few_terms<1, true>(x, n, to_zero, e, r);
        case 2: return few_terms<2, false>(x, n, to_zero, e, r);
        case 3: return few_terms<2, true>(x, n, to_zero, e, r);
        case 4: return few_terms<3, false>(x, n, to_zero, e, r);
        case 5: return few_terms<3, true>(x, n, to_zero, e, r);
        case 6: return few_terms<4, false>(x, n, to_zero, e, r);
        default: return few_terms<4, true>(x, n, to_zero, e, r);
    }
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
// Elements before the first one that can be streamed.
template <class S> DS_INLINE ptrdiff_t aligned_head(const S* out) {
    const uintptr_t line = simd<S>::width * sizeof(S);
    return ptrdiff_t((line - uintptr_t(out) % line) % line / sizeof(S));
}

// Whole registers go to whole lines: a store that crosses from one line into the next costs two, and one past the cache has to be aligned.
template <int kind, class S, class Get, class GetPart>
DS_INLINE void write_run(S* out, ptrdiff_t n, simd<S> c, simd<S> s, bool past_cache, Get get, GetPart get_part) {
    constexpr ptrdiff_t w = simd<S>::width;
    const bool has_lines = uintptr_t(out) % sizeof(S) == 0;
    const ptrdiff_t head = has_lines ? aligned_head(out) : 0;
    ptrdiff_t i = 0;
    if (head && head <= n) { store_partial(out, output<kind>(get_part(0, head), c, s), head); i = head; }
    if (past_cache && has_lines) for (; i + w <= n; i += w) stream(out + i, output<kind>(get(i), c, s));
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

template <int registers, int kind, class S>
DS_INLINE void few_write(S* const* out, const S* const* x, ptrdiff_t n, ptrdiff_t k, lane_buffer<S> e, const typename simd<S>::C* c, const typename simd<S>::C* value) {
    constexpr ptrdiff_t w = simd<S>::width;
    const ptrdiff_t tail = n - (registers - 1) * w;
    for (ptrdiff_t j = 0; j < k; ++j) {
        const simd<S> vc = simd<S>(c[j]), vv = simd<S>(value[j]);
        for (int i = 0; i < registers; ++i) {
            const bool whole = i < registers - 1 || tail == w;
            simd<S> v;
            if (kind == OUT_SCALED) v = e.get((j * registers + i) * w);
            else v = whole ? load(x[j] + i * w) : load_partial(x[j] + i * w, tail);
            const simd<S> y = output<kind>(v, vc, vv);
            if (whole) store(out[j] + i * w, y);
            else store_partial(out[j] + i * w, y, tail);
        }
    }
}
template <class S>
DS_INLINE void few_rows_output(S* const* out, const S* const* x, ptrdiff_t n, ptrdiff_t k, bool is_log, lane_buffer<S> e, const double* c, const double* value) {
    typename simd<S>::C each_c[simd<S>::width], each_value[simd<S>::width];
    for (ptrdiff_t j = 0; j < simd<S>::width; ++j) { each_c[j] = c[j]; each_value[j] = value[j]; }
    switch ((n - 1) / simd<S>::width * 2 + is_log) {
        case 0: return few_write<1, OUT_SCALED>(out, x, n, k, e, each_c, each_value);
        case 1: return few_write<1, OUT_LOG>(out, x, n, k, e, each_c, each_value);
        case 2: return few_write<2, OUT_SCALED>(out, x, n, k, e, each_c, each_value);
        case 3: return few_write<2, OUT_LOG>(out, x, n, k, e, each_c, each_value);
        case 4: return few_write<3, OUT_SCALED>(out, x, n, k, e, each_c, each_value);
        case 5: return few_write<3, OUT_LOG>(out, x, n, k, e, each_c, each_value);
        case 6: return few_write<4, OUT_SCALED>(out, x, n, k, e, each_c, each_value);
        default: return few_write<4, OUT_LOG>(out, x, n, k, e, each_c, each_value);
    }
}
// Outputs of k rows of few registers, for which few_stats left the exponentials in e. Past the cache go rows that follow each other in memory,
// all of them as one piece: alone they have few whole lines.
template <class S>
DS_INLINE void few_output(S* const* out, const S* const* x, ptrdiff_t n, ptrdiff_t k, bool is_log, lane_buffer<S> e, const double* c, const double* value, bool past_cache) {
    constexpr ptrdiff_t w = simd<S>::width;
    bool one_piece = past_cache;
    for (ptrdiff_t j = 1; one_piece && j < k; ++j) one_piece = out[j] == out[j - 1] + n;
    if (!one_piece) return few_rows_output(out, x, n, k, is_log, e, c, value);
    alignas(64) S memory[GROUP * w * w];
    S* rows[w];
    for (ptrdiff_t j = 0; j < w; ++j) rows[j] = memory + j * n;
    few_rows_output(rows, x, n, k, is_log, e, c, value);
    stream_copy(out[0], memory, k * n * ptrdiff_t(sizeof(S)));
}

// ---------------------------------------------------------------- a strip of columns: lanes are neighbouring rows

// Adds elements 0 .. n - 1 (n <= BLOCK * width) of a strip of `width` columns to one wide sum a lane of terms. With keep, the
// exponentials take the place of the elements. Elements `width` apart are consecutive registers of a lane.
template <int registers, bool keep, class S>
DS_INLINE void strip_group(lane_buffer<S> strip, ptrdiff_t step, simd<S> m, simd<S> c, simd<S>* t, simd<S>& count) {
    simd<S> v[registers];
    for (int j = 0; j < registers; ++j) {
        v[j] = strip.get(j * step);
        t[j] = v[j] - c;
    }
    exp_each<registers>(t);
    for (int j = 0; j < registers; ++j) {
        if (keep) strip.put(j * step, t[j]);
        t[j] = zero_where_equal(t[j], v[j], m);
        count = count + pick_equal(v[j], m, simd<S>(1.0), simd<S>(0.0));
    }
}
template <bool keep, class S>
DS_INLINE void strip_terms(lane_buffer<S> strip, ptrdiff_t n, simd<S> m, simd<S> c, wide<S>* sums, simd<S>& count) {
    constexpr ptrdiff_t w = simd<S>::width;
    const ptrdiff_t full = n / (GROUP * w) * (GROUP * w), rest = n - full;
    // terms behind the last whole group of all lanes: neighbours fill each other's time, which in turn wait in memory
    typename simd<S>::C memory[GROUP * w * w];
    const lane_buffer<S> last(memory);
    simd<S> t[GROUP];
    ptrdiff_t at = 0;
    for (; at + GROUP <= rest; at += GROUP) {
        strip_group<GROUP, keep>(strip.at((full + at) * w), w, m, c, t, count);
        for (ptrdiff_t j = 0; j < GROUP; ++j) last.put((at + j) * w, t[j]);
    }
    for (; at < rest; ++at) {
        strip_group<1, keep>(strip.at((full + at) * w), 0, m, c, t, count);
        last.put(at * w, t[0]);
    }
    for (ptrdiff_t lane = 0; lane < w && lane < n; ++lane) {
        block_total<S> sum;
        for (ptrdiff_t i = lane; i < n; i += GROUP * w) {
            if (i < full) strip_group<GROUP, keep>(strip.at(i * w), w * w, m, c, t, count);
            else for (ptrdiff_t j = 0; j < GROUP; ++j) t[j] = i - full + j * w < rest ? last.get((i - full + j * w) * w) : simd<S>(0.0);
            if (i > lane) sum.add(t);
            else sum = block_total<S>(t);
        }
        sums[lane].add(sum);
    }
}
template <class S>
DS_INLINE void strip_sum(lane_buffer<S> strip, ptrdiff_t n, simd<S> m, simd<S> c, bool keep, wide<S>* sums, simd<S>& count) {
    if (keep) strip_terms<true>(strip, n, m, c, sums, count);
    else strip_terms<false>(strip, n, m, c, sums, count);
}
// Folds the lanes of n terms as wide::total folds them in a row; lanes that had none are nothing, and not looked at.
template <class S> DS_INLINE void strip_totals(wide<S>* sums, ptrdiff_t n, double* totals) {
    for (ptrdiff_t half = simd<S>::width / 2; half > 0; half /= 2)
        for (ptrdiff_t lane = 0; lane < half && lane + half < n; ++lane) sums[lane].join(sums[lane + half]);
    sums[0].store(totals);
}

}  // namespace
