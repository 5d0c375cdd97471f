// gradient_task.cuh - one call for the gradients of attention, and the pieces that it is cut into.
//
//   s = q k^T    p = exp(s - lse)    dp = g v^T    ds = p (dp - delta)         g: the gradient of out; delta = sum_e g o - the gradient of lse
//   dv = p^T g   dk = ds^T q         dq = ds k
//
// Each gradient is its owner's alone: a block has rows of one gradient, and everything they depend on passes by in a fixed order. Nothing is
// added by two blocks, and bits depend on neither the grid nor the batch. T. Dao, FlashAttention-2, 2023 (arXiv 2307.08691).
#pragma once
#include "attention_work.cuh"

namespace ds {

// What a launch makes: what every row needs first, then a gradient.
enum gradient_kind { OF_ROWS, OF_Q, OF_K, OF_V, OF_BIAS };

struct gradient_task {
    attention_task inputs;          // AT_OUT and AT_LSE are inputs here
    attention_task gradients;       // each in the place of what it is the gradient of; of AT_OUT and AT_LSE it is given, of the others written
    i64 kind;
    f64 scale, exact_lse;           // up to this size an lse tells the weights
    i64 heads_share;                // query heads that share a head of keys, where each is a head of its own here
    i64 rows_a_head;                // queries of all sequences
    // The gradient of the bias: float64 and added to where some of its axes are broadcast.
    i64 bias_sums, key_blocks, sequences_own, heads_own;
};

// What a row of scores needs to become weights: p = exp((s - shift) - rest) weight. rest is inf where nothing is seen, NaN where all is NaN.
struct alignas(16) row_numbers { f64 shift, rest, weight, delta; };
DS_DEVICE i64 number_of_row(const gradient_task& g, const sequence& s, row_place at) {
    return at.head * g.rows_a_head + (g.inputs.q_starts ? s.q_start : s.index * g.inputs.queries) + at.query;
}

constexpr i64 MANY_ROWS = 512;
constexpr f64 MORE_OF_MANY = 16.0;      // the rounding of an lse shows sooner in what few rows make up
DS_DEVICE f64 largest_exact_lse(const gradient_task& g, const sequence& s) {
    return s.queries * g.inputs.group * g.heads_share < MANY_ROWS ? g.exact_lse : g.exact_lse * MORE_OF_MANY;
}

// Rows of one gradient: of queries, ordered as the forward pass orders them, or of keys.
struct owned_rows {
    sequence of;
    i64 head, first, last, slice;
    bool is_any;
};
DS_DEVICE owned_rows owned_of(const attention_task& t, i64 index, int rows, bool are_keys) {
    owned_rows w;
    const i64 rest = quotient_of(index, t.slices), above = quotient_of(rest, t.heads_k), per = are_keys ? 1 : t.group;
    const i64* const starts = are_keys ? t.k_starts : t.q_starts;
    w.slice = index - rest * t.slices;
    w.head = rest - above * t.heads_k;
    i64 block;
    if (t.q_starts) {
        const i64 number = sequence_of_block(t, starts, per, above, rows);
        w.of = sequence_of(t, number);
        block = above - first_block_of(starts, per, number, rows);
    } else {
        const i64 from_end = quotient_of(above, t.sequences);
        w.of = sequence_of(t, above - from_end * t.sequences);
        block = t.row_blocks - 1 - from_end;
    }
    if (t.q_starts && !are_rows_its_own(t, w.of)) w.of.queries = 0;
    const i64 all = are_keys ? w.of.keys : w.of.queries * per;
    w.first = block * rows;
    w.last = least(w.first + rows, all);
    w.is_any = block >= 0 && w.first < all && (!t.q_starts || !are_keys || are_its_own(t, t.k_starts, w.of.index, t.keys));
    return w;
}

// The keys that some of these rows see as far as positions tell; the rows that see some of these keys.
DS_DEVICE key_range keys_seen_by(const attention_task& t, const sequence& s, i64 first, i64 last) {
    return {s.seen_by(t, quotient_of(first, t.group)).lo, s.seen_by(t, quotient_of(last - 1, t.group)).hi};
}
DS_DEVICE key_range rows_that_see(const attention_task& t, const sequence& s, i64 first, i64 last) {
    const i64 lo = t.right < 0 ? 0 : most(0, first - t.right - s.offset), hi = t.left < 0 ? s.queries : least(s.queries, last + t.left - s.offset);
    return {lo * t.group, hi * t.group};
}

}  // namespace ds
