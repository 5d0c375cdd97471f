# Rows whose elements follow each other in memory (or were gathered so): one segment, short or long.

cdef inline double segment_max(const storage_t* x, Py_ssize_t n, lane_buffer[storage_t] blocks) noexcept nogil:
    """The largest of n elements; the lane-wise maximum of every block, whole or not, is left in `blocks`."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), b, i, full = n // (BLOCK * w)
    cdef simd[storage_t] v, m = simd[storage_t](-INFINITY)
    for b in range(full):
        v = block_max(x + b * BLOCK * w)
        blocks.put(b * w, v)
        m = vmax(v, m)
    i = full * BLOCK * w
    v = simd[storage_t](-INFINITY)
    while i + w <= n:
        v = vmax(load(x + i), v)
        i += w
    if i < n:
        v = vmax(load_partial(x + i, n - i), v)
    blocks.put(full * w, v)
    return hmax(vmax(v, m))


cdef struct pending_output:
    # A row whose outputs are still to be written, from `x` (log_softmax) or from its kept exponentials `e`.
    void* out
    const void* x
    void* e
    Py_ssize_t n, head
    double c, value
    bint is_log, past_cache


cdef inline void write_piece(storage_t* tag, const pending_output* p, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Outputs [first, last) of a pending row, shifted so that every piece begins where it can be streamed."""
    cdef Py_ssize_t start = first + p.head if first else 0, stop = min(p.n, last + p.head)
    cdef lane_buffer[storage_t] e = lane_buffer[storage_t](p.e)
    if start >= stop:
        return
    if p.is_log:
        write_row(
            <storage_t*>p.out + start, <const storage_t*>p.x + start, stop - start,
            simd[storage_t](p.c), simd[storage_t](p.value), True, p.past_cache)
    else:
        write_scaled(<storage_t*>p.out + start, e.at(start), stop - start, simd[storage_t](p.value), p.past_cache)


cdef inline double segment_sum(
    const storage_t* x, Py_ssize_t n, double m, double c, lane_buffer[storage_t] e, bint keep,
    lane_buffer[storage_t] blocks, Py_ssize_t ahead, double* counted, const pending_output* pending
) noexcept nogil:
    """The sum of exp(x - c) over the elements below m, and how many equal m; the exponentials are left in `e`.

    Between the blocks the pending outputs of another row of n elements are written: stores beside arithmetic.
    """
    cdef Py_ssize_t w = simd[storage_t].lanes(), b, size = BLOCK * w, full = n // size, count = 0
    cdef simd[storage_t] vm = simd[storage_t](m), vc = simd[storage_t](c)
    cdef wide[storage_t] sums = wide[storage_t]()
    for b in range(full):
        sums.add(block_sum(x + b * size, vm, vc, e.at(b * size), count_equal(blocks.get(b * w), vm) > 0, keep, ahead, count))
        if pending != NULL:
            write_piece(<storage_t*>NULL, pending, b * size, (b + 1) * size)
    if full * size < n:
        sums.add(part_sum(
            x + full * size, n - full * size, vm, vc, e.at(full * size), count_equal(blocks.get(full * w), vm) > 0, keep, count))
    if pending != NULL:
        write_piece(<storage_t*>NULL, pending, full * size, n)
    counted[0] = <double>count
    return sums.total()


