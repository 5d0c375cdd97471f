// loss_columns.cu - the cross-entropy of rows that are not contiguous, in particular of those that lie side by side: their elements are read once,
// and the one at the label once more.
//
// Macros of a variant: DS_X   type of the arithmetic, and of the results; codes tell the types of what is read
#define DS_Y DS_X
#define DS_WIDTH 1
#define DS_CODED 1
#include "finite.cuh"
#include "logarithms_columns.cuh"
#include "loss_terms.cuh"

namespace ds {

typedef wide_of<compute> wide;

// A strand's sums that no exponential is in, relative to the k of the largest element so far.
struct strand_of_loss {
    const loss_terms& terms;
    const char* labels;             // of the column
    bool is_aligned;
    wide mass, dot, linear;
    f64 k, count;

    DS_DEVICE strand_of_loss(const loss_terms& t, const char* at, bool aligned)
        : terms(t), labels(at), is_aligned(aligned), mass(), dot(), linear(), k(0.0), count(0.0) {}

    DS_DEVICE void move_to(f64 next) {
        const f64 fall = k - next, weight = value_of(mass);
        k = next;
        if (fall == 0.0) return;
        if (weight != 0.0) add_to(dot, weight * fall);
        add_to(linear, count * fall);
    }

    DS_DEVICE void take(const source& from, const axes& inner, i64 batch, const elements& x, compute m) {
        const compute zero = zero_for(m);
        move_to(f64(zero));
        if (terms.uniform != 0.0) {
            any_accumulator sum;
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const bool is_there = from.element<BATCH>(batch, i) < from.last;
                sum.add_term(i, is_there ? sub(x.at[i], zero) : compute(0));
                count += is_there;
            }
            add_to(linear, sum.total());
        }
        if (!terms.is_soft()) return;
        const char* place[BATCH];
        compute t[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const i64 e = from.element<BATCH>(batch, i);
            place[i] = e < from.last ? labels + offset(inner, WEIGHT, e) : nullptr;
        }
        load_numbers(t, terms.labels_code, is_aligned, place);
        any_accumulator of_mass, of_dot;
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            of_mass.add_term(i, t[i]);
            of_dot.add_term(i, t[i] == compute(0) ? compute(0) : mul(t[i], sub(x.at[i], zero)));
        }
        add_to(mass, of_mass.total());
        add_to(dot, of_dot.total());
    }
};

// The sums of a lane's strands, joined.
DS_DEVICE linear_sums joined(const meeting& at, strand_of_loss& strand, compute m) {
    strand.move_to(f64(zero_for(m)));
    if (strand.terms.uniform != 0.0) {
        wide linear[1] = {strand.linear};
        at.all(linear, plus_finite());
        strand.linear = linear[0];
    }
    if (strand.terms.is_soft()) {
        wide mass[1] = {strand.mass}, dot[1] = {strand.dot};
        at.all(mass, plus_finite());
        at.all(dot, plus_finite());
        strand.mass = mass[0];
        strand.dot = dot[0];
    }
    return {value_of(strand.mass), value_of(strand.dot), value_of(strand.linear)};
}

}  // namespace ds

// `x_is_aligned`, `labels_are_aligned`: to the size of their elements.
extern "C" __global__ void __launch_bounds__(ds::MOST_THREADS, 1)
    loss_columns(const char* x, int x_code, int x_is_aligned, const char* labels, int labels_are_aligned, char* y, char* logarithm, char* entries,
                 const __grid_constant__ ds::loss_terms terms, const __grid_constant__ ds::layout at, const __grid_constant__ ds::tiling by) {
    using namespace ds;
    for (i64 tile = blockIdx.x; tile < by.tiles(at); tile += gridDim.x) {
        const place where = place_of_lane(by, at, tile, by.lane());
        source from = source_of(x, 1.0, by, at, where, 0);
        from.code = x_code;
        from.is_aligned = x_is_aligned != 0;
        const char* const beside = labels + (where.count ? offset(at.outer, WEIGHT, where.row) : 0);
        strand_of_loss strand(terms, beside, labels_are_aligned != 0);
        compute m[1];
        pairs_of_tile<true>(by, from, at.inner, m, strand);
        const linear_sums sums = joined({by}, strand, m[0]);
        const pair p = *meeting{by}.of_column<pair>(by.column(0));
        __syncthreads();
        if (logarithm) logarithms_of_tile(by, from, at.inner, m);
        if (by.strand() == 0 && where.count) {
            const f64 lse = logarithm ? meeting{by}.of_column<found_logarithm>(by.column(0))->lse : 0.0;
            const auto element = [&](i64 i) { return number_at<f64>(from.x + offset(at.inner, X, i), x_code); };
            loss_results{y, logarithm, entries}.put<y_type>(at, where.row, finish({p, sums, f64(at.n)}, at.n, terms, beside, element), lse);
        }
        __syncthreads();
    }
}
