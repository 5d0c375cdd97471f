# Rows whose elements follow each other in memory (or were gathered so): one segment, short or long.

cdef inline simd[storage_t] part_max(const storage_t* x, Py_ssize_t n) noexcept nogil:
    """Lane-wise maximum of the n elements that follow the last whole block."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), i = 0
    cdef simd[storage_t] a = simd[storage_t](-INFINITY), b = simd[storage_t](-INFINITY)
    while i + 2 * w <= n:
        a = vmax(load(x + i), a)
        b = vmax(load(x + i + w), b)
        i += 2 * w
    if i + w <= n:
        a = vmax(load(x + i), a)
        i += w
    return vmax(vmax(load_partial(x + i, n - i), a) if i < n else a, b)


cdef inline double segment_max(const storage_t* x, Py_ssize_t n, lane_buffer[storage_t] blocks, Py_ssize_t b, simd[storage_t] m) noexcept nogil:
    """The largest of n elements, given the lane-wise maximum m of the first b blocks; that of every block, whole or not, is left in `blocks`."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), size = BLOCK * w
    cdef simd[storage_t] v
    while (b + 1) * size <= n:
        v = block_max(x + b * size)
        blocks.put(b * w, v)
        m = vmax(v, m)
        b += 1
    v = part_max(x + b * size, n - b * size)
    blocks.put(b * w, v)
    return hmax(vmax(v, m))


