// schedule.hpp - a call of attention cut into pieces of work, and a piece run by the kernel that suits it.
//
// Where keys are cut follows from a sequence's own rows alone, never from the batch or the threads: runs of keys at fixed places, merged
// in order (flash decoding). How many rows make a piece changes no bit and follows the threads.
#pragma once
#include <vector>
#include "decode.hpp"
#include "runtime.hpp"
#include "tiled.hpp"

namespace {

constexpr ptrdiff_t FEW_ROWS_RUN = 1024, MANY_ROWS_RUN = 4096;
constexpr ptrdiff_t SOME_ROWS = 96;             // whose partial results may be kept
constexpr ptrdiff_t FEW_PAIRS = 4;              // from more rows on packing pays, where pairs halve the arithmetic
constexpr double MIN_PARALLEL_WORK = 3e5;       // multiply-adds below which threads cost more than they bring

// Rows whose keys were split: `runs` partial results of each, one run's rows after the other's.
struct merge_item {
    ptrdiff_t sequence, head, first, last, slot, runs;
};

struct attention_schedule {
    std::vector<work_item> items;
    std::vector<merge_item> merges;
    ptrdiff_t slots = 0;
    double work = 0;
};

// Keys of a run, at multiples of it.
inline ptrdiff_t run_length(ptrdiff_t rows) { return rows <= FEW_ROWS ? FEW_ROWS_RUN : MANY_ROWS_RUN; }

// The pieces of rows first <= r < last of one head of keys. `split`: the runs of their keys go to different threads.
inline void add_rows(attention_schedule& plan, const sequence& q, ptrdiff_t head, ptrdiff_t run, ptrdiff_t first, ptrdiff_t last, bool split) {
    const key_range seen = q.seen_by_rows(first, last);
    const ptrdiff_t lo = std::min(seen.lo, q.keys), hi = std::max(lo, seen.hi);
    const ptrdiff_t begin = lo / run, runs = hi > lo ? (hi - 1) / run - begin + 1 : 1, rows = last - first;
    const double each = double(rows) * double(q.t->dim + q.t->dim_v);
    plan.work += each * double(hi - lo);
    if (!split || runs == 1) {
        plan.items.push_back({q.index, head, first, last, lo, hi, run, each * double(hi - lo), -1});
        return;
    }
    for (ptrdiff_t i = 0; i < runs; ++i) {
        const ptrdiff_t from = std::max(lo, (begin + i) * run), to = std::min(hi, (begin + i + 1) * run);
        plan.items.push_back({q.index, head, first, last, from, to, run, each * double(to - from), plan.slots + i * rows});
    }
    plan.merges.push_back({q.index, head, first, last, plan.slots, runs});
    plan.slots += runs * rows;
}

// `most` rows fit a piece of many rows. Enough pieces for every thread to have some, of equal size.
inline ptrdiff_t pieces_of_rows(const attention_task& t, ptrdiff_t rows, ptrdiff_t most, int threads) {
    if (rows <= FEW_ROWS) return 1;
    ptrdiff_t pieces = (rows + most - 1) / most;
    const ptrdiff_t others = t.sequences * t.heads_k, finest = std::max(pieces, rows / (8 * TILE_ROWS));
    while (pieces < finest && others * pieces < 4 * threads && others * pieces % threads) ++pieces;
    return pieces;
}
inline attention_schedule schedule_attention(const attention_task& t, ptrdiff_t most, int threads) {
    attention_schedule plan;
    ptrdiff_t total = 0;
    for (ptrdiff_t s = 0; s < t.sequences && total < 4 * threads; ++s)
        total += t.heads_k * pieces_of_rows(t, sequence(t, s).queries * t.group, most, threads);
    for (ptrdiff_t s = 0; s < t.sequences; ++s) {
        const sequence q(t, s);
        const ptrdiff_t rows = q.queries * t.group;
        if (rows == 0) continue;
        const ptrdiff_t pieces = pieces_of_rows(t, rows, most, threads);
        const ptrdiff_t each = rows <= FEW_ROWS ? rows : ((rows + pieces - 1) / pieces + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        const bool split = threads > 1 && rows <= SOME_ROWS && total < 4 * threads;
        for (ptrdiff_t head = 0; head < t.heads_k; ++head)
            for (ptrdiff_t first = 0; first < rows; first += each)
                add_rows(plan, q, head, run_length(rows), first, std::min(rows, first + each), split);
    }
    // the longest first, so that the last ones to run are short
    std::stable_sort(plan.items.begin(), plan.items.end(), [](const work_item& a, const work_item& b) { return a.cost > b.cost; });
    return plan;
}

// Whether the products can be taken of pairs of bfloat16.
template <class C> bool takes_pairs(const attention_task& t) {
#if defined(__AVX512BF16__)
    const double size = std::fabs(t.scale);
    return std::is_same<C, float>::value && t.code[AT_Q] == CODE_BF16 && t.code[AT_K] == CODE_BF16 && t.code[AT_V] == CODE_BF16 &&
           size > 1e-20 && size < 1e20;
#else
    (void)t;
    return false;
#endif
}

template <class kernel> void run_kernel(const attention_task& t, const work_item& w, const partial_rows<typename kernel::compute>& kept) {
    char* memory = (char*)work_memory(kernel::bytes(t, w));
    if (!memory) throw std::bad_alloc();
    kernel rows(t, w, memory);
    rows.attend();
    end_rows(rows, kept);
}

// One run of keys, by the kernel that suits the number of rows.
template <class C> void run_keys(const attention_task& t, const work_item& w, const partial_rows<C>& kept) {
    const ptrdiff_t queries = t.q_starts ? ptrdiff_t(t.q_starts[w.sequence + 1] - t.q_starts[w.sequence]) : t.queries, rows = queries * t.group;
#if defined(__AVX512BF16__)
    if constexpr (std::is_same<C, float>::value)
        if (rows > FEW_PAIRS && takes_pairs<C>(t)) return run_kernel<tiled_rows<pair_arithmetic>>(t, w, kept);
#endif
    if (rows > FEW_ROWS) return run_kernel<tiled_rows<lane_arithmetic<C>>>(t, w, kept);
    if constexpr (std::is_same<C, float>::value) {
        if (t.direct<bf16>(AT_K) && t.direct<bf16>(AT_V)) return run_kernel<decode_rows<C, bf16, bf16>>(t, w, kept);
        if (t.direct<f16>(AT_K) && t.direct<f16>(AT_V)) return run_kernel<decode_rows<C, f16, f16>>(t, w, kept);
    }
    run_kernel<decode_rows<C, C, C>>(t, w, kept);
}

// Several runs in order, merged as they come.
template <class C> void run_in_order(const attention_task& t, const work_item& w, ptrdiff_t columns) {
    using W = typename wider<C>::type;
    const ptrdiff_t rows = w.last - w.first;
    std::unique_ptr<C[]> o(new C[size_t(rows * columns)]);
    std::unique_ptr<W[]> sums(new W[size_t(rows * columns)]);
    std::vector<double> m(static_cast<size_t>(rows)), d(static_cast<size_t>(rows));
    std::vector<merged_row<C>> merged(static_cast<size_t>(rows));
    for (ptrdiff_t r = 0; r < rows; ++r) merged[size_t(r)].clear(sums.get() + r * columns);
    const partial_rows<C> kept{o.get(), m.data(), d.data(), columns};
    for (ptrdiff_t from = w.lo; from < w.hi; from = (from / w.run + 1) * w.run) {
        work_item one = w;
        one.lo = from;
        one.hi = std::min(w.hi, (from / w.run + 1) * w.run);
        one.slot = 0;
        run_keys<C>(t, one, kept);
        for (ptrdiff_t r = 0; r < rows; ++r) merged[size_t(r)].add(t.dim_v, o.get() + r * columns, m[size_t(r)], d[size_t(r)]);
    }
    const sequence q(t, w.sequence);
    for (ptrdiff_t r = 0; r < rows; ++r) merged[size_t(r)].finish(q, row_of(t, w.head, w.first + r), o.get() + r * columns);
}

// An exception must not leave a thread: it is what the call reports.
template <class work> void guarded(const attention_task& t, work run) {
    if (t.failed) return;
    try {
        run();
    } catch (const std::bad_alloc&) {
        t.failed = 1;
    }
}
template <class C> void run_item(const attention_task& t, const work_item& w, const partial_rows<C>& kept) {
    guarded(t, [&] {
        if (w.slot < 0 && w.hi > w.lo && (w.hi - 1) / w.run > w.lo / w.run) run_in_order<C>(t, w, kept.columns);
        else run_keys<C>(t, w, kept);
    });
}
template <class C> void merge_runs(const attention_task& t, const merge_item& w, const partial_rows<C>& kept) {
    guarded(t, [&] {
        using W = typename wider<C>::type;
        std::unique_ptr<W[]> sums(new W[size_t(kept.columns)]);
        const sequence q(t, w.sequence);
        const ptrdiff_t rows = w.last - w.first;
        for (ptrdiff_t r = 0; r < rows; ++r) {
            merged_row<C> row;
            row.clear(sums.get());
            for (ptrdiff_t i = 0; i < w.runs; ++i) {
                const ptrdiff_t slot = w.slot + i * rows + r;
                row.add(t.dim_v, kept.o + slot * kept.columns, kept.m[slot], kept.d[slot]);
            }
            row.finish(q, row_of(t, w.head, w.first + r), kept.o + (w.slot + r) * kept.columns);
        }
    });
}

// Rows of a piece of many rows, at most.
template <class C> ptrdiff_t rows_of_piece(const attention_task& t) {
#if defined(__AVX512BF16__)
    if constexpr (std::is_same<C, float>::value)
        if (takes_pairs<C>(t)) return tile_plan<pair_arithmetic>(t, ROWS_MOST).rows;
#endif
    return tile_plan<lane_arithmetic<C>>(t, ROWS_MOST).rows;
}

// The whole call. Returns whether there was memory for it.
template <class C> bool run_attention(const attention_task& t, int threads) {
    constexpr ptrdiff_t most_dim = ptrdiff_t(1) << 40;         // beyond it sizes in bytes would overflow
    if (t.dim > most_dim || t.dim_v > most_dim) return false;
    try {
        const attention_schedule plan = schedule_attention(t, rows_of_piece<C>(t), threads);
        const ptrdiff_t items = ptrdiff_t(plan.items.size()), merges = ptrdiff_t(plan.merges.size());
        partial_rows<C> kept;
        kept.columns = (t.dim_v + simd<C>::width - 1) / simd<C>::width * simd<C>::width;
        std::unique_ptr<C[]> outputs(plan.slots ? new C[size_t(plan.slots * kept.columns)] : nullptr);
        std::unique_ptr<double[]> pairs(plan.slots ? new double[size_t(2 * plan.slots)] : nullptr);
        kept.o = outputs.get();
        kept.m = pairs.get();
        kept.d = pairs ? pairs.get() + plan.slots : nullptr;
        threads = plan.work < MIN_PARALLEL_WORK ? 1 : int(std::min<ptrdiff_t>(threads, items));
        if (threads <= 1) {
            for (ptrdiff_t i = 0; i < items; ++i) run_item<C>(t, plan.items[i], kept);
            for (ptrdiff_t i = 0; i < merges; ++i) merge_runs<C>(t, plan.merges[i], kept);
            return !t.failed;
        }
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(dynamic, 1)
            for (ptrdiff_t i = 0; i < items; ++i) run_item<C>(t, plan.items[i], kept);
#pragma omp for schedule(static)
            for (ptrdiff_t i = 0; i < merges; ++i) merge_runs<C>(t, plan.merges[i], kept);
        }
        return !t.failed;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

template <class V> DS_INLINE void hide_value(V& x) {
#if defined(__x86_64__)
    asm volatile("" : "+x"(x));
#else
    asm volatile("" : "+w"(x));
#endif
}
// Multiply-adds in registers, nothing else: what the products are measured against. Returns flops (two a multiply-add).
template <class A> double multiply_add_flops(ptrdiff_t repeats, int threads) {
    using vec = typename A::vec;
#pragma omp parallel num_threads(threads)
    {
        // The compiler must know neither that all are 0 nor that all are equal.
        vec acc[TILE_ROWS] = {}, x{};
        for (int i = 0; i < TILE_ROWS; ++i) hide_value(acc[i]);
        for (ptrdiff_t n = 0; n < repeats; ++n) {
            hide_value(x);
#pragma GCC unroll 16
            for (int i = 0; i < TILE_ROWS; ++i) acc[i] = A::multiply_add(x, x, acc[i]);
        }
        bool found = false;
        for (int i = 0; i < TILE_ROWS; ++i) found |= any_nonzero<typename A::compute>(acc[i]);
        if (found) std::abort();
    }
    return double(threads) * double(repeats) * TILE_ROWS * 2 * A::terms * double(sizeof(vec) / sizeof(typename A::word));
}
#if defined(__AVX512BF16__)
inline double pair_flops(ptrdiff_t repeats, int threads) { return multiply_add_flops<pair_arithmetic>(repeats, threads); }
#else
inline double pair_flops(ptrdiff_t, int) { return 0; }
#endif

}  // namespace
