// tiles.hpp - checks of products.hpp: both products term by term in the documented order, to the bit; transposes and packing up to the row's end.
#pragma once
#include "check.hpp"
#include "products.hpp"

namespace {

template <class A> const char* arithmetic_name() { return A::terms > 1 ? "pairs" : dtype_name<typename A::compute>(); }

// What a word stands for: its terms as numbers, and a word of given terms.
template <class C> C term_of(C word, int) { return word; }
inline float term_of(bf16_pair word, int i) { return widened(bf16{uint16_t(word.bits >> (16 * i))}); }
template <class A> typename A::word random_word(generator& random) {
    if constexpr (A::terms == 1) return typename A::word(random.uniform(-2, 2));
    else return {uint32_t(narrowed<bf16>(float(random.uniform(-2, 2))).bits) | uint32_t(narrowed<bf16>(float(random.uniform(-2, 2))).bits) << 16};
}
template <class A> exact_array<typename A::word> random_words(ptrdiff_t n, generator& random) {
    exact_array<typename A::word> words(n);
    for (ptrdiff_t i = 0; i < n; ++i) words[i] = random_word<A>(random);
    return words;
}
// One lane of multiply_add, or what pairs are held to: their instruction's own order of two terms is not told.
template <class C> C plain_fused(C a, C b, C c) { return HAS_FMA ? std::fma(a, b, c) : a * b + c; }
template <class A> struct plain_sum {
    using C = typename A::compute;
    C lane = 0;
    double exact = 0, size = 0;
    void add(typename A::word a, typename A::word b) {
        for (int i = 0; i < A::terms; ++i) {
            const double product = double(term_of(a, i)) * double(term_of(b, i));
            exact += product;
            size += std::fabs(product);
            lane = plain_fused(C(term_of(a, i)), C(term_of(b, i)), lane);
        }
    }
    bool is(C got, ptrdiff_t terms, double more = 0) const {
        if (A::terms == 1) return same(got, lane);
        return std::fabs(double(got) - exact) <= (double(terms) * size + more) * 0x1p-23;
    }
};

template <class A> void check_scores() {
    using C = typename A::compute;
    const title name("score_panel, every number of rows,", arithmetic_name<A>());
    group g(name.text);
    generator random{20};
    for (int rows = 1; rows <= TILE_ROWS; ++rows)
        for (ptrdiff_t inner : {1, 2, 3, 7, 16, 33, 130}) {
            const auto q = random_words<A>(inner * TILE_ROWS, random), keys = random_words<A>(inner * PANEL<C>, random);
            const exact_array<C> s((TILE_ROWS - 1) * KEY_BLOCK<C> + PANEL<C>, C(-77));
            score_panel<A>(rows, q.data(), keys.data(), inner, s.data());
            for (int r = 0; r < TILE_ROWS; ++r)
                for (int j = 0; j < (r == TILE_ROWS - 1 ? PANEL<C> : KEY_BLOCK<C>); ++j) {
                    const C got = s[r * KEY_BLOCK<C> + j];
                    if (r < rows && j < PANEL<C>) {
                        plain_sum<A> want;
                        for (ptrdiff_t e = 0; e < inner; ++e) want.add(q[e * TILE_ROWS + r], keys[e * PANEL<C> + j]);
                        g.that(want.is(got, inner), "%d rows, inner %td, row %d, key %d: %a, not %a", rows, inner, r, j, double(got), double(want.lane));
                    } else if (r >= tile_rows_for(rows) || j >= PANEL<C>) {
                        g.that(got == C(-77), "%d rows: wrote row %d, key %d", rows, r, j);
                    }
                }
        }
}

// Where word k of column c lies: panels of PANEL columns one after the other, the last one narrower where only half of it exists.
template <class C> ptrdiff_t value_place(ptrdiff_t c, ptrdiff_t k, ptrdiff_t columns, ptrdiff_t inner) {
    const ptrdiff_t panel = c / PANEL<C>, wide = std::min<ptrdiff_t>(PANEL<C>, columns - panel * PANEL<C>);
    return panel * PANEL<C> * inner + k * wide + c % PANEL<C>;
}
inline uint64_t random_panels(int count, generator& random) {
    uint64_t panels = random.bits() & random.bits();
    if (random.bits() % 4 == 0) panels = ~uint64_t(0);
    panels &= (uint64_t(1) << count) - 1;
    return panels ? panels : uint64_t(1) << random.bits() % uint64_t(count);
}
// By hand, not runs_of, which is checked elsewhere.
template <class C> key_runs plain_runs(uint64_t panels) {
    key_runs runs;
    for (int p = 0; p < PANELS<C>; ++p) {
        const bool here = panels >> p & 1, before = p && panels >> (p - 1) & 1;
        if (here && !before) runs.start[runs.count++] = p * PANEL<C>;
        if (here) runs.stop[runs.count - 1] = (p + 1) * PANEL<C>;
    }
    return runs;
}

template <class A> void check_values() {
    using C = typename A::compute;
    constexpr ptrdiff_t width = simd<C>::width, inner = KEY_BLOCK<C> / A::terms;
    const title name("value_product, every number of rows,", arithmetic_name<A>());
    group g(name.text);
    generator random{21};
    for (int rows = 1; rows <= TILE_ROWS; ++rows)
        for (ptrdiff_t columns : {width, 2 * width, 3 * width, 5 * width}) {
            const auto p = random_words<A>(TILE_ROWS * inner, random), v = random_words<A>(inner * columns, random);
            const key_runs runs = plain_runs<C>(random_panels(PANELS<C>, random));
            const exact_array<C> o(TILE_ROWS * columns), alpha(TILE_ROWS);
            for (ptrdiff_t i = 0; i < TILE_ROWS * columns; ++i) o[i] = C(random.uniform(-9, 9));
            for (int r = 0; r < TILE_ROWS; ++r) alpha[r] = C(r % 3 ? random.uniform(0, 1) : r % 2);
            const std::vector<C> before(o.data(), o.data() + o.size());
            value_product<A>(rows, p.data(), v.data(), runs, alpha.data(), o.data(), columns);
            for (ptrdiff_t r = 0; r < TILE_ROWS; ++r)
                for (ptrdiff_t c = 0; c < columns; ++c) {
                    const C old = before[size_t(r * columns + c)], got = o[r * columns + c];
                    if (r >= tile_rows_for(rows)) g.that(same(got, old), "%d rows: wrote row %td", rows, r);
                    if (r >= rows) continue;
                    plain_sum<A> want;
                    for (int i = 0; i < runs.count; ++i)
                        for (ptrdiff_t k = runs.start[i] / A::terms; k < runs.stop[i] / A::terms; ++k)
                            want.add(p[r * inner + k], v[value_place<C>(c, k, columns, inner)]);
                    want.lane = plain_fused(alpha[r], old, want.lane);
                    want.exact += double(alpha[r]) * double(old);
                    g.that(want.is(got, inner, 10), "%d rows, %td columns: row %td, column %td: %a, not %a", rows, columns, r, c, double(got), double(want.lane));
                }
        }
}

template <class C> void check_transpose() {
    const title name("transpose", dtype_name<C>());
    group g(name.text);
    constexpr int width = simd<C>::width;
    vec_of<C> r[width];
    for (int i = 0; i < width; ++i)
        for (int j = 0; j < width; ++j) r[i][j] = C(i * 100 + j);
    transpose(r);
    for (int i = 0; i < width; ++i)
        for (int j = 0; j < width; ++j) g.that(r[i][j] == C(j * 100 + i), "lane %d of register %d is %g", j, i, double(r[i][j]));
}

// A number of the storage, at times one that is not finite.
template <class S> S odd_element(generator& random) {
    const uint64_t kind = random.bits() % 40;
    return element_of<S>(kind == 0 ? INF : kind == 1 ? -INF : kind == 2 ? NAN : random.uniform(-3, 3));
}
template <class S> exact_array<S> odd_elements(ptrdiff_t n, generator& random) {
    exact_array<S> row(n);
    for (ptrdiff_t e = 0; e < n; ++e) row[e] = odd_element<S>(random);
    return row;
}

// Word e of a row, 0 past its end.
template <class A, class S> typename A::word plain_word(const exact_array<S>& row, ptrdiff_t e) {
    if constexpr (A::terms == 1) return lane_of(row[e]);
    else return {uint32_t(row[2 * e].bits) | (2 * e + 1 < ptrdiff_t(row.size()) ? uint32_t(row[2 * e + 1].bits) << 16 : 0)};
}
template <class W> bool same_word(W a, W b) {
    if constexpr (std::is_same<W, bf16_pair>::value) return a.bits == b.bits;
    else return same(a, b);
}

// Rows of exactly `dim` elements. Steps below a register's width are what queries are packed with: each column overwrites the end of the one before.
template <class A, class S> void check_transposed_packing() {
    using C = typename A::compute;
    using word = typename A::word;
    constexpr int width = simd<C>::width;
    const title name(A::terms > 1 ? "pack_transposed to pairs" : sizeof(C) == 4 ? "pack_transposed to f32" : "pack_transposed to f64", dtype_name<S>());
    group g(name.text);
    generator random{22};
    for (int count = 1; count <= width; ++count)
        for (ptrdiff_t dim : {1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 47, 67})
            for (ptrdiff_t step : {ptrdiff_t(PANEL<C>), ptrdiff_t(TILE_ROWS)}) {
                std::vector<exact_array<S>> rows;
                std::vector<const char*> starts;
                for (int i = 0; i < count; ++i) {
                    rows.push_back(odd_elements<S>(dim, random));
                    starts.push_back((const char*)rows.back().data());
                }
                const ptrdiff_t words = (dim + A::terms - 1) / A::terms;
                const exact_array<word> dst((words - 1) * step + width);
                pack_transposed<A, S>(starts.data(), count, dim, dst.data(), step);
                for (ptrdiff_t e = 0; e < words; ++e)
                    for (int i = 0; i < (e + 1 < words ? std::min<ptrdiff_t>(step, width) : width); ++i)
                        g.that(same_word(dst[e * step + i], plain_word<A>(rows[size_t(std::min(i, count - 1))], e)), "%d rows of %td: row %d, word %td", count, dim, i, e);
            }
}

template <class A, class S> void check_value_packing() {
    using C = typename A::compute;
    using word = typename A::word;
    constexpr ptrdiff_t width = simd<C>::width, inner = KEY_BLOCK<C> / A::terms;
    const title name(A::terms > 1 ? "value_packer to pairs" : sizeof(C) == 4 ? "value_packer to f32" : "value_packer to f64", dtype_name<S>());
    group g(name.text);
    generator random{23};
    for (ptrdiff_t dim = 1; dim <= 5 * width; ++dim)
        for (int round = 0; round < 4; ++round) {
            const ptrdiff_t columns = (dim + width - 1) / width * width, k = round == 3 ? inner - 1 : ptrdiff_t(random.bits() % inner);
            const bool alone = round == 1;
            auto first = odd_elements<S>(dim, random), second = odd_elements<S>(dim, random);
            if (round == 0)
                for (ptrdiff_t e = 0; e < dim; ++e) first[e] = second[e] = element_of<S>(double(e) + 0.5);
            bool finite = true;
            const auto kept = [&finite](S x) { return std::isfinite(lane_of(x)) ? x : (finite = false, element_of<S>(0)); };
            const exact_array<word> dst(inner * columns, word{});
            std::memset((void*)dst.data(), 0x5a, dst.size() * sizeof(word));
            const bool told = value_packer<A, S>::pack(first.data(), A::terms > 1 && !alone ? second.data() : nullptr, dim, k, columns, dst.data());
            for (ptrdiff_t c = 0; c < columns; ++c) {
                exact_array<S> terms(2, element_of<S>(0));
                if (c < dim) terms[0] = kept(first[c]);
                if (c < dim && A::terms > 1 && !alone) terms[1] = kept(second[c]);
                word& got = dst[value_place<C>(c, k, columns, inner)];
                g.that(same_word(got, plain_word<A>(terms, 0)), "%td of %td at %td is wrong", c, dim, k);
                std::memset((void*)&got, 0x5a, sizeof got);
            }
            g.that(told == finite, "%td: all finite: %d, told %d", dim, finite, told);
            const char* bytes = (const char*)dst.data();
            const ptrdiff_t size = ptrdiff_t(dst.size() * sizeof(word));
            g.that(std::count(bytes, bytes + size, char(0x5a)) == size, "%td at %td: wrote elsewhere", dim, k);
        }
}

template <class A> void check_products() {
    check_scores<A>();
    check_values<A>();
}
template <class A, class S> void check_packing() {
    check_transposed_packing<A, S>();
    check_value_packing<A, S>();
}

}  // namespace
