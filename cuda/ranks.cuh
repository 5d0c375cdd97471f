// ranks.cuh - what softmax_topk writes for ranks of a row, given its pair and their elements.
#pragma once
#include "convert.cuh"
#include "layout.cuh"
#include "ordered.cuh"
#include "pair.cuh"

namespace ds {

// Of a kernel's arguments: ranks first .. first + k - 1 of each row, `value_step` and `index_step` bytes apart. Operands of the layout: Y are the
// values, INDICES the indices, LSE the logarithms.
constexpr operand INDICES = WEIGHT, LSE = SIGN;
struct ranks {
    char *values, *indices;
    i64 value_step, index_step, first;
    int k;

    DS_DEVICE ranks of_row(const layout& at, i64 index) const {
        return {values + offset(at.outer, Y, index), indices + offset(at.outer, INDICES, index), value_step, index_step, first, k};
    }
};

// The smallest of what the threads up to this one hold, and of `carry`, which takes in what all hold.
template <class Team> DS_DEVICE f64 smallest_so_far(f64 value, f64& carry) {
    const int lane = Team::thread() % 32, warp = Team::thread() / 32;
#pragma unroll
    for (int distance = 1; distance < Team::SIZE && distance < 32; distance *= 2) {
        const f64 other = __shfl_up_sync(ALL_LANES, value, distance);
        if (lane >= distance) value = smaller(value, other);
    }
    value = smaller(value, carry);
    if (Team::WARPS == 1) {
        carry = __shfl_sync(ALL_LANES, value, int(threadIdx.x) % 32 / Team::SIZE * Team::SIZE + (Team::SIZE - 1) % 32);
        return value;
    }
    DS_SHARED(f64, ends, Team::WARPS);
    Team::meet();                       // those of the ranks before may still be read
    if (lane == 31) ends[warp] = value;
    Team::meet();
#pragma unroll
    for (int w = 0; w < Team::WARPS; ++w) {
        if (w < warp) value = smaller(value, ends[w]);
        carry = smaller(carry, ends[w]);
    }
    return value;
}

// Values of T from keys of C; `factor` is |scale|, `start` where the indices of the entries begin. Every thread of the block comes here.
template <class Team, class T, class C, class Entry>
DS_DEVICE void write_ranks(const ranks& to, const Entry* found, pair p, C factor, i64 start, bool is_there) {
    const f64 d = value_of(p.rest) + 1.0;
    const bool is_undefined = p.m - p.m != 0.0 || is_nan(d);
    // exp is within its bound, but neighbours may change places
    f64 carry = to.first == 0 || !is_there ? infinity() : to_compute<f64>(load<T>(to.values + (to.first - 1) * to.value_step));
#pragma unroll 1
    for (int base = 0; base < to.k; base += Team::SIZE) {
        const int rank = base + Team::thread();
        const Entry entry = found[rank < to.k && is_there ? rank : 0];
        const bool is_hidden = entry.order() == 0;
        f64 value = 0.0;
        if (!is_hidden && !is_undefined) value = exponential(f64(mul(from_order(integer_order<C>(entry.order())), factor)) - p.m) / d;
        value = smallest_so_far<Team>(value, carry);
        if (rank >= to.k || !is_there) continue;
        store(to.values + (to.first + rank) * to.value_step, rounded<T>::of(is_undefined && !is_hidden ? not_a_number() : value));
        store(to.indices + (to.first + rank) * to.index_step, start + entry.index());
    }
}

}  // namespace ds
