# The logarithm of the running sum of exponentials. In float64 whatever the input, so that float32 results are rounded once.
#
# The running pair is kept as (c, rest): sum exp(x - c) = 1 + rest, with rest and its rounding error in two numbers. c follows the maximum in steps of
# at least 1: a slowly rising row is not rescaled, and rounded, at every element, and what rescaling rounds decays by e each time.

cdef enum:
    RUN = 512            # elements of a row handled at a time
    SIDE = 16            # rows that take turns, so that a strided read uses whole cache lines

cdef struct running:
    double c
    double rest
    double error


cdef inline void cumulate(running* state, const double* x, Py_ssize_t n, double* out) noexcept nogil:
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef double term[RUN + 16]
    cdef double shift[RUN + 16]
    cdef bint raised[RUN + 16]
    cdef double c = state.c, rest = state.rest, error = state.error, sum, part
    for i in range(n):
        raised[i] = x[i] - c > 1
        if raised[i]:
            term[i] = c - x[i]
            c = x[i]
        else:
            # both infinite and alike: nothing to add to an empty sum, nothing changed by one more +inf
            term[i] = x[i] - c if x[i] != c or x[i] - x[i] == 0 else -INFINITY
        shift[i] = c
    for i in range(n, (n + w - 1) // w * w):
        term[i] = 0
        shift[i] = 0
    for i from 0 <= i < n by w:
        store(&term[i], exp(load(&term[i])))
    for i in range(n):
        if raised[i]:
            rest = (1 + rest) * term[i]
            error = error * term[i]
        else:
            sum = rest + term[i]
            part = sum - rest
            error += (rest - (sum - part)) + (term[i] - part)
            rest = sum
        term[i] = rest + error if shift[i] != -INFINITY or rest != -1 else 0
    for i in range(n, (n + w - 1) // w * w):
        term[i] = 0
    for i from 0 <= i < n by w:
        store(&term[i], load(&shift[i]) + log1p(load(&term[i])))
    memcpy(out, term, n * sizeof(double))
    state.c = c
    state.rest = rest
    state.error = error


cdef void run_cumulative(const task* t, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t r, j, k, n = t.cols(), start, size, step = t.reduced.inner_stride(OP_X)
    cdef double x[RUN]
    cdef double y[RUN]
    cdef running state[SIDE]
    cdef char* out
    for r from first <= r < last by SIDE:
        k = min(<Py_ssize_t>SIDE, last - r)
        for j in range(k):
            state[j].c = -INFINITY
            state[j].rest = -1
            state[j].error = 0
            if t.initial:
                put_value(t[0], OP_OUT, t.out_code, r + j, -INFINITY)
        for start from 0 <= start < n by RUN:
            size = min(<Py_ssize_t>RUN, n - start)
            for j in range(k):
                gather_run_of(t.x_code, t.row(OP_X, r + j) + start * step, step, size, x)
                cumulate(&state[j], x, size, y)
                out = t.row(OP_OUT, r + j) + (start + t.initial) * t.out_step
                scatter_run_of(t.out_code, y, size, out, t.out_step)
