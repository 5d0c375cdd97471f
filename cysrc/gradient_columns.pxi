# Gradients of rows that lie side by side, or are so short that a register of them is worth more than a register of one: a tile of neighbouring
# rows, one a lane, whose arithmetic is to the bit that of a row on its own.

cdef enum:
    GRADIENT_TILE = 65536    # float32 elements of a tile of x, and of the tile beside it; half as many of float64
    APART = 5                # registers between the strips of a tile, at most 2560 bytes in all
    BESIDE = 3072            # bytes between the tiles
    SHORT = 48               # elements of a row up to which a lane takes it, wherever its elements lie


cdef inline bint are_lanes(const task* t) noexcept nogil:
    """Whether a gradient takes neighbouring rows side by side."""
    if t.operation < CROSS_ENTROPY_GRAD or t.kept.inner_shape() < 4 or t.reduced.ndim == 0:
        return False
    return t.cols() <= SHORT or fabs(<double>t.kept.inner_stride(OP_X)) < fabs(<double>t.reduced.inner_stride(OP_X))


cdef struct gradient_tile:
    # x behind the place of a segment, which a row may need for a running pair of its own, and what is read beside it
    void* x
    void* beside
    Py_ssize_t chunk        # elements in the cache at a time: whole blocks
    Py_ssize_t plane        # from one strip to the next, which begins in other sets of the cache


cdef inline void gather_gradient(const task* t, compute_t* tag, const gradient_tile* tile, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n) noexcept nogil:
    """Elements start .. start + n - 1. A result of softmax that is hidden is 0, and a scale belongs to the gradient alone."""
    cdef bint are_results = t.operation == SOFTMAX_GRAD
    cdef tile_source[compute_t] of
    of.op, of.code, of.is_scaled, of.hidden = OP_X, t.x_code, not are_results, <compute_t>(0 if are_results else -INFINITY)
    gather_tile_of(t[0], of, r, cols, start, n, tile.plane, <compute_t*>tile.x)
    if t.base[OP_SECOND] != NULL:
        of.op, of.code, of.is_scaled, of.hidden = OP_SECOND, t.second_code, False, <compute_t>0
        gather_tile_of(t[0], of, r, cols, start, n, tile.plane, <compute_t*>tile.beside)


cdef void sum_gradient_tile(
    const task* t, compute_t* tag, const gradient_tile* tile, Py_ssize_t r, Py_ssize_t cols, double* totals
) noexcept nogil:
    """The sum over each row that its gradients need, by segments in order."""
    cdef Py_ssize_t n = t.cols(), w = simd[compute_t].lanes(), strips = (cols + w - 1) // w, length = segment_length(tag)
    cdef Py_ssize_t segment, at, size, j
    cdef wide[compute_t]* sums = <wide[compute_t]*>scratch(SLOT_WIDE)
    cdef lane_buffer[compute_t] x = lane_buffer[compute_t](tile.x), beside_x = lane_buffer[compute_t](tile.beside)
    cdef double of_segment[BATCH]
    for j in range(cols):
        totals[j] = 0
    for segment from 0 <= segment < n by length:
        clear_sums(tag, sums, strips, min(length, n - segment))
        for at from segment <= at < min(n, segment + length) by tile.chunk:
            size = min(tile.chunk, min(n, segment + length) - at)
            gather_gradient(t, tag, tile, r, cols, at, size)
            for j in range(strips):
                strip_sum_beside(t.operation == SOFTMAX_GRAD, x.at(j * tile.plane), beside_x.at(j * tile.plane), size, sums + j * w)
        for j in range(strips):
            strip_totals(sums + j * w, min(length, n - segment), &of_segment[j * w])
        for j in range(cols):
            totals[j] += of_segment[j]


cdef void run_gradient_tile(const task* t, compute_t* tag, Py_ssize_t r, Py_ssize_t cols) noexcept nogil:
    """The gradients of rows r .. r + cols - 1 along the inner kept axis."""
    cdef Py_ssize_t n = t.cols(), w = simd[compute_t].lanes(), strips = (cols + w - 1) // w, start, size, j
    cdef Py_ssize_t elements = GRADIENT_TILE // 2 if compute_t is double else GRADIENT_TILE
    cdef gradient_tile tile
    cdef double totals[BATCH]
    cdef double at_label[BATCH]
    cdef int64_t labels[BATCH]
    cdef lane_gradients[compute_t] of[BATCH]
    cdef row_gradient g
    cdef bint sums = needs_sum(t)
    cdef lane_buffer[compute_t] x, beside_x
    cdef compute_t* to
    cdef compute_t ones[BATCH]
    tile.x = <char*>scratch(SLOT_SOURCE) + SEGMENT * sizeof(float)
    tile.beside = <char*>tile.x + GRADIENT_TILE * sizeof(float) + BESIDE
    tile.chunk = elements // (strips * w) // (BLOCK * w) * (BLOCK * w)
    tile.plane = (min(n, tile.chunk) + APART) * w
    x = lane_buffer[compute_t](tile.x)
    beside_x = lane_buffer[compute_t](tile.beside)
    for j in range(BATCH):
        ones[j] = 1
    if sums:
        sum_gradient_tile(t, tag, &tile, r, cols, totals)
    for j in range(cols):
        labels[j] = prepare(t, tag, r + j, totals[j] if sums else 0.0, &g)
        of[j // w].set(j % w, g)
        at_label[j] = g.w
    for j in range(cols, strips * w):
        of[j // w].set(j % w, g)
    for start from 0 <= start < n by tile.chunk:
        size = min(tile.chunk, n - start)
        if not sums or n > tile.chunk:
            gather_gradient(t, tag, &tile, r, cols, start, size)
        for j in range(strips):
            strip_gradient(kind_of(t), x.at(j * tile.plane), beside_x.at(j * tile.plane), size, of[j])
        for j in range(cols):
            if start <= labels[j] < start + size:
                to = <compute_t*>x.at(j // w * tile.plane + (labels[j] - start) * w).memory()
                to[j % w] = <compute_t>at_label[j]
        if not write_tile(t[0], r, cols, start, size, tile.plane, <const compute_t*>tile.x, OUT_SCALED, ones, ones):
            scatter_tile(t[0], r, cols, start, size, tile.plane, <const compute_t*>tile.x, <compute_t>0)
    if t.past_cache:
        stream_fence()


cdef void launch_gradient_tiles(const task* t, compute_t* tag, int threads) noexcept nogil:
    cdef Py_ssize_t inner = t.kept.inner_shape(), w = simd[compute_t].lanes(), cols = BATCH, across, i
    cdef Py_ssize_t elements = GRADIENT_TILE // 2 if compute_t is double else GRADIENT_TILE
    # narrower tiles where rows are long, so that x is read once if it can be, and where there are few
    while cols > w and inner < cols * threads:
        cols //= 2
    across = pieces_of(inner, cols)
    for i in prange(t.rows() // inner * across, num_threads=threads, schedule="dynamic"):
        if has_memory(t):
            run_gradient_tile(
                t, tag, i // across * inner + i % across * cols, min(cols, inner - i % across * cols))
