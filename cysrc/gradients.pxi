# Gradients: a few rows at a time, first what each row's elements need (row_gradient), then the elements. What a row needs may be a sum over it,
# taken by segments in order, whoever takes them; then the row is still in the cache when its elements are written.

cdef enum:
    LOSSY = 128          # units of the arithmetic that the roundoff of a given lse may cost before the row's own takes its place


cdef inline int kind_of(const task* t) noexcept nogil:
    if t.operation == SOFTMAX_GRAD:
        return GRAD_TIMES
    if t.operation == LOG_SOFTMAX_GRAD or (t.operation == CROSS_ENTROPY_GRAD and t.base[OP_SECOND] != NULL):
        return GRAD_EXP_PLUS
    return GRAD_EXP_TIMES if t.base[OP_SECOND] != NULL else GRAD_EXP


cdef inline bint needs_sum(const task* t) noexcept nogil:
    """Whether a row's gradients need a sum over it: grad x (softmax), grad (log_softmax) or the labels."""
    return t.operation != LOGSUMEXP_GRAD and t.base[OP_SECOND] != NULL


cdef inline const storage_t* gradient_source(const task* t, storage_t* tag, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    """As source_part; a result of softmax that is hidden is 0, and a scale belongs to the gradient alone."""
    if not t.direct and t.operation == SOFTMAX_GRAD:
        if storage_t is float or storage_t is double:
            gather_operand(t[0], OP_X, t.x_code, r, start, n, <storage_t*>scratch(SLOT_SOURCE), <storage_t>0)
            return <const storage_t*>scratch(SLOT_SOURCE)
    return source_part(t, tag, r, start, n)


cdef double sum_of_segment(const task* t, storage_t* tag, bint lies, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t at, size
    cdef wide[storage_t] sum = wide[storage_t]()
    for at from start <= at < start + n by SMALL:
        size = min(<Py_ssize_t>SMALL, start + n - at)
        if t.operation == SOFTMAX_GRAD:
            add_products(gradient_source(t, tag, r, at, size), second_part(t, tag, lies, r, at, size), size, sum)
        else:
            add_all(second_part(t, tag, lies, r, at, size), size, sum)
    return sum.total()


cdef inline double sum_of_row(const task* t, storage_t* tag, bint lies, Py_ssize_t r) noexcept nogil:
    cdef Py_ssize_t start, n = t.cols(), length = segment_length(tag)
    cdef double total = 0
    for start from 0 <= start < n by length:
        total += sum_of_segment(t, tag, lies, r, start, min(length, n - start))
    return total


cdef void own_pair(const task* t, storage_t* tag, Py_ssize_t r, double* m, double* rest) noexcept nogil:
    """The running pair of row r, where the lse that was given is that of the row, but rounded so far that gradients would show it."""
    cdef Py_ssize_t start, size, n = t.cols(), length = segment_length(tag)
    cdef double given = m[0], m_own = -INFINITY, rest_own = -1, m_part, rest_part, lse
    for start from 0 <= start < n by length:
        size = min(length, n - start)
        segment_pair(source_part(t, tag, r, start, size), size, &m_part, &rest_part)
        merge_pair(&m_own, &rest_own, m_part, rest_part)
    lse = m_own + libc_log1p(rest_own)
    # two units in the last place, as logsumexp promises
    if fabs(lse - given) <= 4 * t.roundoff * max(fabs(given), fabs(m_own)):
        m[0] = m_own
        rest[0] = rest_own


cdef inline void label_gradient(
    const task* t, Py_ssize_t r, int64_t label, double m, double rest, double lse, double grad, row_gradient* g
) noexcept nogil:
    """The gradient at the label: p - 1 by expm1, which keeps its relative accuracy however near to 1 p is. Left in w.

    Of a label that smoothing leaves less than half, 1 would only cancel.
    """
    cdef double log_p = (t.element(r, label) - m) - libc_log1p(rest)
    cdef double more = 2 * t.z_loss * lse * libc_exp(log_p) if t.z_loss != 0 else 0.0
    if t.hard < 0.5:
        g.w = grad * (libc_exp(log_p) - (t.hard + t.uniform) + more)
    else:
        g.w = grad * (libc_expm1(log_p) + more + ((1 - t.hard) - t.uniform))


cdef inline int64_t prepare(const task* t, storage_t* tag, Py_ssize_t r, double sum, row_gradient* g) noexcept nogil:
    """What the elements of row r need, from its sum if it has one; the label is returned, -1 for none."""
    cdef double m, rest, c, value, lse, up, grad = t.row_grad(r), unit = 2.0 ** -53 if storage_t is double else 2.0 ** -24
    cdef int64_t label = -1
    g.c = g.a = g.b = g.w = 0
    g.zero = False
    if t.operation == SOFTMAX_GRAD:
        g.w = grad
        g.b = -grad * sum
        return -1
    if t.operation == LOG_SOFTMAX_GRAD:
        g.w = grad
        g.a = -grad * sum
        return -1
    if t.base[OP_LABEL] != NULL and not t.counts(r, &label):
        g.zero = True
        return -1
    m = get_value(t[0], OP_M, r)
    rest = get_value(t[0], OP_REST, r)
    if t.operation == LOGSUMEXP_GRAD and m == -INFINITY and rest == rest:
        g.zero = True
        return -1
    if fabs(m) * t.roundoff > LOSSY * unit and isfinite(m) and (t.operation == CROSS_ENTROPY_GRAD or t.base[OP_SECOND] == NULL):
        own_pair(t, tag, r, &m, &rest)
    c = m if storage_t is double else <double>(<float>m)
    value = (libc_exp(c - m) if isfinite(m) else 1.0) / (1 + rest)
    g.c = c
    if t.operation == LOGSUMEXP_GRAD:
        g.a = grad * value
        return -1
    lse = m + libc_log1p(rest) if t.z_loss != 0 else 0.0
    up = t.hard * sum + (1 - t.hard) if t.base[OP_SECOND] != NULL else 1.0
    g.a = grad * value * (up + 2 * t.z_loss * lse)
    g.b = -grad * t.uniform
    g.w = -grad * t.hard
    if 0 <= label < t.cols():
        label_gradient(t, r, label, m, rest, lse, grad, g)
        return label
    return -1


cdef inline void put_gradients(
    const task* t, storage_t* tag, bint lies, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n, const row_gradient* g, int64_t label
) noexcept nogil:
    """The gradients of elements [start, start + n) of row r."""
    cdef Py_ssize_t at, size, most = n if t.direct and (lies or t.base[OP_SECOND] == NULL) else SMALL
    cdef const storage_t* x
    cdef storage_t* out
    for at from start <= at < start + n by most:
        size = min(most, start + n - at)
        x = gradient_source(t, tag, r, at, size)
        out = <storage_t*>t.row(OP_OUT, r) + at if t.direct else <storage_t*>x
        write_gradient(kind_of(t), out, x, second_part(t, tag, lies, r, at, size), size, g[0], t.direct and t.past_cache)
        if storage_t is float or storage_t is double:
            if not t.direct:
                if at <= label < at + size:
                    out[label - at] = <storage_t>g.w
                scatter_row(t[0], r, at, size, out, <storage_t>0)
    if t.direct and start <= label < start + n:
        scatter_run_of(t.out_code, &g.w, 1, t.row(OP_OUT, r) + label * item_size(t.out_code), 0)


cdef void run_row_gradients(const task* t, storage_t* tag, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Rows first .. last - 1, whole."""
    cdef Py_ssize_t r, n = t.cols()
    cdef bint lies = lies_beside(t, tag), sums = needs_sum(t)
    cdef row_gradient g
    cdef int64_t label
    for r in range(first, last):
        label = prepare(t, tag, r, sum_of_row(t, tag, lies, r) if sums else 0.0, &g)
        put_gradients(t, tag, lies, r, 0, n, &g, label)
    if t.past_cache:
        stream_fence()


cdef int launch_gradient(const task* t, storage_t* tag, int threads) noexcept nogil:
    """-1 when there is no memory for the sums of segments."""
    cdef Py_ssize_t rows = t.rows(), n = t.cols(), length = segment_length(tag), each = max(max(<Py_ssize_t>1, PIECE // n), rows // (8 * threads))
    cdef Py_ssize_t pieces = pieces_of(rows, each), i, r, parts = pieces_of(n, length)
    cdef bint lies = lies_beside(t, tag)
    cdef double* sums
    cdef double total
    cdef row_gradient g
    cdef int64_t label
    if storage_t is float or storage_t is double:
        if are_lanes(t):
            launch_gradient_tiles(t, tag, threads)
            return 0
    if parts == 1 or rows >= threads or not has_memory(t):
        for i in prange(pieces, num_threads=threads, schedule="dynamic"):
            if has_memory(t):
                run_row_gradients(t, tag, i * each, min(rows, (i + 1) * each))
        return 0
    sums = <double*>malloc(parts * sizeof(double))
    if sums == NULL:
        return -1
    for r in range(rows):
        total = 0
        if needs_sum(t):
            for i in prange(parts, num_threads=threads, schedule="dynamic"):
                if has_memory(t):
                    sums[i] = sum_of_segment(t, tag, lies, r, i * length, min(length, n - i * length))
            for i in range(parts):
                total = total + sums[i]
        label = prepare(t, tag, r, total, &g)
        for i in prange(parts, num_threads=threads, schedule="dynamic"):
            if has_memory(t):
                put_gradients(t, tag, lies, r, i * length, min(length, n - i * length), &g, label)
                if t.past_cache:
                    stream_fence()
    free(sums)
    return 0
