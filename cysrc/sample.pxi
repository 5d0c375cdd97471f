# sample: every row by itself (sample.hpp), where it lies or gathered. The noise of a row follows from its place in the result, which is contiguous.

cdef void run_sample(const task* t, storage_t* tag, const unsigned int* key, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t n = t.cols(), r, source_bytes = 0
    cdef size_t item = sizeof(double) if storage_t is double else sizeof(float)
    cdef char* memory
    cdef const storage_t* x
    cdef int64_t index
    if not t.direct:
        source_bytes = (n * item + 63) // 64 * 64
    memory = <char*>work_memory(source_bytes + sampler[storage_t].needs(n))
    if memory == NULL:
        (<task*>t).failed = 1
        return
    for r in range(first, last):
        x = source_row(t, tag, r, memory)
        index = t.kept.offset(r, OP_OUT) // <Py_ssize_t>sizeof(int64_t)
        index = sample_row(x, n, <const double*>t.row(OP_OPTIONS, r), key, index, memory + source_bytes)
        memcpy(t.row(OP_OUT, r), &index, sizeof(index))


cdef void launch_sample(const task* t, storage_t* tag, const unsigned int* key, int threads) noexcept nogil:
    cdef Py_ssize_t rows = t.rows(), each = max(<Py_ssize_t>1, min(rows // (4 * threads), PIECE // t.cols())), i
    for i in prange(pieces_of(rows, each), num_threads=threads, schedule="dynamic"):
        run_sample(t, tag, key, i * each, min(rows, (i + 1) * each))


cdef void dispatch_sample(const task* t, const unsigned int* key, int threads) noexcept nogil:
    if t.direct and t.x_code == CODE_F16:
        launch_sample(t, <f16*>NULL, key, threads)
    elif t.direct and t.x_code == CODE_BF16:
        launch_sample(t, <bf16*>NULL, key, threads)
    elif t.float64():
        launch_sample(t, <double*>NULL, key, threads)
    else:
        launch_sample(t, <float*>NULL, key, threads)


def sample(x, int x_code, out, unsigned long long axes, options, key, int threads):
    cdef operands o
    cdef task t
    cdef unsigned int words[4]
    cdef int i
    memset(o.held, 0, sizeof(o.held))
    t.operation, t.x_code, t.out_code = LOGSUMEXP, x_code, -1
    for i in range(4):
        words[i] = key[i]
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        take(&o, OP_OPTIONS, options, False)
        describe(&t, &o, axes)
        if t.rows() and t.cols():
            with nogil:
                dispatch_sample(&t, words, threads_for(&t, threads))
        if t.failed:
            raise MemoryError("dualsoft: no memory for a row to draw from; the result is incomplete")
    finally:
        release(&o)
