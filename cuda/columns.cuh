// columns.cuh - rows that are not contiguous, in particular those that lie side by side: neighbouring threads take neighbouring columns.
//
// `strands` threads share a column: element i is of strand i % strands. A strand takes BATCH of its elements at a time, first their maximum and
// then one sum with it; strands meet in shared memory, in order. How many there are follows from the length of the column, so its bits do not
// depend on how many columns there are, how a block is shared out, or what the accesses are like.
//
// Macros of a variant: DS_X, DS_Y   types of input and output
//                      DS_WIDTH     columns a thread, moved 16 bytes at a time; 1: elements lie anywhere
//                      DS_CODED     1: a code tells the type of the elements, and DS_X is that of the arithmetic
#pragma once
#ifndef DS_CODED
#define DS_CODED 0
#endif
#include "arithmetic.cuh"
#include "convert.cuh"
#include "layout.cuh"
#include "reduced.cuh"
#if DS_CODED
#include "numbers.cuh"
#endif

namespace ds {

constexpr int BATCH = 8;
constexpr int MOST_THREADS = DS_WIDTH > 1 || (DS_CODED && sizeof(compute) == 8) ? 256 : 512;

typedef chunk<x_type, DS_WIDTH> x_vector;
typedef chunk<y_type, DS_WIDTH> y_vector;

// How the columns are shared out.
struct tiling {
    i64 across;             // columns side by side: the length of the innermost kept axis
    i64 part;               // elements of a column that one block takes
    i32 strands, lanes;     // of a block: threads that share columns, threads with other columns
    i32 strand_step, lane_step;     // one of them is 1: along it neighbouring threads go
    i32 kept;               // whether a thread's elements fit in shared memory
    i32 padding;

    DS_DEVICE int strand() const { return int(threadIdx.x) / strand_step % strands; }
    DS_DEVICE int lane() const { return int(threadIdx.x) / lane_step % lanes; }
    // Columns of the tile are numbered so that neighbouring lanes have neighbouring places in shared memory.
    DS_DEVICE int columns() const { return lanes * DS_WIDTH; }
    DS_DEVICE int column(int j) const { return j * lanes + lane(); }
    DS_DEVICE i64 vectors_across() const { return (across + DS_WIDTH - 1) / DS_WIDTH; }
    DS_DEVICE i64 tiles(const layout& at) const { return (at.rows / across * vectors_across() + lanes - 1) / lanes; }
    DS_DEVICE i64 parts(const layout& at) const { return (at.n + part - 1) / part; }
};

// The columns of a lane of a tile: as rows, the first of them and how many there are.
struct place { i64 row; int count; };
DS_DEVICE place place_of_lane(const tiling& by, const layout& at, i64 tile, int lane) {
    const i64 across = by.vectors_across(), vector = tile * by.lanes + lane, line = vector / across, column = (vector - line * across) * DS_WIDTH;
    if (line * by.across >= at.rows) return {0, 0};
    return {line * by.across + column, int(smaller<i64>(DS_WIDTH, by.across - column))};
}
// The row of a column of a tile, -1 past the last.
DS_DEVICE i64 row_of_column(const tiling& by, const layout& at, i64 tile, int column) {
    const place p = place_of_lane(by, at, tile, column % by.lanes);
    return column / by.lanes < p.count ? p.row + column / by.lanes : -1;
}

// ------------------------------------------------------------------ elements
// What a thread reads: its strand of its columns, from element `first` to, and without, `last`.
struct source {
    const char* x;
    int count;              // columns
    i64 first, last;
    i32 step;
    compute factor;
    bool is_scaled;
    x_vector* kept;         // the thread's own place in shared memory, or null
    i32 kept_step;
    // Where a code tells the type:
    i32 code;
    bool is_aligned;        // to their size
    const char* where;      // or null

    template <int SIZE> DS_DEVICE i64 batches() const { return count == 0 || first >= last ? 0 : ((last - first + step - 1) / step + SIZE - 1) / SIZE; }
    template <int SIZE> DS_DEVICE i64 element(i64 batch, int i) const { return first + (batch * SIZE + i) * step; }
    DS_DEVICE compute value(x_type a) const {
        const compute c = to_compute<compute>(a);
        return is_scaled && !DS_CODED ? mul(c, factor) : c;     // such come scaled already
    }
};

DS_DEVICE i64 offset_in_column(const axes& inner, operand which, i64 i) {
    return DS_WIDTH == 1 ? offset(inner, which, i) : i * inner.stride[which][0];
}

DS_DEVICE x_vector load_vector(const char* p, int count) {
    x_vector v = {};
    if (DS_WIDTH == 1) {
        v.at[0] = load<x_type>(p);
    } else if (count == DS_WIDTH) {
        v = load_aligned<x_vector>(p);
    } else {
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j)
            if (j < count) v.at[j] = load_aligned<x_type>((const x_type*)p + j);
    }
    return v;
}

template <int SIZE> struct batch_of_vectors { x_vector at[SIZE]; };

