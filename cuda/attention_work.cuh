// attention_work.cuh - which rows, columns of values and run of keys a block has, and where partial results lie.
//
// Few rows: a piece of work is one run of keys, and runs are merged by another kernel. Many rows: it is all runs, merged where they come.
// Whether a row is one of few is told by its sequence alone.
#pragma once
#include "attention_task.cuh"

namespace ds {

constexpr i64 FEW_ROWS = 16;

struct work_item {
    sequence of;
    i64 head, first, last, slice, run;
    i64 slot;                   // of its first row among the partial results
    bool is_any;                // whether there is something to do
};

// Packed sequences: row blocks are numbered so that sequence i begins with block start[i] * group / rows + i, which leaves each enough of them.
// Starts are those of queries, of which the group's heads have rows, or of keys.
DS_DEVICE i64 first_block_of(const i64* starts, i64 group, i64 index, int rows) {
    return quotient_of(most(0, integer_at(starts, index)) * group, rows) + index;
}
DS_DEVICE i64 sequence_of_block(const attention_task& t, const i64* starts, i64 group, i64 block, int rows) {
    i64 low = 0, high = t.sequences;        // a bad entry may lead astray, but not out of the table
    while (high - low > 1) {
        const i64 middle = (low + high) / 2;
        if (first_block_of(starts, group, middle, rows) <= block) low = middle;
        else high = middle;
    }
    return low;
}

// Whether no other sequence has a part of its queries, or keys: no start before it is larger than its own, none behind it smaller than its end.
DS_DEVICE bool are_its_own(const attention_task& t, const i64* starts, i64 index, i64 limit) {
    const i64 first = integer_at(starts, index), end = integer_at(starts, index + 1);
    bool own = first >= 0 && first <= end && end <= limit;
    for (i64 k = 0; own && t.is_unseen && k <= t.sequences; ++k) {
        const i64 start = integer_at(starts, k);
        own = k <= index ? start <= first : start >= end;
    }
    return own;
}
DS_DEVICE bool are_rows_its_own(const attention_task& t, const sequence& s) { return are_its_own(t, t.q_starts, s.index, t.queries); }

// The last row blocks come first: with causal attention they have the most keys.
DS_DEVICE work_item work_of(const attention_task& t, i64 index, int rows, bool is_few) {
    work_item w;
    i64 rest = index;
    const i64 run = quotient_of(rest, t.runs);
    w.run = rest - run * t.runs;
    rest = quotient_of(run, t.slices);
    w.slice = run - rest * t.slices;
    const i64 above = quotient_of(rest, t.heads_k);
    w.head = rest - above * t.heads_k;
    i64 block;
    if (t.q_starts) {
        const i64 number = sequence_of_block(t, t.q_starts, t.group, above, rows);
        w.of = sequence_of(t, number);
        block = above - first_block_of(t.q_starts, t.group, number, rows);
        if (!are_rows_its_own(t, w.of)) w.of.queries = 0;
    } else {
        const i64 from_end = quotient_of(above, t.sequences);
        w.of = sequence_of(t, above - from_end * t.sequences);
        block = t.row_blocks - 1 - from_end;
    }
    const i64 all = w.of.queries * t.group;
    w.first = block * rows;
    w.last = least(w.first + rows, all);
    w.is_any = w.first < all && block >= 0 && (all <= FEW_ROWS) == is_few;
    const i64 group_of_slots = (w.of.index * t.heads_k + w.head) * t.slices + w.slice;
    w.slot = is_few ? (group_of_slots * t.runs + w.run) * t.rows_kept + w.first : index * rows;
    return w;
}

// The piece of work that a block takes: sections of heads whose keys and values the second-level cache holds (of gradients, whatever passes by), in
// each the last row blocks first, or the first ones.
DS_DEVICE i64 in_sections(const attention_task& t, i64 index, bool is_last_first) {
    if (t.section == 0) return index;
    const i64 heads = t.heads_k * t.sequences, number = quotient_of(index, t.section * t.row_blocks), first = number * t.section;
    const i64 rest = index - first * t.row_blocks, width = least(t.section, heads - first), from_end = quotient_of(rest, width);
    return (is_last_first ? from_end : t.row_blocks - 1 - from_end) * heads + first + (rest - from_end * width);
}

// The next piece of work from `index` on, in steps of the grid: of those that are wanted, if not all are. All threads look ahead.
template <int threads> DS_DEVICE i64 next_work(const attention_task& t, const u64* wanted, i64 index) {
    const i64 step = gridDim.x;
    while (wanted && index < t.work) {
        const i64 mine = index + threadIdx.x * step;
        const bool is_any = mine < t.work && load_aligned<u64>(wanted + quotient_of(mine, t.slices)) != 0;
        if (!__syncthreads_or(is_any)) index += threads * step;
        else if (load_aligned<u64>(wanted + quotient_of(index, t.slices)) != 0) break;
        else index += step;
    }
    return index;
}

}  // namespace ds
