// gradient_terms.cuh - what the elements of a row's gradient need to know of the row.
//
// With c the logarithm of a row, or what stands for it, and t what is read beside x, an element's gradient is one of
//     EXPONENTIAL   exp(x - c) a + b                logsumexp; cross-entropy with class indices
//     TIMES_BESIDE  exp(x - c) a t                  logsumexp with weights t; 0 where t is 0
//     PLUS_BESIDE   exp(x - c) a + b + w t          log_softmax (x its result, t the incoming gradient); cross-entropy with probabilities t
//     PRODUCT       x (w t + b)                     softmax (x its result, t the incoming gradient)
#pragma once
#include "layout.cuh"
#include "normalizer.cuh"

namespace ds {

enum form { EXPONENTIAL, TIMES_BESIDE, PLUS_BESIDE, PRODUCT };
enum function { OF_SOFTMAX, OF_LOG_SOFTMAX, OF_LOGSUMEXP, OF_CROSS_ENTROPY };
enum more_operand { M_OF_ROW, REST_OF_ROW, GRAD_OF_ROW };

// How many units of the arithmetic the roundoff of a given logarithm may cost before the row's own takes its place.
constexpr f64 LOSSY = 128.0;
constexpr f64 UNIT = sizeof(compute) == 4 ? 0x1p-24 : 0x1p-53;

struct question {
    f64 factor;                 // of all elements; 1 if there is none
    f64 grad;                   // of all rows, where they have none of their own
    f64 hard, uniform, z_loss;
    f64 roundoff;               // of the given logarithms
    i64 ignored;
    i32 of, ignores;
    i32 x_code, y_code;
    i32 beside_code;            // -1: nothing is read beside x
    i32 is_alike;               // what is has the type of x, and is contiguous

    DS_DEVICE bool has_beside() const { return beside_code >= 0; }
    // Whether the elements' gradients need a sum over the row.
    DS_DEVICE bool needs_sum() const { return has_beside() && of != OF_LOGSUMEXP; }
    DS_DEVICE form kind() const {
        return of == OF_SOFTMAX ? PRODUCT : !has_beside() ? EXPONENTIAL : of == OF_LOGSUMEXP ? TIMES_BESIDE : PLUS_BESIDE;
    }
};

// What is given of a row.
struct row_numbers { f64 m, rest, grad; };
DS_DEVICE row_numbers numbers_of_row(const char* m, const char* rest, const char* grads, const question& q, const layout& at, const more_strides& more, i64 row) {
    return {m ? load<f64>(m + offset(at.outer, more, M_OF_ROW, row)) : 0.0, rest ? load<f64>(rest + offset(at.outer, more, REST_OF_ROW, row)) : 0.0,
            grads ? load<f64>(grads + offset(at.outer, more, GRAD_OF_ROW, row)) : q.grad};
}

// Whether a given logarithm is so rounded that the row's own pair should take its place.
DS_DEVICE bool needs_pair(const question& q, f64 m) {
    const bool is_comparable = q.of == OF_CROSS_ENTROPY || (q.of == OF_LOGSUMEXP && !q.has_beside());
    return is_comparable && m - m == 0.0 && absolute(m) * q.roundoff > LOSSY * UNIT;
}
// It does so where the logarithm that was given is its own, rounded: by two units in the last place, as logsumexp promises.
DS_DEVICE void refine(row_numbers& of, pair own, f64 roundoff) {
    const f64 off = log_of(own) - of.m, most = 4.0 * roundoff * larger(absolute(of.m), absolute(own.m));
    if (!(absolute(off) <= most)) return;
    of.m = own.m;
    of.rest = value_of(own.rest);
}

// What the elements of a row need. `label` is -1 where there is none.
struct answer {
    form kind;
    compute c, a, b, w;
    f64 exact_a, at_label;
    i64 label;
    bool is_zero, is_ordinary;  // all gradients are 0; a is far from what overflows or underflows

