// attention_task.cuh - one call of attention: operands by pointer and strides, sequences, rows, and which keys a row sees.
//
// A sequence is one entry of the batch. Its rows, for one head of keys, are the queries of all heads that share it, ordered by position:
// row r is query r / group of head r % group, so neighbouring rows see nearly the same keys and read them once.
#pragma once
#include "convert.cuh"

namespace ds {

constexpr int MAX_BATCH_AXES = 8;
enum attention_operand { AT_Q, AT_K, AT_V, AT_OUT, AT_LSE, AT_M, AT_D, AT_MASK, AT_BIAS, AT_BLOCKS, AT_OPERANDS };

// Where an operand lies; strides in bytes.
struct placed {
    char* base;                     // or null
    i64 head, row, item;
    i64 batch[MAX_BATCH_AXES];
    i64 code;                       // of its dtype, see numbers.cuh
    i64 is_wide;                    // its rows are contiguous, and any 16 bytes of them that begin at a multiple of 16 are aligned
};

struct attention_task {
    placed at[AT_OPERANDS];
    i64 batch_axes, batch_shape[MAX_BATCH_AXES];
    i64 sequences, heads_k, group, queries, keys, dim, dim_v;
    const i64 *lengths, *offsets, *q_starts, *k_starts, *pages;     // or null
    i64 pages_each, page_size, page_count, k_page, v_page;          // the last two: from page to page, in bytes
    const f64 *sinks, *slopes;                                      // or null
    f64 fold, unit, exact_unit;     // scale = fold * exact_unit; unit is exact_unit as far as the arithmetic holds it
    f64 softcap;                    // 0: off
    i64 left, right;                // -1: no bound
    i64 block_q, block_k;
    i64 columns;                    // keys that mask and bias know of
    i64 is_unseen;                  // the host has not seen the starts
    i64 row_blocks, slices, runs, work, rows_kept;
    i64 section;                    // heads of keys, of all sequences, whose row blocks come one after the other; 0: all
};

DS_DEVICE i64 least(i64 a, i64 b) { return a < b ? a : b; }
DS_DEVICE i64 most(i64 a, i64 b) { return a > b ? a : b; }
DS_DEVICE i64 integer_at(const i64* p, i64 index) { return load_aligned<i64>(p + index); }
// A division of 64 bits is a hundred instructions, and seldom needed.
DS_DEVICE i64 quotient_of(i64 a, i64 b) { return (a | b) >> 32 == 0 ? i64(u32(a) / u32(b)) : a / b; }

static __device__ __noinline__ i64 offset_along_batch(const attention_task& t, int operand, i64 index) {
    i64 bytes = 0;
    for (int k = int(t.batch_axes) - 1; k >= 0; --k) {
        const i64 above = quotient_of(index, t.batch_shape[k]);
        bytes += (index - above * t.batch_shape[k]) * t.at[operand].batch[k];
        index = above;
    }
    return bytes;
}

struct key_range { i64 lo, hi; };

// One entry of the batch. What the host could not check is checked here: a bad entry makes a bad sequence, whose rows are NaN.
struct sequence {
    i64 index, q_start, k_start, queries, keys, offset;
    bool is_bad;

    // Where its part of an operand begins.
    DS_DEVICE char* base(const attention_task& t, int operand) const {
        const placed& at = t.at[operand];
        if (!at.base) return nullptr;
        if (t.q_starts) return at.base + (operand == AT_K || operand == AT_V ? k_start : q_start) * at.row;
        return at.base + (t.batch_axes == 1 ? index * at.batch[0] : offset_along_batch(t, operand, index));
    }
    // The keys that query i can see as far as its position tells.
    DS_DEVICE key_range seen_by(const attention_task& t, i64 i) const {
        const i64 at = i + offset;
        return {t.left < 0 ? 0 : most(0, at - t.left), t.right < 0 ? keys : least(keys, at + t.right + 1)};
    }
};

DS_DEVICE sequence sequence_of(const attention_task& t, i64 index) {
    sequence s = {index, 0, 0, t.queries, t.keys, t.offsets ? integer_at(t.offsets, index) : 0, false};
    if (t.q_starts) {
        s.q_start = integer_at(t.q_starts, index);
        s.queries = integer_at(t.q_starts, index + 1) - s.q_start;
        s.k_start = integer_at(t.k_starts, index);
        s.keys = integer_at(t.k_starts, index + 1) - s.k_start;
        s.is_bad = s.k_start < 0 || s.keys < 0 || s.k_start > t.keys || s.keys > t.keys - s.k_start;
    }
    if (t.lengths) {
        const i64 length = integer_at(t.lengths, index);
        s.is_bad |= length < 0 || length > s.keys;
        s.keys = length;
    }
    s.is_bad |= t.columns >= 0 && s.keys > t.columns;
    if (s.is_bad) s.keys = 0;
    return s;
}

// The rows of one head of keys.
struct row_place { i64 head, query; };
DS_DEVICE row_place place_of_row(const attention_task& t, i64 head_k, i64 row) {
    const i64 query = quotient_of(row, t.group);
    return {head_k * t.group + (row - query * t.group), query};
}
DS_DEVICE i64 offset_of_row(const placed& at, row_place place) { return place.head * at.head + place.query * at.row; }

// The keys or values of one head, in one piece or in pages.
struct key_rows {
    const char* base;
    i64 row, page, page_size, page_count;
    const i64* pages;               // or null

    // Null where the table names no page.
    DS_DEVICE const char* at(i64 j) const {
        if (!pages) return base + j * row;
        const i64 place = quotient_of(j, page_size), number = integer_at(pages, place);
        if (u64(number) >= u64(page_count)) return nullptr;
        return base + number * page + (j - place * page_size) * row;
    }
};
DS_DEVICE key_rows keys_of(const attention_task& t, const sequence& s, i64 head_k, int operand) {
    const placed& at = t.at[operand];
    const char* const base = (t.pages ? at.base : s.base(t, operand)) + head_k * at.head;
    return {base, at.row, operand == AT_K ? t.k_page : t.v_page, t.page_size, t.page_count,
            t.pages ? t.pages + s.index * t.pages_each : nullptr};
}

}  // namespace ds
