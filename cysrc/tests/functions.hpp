// functions.hpp - checks of elementary.hpp and of excess_sum against libm in a wider type.
#pragma once
#include "check.hpp"

namespace {

// Correct far beyond one ulp of C: float64 serves float32.
template <class C> using wider = typename std::conditional<sizeof(C) == 4, double, long double>::type;

// Calls check(x, y) for each of the arguments and its image under the register function f.
template <class S, class F, class Check> void map_registers(const std::vector<typename simd<S>::C>& x, F f, Check check) {
    constexpr size_t w = simd<S>::width;
    for (size_t base = 0; base < x.size(); base += w) {
        const size_t n = std::min(w, x.size() - base);
        typename simd<S>::C in[w] = {}, out[w];
        std::copy(&x[base], &x[base] + n, in);
        store_lanes(out, f(simd<S>(load_lanes(in))).v);
        for (size_t i = 0; i < n; ++i) check(in[i], out[i]);
    }
}

struct span { double low, high; long count; };       // `count` arguments, evenly distributed over [low, high]

template <class C> std::vector<C> arguments(std::initializer_list<span> spans, long share, std::initializer_list<double> more) {
    std::vector<C> x(more.begin(), more.end());
    generator random{5};
    for (const span& s : spans)
        for (long i = 0; i < s.count / share; ++i) x.push_back(C(random.uniform(s.low, s.high)));
    return x;
}
// Negative arguments of every magnitude, subnormal ones included, and positive ones up to `limit`.
template <class C> void add_every_magnitude(std::vector<C>& x, long count, double limit) {
    using bits = typename std::conditional<sizeof(C) == 4, uint32_t, uint64_t>::type;
    generator random{6};
    while (count > 0) {
        const C v = reinterpret<C>(bits(random.bits() >> (64 - 8 * sizeof(C))));
        if (!(v <= C(limit))) continue;
        x.push_back(v);
        --count;
    }
}

// Every NaN there is, by kind, sign and one bit of payload.
template <class C> std::vector<C> every_nan() {
    using bits = typename std::conditional<sizeof(C) == 4, uint32_t, uint64_t>::type;
    const bits infinity = reinterpret<bits>(C(INF)), quiet = reinterpret<bits>(C(NAN)), sign = bits(1) << (8 * sizeof(C) - 1);
    std::vector<C> x = {reinterpret<C>(bits(~bits(0)))};
    for (bits payload = 1; payload < quiet - infinity; payload *= 2)
        for (bits kind : {infinity, quiet, infinity | sign, quiet | sign}) x.push_back(reinterpret<C>(bits(kind | payload)));
    return x;
}

template <class S> void check_exp(long share) {
    using C = typename simd<S>::C;
    const title name("exp on [-inf, 16]", dtype_name<S>());
    group g(name.text);
    const double lowest = sizeof(C) == 4 ? -104 : -745.2, normal = sizeof(C) == 4 ? -87.3 : -708.3;
    auto x = arguments<C>({{-16, 16, 400000}, {-1, 1, 200000}, {normal, -16, 200000}, {lowest, normal, 100000}}, share,
                          {0.0, -0.0, 16, normal, lowest, -110, -760, -1e4, -std::numeric_limits<C>::max()});
    add_every_magnitude(x, 100000 / share, 16);
    for (int n = -40; n < 40; ++n) {         // where the reduced argument changes sides
        const C at = C((n + 0.5) * 0.6931471805599453);
        if (at < 16) for (C v : {std::nextafter(at, C(-1e9)), at, std::nextafter(at, C(1e9))}) x.push_back(v);
    }
    long subnormal = 0;
    map_registers<S>(x, [](simd<S> v) { return exp(v); }, [&](C v, C y) {
        subnormal += y > 0 && y < std::numeric_limits<C>::min();
        g.within(ulp_between(y, (long double)std::exp(wider<C>(v))), 1, double(v), double(y));
    });
    g.that(subnormal > 1000 / share, "only %ld subnormal results", subnormal);
}

template <class S> void check_exp_special() {
    using C = typename simd<S>::C;
    using bits = typename std::conditional<sizeof(C) == 4, uint32_t, uint64_t>::type;
    const title name("exp of -inf, NaN, 0; exp_each<4>", dtype_name<S>());
    group g(name.text);
    std::vector<C> x = every_nan<C>();
    x.insert(x.end(), {-C(INF), C(0), C(-0.0), C(NAN)});
    map_registers<S>(x, [](simd<S> v) { return exp(v); }, [&](C v, C y) {
        const bool right = v != v ? y != y : v == 0 ? y == 1 : y == 0 && !std::signbit(y);
        g.that(right, "exp(%a, bits %#llx) is %a", double(v), (unsigned long long)reinterpret<bits>(v), double(y));
    });
    generator random{7};
    for (int round = 0; round < 2000; ++round) {
        C in[4][simd<S>::width];
        for (auto& row : in)
            for (C& v : row) v = random.bits() % 16 ? C(random.uniform(-120, 16)) : x[random.bits() % x.size()];
        simd<S> four[4] = {load_lanes(in[0]), load_lanes(in[1]), load_lanes(in[2]), load_lanes(in[3])};
        exp_each<4>(four);
        for (int j = 0; j < 4; ++j) {
            const simd<S> alone = exp(simd<S>(load_lanes(in[j])));
            for (int i = 0; i < simd<S>::width; ++i)
                g.that(same<C>(four[j].v[i], alone.v[i]), "exp_each<4>(%a) is %a", double(in[j][i]), double(four[j].v[i]));
        }
    }
}

// exp2(v · factor) by the register function.
template <int count, class S> void exp2_of(simd<S>* v, typename simd<S>::C factor) {
    exp2_each<count>(v, vec_of<S>{} + factor, vec_of<S>{} + LOWEST_EXP2<typename simd<S>::C> / factor);
}

// The product is taken without rounding where there is a fused multiply-add; else its rounding is an error of |x · factor| ln 2 units, and
// the last step of the polynomial rounds twice.
template <class S> void check_exp2(double factor, long share) {
    using C = typename simd<S>::C;
    const title name(factor == 1 ? "exp2 on [-inf, 23]" : "exp2 of x times a factor", dtype_name<S>());
    group g(name.text);
    const C by = C(factor);
    const double lowest = sizeof(C) == 4 ? -150 : -1075, normal = sizeof(C) == 4 ? -126 : -1022;
    auto x = arguments<C>({{-23, 23, 300000}, {-1, 1, 200000}, {normal, -23, 200000}, {lowest, normal, 100000}, {2 * lowest, lowest, 10000}}, share,
                          {0.0, -0.0, 23, normal, lowest, -151, -1076, -1e4, -double(std::numeric_limits<C>::max())});
    add_every_magnitude(x, 100000 / share, 23);
    for (int n = int(lowest) - 3; n <= 23; ++n)             // where the result is exact, and where the reduced argument changes sides
        for (double at : {double(n), n + 0.5})
            for (C v : {std::nextafter(C(at), C(-1e9)), C(at), std::nextafter(C(at), C(1e9))})
                if (v <= 23) x.push_back(v);
    for (C& v : x) v = v > std::numeric_limits<C>::lowest() ? C(v / by) : v;
    long subnormal = 0;
    map_registers<S>(x, [by](simd<S> v) { exp2_of<1>(&v, by); return v; }, [&](C v, C y) {
        const wider<C> product = wider<C>(v) * by;
        subnormal += y > 0 && y < std::numeric_limits<C>::min();
        const double rounding = HAS_FMA || factor == 1 || product < lowest - 1 ? 0 : 0.7 * std::fabs(double(product));
        g.within(std::max(0.0, ulp_between(y, (long double)std::exp2(product)) - rounding), HAS_FMA ? 1 : 1.2, double(v), double(y));
        if (factor == 1 && v == std::nearbyint(v) && v > lowest) g.that(y == C(std::exp2(v)), "2^%.17g is %a", double(v), double(y));
    });
    g.that(subnormal > 1000 / share, "only %ld subnormal results", subnormal);
}

template <class S> void check_exp2_special() {
    using C = typename simd<S>::C;
    const title name("exp2 of -inf, NaN, 0; exp2_each<2>, <4>", dtype_name<S>());
    group g(name.text);
    std::vector<C> x = every_nan<C>();
    x.insert(x.end(), {-C(INF), C(0), C(-0.0)});
    const C by = C(1.4426950408889634);
    const auto one = [by](simd<S> v) { exp2_of<1>(&v, by); return v; };
    map_registers<S>(x, one, [&](C v, C y) {
        const bool right = v != v ? y != y : v == 0 ? y == 1 : y == 0 && !std::signbit(y);
        g.that(right, "exp2(%a) is %a", double(v), double(y));
    });
    generator random{14};
    for (int round = 0; round < 1000; ++round) {
        simd<S> in[4], two[2], four[4];
        for (simd<S>& row : in)
            for (int i = 0; i < simd<S>::width; ++i) row.v[i] = random.bits() % 16 ? C(random.uniform(-110, 15)) : x[random.bits() % x.size()];
        std::copy(in, in + 2, two);
        std::copy(in, in + 4, four);
        exp2_of<2>(two, by);
        exp2_of<4>(four, by);
        for (int j = 0; j < 4; ++j) {
            const simd<S> alone = one(in[j]);
            for (int i = 0; i < simd<S>::width; ++i)
                g.that(same<C>(four[j].v[i], alone.v[i]) && (j > 1 || same<C>(two[j].v[i], alone.v[i])), "exp2 of %a depends on its neighbours", double(in[j].v[i]));
        }
    }
}

template <class S> void check_tanh(long share) {
    using C = typename simd<S>::C;
    const title name("tanh", dtype_name<S>());
    group g(name.text);
    auto x = arguments<C>({{-1, 1, 300000}, {-20, 20, 200000}, {0.5, 0.75, 100000}, {-1e-3, 1e-3, 50000}, {-100, 100, 20000}}, share,
                          {0.0, -0.0, 0.625, -0.625, 20, -20, 1e30, -1e30, double(std::numeric_limits<C>::min()), double(std::numeric_limits<C>::denorm_min()),
                           double(std::numeric_limits<C>::max()), -double(std::numeric_limits<C>::max()), INF, -INF});
    add_every_magnitude(x, 100000 / share, INF);
    for (C v : {std::nextafter(C(0.625), C(0)), std::nextafter(C(0.625), C(1)), std::nextafter(C(20), C(0)), std::nextafter(C(20), C(30))}) x.push_back(v);
    map_registers<S>(x, [](simd<S> v) { return tanh(v); }, [&](C v, C y) {
        g.within(ulp_between(y, (long double)std::tanh(wider<C>(v))), 2, double(v), double(y));
        g.that(std::signbit(v) == std::signbit(y) && std::fabs(y) <= 1, "tanh(%a) is %a", double(v), double(y));
    });
    map_registers<S>(every_nan<C>(), [](simd<S> v) { return tanh(v); }, [&](C, C y) { g.that(y != y, "tanh of a NaN is %a", double(y)); });
}

// The relative error of power (1 + high + low), in units of float64: far below one.
void check_split_exp(long share) {
    group g("split_exp on [-40, 40] f64");
    const auto x = arguments<double>({{-40, 40, 200000}, {-1, 1, 100000}, {-1e-3, 1e-3, 50000}}, share, {0.0, -0.0, 40, -40, 1e-300});
    map_registers<double>(x, [](simd<double> v) {
        const exp_parts e = split_exp(v.v);
        double error[simd<double>::width];
        for (int i = 0; i < simd<double>::width; ++i) {
            const long double value = e.power[i] * (1 + ((long double)e.high[i] + e.low[i]));
            error[i] = double(std::fabs(value / std::exp((long double)v.v[i]) - 1)) * 0x1p53;
        }
        return simd<double>(load_lanes(error));
    }, [&](double v, double error) { g.within(error, 0.25, v, error); });
}

void check_expm1(long share) {
    group g("expm1 on [-16, 16] f64");
    const auto x = arguments<double>({{-16, 16, 200000}, {-1, 1, 100000}, {-1e-3, 1e-3, 50000}}, share, {0.0, -0.0, 16, -16, 1e-300, -1e-300});
    map_registers<double>(x, [](simd<double> v) { return expm1(v); }, [&](double v, double y) {
        g.within(ulp_between(y, std::expm1((long double)v)), 2.5, v, y);
    });
}

void check_log1p(long share) {
    group g("log1p on [-1/2, inf] f64");
    auto x = arguments<double>({{-0.5, 0.5, 300000}, {0.5, 100, 200000}, {100, 1e10, 50000}, {-1e-3, 1e-3, 100000}, {-1e-16, 1e-15, 20000}}, share,
                               {0.0, -0.5, 1, INF, 1.7976931348623157e308, 0x1p53, 0x1p-1074, -0x1p-1074, 0x1p-1022, -0x1p-53, 0x1p-53});
    generator random{8};
    for (long i = 0; i < 200000 / share; ++i) x.push_back(std::ldexp(random.uniform(1, 2), int(random.bits() % 2040) - 1020));
    for (int k = 1; k < 1023; ++k)           // where log(u) changes its power of two
        for (double v : {std::ldexp(0.7071067811865476, k) - 1, std::ldexp(1.0, k) - 1}) x.push_back(v);
    map_registers<double>(x, [](simd<double> v) { return log1p(v); }, [&](double v, double y) {
        g.within(ulp_between(y, std::log1p((long double)v)), 1, v, y);
    });
    const uint64_t infinity = reinterpret<uint64_t>(INF);
    for (uint64_t payload = 1; payload < uint64_t(1) << 52; payload *= 2) {
        const double v = reinterpret<double>(infinity | payload);
        g.that(log1p_one(v) != log1p_one(v), "log1p of the NaN %#llx", (unsigned long long)(infinity | payload));
    }
}

// log(sum of exp) of rows whose sum is near 1. With m = 0 the result is the terms' own and keeps two units of its last place; else it cancels
// against m, and what the terms round beyond float64 remains.
void check_excess_sum(long share) {
    constexpr int w = simd<double>::width;
    group g("excess_sum: log of a sum near 1");
    generator random{9};
    for (long round = 0; round < 20000 / share; ++round) {
        const int n = int(random.bits() % 60) + 1;
        const double m = round % 2 ? 0 : random.uniform(-1, 0.5), spread = round % 4 < 2 ? 3 : 50;
        std::vector<double> x(size_t((n + w - 1) / w * w), -INF);
        long double sum = std::expm1((long double)m);
        for (int i = 0; i < n; ++i) {
            x[size_t(i)] = m - std::log(double(n)) - random.uniform(0, spread);
            sum += std::exp((long double)x[size_t(i)]);
        }
        excess_sum e;
        for (size_t i = 0; i < x.size(); i += w) e.add_exp(simd<double>(load_lanes(&x[i])));
        e.add_largest(m);
        const long double want = std::log1p(sum);
        const double kept = m == 0 ? 0 : 0x1p-55 / std::ldexp(1.0, std::ilogb(want) - 52);
        g.within(std::max(0.0, ulp_between(e.log(), want) - kept), 2, m, e.log());
    }
}

}  // namespace
