# From the statistics of a batch of rows to what each row's outputs need, several rows at a time.
#
# A row's statistics are m, the largest element; total, the sum of exp(x - c) over the elements below m; and count, how many equal m.
# c is m for softmax and log_softmax, so that the largest probability of a row of one element is exactly 1. For logarithms c is 0 while
# |m| < ZERO_SHIFT: x - m would be rounded in units that are not small against a small lse, and where m and log d cancel their errors would
# stay. From them: d = count + total (times exp(c - m) where c is 0), and rest = d without one maximal element.

cdef struct batch_stats:
    double m[64]
    double c[64]
    double total[64]
    double count[64]
    double value[64]        # what finish leaves: 1 / d, log1p(rest) or lse
    double rest[64]


cdef inline double shift_for(int operation, double m) noexcept nogil:
    if (operation == LOGSUMEXP or operation == STATE) and (-ZERO_SHIFT < m < ZERO_SHIFT or m == -INFINITY):
        return 0.0
    return m


cdef inline void finish_softmax(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """value = 1 / d; NaN where m = +inf."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, one = simd[double](1.0)
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        store(&s.value[i], one / (load(&s.total[i]) + load(&s.count[i]) + (m - m)))


cdef inline void finish_log(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """value = log(d), for c = m."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    for i from 0 <= i < k by w:
        store(&s.value[i], log1p(load(&s.total[i]) + (load(&s.count[i]) - simd[double](1.0))))


cdef inline simd[double] rest_of(simd[double] m, simd[double] total, simd[double] count) noexcept nogil:
    """d - 1 where c is 0 or m. exp(c - m) is 1 but for c = 0."""
    cdef simd[double] zero = simd[double](0.0)
    cdef simd[double] down = exp(pick_less(vabs(m), simd[double](ZERO_SHIFT), zero - m, zero))
    return total * down + (count - simd[double](1.0))


cdef inline void finish_lse(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """value = lse; -inf for m = -inf unless the total is NaN.

    m + log1p(rest) loses what m and the logarithm have in common when they cancel, and rounds once more for exp(c - m). The sum itself, for
    c = 0, gives lse = log1p(excess) with excess = total + count exp(m) - 1, better unless it is far below 1. A row without a rest is m, exactly.
    """
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, total, count, rest, rise, excess, limit = simd[double](-0.5)
    cdef simd[double] one = simd[double](1.0), zero = simd[double](0.0), shift = simd[double](ZERO_SHIFT)
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        total = load(&s.total[i])
        count = load(&s.count[i])
        rest = rest_of(m, total, count)
        rise = expm1(pick_less(vabs(m), shift, m, zero))
        excess = (total + rise) + (count - one) * (rise + one)
        excess = pick_equal(rest, zero, limit, pick_less(vabs(m), shift, excess, limit))
        store(&s.value[i], pick_less(limit, excess, zero, m) + log1p(pick_less(limit, excess, excess, rest)))


cdef inline void finish_state(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """rest = d - 1: -1 in an empty row, +inf in a row with +inf, NaN in one with NaN."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, rest, one = simd[double](1.0), zero = simd[double](0.0)
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        rest = rest_of(m, load(&s.total[i]), load(&s.count[i]))
        # rest is finite or NaN in these rows: times 0 keeps the NaN
        rest = pick_equal(m, simd[double](-INFINITY), rest * zero - one, rest)
        rest = pick_equal(m, simd[double](INFINITY), rest * zero + simd[double](INFINITY), rest)
        store(&s.rest[i], rest)


cdef inline void finish(int operation, batch_stats* s, Py_ssize_t k) noexcept nogil:
    if operation == SOFTMAX:
        finish_softmax(s, k)
    elif operation == LOG_SOFTMAX:
        finish_log(s, k)
    elif operation == LOGSUMEXP:
        finish_lse(s, k)
    else:
        finish_state(s, k)
