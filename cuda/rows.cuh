// rows.cuh - a row in the registers of a group of threads: read once, its maximum, its sums, its results written.
//
// Element i of a segment belongs to chunk i / CHUNK, chunk c to thread c % GROUP. That holds for every layout, so a row's bits do not depend on
// strides or alignment; only the width of the accesses does.
//
// Macros of a variant: DS_X, DS_Y   types of input and output
//                      DS_GROUP     threads a row          DS_CHUNK, DS_SLOTS   elements a chunk, chunks a thread
//                      DS_DIRECT    1: rows are contiguous and nothing is hidden; accesses of 16 bytes
#pragma once
#include "arithmetic.cuh"
#include "convert.cuh"
#include "layout.cuh"
#include "unaligned.cuh"

namespace ds {

typedef group<DS_GROUP> team;

constexpr int ITEMS = DS_CHUNK * DS_SLOTS;              // elements a thread
constexpr int SEGMENT = ITEMS * DS_GROUP;
static_assert((SEGMENT & (SEGMENT - 1)) == 0, "so that a mask finds where a segment begins");
constexpr int BLOCK = DS_GROUP > 128 ? DS_GROUP : 128;
constexpr int BLOCKS_AT_ONCE = BLOCK == 128 ? 3 : 1;    // of a multiprocessor: what more of them leave too few registers for
constexpr int ROWS_A_BLOCK = BLOCK / DS_GROUP;

struct inputs {
    const char* x;
    const char* where;          // or null
    const char* scale;          // or null: then `factor`
    f64 factor;                 // 1 changes nothing, and is not multiplied
};

// One row's addresses.
struct row {
    const char* x;
    const char* where;
    compute factor;
    bool is_scaled;
    i64 length;                 // 0 past the last row: such a team takes part in the block's barriers only
};

DS_DEVICE row row_of(const inputs& in, const layout& at, i64 index) {
    if (index >= at.rows) return {in.x, in.where, compute(1), false, 0};
    const f64 factor = in.scale ? load<f64>(in.scale + offset(at.outer, SCALE, index)) : in.factor;
    return {in.x + offset(at.outer, X, index), in.where ? in.where + offset(at.outer, WHERE, index) : nullptr,
            scale_of<compute>(factor), in.scale != nullptr || in.factor != 1.0, at.n};
}

// The index in its row of the first element of a chunk.
DS_DEVICE i64 first_of(i64 segment, int slot) { return segment * SEGMENT + i64(slot * DS_GROUP + team::thread()) * DS_CHUNK; }

// A thread's share of a segment. Elements that are hidden, or past the end, are -inf and not visible.
struct share {
    compute value[ITEMS];
    u32 visible;
};
static_assert(ITEMS <= 32, "a bit of `visible` an element");

typedef chunk<x_type, DS_CHUNK> vector;
typedef chunk<y_type, DS_CHUNK> y_vector;

// Whether the rows of all teams of the warp lie where accesses of a chunk may go.
template <class Vector> DS_DEVICE bool are_aligned(const char* first) { return __all_sync(ALL_LANES, is_aligned<Vector>(first)) != 0; }
DS_DEVICE bool is_first_of_lanes() { return threadIdx.x % 32 == 0 || team::thread() == 0; }
DS_DEVICE bool is_last_of_lanes() { return threadIdx.x % 32 == 31 || team::thread() == DS_GROUP - 1; }

// The first `count` elements of a chunk.
DS_DEVICE vector load_tail(const x_type* x, i64 count) {
    vector v = {};
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j)
        if (j < count) v.at[j] = load_aligned<x_type>(x + j);
    return v;
}

// A chunk of a contiguous row; what of it lies past the end is anything. Nothing of another segment is read: in place, another block writes there.
DS_DEVICE vector load_chunk(const row& from, i64 first, bool aligned) {
    const x_type* const x = (const x_type*)from.x + first;
    if (aligned && first + DS_CHUNK <= from.length) return load_aligned<vector>(x);
    if (!aligned && sizeof(vector) == 16) {
        const i64 begin = first & ~i64(SEGMENT - 1), end = smaller<i64>(begin + SEGMENT, from.length);
        const char* const row = from.x;
        union { piece whole; vector v; } u;
        u.whole = load_across<x_type>((const char*)x, row + begin * sizeof(x_type), row + end * sizeof(x_type), is_last_of_lanes());
        return u.v;
    }
    return load_tail(x, from.length - first);
}

