// topk.cu - the k largest elements of each row and its pair, in one look at it. Of rows in parts both go to memory, for topk_join.cu.
//
// A segment in registers is compared with what the k-th so far reaches: one comparison an element rejects nearly all. The first segment of a row
// has no such number; one that at least k elements reach, and few more, comes from a bisection over the bits of numbers, with counts by the team.
#include "logarithm.cuh"
#include "ranks.cuh"
#include "reduced.cuh"

namespace ds {

typedef choose<IS_HALF<x_type>, x_type, y_type>::type value_type;
typedef integer_order<compute> integer;
typedef choose<sizeof(compute) == 4, narrow_entry, wide_entry>::type entry;

constexpr int CAPACITY = SEGMENT < 2048 ? SEGMENT : 2048;
constexpr int SET = 4;                                  // elements a thread that are added together where not all may fit
typedef first_entries<team, entry, CAPACITY> list;
static_assert(SEGMENT <= CAPACITY || SET * DS_GROUP <= CAPACITY / 2, "a list of half its capacity has room for a set");

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
    return {compute(sign), rounded<compute>::of(fabs(scale)), is_scaled};
}

// ------------------------------------------------------------------ a first threshold
DS_DEVICE int count_at_least(const share& mine, compute t) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) count += mine.value[i] >= t;
    return count;
}
// A number that at least k elements of the segment reach, seldom more than k + k / 4 but for equal ones; -inf where so many are not above it.
// Of few, each thread shows its largest only.
DS_DEVICE compute reached_by(const share& mine, i64 k) {
    compute top = mine.value[0];
#pragma unroll
    for (int i = 1; i < ITEMS; ++i) top = larger(top, mine.value[i]);
    const bool few = 2 * k <= DS_GROUP;
    integer low = order_of(compute(-infinity())), high = order_of(compute(infinity())) + 1;
    bool searching = k < SEGMENT;
    while (any_in_team(searching)) {
        const integer middle = low + (high - low) / 2;
        const compute t = from_order(middle);
        const int count = few ? team::count(top >= t) : team::reduce(count_at_least(mine, t), plus());
        if (!searching) continue;
        if (count < k) high = middle;
        else low = middle;
        searching = high - low > 1 && (count < k || count > k + k / 4);
    }
    return from_order(low);
}

// ------------------------------------------------------------------ the first k of a part
// Entries count from 1 on in their part, so that a bound may lie before the first.
struct part {
    i64 start;                                          // the index in its row of an entry's 0
    entry bound;                                        // what is wanted lies behind it
};

// Adds the elements of a segment that may be among the first k: what is not less than `least`, or where that is NaN.
DS_DEVICE void collect(list& found, const share& mine, const part& of, i64 segment, i64 length, compute& least) {
    u32 mask = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) mask |= u32(!(mine.value[i] < least)) << i;
    const int total = team::reduce(__popc(mask), plus());
    if (total == 0) return;
    const int sets = SEGMENT <= CAPACITY || total <= CAPACITY - found.most ? 1 : ITEMS / SET;
    const u32 start = u32(segment * SEGMENT - of.start) + team::thread() * DS_CHUNK;
    const i64 left = length - segment * SEGMENT;
    const int end = int(smaller(left, i64(SEGMENT))) - team::thread() * DS_CHUNK;
#pragma unroll 1
    for (int set = 0; set < sets; ++set) {
        const u32 now = sets == 1 ? mask : mask & ((1u << SET) - 1) << SET * set;
        if (SEGMENT > CAPACITY) found.make_room(sets == 1 ? total : team::reduce(__popc(now), plus()));
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int at = i / DS_CHUNK * DS_CHUNK * DS_GROUP + i % DS_CHUNK;
            if (!(now >> i & 1) || at >= end) continue;
            const entry e = entry::of(mine.visible >> i & 1 ? order_of(mine.value[i]) : integer(0), start + at);
            if (e < of.bound) found.add(e);
        }
    }
    if (entry::none() < found.last) least = from_order(integer(found.last.order()));
}

DS_DEVICE list list_of_team() {
    DS_SHARED(entry, entries, CAPACITY * ROWS_A_BLOCK);
    DS_SHARED(int, counts, ROWS_A_BLOCK);
    return {entries + team::number() * CAPACITY, counts + team::number(), 1, 0, entry::none()};
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
            collect(found, mine, of, segment, from.length, least);
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
