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
    double linear[64]       # of a smoothed loss: the sum of x - zero_for(m)
    double mass[64]         # of a loss: the sum of the labels, 1 for an index
    double dot[64]          # of a loss: the sum of label (x - zero_for(m))


cdef inline bint is_logarithm(int operation) noexcept nogil:
    return operation == LOGSUMEXP or operation == STATE or operation == CROSS_ENTROPY


cdef inline double shift_for(int operation, double m) noexcept nogil:
    if is_logarithm(operation) and (-ZERO_SHIFT < m < ZERO_SHIFT or m == -INFINITY):
        return 0.0
    return m


cdef inline void finish_softmax(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """value = 1 / d; NaN where m = +inf."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, one = simd[double](1.0)
    if k == 1:      # a register would wait until what was just stored, a number, is there for all of it
        s.value[0] = 1.0 / (s.total[0] + s.count[0] + (s.m[0] - s.m[0]))
        return
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        store(&s.value[i], one / (load(&s.total[i]) + load(&s.count[i]) + (m - m)))


cdef inline void finish_log(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """value = log(d), for c = m."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    if k == 1:
        s.value[0] = log1p_one(s.total[0] + (s.count[0] - 1.0))
        return
    for i from 0 <= i < k by w:
        store(&s.value[i], log1p(load(&s.total[i]) + (load(&s.count[i]) - simd[double](1.0))))


cdef inline simd[double] near_zero(simd[double] m) noexcept nogil:
    """m where c is 0, 0 where c is m: exp(-near_zero(m)) is exp(c - m), infinite m included."""
    return pick_less(vabs(m), simd[double](ZERO_SHIFT), m, simd[double](0.0))


cdef inline void finish_lse_rounded(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """value = lse for a result narrower than float64: what cancels in m + log1p(rest) is below its rounding."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, one = simd[double](1.0), zero = simd[double](0.0)
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        store(&s.value[i], m + log1p(load(&s.total[i]) * exp(zero - near_zero(m)) + (load(&s.count[i]) - one)))


cdef inline void finish_lse(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """value = lse; -inf for m = -inf unless the total is NaN.

    m + log1p(rest) loses what m and the logarithm have in common when they cancel, and rounds once more for exp(c - m). The sum itself, for
    c = 0, gives lse = log1p(excess) with excess = total + count exp(m) - 1, better unless it is far below 1. The 1 goes against exp(m) before
    anything is added where they are close, and last where they are not. A row without a rest is m, exactly.
    """
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, near, total, count, down, up, rest, excess, one = simd[double](1.0), zero = simd[double](0.0)
    cdef simd[double] limit = simd[double](-0.5), shift = simd[double](ZERO_SHIFT)
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        near = near_zero(m)
        total = load(&s.total[i])
        count = load(&s.count[i])
        down = exp(zero - near)
        up = one / down
        rest = total * down + (count - one)
        excess = pick_less(near, limit, (total + count * up) - one, (total + expm1(near)) + (count - one) * up)
        excess = pick_equal(rest, zero, limit, pick_less(vabs(m), shift, excess, limit))
        store(&s.value[i], pick_less(limit, excess, zero, m) + log1p(pick_less(limit, excess, excess, rest)))


cdef inline void finish_state(batch_stats* s, Py_ssize_t k) noexcept nogil:
    """rest = d - 1: -1 in an empty row, +inf in a row with +inf, NaN in one with NaN."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, rest, one = simd[double](1.0), zero = simd[double](0.0)
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        rest = load(&s.total[i]) * exp(zero - near_zero(m)) + (load(&s.count[i]) - one)
        # rest is finite or NaN in these rows: times 0 keeps the NaN
        rest = pick_equal(m, simd[double](-INFINITY), rest * zero - one, rest)
        rest = pick_equal(m, simd[double](INFINITY), rest * zero + simd[double](INFINITY), rest)
        store(&s.rest[i], rest)


cdef inline void finish(int operation, int out_code, batch_stats* s, Py_ssize_t k) noexcept nogil:
    if operation == SOFTMAX:
        finish_softmax(s, k)
    elif operation == LOG_SOFTMAX:
        finish_log(s, k)
    elif operation == LOGSUMEXP and out_code == CODE_F64:
        finish_lse(s, k)
    elif operation == LOGSUMEXP:
        finish_lse_rounded(s, k)
    else:
        finish_state(s, k)
