// topk_join.cu - the pairs and the first entries of the parts of rows become what softmax_topk returns: a block takes one row.
//
// Macros of a variant: DS_X, DS_Y   types of the values and of the logarithms
#include "ranks.cuh"
#include "reduced.cuh"

namespace ds {

typedef group<256> joining;
typedef compute_of<DS_X, DS_Y> compute;
constexpr int CAPACITY = 2048, TOGETHER = 4;            // entries a thread, at a time
typedef first_entries<joining, wide_entry, CAPACITY> list;

struct part_of_row {
    const f64* pairs;
    DS_DEVICE pair operator()(i64 i) const {
        const f64* const at = pairs + 3 * i;
        return {load_aligned<f64>(at), {load_aligned<f64>(at + 1), load_aligned<f64>(at + 2)}};
    }
};

DS_DEVICE list list_of_block() {
    DS_SHARED(wide_entry, entries, CAPACITY);
    DS_SHARED(int, counts, 1);
    return {entries, counts, 1, 0, wide_entry::none()};
}

}  // namespace ds

// `pairs` and `entries` have `parts` of each row from `row` on, `rows` of them; k entries a part, of which some may be none. `lse` may be null.
extern "C" __global__ void __launch_bounds__(256, 3)
    topk_join(const double* pairs, const unsigned long long* entries, const char* scale, double factor, char* values, long long value_step,
              char* indices, long long index_step, char* lse, const __grid_constant__ ds::layout at, long long first, int k, long long row,
              long long rows, long long parts) {
    using namespace ds;
    const ranks all = {values, indices, value_step, index_step, first, k};
    list found = list_of_block();
    for (i64 unit = blockIdx.x; unit < rows; unit += gridDim.x) {
        const wide_entry* const mine = (const wide_entry*)entries + unit * parts * k;
        const f64 scale_of_row = scale ? load<f64>(scale + offset(at.outer, SCALE, row + unit)) : factor;
        found.begin(k);
        for (i64 base = 0; base < parts * k; base += TOGETHER * joining::SIZE) {
            found.make_room(TOGETHER * joining::SIZE);
#pragma unroll
            for (int j = 0; j < TOGETHER; ++j) {
                const i64 i = base + j * joining::SIZE + joining::thread();
                if (i < parts * k) found.add(load_aligned<wide_entry>(mine + i));
            }
        }
        found.cut();
        const pair p = join(parts, part_of_row{pairs + 3 * unit * parts});
        write_ranks<joining, DS_X>(all.of_row(at, row + unit), found.at, p, scale_of<compute>(fabs(scale_of_row)), 0, true);
        if (lse && threadIdx.x == 0) store_logarithm<DS_Y>(lse + offset(at.outer, LSE, row + unit), nullptr, log_of(p));
    }
}
