// reduced.cuh - what a row is reduced to: a logarithm and its sign, or a state; of a part of a row, its pair.
#pragma once
#include "convert.cuh"
#include "pair.cuh"

namespace ds {

// `sign` may be null.
template <class T> DS_DEVICE void store_logarithm(char* y, char* sign, f64 lse) {
    store(y, rounded<T>::of(lse));
    if (sign) store(sign, rounded<T>::of(is_nan(lse) ? lse : lse == -infinity() ? 0.0 : 1.0));
}

// d - 1 in its one form: infinite where m is +inf, unless it is NaN.
DS_DEVICE f64 state_rest(pair p) {
    const f64 sum = value_of(p.rest);
    return p.m == infinity() && !is_nan(sum) ? infinity() : sum;
}
DS_DEVICE void store_state(char* m, char* rest, pair p) {
    store(m, p.m);
    store(rest, state_rest(p));
}

// Pairs of parts wait in memory, three numbers each.
DS_DEVICE void store_pair(f64* pairs, i64 index, pair p) {
    f64* const at = pairs + 3 * index;
    store_aligned(at, p.m);
    store_aligned(at + 1, p.rest.high);
    store_aligned(at + 2, p.rest.low);
}
struct pairs_in_memory {
    const f64* from;
    DS_DEVICE pair operator()(i64 i) const {
        const f64* const at = from + 3 * i;
        return {load_aligned<f64>(at), {load_aligned<f64>(at + 1), load_aligned<f64>(at + 2)}};
    }
};

}  // namespace ds