cdef inline void short_stats(
    const storage_t** x, Py_ssize_t n, Py_ssize_t k, int operation, lane_buffer[storage_t] e, Py_ssize_t pitch, bint keep,
    batch_stats* s
) noexcept nogil:
    """k <= lanes rows of at most one block each. A short batch is filled up with its first row."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), j
    cdef storage_t blocks[64]
    cdef lane_buffer[storage_t] unused = lane_buffer[storage_t](<void*>blocks)
    if n <= GROUP * w:
        for j in range(k, w):
            x[j] = x[0]
        few_stats(x, n, keep, operation == LOGSUMEXP or operation == STATE, e, s.m, s.c, s.total, s.count)
        return
    for j in range(k):
        s.m[j] = segment_max(x[j], n, unused)
        s.c[j] = shift_for(operation, s.m[j])
        s.total[j] = segment_sum(x[j], n, s.m[j], s.c[j], e.at(j * pitch), keep, unused, 0, &s.count[j], NULL)


cdef inline void put_reduced(const task* t, Py_ssize_t r, Py_ssize_t k, batch_stats* s) noexcept nogil:
    cdef Py_ssize_t j
    if t.operation == STATE:
        put_values(t[0], OP_M, CODE_F64, r, k, s.m)
        put_values(t[0], OP_REST, CODE_F64, r, k, s.rest)
        return
    put_values(t[0], OP_OUT, t.out_code, r, k, s.value)
    if t.base[OP_SIGN] != NULL:
        for j in range(k):
            s.rest[j] = NAN if s.value[j] != s.value[j] else (0.0 if s.value[j] == -INFINITY else 1.0)
        put_values(t[0], OP_SIGN, t.out_code, r, k, s.rest)


cdef inline void finish(int operation, batch_stats* s, Py_ssize_t k) noexcept nogil:
    if operation == SOFTMAX:
        finish_softmax(s, k)
    else:
        finish_rest(s, k, operation)


cdef inline const storage_t* source_row(const task* t, storage_t* tag, Py_ssize_t r, void* buffer) noexcept nogil:
    """Row r where it lies, or gathered into buffer."""
    if t.direct:
        return <const storage_t*>t.row(OP_X, r)
    if storage_t is float or storage_t is double:
        gather_row(t[0], r, 0, t.cols(), <storage_t*>buffer, <storage_t*>NULL)
    return <const storage_t*>buffer


cdef void run_short_rows(const task* t, storage_t* tag, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Rows first .. last - 1 of at most one block, as many at a time as a register has lanes."""
    cdef Py_ssize_t n = t.cols(), w = simd[storage_t].lanes(), pitch = (n + w - 1) // w * w, k, r, j
    cdef size_t item = sizeof(double) if storage_t is double else sizeof(float)
    cdef bint direct = t.direct, is_log = t.operation == LOG_SOFTMAX
    cdef const storage_t* x[16]
    cdef storage_t* out[16]
    cdef lane_buffer[storage_t] e
    cdef char* source = NULL
    cdef batch_stats s
    if t.operation == SOFTMAX:
        e = lane_buffer[storage_t](scratch(SLOT_EXP, w * pitch * item))
    if not direct:
        source = <char*>scratch(SLOT_SOURCE, w * pitch * item)
    for r from first <= r < last by w:
        k = min(w, last - r)
        for j in range(k):
            x[j] = source_row(t, tag, r + j, source + j * pitch * item)
        short_stats(x, n, k, t.operation, e, pitch, t.operation == SOFTMAX, &s)
        finish(t.operation, &s, k)
        if not t.has_out:
            put_reduced(t, r, k, &s)
            continue
        for j in range(k):
            out[j] = <storage_t*>t.row(OP_OUT, r + j) if direct else <storage_t*>x[j]
        if n <= GROUP * w:
            few_output(out, x, n, k, is_log, e, s.c, s.value, direct and t.past_cache)
        else:
            for j in range(k):
                if is_log:
                    write_row(out[j], x[j], n, simd[storage_t](s.c[j]), simd[storage_t](s.value[j]), True, direct and t.past_cache)
                else:
                    write_scaled(out[j], e.at(j * pitch), n, simd[storage_t](s.value[j]), direct and t.past_cache)
        if storage_t is float or storage_t is double:
            if not direct:
                for j in range(k):
                    scatter_row(t[0], r + j, 0, n, out[j], <storage_t>(-INFINITY if is_log else 0))


cdef void run_rows(const task* t, storage_t* tag, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Rows first .. last - 1 of more than a block and at most SEGMENT elements.

    A pipeline over rows, so that nothing waits: the outputs of a row are written while the exponentials of the next are summed, and the maximum
    of the row after that is found before the sum is needed. Buffers alternate.
    """
    cdef Py_ssize_t n = t.cols(), w = simd[storage_t].lanes(), r, k = 0, exp_bytes, block_bytes, source_bytes, side
    cdef size_t item = sizeof(double) if storage_t is double else sizeof(float)
    cdef bint direct = t.direct, keep = t.operation == SOFTMAX
    cdef const storage_t* x
    cdef const storage_t* next_x = NULL
    cdef char* e = NULL
    cdef char* blocks
    cdef char* source = NULL
    cdef pending_output p
    cdef double m
    cdef batch_stats s
    p.n = 0
    p.is_log = not keep
    p.past_cache = direct and t.past_cache
    exp_bytes = source_bytes = (n + w) * item
    block_bytes = (n // BLOCK + 2 * w) * item
    blocks = <char*>scratch(SLOT_BLOCK_MAX, 2 * block_bytes)
    if keep:
        e = <char*>scratch(SLOT_EXP, 2 * exp_bytes)
    if not direct:
        source = <char*>scratch(SLOT_SOURCE, 2 * source_bytes)
    side = first % 2
    x = source_row(t, tag, first, source + side * source_bytes)
    m = segment_max(x, n, lane_buffer[storage_t](<void*>(blocks + side * block_bytes)))
    for r in range(first, last):
        side = r % 2
        s.m[k] = m
        s.c[k] = shift_for(t.operation, m)
        s.total[k] = segment_sum(
            x, n, m, s.c[k], lane_buffer[storage_t](<void*>(e + side * exp_bytes)), keep,
            lane_buffer[storage_t](<void*>(blocks + side * block_bytes)), n * sizeof(storage_t) if direct else 0, &s.count[k],
            &p if p.n else NULL)
        if storage_t is float or storage_t is double:
            if p.n and not direct:
                scatter_row(t[0], r - 1, 0, n, <storage_t*>p.out, <storage_t>(0 if keep else -INFINITY))
        if r + 1 < last:
            next_x = source_row(t, tag, r + 1, source + (1 - side) * source_bytes)
            m = segment_max(next_x, n, lane_buffer[storage_t](<void*>(blocks + (1 - side) * block_bytes)))
        if t.has_out:
            finish(t.operation, &s, 1)
            p.out = t.row(OP_OUT, r) if direct else <void*>x
            p.x = x
            p.e = e + side * exp_bytes
            p.n = n
            p.head = aligned_head(<const storage_t*>p.out) if p.past_cache else 0
            p.c = s.c[0]
            p.value = s.value[0]
        else:
            k += 1
            if k == w or r + 1 == last:
                finish(t.operation, &s, k)
                put_reduced(t, r + 1 - k, k, &s)
                k = 0
        x = next_x
    if p.n:
        write_piece(tag, &p, 0, n)
        if storage_t is float or storage_t is double:
            if not direct:
                scatter_row(t[0], last - 1, 0, n, <storage_t*>p.out, <storage_t>(0 if keep else -INFINITY))
