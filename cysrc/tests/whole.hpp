// whole.hpp - checks of schedule.hpp: whole calls of every form, with random options, against plain_attention.
#pragma once
#include <memory>
#include "plain_attention.hpp"

namespace {

enum call_form { PLAIN, VARLEN, PAGED };
struct call_shape {
    ptrdiff_t batch, heads_k, group, queries, keys, dim, dim_v;
};
// Few rows a head of keys (decode.hpp), with one run of keys and several; then many (tiled.hpp), about the edges of tiles, panels and blocks.
constexpr call_shape CALL_SHAPES[] = {
    {1, 1, 1, 1, 1, 1, 1},     {2, 2, 3, 1, 37, 33, 20},  {4, 1, 12, 1, 70, 16, 16},  {1, 2, 2, 5, 300, 64, 65},  {1, 1, 1, 7, 2100, 5, 3},
    {2, 1, 2, 1, 1025, 8, 40}, {3, 2, 1, 3, 0, 4, 4},     {2, 2, 3, 11, 50, 33, 20},  {2, 1, 1, 64, 65, 16, 16},  {1, 1, 2, 70, 300, 20, 130},
    {1, 1, 1, 13, 4300, 3, 2}, {1, 1, 1, 200, 17, 65, 1}, {4, 1, 1, 25, 33, 1, 7},    {1, 1, 3, 150, 9, 8, 8},    {1, 1, 1, 14, 40, 300, 301},
    {1, 1, 1, 14, 290, 520, 600}, {2, 1, 1, 31, 0, 4, 4}, {1, 3, 8, 4, 129, 17, 31},
};

// Dtypes of q, k, v and out that go different ways.
struct call_codes { int q, k, v, out; };
template <class C> std::vector<call_codes> codes_of() {
    if (sizeof(C) == 8)
        return {{CODE_F64, CODE_F64, CODE_F64, CODE_F64}, {CODE_F64, CODE_F32, CODE_I8, CODE_F64}, {CODE_F64 | CODE_SWAPPED, CODE_F64 | CODE_SWAPPED, CODE_F64, CODE_F64}};
    return {{CODE_F32, CODE_F32, CODE_F32, CODE_F32}, {CODE_BF16, CODE_BF16, CODE_BF16, CODE_BF16}, {CODE_F16, CODE_F16, CODE_F16, CODE_F16},
            {CODE_F32, CODE_BF16, CODE_BF16, CODE_F32}, {CODE_F16, CODE_F32, CODE_I8, CODE_F32}, {CODE_F32, CODE_F32 | CODE_SWAPPED, CODE_F16, CODE_F32}};
}

template <class C> struct whole_call {
    using W = typename std::conditional<sizeof(C) == 4, double, long double>::type;
    generator& random;
    const call_form form;
    const call_shape n;
    const bool state;
    plain_attention plain;
    attention_task t;
    std::vector<std::unique_ptr<tensor>> held;
    tensor *out = nullptr, *lse = nullptr, *m = nullptr, *d = nullptr;

    bool chance(uint64_t one_in) { return random.bits() % one_in == 0; }
    ptrdiff_t up_to(ptrdiff_t most) { return ptrdiff_t(random.bits() % uint64_t(most + 1)); }
    memory_order any_order() { return chance(2) ? IN_ORDER : memory_order(random.bits() % ORDERS); }
    tensor* make(int op, std::initializer_list<ptrdiff_t> extents, int code, bool batched = true, memory_order order = IN_ORDER) {
        held.push_back(std::make_unique<tensor>(extents, order, code));
        tensor* x = held.back().get();
        t.base[op] = x->base;
        t.code[op] = code;
        t.head[op] = x->shape[1] == 1 ? 0 : x->stride[1];
        t.row[op] = x->shape[2] == 1 ? 0 : x->stride[2];
        t.item[op] = x->stride[3];
        const ptrdiff_t batch = batched && x->shape[0] > 1 ? x->stride[0] : 0;
        // two axes of the batch where it can be cut
        if (t.batch_axes == 2) t.batch_stride[0][op] = 2 * batch;
        t.batch_stride[std::max(t.batch_axes, 1) - 1][op] = batch;
        return x;
    }

    whole_call(generator& r, call_form which, const call_shape& shape, const call_codes& codes) : random(r), form(which), n(shape), state(random.bits() % 4 == 0) {
        plain.sequences = t.sequences = n.batch;
        plain.heads_k = t.heads_k = n.heads_k;
        plain.group = t.group = n.group;
        plain.queries = t.queries = n.queries;
        plain.keys = t.keys = n.keys;
        t.dim = n.dim;
        t.dim_v = n.dim_v;
        if (form != VARLEN) {
            t.batch_axes = form == PLAIN && n.batch % 2 == 0 ? 2 : 1;
            t.batch_shape[0] = t.batch_axes == 2 ? n.batch / 2 : n.batch;
            t.batch_shape[1] = 2;
        }
        make_sequences();
        make_operands(codes);
        make_options();
        make_outputs(state ? sizeof(C) == 8 ? CODE_F64 : CODE_F32 : codes.out);
    }
    // Lengths, starts and pages; in the varlen form shape.queries and shape.keys are those of all sequences together.
    void make_sequences() {
        if (form == VARLEN)
            for (auto [starts, total] : {std::pair<std::vector<int64_t>*, ptrdiff_t>{&plain.q_starts, n.queries}, {&plain.k_starts, n.keys}}) {
                for (ptrdiff_t i = 0; i <= n.batch; ++i) starts->push_back(i == 0 ? 0 : i == n.batch ? total : up_to(total));
                std::sort(starts->begin(), starts->end());
            }
        if (form == PAGED || chance(3))
            for (ptrdiff_t s = 0; s < n.batch; ++s) plain.lengths.push_back(chance(4) ? n.keys : up_to(n.keys));
        if (form == PAGED) {
            plain.page_size = t.page_size = 1 + up_to(40);
            plain.pages_each = t.pages_each = (n.keys + t.page_size - 1) / t.page_size;
            plain.keys = t.keys = t.pages_each * t.page_size;
            std::vector<int64_t> free;
            for (int64_t i = 0; i < n.batch * t.pages_each + 2; ++i) free.insert(free.begin() + up_to(i), i);
            for (ptrdiff_t s = 0; s < n.batch; ++s)
                for (ptrdiff_t i = 0; i < t.pages_each; ++i) {
                    const bool used = i * t.page_size < plain.lengths[size_t(s)];
                    plain.page.push_back(used ? free.back() : int64_t(1) << 50);        // past the last used page: anything
                    if (used) free.pop_back();
                }
            t.pages = plain.page.data();
        }
        if (!plain.q_starts.empty()) t.q_starts = plain.q_starts.data(), t.k_starts = plain.k_starts.data();
        if (!plain.lengths.empty()) t.lengths = plain.lengths.data();
    }
    void make_operands(const call_codes& codes) {
        const ptrdiff_t batch = form == VARLEN ? 1 : n.batch, shared = form == PLAIN && chance(4) ? 1 : batch;
        tensor* q = make(AT_Q, {batch, n.heads_k * n.group, n.queries, n.dim}, codes.q, true, any_order());
        q->fill([&] { return random.uniform(-2, 2); });
        plain.q = q;
        const bool odd = chance(3);          // keys and values that are not finite, for those who see them
        for (int op : {AT_K, AT_V}) {
            const int code = op == AT_K ? codes.k : codes.v;
            const ptrdiff_t width = op == AT_K ? n.dim : n.dim_v, most = code == CODE_I8 ? 100 : 2;
            tensor* x = form == PAGED ? make(op, {n.batch * t.pages_each + 2, n.heads_k, t.page_size, width}, code, false, any_order())
                                      : make(op, {shared, n.heads_k, n.keys, width}, code, true, any_order());
            if (form == PAGED) t.page_stride[op] = x->stride[0];
            const uint64_t rare = uint64_t(op == AT_K ? 30 * width : 10 * width);
            x->fill([&] { return odd && code != CODE_I8 && chance(rare) ? (chance(3) ? INF : chance(2) ? -INF : NAN) : random.uniform(-double(most), double(most)); });
            (op == AT_K ? plain.k : plain.v) = x;
        }
    }
    void make_options() {
        const ptrdiff_t batch = form == VARLEN ? 1 : n.batch, heads = n.heads_k * n.group;
        ptrdiff_t keys = plain.keys;
        if (form == VARLEN)
            for (ptrdiff_t s = keys = 0; s < n.batch; ++s) keys = std::max<ptrdiff_t>(keys, plain.k_starts[size_t(s) + 1] - plain.k_starts[size_t(s)]);
        const double scales[] = {0, -0.3, 0.125, -2, 1e-25, 3};          // folded into the queries, or a unit of the scores
        plain.scale = t.scale = chance(2) ? scales[up_to(5)] : 1 / std::sqrt(double(n.dim));
        if (chance(4)) plain.softcap = t.softcap = random.uniform(0.5, 3);
        if (chance(2)) plain.right = t.right = chance(2) ? 0 : up_to(40);
        if (chance(3)) plain.left = t.left = up_to(40);
        if (plain.left >= 0 || plain.right >= 0 || chance(3)) {
            for (ptrdiff_t s = 0; s < n.batch; ++s) plain.offsets.push_back(chance(2) ? plain.keys_of(s) - plain.queries_of(s) : up_to(30) - 15);
            t.offsets = plain.offsets.data();
        }
        if (!plain.offsets.empty() && chance(3)) {
            for (ptrdiff_t i = 0; i < n.batch * heads; ++i) plain.slopes.push_back(random.uniform(0, 0.2));
            t.slopes = plain.slopes.data();
        }
        if (!state && chance(4)) {
            for (ptrdiff_t i = 0; i < heads; ++i) plain.sinks.push_back(chance(6) ? -INF : random.uniform(-2, 2));
            t.sinks = plain.sinks.data();
        }
        const auto extent = [&](ptrdiff_t whole) { return chance(3) ? 1 : whole; };
        if (chance(4)) {
            tensor* x = make(AT_MASK, {extent(batch), extent(heads), extent(n.queries), keys}, CODE_BOOL, true, any_order());
            x->fill([&] { return double(!chance(4)); });
            plain.mask = x;
        }
        if (chance(4)) {
            const int codes[] = {CODE_F32, CODE_F64, CODE_F16, CODE_F32 | CODE_SWAPPED};
            tensor* x = make(AT_BIAS, {extent(batch), extent(heads), extent(n.queries), keys}, codes[up_to(3)], true, any_order());
            x->fill([&] { return chance(20) ? -INF : random.uniform(-1, 1); });
            plain.bias = x;
        }
        if (form == PLAIN && n.keys && chance(4)) {
            plain.block_q = t.block_q = 1 + up_to(20);
            plain.block_k = t.block_k = 1 + up_to(90);
            tensor* x = make(AT_BLOCK_MASK, {extent(batch), extent(heads), (n.queries + t.block_q - 1) / t.block_q, (keys + t.block_k - 1) / t.block_k}, CODE_BOOL);
            x->fill([&] { return double(chance(2)); });
            plain.block_mask = x;
            if (x->shape[2] == 1) t.row[AT_BLOCK_MASK] = 0;
        }
    }
    void make_outputs(int code) {
        const ptrdiff_t batch = form == VARLEN ? 1 : n.batch, heads = n.heads_k * n.group;
        out = make(AT_OUT, {batch, heads, n.queries, n.dim_v}, code, true, any_order());
        if (state) {
            m = make(AT_M, {batch, heads, n.queries, 1}, CODE_F64, true, any_order());
            d = make(AT_D, {batch, heads, n.queries, 1}, CODE_F64, true, any_order());
        } else if (!chance(4)) {
            lse = make(AT_LSE, {batch, heads, n.queries, 1}, sizeof(C) == 8 ? CODE_F64 : CODE_F32, true, any_order());
        }
    }
    std::vector<tensor*> results() const {
        std::vector<tensor*> all;
        for (tensor* x : {out, lse, m, d})
            if (x) all.push_back(x);
        return all;
    }

    static bool near(double got, double want, double off) { return got == want || (got != got && want != want) || (std::isfinite(want) && std::fabs(got - want) <= off); }
    void check_row(group& g, const char* what, ptrdiff_t s, ptrdiff_t h, ptrdiff_t i) {
        const double eps = std::numeric_limits<C>::epsilon();
        const int code = out->code;
        const bool pairs = t.code[AT_Q] == CODE_BF16 && t.code[AT_K] == CODE_BF16 && t.code[AT_V] == CODE_BF16;
        const double stored = code == CODE_F16 ? 0x1p-11 : code == CODE_BF16 ? 0x1p-8 : eps;
        plain_row want = plain.template answer<W>(s, h, i, eps, pairs ? 0x1p-8 : 0);
        if (!state) plain_attention::normalize(want);
        const auto at = plain.row(s, i);
        for (ptrdiff_t e = 0; e < n.dim_v; ++e) {
            const double got = out->get(at.first, h, at.second, e), x = want.out[size_t(e)];
            const double least = std::max(double(std::numeric_limits<C>::min()), code == CODE_F16 ? 0x1p-24 : 0);      // weights may underflow
            g.that(near(got, x, want.off[size_t(e)] + stored * std::fabs(x) + least),
                   "%s: sequence %td, head %td, query %td: out[%td] is %.9g, not %.9g", what, s, h, i, e, got, x);
        }
        const auto pair = [&](const char* name, tensor* x, double wanted, double off) {
            if (!x) return;
            const double got = x->get(at.first, h, at.second, 0);
            g.that(near(got, wanted, off), "%s: sequence %td, head %td, query %td: %s is %.9g, not %.9g", what, s, h, i, name, got, wanted);
        };
        pair("lse", lse, want.lse, want.lse_off);
        if (want.d == want.d) pair("m", m, want.m, want.lse_off);        // beside a NaN m may be anything
        pair("d", d, want.d, want.d * want.lse_off);
    }
    void check(group& g, const char* what, int threads) {
        g.that(run_attention<C>(t, 1), "%s: no memory", what);
        std::vector<std::vector<char>> before;
        for (tensor* x : results()) {
            before.emplace_back(x->memory.data(), x->memory.data() + x->memory.size());
            x->read();
        }
        for (ptrdiff_t s = 0; s < n.batch; ++s)
            for (ptrdiff_t h = 0; h < n.heads_k * n.group; ++h)
                for (ptrdiff_t i = 0; i < plain.queries_of(s); ++i) check_row(g, what, s, h, i);
        run_attention<C>(t, threads);
        for (size_t i = 0; i < before.size(); ++i) {
            tensor* x = results()[i];
            const bool same_bits = before[i].empty() || std::memcmp(before[i].data(), x->memory.data(), before[i].size()) == 0;
            g.that(same_bits, "%s: other bits for work cut for %d threads", what, threads);
            g.that(!x->wrote_outside(), "%s: wrote outside of an output's elements", what);
        }
    }
};

template <class C> void check_whole(call_form form, long share) {
    const char* names[] = {"attention", "attention, varlen", "attention, paged"};
    const title name(names[form], dtype_name<C>());
    group g(name.text);
    generator random{28 + uint64_t(form)};
    int call = 0;
    for (const call_shape& shape : CALL_SHAPES)
        for (const call_codes& codes : codes_of<C>()) {
            if (++call % share) continue;
            char what[96];
            std::snprintf(what, sizeof what, "call %d (%td,%td,%td,%td,%td,%td,%td)", call, shape.batch, shape.heads_k, shape.group, shape.queries, shape.keys, shape.dim, shape.dim_v);
            const uint64_t seed = random.bits();
            generator own{seed};
            whole_call<C>(own, form, shape, codes).check(g, what, 2 + call % 6);
        }
}

}  // namespace