DS_DEVICE void unpack(share& mine, const vector& v, const row& from, i64 first, int slot) {
    const bool is_whole = first + DS_CHUNK <= from.length;
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j) {
        compute value = to_compute<compute>(v.at[j]);
        if (from.is_scaled) value = mul(value, from.factor);
        const bool inside = is_whole || first + j < from.length;
        mine.value[slot * DS_CHUNK + j] = inside ? value : compute(-infinity());
        mine.visible |= u32(inside) << (slot * DS_CHUNK + j);
    }
}

// The part of shared memory through which a team passes the elements of one slot, so that neighbouring threads move neighbouring elements
// although each works on a whole chunk.
struct passage {
    compute* value;
    u8* visible;
    static constexpr int LENGTH = DS_GROUP * DS_CHUNK;
};
DS_DEVICE passage passage_of_team() {
    DS_SHARED(compute, values, BLOCK * DS_CHUNK);
    DS_SHARED(u8, flags, BLOCK * DS_CHUNK);
    const int first = team::number() * passage::LENGTH;
    return {values + first, flags + first};
}

DS_DEVICE void read_any(share& mine, const row& from, const axes& inner, i64 segment, int slot) {
    const passage through = passage_of_team();
    const i64 start = segment * SEGMENT + i64(slot) * passage::LENGTH;
    team::meet();
#pragma unroll 1
    for (int k = team::thread(); k < passage::LENGTH; k += DS_GROUP) {
        compute value = compute(-infinity());
        bool visible = start + k < from.length;
        if (visible && from.where) visible = load<u8>(from.where + offset(inner, WHERE, start + k)) != 0;
        if (visible) {
            value = to_compute<compute>(load<x_type>(from.x + offset(inner, X, start + k)));
            if (from.is_scaled) value = mul(value, from.factor);
        }
        through.value[k] = value;
        through.visible[k] = visible;
    }
    team::meet();
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j) {
        const int k = team::thread() * DS_CHUNK + j;
        mine.value[slot * DS_CHUNK + j] = through.value[k];
        mine.visible |= u32(through.visible[k]) << (slot * DS_CHUNK + j);
    }
}

DS_DEVICE share read(const row& from, const axes& inner, i64 segment) {
    share mine;
    mine.visible = 0;
    const bool aligned = DS_DIRECT && are_aligned<vector>(from.x);
#pragma unroll
    for (int slot = 0; slot < DS_SLOTS; ++slot) {
        const i64 first = first_of(segment, slot);
        if (DS_DIRECT) unpack(mine, load_chunk(from, first, aligned), from, first, slot);
        else read_any(mine, from, inner, segment, slot);
    }
    return mine;
}

DS_DEVICE compute largest(const share& mine) {
    compute m = mine.value[0];
#pragma unroll
    for (int i = 1; i < ITEMS; ++i) m = larger(m, mine.value[i]);
    return team::reduce(m, maximum());
}

// The sums of a segment whose largest element is m. With `keep` the elements give way to their exponentials.
template <bool keep, class Exponential> DS_DEVICE sums<compute> add_up(share& mine, compute m, compute shift, Exponential exponential_of) {
    accumulator sum;
    i32 count = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const compute x = mine.value[i];
        const compute e = exponential_of(sub(x, shift));
        if (x == m) ++count;
        else sum.add_term(i, e);
        if (keep) mine.value[i] = e;
    }
    return team::reduce(sums<compute>{sum.total(), count}, plus());
}

// Whether a condition, the same in all threads of a team, holds for any of those that go together. Where teams share a warp they have to.
DS_DEVICE bool any_in_team(bool condition) { return DS_GROUP < 32 ? __any_sync(ALL_LANES, condition) != 0 : condition; }

// The pair of one segment. A row decides by its own sums alone, although the threads of a warp go together.
DS_DEVICE pair pair_of_segment(share& mine, compute m) {
    const compute shift = shift_for_logarithm(m);
    if (!ROUGH) return pair_of(m, shift, add_up<false>(mine, m, shift, precise()));
    const pair quick = pair_of(m, shift, add_up<false>(mine, m, shift, rough()));
    const bool is_little = quick.rest.high < LITTLE;
    if (!any_in_team(is_little)) return quick;
    const pair exact = pair_of(m, shift, add_up<false>(mine, m, shift, precise()));
    return is_little ? exact : quick;
}

// The segments of a row.
DS_DEVICE i64 segments_of(i64 length) { return (length + SEGMENT - 1) / SEGMENT; }

}  // namespace ds