#if DS_CODED
template <int SIZE> DS_DEVICE batch_of_vectors<SIZE> load_from_memory(const source& from, const axes& inner, i64 batch) {
    const char* place[SIZE];
    compute value[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const i64 e = from.element<SIZE>(batch, i);
        const bool is_visible = e < from.last && (!from.where || load_aligned<u8>(from.where + offset(inner, WHERE, e)) != 0);
        place[i] = is_visible ? from.x + offset(inner, X, e) : nullptr;
    }
    load_numbers(value, from.code, from.is_aligned, place);
    batch_of_vectors<SIZE> v;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) v.at[i].at[0] = !place[i] ? compute(-infinity()) : from.is_scaled ? mul(value[i], from.factor) : value[i];
    return v;
}
template <int SIZE> DS_DEVICE batch_of_vectors<SIZE> load_batch(const source& from, const axes& inner, i64 batch, bool again) {
    batch_of_vectors<SIZE> v;
    if (!again || !from.kept) v = load_from_memory<SIZE>(from, inner, batch);
    if (!from.kept) return v;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        if (from.element<SIZE>(batch, i) >= from.last) continue;
        x_vector& kept = from.kept[(batch * SIZE + i) * from.kept_step];
        if (again) v.at[i] = kept;
        else kept = v.at[i];
    }
    return v;
}
#else
// `again`: what is kept is there already.
template <int SIZE> DS_DEVICE batch_of_vectors<SIZE> load_batch(const source& from, const axes& inner, i64 batch, bool again) {
    batch_of_vectors<SIZE> v;
    const bool is_there = again && from.kept;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const i64 e = from.element<SIZE>(batch, i);
        v.at[i] = x_vector{};
        if (e < from.last) v.at[i] = is_there ? from.kept[(batch * SIZE + i) * from.kept_step] : load_vector(from.x + offset_in_column(inner, X, e), from.count);
    }
    if (from.kept && !again) {
#pragma unroll
        for (int i = 0; i < SIZE; ++i)
            if (from.element<SIZE>(batch, i) < from.last) from.kept[(batch * SIZE + i) * from.kept_step] = v.at[i];
    }
    return v;
}
#endif

// Elements past the end are -inf, which add nothing.
struct elements { compute at[BATCH]; };
DS_DEVICE elements elements_of(const source& from, const batch_of_vectors<BATCH>& v, i64 batch, int column) {
    elements x;
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
        x.at[i] = from.element<BATCH>(batch, i) < from.last ? from.value(v.at[i].at[column]) : compute(-infinity());
    return x;
}

// ------------------------------------------------------------------ sums of a strand
DS_DEVICE f64 times(f64 a, f64 factor) { return a * factor; }
DS_DEVICE twofold times(twofold a, f64 factor) { return scaled(a, factor); }
DS_DEVICE f64 with_several(f64 sum, f32 term, i32 count) { return sum + f64(count) * widen(term); }
DS_DEVICE twofold with_several(twofold sum, f64 term, i32 count) { return sum + scaled(twofold{term, 0.0}, f64(count)); }

// Of the elements so far: the largest, how many equal it, and the sum of exp(x - shift) over the others.
struct running {
    compute m = compute(-infinity()), shift = compute(0);
    sums<compute> s = {{}, 0};

    // The largest becomes `high`, which is above it.
    template <class Exponential> DS_DEVICE void rise(compute high, Exponential exponential_of) {
        const compute next = shift_for_logarithm(high);
        if (m != compute(-infinity())) {
            s.total = with_several(s.total, exponential_of(sub(m, shift)), s.count);
            if (next != shift) s.total = times(s.total, exponential(f64(shift) - f64(next)));
        }
        s.count = 0;
        m = high;
        shift = next;
    }
    template <class Exponential> DS_DEVICE void take(const elements& x, Exponential exponential_of) {
        compute high = x.at[0];
#pragma unroll
        for (int i = 1; i < BATCH; ++i) high = larger(high, x.at[i]);
        if (high > m) rise(high, exponential_of);
        accumulator sum;
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (x.at[i] == m) ++s.count;
            else sum.add_term(i, exponential_of(sub(x.at[i], shift)));
        }
        s.total = s.total + sum.total();
    }
};

// ------------------------------------------------------------------ strands meet
// Shared memory: a place for each thread and column, then one for each column of the tile, then what is kept.
struct meeting {
    static constexpr int STRAND_SIZE = IS_HALF<y_type> && sizeof(compute) == 4 ? 16 : 32, COLUMN_SIZE = 32;
    const tiling& by;

    static DS_DEVICE unsigned char* memory() {
        DS_DYNAMIC_SHARED(shared);
        return shared;
    }
    template <class T> DS_DEVICE T* of_strand(int strand, int column) const {
        static_assert(sizeof(T) <= STRAND_SIZE, "it has no more room");
        const int j = column / by.lanes, lane = column - j * by.lanes;
        return (T*)memory() + (j * by.strands + strand) * by.lanes + lane;
    }
    template <class T> DS_DEVICE T* of_column(int column) const {
        static_assert(sizeof(T) <= COLUMN_SIZE, "it has no more room");
        return (T*)(memory() + by.strands * by.columns() * STRAND_SIZE + column * COLUMN_SIZE);
    }
    DS_DEVICE x_vector* kept() const { return of_column<x_vector>(by.columns()) + threadIdx.x; }

