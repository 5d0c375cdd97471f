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
    Py_buffer view[11]
    int held[11]


cdef int take(operands* o, int op, object array, bint writable) except -1:
    if array is not None:
        PyObject_GetBuffer(array, &o.view[op], PyBUF_STRIDES | (PyBUF_WRITABLE if writable else 0))
        o.held[op] = True
    return 0


cdef void release(operands* o) noexcept:
    cdef int op
    for op in range(OPERANDS):
        if o.held[op]:
            PyBuffer_Release(&o.view[op])


cdef void describe(task* t, operands* o, unsigned long long axes) noexcept:
    """Base pointers and strides; an axis of length 1 does not move."""
    cdef Py_ssize_t strides[11]
    cdef int i, op
    for op in range(OPERANDS):
        if o.held[op]:
            t.set(op, o.view[op].buf)
    for i in range(o.view[OP_X].ndim):
        for op in range(OPERANDS):
            strides[op] = o.view[op].strides[i] if o.held[op] and o.view[op].shape[i] != 1 else 0
        t.add_axis(axes >> i & 1, o.view[OP_X].shape[i], strides)
    t.finish()


cdef int execute(
    int operation, unsigned long long axes, int threads, x, int x_code, out, int out_code, scale=None, where=None, m=None, rest=None, sign=None,
    b=None, int b_code=-1, bint initial=False
) except -1:
    """One call: hold the arrays, describe them, run, let go."""
    cdef operands o
    cdef task t
    cdef int axis = 0
    memset(o.held, 0, sizeof(o.held))
    t.operation, t.x_code, t.out_code, t.weights_code = operation, x_code, out_code, b_code
    t.has_out = operation == SOFTMAX or operation == LOG_SOFTMAX or operation == NORMALIZE
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        take(&o, OP_WHERE, where, False)
        take(&o, OP_WEIGHTS, b, False)
        take(&o, OP_M, m, operation == STATE)
        take(&o, OP_REST, rest, operation == STATE)
        take(&o, OP_SIGN, sign, True)
        if isinstance(scale, float):
            t.scale = scale
            t.has_scale = t.scale != 1
        else:
            take(&o, OP_SCALE, scale, False)
        if t.has_out:
            t.past_cache = o.view[OP_OUT].len > stream_threshold()
        if operation == CUMULATIVE:
            while not axes >> axis & 1:
                axis += 1
            t.out_step = o.view[OP_OUT].strides[axis]
            t.initial = initial
        describe(&t, &o, axes)
        with nogil:
            run(&t, threads)
    finally:
        release(&o)
    return 0


cdef int take_factor(operands* o, task* t, object grad) except -1:
    """The factor of each row: a float for all, or float64 of the reduced shape."""
    if isinstance(grad, float):
        t.grad = grad
        return 0
    return take(o, OP_GRAD, grad, False)


cdef int execute_loss(
    int operation, unsigned long long axes, int threads, x, int x_code, out, int out_code, int lse_code, second, int second_code, labels, ignored, m, rest, grad,
    scale, where, double hard, double uniform, double z_loss, double roundoff
) except -1:
    """One call of a loss (`m` for its values, `rest` for lse) or of a gradient."""
    cdef operands o
    cdef task t
    cdef bint is_loss = operation == CROSS_ENTROPY
    memset(o.held, 0, sizeof(o.held))
    t.operation, t.x_code, t.second_code, t.has_out = operation, x_code, second_code, not is_loss
    t.out_code = -1 if is_loss else out_code
    t.loss_code, t.lse_code = out_code, lse_code
    t.in_rows = not is_loss or second is not None or uniform != 0
    t.has_ignored = ignored is not None
    t.ignored = ignored if ignored is not None else 0
    t.hard, t.uniform, t.z_loss, t.roundoff = hard, uniform, z_loss, roundoff
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        take(&o, OP_WHERE, where, False)
        take(&o, OP_SECOND, second, False)
        take(&o, OP_LABEL, labels, False)
        take(&o, OP_M, m, is_loss)
        take(&o, OP_REST, rest, is_loss)
        take_factor(&o, &t, grad)
        if isinstance(scale, float):
            t.scale = scale
            t.has_scale = t.scale != 1
        else:
            take(&o, OP_SCALE, scale, False)
        if t.has_out:
            t.past_cache = o.view[OP_OUT].len > stream_threshold()
        describe(&t, &o, axes)
        with nogil:
            run(&t, threads)
    finally:
        release(&o)
    return 0


def lanes(int code):
    """Compute lanes of one register for a dtype."""
    return simd[float].lanes() if code in (CODE_F32, CODE_F16, CODE_BF16) else simd[double].lanes()


def max_threads():
    """OpenMP's own number of threads."""
    return openmp_threads()


def pause_threads():
    """Give OpenMP's threads back; the next call starts new ones."""
    openmp_pause()


def softmax(x, int x_code, out, int out_code, unsigned long long axes, bint log, scale, where, int threads):
    execute(LOG_SOFTMAX if log else SOFTMAX, axes, threads, x, x_code, out, out_code, scale, where)


def normalize(x, int x_code, out, int out_code, m, rest, unsigned long long axes, scale, where, int threads):
    execute(NORMALIZE, axes, threads, x, x_code, out, out_code, scale, where, m, rest)


def logsumexp(x, int x_code, out, sign, int out_code, unsigned long long axes, scale, where, b, int b_code, int threads):
    execute(LOGSUMEXP, axes, threads, x, x_code, out, out_code, scale, where, None, None, sign, b, b_code)


