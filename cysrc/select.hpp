// select.hpp - the k largest elements of a row, in order, ties by the lower index.
//
// No sort and no heap over the row. The lane-wise maxima of its blocks (one per BLOCK elements, known from the search for the maximum)
// give a threshold that at least k elements reach; only blocks with a maximum above it are looked at, with one comparison a register. What
// passes is collected in order of the index, cut back to k when the buffer is full, and sorted once, at the end, by a stable sort: equal
// elements stay in order of the index. Thresholds are found by bisection over the bits of the numbers, which needs no assumption on them.
#pragma once
#include "blocks.hpp"
#include "layout.hpp"

namespace {

// Bit i of the result: lane i of x is at least that of t. A NaN is not.
template <class S> DS_INLINE unsigned mask_at_least(simd<S> x, simd<S> t) {
    constexpr bool narrow = sizeof(typename simd<S>::C) == 4;
    (void)narrow;
#if DS_BYTES == 64
    if constexpr (narrow) return _mm512_cmp_ps_mask((__m512)x.v, (__m512)t.v, _CMP_GE_OQ);
    else return _mm512_cmp_pd_mask((__m512d)x.v, (__m512d)t.v, _CMP_GE_OQ);
#elif DS_BYTES == 32
    if constexpr (narrow) return unsigned(_mm256_movemask_ps(_mm256_cmp_ps((__m256)x.v, (__m256)t.v, _CMP_GE_OQ)));
    else return unsigned(_mm256_movemask_pd(_mm256_cmp_pd((__m256d)x.v, (__m256d)t.v, _CMP_GE_OQ)));
#elif defined(__x86_64__)
    if constexpr (narrow) return unsigned(_mm_movemask_ps(_mm_cmpge_ps((__m128)x.v, (__m128)t.v)));
    else return unsigned(_mm_movemask_pd(_mm_cmpge_pd((__m128d)x.v, (__m128d)t.v)));
#else
    const auto passes = x.v >= t.v;
    unsigned mask = 0;
    for (int i = 0; i < simd<S>::width; ++i) mask |= unsigned(passes[i] & 1) << i;
    return mask;
#endif
}

// Integers in the order of the numbers, -0 just below 0; from -inf to +inf without a gap.
template <class C> using order_of = typename traits<C>::integer;
template <class C> DS_INLINE order_of<C> to_order(C x) {
    order_of<C> bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits ^ ((bits >> (8 * sizeof bits - 1)) & std::numeric_limits<order_of<C>>::max());
}
template <class C> DS_INLINE C from_order(order_of<C> order) {
    const order_of<C> bits = order ^ ((order >> (8 * sizeof order - 1)) & std::numeric_limits<order_of<C>>::max());
    C x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
template <class C> DS_INLINE C next_above(C x) { return from_order<C>(to_order(x) + 1); }      // of +inf a NaN: nothing is above
template <class C> constexpr C FINITE_LEAST = std::numeric_limits<C>::lowest();

template <class C> DS_INLINE ptrdiff_t count_at_least(const C* x, ptrdiff_t n, C t) {
    constexpr ptrdiff_t w = simd<C>::width;
    const simd<C> least = simd<C>(t);
    ptrdiff_t count = 0, i = 0;
    for (; i + w <= n; i += w) count += __builtin_popcount(mask_at_least(load(x + i), least));
    return i < n ? count + __builtin_popcount(mask_at_least(load_partial(x + i, n - i), least)) : count;
}
// A number that at least k of n elements reach, and at most k + slack, but for elements equal to it: of n finite elements or more than k.
template <class C> C reached_by(const C* x, ptrdiff_t n, ptrdiff_t k, ptrdiff_t slack) {
    order_of<C> low = to_order(FINITE_LEAST<C>), high = to_order(std::numeric_limits<C>::infinity()) + 1;
    while (low + 1 < high) {
        const order_of<C> middle = (low & high) + ((low ^ high) >> 1);
        const ptrdiff_t count = count_at_least(x, n, from_order<C>(middle));
        if (count < k) high = middle;
        else if (low = middle; count <= k + slack) break;
    }
    return from_order<C>(low);
}

// A stable sort of (key, index), the largest key first. The buffers of `spare` are of the same size.
template <class C> void sort_falling(C* key, ptrdiff_t* index, ptrdiff_t n, C* spare_key, ptrdiff_t* spare_index) {
    using U = typename std::make_unsigned<order_of<C>>::type;
    if (n <= 40) {
        for (ptrdiff_t i = 1; i < n; ++i) {
            const C x = key[i];
            const ptrdiff_t at = index[i];
            ptrdiff_t j = i;
            for (; j > 0 && key[j - 1] < x; --j) { key[j] = key[j - 1]; index[j] = index[j - 1]; }
            key[j] = x;
            index[j] = at;
        }
        return;
    }
    constexpr int digits = sizeof(C);
    ptrdiff_t starts[digits][256] = {};
    auto bits = [](C x) { return ~(U(to_order(x)) ^ (U(1) << (8 * sizeof(U) - 1))); };
    for (ptrdiff_t i = 0; i < n; ++i) {
        const U b = bits(key[i]);
        for (int d = 0; d < digits; ++d) ++starts[d][b >> 8 * d & 255];
    }
    C *from_key = key, *to_key = spare_key;
    ptrdiff_t *from = index, *to = spare_index;
    for (int d = 0; d < digits; ++d) {
        if (starts[d][bits(from_key[0]) >> 8 * d & 255] == n) continue;       // all alike in this digit
        ptrdiff_t sum = 0;
        for (ptrdiff_t& start : starts[d]) { const ptrdiff_t count = start; start = sum; sum += count; }
        for (ptrdiff_t i = 0; i < n; ++i) {
            const ptrdiff_t at = starts[d][bits(from_key[i]) >> 8 * d & 255]++;
            to_key[at] = from_key[i];
            to[at] = from[i];
        }
        std::swap(from_key, to_key);
        std::swap(from, to);
    }
    if (from_key == key) return;
    std::memcpy(key, from_key, size_t(n) * sizeof(C));
    std::memcpy(index, from, size_t(n) * sizeof *index);
}

// The k largest of what is shown to it, in order of the index. -inf and NaN are never among them.
template <class C> struct selector {
    static constexpr ptrdiff_t w = simd<C>::width;
    ptrdiff_t k, capacity, count;
    C least;                       // what a further element must reach
    C *key, *spare_key;
    ptrdiff_t *index, *spare_index;

    static ptrdiff_t room(ptrdiff_t k, ptrdiff_t n) { return (std::min(n, std::max(4 * k, ptrdiff_t(512))) + 2 * w + 15) / 16 * 16; }
    static size_t bytes(ptrdiff_t k, ptrdiff_t n) { return size_t(2 * room(k, n)) * (sizeof(C) + sizeof(ptrdiff_t)); }
    selector() {}
    selector(void* memory, ptrdiff_t k, ptrdiff_t n) : k(k), capacity(room(k, n)) {
        index = (ptrdiff_t*)memory;
        spare_index = index + capacity;
        key = (C*)(spare_index + capacity);
        spare_key = key + capacity;
        clear();
    }
    void clear() { count = 0; least = k ? FINITE_LEAST<C> : next_above(std::numeric_limits<C>::infinity()); }

    DS_INLINE void add(C x, ptrdiff_t at) { key[count] = x + C(0); index[count++] = at; }      // -0 becomes 0
    // Elements 0 .. w - 1 of a register, the first of them element `at`.
    template <class S> DS_INLINE void offer(simd<S> x, ptrdiff_t at) {
        for (unsigned mask = mask_at_least(x, simd<S>(least)); mask; mask &= mask - 1) add(x.v[__builtin_ctz(mask)], at + __builtin_ctz(mask));
        if (count + w > capacity) cut();
    }
    void offer_one(C x, ptrdiff_t at) {
        if (!(x >= least)) return;
        add(x, at);
        if (count + w > capacity) cut();
    }
    // Leaves the k largest, and of those equal to the least of them the first.
    void cut() {
        if (count <= k) return;
        const C t = reached_by(key, count, k, 0);
        ptrdiff_t above = 0, kept = 0;
        const C over = next_above(t);
        const ptrdiff_t reach = count_at_least(key, count, t);
        above = reach == k ? k : count_at_least(key, count, over);
        ptrdiff_t equal = k - above;
        for (ptrdiff_t i = 0; i < count; ++i) {
            const bool keep = reach == k ? key[i] >= t : key[i] >= over || (key[i] >= t && equal-- > 0);
            key[kept] = key[i];
            index[kept] = index[i];
            kept += keep;
        }
        count = kept;
        least = over;
    }
    // A threshold from the maxima of groups of elements: each stands for an element of its own.
    void aim(const C* tops, ptrdiff_t n) {
        ptrdiff_t registers = n / w, most = std::min(registers, std::max(ptrdiff_t(1), 4 * k / w + 1));
        if (!k || registers * w < k) return;
        const C* at = tops;
        C folded[64 * w];
        if (most < registers && most <= 64) {
            for (ptrdiff_t j = 0; j < most; ++j) store(folded + j * w, load(tops + j * w));
            for (ptrdiff_t i = most, j = 0; i < registers; ++i, j = j + 1 == most ? 0 : j + 1)
                store(folded + j * w, vmax(load(tops + i * w), load(folded + j * w)));
            at = folded;
            registers = most;
        }
        if (count_at_least(at, registers * w, FINITE_LEAST<C>) >= k) least = reached_by(at, registers * w, k, k / 4);
    }
    // All of a row or segment, whose element 0 is element `first`, given the lane-wise maxima of its blocks (whole registers).
    template <class S> void scan(const S* x, ptrdiff_t n, const C* tops, ptrdiff_t first) {
        constexpr ptrdiff_t size = BLOCK * w;
        if (!k) return;
        if (!count) aim(tops, (n + size - 1) / size * w);
        for (ptrdiff_t start = 0, b = 0; start < n; start += size, b += w) {
            if (!mask_at_least(load(tops + b), simd<C>(least))) continue;
            const ptrdiff_t end = std::min(n, start + size);
            ptrdiff_t i = start;
            for (; i + w <= end; i += w) offer(load(x + i), first + i);
            if (i < end) offer(load_partial(x + i, end - i), first + i);
        }
    }
    // The least of the k largest, and of those equal to it the last that counts; -inf and n where there are fewer than k.
    void border(ptrdiff_t n, C& value, ptrdiff_t& last) {
        value = -std::numeric_limits<C>::infinity();
        last = n;
        cut();
        if (count < k) return;
        value = key[0];
        for (ptrdiff_t i = 0; i < count; ++i) {
            if (key[i] <= value) last = index[i];
            value = std::min(value, key[i]);
        }
    }
    // At most k elements, in order. Few are sorted at once; of many only those that stay.
    void finish() {
        if (count > 40 && count > k + k / 2) cut();
        sort_falling(key, index, count, spare_key, spare_index);
        count = std::min(count, k);
    }
};

}  // namespace
