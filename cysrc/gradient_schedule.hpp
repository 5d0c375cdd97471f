// gradient_schedule.hpp - the gradients of attention cut into pieces of work: first what every row needs, then keys by runs, then dq from its parts.
//
// A run of keys is one thread's: it owns the run's dk and dv, and its part of dq. Runs lie at places that follow from a sequence's own keys, at
// most RUNS_MOST of them, and their parts of dq are added in order, whoever computed them: no bit depends on the threads, and memory is a few dq.
// Heads and sequences that add to the same gradient of a bias wait for each other, in waves.
#pragma once
#include <map>
#include "gradient.hpp"
#include "schedule.hpp"

namespace {

constexpr ptrdiff_t SHORTEST_RUN = 512, RUNS_MOST = 8;
// Beyond this size of an lse its rounding shows in exp(s - lse): in a gradient that few rows make up sooner than in one where many rows' errors
// are summed.
constexpr ptrdiff_t MANY_GRADIENT_ROWS = 512;
constexpr double LARGE_LSE = 16, LARGE_LSE_OF_FEW = 1;

// Keys of a run, at multiples of it.
inline ptrdiff_t gradient_run(ptrdiff_t keys) { return (keys / RUNS_MOST / SHORTEST_RUN + 1) * SHORTEST_RUN; }

struct gradient_item {
    ptrdiff_t sequence, head, lo, hi;
    double cost;
    ptrdiff_t slot;                 // of its part of dq among the parts that are kept; -1 where it finishes dq itself
};
struct row_item {
    ptrdiff_t sequence, head, first, last;
};
struct sum_item {
    ptrdiff_t sequence, head, slot, parts;
};

template <class A> struct gradient_call {
    using C = typename A::compute;
    const gradient_task& g;
    const gradient_plan<A> plan;
    std::unique_ptr<C[]> row_memory, parts;
    std::unique_ptr<double[]> sink_terms;       // of each row, where wanted
    std::vector<row_item> rows;
    std::vector<std::vector<gradient_item>> waves;
    std::vector<sum_item> sums;
    ptrdiff_t all_rows = 0;
    double work = 0;

    explicit gradient_call(const gradient_task& task) : g(task), plan(task.inputs) {}

    ptrdiff_t first_row(const sequence& q, ptrdiff_t head) const {
        const attention_task& t = g.inputs;
        const ptrdiff_t before = t.q_starts ? ptrdiff_t(t.q_starts[q.index]) : q.index * t.queries;
        return (before * t.heads_k + head * q.queries) * t.group;
    }
    row_numbers<C> numbers(ptrdiff_t row) const {
        C* memory = row_memory.get();
        return row_numbers<C>{memory, memory + all_rows, memory + 2 * all_rows, memory + 3 * all_rows}.from(row);
    }
    ptrdiff_t rows_in_tiles(const sequence& q) const { return (q.queries * g.inputs.group + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS; }
    size_t part_size(const sequence& q) const { return size_t(rows_in_tiles(q) * plan.columns); }

    // ---- the schedule
    void schedule(int threads) {
        const attention_task& t = g.inputs;
        ptrdiff_t units = 0, slots = 0;
        for (ptrdiff_t s = 0; s < t.sequences; ++s) {
            const sequence q(t, s);
            all_rows += q.queries * t.heads_k * t.group;
            units += q.queries ? t.heads_k : 0;
        }
        const bool bias_by_key = !g.wants(AT_BIAS) || g.gradients.item[AT_BIAS] != 0, split = threads > 1 && units < 4 * threads && bias_by_key;
        std::map<const char*, size_t> adding;
        for (ptrdiff_t s = 0; s < t.sequences; ++s) {
            const sequence q(t, s), d(g.gradients, s);
            const ptrdiff_t count = q.queries * t.group;
            for (ptrdiff_t head = 0; count && head < t.heads_k; ++head) {
                for (ptrdiff_t first = 0; first < count; first += plan.rows) rows.push_back({s, head, first, std::min(count, first + plan.rows)});
                const size_t wave = g.wants(AT_BIAS) ? adding[d.at(AT_BIAS, head * t.group, 0)]++ : 0;
                if (wave >= waves.size()) waves.resize(wave + 1);
                add_keys(q, head, split, waves[wave], slots);
            }
        }
        for (auto& wave : waves) std::stable_sort(wave.begin(), wave.end(), [](const gradient_item& a, const gradient_item& b) { return a.cost > b.cost; });
        parts.reset(slots ? new C[size_t(slots)] : nullptr);
        row_memory.reset(new C[size_t(4 * all_rows)]);
        if (g.sinks) sink_terms.reset(new double[size_t(all_rows)]);
    }
    void add_keys(const sequence& q, ptrdiff_t head, bool split, std::vector<gradient_item>& wave, ptrdiff_t& slots) {
        const ptrdiff_t run = gradient_run(q.keys), count = (q.keys + run - 1) / run;
        const double each = double(q.queries * g.inputs.group) * double(plan.dim + plan.dim_v);
        work += each * double(q.keys) * 2.5;
        if (!split || count <= 1) return wave.push_back({q.index, head, 0, q.keys, cost(q, 0, q.keys), -1});
        const bool kept = g.wants(AT_Q);
        const ptrdiff_t size = ptrdiff_t(part_size(q));
        for (ptrdiff_t i = 0; i < count; ++i) {
            const ptrdiff_t lo = i * run, hi = std::min(q.keys, lo + run);
            wave.push_back({q.index, head, lo, hi, cost(q, lo, hi), kept ? slots + i * size : -1});
        }
        if (!kept) return;
        sums.push_back({q.index, head, slots, count});
        slots += count * size;
    }
    // Scores of these keys that positions leave visible, roughly.
    double cost(const sequence& q, ptrdiff_t lo, ptrdiff_t hi) const {
        double scores = double(q.queries);      // what comes whatever is seen
        for (ptrdiff_t j0 = lo; j0 < hi; j0 += KEY_BLOCK<C>) {
            const ptrdiff_t j1 = std::min(hi, j0 + KEY_BLOCK<C>);
            const key_range seen = queries_that_see(q, j0, j1);
            scores += double(std::max<ptrdiff_t>(0, seen.hi - seen.lo)) * double(j1 - j0);
        }
        return scores;
    }

    // ---- what every row needs
    void settle_rows(const row_item& w, char* memory) {
        const attention_task &t = g.inputs, &u = g.gradients;
        const sequence q(t, w.sequence), d(u, w.sequence);
        const row_numbers<C> out = numbers(first_row(q, w.head) + w.first);
        gradient_rows<A> kernel(g, w.sequence, w.head, memory, numbers(first_row(q, w.head)));
        const double unit = t.has_options() ? 1 : kernel.scale.unit, inf = std::numeric_limits<double>::infinity();
        std::vector<double> lse(size_t(w.last - w.first));
        bool large = false;
        const double most = largest_exact(q.queries * t.group);
        for (ptrdiff_t r = w.first; r < w.last; ++r) {
            const row_of at(t, w.head, r);
            double& x = lse[size_t(r - w.first)];
            gather_for<double>(t.code[AT_LSE])(q.at(AT_LSE, at.h, at.i), 0, 1, &x);
            large |= is_finite(x) && std::fabs(x) > most;
        }
        kernel.settle_deltas(w.first, w.last, out.delta);
        std::vector<row_states<C>> states(large ? size_t((w.last - w.first + TILE_ROWS - 1) / TILE_ROWS) : 0);
        if (large) kernel.sum_rows(w.first, w.last, states.data());
        for (ptrdiff_t i = 0; i < w.last - w.first; ++i) {
            const row_of at(t, w.head, w.first + i);
            double x = lse[size_t(i)], of_lse = 0;
            if (u.base[AT_LSE]) gather_for<double>(u.code[AT_LSE])(d.at(AT_LSE, at.h, at.i), 0, 1, &of_lse);
            out.delta[i] = x == -inf ? C(0) : C(double(out.delta[i]) - of_lse);
            out.weight[i] = 1;
            out.shift[i] = is_finite(x) ? C(x / unit) : C(0);
            out.rest[i] = C(is_finite(x) ? std::fma(-double(out.shift[i]), unit, x) : x == -inf ? inf : std::numeric_limits<double>::quiet_NaN());
            if (large && is_finite(x) && std::fabs(x) > most) refine(states[size_t(i / TILE_ROWS)], i % TILE_ROWS, at.h, unit, x, out.from(i));
            if (sink_terms) sink_terms[size_t(first_row(q, w.head) + w.first + i)] = sink_term(t.sinks[at.h], x, double(out.delta[i]));
        }
    }
    bool lse_is_wide() const { return (g.inputs.code[AT_LSE] & ~CODE_SWAPPED) == CODE_F64; }
    double largest_exact(ptrdiff_t count) const {
        if (std::is_same<C, double>::value && !lse_is_wide()) return 0;
        const auto half = [this](int op) { return item_size(g.inputs.code[op]) == 2; };
        const double most = count < MANY_GRADIENT_ROWS ? LARGE_LSE_OF_FEW : LARGE_LSE;
        return half(AT_Q) && half(AT_K) && half(AT_V) ? most * 64 : most;
    }
    // An lse that the row's own scores give but for rounding is taken from them: maximum and sum are known better than their lse, whose spacing
    // grows with it. Any other lse stays what it is: these keys are then a part of all.
    void refine(const row_states<C>& state, ptrdiff_t r, ptrdiff_t h, double unit, double& lse, const row_numbers<C>& out) const {
        const double m = double(state.m[r]), natural = m * unit;
        double sum = state.d[r];
        if (!is_finite(natural) || !is_finite(sum)) return;
        if (g.inputs.sinks) sum += std::exp(g.inputs.sinks[h] - natural);
        const double found = natural + std::log(sum), spacing = std::is_same<C, double>::value && lse_is_wide() ? 0x1p-49 : 0x1p-20;
        if (!(std::fabs(found - lse) <= spacing * std::max(1.0, std::fabs(lse)))) return;
        lse = found;
        *out.shift = C(m);
        *out.rest = 0;
        *out.weight = C(1 / sum);
    }
    static double sink_term(double sink, double lse, double delta) {
        const double inf = std::numeric_limits<double>::infinity();
        if (sink == -inf || lse == -inf) return 0;
        return lse == inf ? std::numeric_limits<double>::quiet_NaN() : -std::exp(sink - lse) * delta;
    }

    // ---- runs of keys
    void run_keys(const gradient_item& w, char* memory) {
        const sequence q(g.inputs, w.sequence);
        gradient_rows<A> kernel(g, w.sequence, w.head, memory, numbers(first_row(q, w.head)));
        const bool wanted = g.wants(AT_Q);
        const size_t size = wanted ? part_size(q) : 0;
        if (w.slot >= 0) {
            kernel.dq = parts.get() + w.slot;
            std::fill(kernel.dq, kernel.dq + size, C(0));
            return kernel.run(w.lo, w.hi);
        }
        const ptrdiff_t run = gradient_run(q.keys);
        const bool several = w.hi - w.lo > run;
        std::unique_ptr<C[]> total(new C[size]()), part(wanted && several ? new C[size] : nullptr);
        for (ptrdiff_t lo = w.lo; lo < w.hi; lo += run) {
            const bool first = lo == w.lo;
            kernel.dq = first ? total.get() : part.get();
            if (wanted && !first) std::fill(part.get(), part.get() + size, C(0));
            kernel.run(lo, std::min(w.hi, lo + run));
            for (size_t i = 0; wanted && !first && i < size; ++i) total[i] += part[i];
        }
        if (wanted) write_queries(q, w.head, total.get());
    }
    void sum_parts(const sum_item& w) {
        const sequence q(g.inputs, w.sequence);
        const size_t size = part_size(q);
        C* total = parts.get() + w.slot;
        for (ptrdiff_t k = 1; k < w.parts; ++k)
            for (size_t i = 0; i < size; ++i) total[i] += total[size_t(k) * size + i];
        write_queries(q, w.head, total);
    }
    void write_queries(const sequence& q, ptrdiff_t head, C* dq) {
        const attention_task &t = g.inputs, &u = g.gradients;
        const sequence d(u, q.index);
        for (ptrdiff_t r = 0; r < q.queries * t.group; ++r, dq += plan.columns) {
            const row_of at(t, head, r);
            for (ptrdiff_t e = 0; e < plan.dim; ++e) dq[e] = C(double(dq[e]) * t.scale);
            scatter_for<C>(u.code[AT_Q])(dq, plan.dim, d.at(AT_Q, at.h, at.i), u.item[AT_Q]);
        }
    }
    // Sums over rows in their order, those of a sequence before those of the next.
    void sum_sinks() {
        const attention_task& t = g.inputs;
        std::fill(g.sinks, g.sinks + t.heads_q(), 0.0);
        for (ptrdiff_t s = 0; s < t.sequences; ++s) {
            const sequence q(t, s);
            for (ptrdiff_t head = 0; head < t.heads_k; ++head)
                for (ptrdiff_t r = 0; r < q.queries * t.group; ++r) g.sinks[row_of(t, head, r).h] += sink_terms[size_t(first_row(q, head) + r)];
        }
    }
};

// `work` of each of so many items, by the threads as they come free.
template <class function> void share_out(const attention_task& t, ptrdiff_t items, int threads, function work) {
    if (threads <= 1 || items <= 1) {
        for (ptrdiff_t i = 0; i < items; ++i) guarded(t, [&] { work(i); });
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (ptrdiff_t i = 0; i < items; ++i) guarded(t, [&] { work(i); });
}
template <class A> char* gradient_memory(const attention_task& t) {
    char* memory = (char*)work_memory(gradient_rows<A>::bytes(t));
    if (!memory) throw std::bad_alloc();
    return memory;
}

// Whether all five products can be taken of pairs of bfloat16.
template <class C> bool takes_gradient_pairs(const gradient_task& g) {
    return takes_pairs<C>(g.inputs) && g.inputs.code[AT_OUT] == CODE_BF16 && g.gradients.code[AT_OUT] == CODE_BF16;
}

// The whole call. Returns whether there was memory for it.
template <class A> bool run_gradients_by(const gradient_task& g, int threads) {
    const attention_task& t = g.inputs;
    constexpr ptrdiff_t most_dim = ptrdiff_t(1) << 40;         // beyond it sizes in bytes would overflow
    if (t.dim > most_dim || t.dim_v > most_dim) return false;
    try {
        gradient_call<A> call(g);
        call.schedule(threads);
        if (call.work < MIN_PARALLEL_WORK) threads = 1;
        share_out(t, ptrdiff_t(call.rows.size()), threads, [&](ptrdiff_t i) { call.settle_rows(call.rows[size_t(i)], gradient_memory<A>(t)); });
        if (t.failed) return false;
        if (g.sinks) call.sum_sinks();
        for (const auto& wave : call.waves) share_out(t, ptrdiff_t(wave.size()), threads, [&](ptrdiff_t i) { call.run_keys(wave[size_t(i)], gradient_memory<A>(t)); });
        if (!t.failed) share_out(t, ptrdiff_t(call.sums.size()), threads, [&](ptrdiff_t i) { call.sum_parts(call.sums[size_t(i)]); });
        return !t.failed;
    } catch (const std::bad_alloc&) {
        return false;
    }
}
template <class C> bool run_gradients(const gradient_task& g, int threads) {
#if defined(__AVX512BF16__)
    if constexpr (std::is_same<C, float>::value)
        if (takes_gradient_pairs<C>(g)) return run_gradients_by<pair_arithmetic>(g, threads);
#endif
    return run_gradients_by<lane_arithmetic<C>>(g, threads);
}

}  // namespace
