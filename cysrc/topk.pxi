# softmax_topk: the statistics of logsumexp, and while a segment's data is in the cache the k largest of it (select.hpp).
#
# A unit is one segment of one row; most rows have one. A row of several has a list of at most k elements from each, which are merged in the order of
# the segments: neither the lists nor their merger depends on who found them.

cdef enum:
    LISTED = 1 << 19     # elements of the lists of segments that wait at a time, unless one row has more

cdef struct topk_plan:
    segments g
    Py_ssize_t k
    Py_ssize_t kept          # elements of a segment's list at most
    Py_ssize_t first         # the first of the rows whose lists are kept
    Py_ssize_t out_step, index_step
    int lse_code
    bint scaled
    char* key                # of unit u at [(u - first * each) * kept], and so on
    Py_ssize_t* index
    Py_ssize_t* count


cdef inline void put_topk_row(
    const task* t, storage_t* tag, const topk_plan* p, Py_ssize_t r, batch_stats* s, topk_list[storage_t]* best
) noexcept nogil:
    """The outputs of one row from its statistics and its elements in order."""
    cdef topk_row row
    row.m = s.m[0]
    row.d = s.total[0] * exp_one(s.c[0] - s.m[0]) + s.count[0] if s.m[0] - s.m[0] == 0 else 1
    row.is_nan = s.total[0] != s.total[0]
    finish(LOGSUMEXP, p.lse_code, s, 1)
    if p.lse_code == CODE_F64:
        refine(t, r, 1, s)
    put_values(t[0], OP_LSE, p.lse_code, r, 1, s.value)
    best.put(t[0], r, p.out_step, p.index_step, row)


cdef inline const storage_t* topk_source(
    const task* t, storage_t* tag, const topk_plan* p, Py_ssize_t unit, void* buffer, Py_ssize_t* n
) noexcept nogil:
    cdef Py_ssize_t r = unit // p.g.each, i = unit % p.g.each
    n[0] = min(p.g.length, t.cols() - i * p.g.length)
    return source_segment(t, tag, &p.g, r, i, buffer)