    // What all strands of the lane's columns have, joined, for every thread of the lane.
    template <class T, class Join> DS_DEVICE void all(T (&value)[DS_WIDTH], Join join) const {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j) *of_strand<T>(by.strand(), by.column(j)) = value[j];
        __syncthreads();
        for (int column = int(threadIdx.x); column < by.columns(); column += int(blockDim.x)) {
            T together = *of_strand<T>(0, column);
            for (int strand = 1; strand < by.strands; ++strand) together = join(together, *of_strand<T>(strand, column));
            *of_strand<T>(0, column) = together;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j) value[j] = *of_strand<T>(0, by.column(j));
    }
};

// Calls body(column of the tile) of each, a thread a column; the same thread for the same column at each call.
template <class Body> DS_DEVICE void for_columns(const tiling& by, Body body) {
    for (int column = int(threadIdx.x); column < by.columns(); column += int(blockDim.x)) body(column);
}

// Adds up the elements once more, now that m is known.
template <class Sums, class Add> DS_DEVICE void add_again(const meeting& at, const source& from, const axes& inner, const compute (&m)[DS_WIDTH], Sums (&s)[DS_WIDTH], Add add) {
    for (i64 batch = 0; batch < from.batches<BATCH>(); ++batch) {
        const batch_of_vectors<BATCH> v = load_batch<BATCH>(from, inner, batch, true);
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j) add(s[j], elements_of(from, v, batch, j), m[j]);
    }
    at.all(s, plus());
}

struct adding_precisely {
    DS_DEVICE void operator()(sums<compute>& s, const elements& x, compute m) const {
        const compute shift = shift_for_logarithm(m);
        accumulator sum;
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (x.at[i] == m) ++s.count;
            else sum.add_term(i, exponential(sub(x.at[i], shift)));
        }
        s.total = s.total + sum.total();
    }
};

// What strands may do besides with the elements of a batch, once they are known; m is the largest so far.
struct nothing_besides {
    DS_DEVICE void take(const source&, const axes&, i64, const elements&, compute) {}
};

// The pairs of a tile, in the places of its columns; m of the thread's own.
template <bool is_logarithm, class Besides>
DS_DEVICE void pairs_of_tile(const tiling& by, const source& from, const axes& inner, compute (&m)[DS_WIDTH], Besides&& besides) {
    const meeting at = {by};
    typedef typename choose<ROUGH, rough, precise>::type exponential_of;
    running mine[DS_WIDTH];
    for (i64 batch = 0; batch < from.batches<BATCH>(); ++batch) {
        const batch_of_vectors<BATCH> v = load_batch<BATCH>(from, inner, batch, false);
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j) {
            const elements x = elements_of(from, v, batch, j);
            mine[j].take(x, exponential_of());
            besides.take(from, inner, batch, x, mine[j].m);
        }
    }
#pragma unroll
    for (int j = 0; j < DS_WIDTH; ++j) m[j] = mine[j].m;
    at.all(m, maximum());
    sums<compute> s[DS_WIDTH];
#pragma unroll
    for (int j = 0; j < DS_WIDTH; ++j) {
        if (m[j] > mine[j].m) mine[j].rise(m[j], exponential_of());
        s[j] = mine[j].s;
    }
    at.all(s, plus());
    bool is_little = false;
#pragma unroll
    for (int j = 0; j < DS_WIDTH; ++j) {
        const pair p = pair_of(m[j], shift_for_logarithm(m[j]), s[j]);
        if (by.strand() == 0) *at.of_column<pair>(by.column(j)) = p;
        is_little |= j < from.count && m[j] > compute(-infinity()) && p.rest.high < LITTLE;
    }
    if (ROUGH && is_logarithm && __syncthreads_or(is_little)) {
        sums<compute> exact[DS_WIDTH];
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j) exact[j] = {{}, 0};
        add_again(at, from, inner, m, exact, adding_precisely());
#pragma unroll
        for (int j = 0; j < DS_WIDTH; ++j) {
            pair* const p = at.of_column<pair>(by.column(j));
            if (by.strand() == 0 && p->rest.high < LITTLE) *p = pair_of(m[j], shift_for_logarithm(m[j]), exact[j]);
        }
    }
    __syncthreads();
}

DS_DEVICE source source_of(const char* x, f64 factor, const tiling& by, const layout& at, const place& where, i64 part) {
    const i64 begin = part * by.part;
    return {x + (where.count ? offset(at.outer, X, where.row) : 0), where.count, begin + by.strand(), smaller<i64>(at.n, begin + by.part), by.strands,
            scale_of<compute>(factor), factor != 1.0, by.kept ? meeting{by}.kept() : nullptr, i32(blockDim.x), 0, true, nullptr};
}

}  // namespace ds
