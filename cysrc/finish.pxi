# From the statistics of a batch of rows to what each row's outputs need, several rows at a time.
#
# A row's statistics are m, the largest element; total, the sum of exp(x - c) over the elements below m; and count, how many equal m.
# c is m for softmax and log_softmax, so that the largest probability of a row of one element is exactly 1. For logarithms c is 0 while |m| < 1: x - m
# would be rounded there in units that are not small against the result.
# From them: sum exp(x - m) = count + total, and rest = that sum without one maximal element.

cdef struct batch_stats:
    double m[64]
    double c[64]
    double total[64]
    double count[64]
    double value[64]        # what finish leaves: 1 / d, log1p(rest) or lse
    double rest[64]


cdef inline double shift_for(int operation, double m) noexcept nogil:
    if (operation == LOGSUMEXP or operation == STATE) and (-1 < m < 1 or m == -INFINITY):
        return 0.0
    return m


cdef inline void finish_softmax(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """value = 1 / d; NaN where m = +inf."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, one = simd[double](1.0)
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        store(&s.value[i], one / (load(&s.total[i]) + load(&s.count[i]) + (m - m)))


cdef inline void finish_rest(batch_stats* s, Py_ssize_t k, int operation) noexcept nogil:
    """rest = d - 1, and value = log1p(rest), plus m for an lse."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, c, rest, value, one = simd[double](1.0)
    cdef simd[double] infinity = simd[double](INFINITY), lowest = simd[double](-INFINITY)
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        rest = load(&s.total[i])
        if operation == LOGSUMEXP or operation == STATE:
            # exp(c - m): 1 unless c = 0, and 1 for infinite m, where c - m is not a number
            c = pick_less(vabs(m), one, simd[double](0.0) - m, simd[double](0.0))
            rest = rest * exp(c)
        rest = rest + (load(&s.count[i]) - one)
        value = log1p(rest)
        if operation == LOGSUMEXP:
            value = value + m
        elif operation == STATE:
            # total is NaN or 0 in an empty row, NaN or finite in a row with +inf: rest * 0 keeps the NaN
            rest = pick_equal(m, lowest, rest * simd[double](0.0) - one, rest)
            rest = pick_equal(m, infinity, rest * simd[double](0.0) + infinity, rest)
        store(&s.value[i], value)
        store(&s.rest[i], rest)