cdef void run_topk(const task* t, storage_t* tag, const topk_plan* p, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Units first .. last - 1: each is read for its maximum while the one before is summed."""
    cdef Py_ssize_t w = simd[storage_t].lanes(), unit, n, r, row_bytes, block_bytes, at, length = min(p.g.length, t.cols())
    cdef size_t item = sizeof(double) if storage_t is double else sizeof(float), selecting
    cdef char* blocks = <char*>scratch(SLOT_BLOCK_MAX)
    cdef char* source = <char*>scratch(SLOT_SOURCE)
    cdef char* memory
    cdef char* keys
    cdef const storage_t* x
    cdef next_segment following
    cdef batch_stats s
    cdef topk_list[storage_t] best
    row_bytes = (length + w) * item
    block_bytes = (length // BLOCK + 2 * w) * item
    selecting = (topk_list[storage_t].needs(p.k, length) + 63) // 64 * 64
    memory = <char*>work_memory(selecting + (row_bytes + block_bytes if p.scaled else 0))
    if memory == NULL:
        (<task*>t).failed = 1
        return
    best = topk_list[storage_t](memory, p.k, length)
    keys = memory + selecting
    following.x = topk_source(t, tag, p, first, source + first % 2 * row_bytes, &following.n)
    following.blocks = blocks + first % 2 * block_bytes
    following.m = segment_max(
        <const storage_t*>following.x, following.n, lane_buffer[storage_t](following.blocks), 0, simd[storage_t](-INFINITY))
    for unit in range(first, last):
        x = <const storage_t*>following.x
        n = following.n
        r = unit // p.g.each
        at = unit % p.g.each * p.g.length
        s.m[0] = following.m
        s.c[0] = shift_for(LOGSUMEXP, following.m)
        best.clear()
        if p.scaled:
            if storage_t is float or storage_t is double:
                gather_keys(t[0], r, at, n, <storage_t*>keys)
                segment_max(<const storage_t*>keys, n, lane_buffer[storage_t](<void*>(keys + row_bytes)), 0, simd[storage_t](-INFINITY))
                best.scan_row(<const storage_t*>keys, n, lane_buffer[storage_t](<void*>(keys + row_bytes)), at)
        else:
            best.scan_row(x, n, lane_buffer[storage_t](following.blocks), at)
        best.finish()
        if unit + 1 < last:
            following.x = topk_source(t, tag, p, unit + 1, source + (unit + 1) % 2 * row_bytes, &following.n)
            following.blocks = blocks + (unit + 1) % 2 * block_bytes
        s.total[0] = segment_sum(
            x, n, s.m[0], s.c[0], lane_buffer[storage_t](), False, lane_buffer[storage_t](<void*>(blocks + unit % 2 * block_bytes)),
            &s.count[0], &following if unit + 1 < last else NULL, NULL, lane_buffer[storage_t](), 0)
        if p.g.each == 1:
            put_topk_row(t, tag, p, r, &s, &best)
            continue
        at = unit - p.first * p.g.each
        p.g.m[at] = s.m[0]
        p.g.total[at] = s.total[0]
        p.g.count[at] = s.count[0]
        p.count[at] = best.count
        best.store_list(p.key + at * p.kept * item, p.index + at * p.kept)


cdef void merge_topk(const task* t, storage_t* tag, const topk_plan* p, Py_ssize_t r) noexcept nogil:
    """The outputs of a row of several segments."""
    cdef Py_ssize_t u = (r - p.first) * p.g.each, i, each = p.g.each
    cdef size_t item = sizeof(double) if storage_t is double else sizeof(float)
    cdef void* memory = work_memory(topk_list[storage_t].needs(p.k, t.cols()))
    cdef topk_list[storage_t] best
    cdef batch_stats s
    if memory == NULL:
        (<task*>t).failed = 1
        return
    best = topk_list[storage_t](memory, p.k, t.cols())
    for i in range(u, u + each):
        best.offer_list(p.key + i * p.kept * item, p.index + i * p.kept, p.count[i])
    best.finish()
    merge_segments(t, &p.g, r - p.first, &s, 0)
    put_topk_row(t, tag, p, r, &s, &best)


cdef int launch_long_topk(const task* t, storage_t* tag, topk_plan* p, int threads) noexcept nogil:
    """Rows of several segments, as many rows at a time as their lists may take memory; -1 without it."""
    cdef Py_ssize_t rows = t.rows(), each = p.g.each, group, first, size, units, i, span, pieces
    cdef size_t item = sizeof(double) if storage_t is double else sizeof(float)
    cdef char* memory
    group = max(<Py_ssize_t>1, min(rows, LISTED // (each * max(<Py_ssize_t>1, p.kept))))
    units = group * each
    memory = <char*>malloc(units * ((sizeof(Py_ssize_t) + item) * p.kept + 3 * sizeof(double) + sizeof(Py_ssize_t)))
    if memory == NULL:
        return -1
    p.g.m = <double*>memory
    p.g.total = p.g.m + units
    p.g.count = p.g.total + units
    p.count = <Py_ssize_t*>(p.g.count + units)
    p.index = p.count + units
    p.key = <char*>(p.index + units * p.kept)
    for first from 0 <= first < rows by group:
        p.first = first
        size = min(group, rows - first)
        units = size * each
        span = max(<Py_ssize_t>1, min(<Py_ssize_t>8, units // (4 * threads)))
        pieces = pieces_of(units, span)
        for i in prange(pieces, num_threads=threads, schedule="dynamic"):
            if has_memory(t):
                run_topk(t, tag, p, first * each + i * span, first * each + min(units, (i + 1) * span))
        if t.failed:
            break
        for i in prange(size, num_threads=threads, schedule="dynamic"):
            merge_topk(t, tag, p, first + i)
    free(memory)
    return 0


cdef int launch_topk(const task* t, storage_t* tag, topk_plan* p, int threads) noexcept nogil:
    cdef Py_ssize_t rows = t.rows(), each = rows_of_piece(rows, t.cols(), threads), pieces, i
    p.g.length = SEGMENT // 2 if storage_t is double else SEGMENT
    p.g.each = pieces_of(t.cols(), p.g.length)
    p.g.group = 1
    p.g.groups = 1
    p.kept = min(p.k, p.g.length)
    if p.g.each > 1:
        return launch_long_topk(t, tag, p, threads)
    pieces = pieces_of(rows, each)
    for i in prange(pieces, num_threads=threads, schedule="dynamic"):
        if has_memory(t):
            run_topk(t, tag, p, i * each, min(rows, (i + 1) * each))
    return 0


cdef int dispatch_topk(const task* t, topk_plan* p, int threads) noexcept nogil:
    if t.direct:
        if t.x_code == CODE_F32:
            return launch_topk(t, <float*>NULL, p, threads)
        if t.x_code == CODE_F64:
            return launch_topk(t, <double*>NULL, p, threads)
        if t.x_code == CODE_F16:
            return launch_topk(t, <f16*>NULL, p, threads)
        return launch_topk(t, <bf16*>NULL, p, threads)
    if t.float64():
        return launch_topk(t, <double*>NULL, p, threads)
    return launch_topk(t, <float*>NULL, p, threads)


def softmax_topk(
    x, int x_code, out, int out_code, indices, lse, int lse_code, Py_ssize_t k, unsigned long long axes, scale, where, int threads
):
    cdef operands o
    cdef task t
    cdef topk_plan p
    cdef int axis = 0, failed = 0
    memset(o.held, 0, sizeof(o.held))
    memset(&p, 0, sizeof(p))
    t.operation, t.x_code, t.out_code = LOGSUMEXP, x_code, out_code
    p.k, p.lse_code = k, lse_code
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        take(&o, OP_INDICES, indices, True)
        take(&o, OP_LSE, lse, True)
        take(&o, OP_WHERE, where, False)
        if isinstance(scale, float):
            t.scale = scale
            t.has_scale = t.scale != 1
        else:
            take(&o, OP_SCALE, scale, False)
        while not axes >> axis & 1:
            axis += 1
        p.out_step = o.view[OP_OUT].strides[axis]
        p.index_step = o.view[OP_INDICES].strides[axis]
        describe(&t, &o, axes)
        p.scaled = t.has_scale or t.base[OP_SCALE] != NULL
        if t.rows() and t.cols():
            with nogil:
                failed = dispatch_topk(&t, &p, threads_for(&t, threads))
        if failed or t.failed:
            raise MemoryError("dualsoft: no memory for the lists of the largest elements; the results are incomplete")
    finally:
        release(&o)
