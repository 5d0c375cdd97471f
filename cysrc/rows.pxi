# Rows whose elements follow each other in memory (or were gathered so): one segment, short or long.

cdef inline double segment_max(const storage_t* x, Py_ssize_t n, lane_buffer[storage_t] blocks) noexcept nogil:
    """The largest of n elements; the lane-wise maximum of every whole block is left in `blocks`."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), b, i, full = n // (BLOCK * w)
    cdef simd[storage_t] v, m = simd[storage_t](-INFINITY)
    for b in range(full):
        v = block_max(x + b * BLOCK * w)
        blocks.put(b * w, v)
        m = vmax(v, m)
    i = full * BLOCK * w
    while i + w <= n:
        m = vmax(load(x + i), m)
        i += w
    if i < n:
        m = vmax(load_partial(x + i, n - i), m)
    return hmax(m)


cdef inline double segment_sum(
    const storage_t* x, Py_ssize_t n, double m, double c, lane_buffer[storage_t] e, bint keep,
    lane_buffer[storage_t] blocks, Py_ssize_t ahead, Py_ssize_t* count
) noexcept nogil:
    """The sum of exp(x - c) over the elements below m, and how many equal m; the exponentials are left in `e`."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), b, size = BLOCK * w, full = n // size
    cdef simd[storage_t] vm = simd[storage_t](m), vc = simd[storage_t](c)
    cdef wide[storage_t] sums = wide[storage_t]()
    count[0] = 0
    for b in range(full):
        sums.add(block_sum(
            x + b * size, vm, vc, e.at(b * size), count_equal(blocks.get(b * w), vm) > 0, keep, ahead, count[0]))
    if full * size < n:
        sums.add(part_sum(x + full * size, n - full * size, vm, vc, e.at(full * size), keep, count[0]))
    return sums.total()


cdef inline void segment_stats(
    const storage_t* x, Py_ssize_t n, int operation, lane_buffer[storage_t] e, bint keep,
    lane_buffer[storage_t] blocks, Py_ssize_t ahead, batch_stats* s, Py_ssize_t j
) noexcept nogil:
    cdef Py_ssize_t count = 0
    cdef double m = segment_max(x, n, blocks)
    s.m[j] = m
    s.c[j] = shift_for(operation, m)
    s.total[j] = segment_sum(x, n, m, s.c[j], e, keep, blocks, ahead, &count)
    s.count[j] = <double>count


cdef inline void short_stats(
    const storage_t** x, Py_ssize_t n, Py_ssize_t k, int operation, lane_buffer[storage_t] e, Py_ssize_t pitch, bint keep,
    batch_stats* s
) noexcept nogil:
    """k <= lanes rows of at most one block each: the maxima and the sums of all of them are folded together."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), w64 = simd[double].lanes(), i, j, count
    cdef simd[storage_t] v[16]
    cdef simd[double] sums[16]
    cdef simd[storage_t] m
    cdef wide[storage_t] sum
    for j in range(k):
        m = simd[storage_t](-INFINITY)
        i = 0
        while i + w <= n:
            m = vmax(load(x[j] + i), m)
            i += w
        if i < n:
            m = vmax(load_partial(x[j] + i, n - i), m)
        v[j] = m
    for j in range(k, w):
        v[j] = simd[storage_t](-INFINITY)
    to_doubles(max_rows(&v[0]), s.m)
    for j in range(k):
        s.c[j] = shift_for(operation, s.m[j])
        count = 0
        sum = wide[storage_t]()
        sum.add(part_sum(
            x[j], n, simd[storage_t](s.m[j]), simd[storage_t](s.c[j]), e.at(j * pitch), keep, count))
        sums[j] = sum.lanes()
        s.count[j] = <double>count
    for j in range(k, w):
        sums[j] = simd[double](0.0)
    for j from 0 <= j < w by w64:
        store(&s.total[j], sum_rows(&sums[j]))


cdef inline void put_reduced(const task* t, Py_ssize_t r, batch_stats* s, Py_ssize_t j) noexcept nogil:
    if t.operation == LOGSUMEXP:
        put_value(t[0], OP_OUT, t.out_code, r, s.value[j])
        if t.base[OP_SIGN] != NULL:
            put_value(t[0], OP_SIGN, t.out_code, r, NAN if s.value[j] != s.value[j] else (0.0 if s.value[j] == -INFINITY else 1.0))
    else:
        put_value(t[0], OP_M, CODE_F64, r, s.m[j])
        put_value(t[0], OP_REST, CODE_F64, r, s.rest[j])


cdef void run_rows(const task* t, storage_t* tag, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Rows first .. last - 1 of at most SEGMENT elements, from input to output."""
    cdef Py_ssize_t n = t.cols(), w = simd[storage_t].lanes(), pitch = (n // w + 1) * w, group, k, r, j, ahead, slot
    cdef bint short = n <= BLOCK * w, keep = t.operation == SOFTMAX, direct = t.direct()
    cdef size_t item = sizeof(double) if storage_t is double else sizeof(float)
    cdef const storage_t* x[16]
    cdef storage_t* out
    cdef lane_buffer[storage_t] e, blocks, kept
    cdef char* source = NULL
    cdef batch_stats s
    # Rows that are read again after their batch is finished must still be in the cache.
    group = w if short or not t.has_out else (1 if keep else max(<Py_ssize_t>1, min(w, SMALL // n)))
    slot = pitch * item if short or t.has_out else 0
    if keep:
        e = lane_buffer[storage_t](scratch(SLOT_EXP, (group * pitch + w) * item))
    if not short:
        blocks = lane_buffer[storage_t](scratch(SLOT_BLOCK_MAX, (n // BLOCK + w) * item))
    if not direct:
        source = <char*>scratch(SLOT_SOURCE, group * slot + (pitch + w) * item)
    for r from first <= r < last by group:
        k = min(group, last - r)
        for j in range(k):
            if direct:
                x[j] = <const storage_t*>t.row(OP_X, r + j)
                ahead = n * sizeof(storage_t)
            else:
                x[j] = <const storage_t*>(source + j * slot)
                ahead = 0
                if storage_t is float or storage_t is double:
                    gather_row(t[0], r + j, 0, n, <storage_t*>(source + j * slot), <storage_t*>NULL)
            if not short:
                segment_stats(x[j], n, t.operation, e, keep, blocks, ahead, &s, j)
        if short:
            short_stats(x, n, k, t.operation, e, pitch, keep, &s)
        if t.operation == SOFTMAX:
            finish_softmax(&s, k)
        else:
            finish_rest(&s, k, t.operation)
        for j in range(k):
            if not t.has_out:
                put_reduced(t, r + j, &s, j)
                continue
            out = <storage_t*>t.row(OP_OUT, r + j) if direct else <storage_t*>(source + j * slot)
            if keep:
                write_scaled(out, e.at(j * pitch), n, simd[storage_t](s.value[j]), direct and t.past_cache)
            else:
                write_row(
                    out, x[j], n, simd[storage_t](s.c[j]), simd[storage_t](s.value[j]), True, direct and t.past_cache)
            if storage_t is float or storage_t is double:
                if not direct:
                    scatter_row(t[0], r + j, 0, n, out, <storage_t>(0 if keep else -INFINITY))
    if t.past_cache:
        stream_fence()
