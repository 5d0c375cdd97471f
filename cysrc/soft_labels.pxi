# What is read beside x, element by element; cross-entropy with probabilities as labels.

cdef inline bint lies_beside(const task* t, storage_t* tag) noexcept nogil:
    """Whether the second operand can be read where it lies, in the storage of x."""
    cdef int code
    if storage_t is float:
        code = CODE_F32
    elif storage_t is double:
        code = CODE_F64
    elif storage_t is f16:
        code = CODE_F16
    else:
        code = CODE_BF16
    return t.base[OP_WHERE] == NULL and t.second_code == code and t.reduced.ndim <= 1 and (
        t.reduced.ndim == 0 or t.reduced.inner_stride(OP_SECOND) == item_size(code))


cdef inline beside[storage_t] second_part(
    const task* t, storage_t* tag, bint lies, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n
) noexcept nogil:
    """Elements [start, start + n) of the second operand; n <= SMALL where they must be gathered. Hidden ones are 0."""
    if t.base[OP_SECOND] == NULL:
        return beside[storage_t]()
    if lies:
        return beside[storage_t](t.row(OP_SECOND, r) + start * item_size(t.second_code), False)
    if storage_t is double:
        gather_operand(t[0], OP_SECOND, t.second_code, r, start, n, <double*>scratch(SLOT_WEIGHTS), 0.0)
    else:
        gather_operand(t[0], OP_SECOND, t.second_code, r, start, n, <float*>scratch(SLOT_WEIGHTS), <float>0.0)
    return beside[storage_t](scratch(SLOT_WEIGHTS), True)


cdef inline const storage_t* source_part(const task* t, storage_t* tag, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    """Elements [start, start + n) of row r where they lie, or gathered."""
    if t.direct:
        return <const storage_t*>t.row(OP_X, r) + start
    if storage_t is float or storage_t is double:
        gather_row(t[0], r, start, n, <storage_t*>scratch(SLOT_SOURCE), <storage_t*>NULL)
    return <const storage_t*>scratch(SLOT_SOURCE)


cdef inline Py_ssize_t segment_length(storage_t* tag) noexcept nogil:
    return SEGMENT // 2 if storage_t is double else SEGMENT


cdef struct running_row:
    # of the segments so far: the largest element, sum exp(x - m) - 1, and with k = zero_for(m) sum t, sum t (x - k) and sum (x - k)
    double m, rest, mass, dot, linear


cdef inline void segment_pair(const storage_t* x, Py_ssize_t n, double* m, double* rest) noexcept nogil:
    """(m, sum exp(x - m) - 1) of one segment."""
    cdef double count, c, total
    cdef lane_buffer[storage_t] blocks = lane_buffer[storage_t](scratch(SLOT_BLOCK_MAX))
    m[0] = segment_max(x, n, blocks, 0, simd[storage_t](-INFINITY))
    c = shift_for(STATE, m[0])
    total = segment_sum(x, n, m[0], c, lane_buffer[storage_t](), False, blocks, &count, NULL, NULL, lane_buffer[storage_t](), 0)
    if m[0] == -INFINITY:
        rest[0] = total * 0 - 1
    elif m[0] == INFINITY:
        rest[0] = total * 0 + INFINITY
    else:
        rest[0] = total * (exp_one(c - m[0]) if c != m[0] else 1.0) + (count - 1)


cdef inline void merge_pair(double* m, double* rest, double m_b, double rest_b) noexcept nogil:
    """The pair of two parts together, as dualsoft.pair has it."""
    if m_b > m[0]:
        rest[0] = rest_b + (1 + rest[0]) * exp_one(m[0] - m_b)
        m[0] = m_b
    elif m[0] > m_b:
        rest[0] = rest[0] + (1 + rest_b) * exp_one(m_b - m[0])
    else:
        rest[0] = rest[0] + rest_b + 1


cdef inline void soft_segment(const task* t, storage_t* tag, bint lies, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n, running_row* s) noexcept nogil:
    cdef Py_ssize_t at, size
    cdef const storage_t* x = source_part(t, tag, r, start, n)
    cdef double m, rest, before, k
    cdef beside[storage_t] labels
    cdef wide[storage_t] mass = wide[storage_t](), dot = wide[storage_t](), linear = wide[storage_t]()
    segment_pair(x, n, &m, &rest)
    before = zero_for(s.m)
    merge_pair(&s.m, &s.rest, m, rest)
    k = zero_for(m)
    for at from 0 <= at < n by SMALL:
        size = min(<Py_ssize_t>SMALL, n - at)
        labels = second_part(t, tag, lies, r, start + at, size)
        add_all(labels, size, mass)
        add_weighted(x + at, labels, size, simd[storage_t](k), dot)
        if t.uniform != 0:
            add_differences(x + at, size, simd[storage_t](k), linear)
    # both sides relative to the new maximum
    s.dot = (s.dot + s.mass * (before - zero_for(s.m))) + (dot.total() + mass.total() * (k - zero_for(s.m)))
    s.linear = (s.linear + start * (before - zero_for(s.m))) + (linear.total() + n * (k - zero_for(s.m)))
    s.mass += mass.total()


cdef void run_soft(const task* t, storage_t* tag, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t r, start, n = t.cols(), length = segment_length(tag)
    cdef bint lies = lies_beside(t, tag)
    cdef running_row row
    cdef batch_stats s
    for r in range(first, last):
        row.m, row.rest, row.mass, row.dot, row.linear = -INFINITY, -1, 0, 0, 0
        for start from 0 <= start < n by length:
            soft_segment(t, tag, lies, r, start, min(length, n - start), &row)
        s.m[0], s.mass[0], s.dot[0], s.linear[0] = row.m, row.mass, row.dot, row.linear
        s.rest[0] = row.rest
        s.count[0] = 1
        if row.m == -INFINITY:
            # d = count + total is 1 in a row of nothing but -inf, as where each of them is counted: its logarithm is m
            s.total[0] = row.rest + 1
        else:
            s.total[0] = row.rest * (exp_one(row.m) if shift_for(STATE, row.m) != row.m else 1.0)
        put_losses(t, r, 1, &s)


cdef void launch_soft(const task* t, storage_t* tag, int threads) noexcept nogil:
    cdef Py_ssize_t rows = t.rows(), each = max(<Py_ssize_t>1, PIECE // t.cols()), i
    for i in prange(pieces_of(rows, each), num_threads=threads, schedule="dynamic"):
        if has_memory(t):
            run_soft(t, tag, i * each, min(rows, (i + 1) * each))
