# Two phases, for what does not fit in the cache: first the statistics of every segment, by any number of threads; they are merged in the order
# of the segments; then the outputs, again in any number of pieces. `normalize` is the second phase alone.

cdef struct segments:
    Py_ssize_t length        # elements of a segment
    Py_ssize_t each          # segments of a row
    Py_ssize_t group         # rows that are handled side by side
    Py_ssize_t groups        # of the inner kept axis
    double* m                # of segment i of row r at [r * each + i], and so on
    double* total
    double* count
    double* linear
    double* c                # of row r, when its segments are merged
    double* value


cdef inline double merge_differences(const task* t, const segments* g, Py_ssize_t first, double m) noexcept nogil:
    """The sum of x - zero_for(m) over a row from those of its segments, which took their own maxima."""
    cdef Py_ssize_t i
    cdef double total = 0, size
    for i in range(g.each):
        size = min(g.length, t.cols() - i * g.length)
        total += g.linear[first + i] + size * (zero_for(g.m[first + i]) - zero_for(m))
    return total


cdef inline void merge_segments(const task* t, const segments* g, Py_ssize_t r, batch_stats* s, Py_ssize_t j) noexcept nogil:
    """The statistics of row r from those of its segments; the sum carries its own rounding error along (Neumaier)."""
    cdef Py_ssize_t i, first = r * g.each
    cdef double m = -INFINITY, c, total = 0, error = 0, count = 0, x, c_i, sum
    for i in range(first, first + g.each):
        if g.m[i] > m:
            m = g.m[i]
    c = shift_for(t.operation, m)
    for i in range(first, first + g.each):
        x = g.total[i]
        if g.m[i] == m:
            count += g.count[i]
        elif g.m[i] != -INFINITY:
            c_i = shift_for(t.operation, g.m[i])
            x = (x + g.count[i] * exp_one(g.m[i] - c_i)) * exp_one(c_i - c)
        sum = total + x
        error += (total - sum) + x if fabs(total) >= fabs(x) else (x - sum) + total
        total = sum
    s.m[j] = m
    s.c[j] = c
    s.total[j] = total + error if isfinite(total) else total
    s.count[j] = count
    if t.uniform != 0:
        s.linear[j] = merge_differences(t, g, first, m)


