// totals.cu - the total of all entries, or one of every `length` of them. Their order follows from their number alone.
#include "numbers.cuh"
#include "totals.cuh"

// To `to`, one entry a block; or, of one block, the sum or the mean to y. The mean over nothing is NaN.
extern "C" __global__ void __launch_bounds__(256)
    total_of_entries(const char* entries, long long count, long long length, char* to, char* y, int y_code, int is_mean) {
    using namespace ds;
    typedef group<256> team;
    const i64 first = i64(blockIdx.x) * length, last = smaller(first + length, i64(count));
    entry mine = {{0.0, 0.0}, 0.0};
    for (i64 i = first + team::thread(); i < last; i += 256) mine = mine + load_entry(entries, i);
    const entry all = team::reduce(mine, plus());
    if (team::thread() != 0) return;
    if (!y) {
        store_entry(to, blockIdx.x, all);
        return;
    }
    const f64 sum = all.sum.high + all.sum.low;
    char* const place[1] = {y};
    const f64 result[1] = {is_mean ? sum / all.count : sum};
    store_numbers_at(place, y_code, true, result);
}
