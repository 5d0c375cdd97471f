// reduced.cuh - what a row is reduced to: a logarithm and its sign, or a state.
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

}  // namespace ds
