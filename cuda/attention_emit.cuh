// attention_emit.cuh - what a block does with the sums of its rows: they become outputs, or are kept for the merge with other runs of keys.
//
// Sums that are not finite though d is are taken once more: of values that are shrunk, and by counting those that are infinite or NaN.
#pragma once

namespace ds {

// Where a block's results go.
struct destination {
    const attention_task& t;
    const work_item& w;
    char* out;
    statistics stats;
    kept_rows<wide> kept;
    bool is_kept;               // merged later, and not an output yet
    bool is_first;              // the first run, or the only one
    bool is_last;               // the last one of rows that were selected: they become outputs here
    const u64* selected;
    DS_DEVICE bool wants(int row) const { return row < int(w.last - w.first) && (!IS_SELECTIVE || (*selected >> row & 1) != 0); }
};

// The vectors of a block's sums, in turn: the same thread has the same ones in every pass.
constexpr int VECTORS_A_ROW = COLUMNS / VECTOR, TURNS = ROWS * VECTORS_A_ROW / THREADS;
static_assert(TURNS * VECTOR <= 64, "a bit a sum of a thread");
struct turn { int row, column; };
DS_DEVICE turn turn_of(int n) {
    const int v = int(threadIdx.x) + n * THREADS;
    return {v / VECTORS_A_ROW, v % VECTORS_A_ROW * VECTOR};
}
DS_DEVICE vector sums_at(const block_memory& memory, turn at) {
    const compute* const p = memory.sums + at.row * COLUMNS + at.column;
    vector sum = *(const vector*)p;
#pragma unroll
    for (int share = 1; share < SHARES; ++share) {
        const vector part = *(const vector*)(p + share * ROWS * COLUMNS);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sum.at[i] = add(sum.at[i], part.at[i]);
    }
    return sum;
}

// Whether some row has a sum that is not finite, though its d is.
DS_DEVICE bool find_odd(const block_memory& memory) {
    if (threadIdx.x < ROWS) memory.is_odd[threadIdx.x] = 0;
    __syncthreads();
    bool found = false;
#pragma unroll 1
    for (int n = 0; n < TURNS; ++n) {
        const turn at = turn_of(n);
        const vector sum = sums_at(memory, at);
        bool odd = false;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) odd |= !is_finite(sum.at[i]);
        if (!odd || !is_finite(memory.d[at.row])) continue;
        atomicOr(&memory.is_odd[at.row], 1u);
        found = true;
    }
    return __syncthreads_or(found) != 0;
}

// Which sums of a thread have seen values that are not finite, a bit each.
struct seen_values { u64 up, down; };
DS_DEVICE seen_values counted(const block_memory& memory) {
    seen_values seen = {0, 0};
#pragma unroll 1
    for (int n = 0; n < TURNS; ++n) {
        const vector count = sums_at(memory, turn_of(n));
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const u32 both = u32(f32(count.at[i])), down = both / u32(DOWN);
            seen.up |= u64(both > down * u32(DOWN)) << (n * VECTOR + i);
            seen.down |= u64(down > 0) << (n * VECTOR + i);
        }
    }
    return seen;
}
DS_DEVICE void put_seen(const seen_values& seen, int n, vector& sum) {
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        const bool up = seen.up >> (n * VECTOR + i) & 1, down = seen.down >> (n * VECTOR + i) & 1;
        if (up || down) sum.at[i] = compute(!down ? infinity() : up ? not_a_number() : -infinity());
    }
}

// A row's pair in natural units. Rows of which some sum overflowed become means, of weight 1: the same state in another form.
DS_DEVICE row_pair pair_of_row(const block_memory& memory, int row, f64 exact_unit, int kind) {
    const f64 m = memory.m[row], natural = is_finite(m) ? m * exact_unit : m, d = memory.d[row];
    if (kind == SHRUNK) return {natural + log_sum(d, 0.0), 1.0};
    return {natural, d};
}

DS_DEVICE void put_output(const destination& to, row_place at, const row_pair& p, const wide (&o)[VECTOR], int column) {
    const placed& out = to.t.at[AT_OUT];
    const i64 first = to.w.slice * COLUMNS + column;
    if (first >= to.t.dim_v) return;
    const row_end end = end_of_row(to.t, at.head, p);
    f64 x[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) x[i] = to.t.at[AT_M].base ? sum_of_state(o[i], p) : output_of(o[i], end);
    store_numbers(to.out + offset_of_row(out, at) + first * out.item, out.item, int(out.code), out.is_wide != 0, x, int(least(VECTOR, to.t.dim_v - first)));
    if (first == 0) store_statistics(to.t, to.stats, at, end.pair);
}

