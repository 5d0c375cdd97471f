// gradients.cu - the gradients of rows, which may take the place of what they are computed from.
//
// With c the logarithm of a row, or what stands for it, and t what is read beside x, an element's gradient is one of
//     EXPONENTIAL   exp(x - c) a + b                logsumexp; cross-entropy with class indices
//     TIMES_BESIDE  exp(x - c) a t                  logsumexp with weights t; 0 where t is 0
//     PLUS_BESIDE   exp(x - c) a + b + w t          log_softmax (x its result, t the incoming gradient); cross-entropy with probabilities t
//     PRODUCT       x (w t + b)                     softmax (x its result, t the incoming gradient)
// A row that fits the registers of its threads is read once. Longer ones go segment by segment, and once more, from the end, where they need a
// sum first.
//
// Macros of a variant: DS_BESIDE   1: something is read beside x, of type DS_W
#if !DS_BESIDE
#define DS_W DS_X
#endif
#include "beside.cuh"
#include "results.cuh"

namespace ds {

enum form { EXPONENTIAL, TIMES_BESIDE, PLUS_BESIDE, PRODUCT };
enum function { OF_SOFTMAX, OF_LOG_SOFTMAX, OF_LOGSUMEXP, OF_CROSS_ENTROPY };
enum more_operand { M_OF_ROW, REST_OF_ROW, GRAD_OF_ROW };

// How many units of the arithmetic the roundoff of a given logarithm may cost before the row's own takes its place.
constexpr f64 LOSSY = 128.0;
constexpr f64 UNIT = sizeof(compute) == 4 ? 0x1p-24 : 0x1p-53;

struct question {
    f64 hard, uniform, z_loss, roundoff;
    i64 ignored;
    i32 of, ignores;
};

// What the elements of a row need. `label` is -1 where there is none.
struct answer {
    form kind;
    compute c, a, b, w;
    f64 exact_a, at_label;
    i64 label;
    bool is_zero, is_ordinary;  // all gradients are 0; a is far from what overflows or underflows
};

// e^x - 1
DS_DEVICE f64 exponential_minus_1(f64 x) {
    if (x < -40.0) return exponential(x) - 1.0;
    if (x > 40.0) return exponential_above(x) - 1.0;
    const exponential_parts e = split_exponential(x);
    return (e.power - 1.0) + e.power * (e.high + e.low);
}

struct row_of_gradients {
    row from;
    const char* beside;
    i64 segments;

