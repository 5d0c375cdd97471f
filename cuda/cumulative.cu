// cumulative.cu - the logarithm of the running sum of exponentials of each row, in float64 whatever the types.
//
// A segment at a time: each thread makes the pair of its neighbouring elements, a scan over the team tells it the pair of all before them in its
// part of the row, and it goes over its elements once more from there. The pairs of the parts before are joined first. Whether one block goes from
// part to part or each part has its own, after a launch that finds their pairs, changes no bit.
//
// Macros of a variant: DS_X, DS_Y   types of input and output
//                      DS_GROUP     threads a row
#include "convert.cuh"
#include "layout.cuh"
#include "reduced.cuh"

namespace ds {

typedef DS_X x_type;
typedef DS_Y y_type;
typedef group<DS_GROUP> team;

constexpr int ITEMS = 8;                                // neighbouring elements of a thread
constexpr int SEGMENT = ITEMS * DS_GROUP;
constexpr int BLOCK = DS_GROUP > 128 ? DS_GROUP : 128;
constexpr int ROWS_A_BLOCK = BLOCK / DS_GROUP;

DS_DEVICE f64* segment_of_team() {
    DS_SHARED(f64, values, BLOCK * ITEMS);
    return values + team::number() * SEGMENT;
}
// Where an element of a segment lies: neither neighbours nor every eighth element share a bank.
DS_DEVICE int place(int k) { return k ^ (k >> 4 & 7); }

DS_DEVICE pair with_element(pair p, f64 x) {
    if (x == p.m) return x == -infinity() ? p : pair{p.m, p.rest + 1.0};
    if (x > p.m) return {x, scaled(p.rest + 1.0, exponential(p.m - x))};
    return {p.m, p.rest + exponential(x - p.m)};
}

DS_DEVICE pair of_lane_before(pair p, int distance) {
    return {__shfl_up_sync(ALL_LANES, p.m, distance),
            {__shfl_up_sync(ALL_LANES, p.rest.high, distance), __shfl_up_sync(ALL_LANES, p.rest.low, distance)}};
}
DS_DEVICE pair of_last_lane(pair p) {
    return {__shfl_sync(ALL_LANES, p.m, 31), {__shfl_sync(ALL_LANES, p.rest.high, 31), __shfl_sync(ALL_LANES, p.rest.low, 31)}};
}

// The pair of what the threads before this one hold, after `part`, which takes in what all hold.
DS_DEVICE pair scan(pair mine, pair& part) {
    const int lane = int(threadIdx.x) % 32, warp = team::thread() / 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const pair other = of_lane_before(mine, distance);
        if (lane >= distance) mine = merge(other, mine);
    }
    pair before = of_lane_before(mine, 1);
    if (lane == 0) before = nothing();
    if (team::WARPS == 1) {
        before = merge(part, before);
        part = merge(part, of_last_lane(mine));
        return before;
    }
    DS_SHARED(pair, totals, team::WARPS);               // those of the segment before were read before the team met for this one
    if (lane == 31) totals[warp] = mine;
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < team::WARPS; ++w) {
        if (w == warp) before = merge(part, before);
        part = merge(part, totals[w]);
    }
    return before;
}

struct running_row {
    const char* x;
    char* y;
    i64 step, length;           // bytes between results, elements
};

// The elements from `first` up to `last`, which follow on what `before` has seen; their results, with `writes`. Returns the pair of them alone.
DS_DEVICE pair go_along(const running_row& row, const axes& inner, i64 first, i64 last, pair before, bool writes) {
    f64* const values = segment_of_team();
    const bool is_first = first == 0;
    pair part = nothing();
    for (i64 start = first; start < last; start += SEGMENT) {
        team::meet();
        for (int k = team::thread(); k < SEGMENT; k += DS_GROUP)
            values[place(k)] = start + k < last ? to_compute<f64>(load<x_type>(row.x + offset(inner, X, start + k))) : -infinity();
        team::meet();
        pair mine = nothing();
#pragma unroll 1
        for (int j = 0; j < ITEMS; ++j) mine = with_element(mine, values[place(team::thread() * ITEMS + j)]);
        pair p = scan(mine, part);
        if (!writes) continue;
        if (!is_first) p = merge(before, p);
#pragma unroll 1
        for (int j = 0; j < ITEMS; ++j) {
            f64& value = values[place(team::thread() * ITEMS + j)];
            p = with_element(p, value);
            value = p.m + log_of_sum(p);
        }
        team::meet();
        for (int k = team::thread(); k < SEGMENT; k += DS_GROUP)
            if (start + k < last) store(row.y + (start + k) * row.step, rounded<y_type>::of(values[place(k)]));
    }
    return part;
}

// What a launch does: whole rows, part by part; or one part a block, at first their pairs, then the results after them.
enum task { WHOLE_ROWS, PAIRS_OF_PARTS, RESULTS_OF_PARTS };

}  // namespace ds

// Each row is `parts` parts of `length` elements, a multiple of SEGMENT; the last may be shorter. Of several, the pairs are in `pairs`. The results
// of a row lie `step` bytes apart, from `y` on; with `initial`, the first of them is of no element.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, 2)
    cumulative_rows(const char* x, char* y, long long step, int initial, double* pairs, long long parts, long long length, int task,
                    const __grid_constant__ ds::layout at) {
    using namespace ds;
    const i64 a_row = task == WHOLE_ROWS ? 1 : parts;
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < at.rows * a_row; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 unit = base + team::number(), index = a_row == 1 ? unit : unit / a_row, n = index < at.rows ? at.n : 0;
        const running_row row = {x + (n ? offset(at.outer, X, index) : 0), y + (n ? offset(at.outer, Y, index) : 0) + initial * step, step, n};
        const i64 first = unit - index * a_row, last = first + (task == WHOLE_ROWS ? parts : 1);
        if (initial && n && first == 0 && task != PAIRS_OF_PARTS && team::thread() == 0)
            store(row.y - step, rounded<y_type>::of(-infinity()));
#pragma unroll 1
        for (i64 part = first; part < last; ++part) {
            pair before = nothing();
            if (part > 0 && task != PAIRS_OF_PARTS) before = join(part, pairs_in_memory{pairs + 3 * index * parts});
            const pair found = go_along(row, at.inner, part * length, smaller((part + 1) * length, n), before, task != PAIRS_OF_PARTS);
            if (task == RESULTS_OF_PARTS || parts == 1) continue;
            if (team::thread() == 0) store_pair(pairs, index * parts + part, found);
            __syncthreads();                            // the next part reads it
        }
    }
}
