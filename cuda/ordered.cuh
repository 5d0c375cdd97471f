// ordered.cuh - elements in the order of softmax_topk, and the first k of those shown to a team, kept in shared memory.
//
// What is shown is collected until the list is full, then sorted (Batcher's bitonic network) and cut back to k; from then on the k-th is what a
// further one has to come before. Entries of a row are distinct, so that the result does not depend on who came first.
#pragma once
#include "group.cuh"

namespace ds {

// ------------------------------------------------------------------ numbers as integers
// 0 is for what is hidden; then -inf, the numbers (-0 is 0), +inf, NaN.
DS_DEVICE u32 order_of(f32 x) {
    const u32 bits = __float_as_uint(add(x, 0.0f));
    return is_nan(x) ? ~0u : bits ^ (u32(i32(bits) >> 31) | 0x80000000u);
}
DS_DEVICE u64 order_of(f64 x) {
    const u64 bits = u64(__double_as_longlong(x + 0.0));
    return is_nan(x) ? ~0ull : bits ^ (u64(i64(bits) >> 63) | 0x8000000000000000ull);
}
// NaN of what is hidden.
DS_DEVICE f32 from_order(u32 order) { return __uint_as_float(order ^ (order >> 31 ? 0x80000000u : ~0u)); }
DS_DEVICE f64 from_order(u64 order) { return __longlong_as_double(i64(order ^ (order >> 63 ? 0x8000000000000000ull : ~0ull))); }

template <class C> using integer_order = typename choose<sizeof(C) == 4, u32, u64>::type;

// ------------------------------------------------------------------ entries
// An element by its order and its index. The one that comes first is the larger; `none` is below all.
struct narrow_entry {
    u64 word;
    static DS_DEVICE narrow_entry of(u32 order, i64 index) { return {u64(order) << 32 | ~u32(index)}; }
    static DS_DEVICE narrow_entry none() { return {0}; }
    DS_DEVICE u32 order() const { return u32(word >> 32); }
    DS_DEVICE i64 index() const { return i64(~u32(word)); }
    DS_DEVICE bool operator<(const narrow_entry& other) const { return word < other.word; }
};
struct alignas(16) wide_entry {
    u64 high, low;
    static DS_DEVICE wide_entry of(u64 order, i64 index) { return {order, ~u64(index)}; }
    static DS_DEVICE wide_entry none() { return {0, 0}; }
    DS_DEVICE u64 order() const { return high; }
    DS_DEVICE i64 index() const { return i64(~low); }
    DS_DEVICE bool operator<(const wide_entry& other) const { return high < other.high || (high == other.high && low < other.low); }
};

// The first `size` entries in order, a power of two; the same for all teams of a warp.
template <class Team, class Entry> DS_DEVICE void sort(Entry* at, int size) {
#pragma unroll 1
    for (int width = 2; width <= size; width *= 2)
#pragma unroll 1
        for (int distance = width / 2; distance > 0; distance /= 2) {
            Team::meet();
#pragma unroll 1
            for (int i = Team::thread(); i < size / 2; i += Team::SIZE) {
                const int low = 2 * i - (i & (distance - 1)), high = low + distance;
                const Entry a = at[low], b = at[high];
                if ((a < b) != ((low & width) == 0)) continue;
                at[low] = b;
                at[high] = a;
            }
        }
    Team::meet();
}

// ------------------------------------------------------------------ the first k
// A team's list. `capacity` is a power of two.
template <class Team, class Entry, int capacity> struct first_entries {
    Entry* at;                  // in shared memory
    int* count;                 // in shared memory
    int k, most;                // 1 <= k; the list holds at most `most`
    Entry last;                 // with k entries or more at the last cut, the k-th

    DS_DEVICE void begin(int wanted) {
        k = wanted;
        most = 0;
        last = Entry::none();
        Team::meet();
        if (Team::thread() == 0) *count = 0;
        Team::meet();
    }
    // Before a team adds up to `more` entries, the same number in all its threads.
    DS_DEVICE void make_room(int more) {
        if (most + more > capacity) cut();
        most += more;
    }
    DS_DEVICE void add(const Entry& entry) {
        if (last < entry) at[atomicAdd(count, 1)] = entry;
    }
    // Leaves the first k, in order, of a list that may be shorter.
    DS_DEVICE void cut() {
        Team::meet();
        const int held = *count;
        int size = 2;
        while (size < held) size *= 2;
        if (Team::SIZE < 32) size = group<32>::reduce(size, larger_integer());
        for (int i = held + Team::thread(); i < size; i += Team::SIZE) at[i] = Entry::none();
        sort<Team>(at, size);
        most = smaller(held, k);
        if (held >= k) last = at[k - 1];
        if (Team::thread() == 0) *count = most;
        Team::meet();
    }
};

}  // namespace ds