def state(x, int x_code, m, rest, unsigned long long axes, scale, where, int threads):
    execute(STATE, axes, threads, x, x_code, None, -1, scale, where, m, rest)


def cumulative_logsumexp(x, int x_code, out, int out_code, int axis, bint initial, int threads):
    execute(CUMULATIVE, <unsigned long long>1 << axis, threads, x, x_code, out, out_code, None, None, None, None, None, None, -1, initial)


def cross_entropy(
    x, int x_code, losses, int loss_code, lse, int lse_code, unsigned long long axes, labels, second, int second_code, ignored, double hard, double uniform,
    double z_loss, int threads
):
    execute_loss(
        CROSS_ENTROPY, axes, threads, x, x_code, None, loss_code, lse_code, second, second_code, labels, ignored, losses, lse, 1.0, None, None, hard, uniform,
        z_loss, 0)


def cross_entropy_gradient(
    x, int x_code, out, int out_code, unsigned long long axes, labels, second, int second_code, ignored, m, rest, double roundoff, grad, double hard,
    double uniform, double z_loss, int threads
):
    execute_loss(
        CROSS_ENTROPY_GRAD, axes, threads, x, x_code, out, out_code, -1, second, second_code, labels, ignored, m, rest, grad, None, None, hard, uniform,
        z_loss, roundoff)


def logsumexp_gradient(
    x, int x_code, out, int out_code, unsigned long long axes, b, int b_code, m, rest, double roundoff, grad, scale, where, int threads
):
    execute_loss(
        LOGSUMEXP_GRAD, axes, threads, x, x_code, out, out_code, -1, b, b_code, None, None, m, rest, grad, scale, where, 1, 0, 0, roundoff)


def softmax_gradient(x, int x_code, out, int out_code, unsigned long long axes, bint log, grad, int grad_code, factor, where, int threads):
    execute_loss(
        LOG_SOFTMAX_GRAD if log else SOFTMAX_GRAD, axes, threads, x, x_code, out, out_code, -1, grad, grad_code, None, None, None, None, factor, None,
        where, 1, 0, 0, 0)


cdef void exp_all(const compute_t* x, compute_t* out, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, w = simd[compute_t].lanes()
    for i from 0 <= i < n by w:
        store_partial(out + i, exp(load_partial(x + i, min(w, n - i))), min(w, n - i))


cdef void log1p_all(const double* x, double* out, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, w = simd[double].lanes()
    for i from 0 <= i < n by w:
        store_partial(out + i, log1p(load_partial(x + i, min(w, n - i))), min(w, n - i))


cdef double read_all(const float* x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i = 0, w = simd[float].lanes(), size = BLOCK * w
    cdef simd[float] m = simd[float](-INFINITY)
    while i + size <= n:
        m = vmax(block_max(x + i), m)
        i += size
    return hmax(vmax(part_max(x + i, n - i), m))


cdef double run_plain(int what, x, out, int threads) except? -1:
    """A function of contiguous arrays, for tests of exp and log1p and for the ceilings of memory."""
    cdef operands o
    cdef Py_ssize_t i, n, each, pieces
    cdef const float* p
    cdef float* q
    cdef double* largest = NULL
    cdef double m = -INFINITY
    memset(o.held, 0, sizeof(o.held))
    try:
        take(&o, OP_X, x, False)
        take(&o, OP_OUT, out, True)
        n = o.view[OP_X].len // (8 if what == EXP_F64 or what == LOG1P_F64 else 4)
        p = <const float*>o.view[OP_X].buf
        q = <float*>o.view[OP_OUT].buf if out is not None else NULL
        if what == EXP_F32:
            exp_all(p, q, n)
        elif what == EXP_F64:
            exp_all(<const double*>p, <double*>q, n)
        elif what == LOG1P_F64:
            log1p_all(<const double*>p, <double*>q, n)
        else:
            threads = threads if threads > 0 else openmp_threads()
            each = max(<Py_ssize_t>1, pieces_of(n, threads))
            pieces = pieces_of(n, each)
            largest = <double*>malloc(threads * sizeof(double))
            if largest == NULL:
                raise MemoryError("no memory for one number a thread")
            with nogil:
                for i in prange(pieces, num_threads=threads, schedule="static"):
                    largest[i] = -INFINITY
                    if what == READ:
                        largest[i] = read_all(p + i * each, min(each, n - i * each))
                    else:
                        write_scaled(q + i * each, lane_buffer[float](<void*>(p + i * each)), min(each, n - i * each), simd[float](1.0), True)
                        stream_fence()
            for i in range(pieces):
                m = max(m, largest[i])
        return m
    finally:
        free(largest)
        release(&o)


def exp_array(x, out, int code):
    """The kernels' exp of a contiguous float32 or float64 array with elements of at most 16."""
    run_plain(EXP_F32 if code == CODE_F32 else EXP_F64, x, out, 1)


def log1p_array(x, out):
    """The kernels' log1p of a contiguous float64 array with elements of at least -1/2."""
    run_plain(LOG1P_F64, x, out, 1)


def stream_read(x, int threads):
    """The largest of a contiguous float32 array's elements: what reading memory once takes."""
    return run_plain(READ, x, None, threads)


def stream_copy(x, out, int threads):
    """Copies a contiguous float32 array past the cache: what reading and writing memory once takes."""
    run_plain(COPY, x, out, threads)