    DS_DEVICE share read_segment(const axes& inner, i64 segment) const { return read(from, inner, segment); }
    DS_DEVICE company read_segment_beside(const share& mine, const axes& inner, i64 segment) const {
#if DS_BESIDE
        return read_beside(mine, beside, from.length, inner, segment);
#else
        return {};
#endif
    }
};

// The pair of the row itself, where the logarithm that was given is its own, rounded.
DS_DEVICE void refine(f64& m, f64& rest, const row_of_gradients& r, const axes& inner, f64 roundoff) {
    pair own = nothing();
    for (i64 segment = 0; segment < r.segments; ++segment) {
        share mine = r.read_segment(inner, segment);
        const compute largest_one = largest(mine);
        own = merge(own, pair_of_segment(mine, largest_one));
    }
    const f64 lse = log_of(own), off = lse - m, most = 4.0 * roundoff * larger(absolute(m), absolute(own.m));
    if (!(absolute(off) <= most)) return;       // two units in the last place, as logsumexp promises
    m = own.m;
    rest = value_of(own.rest);
}

DS_DEVICE void set_factor(answer& to, f64 a) {
    const f64 size = absolute(a);
    to.exact_a = a;
    to.a = rounded<compute>::of(a);
    to.is_ordinary = a == 0.0 || (!(size < 0x1p-100) && !(size > 0x1p100));
}

DS_DEVICE bool needs_pair(const question& q, f64 m) {
    const bool is_comparable = q.of == OF_CROSS_ENTROPY || (q.of == OF_LOGSUMEXP && !DS_BESIDE);
    return is_comparable && m - m == 0.0 && absolute(m) * q.roundoff > LOSSY * UNIT;
}

// The gradient at the label: p - 1 keeps its relative accuracy however near to 1 p is.
DS_DEVICE f64 gradient_at_label(f64 x, f64 m, f64 rest, f64 grad, const question& q) {
    const f64 log_d = log1p_of(rest), log_p = (x - m) - log_d;
    const f64 more = q.z_loss == 0.0 ? 0.0 : 2.0 * q.z_loss * (m + log_d) * (log_p > 40.0 ? exponential_above(log_p) : exponential(log_p));
    return grad * (exponential_minus_1(log_p) + more + ((1.0 - q.hard) - q.uniform));
}

// exp(x - c) with c, m as the arithmetic has it, times `inverse` is exp(x - m) / (1 + rest).
DS_DEVICE f64 set_shift(answer& to, f64 m, f64 rest) {
    const normalizer by = normalizer_of(m, rest);
    to.c = by.shift;
    return m - m == 0.0 ? by.inverse : 1.0 / (1.0 + rest);
}

DS_DEVICE answer answer_for(const question& q, f64 sum, f64 m, f64 rest, f64 grad) {
    answer to = {};
    to.label = -1;
    to.kind = q.of == OF_SOFTMAX ? PRODUCT : q.of == OF_LOGSUMEXP ? (DS_BESIDE ? TIMES_BESIDE : EXPONENTIAL) : DS_BESIDE ? PLUS_BESIDE : EXPONENTIAL;
    if (q.of == OF_SOFTMAX || q.of == OF_LOG_SOFTMAX) {
        to.w = rounded<compute>::of(grad);
        to.b = rounded<compute>::of(q.of == OF_SOFTMAX ? -grad * sum : 0.0);
        set_factor(to, -grad * sum);
        return to;
    }
    const f64 inverse = set_shift(to, m, rest);
    if (q.of == OF_LOGSUMEXP) {
        to.is_zero = m == -infinity();
        set_factor(to, grad * inverse);
        return to;
    }
    const f64 lse = q.z_loss == 0.0 ? 0.0 : m + log1p_of(rest), mass = DS_BESIDE ? q.hard * sum + (1.0 - q.hard) : 1.0;
    set_factor(to, grad * inverse * (mass + 2.0 * q.z_loss * lse));
    to.b = rounded<compute>::of(-grad * q.uniform);
    to.w = rounded<compute>::of(-grad * q.hard);
    return to;
}

DS_DEVICE compute scaled_by_a(compute x, const answer& by) {
    const compute t = sub(x, by.c);
    if (t > compute(40) || !by.is_ordinary) return rounded<compute>::of(exponential_above(f64(t)) * by.exact_a);
    return mul(ROUGH ? rough()(t) : precise()(t), by.a);
}
DS_DEVICE compute gradient_of(compute x, compute t, const answer& by) {
    if (by.kind == PRODUCT) return mul(x, fused(by.w, t, by.b));
    const compute e = scaled_by_a(x, by);
    if (by.kind == EXPONENTIAL) return add(e, by.b);
    if (by.kind == PLUS_BESIDE) return add(e, fused(by.w, t, by.b));
    return t == compute(0) ? compute(0) : mul(e, t);
}

struct as_it_is { DS_DEVICE compute operator()(compute value, compute) const { return value; } };

// The elements give way to their gradients.
DS_DEVICE void become_gradients(share& mine, const company& with, const answer& by, i64 segment) {
    const i64 k = by.label - segment * SEGMENT, of_chunk = k / DS_CHUNK;
    const bool is_here = by.label >= 0 && k >= 0 && k < SEGMENT && of_chunk % DS_GROUP == team::thread();
    const int item = is_here ? int(of_chunk / DS_GROUP) * DS_CHUNK + int(k % DS_CHUNK) : -1;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const compute value = by.is_zero ? compute(0) : gradient_of(mine.value[i], DS_BESIDE ? with.value[i] : compute(0), by);
        mine.value[i] = i == item ? rounded<compute>::of(by.at_label) : value;
    }
}

}  // namespace ds

