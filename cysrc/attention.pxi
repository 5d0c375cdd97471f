# The interface of attention: buffers in, task out. The work is in schedule.hpp and below.

cdef struct attention_buffers:
    Py_buffer view[18]
    int held[18]

cdef enum:
    BUFFER_LENGTHS = 10, BUFFER_OFFSETS, BUFFER_SINKS, BUFFER_SLOPES, BUFFER_Q_STARTS, BUFFER_K_STARTS, BUFFER_PAGES, BUFFERS


cdef int hold(attention_buffers* b, int which, object array, bint writable) except -1:
    if array is not None:
        PyObject_GetBuffer(array, &b.view[which], PyBUF_STRIDES | (PyBUF_WRITABLE if writable else 0))
        b.held[which] = True
    return 0


cdef inline void* contents(attention_buffers* b, int which) noexcept:
    return b.view[which].buf if b.held[which] else NULL


cdef void place(attention_task* t, attention_buffers* b, int op, int inner) noexcept:
    """Pointer and strides of an operand whose last `inner` + 1 axes are head, row and (with 2) element."""
    cdef Py_buffer* view = &b.view[op]
    cdef int n = view.ndim
    t.base[op] = <char*>view.buf
    t.head[op] = view.strides[n - inner - 1]
    t.row[op] = view.strides[n - inner]
    t.item[op] = view.strides[n - 1] if inner == 2 else 0


cdef void describe_attention(attention_task* t, attention_buffers* b) noexcept:
    cdef int op, i, axes = b.view[AT_Q].ndim - 3
    cdef Py_ssize_t extent
    for op in range(AT_OPERANDS):
        if b.held[op]:
            place(t, b, op, 1 if op == AT_LSE or op == AT_M or op == AT_D else 2)
    t.queries, t.dim = b.view[AT_Q].shape[axes + 1], b.view[AT_Q].shape[axes + 2]
    i = b.view[AT_K].ndim
    t.heads_k, t.keys = b.view[AT_K].shape[i - 3], b.view[AT_K].shape[i - 2]
    t.dim_v = b.view[AT_V].shape[i - 1]
    t.group = b.view[AT_Q].shape[axes] // max(<Py_ssize_t>1, t.heads_k)
    t.batch_axes = axes
    for i in range(axes):
        extent = b.view[AT_Q].shape[i]
        t.batch_shape[i] = extent
        t.sequences *= extent
        for op in range(AT_OPERANDS):
            t.batch_stride[i][op] = b.view[op].strides[i] if b.held[op] else 0
    t.lengths, t.offsets = <const int64_t*>contents(b, BUFFER_LENGTHS), <const int64_t*>contents(b, BUFFER_OFFSETS)
    t.q_starts, t.k_starts = <const int64_t*>contents(b, BUFFER_Q_STARTS), <const int64_t*>contents(b, BUFFER_K_STARTS)
    t.sinks, t.slopes = <const double*>contents(b, BUFFER_SINKS), <const double*>contents(b, BUFFER_SLOPES)
    t.pages = <const int64_t*>contents(b, BUFFER_PAGES)
    if t.q_starts != NULL:
        t.sequences = b.view[BUFFER_Q_STARTS].shape[0] - 1
    if t.pages != NULL:
        t.pages_each = b.view[BUFFER_PAGES].shape[1]
        t.page_size = t.keys
        t.keys *= t.pages_each
        for op in range(AT_K, AT_V + 1):
            t.page_stride[op] = b.view[op].strides[0]
            t.batch_stride[0][op] = 0


def attention(
    q, int q_code, k, int k_code, v, int v_code, out, int out_code, lse, m, d, double scale, double softcap, int64_t left, int64_t right, lengths,
    offsets, mask, bias, int bias_code, sinks, slopes, block_mask, Py_ssize_t block_q, Py_ssize_t block_k, q_starts, k_starts, pages, int threads
):
    cdef attention_buffers b
    cdef attention_task t
    cdef bint done
    cdef int which
    memset(b.held, 0, sizeof(b.held))
    t.code[AT_Q], t.code[AT_K], t.code[AT_V], t.code[AT_OUT], t.code[AT_BIAS] = q_code, k_code, v_code, out_code, bias_code
    t.scale, t.softcap, t.left, t.right, t.block_q, t.block_k = scale, softcap, left, right, block_q, block_k
    try:
        hold(&b, AT_Q, q, False)
        hold(&b, AT_K, k, False)
        hold(&b, AT_V, v, False)
        hold(&b, AT_OUT, out, True)
        hold(&b, AT_LSE, lse, True)
        hold(&b, AT_M, m, True)
        hold(&b, AT_D, d, True)
        hold(&b, AT_MASK, mask, False)
        hold(&b, AT_BIAS, bias, False)
        hold(&b, AT_BLOCK_MASK, block_mask, False)
        hold(&b, BUFFER_LENGTHS, lengths, False)
        hold(&b, BUFFER_OFFSETS, offsets, False)
        hold(&b, BUFFER_SINKS, sinks, False)
        hold(&b, BUFFER_SLOPES, slopes, False)
        hold(&b, BUFFER_Q_STARTS, q_starts, False)
        hold(&b, BUFFER_K_STARTS, k_starts, False)
        hold(&b, BUFFER_PAGES, pages, False)
        describe_attention(&t, &b)
        with nogil:
            if in_parallel():
                threads = 1
            elif threads <= 0:
                threads = openmp_threads()
            if out_code == CODE_F64:
                done = run_attention[double](t, threads)
            else:
                done = run_attention[float](t, threads)
        if not done:
            raise MemoryError("dualsoft: no memory for a thread's tiles, or for partial results; `out` is incomplete")
    finally:
        for which in range(BUFFERS):
            if b.held[which]:
                PyBuffer_Release(&b.view[which])


def fma_ceiling(int code, int threads):
    """GFLOP/s of multiply-adds in registers, two flops each; 0 where the level has none for the dtype."""
    cdef double flops, best = 0
    cdef int i
    cdef double start
    threads = threads if threads > 0 else openmp_threads()
    for i in range(5):
        start = perf_counter()
        if code == CODE_F64:
            flops = multiply_add_flops[lane_arithmetic[double]](2000000, threads)
        elif code == CODE_BF16:
            flops = pair_flops(2000000, threads)
        else:
            flops = multiply_add_flops[lane_arithmetic[float]](2000000, threads)
        best = max(best, flops / (perf_counter() - start) / 1e9)
    return best
