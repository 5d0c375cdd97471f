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
};

DS_DEVICE row_pair pair_of_row(const block_memory& memory, int row, f64 exact_unit) {
    const f64 m = memory.m[row];
    return {is_finite(m) ? m * exact_unit : m, memory.d[row]};
}

DS_DEVICE void put_output(const destination& to, row_place at, const row_end& end, const compute (&o)[VECTOR], int column, bool is_state) {
    const placed& out = to.t.at[AT_OUT];
    const i64 first = to.w.slice * COLUMNS + column;
    if (first >= to.t.dim_v) return;
    f64 x[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) x[i] = is_state ? sum_of_state(to_wide(o[i]), end.pair) : output_of(to_wide(o[i]), end);
    store_numbers(to.out + offset_of_row(out, at) + first * out.item, out.item, int(out.code), out.is_wide != 0, x, int(least(VECTOR, to.t.dim_v - first)));
}

// A vector of a row's sums joins those of earlier runs.
DS_DEVICE void keep_sums(const destination& to, i64 slot, row_pair p, const compute (&o)[VECTOR], int column) {
    wide* const at = to.kept.sum(slot, COLUMNS) + column;
    meeting joint = {0.0, 1.0, p};
    if (!to.is_first) joint = meet(to.kept.pairs[slot], p);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) at[i] = to.is_first ? to_wide(o[i]) : united(joint, at[i], to_wide(o[i]));
}

// All that a thread owns.
DS_DEVICE void emit(const destination& to, const owned& mine, const block_memory& memory, f64 exact_unit) {
    const bool is_state = to.t.at[AT_M].base != nullptr;
#pragma unroll
    for (int a = 0; a < OWNED_ROWS; ++a) {
        const i64 row = to.w.first + owned_row(a);
        if (row >= to.w.last) continue;
        const row_pair p = pair_of_row(memory, owned_row(a), exact_unit);
        const row_place at = place_of_row(to.t, to.w.head, row);
        const row_end end = end_of_row(to.t, at.head, p);
#pragma unroll
        for (int c = 0; c < VECTORS; ++c) {
            compute o[VECTOR];
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) o[i] = mine.o[a][c * VECTOR + i];
            if (to.is_kept) keep_sums(to, to.w.slot + owned_row(a), p, o, owned_column(c));
            else put_output(to, at, end, o, owned_column(c), is_state);
        }
        if (!to.is_kept && threadIdx.x % LANES == 0 && to.w.slice == 0) store_statistics(to.t, to.stats, at, end.pair);
    }
    if (!to.is_kept) return;
    __syncthreads();            // every thread has read the pairs that now move on
    if (threadIdx.x < ROWS && to.w.first + threadIdx.x < to.w.last) {
        row_pair& both = to.kept.pairs[to.w.slot + threadIdx.x];
        const row_pair p = pair_of_row(memory, int(threadIdx.x), exact_unit);
        both = to.is_first ? p : meet(both, p).both;
    }
    __syncthreads();
}

// Which of a thread's outputs were infinite or NaN although their rows' d is not.
DS_DEVICE u64 odd_ones(const owned& mine, const block_memory& memory) {
    u64 found = 0;
#pragma unroll
    for (int a = 0; a < OWNED_ROWS; ++a)
#pragma unroll
        for (int i = 0; i < VECTORS * VECTOR; ++i)
            if (!is_finite(mine.o[a][i]) && is_finite(memory.d[owned_row(a)])) found |= 1ull << (a * VECTORS * VECTOR + i);
    return found;
}
DS_DEVICE u64 positive_ones(const owned& mine) {
    u64 found = 0;
#pragma unroll
    for (int a = 0; a < OWNED_ROWS; ++a)
#pragma unroll
        for (int i = 0; i < VECTORS * VECTOR; ++i)
            if (mine.o[a][i] > compute(0)) found |= 1ull << (a * VECTORS * VECTOR + i);
    return found;
}
static_assert(OWNED_ROWS * VECTORS * VECTOR <= 64, "a bit an output");

