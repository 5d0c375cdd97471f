# Columns: neighbouring rows side by side, one a lane. A tile of them is gathered into the cache element by element of the rows,
# so that memory is read in the order in which it lies, and the arithmetic is to the bit that of a row on its own.

cdef inline Py_ssize_t tile_elements(compute_t* tag) noexcept nogil:
    return TILE // 2 if compute_t is double else TILE


cdef inline simd[compute_t] strip_max(lane_buffer[compute_t] strip, Py_ssize_t n, simd[compute_t] m) noexcept nogil:
    """m raised to the maxima of n elements of every column."""
    cdef Py_ssize_t w = simd[compute_t].lanes(), i
    for i in range(n):
        m = vmax(strip.get(i * w), m)
    return m


cdef inline void clear_sums(compute_t* tag, wide[compute_t]* sums, Py_ssize_t strips, Py_ssize_t n) noexcept nogil:
    """Of those lanes of each strip that n terms have."""
    cdef Py_ssize_t w = simd[compute_t].lanes(), j, lane
    for j in range(strips):
        for lane in range(min(n, w)):
            sums[j * w + lane] = wide[compute_t]()


cdef inline void tile_stats(
    const task* t, compute_t* tag, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n, Py_ssize_t chunk, bint keep,
    batch_stats* s
) noexcept nogil:
    """Statistics of elements start .. start + n - 1 of `cols` columns, `chunk` elements in the cache at a time."""
    cdef Py_ssize_t w = simd[compute_t].lanes(), strips = (cols + w - 1) // w, plane = chunk * w, i, j, done, size
    cdef compute_t shifts[BATCH]
    cdef lane_buffer[compute_t] tile = lane_buffer[compute_t](scratch(SLOT_SOURCE))
    cdef lane_buffer[compute_t] c = lane_buffer[compute_t](<void*>shifts)
    cdef wide[compute_t]* sums = <wide[compute_t]*>scratch(SLOT_WIDE)
    cdef simd[compute_t] m[32]
    cdef simd[compute_t] count[32]
    for j in range(strips):
        m[j] = simd[compute_t](-INFINITY)
        count[j] = simd[compute_t](0.0)
    done = 0
    while done < n:
        # a few rows at a time, so that their maximum is taken while they are at hand
        i = done % chunk
        size = min(max(<Py_ssize_t>1, SMALL // 2 // (strips * w)), min(n - done, chunk - i))
        gather_tile(t[0], r, cols, start + done, size, plane, <compute_t*>tile.at(i * w).memory())
        for j in range(strips):
            m[j] = strip_max(tile.at(j * plane + i * w), size, m[j])
        done += size
    for j in range(strips):
        to_doubles(m[j], &s.m[j * w])
    for j in range(strips * w):
        s.c[j] = shift_for(t.operation, s.m[j])
        shifts[j] = <compute_t>s.c[j]
    clear_sums(tag, sums, strips, n)
    done = 0
    while done < n:
        size = min(chunk, n - done)
        if n > chunk:
            gather_tile(t[0], r, cols, start + done, size, plane, <compute_t*>tile.memory())
        for j in range(strips):
            for i from 0 <= i < size by BLOCK * w:
                strip_sum(tile.at(j * plane + i * w), min(BLOCK * w, size - i), m[j], c.get(j * w), keep, sums + j * w, count[j])
        done += size
    for j in range(strips):
        strip_totals(sums + j * w, n, &s.total[j * w])
        to_doubles(count[j], &s.count[j * w])


cdef inline void tile_output(
    const task* t, lane_buffer[compute_t] tile, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n, int kind,
    batch_stats* s
) noexcept nogil:
    """The outputs of a tile to `out`, or first into the place of its elements where they must be converted on the way."""
    cdef Py_ssize_t w = simd[compute_t].lanes(), strips = (cols + w - 1) // w, plane = n * w, i, j
    cdef compute_t c[BATCH]
    cdef compute_t v[BATCH]
    cdef lane_buffer[compute_t] vc = lane_buffer[compute_t](<void*>c), vv = lane_buffer[compute_t](<void*>v)
    for j in range(strips * w):
        c[j] = <compute_t>s.c[j]
        v[j] = <compute_t>s.value[j]
    if write_tile(t[0], r, cols, start, n, plane, <const compute_t*>tile.memory(), kind, <const compute_t*>&c[0], <const compute_t*>&v[0]):
        return
    for j in range(strips):
        for i in range(n):
            tile.put(j * plane + i * w, output_of(kind, tile.get(j * plane + i * w), vc.get(j * w), vv.get(j * w)))
    scatter_tile(
        t[0], r, cols, start, n, plane, <const compute_t*>tile.memory(), <compute_t>(-INFINITY if kind == OUT_LOG else 0))


cdef void run_tile(const task* t, compute_t* tag, Py_ssize_t r, Py_ssize_t cols) noexcept nogil:
    """`cols` columns that fit in the cache, from input to output."""
    cdef Py_ssize_t n = t.cols()
    cdef bint keep = t.operation == SOFTMAX
    cdef batch_stats s
    tile_stats(t, tag, r, cols, 0, n, n, keep, &s)
    finish(t.operation, t.out_code, &s, cols)
    if not t.has_out:
        put_reduced(t, r, cols, &s)
        return
    tile_output(
        t, lane_buffer[compute_t](scratch(SLOT_SOURCE)), r, cols, 0, n, OUT_SCALED if keep else OUT_LOG, &s)