// `labels` are class indices, or null. m, rest and `grads` (or else `grad`) have one number a row.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, 1)
    gradient_rows(const char* x, const char* where, const char* scale, double factor, const char* beside, const char* labels, const char* m,
                  const char* rest, const char* grads, double grad, char* y, double hard, double uniform, double z_loss, double roundoff,
                  long long ignored, int of, int ignores, const __grid_constant__ ds::layout at, const __grid_constant__ ds::more_strides more) {
    using namespace ds;
    const inputs in = {x, where, scale, factor};
    const question q = {hard, uniform, z_loss, roundoff, ignored, of, ignores};
    for (i64 base = i64(blockIdx.x) * ROWS_A_BLOCK; base < at.rows; base += i64(gridDim.x) * ROWS_A_BLOCK) {
        const i64 index = base + team::number();
        const bool is_there = index < at.rows;
        const i64 place = is_there ? index : 0;
        const row_of_gradients r = {row_of(in, at, index), beside + (DS_BESIDE ? offset(at.outer, WEIGHT, place) : 0), segments_of(at.n)};
        f64 m_of_row = m ? load<f64>(m + offset(at.outer, more, M_OF_ROW, place)) : 0.0;
        f64 rest_of_row = rest ? load<f64>(rest + offset(at.outer, more, REST_OF_ROW, place)) : 0.0;
        const f64 grad_of_row = grads ? load<f64>(grads + offset(at.outer, more, GRAD_OF_ROW, place)) : grad;
        if (needs_pair(q, m_of_row)) refine(m_of_row, rest_of_row, r, at.inner, roundoff);

        i64 held = 0;                           // the segment in the registers
        share mine = r.read_segment(at.inner, held);
        company with = r.read_segment_beside(mine, at.inner, held);
        f64 sum = 0.0;
        if (DS_BESIDE && of != OF_LOGSUMEXP) {
            for (i64 segment = 0; segment < r.segments; ++segment) {
                if (segment != held) {
                    mine = r.read_segment(at.inner, segment);
                    with = r.read_segment_beside(mine, at.inner, segment);
                    held = segment;
                }
                if (of == OF_SOFTMAX) sum += sum_over(mine, [&](int i) { return mul(mine.value[i], with.value[i]); });
                else sum += sum_over(mine, [&](int i) { return with.value[i]; });
            }
        }
        answer by = answer_for(q, sum, m_of_row, rest_of_row, grad_of_row);
        if (labels && is_there) {
            const i64 label = load<i64>(labels + offset(at.outer, SIGN, place));
            by.is_zero = ignores && label == ignored;
            if (!by.is_zero && (label < 0 || label >= at.n)) set_factor(by, not_a_number());
            else if (!by.is_zero) {
                const f64 x_at_label = to_compute<f64>(load<x_type>(x + offset(at.outer, X, place) + offset(at.inner, X, label)));
                by.at_label = gradient_at_label(x_at_label, m_of_row, rest_of_row, grad_of_row, q);
                by.label = label;
            }
        }
        char* const to = y + offset(at.outer, Y, place);
        for (i64 segment = r.segments - 1; segment >= 0; --segment) {
            if (segment != held) {
                team::meet();                   // accesses that are not aligned reach what a neighbour has written
                mine = r.read_segment(at.inner, segment);
                with = r.read_segment_beside(mine, at.inner, segment);
                held = segment;
            }
            team::meet();                       // and what it reads
            become_gradients(mine, with, by, segment);
            write(mine, r.from, to, at.inner, segment, compute(0), as_it_is());
        }
    }
}
