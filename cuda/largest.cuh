// largest.cuh - the k largest elements of a row, segment by segment, as its threads hold them in registers.
//
// A segment is compared with what the k-th so far reaches: one comparison an element rejects nearly all. The first segment of a row has no such
// number; one that at least k elements reach, and few more, comes from a bisection over the bits of numbers, with counts by the team.
#pragma once
#include "ordered.cuh"
#include "rows.cuh"

namespace ds {

typedef integer_order<compute> integer;
typedef choose<sizeof(compute) == 4, narrow_entry, wide_entry>::type entry;

constexpr int CAPACITY = SEGMENT < 2048 ? SEGMENT : 2048;
constexpr int SET = 4;                                  // elements a thread that are added together where not all may fit
typedef first_entries<team, entry, CAPACITY> list;
static_assert(SEGMENT <= CAPACITY || SET * DS_GROUP <= CAPACITY / 2, "a list of half its capacity has room for a set");

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
// What lies past the end of the row counts as hidden, at an index behind all others: of no k elements there are it is one.
DS_DEVICE void collect(list& found, const share& mine, const part& of, i64 segment, compute& least) {
    u32 mask = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) mask |= u32(!(mine.value[i] < least)) << i;
    const int total = team::reduce(__popc(mask), plus());
    if (total == 0) return;
    const int sets = SEGMENT <= CAPACITY || total <= CAPACITY - found.most ? 1 : ITEMS / SET;
    const u32 start = u32(segment * SEGMENT - of.start) + team::thread() * DS_CHUNK;
#pragma unroll 1
    for (int set = 0; set < sets; ++set) {
        const u32 now = sets == 1 ? mask : mask & ((1u << SET) - 1) << SET * set;
        if (SEGMENT > CAPACITY) found.make_room(sets == 1 ? total : team::reduce(__popc(now), plus()));
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int at = i / DS_CHUNK * DS_CHUNK * DS_GROUP + i % DS_CHUNK;
            if (!(now >> i & 1)) continue;
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

}  // namespace ds