DS_DEVICE owned sums_of_run(const summing& in, i64 run, int kind, bool& is_met) {
    running r;
    clear(r, in.w.of.is_bad);
    is_met = add_run(in, run, kind, r);
    return collect(r, in.memory);
}

// Rows of which some sum overflowed become means, of weight 1: the same state in another form.
DS_DEVICE void as_means(owned& mine, u64 odd, const owned& shrunk, const block_memory& memory, f64 exact_unit) {
    DS_SHARED(u32, is_odd, ROWS);
    __syncthreads();
    if (threadIdx.x < ROWS) is_odd[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int a = 0; a < OWNED_ROWS; ++a)
        if (odd >> (a * VECTORS * VECTOR) & ((1ull << VECTORS * VECTOR) - 1)) atomicOr(&is_odd[owned_row(a)], 1u);
    __syncthreads();
#pragma unroll
    for (int a = 0; a < OWNED_ROWS; ++a) {
        const f64 d = memory.d[owned_row(a)];
#pragma unroll
        for (int i = 0; i < VECTORS * VECTOR; ++i)
            if (is_odd[owned_row(a)]) mine.o[a][i] = rounded<compute>::of(f64(shrunk.o[a][i]) / d / f64(SHRINK));
    }
    __syncthreads();
    if (threadIdx.x < ROWS && is_odd[threadIdx.x]) {
        memory.m[threadIdx.x] += log_sum(memory.d[threadIdx.x], 0.0) / exact_unit;
        memory.d[threadIdx.x] = 1.0;
    }
    __syncthreads();
}

// The sums of one run, whatever the values are.
DS_DEVICE owned settled_run(const summing& in, i64 run) {
    bool is_met, unused;
    owned mine = sums_of_run(in, run, ORDINARY, is_met);
    const u64 odd = odd_ones(mine, in.memory);
    const bool any_met = __syncthreads_or(is_met) != 0;
    if (__syncthreads_or(odd != 0)) {
        const owned shrunk = sums_of_run(in, run, SHRUNK, unused);
        as_means(mine, odd, shrunk, in.memory, in.t.exact_unit);
    }
    if (!any_met) return mine;
    // sums of the two passes below leave their own m and d in shared memory: they are the same, or have become means
    const int row = int(threadIdx.x) % ROWS;
    const f64 m = in.memory.m[row], d = in.memory.d[row];
    const u64 up = positive_ones(sums_of_run(in, run, UPWARDS, unused));
    const u64 down = positive_ones(sums_of_run(in, run, DOWNWARDS, unused));
    __syncthreads();
    if (int(threadIdx.x) < ROWS) {
        in.memory.m[row] = m;
        in.memory.d[row] = d;
    }
    __syncthreads();
#pragma unroll
    for (int a = 0; a < OWNED_ROWS; ++a)
#pragma unroll
        for (int i = 0; i < VECTORS * VECTOR; ++i) {
            const int bit = a * VECTORS * VECTOR + i;
            if (up >> bit & 1) mine.o[a][i] = compute(down >> bit & 1 ? not_a_number() : infinity());
            else if (down >> bit & 1) mine.o[a][i] = compute(-infinity());
        }
    return mine;
}

DS_DEVICE void attend(const attention_task& t, const work_item& w, const block_memory& memory, const kept_rows<wide>& kept) {
    const reach seen = reach_of(t, w);
    const option_bases from = DS_OPTIONS ? option_bases_of(t, w.of) : option_bases{nullptr, nullptr, nullptr};
    const compute unit = DS_OPTIONS ? compute(1) : rounded<compute>::of(t.unit);
    const f64 exact_unit = DS_OPTIONS ? 1.0 : t.exact_unit;
    const summing in = {t, w, seen, from, unit, memory};
    destination to = {t, w, w.of.base(t, AT_OUT) , statistics_of(t, w.of), kept, kept.sums != nullptr, true};
    i64 run = DS_FEW ? w.run : quotient_of(most(0, seen.any.lo), RUN);
    const i64 last = DS_FEW ? run : quotient_of(most(0, seen.any.hi - 1), RUN);
    do {
        emit(to, settled_run(in, run), memory, exact_unit);
        to.is_first = false;
    } while (++run <= last);
}

}  // namespace ds
