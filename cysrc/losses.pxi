# Cross-entropy: what a batch of rows' statistics say of their losses. The probabilities are never stored, and nothing is read twice.
#
# With k = zero_for(m), m but for infinities, and log d = log1p(rest), a row's loss is
#     hard (mass (log d + (m - k)) - dot) + (n uniform) ((log d + (m - k)) - linear / n) + z_loss lse^2
# where dot = sum label (x - k) and linear = sum (x - k). Differences with the maximum lose nothing, however large a shift the row has.

cdef inline double zero_for(double m) noexcept nogil:
    """What sums of x take their elements relative to: with an infinite maximum x - m would say nothing."""
    return m if isfinite(m) else 0.0


cdef inline double sum_differences(const storage_t* x, Py_ssize_t n, double m) noexcept nogil:
    """sum (x - zero_for(m)) over a row."""
    cdef wide[storage_t] sum = wide[storage_t]()
    add_differences(x, n, simd[storage_t](zero_for(m)), sum)
    return sum.total()


cdef inline void losses_of(const task* t, Py_ssize_t k, batch_stats* s) noexcept nogil:
    """value = the loss of each of k rows."""
    cdef Py_ssize_t i, w = simd[double].lanes()
    cdef simd[double] m, zero, log_d, loss, over, lse, infinite = simd[double](INFINITY), least = simd[double](-INFINITY)
    cdef simd[double] nothing = simd[double](0.0), n = simd[double](<double>t.cols())
    for i from 0 <= i < k by w:
        m = load(&s.m[i])
        zero = pick_less(vabs(m), infinite, m, nothing)
        log_d = pick_equal(m, least, simd[double](NAN), log1p(pick_equal(m, least, nothing, load(&s.rest[i]))))
        over = log_d + (m - zero)
        loss = nothing
        if t.hard != 0:
            loss = simd[double](t.hard) * (load(&s.mass[i]) * over - load(&s.dot[i]))
        if t.uniform != 0:
            loss = loss + simd[double](t.uniform) * (n * over - load(&s.linear[i]))
        if t.z_loss != 0:
            lse = m + log_d
            loss = loss + simd[double](t.z_loss) * (lse * lse)
        store(&s.value[i], loss)


cdef inline void put_losses(const task* t, Py_ssize_t r, Py_ssize_t k, batch_stats* s) noexcept nogil:
    """The losses of k rows, and their lse where it is asked for. Rows that do not count have the loss 0."""
    cdef Py_ssize_t j
    cdef int64_t label
    cdef bint counts[64]
    if t.base[OP_REST] != NULL:
        if t.float64():
            finish_lse(s, k)
            refine(t, r, k, s)
        else:
            finish_lse_rounded(s, k)
        put_values(t[0], OP_REST, t.lse_code, r, k, s.value)
    for j in range(k):
        counts[j] = True
        if t.base[OP_LABEL] != NULL:
            counts[j] = t.counts(r + j, &label)
            s.mass[j] = 1
            s.dot[j] = t.element(r + j, label) - zero_for(s.m[j]) if counts[j] else 0.0
    losses_of(t, k, s)
    for j in range(k):
        if not counts[j]:
            s.value[j] = 0
    put_values(t[0], OP_M, t.loss_code, r, k, s.value)
