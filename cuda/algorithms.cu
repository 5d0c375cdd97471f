// algorithms.cu - the three textbook ways to a softmax, to compare: a block takes a row, and each pass of the method is a pass over memory.
//
//   naive     2 passes, 3 loads and stores an element     d = sum exp(x)                            y = exp(x) / d
//   safe      3         4                                 m = max x, d = sum exp(x - m)             y = exp(x - m) / d
//   online    2         3                                 (m, d): d' = d exp(m - m') + exp(x - m')  y = exp(x - m) / d
//
// M. Milakov and N. Gimelshein, arXiv 1805.02867. Nothing guards against what a method does not guard against.
//
// Macros of a variant: DS_X, DS_Y   types of input and output
#include "convert.cuh"
#include "elementary.cuh"
#include "group.cuh"
#include "layout.cuh"

namespace ds {

typedef DS_X x_type;
typedef DS_Y y_type;
typedef compute_of<x_type, y_type> compute;

constexpr int THREADS = 256;
constexpr int ITEMS = 4;                                // elements of a thread on their way at a time
typedef group<THREADS> team;

enum method { NAIVE, SAFE, ONLINE };

struct row {
    const char* x;
    char* y;
    i64 length;
    const axes& inner;
};

// One pass: calls each(x, k) for the elements of this thread, in order, and with -inf for what lies behind the end.
template <class Each> DS_DEVICE void read(const row& from, Each each) {
    for (i64 first = team::thread(); first < from.length; first += ITEMS * THREADS) {
        compute x[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const i64 k = first + i * THREADS;
            x[i] = k < from.length ? to_compute<compute>(load<x_type>(from.x + offset(from.inner, X, k))) : compute(-infinity());
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) each(x[i], first + i * THREADS);
    }
}
// The last pass: writes what an exponential of each element becomes by the division.
template <class Exponential> DS_DEVICE void write(const row& to, compute d, Exponential exponential_of) {
    read(to, [&](compute x, i64 k) {
        if (k < to.length) store(to.y + offset(to.inner, Y, k), rounded<y_type>::of(divide(exponential_of(x), d)));
    });
}

DS_DEVICE void naive(const row& of) {
    compute d = 0;
    read(of, [&](compute x, i64) { d = add(d, exponential_above(x)); });
    d = team::reduce(d, plus());
    write(of, d, [](compute x) { return exponential_above(x); });
}

DS_DEVICE void safe(const row& of) {
    compute m = compute(-infinity());
    read(of, [&](compute x, i64) { m = larger(m, x); });
    m = team::reduce(m, maximum());
    compute d = 0;
    read(of, [&](compute x, i64) { d = add(d, exponential(sub(x, m))); });
    d = team::reduce(d, plus());
    write(of, d, [&](compute x) { return exponential(sub(x, m)); });
}

// What has been read: the largest element, and the sum of exp(x - m). An element is read as {x, 1}; NaN is no maximum, and makes d NaN.
struct alignas(2 * sizeof(compute)) seen { compute m, d; };
DS_DEVICE seen from_lane(seen s, int distance) { return {from_lane(s.m, distance), from_lane(s.d, distance)}; }
struct seen_together {
    DS_DEVICE seen operator()(seen a, seen b) const {
        const compute m = larger(a.m, b.m);
        const compute shift = m == compute(-infinity()) ? compute(0) : m;       // -inf - -inf would be NaN
        return {m, add(mul(a.d, exponential(sub(a.m, shift))), mul(b.d, exponential(sub(b.m, shift))))};
    }
};

DS_DEVICE void online(const row& of) {
    seen s = {compute(-infinity()), 0};
    read(of, [&](compute x, i64) { s = seen_together()(s, seen{x, 1}); });
    s = team::reduce(s, seen_together());
    write(of, s.d, [&](compute x) { return exponential(sub(x, s.m)); });
}

}  // namespace ds

extern "C" __global__ void __launch_bounds__(ds::THREADS, 2)
    textbook_rows(const char* x, char* y, int method, const __grid_constant__ ds::layout at) {
    using namespace ds;
    for (i64 index = blockIdx.x; index < at.rows; index += gridDim.x) {
        const row of = {x + offset(at.outer, X, index), y + offset(at.outer, Y, index), at.n, at.inner};
        if (method == NAIVE) naive(of);
        else if (method == SAFE) safe(of);
        else online(of);
    }
}
