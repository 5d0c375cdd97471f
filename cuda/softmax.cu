// softmax.cu - softmax and, with DS_LOG, log_softmax.
#include "rows.cuh"

namespace ds {

// Each visible element becomes exp(x - m) / d, or x - m - log d.
struct probability {
    compute inverse;
    DS_DEVICE compute operator()(compute x, compute m) const {
        const compute t = sub(x, m);
        return mul(ROUGH ? rough()(t) : precise()(t), inverse);
    }
};
struct logarithm {
    compute log_of_d;
    DS_DEVICE compute operator()(compute x, compute m) const { return sub(sub(x, m), log_of_d); }
};
// The exponentials are there already.
struct quotient {
    compute inverse;
    DS_DEVICE compute operator()(compute e, compute) const { return mul(e, inverse); }
};

// 1 / d; NaN for a row with +inf.
DS_DEVICE compute inverse_of(compute m, f64 d) { return reciprocal(rounded<compute>::of(m == compute(infinity()) ? not_a_number() : d)); }

DS_DEVICE void write_direct(const chunk<y_type, DS_CHUNK>& v, const row& from, char* y, i64 first) {
    if (first + DS_CHUNK <= from.length) {
        store_aligned((y_type*)y + first, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j)
        if (first + j < from.length) store_aligned((y_type*)y + first + j, v.at[j]);
}

DS_DEVICE void write_any(const compute (&result)[DS_CHUNK], const row& from, char* y, const axes& inner, i64 segment, int slot) {
    const passage through = passage_of_team();
    const i64 start = segment * SEGMENT + i64(slot) * passage::LENGTH;
    team::meet();
#pragma unroll
    for (int j = 0; j < DS_CHUNK; ++j) through.value[team::thread() * DS_CHUNK + j] = result[j];
    team::meet();
#pragma unroll 1
    for (int k = team::thread(); k < passage::LENGTH; k += DS_GROUP)
        if (start + k < from.length) store(y + offset(inner, Y, start + k), rounded<y_type>::of(through.value[k]));
}

template <class Result> DS_DEVICE void write(const share& mine, const row& from, char* y, const axes& inner, i64 segment, compute m, Result result) {
    const compute hidden = compute(DS_LOG ? -infinity() : 0.0);
#pragma unroll
    for (int slot = 0; slot < DS_SLOTS; ++slot) {
        compute results[DS_CHUNK];
        chunk<y_type, DS_CHUNK> v;
#pragma unroll
        for (int j = 0; j < DS_CHUNK; ++j) {
            const int i = slot * DS_CHUNK + j;
            results[j] = DS_DIRECT || mine.visible >> i & 1 ? result(mine.value[i], m) : hidden;
            v.at[j] = rounded<y_type>::of(results[j]);
        }
        if (DS_DIRECT) write_direct(v, from, y, first_of(segment, slot));
        else write_any(results, from, y, inner, segment, slot);
    }
}

// The row stays in registers: its exponentials, computed once, are what is divided.
DS_DEVICE void softmax_segment(const row& from, char* y, const axes& inner) {
    share mine = read(from, inner, 0);
    const compute m = largest(mine);
#if DS_LOG
    const pair p = pair_of_segment(mine, m);
    write(mine, from, y, inner, 0, m, logarithm{rounded<compute>::of(log_of_sum(p))});
#else
    const compute shift = shift_by_largest(m);
    const sums<compute> s = ROUGH ? add_up<true>(mine, m, shift, rough()) : add_up<true>(mine, m, shift, precise());
    const f64 d = m == compute(-infinity()) ? value_of(s.total) : value_of(s.total + f64(s.count));
    write(mine, from, y, inner, 0, m, quotient{inverse_of(m, d)});
#endif
}

// The row is read twice.
DS_DEVICE void softmax_segments(const row& from, char* y, const axes& inner) {
    const pair p = pair_of_row(from, inner);
    const compute m = rounded<compute>::of(p.m);
    for (i64 segment = 0; segment * SEGMENT < from.length; ++segment) {
        const share mine = read(from, inner, segment);
#if DS_LOG
        write(mine, from, y, inner, segment, m, logarithm{rounded<compute>::of(log_of_sum(p))});
#else
        write(mine, from, y, inner, segment, m, probability{inverse_of(m, sum_of(p))});
#endif
    }
}

}  // namespace ds

extern "C" __global__ void __launch_bounds__(ds::BLOCK, ds::BLOCKS_AT_ONCE)
    softmax_rows(const char* x, const char* where, const char* scale, double factor, char* y, const __grid_constant__ ds::layout at) {
    using namespace ds;
    const inputs in = {x, where, scale, factor};
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < at.rows; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 index = base + team::number();
        const row from = row_of(in, at, index);
        char* const to = y + (index < at.rows ? offset(at.outer, Y, index) : 0);
        if (DS_TILED) softmax_segments(from, to, at.inner);
        else softmax_segment(from, to, at.inner);
    }
}
