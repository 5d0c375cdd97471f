// gradient_columns.cu - the gradients of rows that are not contiguous, or of which elements are hidden; they may take the place of what they are
// computed from. What is read is read once; where a row needs a sum first, what is summed twice unless shared memory has room for it.
//
// Macros of a variant: DS_X   type of the arithmetic; codes tell the types of what is read and written
#define DS_Y DS_X
#define DS_WIDTH 1
#define DS_CODED 1
#include "columns.cuh"
#include "finite.cuh"
#include "gradient_terms.cuh"

namespace ds {

// Elements of a column that a thread takes at a time: of two operands, and what becomes of them.
constexpr int TAKEN = 4;

// Of a thread's elements. Those that are hidden, or past the end, are not visible, and 0 stands for them.
struct pairs_of_elements {
    compute x[TAKEN], t[TAKEN];
    u32 visible;
};

// Two operands along a column. What is kept in shared memory, where there is room, is there once it has been read.
struct operands_of_column {
    const source& from;
    const axes& inner;
    const char* beside;             // or null
    i32 code;
    bool is_aligned;
    compute* kept_x;
    compute* kept_t;

    DS_DEVICE void load(compute (&value)[TAKEN], u32 wanted, i64 batch, const char* base, operand which, i32 of_code, bool aligned, compute* kept, bool is_kept) const {
        if (is_kept && kept) {
#pragma unroll
            for (int i = 0; i < TAKEN; ++i) value[i] = wanted >> i & 1 ? kept[(batch * TAKEN + i) * from.kept_step] : compute(0);
            return;
        }
        const char* place[TAKEN];
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) place[i] = wanted >> i & 1 ? base + offset(inner, which, from.element<TAKEN>(batch, i)) : nullptr;
        load_numbers(value, of_code, aligned, place);
        if (!kept) return;
#pragma unroll
        for (int i = 0; i < TAKEN; ++i)
            if (wanted >> i & 1) kept[(batch * TAKEN + i) * from.kept_step] = value[i];
    }

    // `x_is_kept`, `t_is_kept`: they have been read.
    DS_DEVICE pairs_of_elements read(i64 batch, bool with_x, bool x_is_kept, bool t_is_kept) const {
        pairs_of_elements e = {};
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) {
            const i64 k = from.element<TAKEN>(batch, i);
            if (k < from.last && (!from.where || load_aligned<u8>(from.where + offset(inner, WHERE, k)) != 0)) e.visible |= 1u << i;
        }
        if (beside) load(e.t, e.visible, batch, beside, WEIGHT, code, is_aligned, kept_t, t_is_kept);
        if (!with_x) return e;
        load(e.x, e.visible, batch, from.x, X, from.code, from.is_aligned, kept_x, x_is_kept);
#pragma unroll
        for (int i = 0; i < TAKEN; ++i)
            if (from.is_scaled) e.x[i] = mul(e.x[i], from.factor);
        return e;
    }
};

DS_DEVICE f64 sum_of_column(const meeting& at, const operands_of_column& of, bool of_products) {
    wide_of<compute> sum[1] = {};
    for (i64 batch = 0; batch < of.from.batches<TAKEN>(); ++batch) {
        const pairs_of_elements e = of.read(batch, of_products, false, false);
        any_accumulator terms;
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) terms.add_term(i, of_products ? mul(e.x[i], e.t[i]) : e.t[i]);
        add_to(sum[0], terms.total());
    }
    at.all(sum, plus_finite());
    return value_of(sum[0]);
}

DS_DEVICE void write_gradients(const operands_of_column& of, const answer& by, bool x_is_kept, bool t_is_kept, char* y, i32 y_code, bool is_aligned) {
    for (i64 batch = 0; batch < of.from.batches<TAKEN>(); ++batch) {
        const pairs_of_elements e = of.read(batch, true, x_is_kept, t_is_kept);
        compute result[TAKEN];
        char* place[TAKEN];
#pragma unroll
        for (int i = 0; i < TAKEN; ++i) {
            const i64 k = of.from.element<TAKEN>(batch, i);
            result[i] = e.visible >> i & 1 ? gradient_of(e.x[i], e.t[i], by) : compute(0);
            if (k == by.label) result[i] = rounded<compute>::of(by.at_label);
            place[i] = k < of.from.last ? y + offset(of.inner, Y, k) : nullptr;
        }
        store_numbers_at(place, y_code, is_aligned, result);
    }
}