cdef void merge_rows(const task* t, const segments* g, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t r, j, k
    cdef batch_stats s
    for r from first <= r < last by BATCH:
        k = min(BATCH, last - r)
        for j in range(k):
            merge_segments(t, g, r + j, &s, j)
        finish(t.operation, t.out_code, &s, k)
        if not t.has_out:
            put_reduced(t, r, k, &s)
            continue
        for j in range(k):
            g.c[r + j] = s.c[j]
            g.value[r + j] = s.value[j]


cdef inline void given_state(const task* t, Py_ssize_t r, bint as_float, double* c, double* value) noexcept nogil:
    """For normalize: exp(x - m) / d = exp(x - c) * value, with c = m as the arithmetic can hold it."""
    cdef double m = get_value(t[0], OP_M, r)
    c[0] = <double>(<float>m) if as_float else m
    value[0] = 1 / ((1 + get_value(t[0], OP_REST, r)) * libc_exp(m - c[0]))


cdef inline void segment_place(const task* t, const segments* g, Py_ssize_t unit, Py_ssize_t pieces, Py_ssize_t* r, Py_ssize_t* cols) noexcept nogil:
    """The rows of a unit: one, or the columns of one tile."""
    cdef Py_ssize_t tile = unit // pieces, inner = t.kept.inner_shape()
    if g.group == 1:
        r[0] = tile
        cols[0] = 1
    else:
        r[0] = tile // g.groups * inner + tile % g.groups * g.group
        cols[0] = min(g.group, inner - tile % g.groups * g.group)


cdef inline const storage_t* source_segment(const task* t, storage_t* tag, const segments* g, Py_ssize_t r, Py_ssize_t i, void* buffer) noexcept nogil:
    """Segment i of row r where it lies, or gathered into buffer."""
    cdef Py_ssize_t start = i * g.length
    if t.direct:
        return <const storage_t*>t.row(OP_X, r) + start
    if storage_t is float or storage_t is double:
        gather_row(t[0], r, start, min(g.length, t.cols() - start), <storage_t*>buffer, <storage_t*>NULL)
    return <const storage_t*>buffer


cdef void run_span(const task* t, storage_t* tag, const segments* g, Py_ssize_t r, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """First phase: the statistics of segments first .. last - 1 of one row, each read for its maximum while the one before is summed."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), i, n, block_bytes = (g.length // BLOCK + 2 * w), row_bytes = g.length + w, at
    cdef char* blocks
    cdef char* source = NULL
    cdef const storage_t* x
    cdef next_segment following
    block_bytes *= sizeof(double) if storage_t is double else sizeof(float)
    row_bytes *= sizeof(double) if storage_t is double else sizeof(float)
    blocks = <char*>scratch(SLOT_BLOCK_MAX)
    if not t.direct:
        source = <char*>scratch(SLOT_SOURCE)
    following.n = min(g.length, t.cols() - first * g.length)
    following.x = source_segment(t, tag, g, r, first, source + first % 2 * row_bytes)
    following.blocks = blocks + first % 2 * block_bytes
    following.m = segment_max(
        <const storage_t*>following.x, following.n, lane_buffer[storage_t](following.blocks), 0, simd[storage_t](-INFINITY))
    for i in range(first, last):
        x = <const storage_t*>following.x
        n = following.n
        at = r * g.each + i
        g.m[at] = following.m
        if i + 1 < last:
            following.n = min(g.length, t.cols() - (i + 1) * g.length)
            following.x = source_segment(t, tag, g, r, i + 1, source + (i + 1) % 2 * row_bytes)
            following.blocks = blocks + (i + 1) % 2 * block_bytes
        g.total[at] = segment_sum(
            x, n, g.m[at], shift_for(t.operation, g.m[at]), lane_buffer[storage_t](), False,
            lane_buffer[storage_t](<void*>(blocks + i % 2 * block_bytes)), &g.count[at], &following if i + 1 < last else NULL, NULL,
            lane_buffer[storage_t](), 0)
        if t.uniform != 0:
            g.linear[at] = sum_differences(x, n, g.m[at])


cdef void run_segment(const task* t, storage_t* tag, const segments* g, Py_ssize_t unit, Py_ssize_t pieces, Py_ssize_t span) noexcept nogil:
    """First phase: `span` segments of one row, or one segment of a tile of columns."""
    cdef Py_ssize_t i = unit % pieces * span, start = i * g.length, r, cols, j
    cdef batch_stats s
    segment_place(t, g, unit, pieces, &r, &cols)
    if g.group == 1:
        run_span(t, tag, g, r, i, min(i + span, g.each))
        return
    if storage_t is float or storage_t is double:
        tile_stats(t, tag, r, cols, start, min(g.length, t.cols() - start), tile_elements(tag) // g.group, False, &s)
        for j in range(cols):
            g.m[(r + j) * g.each + i] = s.m[j]
            g.total[(r + j) * g.each + i] = s.total[j]
            g.count[(r + j) * g.each + i] = s.count[j]


cdef void run_output(const task* t, storage_t* tag, const segments* g, Py_ssize_t unit, Py_ssize_t pieces, Py_ssize_t length) noexcept nogil:
    """Second phase: the outputs of `length` elements of one row, or of a tile of columns."""
    cdef Py_ssize_t start = unit % pieces * length, n = min(length, t.cols() - start), r, cols, j
    cdef Py_ssize_t w = simd[storage_t].lanes(), pitch
    cdef bint is_log = t.operation == LOG_SOFTMAX, as_float = storage_t is not double
    cdef storage_t* buffer
    cdef batch_stats s
    segment_place(t, g, unit, pieces, &r, &cols)
    for j in range(cols):
        if t.operation == NORMALIZE:
            given_state(t, r + j, as_float, &s.c[j], &s.value[j])
        else:
            s.c[j] = g.c[r + j]
            s.value[j] = g.value[r + j]
    if t.direct and g.group == 1:
        write_row(
            <storage_t*>t.row(OP_OUT, r) + start, <const storage_t*>t.row(OP_X, r) + start, n,
            simd[storage_t](s.c[0]), simd[storage_t](s.value[0]), is_log, t.past_cache)
        if t.past_cache:
            stream_fence()
        return
    if storage_t is float or storage_t is double:
        pitch = (cols + w - 1) // w * w if g.group > 1 else 1
        buffer = <storage_t*>scratch(SLOT_SOURCE)
        if g.group > 1:
            gather_tile(t[0], r, cols, start, n, n * w, buffer)
            tile_output(t, lane_buffer[storage_t](<void*>buffer), r, cols, start, n, OUT_LOG if is_log else OUT_EXP, &s)
        else:
            gather_row(t[0], r, start, n, buffer, <storage_t*>NULL)
            write_row(buffer, buffer, n, simd[storage_t](s.c[0]), simd[storage_t](s.value[0]), is_log, False)
            scatter_row(t[0], r, start, n, buffer, <storage_t>(-INFINITY if is_log else 0))
