// attention_merge.cu - the partial results of rows whose keys come in several runs become outputs: a warp a row.
#include "attention_finish.cuh"
#include "attention_work.cuh"
#include "group.cuh"

namespace ds {

typedef DS_C compute;
typedef wide_of<compute> wide;

constexpr int COLUMNS = sizeof(compute) == 8 ? 64 : 128;
constexpr int EACH = COLUMNS / 32;

struct kept_row {
    kept_rows<wide> from;
    i64 slot, step;             // of its first run, and from run to run
    int runs;
};

struct merged { row_pair pair; wide o[EACH]; };
DS_DEVICE merged merge_runs(const kept_row& row, int lane) {
    merged all;
    all.pair = {-infinity(), 0.0};
#pragma unroll
    for (int i = 0; i < EACH; ++i) all.o[i] = to_wide(compute(0));
    for (int run = 0; run < row.runs; ++run) {
        const i64 slot = row.slot + run * row.step;
        const meeting joint = meet(all.pair, load_aligned<row_pair>(row.from.pairs + slot));
        const wide* const sums = row.from.sum(slot, COLUMNS) + lane;
#pragma unroll
        for (int i = 0; i < EACH; ++i) all.o[i] = united(joint, all.o[i], load_aligned<wide>(sums + i * 32));
        all.pair = joint.both;
    }
    return all;
}

// What the arithmetic does not hold of a state's sums.
DS_DEVICE bool is_held(const merged& row) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < EACH; ++i) all &= !is_finite(row.o[i]) || is_finite(rounded<compute>::of(value_of(row.o[i])));
    return __all_sync(ALL_LANES, all) != 0;
}
DS_DEVICE bool are_equal(row_pair a, row_pair b) {
    return (a.m == b.m || (is_nan(a.m) && is_nan(b.m))) && (a.d == b.d || (is_nan(a.d) && is_nan(b.d)));
}

struct ending_row { char* out; row_place at; i64 first_slot, slot_step; };

// One pair serves all columns of a state: where a part of them has sums that are not held, or became means already, all become means.
DS_DEVICE row_pair end_state(const attention_task& t, const ending_row& row, kept_row from, int lane) {
    row_pair pair = {0.0, 0.0};
    bool is_sum = true;
    for (i64 slice = 0; slice < t.slices; ++slice) {
        from.slot = row.first_slot + slice * row.slot_step;
        const merged all = merge_runs(from, lane);
        if (slice == 0) pair = all.pair;
        is_sum = is_held(all) && is_sum && are_equal(pair, all.pair);
    }
    for (i64 slice = 0; slice < t.slices; ++slice) {
        from.slot = row.first_slot + slice * row.slot_step;
        const merged all = merge_runs(from, lane);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const i64 column = slice * COLUMNS + lane + i * 32;
            const f64 x[1] = {is_sum ? sum_of_state(all.o[i], all.pair) : output_of(all.o[i], {all.pair, 1.0})};
            if (column < t.dim_v) store_numbers(row.out + column * t.at[AT_OUT].item, 0, int(t.at[AT_OUT].code), false, x, 1);
        }
    }
    return is_sum ? pair : row_pair{pair.m + log_sum(pair.d, 0.0), 1.0};
}

DS_DEVICE row_pair end_output(const attention_task& t, const ending_row& row, kept_row from, int lane) {
    row_pair pair = {0.0, 0.0};
    for (i64 slice = 0; slice < t.slices; ++slice) {
        from.slot = row.first_slot + slice * row.slot_step;
        const merged all = merge_runs(from, lane);
        const row_end end = end_of_row(t, row.at.head, all.pair);
        if (slice == 0) pair = end.pair;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const i64 column = slice * COLUMNS + lane + i * 32;
            const f64 x[1] = {output_of(all.o[i], end)};
            if (column < t.dim_v) store_numbers(row.out + column * t.at[AT_OUT].item, 0, int(t.at[AT_OUT].code), false, x, 1);
        }
    }
    return pair;
}

}  // namespace ds

// `rows` and `is_few` are those of the kernel that kept the results. `selected`, if given, has a word for each block of rows, a bit a row: the others
// have their results already.
extern "C" __global__ void __launch_bounds__(128, 4)
    attention_merge(const __grid_constant__ ds::attention_task t, const char* sums, const double* pairs, int rows, int is_few,
                    const unsigned long long* selected) {
    using namespace ds;
    const i64 parts = t.runs * t.slices, all = t.work / parts;
    const int lane = int(threadIdx.x) % 32;
    for (i64 index = blockIdx.x; index < all; index += gridDim.x) {
        const work_item w = work_of(t, index * parts, rows, is_few != 0);
        const u64 wanted = selected ? load_aligned<u64>(selected + index) : ~u64(0);
        if (!w.is_any || wanted == 0) continue;
        const statistics stats = statistics_of(t, w.of);
        for (i64 row = w.first + threadIdx.x / 32; row < w.last; row += 4) {
            if (selected && (wanted >> (row - w.first) & 1) == 0) continue;
            const row_place at = place_of_row(t, w.head, row);
            const ending_row ending = {w.of.base(t, AT_OUT) + offset_of_row(t.at[AT_OUT], at), at, w.slot + (row - w.first),
                                       is_few ? t.runs * t.rows_kept : i64(rows)};
            const kept_row from = {{(wide*)sums, (row_pair*)pairs}, ending.first_slot, t.rows_kept, int(t.runs)};
            const row_pair pair = t.at[AT_M].base ? end_state(t, ending, from, lane) : end_output(t, ending, from, lane);
            if (lane == 0) store_statistics(t, stats, at, pair);
        }
    }
}
