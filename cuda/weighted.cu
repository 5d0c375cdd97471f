// weighted.cu - the logarithm of the sum of weighted exponentials of each row, or the sums of parts of long rows.
//
// Macros of a variant: DS_X, DS_W, DS_Y   types of elements, weights and results
//                      DS_GROUP           threads a row
#include "weighted.cuh"

namespace ds {

typedef DS_X x_type;
typedef DS_W weight_type;
typedef DS_Y y_type;
typedef group<DS_GROUP> team;

constexpr int ITEMS = 4;                                // elements of a thread at a time, a team's width apart
constexpr int BLOCK = DS_GROUP > 128 ? DS_GROUP : 128;
constexpr int ROWS_A_BLOCK = BLOCK / DS_GROUP;

struct weighted_row {
    const char* x;
    const char* weight;
    const char* where;          // or null
    f64 factor;
};

DS_DEVICE void read_element(f64& x, f64& weight, const weighted_row& from, const axes& inner, i64 index) {
    if (from.where && load<u8>(from.where + offset(inner, WHERE, index)) == 0) return;
    const f64 w = to_compute<f64>(load<weight_type>(from.weight + offset(inner, WEIGHT, index)));
    if (w == 0.0) return;
    weight = w;
    x = to_compute<f64>(load<x_type>(from.x + offset(inner, X, index))) * from.factor;
}

DS_DEVICE weighted_sum sum_of_elements(const weighted_row& from, const axes& inner, i64 first, i64 last) {
    weighted_sum s = no_weights();
    for (i64 index = first + team::thread(); index < last; index += ITEMS * DS_GROUP) {
        f64 x[ITEMS], weight[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            x[i] = -infinity();
            weight[i] = 0.0;
            if (index + i * DS_GROUP < last) read_element(x[i], weight[i], from, inner, index + i * DS_GROUP);
        }
        add_elements(s, x, weight);
    }
    return team::reduce(s, plus());
}

}  // namespace ds

// Each row is `parts` parts of `length` elements, the last may be shorter. Of several, the sums go to `scratch`.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, 2)
    weighted_rows(const char* x, const char* weight, const char* where, const char* scale, double factor, char* y, char* sign, char* scratch,
                  long long parts, long long length, const __grid_constant__ ds::layout at) {
    using namespace ds;
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < at.rows * parts; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 index = base + team::number();
        const bool is_there = index < at.rows * parts;
        const i64 row = parts == 1 ? index : index / parts, first = (index - row * parts) * length;
        weighted_row from = {x, weight, where, 1.0};
        if (is_there) {
            from.x += offset(at.outer, X, row);
            from.weight += offset(at.outer, WEIGHT, row);
            if (where) from.where += offset(at.outer, WHERE, row);
            from.factor = scale ? load<f64>(scale + offset(at.outer, SCALE, row)) : factor;
        }
        const weighted_sum s = sum_of_elements(from, at.inner, first, is_there ? smaller(first + length, at.n) : first);
        if (team::thread() != 0 || !is_there) continue;
        if (parts > 1) store_part(scratch + index * PART_BYTES, s);
        else write_logarithm<y_type>(s, y + offset(at.outer, Y, row), sign ? sign + offset(at.outer, SIGN, row) : nullptr);
    }
}