cdef struct next_segment:
    # The segment after this one, whose maximum is found on the way.
    const void* x
    void* blocks
    Py_ssize_t n
    double m


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
    lane_buffer[storage_t] blocks, double* counted, next_segment* following, const pending_output* pending,
    lane_buffer[storage_t] place, Py_ssize_t placed
) noexcept nogil:
    """The sum of exp(x - c) over the elements below m, and how many equal m; the exponentials are left in `e`, those of the first `placed`
    elements, whole blocks, in `place`.

    Block by block the maximum of the following segment is found and the pending outputs of another row of n elements are written, so that
    memory is read and written all the while and not in turns with the arithmetic.
    """
    cdef Py_ssize_t w = simd[storage_t].lanes(), b, size = BLOCK * w, full = n // size, count = 0, ahead = 0
    cdef simd[storage_t] vm = simd[storage_t](m), vc = simd[storage_t](c), v, next_m = simd[storage_t](-INFINITY)
    cdef wide[storage_t] sums = wide[storage_t]()
    cdef const storage_t* next_x = NULL
    cdef lane_buffer[storage_t] next_blocks
    if following != NULL:
        next_x = <const storage_t*>following.x
        next_blocks = lane_buffer[storage_t](following.blocks)
        ahead = min(full, following.n // size)
    for b in range(full):
        sums.add(block_sum(
            x + b * size, vm, vc, (place if b * size < placed else e).at(b * size), count_equal(blocks.get(b * w), vm) > 0, keep, count,
            (next_x if b < ahead else x) + b * size, v))
        if b < ahead:
            next_blocks.put(b * w, v)
            next_m = vmax(v, next_m)
        if pending != NULL:
            write_piece(<storage_t*>NULL, pending, b * size, (b + 1) * size)
    if following != NULL:
        following.m = segment_max(next_x, following.n, next_blocks, ahead, next_m)
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
        few_stats(x, n, keep, is_logarithm(operation), e, s.m, s.c, s.total, s.count)
        return
    for j in range(k):
        s.m[j] = segment_max(x[j], n, unused, 0, simd[storage_t](-INFINITY))
        s.c[j] = shift_for(operation, s.m[j])
        s.total[j] = segment_sum(
            x[j], n, s.m[j], s.c[j], e.at(j * pitch), keep, unused, &s.count[j], NULL, NULL, lane_buffer[storage_t](), 0)


cdef inline void put_reduced(const task* t, Py_ssize_t r, Py_ssize_t k, batch_stats* s) noexcept nogil:
    cdef Py_ssize_t j
    if t.operation == STATE:
        put_values(t[0], OP_M, CODE_F64, r, k, s.m)
        put_values(t[0], OP_REST, CODE_F64, r, k, s.rest)
        return
    if t.operation == CROSS_ENTROPY:
        put_losses(t, r, k, s)
        return
    if t.out_code == CODE_F64:
        refine(t, r, k, s)
    put_values(t[0], OP_OUT, t.out_code, r, k, s.value)
    if t.base[OP_SIGN] != NULL:
        for j in range(k):
            s.rest[j] = NAN if s.value[j] != s.value[j] else (0.0 if s.value[j] == -INFINITY else 1.0)
        put_values(t[0], OP_SIGN, t.out_code, r, k, s.rest)


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
        e = lane_buffer[storage_t](scratch(SLOT_EXP))
    if not direct:
        source = <char*>scratch(SLOT_SOURCE)
    for r from first <= r < last by w:
        k = min(w, last - r)
        if direct:
            row_starts(t[0], OP_X, r, k, <storage_t**>&x[0])
        else:
            for j in range(k):
                x[j] = source_row(t, tag, r + j, source + j * pitch * item)
        short_stats(x, n, k, t.operation, e, pitch, t.operation == SOFTMAX, &s)
        finish(t.operation, t.out_code, &s, k)
        if not t.has_out:
            if t.uniform != 0:
                for j in range(k):
                    s.linear[j] = sum_differences(x[j], n, s.m[j])
            put_reduced(t, r, k, &s)
            continue
        if direct:
            row_starts(t[0], OP_OUT, r, k, &out[0])
        else:
            for j in range(k):
                out[j] = <storage_t*>x[j]
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


cdef inline bint may_place(const task* t, storage_t* tag) noexcept nogil:
    """Whether rows of `out` can hold their own exponentials until these are scaled: it has the lanes that registers compute with, stays in the
    cache, and is not also the input.
    """
    if storage_t is float or storage_t is double:
        return t.direct and not t.past_cache and t.base[OP_OUT] != t.base[OP_X]
    return False


cdef inline Py_ssize_t elements_in_place(storage_t* out, Py_ssize_t n, lane_buffer[storage_t]* place) noexcept nogil:
    """How many exponentials of a row, whole blocks, are kept in `out`, from its first whole line on.

    Each then lies at or behind the place of its output, so that outputs, written from the first on, replace only what was read. Reading stays
    within the row: a register more than there are exponentials fits.
    """
    cdef Py_ssize_t w = simd[storage_t].lanes(), size = BLOCK * w, head
    if <size_t>out % sizeof(storage_t) != 0:
        return 0
    head = aligned_head(<const storage_t*>out)
    place[0] = lane_buffer[storage_t](<void*>(out + head))
    return max(<Py_ssize_t>0, n - head - w) // size * size


cdef inline void write_placed(
    storage_t* out, Py_ssize_t n, lane_buffer[storage_t] place, Py_ssize_t placed, lane_buffer[storage_t] e, double value
) noexcept nogil:
    """Outputs from the exponentials kept in `out` itself, then from the others."""
    write_scaled(out, place, placed, simd[storage_t](value), False)
    write_scaled(out + placed, e.at(placed), n - placed, simd[storage_t](value), False)


cdef void run_rows(const task* t, storage_t* tag, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Rows first .. last - 1 of more than a block and at most SEGMENT elements.

    A pipeline of three rows: one is read for its maximum, one is summed, one is written. Buffers alternate.
    """
    cdef Py_ssize_t n = t.cols(), w = simd[storage_t].lanes(), r, k = 0, row_bytes, block_bytes, side, kept, placed = 0
    cdef size_t item = sizeof(double) if storage_t is double else sizeof(float)
    cdef bint direct = t.direct, keep = t.operation == SOFTMAX, deferred, in_place
    cdef lane_buffer[storage_t] place = lane_buffer[storage_t]()
    cdef const storage_t* x
    cdef char* e = NULL
    cdef char* blocks
    cdef char* source = NULL
    cdef next_segment following
    cdef pending_output p
    cdef batch_stats s
    p.n = 0
    p.is_log = not keep
    p.past_cache = direct and t.past_cache
    row_bytes = (n + w) * item
    deferred = row_bytes <= DEFERRED
    in_place = keep and not deferred and may_place(t, tag)
    block_bytes = (n // BLOCK + 2 * w) * item
    blocks = <char*>scratch(SLOT_BLOCK_MAX)
    if keep:
        e = <char*>scratch(SLOT_EXP)
    if not direct:
        source = <char*>scratch(SLOT_SOURCE)
    side = first % 2
    following.n = n
    following.x = source_row(t, tag, first, source + first % 3 * row_bytes)
    following.blocks = blocks + side * block_bytes
    following.m = segment_max(
        <const storage_t*>following.x, n, lane_buffer[storage_t](following.blocks), 0, simd[storage_t](-INFINITY))
    for r in range(first, last):
        side = r % 2
        kept = side * row_bytes if keep and deferred else 0
        x = <const storage_t*>following.x
        s.m[k] = following.m
        s.c[k] = shift_for(t.operation, following.m)
        if r + 1 < last:
            following.x = source_row(t, tag, r + 1, source + (r + 1) % 3 * row_bytes)
            following.blocks = blocks + (1 - side) * block_bytes
        if in_place:
            placed = elements_in_place(<storage_t*>t.row(OP_OUT, r), n, &place)
        s.total[k] = segment_sum(
            x, n, s.m[k], s.c[k], lane_buffer[storage_t](<void*>(e + kept)), keep,
            lane_buffer[storage_t](<void*>(blocks + side * block_bytes)), &s.count[k],
            &following if r + 1 < last else NULL, &p if p.n else NULL, place, placed)
        if storage_t is float or storage_t is double:
            if p.n and not direct:
                scatter_row(t[0], r - 1, 0, n, <storage_t*>p.out, <storage_t>(0 if keep else -INFINITY))
        if t.has_out:
            finish(t.operation, t.out_code, &s, 1)
            p.out = t.row(OP_OUT, r) if direct else <void*>x
            p.x = x
            p.e = e + kept
            p.n = n
            p.head = aligned_head(<const storage_t*>p.out)
            p.c = s.c[0]
            p.value = s.value[0]
            if in_place:
                write_placed(<storage_t*>p.out, n, place, placed, lane_buffer[storage_t](<void*>e), s.value[0])
                p.n = 0
            elif not deferred:
                # kept exponentials of two rows would push each other out of the cache
                write_piece(tag, &p, 0, n)
                if storage_t is float or storage_t is double:
                    if not direct:
                        scatter_row(t[0], r, 0, n, <storage_t*>p.out, <storage_t>(0 if keep else -INFINITY))
                p.n = 0
        else:
            if t.uniform != 0:
                s.linear[k] = sum_differences(x, n, s.m[k])
            k += 1
            if k == w or r + 1 == last:
                finish(t.operation, t.out_code, &s, k)
                put_reduced(t, r + 1 - k, k, &s)
                k = 0
    if p.n:
        write_piece(tag, &p, 0, n)
        if storage_t is float or storage_t is double:
            if not direct:
                scatter_row(t[0], last - 1, 0, n, <storage_t*>p.out, <storage_t>(0 if keep else -INFINITY))
