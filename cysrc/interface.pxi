# The functions of the module: buffers in, task out. Their contract is dualsoft/_simd.pyi.

F32 = CODE_F32
F64 = CODE_F64
F16 = CODE_F16
BF16 = CODE_BF16
BOOL = CODE_BOOL
I8 = CODE_I8
U8 = CODE_U8
I16 = CODE_I16
U16 = CODE_U16
I32 = CODE_I32
U32 = CODE_U32
I64 = CODE_I64
U64 = CODE_U64
SWAPPED = CODE_SWAPPED
LEVEL = DS_LEVEL.decode()
OPENMP = bool(HAS_OPENMP)


cdef struct operands:
    Py_buffer view[8]
    bint held[8]


cdef int take(operands* o, int op, object array, bint writable) except -1:
    if array is not None:
        PyObject_GetBuffer(array, &o.view[op], PyBUF_STRIDES | (PyBUF_WRITABLE if writable else 0))
        o.held[op] = True
    return 0


cdef void release(operands* o) noexcept:
    for op in range(OPERANDS):
        if o.held[op]:
            PyBuffer_Release(&o.view[op])


cdef void describe(task* t, operands* o, Py_ssize_t axes) noexcept:
    """Base pointers and strides; an axis of length 1 does not move."""
    cdef Py_ssize_t strides[8]
    cdef int i, op
    for op in range(OPERANDS):
        if o.held[op]:
            t.set(op, o.view[op].buf)
    for i in range(o.view[OP_X].ndim):
        for op in range(OPERANDS):
            strides[op] = o.view[op].strides[i] if o.held[op] and o.view[op].shape[i] != 1 else 0
        t.add_axis(axes >> i & 1, o.view[OP_X].shape[i], strides)
    t.finish()


cdef int set_scale(task* t, operands* o, object scale) except -1:
    if isinstance(scale, float):
        t.scale = scale
        t.has_scale = t.scale != 1
    else:
        take(o, OP_SCALE, scale, False)
    return 0


def lanes(int code):
    """Compute lanes of one register for a dtype."""
    return simd[double].lanes() if code != CODE_F32 and code != CODE_F16 and code != CODE_BF16 else simd[float].lanes()


def max_threads():
    """OpenMP's own number of threads."""
    return openmp_threads()


def pause_threads():
    """Give OpenMP's threads back; the next call starts new ones."""
    openmp_pause()


def softmax(x, int x_code, out, int out_code, Py_ssize_t axes, bint log, scale, where, int threads):
    cdef operands o
    cdef task t
    for op in range(OPERANDS):
        o.held[op] = False
    t.operation = LOG_SOFTMAX if log else SOFTMAX
    t.x_code, t.out_code, t.has_out = x_code, out_code, True
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        take(&o, OP_WHERE, where, False)
        set_scale(&t, &o, scale)
        t.past_cache = o.view[OP_OUT].len > stream_threshold()
        describe(&t, &o, axes)
        with nogil:
            run(&t, threads)
    finally:
        release(&o)


def normalize(x, int x_code, out, int out_code, m, rest, Py_ssize_t axes, scale, where, int threads):
    cdef operands o
    cdef task t
    for op in range(OPERANDS):
        o.held[op] = False
    t.operation = NORMALIZE
    t.x_code, t.out_code, t.has_out = x_code, out_code, True
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        take(&o, OP_WHERE, where, False)
        take(&o, OP_M, m, False)
        take(&o, OP_REST, rest, False)
        set_scale(&t, &o, scale)
        t.past_cache = o.view[OP_OUT].len > stream_threshold()
        describe(&t, &o, axes)
        with nogil:
            run(&t, threads)
    finally:
        release(&o)


def logsumexp(x, int x_code, out, sign, int out_code, Py_ssize_t axes, scale, where, b, int b_code, int threads):
    cdef operands o
    cdef task t
    for op in range(OPERANDS):
        o.held[op] = False
    t.operation = LOGSUMEXP
    t.x_code, t.out_code, t.weights_code = x_code, out_code, b_code
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        take(&o, OP_SIGN, sign, True)
        take(&o, OP_WHERE, where, False)
        take(&o, OP_WEIGHTS, b, False)
        set_scale(&t, &o, scale)
        describe(&t, &o, axes)
        with nogil:
            run(&t, threads)
    finally:
        release(&o)


def state(x, int x_code, m, rest, Py_ssize_t axes, scale, where, int threads):
    cdef operands o
    cdef task t
    for op in range(OPERANDS):
        o.held[op] = False
    t.operation = STATE
    t.x_code, t.out_code = x_code, -1
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_M, m, True)
        take(&o, OP_REST, rest, True)
        take(&o, OP_WHERE, where, False)
        set_scale(&t, &o, scale)
        describe(&t, &o, axes)
        with nogil:
            run(&t, threads)
    finally:
        release(&o)


