# Columns: neighbouring rows side by side, one a lane. A tile of them is gathered into the cache element by element of the rows,
# so that memory is read in the order in which it lies, and the arithmetic is to the bit that of a row on its own.

cdef inline Py_ssize_t tile_elements(compute_t* tag) noexcept nogil:
    return TILE // 2 if compute_t is double else TILE


cdef inline void strip_max(lane_buffer[compute_t] tile, Py_ssize_t n, Py_ssize_t pitch, Py_ssize_t strips, lane_buffer[compute_t] m) noexcept nogil:
    """Raises m to the maxima of n elements of every column."""
    cdef Py_ssize_t w = simd[compute_t].lanes(), i, j
    for i in range(n):
        for j in range(strips):
            m.put(j * w, vmax(tile.get(i * pitch + j * w), m.get(j * w)))


cdef inline void tile_stats(
    const task* t, compute_t* tag, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n, Py_ssize_t chunk, bint keep,
    batch_stats* s
) noexcept nogil:
    """Statistics of elements start .. start + n - 1 of `cols` columns, `chunk` elements in the cache at a time."""
    cdef Py_ssize_t w = simd[compute_t].lanes(), strips = (cols + w - 1) // w, pitch = strips * w, i, j, done, size, part
    cdef compute_t lanes[64]
    cdef compute_t shifts[64]
    cdef lane_buffer[compute_t] tile = lane_buffer[compute_t](scratch(SLOT_SOURCE, (chunk * pitch) * sizeof(compute_t)))
    cdef lane_buffer[compute_t] m = lane_buffer[compute_t](<void*>lanes), c = lane_buffer[compute_t](<void*>shifts)
    cdef wide[compute_t]* sums = <wide[compute_t]*>scratch(SLOT_WIDE, strips * w * sizeof(wide[compute_t]))
    cdef simd[compute_t] vm, vc
    cdef simd[compute_t] count[32]
    for j in range(strips):
        m.put(j * w, simd[compute_t](-INFINITY))
    done = 0
    while done < n:
        size = min(chunk, n - done)
        gather_tile(t[0], r, cols, start + done, size, pitch, <compute_t*>tile.memory())
        strip_max(tile, size, pitch, strips, m)
        done += size
    for j in range(pitch):
        s.m[j] = <double>lanes[j]
        s.c[j] = shift_for(t.operation, s.m[j])
        shifts[j] = <compute_t>s.c[j]
    for j in range(strips * w):
        sums[j] = wide[compute_t]()
    for j in range(strips):
        count[j] = simd[compute_t](0.0)
    done = 0
    while done < n:
        size = min(chunk, n - done)
        if n > chunk:
            gather_tile(t[0], r, cols, start + done, size, pitch, <compute_t*>tile.memory())
        for j in range(strips):
            vm = m.get(j * w)
            vc = c.get(j * w)
            i = 0
            while i < size:
                part = min(BLOCK * w, size - i)
                strip_sum(tile.at(i * pitch + j * w), part, pitch, vm, vc, keep, sums + j * w, count[j])
                i += part
        done += size
    for j in range(strips):
        strip_totals(sums + j * w, &s.total[j * w])
        to_doubles(count[j], &s.count[j * w])


cdef inline void tile_output(
    const task* t, lane_buffer[compute_t] tile, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n, int kind,
    batch_stats* s
) noexcept nogil:
    """The outputs of a tile in the place of its elements, and on to `out`."""
    cdef Py_ssize_t w = simd[compute_t].lanes(), strips = (cols + w - 1) // w, pitch = strips * w, i, j
    cdef compute_t c[64]
    cdef compute_t v[64]
    cdef lane_buffer[compute_t] vc = lane_buffer[compute_t](<void*>c), vv = lane_buffer[compute_t](<void*>v)
    for j in range(pitch):
        c[j] = <compute_t>s.c[j]
        v[j] = <compute_t>s.value[j]
    for i in range(n):
        for j from 0 <= j < pitch by w:
            tile.put(i * pitch + j, output_of(kind, tile.get(i * pitch + j), vc.get(j), vv.get(j)))
    scatter_tile(
        t[0], r, cols, start, n, pitch, <compute_t*>tile.memory(), <compute_t>(-INFINITY if kind == OUT_LOG else 0))


cdef void run_tile(const task* t, compute_t* tag, Py_ssize_t r, Py_ssize_t cols) noexcept nogil:
    """`cols` columns that fit in the cache, from input to output."""
    cdef Py_ssize_t n = t.cols()
    cdef bint keep = t.operation == SOFTMAX
    cdef batch_stats s
    tile_stats(t, tag, r, cols, 0, n, n, keep, &s)
    finish(t.operation, &s, cols)
    if not t.has_out:
        put_reduced(t, r, cols, &s)
        return
    tile_output(
        t, lane_buffer[compute_t](scratch(SLOT_SOURCE, 0)), r, cols, 0, n, OUT_SCALED if keep else OUT_LOG, &s)