// Behind the places of columns: the answers of rows, by strand 0 for all.
constexpr int ANSWER_SIZE = 80;
static_assert(sizeof(answer) <= ANSWER_SIZE, "it has no more room");
DS_DEVICE unsigned char* answers_of(const meeting& at) { return at.of_column<unsigned char>(at.by.columns()); }

}  // namespace ds

// `labels` are class indices, or null. m, rest and `grads` have one number a row. `aligned`: bits of x, y and what is read beside x.
extern "C" __global__ void __launch_bounds__(ds::MOST_THREADS, 1)
    gradient_columns(const char* x, const char* where, const char* scale, const char* beside, const char* labels, const char* m, const char* rest,
                     const char* grads, char* y, int aligned, const __grid_constant__ ds::question q, const __grid_constant__ ds::layout at,
                     const __grid_constant__ ds::more_strides more, const __grid_constant__ ds::tiling by) {
    using namespace ds;
    const meeting strands = {by};
    unsigned char* const answers = answers_of(strands);
    compute* const kept = (compute*)(answers + by.columns() * ANSWER_SIZE) + threadIdx.x;
    const i64 steps = (at.n + by.strands - 1) / by.strands;
    for (i64 tile = blockIdx.x; tile < by.tiles(at); tile += gridDim.x) {
        const place of_lane = place_of_lane(by, at, tile, by.lane());
        source from = source_of(x, q.factor, by, at, of_lane, 0);
        from.kept = nullptr;
        from.code = q.x_code;
        from.is_aligned = (aligned & 1) != 0;
        if (where) from.where = where + offset(at.outer, WHERE, of_lane.row);
        if (scale) {
            from.factor = scale_of<compute>(load<f64>(scale + offset(at.outer, SCALE, of_lane.row)));
            from.is_scaled = true;
        }
        row_numbers given = numbers_of_row(m, rest, grads, q, at, more, of_lane.row);
        const bool is_wanted = of_lane.count != 0 && needs_pair(q, given.m);
        if (__syncthreads_or(is_wanted)) {
            compute largest[1];
            pairs_of_tile<true>(by, from, at.inner, largest, nothing_besides());
            if (is_wanted) refine(given, *strands.of_column<pair>(by.column(0)), q.roundoff);
        }
        const operands_of_column of = {from,
                                       at.inner,
                                       q.has_beside() ? beside + offset(at.outer, WEIGHT, of_lane.row) : nullptr,
                                       q.beside_code,
                                       (aligned & 4) != 0,
                                       by.kept > 1 ? kept + steps * i64(blockDim.x) : nullptr,
                                       by.kept > 0 ? kept : nullptr};
        const f64 sum = q.needs_sum() ? sum_of_column(strands, of, q.of == OF_SOFTMAX) : 0.0;
        if (by.strand() == 0 && of_lane.count) {
            answer own = answer_for(q, sum, given);
            if (labels) {
                const auto element = [&](i64 i) { return number_at<f64>(from.x + offset(at.inner, X, i), q.x_code); };
                heed_label(own, load<i64>(labels + offset(at.outer, SIGN, of_lane.row)), at.n, given, q, element);
            }
            *(answer*)(answers + by.lane() * ANSWER_SIZE) = own;
        }
        __syncthreads();
        if (of_lane.count) {
            const answer found = *(const answer*)(answers + by.lane() * ANSWER_SIZE);
            write_gradients(of, found, q.of == OF_SOFTMAX, q.needs_sum(), y + offset(at.outer, Y, of_lane.row), q.y_code, (aligned & 2) != 0);
        }
        __syncthreads();
    }
}