def cumulative_logsumexp(x, int x_code, out, int out_code, int axis, bint initial, int threads):
    cdef operands o
    cdef task t
    cdef Py_ssize_t out_stride, each, i, pieces, rows
    for op in range(OPERANDS):
        o.held[op] = False
    t.operation = LOGSUMEXP
    t.x_code, t.out_code = x_code, out_code
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        out_stride = o.view[OP_OUT].strides[axis]
        describe(&t, &o, <Py_ssize_t>1 << axis)
        rows = t.rows()
        if rows == 0 or (t.cols() == 0 and not initial):
            return
        threads = threads_for(&t, threads)
        each = max(<Py_ssize_t>1, PIECE // max(<Py_ssize_t>1, t.cols()) // SIDE) * SIDE
        pieces = pieces_of(rows, each)
        with nogil:
            for i in prange(pieces, num_threads=threads, schedule="dynamic"):
                run_cumulative(&t, out_stride, initial, i * each, min(rows, (i + 1) * each))
    finally:
        release(&o)


cdef void exp_all(const compute_t* x, compute_t* out, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, w = simd[compute_t].lanes()
    for i from 0 <= i < n by w:
        store_partial(out + i, exp(load_partial(x + i, min(w, n - i))), min(w, n - i))


def exp_array(x, out, int code):
    """The kernels' exp of a contiguous float32 or float64 array with elements of at most 1."""
    cdef operands o
    for op in range(OPERANDS):
        o.held[op] = False
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        if code == CODE_F32:
            exp_all[float](<const float*>o.view[OP_X].buf, <float*>o.view[OP_OUT].buf, o.view[OP_X].len // 4)
        else:
            exp_all(<const double*>o.view[OP_X].buf, <double*>o.view[OP_OUT].buf, o.view[OP_X].len // 8)
    finally:
        release(&o)


def log1p_array(x, out):
    """The kernels' log1p of a contiguous float64 array with elements of at least 0."""
    cdef operands o
    cdef Py_ssize_t i, n, w = simd[double].lanes()
    cdef const double* p
    cdef double* q
    for op in range(OPERANDS):
        o.held[op] = False
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        n = o.view[OP_X].len // 8
        p = <const double*>o.view[OP_X].buf
        q = <double*>o.view[OP_OUT].buf
        for i from 0 <= i < n by w:
            store_partial(q + i, log1p(load_partial(p + i, min(w, n - i))), min(w, n - i))
    finally:
        release(&o)


cdef double read_piece(const float* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i = 0, w = simd[float].lanes(), size = BLOCK * w
    cdef simd[float] m = simd[float](-INFINITY)
    while i + size <= n:
        m = vmax(block_max(x + i), m)
        i += size
    while i < n:
        m = vmax(load_partial(x + i, min(w, n - i)) if n - i < w else load(x + i), m)
        i += w
    return hmax(m)


def stream_read(x, int threads):
    """The largest of a contiguous float32 array's elements: what reading memory once takes."""
    cdef operands o
    cdef Py_ssize_t i, n, each, pieces
    cdef const float* p
    cdef double* largest = NULL
    cdef double m = -INFINITY
    for op in range(OPERANDS):
        o.held[op] = False
    try:
        take(&o, OP_X, x, False)
        n = o.view[OP_X].len // 4
        p = <const float*>o.view[OP_X].buf
        threads = threads if threads > 0 else openmp_threads()
        each = pieces_of(n, threads)
        pieces = pieces_of(n, each) if n else 0
        largest = <double*>malloc(threads * sizeof(double))
        if largest == NULL:
            raise MemoryError("no memory for one number a thread")
        with nogil:
            for i in prange(pieces, num_threads=threads, schedule="static"):
                largest[i] = read_piece(p + i * each, min(each, n - i * each))
        for i in range(pieces):
            m = max(m, largest[i])
        return m
    finally:
        free(largest)
        release(&o)


def stream_copy(x, out, int threads):
    """Copies a contiguous float32 array past the cache: what reading and writing memory once takes."""
    cdef operands o
    cdef Py_ssize_t i, n, each, pieces
    cdef const float* p
    cdef float* q
    for op in range(OPERANDS):
        o.held[op] = False
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        n = o.view[OP_X].len // 4
        p = <const float*>o.view[OP_X].buf
        q = <float*>o.view[OP_OUT].buf
        threads = threads if threads > 0 else openmp_threads()
        each = pieces_of(n, threads)
        pieces = pieces_of(n, each) if n else 0
        with nogil:
            for i in prange(pieces, num_threads=threads, schedule="static"):
                write_scaled(q + i * each, lane_buffer[float](<void*>(p + i * each)), min(each, n - i * each), simd[float](1.0), True)
                stream_fence()
    finally:
        release(&o)
