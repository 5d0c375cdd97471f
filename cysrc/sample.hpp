// sample.hpp - one index of a row, drawn by its logits and its noise.
//
// The result is defined in float64 (dualsoft/philox.py) and does not depend on what is done here to find it. Filters become a border: the least
// element that stays and, of those equal to it, the last index. The draw is the largest s + g, s = (x - m) / temperature. Since
// g = -log(-log(1 - v)) <= -log v, an element can beat the best score so far only if v <= exp(s - best): one float exponential and one comparison
// with the high word of v. Few elements pass, and only these get their low word and two logarithms.
#pragma once
#include <cmath>
#include "philox.hpp"
#include "topk.hpp"

namespace {

struct sample_options {
    double temperature, top_k, min_p, top_p;
};

// Mass in whole numbers: sums of n weights stay below 2^63 and do not depend on their order.
DS_INLINE double weight_unit(ptrdiff_t n) {
    int bits = 0;
    for (; n; n >>= 1) ++bits;
    return std::ldexp(1.0, 62 - bits);
}

template <class S> struct sampler {
    using C = typename simd<S>::C;
    static constexpr ptrdiff_t w = simd<S>::width, size = BLOCK * w, w64 = simd<double>::width, BUCKETS = 4096;
    static constexpr C lowest = -std::numeric_limits<C>::infinity();

    const S* x;
    ptrdiff_t n, blocks;
    sample_options o;
    C* tops;                  // lane-wise maxima of blocks
    char* memory;
    bool has_nan = false;
    C m = lowest;
    C border = lowest;        // what stays: above the border, or equal to it up to the index `last`
    ptrdiff_t last;
    double least = -std::numeric_limits<double>::infinity();       // and s at least this
    C floor = lowest;         // nothing below it stays

    static ptrdiff_t blocks_of(ptrdiff_t n) { return (n + size - 1) / size; }
    static ptrdiff_t tops_bytes(ptrdiff_t n) { return (blocks_of(n) * w * ptrdiff_t(sizeof(C)) + 63) / 64 * 64; }
    // Of memory for a row of n: the maxima, and four arrays of at most n elements.
    static ptrdiff_t needs(ptrdiff_t n) { return tops_bytes(n) + std::max(ptrdiff_t(selector<C>::bytes(n, n)), 2 * (n + 16) * ptrdiff_t(sizeof(C) + sizeof(ptrdiff_t))); }

    sampler(const S* x, ptrdiff_t n, const double* options, void* memory)
        : x(x), n(n), blocks(blocks_of(n)), o{options[0], options[1], options[2], options[3]}, tops((C*)memory),
          memory((char*)memory + tops_bytes(n)), last(n) {}

    DS_INLINE simd<S> get(ptrdiff_t i) const { return i + w <= n ? load(x + i) : load_partial(x + i, n - i); }
    DS_INLINE C one(ptrdiff_t i) const { return load_partial(x + i, 1).v[0]; }
    DS_INLINE double difference(C v) const { return (double(v) - double(m)) / o.temperature; }
    DS_INLINE bool stays(C v, ptrdiff_t i, double s) const { return (v > border || (v == border && i <= last)) && s >= least; }
    DS_INLINE bool block_counts(ptrdiff_t b) const { return mask_at_least(load(tops + b * w), simd<C>(floor)) != 0; }

    void find_maximum() {
        simd<S> largest = simd<S>(double(lowest));
        unsigned ordered = ~0u;
        for (ptrdiff_t b = 0; b < blocks; ++b) {
            simd<S> top = simd<S>(double(lowest));
            for (ptrdiff_t i = b * size; i < std::min(n, (b + 1) * size); i += w) {
                const simd<S> v = get(i);
                ordered &= mask_at_least(v, v);
                top = vmax(v, top);
            }
            store_lanes(tops + b * w, top.v);
            largest = vmax(top, largest);
        }
        has_nan = (ordered & ((1u << w) - 1)) != (1u << w) - 1;
        m = C(hmax(largest));
    }
    ptrdiff_t first_maximum() const {
        for (ptrdiff_t b = 0; b < blocks; ++b) {
            if (!mask_at_least(load(tops + b * w), simd<C>(m))) continue;
            for (ptrdiff_t i = b * size;; i += w)
                if (const unsigned mask = mask_at_least(get(i), simd<S>(m))) return i + __builtin_ctz(mask);
        }
        return -1;
    }

    void keep_largest() {
        if (!(o.top_k < double(n))) return;
        selector<C> best(memory, ptrdiff_t(o.top_k), n);
        best.scan(x, n, tops, 0);
        best.border(n, border, last);
        floor = border;
    }
    void keep_likely() {
        if (!(o.min_p >= 0x1p-1022)) return;
        least = plain_log(o.min_p, 0);
        // a little below the true border: what passes is compared exactly
        const double at = double(m) + least * o.temperature, slack = 0x1p-20 * (std::abs(double(m)) + std::abs(at));
        if (at - slack > double(floor)) floor = C(at - slack);
    }

    // Calls visit(i, v, weight) for the elements of a block that stay and have weight.
    template <class F> DS_INLINE void each_weight(ptrdiff_t b, double unit, F&& visit) const {
        C values[size];
        double s[size], e[size];
        const ptrdiff_t start = b * size, count = std::min(n - start, size), whole = (count + w - 1) / w * w;
        for (ptrdiff_t i = 0; i < whole; i += w) store_lanes(values + i, get(start + i).v);
        for (ptrdiff_t i = 0; i < whole; i += w64) {
            vec_f64 v;
            if constexpr (std::is_same<C, double>::value) v = load_lanes(values + i);
            else for (ptrdiff_t j = 0; j < w64; ++j) v[j] = double(values[i + j]);
            v = (v - double(m)) / o.temperature;
            store_lanes(s + i, v);
            store_lanes(e + i, plain_exp(v) * unit);
        }
        for (ptrdiff_t i = 0; i < count; ++i) {
            const int64_t weight = __builtin_llrint(e[i]);
            if (weight && stays(values[i], start + i, s[i])) visit(start + i, values[i], s[i], uint64_t(weight));
        }
    }
    // Which bucket a difference falls into: the larger the element, the lower the bucket.
    DS_INLINE static ptrdiff_t bucket(double s) { return std::min(ptrdiff_t(s * -64.0), BUCKETS - 1); }
    void keep_mass() {
        if (!(o.top_p < 1)) return;
        const double unit = weight_unit(n);
        uint64_t mass[BUCKETS] = {}, total = 0, before = 0;
        for (ptrdiff_t b = 0; b < blocks; ++b)
            if (heavy(b)) each_weight(b, unit, [&](ptrdiff_t, C, double s, uint64_t weight) { mass[bucket(s)] += weight; });
        for (uint64_t part : mass) total += part;
        const uint64_t target = std::min(std::max(uint64_t(std::ceil(o.top_p * double(total))), uint64_t(1)), total);
        ptrdiff_t at = 0;
        while (before + mass[at] < target) before += mass[at++];
        // Of the bucket that reaches it, the elements in order.
        ptrdiff_t* index = (ptrdiff_t*)memory;
        ptrdiff_t* spare_index = index + n + 16;
        C* key = (C*)(spare_index + n + 16);
        ptrdiff_t found = 0;
        for (ptrdiff_t b = 0; b < blocks; ++b)
            if (heavy(b)) each_weight(b, unit, [&](ptrdiff_t i, C v, double s, uint64_t) {
                if (bucket(s) == at) { key[found] = v + C(0); index[found++] = i; }
            });
        sort_falling(key, index, found, key + n + 16, spare_index);
        for (ptrdiff_t i = 0; i < found; ++i) {
            before += uint64_t(__builtin_llrint(plain_exp(vec_f64{} + difference(key[i]))[0] * unit));
            border = key[i];
            last = index[i];
            if (before >= target) break;
        }
        floor = std::max(floor, border);
    }
    // Whether a block may hold an element that stays and has weight.
    DS_INLINE bool heavy(ptrdiff_t b) const { return block_counts(b) && difference(C(hmax(simd<C>(load(tops + b * w))))) >= -64.0; }

    ptrdiff_t draw(const row_noise& noise) const {
        constexpr ptrdiff_t together = row_noise::together;
        double best = -std::numeric_limits<double>::infinity();
        ptrdiff_t drawn = -1;
        const double inverse = 1 / o.temperature;
        uint32_t high[together];
        for (ptrdiff_t b = 0; b < blocks; ++b) {
            if (!block_counts(b)) continue;
            // v is at least 2^-65
            if (difference(C(hmax(simd<C>(load(tops + b * w))))) - best < -46) continue;
            for (ptrdiff_t start = b * size; start < std::min(n, (b + 1) * size); start += together) {
                noise.high_words(start, high);
                for (ptrdiff_t i = 0; i < together && start + i < n; i += w) {
                    unsigned mask = contenders(get(start + i), high + i, inverse, best);
                    if (start + i + w > n) mask &= (1u << (n - start - i)) - 1;
                    for (; mask; mask &= mask - 1) {
                        const ptrdiff_t lane = __builtin_ctz(mask), j = start + i + lane;
                        const C v = one(j);
                        const double s = difference(v);
                        if (!stays(v, j, s)) continue;
                        const double score = s + gumbel(high[i + lane], noise.low_word(j));
                        if (score > best) { best = score; drawn = j; }
                    }
                }
            }
        }
        return drawn;
    }
    // The lanes that may beat `best`: v <= exp(s - best), with room for what float rounds.
    DS_INLINE unsigned contenders(simd<S> v, const uint32_t* high, double inverse, double best) const {
        typedef int32_t words __attribute__((vector_size(sizeof(int32_t) * w)));
        words word;
        std::memcpy(&word, high, sizeof word);
        // half of it, as a signed number
        const vec_of<S> uniform = __builtin_convertvector((words)((word >> 1) & 0x7fffffff), vec_of<S>);
        const simd<S> one = simd<S>(1.0), z = (v - simd<S>(double(m))) * simd<S>(inverse) - simd<S>(best);
        // above 1, and where it is NaN (0 times infinity), every v passes
        const simd<S> reach = exp(pick_less(z, one, z, one)) * simd<S>(0x1p31 * 1.001) + one;
        return mask_at_least(reach, simd<S>(uniform)) & mask_at_least(v, simd<S>(double(floor)));
    }
};

// The index drawn from n elements, -1 where they have no distribution.
template <class S> int64_t sample_row(const S* x, ptrdiff_t n, const double* options, const uint32_t* key, int64_t row, void* memory) {
    sampler<S> r(x, n, options, memory);
    r.find_maximum();
    const bool greedy = r.o.temperature == 0;
    if (r.has_nan || r.m == r.lowest || (!greedy && double(r.m) - double(r.m) != 0)) return -1;
    if (greedy) return r.first_maximum();
    r.keep_largest();
    r.keep_likely();
    r.keep_mass();
    return r.draw(row_noise(key, uint64_t(row)));
}

}  // namespace
