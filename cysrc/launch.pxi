# Which way a task runs, and its pieces handed to threads.

cdef inline int threads_for(const task* t, int threads) noexcept nogil:
    if t.rows() * t.cols() < MIN_WORK or in_parallel():
        return 1
    return threads if threads > 0 else openmp_threads()


cdef inline Py_ssize_t pieces_of(Py_ssize_t total, Py_ssize_t size) noexcept nogil:
    return (total + size - 1) // size


cdef inline bint has_memory(const task* t) noexcept nogil:
    """Whether this thread has its scratch memory; asked before a piece of work, so that none is left half done."""
    if not scratch_ready():
        (<task*>t).failed = 1
        return False
    return True


cdef inline void run_piece(const task* t, storage_t* tag, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    if not has_memory(t):
        return
    if t.cols() <= BLOCK * simd[storage_t].lanes():
        run_short_rows(t, tag, first, last)
    else:
        run_rows(t, tag, first, last)
    if t.past_cache:
        stream_fence()


cdef inline Py_ssize_t rows_of_piece(Py_ssize_t rows, Py_ssize_t cols, int threads) noexcept nogil:
    """As many pieces for each thread, at most 8, so that threads of unequal speed end together, and of 8 rows at least: a piece begins with the
    maximum of its first row, while there is nothing else to do.
    """
    cdef Py_ssize_t pieces = threads * min(max(rows // (8 * threads), <Py_ssize_t>1), <Py_ssize_t>8)
    return max(max(<Py_ssize_t>1, PIECE // cols), pieces_of(rows, pieces))


cdef void launch_rows(const task* t, storage_t* tag, int threads) noexcept nogil:
    # short rows go in whole batches
    cdef Py_ssize_t rows = t.rows(), each = rows_of_piece(rows, t.cols(), threads), pieces, i
    if each > 16:
        each = each // 16 * 16
    pieces = pieces_of(rows, each)
    if threads == 1 or pieces == 1:
        run_piece(t, tag, 0, rows)
        return
    for i in prange(pieces, num_threads=threads, schedule="dynamic"):
        run_piece(t, tag, i * each, min(rows, (i + 1) * each))


cdef inline void run_tile_at(const task* t, compute_t* tag, Py_ssize_t outer, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t inner = t.kept.inner_shape(), first = max(<Py_ssize_t>0, start), last = min(inner, stop)
    if first < last and has_memory(t):
        run_tile(t, tag, outer * inner + first, last - first)


cdef void launch_tiles(const task* t, compute_t* tag, Py_ssize_t cols, int threads) noexcept nogil:
    cdef Py_ssize_t inner = t.kept.inner_shape(), shift = tile_shift(t[0]), across = pieces_of(inner + shift, cols)
    cdef Py_ssize_t tiles = t.rows() // inner * across, i
    if threads == 1 or tiles == 1:
        for i in range(tiles):
            run_tile_at(t, tag, i // across, i % across * cols - shift, (i % across + 1) * cols - shift)
        return
    for i in prange(tiles, num_threads=threads, schedule="dynamic"):
        run_tile_at(t, tag, i // across, i % across * cols - shift, (i % across + 1) * cols - shift)


cdef int launch_segments(const task* t, storage_t* tag, bint columns, int threads) noexcept nogil:
    """The two phases; -1 when there is no memory for the statistics."""
    cdef segments g
    cdef Py_ssize_t rows = t.rows(), tiles, i, units, pieces, length, span
    cdef double* memory = NULL
    g.length = SEGMENT // 2 if storage_t is double else SEGMENT
    g.each = pieces_of(t.cols(), g.length)
    g.group = BATCH if columns else 1
    g.groups = pieces_of(t.kept.inner_shape(), g.group) if columns else 1
    tiles = rows // t.kept.inner_shape() * g.groups if columns else rows
    if t.operation != NORMALIZE:
        memory = <double*>malloc((4 * g.each + 2) * rows * sizeof(double))
        if memory == NULL:
            return -1
        g.m = memory
        g.total = g.m + rows * g.each
        g.count = g.total + rows * g.each
        g.linear = g.count + rows * g.each
        g.c = g.linear + rows * g.each
        g.value = g.c + rows
        span = 1 if columns else max(<Py_ssize_t>1, min(<Py_ssize_t>8, rows * g.each // (4 * threads)))
        pieces = pieces_of(g.each, span)
        units = tiles * pieces
        for i in prange(units, num_threads=threads, schedule="dynamic"):
            if has_memory(t):
                run_segment(t, tag, &g, i, pieces, span)
        if has_memory(t):
            merge_rows(t, &g, 0, rows)
    if t.has_out:
        length = (TILE // 2 if storage_t is double else TILE) // g.group
        pieces = pieces_of(t.cols(), length)
        units = tiles * pieces
        for i in prange(units, num_threads=threads, schedule="dynamic", chunksize=max(<Py_ssize_t>1, PIECE // t.cols())):
            if has_memory(t):
                run_output(t, tag, &g, i, pieces, length)
    free(memory)
    return 0


cdef void launch_cumulative(const task* t, int threads) noexcept nogil:
    cdef Py_ssize_t rows = t.rows(), each = max(<Py_ssize_t>1, PIECE // max(<Py_ssize_t>1, t.cols()) // SIDE) * SIDE, i
    for i in prange(pieces_of(rows, each), num_threads=threads, schedule="dynamic"):
        run_cumulative(t, i * each, min(rows, (i + 1) * each))


cdef int launch(task* t, storage_t* tag, int threads) noexcept nogil:
    cdef bint columns = t.columns()
    cdef Py_ssize_t w = simd[storage_t].lanes(), n = t.cols(), rows = t.rows(), i, each
    cdef Py_ssize_t segment = SEGMENT // 2 if storage_t is double else SEGMENT
    if t.operation >= CROSS_ENTROPY_GRAD:
        return launch_gradient(t, tag, threads)
    if t.operation == CROSS_ENTROPY and t.base[OP_SECOND] != NULL:
        launch_soft(t, tag, threads)
        return 0
    if storage_t is float or storage_t is double:
        if t.base[OP_WEIGHTS] != NULL:
            each = max(<Py_ssize_t>1, PIECE // n)
            for i in prange(pieces_of(rows, each), num_threads=threads, schedule="dynamic"):
                if has_memory(t):
                    run_weighted(t, tag, i * each, min(rows, (i + 1) * each))
            return 0
        if columns and t.operation != NORMALIZE and n * w <= tile_elements(tag):
            each = min(<Py_ssize_t>BATCH, tile_elements(tag) // n // w * w)
            launch_tiles(t, tag, each, threads)
            return 0
    if columns or n > segment or t.operation == NORMALIZE:
        return launch_segments(t, tag, columns, threads)
    launch_rows(t, tag, threads)
    return 0


cdef inline bint are_few(const task* t) noexcept nogil:
    """Whether rows have so few registers that several are written together (`few_output`), in whole lines."""
    cdef Py_ssize_t lanes = simd[double].lanes() if t.x_code == CODE_F64 else simd[float].lanes()
    return (t.operation == SOFTMAX or t.operation == LOG_SOFTMAX) and t.direct and t.cols() <= GROUP * lanes


cdef int run(task* t, int threads) except -1 nogil:
    cdef int failed
    if t.rows() == 0 or (t.cols() == 0 and not t.initial):
        return 0
    threads = threads_for(t, threads)
    if t.operation == CUMULATIVE:
        launch_cumulative(t, threads)
        return 0
    if not t.columns() and t.cols() * item_size(t.out_code) < LONG_LINE and not are_few(t):
        t.past_cache = False
    if are_lanes(t):
        t.direct = False        # lanes hold what a register computes with, whatever the storage
    if t.direct and not t.columns():
        if t.x_code == CODE_F32:
            failed = launch(t, <float*>NULL, threads)
        elif t.x_code == CODE_F64:
            failed = launch(t, <double*>NULL, threads)
        elif t.x_code == CODE_F16:
            failed = launch(t, <f16*>NULL, threads)
        else:
            failed = launch(t, <bf16*>NULL, threads)
    elif t.float64():
        failed = launch(t, <double*>NULL, threads)
    else:
        failed = launch(t, <float*>NULL, threads)
    if failed or t.failed:
        with gil:
            raise MemoryError("dualsoft: no memory for the scratch of a thread, or for the statistics of row segments; `out` is incomplete")
    return 0
