// registers.hpp - checks of simd.hpp: memory, half conversions, selection, arithmetic, folds over lanes; and of wide sums.
#pragma once
#include "check.hpp"

namespace {

// ---------------------------------------------------------------- load, store, stream

template <class S> void check_load() {
    constexpr ptrdiff_t w = simd<S>::width;
    const title name("load, load_partial", dtype_name<S>());
    group g(name.text);
    fenced_page page;
    for (ptrdiff_t n = 1; n <= w; ++n)
        for (int at_end = 0; at_end < 2; ++at_end) {
            S* p = (S*)(at_end ? page.end() - n * sizeof(S) : page.begin());
            for (ptrdiff_t i = 0; i < n; ++i) p[i] = element_of<S>(1.5 - double(i));
            const simd<S> part = load_partial(p, n);
            for (ptrdiff_t i = 0; i < w; ++i) {
                const double want = i < n ? 1.5 - double(i) : -INF;
                g.that(part.v[i] == want, "load_partial of %td: lane %td is %g, not %g", n, i, double(part.v[i]), want);
            }
            for (ptrdiff_t i = 0; n == w && i < w; ++i) g.that(load(p).v[i] == 1.5 - double(i), "load: lane %td", i);
        }
}

template <class S> void check_store() {
    constexpr ptrdiff_t w = simd<S>::width;
    const title name("store, store_partial, stream", dtype_name<S>());
    group g(name.text);
    fenced_page page;
    typename simd<S>::C lanes[w];
    for (ptrdiff_t i = 0; i < w; ++i) lanes[i] = typename simd<S>::C(2.25 - double(i));
    const simd<S> x = load_lanes(lanes);
    enum { PART, WHOLE, STREAM, WAYS };
    for (int way = 0; way < WAYS; ++way)
        for (ptrdiff_t n = way == PART ? 1 : w; n <= w; ++n)
            for (ptrdiff_t at : {ptrdiff_t(0), ptrdiff_t(page.size / 2), ptrdiff_t(page.size - n * sizeof(S))}) {
                if (way == STREAM && at % (w * sizeof(S))) continue;
                std::memset(page.begin(), 0x5a, page.size);
                S* p = (S*)(page.begin() + at);
                if (way == PART) store_partial(p, x, n);
                else if (way == WHOLE) store(p, x);
                else stream(p, x);
                stream_fence();
                for (ptrdiff_t i = 0; i < n; ++i) g.that(lane_of(p[i]) == lanes[i], "way %d of %td: element %td", way, n, i);
                ptrdiff_t touched = 0;
                for (ptrdiff_t b = 0; b < ptrdiff_t(page.size); ++b)
                    touched += (b < at || b >= at + n * ptrdiff_t(sizeof(S))) && page.begin()[b] != 0x5a;
                g.that(touched == 0, "way %d of %td at %td: %td bytes outside were written", way, n, at, touched);
            }
}

// ---------------------------------------------------------------- float16 and bfloat16

template <class H> void check_widen() {
    constexpr int w = simd<H>::width;
    const title name("widen, all 65536 patterns,", dtype_name<H>());
    group g(name.text);
    H h[w];
    for (int base = 0; base < 0x10000; base += w) {
        for (int i = 0; i < w; ++i) h[i].bits = uint16_t(base + i);
        const simd<H> x = load(h);
        for (int i = 0; i < w; ++i) {
            const float want = widened(h[i]);
            g.that(same<float>(x.v[i], want), "0x%04x gives %a, not %a", h[i].bits, double(x.v[i]), double(want));
        }
        g.that(same(widen_one(h[0]), widened(h[0])), "widen_one of 0x%04x", h[0].bits);
    }
}

template <class H> void check_narrow_run(group& g, const std::vector<float>& x) {
    constexpr size_t w = simd<H>::width;
    H h[w];
    for (size_t base = 0; base + w <= x.size(); base += w) {
        store(h, simd<H>(load_lanes(&x[base])));
        for (size_t i = 0; i < w; ++i) {
            const float v = x[base + i];
            const H want = narrowed<H>(v);
            const bool right = v != v ? (h[i].bits & 0x7fff) > half_format<H>::infinity : h[i].bits == want.bits;
            g.that(right, "%a gives 0x%04x, not 0x%04x", double(v), h[i].bits, want.bits);
        }
    }
}
template <class H> void check_narrow(long count) {
    const title name("narrow, ties and random,", dtype_name<H>());
    group g(name.text);
    std::vector<float> x;
    for (int a = 0; a < half_format<H>::infinity; ++a) {
        const float value = float(finite_value<H>(a)), tie = float((finite_value<H>(a) + finite_value<H>(a + 1)) / 2);
        for (float v : {value, std::nextafterf(tie, 0), tie, std::nextafterf(tie, INFINITY)}) {
            x.push_back(v);
            x.push_back(-v);
        }
    }
    for (uint32_t bits : {0u, 1u, 0x7fffffu, 0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu})
        for (uint32_t sign : {0u, 0x80000000u}) x.push_back(reinterpret<float>(bits | sign));
    for (int i = 0; i < simd<H>::width; ++i) x.push_back(0);
    check_narrow_run<H>(g, x);
    generator random{1};
    x.resize(4096);
    for (long done = 0; done < count; done += 4096) {
        for (float& v : x) v = reinterpret<float>(uint32_t(random.bits()));
        check_narrow_run<H>(g, x);
    }
}

// ---------------------------------------------------------------- selection and arithmetic

template <class S> void check_selection() {
    using C = typename simd<S>::C;
    constexpr int w = simd<S>::width, values = 8, pairs = values * values;
    const title name("max_keep, count_equal, pick_*, vabs", dtype_name<S>());
    group g(name.text);
    const C table[values] = {-C(INF), C(-1), C(-0.0), C(0), std::numeric_limits<C>::denorm_min(), C(1), C(INF), C(NAN)};
    C a[pairs], b[pairs], e[pairs], other[pairs];
    for (int i = 0; i < pairs; ++i) { a[i] = table[i / values]; b[i] = table[i % values]; e[i] = C(i + 2); other[i] = C(-i - 2); }
    for (int base = 0; base < pairs; base += w) {
        const simd<S> x = load_lanes(a + base), y = load_lanes(b + base), p = load_lanes(e + base), q = load_lanes(other + base);
        const simd<S> largest = vmax(x, y), kept = zero_where_equal(p, x, y), equal = pick_equal(x, y, p, q), less = pick_less(x, y, p, q);
        const simd<S> magnitude = vabs(x);
        ptrdiff_t count = 0;
        for (int i = 0; i < w; ++i) {
            const C u = a[base + i], v = b[base + i], t = e[base + i], f = other[base + i];
            count += u == v;
            g.that(same<C>(largest.v[i], u > v ? u : v), "max_keep(%g, %g) is %g", double(u), double(v), double(largest.v[i]));
            g.that(same<C>(kept.v[i], u == v ? C(0) : t), "zero_where_equal(%g, %g) is %g", double(u), double(v), double(kept.v[i]));
            g.that(same<C>(equal.v[i], u == v ? t : f), "pick_equal(%g, %g)", double(u), double(v));
            g.that(same<C>(less.v[i], u < v ? t : f), "pick_less(%g, %g)", double(u), double(v));
            g.that(same<C>(magnitude.v[i], std::fabs(u)), "vabs(%g) is %g", double(u), double(magnitude.v[i]));
        }
        g.that(count_equal(x, y) == count, "count_equal is %td, not %td", count_equal(x, y), count);
    }
}

template <class S> void check_arithmetic() {
    using C = typename simd<S>::C;
    constexpr int w = simd<S>::width;
    const title name(HAS_FMA ? "+ - * /, fma of one rounding," : "+ - * /, fma of two roundings,", dtype_name<S>());
    group g(name.text);
    generator random{2};
    C a[w], b[w], c[w];
    for (int round = 0; round < 1000; ++round) {
        // c close to -a b, where one rounding and two differ most
        for (int i = 0; i < w; ++i) {
            a[i] = C(random.uniform(-2, 2));
            b[i] = C(random.uniform(-2, 2));
            c[i] = round % 2 ? -(a[i] * b[i]) : C(random.uniform(-2, 2));
        }
        const simd<S> x = load_lanes(a), y = load_lanes(b), z = load_lanes(c), f = fma(x, y, z);
        const simd<S> sum = x + y, difference = x - y, product = x * y, quotient = x / y;
        for (int i = 0; i < w; ++i) {
            const C want = HAS_FMA ? std::fma(a[i], b[i], c[i]) : a[i] * b[i] + c[i];
            g.that(same<C>(f.v[i], want), "fma(%a, %a, %a) is %a", double(a[i]), double(b[i]), double(c[i]), double(f.v[i]));
            const bool right = same<C>(sum.v[i], a[i] + b[i]) && same<C>(difference.v[i], a[i] - b[i]) &&
                               same<C>(product.v[i], a[i] * b[i]) && same<C>(quotient.v[i], a[i] / b[i]);
            g.that(right, "+ - * / of %a and %a", double(a[i]), double(b[i]));
        }
    }
}

// ---------------------------------------------------------------- across lanes

template <class C, class Fold> C folded(const C* lanes, int width, Fold fold) {
    std::vector<C> v(lanes, lanes + width);
    for (int half = width / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) v[size_t(i)] = fold(v[size_t(i)], v[size_t(i + half)]);
    return v[0];
}

template <class S> void check_folds() {
    using C = typename simd<S>::C;
    constexpr int w = simd<S>::width;
    const title name("hmax, hsum, max_rows, sum_rows", dtype_name<S>());
    group g(name.text);
    generator random{3};
    simd<S> rows[w];
    C lanes[w][w];
    for (int round = 0; round < 500; ++round) {
        for (auto& row : lanes)
            for (C& x : row) {
                const uint64_t special = random.bits() % 64;
                x = special == 0 ? -C(INF) : special == 1 && round % 4 == 0 ? C(NAN) : C(random.uniform(-100, 100));
            }
        for (int r = 0; r < w; ++r) rows[r] = load_lanes(lanes[r]);
        const simd<S> largest = max_rows(rows), sum = sum_rows(rows);
        for (int r = 0; r < w; ++r) {
            const C want_max = folded(lanes[r], w, [](C a, C b) { return a > b ? a : b; });
            const C want_sum = folded(lanes[r], w, [](C a, C b) { return a + b; });
            double out[w];
            to_doubles(rows[r], out);
            g.that(same(hmax(rows[r]), double(want_max)), "hmax is %a, not %a", hmax(rows[r]), double(want_max));
            g.that(same(hsum(rows[r]), double(want_sum)), "hsum is %a, not %a", hsum(rows[r]), double(want_sum));
            g.that(same<C>(largest.v[r], want_max), "max_rows: row %d is %a, not %a", r, double(largest.v[r]), double(want_max));
            g.that(same<C>(sum.v[r], want_sum), "sum_rows: row %d is %a, not %a", r, double(sum.v[r]), double(want_sum));
            g.that(same(out[r], double(lanes[r][r])), "to_doubles: lane %d", r);
        }
    }
}

// Many small terms beside a large one in every lane: a plain sum in the lanes' own precision would stand still.
template <class S> void check_wide() {
    using C = typename simd<S>::C;
    constexpr int w = simd<S>::width, terms = 4096;
    const title name("wide sums", dtype_name<S>());
    group g(name.text);
    const double tiny = sizeof(C) == 4 ? 0x1p-26 : 0x1p-55;
    wide<S> sum, left, right;
    sum.add(simd<S>(1.0));
    for (int i = 0; i < terms; ++i) sum.add(simd<S>(tiny));
    g.that(sum.total() == w * (1 + terms * tiny), "total is %a, not %a", sum.total(), w * (1 + terms * tiny));
    generator random{4};
    long double exact = 0;
    for (int i = 0; i < terms; ++i) {
        C lanes[w];
        for (C& x : lanes) exact += x = C(random.uniform(0, 1));
        (i % 3 ? left : right).add(simd<S>(load_lanes(lanes)));
    }
    left.join(right);
    // float64 lanes of terms that float32 holds: some ulp; a compensated sum: the last rounding and the folding of lanes
    const double relative = double(std::fabs(left.total() - exact) / exact);
    g.that(relative <= (sizeof(C) == 4 ? 1e-13 : 0x1p-52), "relative error %g", relative);
    double stored[w];
    left.store(stored);
    const double total = folded(stored, w, [](double a, double b) { return a + b; });
    g.that(std::fabs(total - left.total()) <= total * 0x1p-50, "stored lanes add to %a, not %a", total, left.total());
    left.add(simd<S>(INF));
    g.that(left.total() == INF, "with an infinity the total is %g", left.total());
    left.add(simd<S>(NAN));
    g.that(left.total() != left.total(), "with a NaN the total is %g", left.total());
}

}  // namespace