    DS_DEVICE void set_factor(f64 factor) {
        const f64 size = absolute(factor);
        exact_a = factor;
        a = rounded<compute>::of(factor);
        is_ordinary = factor == 0.0 || (!(size < 0x1p-100) && !(size > 0x1p100));
    }
};

// e^x - 1
DS_DEVICE f64 exponential_minus_1(f64 x) {
    if (x < -40.0) return exponential(x) - 1.0;
    if (x > 40.0) return exponential_above(x) - 1.0;
    const exponential_parts e = split_exponential(x);
    return (e.power - 1.0) + e.power * (e.high + e.low);
}

// The gradient at the label: p - 1 keeps its relative accuracy however near to 1 p is. Of a label that smoothing leaves less than half, 1 would only
// cancel.
DS_DEVICE f64 gradient_at_label(f64 x, const row_numbers& of, const question& q) {
    const f64 log_d = log1p_of(of.rest), log_p = (x - of.m) - log_d;
    const bool is_small = q.hard < 0.5;
    f64 p = 0.0;
    if (is_small || q.z_loss != 0.0) p = log_p > 40.0 ? exponential_above(log_p) : exponential(log_p);
    const f64 more = q.z_loss == 0.0 ? 0.0 : 2.0 * q.z_loss * (of.m + log_d) * p;
    if (is_small) return of.grad * (p - (q.hard + q.uniform) + more);
    return of.grad * (exponential_minus_1(log_p) + more + ((1.0 - q.hard) - q.uniform));
}

// exp(x - c) with c, m as the arithmetic has it, times `inverse` is exp(x - m) / (1 + rest).
DS_DEVICE f64 set_shift(answer& to, f64 m, f64 rest) {
    const normalizer by = normalizer_of(m, rest);
    to.c = by.shift;
    return m - m == 0.0 ? by.inverse : 1.0 / (1.0 + rest);
}

// `sum`: of the products of x and t, or of t.
DS_DEVICE answer answer_for(const question& q, f64 sum, const row_numbers& of) {
    answer to = {};
    to.label = -1;
    to.kind = q.kind();
    if (q.of == OF_SOFTMAX || q.of == OF_LOG_SOFTMAX) {
        to.w = rounded<compute>::of(of.grad);
        to.b = rounded<compute>::of(q.of == OF_SOFTMAX ? -of.grad * sum : 0.0);
        to.set_factor(-of.grad * sum);
        return to;
    }
    const f64 inverse = set_shift(to, of.m, of.rest);
    if (q.of == OF_LOGSUMEXP) {
        to.is_zero = of.m == -infinity() && of.rest == of.rest;
        to.set_factor(of.grad * inverse);
        return to;
    }
    const f64 lse = q.z_loss == 0.0 ? 0.0 : of.m + log1p_of(of.rest), mass = q.has_beside() ? q.hard * sum + (1.0 - q.hard) : 1.0;
    to.set_factor(of.grad * inverse * (mass + 2.0 * q.z_loss * lse));
    to.b = rounded<compute>::of(-of.grad * q.uniform);
    to.w = rounded<compute>::of(-of.grad * q.hard);
    return to;
}

// `x_at(i)`: an element.
template <class Element> DS_DEVICE void heed_label(answer& to, i64 label, i64 n, const row_numbers& of, const question& q, Element x_at) {
    to.is_zero = q.ignores && label == q.ignored;
    if (to.is_zero) return;
    if (label < 0 || label >= n) {
        to.set_factor(not_a_number());
        return;
    }
    to.at_label = gradient_at_label(x_at(label), of, q);
    to.label = label;
}

DS_DEVICE compute scaled_by_a(compute x, const answer& by) {
    const compute t = sub(x, by.c);
    if (t > compute(40) || !by.is_ordinary) return rounded<compute>::of(exponential_above(f64(t)) * by.exact_a);
    return mul(ROUGH ? rough()(t) : precise()(t), by.a);
}
DS_DEVICE compute gradient_of(compute x, compute t, const answer& by) {
    if (by.is_zero) return compute(0);
    if (by.kind == PRODUCT) return mul(x, fused(by.w, t, by.b));
    if (by.kind == TIMES_BESIDE && t == compute(0)) return compute(0);
    const compute e = scaled_by_a(x, by);
    if (by.kind == EXPONENTIAL) return add(e, by.b);
    return by.kind == PLUS_BESIDE ? add(e, fused(by.w, t, by.b)) : mul(e, t);
}

}  // namespace ds
