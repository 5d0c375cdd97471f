// topk.cu - the k largest elements of each row and its pair, in one look at it. Of rows in parts both go to memory, for topk_join.cu.
#include "largest.cuh"
#include "logarithms.cuh"
#include "ranks.cuh"
#include "reduced.cuh"

namespace ds {

typedef choose<IS_HALF<x_type>, x_type, y_type>::type value_type;
// What a scale makes of the order: keys are x, -x under a negative scale, 0 under 0, and NaN where scale·x is.
struct ranking {
    compute sign, size;
    bool is_scaled;
    DS_DEVICE compute key_of(compute x) const { return x == compute(0) && size == compute(infinity()) ? compute(not_a_number()) : mul(x, sign); }
    DS_DEVICE void to_keys(share& mine) const {
        if (!is_scaled) return;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (mine.visible >> i & 1) mine.value[i] = key_of(mine.value[i]);
    }
    DS_DEVICE void to_products(share& mine) const {
        if (!is_scaled) return;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (mine.visible >> i & 1) mine.value[i] = mul(mine.value[i], size);
    }
};
DS_DEVICE ranking ranking_of(f64 scale, bool is_scaled) {
    const f64 sign = scale > 0.0 ? 1.0 : scale < 0.0 ? -1.0 : scale;
    return {compute(sign), scale_of<compute>(fabs(scale)), is_scaled};
}

// Behind the last rank that is known.
DS_DEVICE part part_of(i64 start, const ranks& to, const row& from, const axes& inner, const ranking& by) {
    if (to.first == 0 || from.length == 0) return {start - 1, entry::of(~integer(0), 0)};
    const i64 index = load<i64>(to.indices + (to.first - 1) * to.index_step), behind = index - start + 1;
    const bool visible = !from.where || load<u8>(from.where + offset(inner, WHERE, index)) != 0;
    const compute x = to_compute<compute>(load<x_type>(from.x + offset(inner, X, index)));
    const integer order = visible ? order_of(by.is_scaled ? by.key_of(x) : x) : integer(0);
    return {start - 1, entry::of(order, behind < 0 ? 0 : smaller(behind, i64(0xfffffffe)))};
}

DS_DEVICE void store_part(f64* pairs, u64* entries, const list& found, pair p, i64 start, int k) {
    if (threadIdx.x == 0) {
        store_aligned(pairs, p.m);
        store_aligned(pairs + 1, p.rest.high);
        store_aligned(pairs + 2, p.rest.low);
    }
    for (int i = team::thread(); i < k; i += DS_GROUP) {
        const wide_entry e = i < found.most ? wide_entry::of(found.at[i].order(), start + found.at[i].index()) : wide_entry::none();
        store_aligned(entries + 2 * i, e);
    }
}

}  // namespace ds

// Rows from `row` on, `rows` of them, each of `parts` parts of `length` segments. Of one part, the results are written; `lse` may be null. Of
// several, `pairs` and `entries` get the pair and the first k of each part.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, ds::BLOCKS_AT_ONCE)
    topk_rows(const char* x, const char* where, const char* scale, double factor, char* values, long long value_step, char* indices,
              long long index_step, char* lse, double* pairs, unsigned long long* entries, const __grid_constant__ ds::layout at, long long first,
              int k, long long row, long long rows, long long parts, long long length) {
    using namespace ds;
    const inputs in = {x, where, nullptr, 1.0};
    const ranks all = {values, indices, value_step, index_step, first, k};
    list found = list_of_team();
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < rows * parts; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 unit = base + team::number(), above = parts == 1 ? unit : unit / parts;
        const bool is_there = above < rows;
        const i64 index = is_there ? row + above : 0, number = unit - above * parts;
        const ds::row from = row_of(in, at, is_there ? index : at.rows);
        const ranks to = all.of_row(at, index);
        const ranking by = ranking_of(scale ? load<f64>(scale + offset(at.outer, SCALE, index)) : factor, scale || factor != 1.0);
        const i64 begin = number * length, end = smaller((number + 1) * length, segments_of(from.length));
        const part of = part_of(begin * SEGMENT, to, from, at.inner, by);
        share mine;
        compute m, least;
        pair p = nothing();
        found.begin(k);
        i64 segment = begin;
        do {
            mine = read(from, at.inner, segment);
            by.to_keys(mine);
            if (segment == begin) least = reached_by(mine, first + k);
            collect(found, mine, of, segment, least);
            by.to_products(mine);
            m = largest(mine);
            p = merge(p, pair_of_segment(mine, m));
        } while (++segment < end);
        found.cut();
        if (parts > 1) {
            store_part(pairs + 3 * unit, entries + 2 * k * unit, found, p, of.start, k);
            continue;
        }
        write_ranks<team, value_type>(to, found.at, p, by.is_scaled ? by.size : compute(1), of.start, is_there);
        if (!lse) continue;
        const f64 logarithm = log_of_segment(mine, m, log_of(p));
        if (team::thread() == 0 && is_there) store_logarithm<y_type>(lse + offset(at.outer, LSE, index), nullptr, logarithm);
    }
}
