# float64 logarithms near 0. Two units in the last place of a small lse are less than what float64 exponentials round: where |m| and |lse| are
# both below 1 the row is summed once more, beyond float64. Rows of more than a few thousand elements do not come here: their lse is large.

cdef double precise_lse(const task* t, Py_ssize_t r, double m) noexcept nogil:
    cdef Py_ssize_t n = t.cols(), w = simd[double].lanes(), start, size, i, j
    cdef double* x = <double*>scratch(SLOT_WEIGHTS)
    cdef excess_sum sum
    cdef bint found = False
    for start from 0 <= start < n by SMALL:
        size = min(<Py_ssize_t>SMALL, n - start)
        gather_row(t[0], r, start, size, x, <double*>NULL)
        for i in range(size, (size + w - 1) // w * w):
            x[i] = -INFINITY
        for i from 0 <= i < size by w:
            if not found:
                for j in range(i, i + w):
                    if not found and x[j] == m:
                        x[j] = -INFINITY
                        found = True
            sum.add_exp(load(x + i))
    sum.add_largest(m)
    return sum.log()


cdef inline void refine(const task* t, Py_ssize_t r, Py_ssize_t k, batch_stats* s) noexcept nogil:
    """The lse of those of k rows that need it."""
    cdef Py_ssize_t j
    for j in range(k):
        if -1 < s.m[j] < 1 and -1 < s.value[j] < 1 and s.value[j] != s.m[j]:
            s.value[j] = precise_lse(t, r + j, s.m[j])