// A vector of a row's sums, and its pair, join those of earlier runs.
DS_DEVICE void join_kept(const destination& to, i64 slot, row_pair& p, wide (&o)[VECTOR], int column) {
    if (to.is_first) return;
    const wide* const kept = to.kept.sum(slot, COLUMNS) + column;
    const meeting joint = meet(to.kept.pairs[slot], p);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) o[i] = united(joint, kept[i], o[i]);
    p = joint.both;
}

// The rows that this kind of sums is for.
DS_DEVICE void emit(const destination& to, const block_memory& memory, f64 exact_unit, int kind, const seen_values& seen) {
    const u32 is_wanted = kind == SHRUNK;
#pragma unroll 1
    for (int n = 0; n < TURNS; ++n) {
        const turn at = turn_of(n);
        if (!to.wants(at.row) || memory.is_odd[at.row] != is_wanted) continue;
        vector sum = sums_at(memory, at);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i)
            if (kind == SHRUNK) sum.at[i] = rounded<compute>::of(f64(sum.at[i]) / memory.d[at.row] / f64(SHRINK));
        put_seen(seen, n, sum);
        row_pair p = pair_of_row(memory, at.row, exact_unit, kind);
        wide o[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) o[i] = to_wide(sum.at[i]);
        const i64 slot = to.w.slot + at.row;
        if (to.is_kept) join_kept(to, slot, p, o, at.column);
        if (!to.is_kept || (IS_SELECTIVE && to.is_last)) {
            put_output(to, place_of_row(to.t, to.w.head, to.w.first + at.row), p, o, at.column);
            continue;
        }
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) to.kept.sum(slot, COLUMNS)[at.column + i] = o[i];
    }
    __syncthreads();            // every thread has read the pairs that now move on
    const int row = int(threadIdx.x);
    if (to.is_kept && row < ROWS && to.wants(row) && memory.is_odd[row] == is_wanted) {
        row_pair& both = to.kept.pairs[to.w.slot + row];
        const row_pair p = pair_of_row(memory, row, exact_unit, kind);
        both = to.is_first ? p : meet(both, p).both;
    }
    __syncthreads();
}

// One run of keys, whatever the values are: nearly always one pass.
DS_DEVICE void attend_run(const summing& in, const destination& to, i64 run) {
    seen_values seen = {0, 0};
    bool is_first_pass = true, any_odd = false;
    int kind = ORDINARY;
#pragma unroll 1
    while (true) {
        running r;
        clear(r, in.w.of.is_bad);
        const bool is_met = add_run(in, run, kind, r);
        collect(r, in.memory);
        if (is_first_pass) {
            any_odd = find_odd(in.memory);
            is_first_pass = false;
            if (__syncthreads_or(is_met)) {
                kind = COUNTED;
                continue;
            }
            if (any_odd) {
                kind = SHRUNK;
                continue;
            }
        }
        if (kind == COUNTED) {
            seen = counted(in.memory);
            kind = any_odd ? SHRUNK : ORDINARY;
            continue;
        }
        emit(to, in.memory, in.exact_unit, kind, seen);
        if (kind == ORDINARY) return;
        kind = ORDINARY;
    }
}

// The sums of selected rows are merged here, those of all, and of states, whose columns share one pair, by another kernel.
DS_DEVICE void attend(const attention_task& t, const work_item& w, const block_memory& memory, const kept_rows<wide>& kept, bool is_selection) {
    const reach seen = reach_of(t, w);
    for (int row = int(threadIdx.x); row < ROWS; row += THREADS) {
        const key_range own = w.of.seen_by(t, quotient_of(least(w.first + row, w.last - 1), t.group));
        memory.lo[row] = own.lo;
        memory.hi[row] = own.hi;
    }
    const option_bases from = DS_OPTIONS ? option_bases_of(t, w.of) : option_bases{nullptr, nullptr, nullptr};
    const summing in = {t, w, seen, from, DS_OPTIONS ? compute(1) : rounded<compute>::of(t.unit), DS_OPTIONS ? 1.0 : t.exact_unit, memory};
    destination to = {t, w, w.of.base(t, AT_OUT), statistics_of(t, w.of), kept, kept.sums != nullptr, true, false, memory.selected};
    i64 run = DS_FEW ? w.run : quotient_of(most(0, seen.any.lo), RUN);
    const i64 last = DS_FEW ? run : quotient_of(most(0, seen.any.hi - 1), RUN);
#pragma unroll 1
    do {
        to.is_last = IS_SELECTIVE && is_selection && !t.at[AT_M].base && run >= last;
        attend_run(in, to, run);
        to.is_first = false;
    } while (++run <= last);
}

}  // namespace ds
