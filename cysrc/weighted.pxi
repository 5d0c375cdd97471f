# logsumexp with weights: the sum of b exp(x), of either sign. Elements of weight 0 were made -inf when they were gathered.

cdef inline bint opposed(const task* t, Py_ssize_t r, compute_t* x, compute_t* b) noexcept nogil:
    """Whether infinite elements of the row carry weights of both signs: infinity minus infinity."""
    cdef Py_ssize_t n = t.cols(), start, size, i
    cdef bint positive = False, negative = False
    for start from 0 <= start < n by SMALL:
        size = min(SMALL, n - start)
        gather_row(t[0], r, start, size, x, b)
        for i in range(size):
            if x[i] == INFINITY:
                positive = positive or b[i] > 0
                negative = negative or b[i] < 0
    return positive and negative


cdef inline void weighted_row(const task* t, compute_t* tag, Py_ssize_t r, compute_t* x, compute_t* b, double* lse, double* sign) noexcept nogil:
    cdef Py_ssize_t n = t.cols(), w = simd[compute_t].lanes(), start, size, i
    cdef double m = -INFINITY, c, at_max, below, ratio, total
    cdef simd[compute_t] vx, vb, vm, vc
    cdef wide[compute_t] top = wide[compute_t](), rest = wide[compute_t]()
    for start from 0 <= start < n by SMALL:
        size = min(SMALL, n - start)
        gather_row(t[0], r, start, size, x, b)
        vm = simd[compute_t](m)
        for i from 0 <= i < size by w:
            vm = vmax(load_partial(x + i, size - i) if size - i < w else load(x + i), vm)
        m = hmax(vm)
    c = shift_for(LOGSUMEXP, m)
    vm = simd[compute_t](m)
    vc = simd[compute_t](c)
    for start from 0 <= start < n by SMALL:
        size = min(SMALL, n - start)
        if n > SMALL:
            gather_row(t[0], r, start, size, x, b)
        for i in range(size, (size + w - 1) // w * w):
            x[i] = -INFINITY
            b[i] = 0
        for i from 0 <= i < size by w:
            vx = load(x + i)
            vb = load(b + i)
            top.add(pick_equal(vx, vm, vb, simd[compute_t](0.0)))
            rest.add(zero_where_equal(vb * exp(vx - vc), vx, vm))
    at_max = top.total()
    if m == INFINITY and at_max - at_max == 0 and opposed(t, r, x, b):
        at_max = NAN
    below = rest.total() * libc_exp(c - m if m - m == 0 else 0.0)
    if m == -INFINITY:
        total = below * 0
    else:
        total = at_max + below
    sign[0] = 1.0 if total > 0 else (-1.0 if total < 0 else total)
    ratio = below / at_max
    if total == 0:
        lse[0] = -INFINITY if m < INFINITY else NAN
    elif -0.5 < ratio < INFINITY:
        lse[0] = m + (libc_log(fabs(at_max)) + libc_log1p(ratio))
    else:
        lse[0] = m + libc_log(fabs(total))


cdef void run_weighted(const task* t, compute_t* tag, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    cdef Py_ssize_t r, w = simd[compute_t].lanes()
    cdef double lse, sign
    cdef compute_t* x = <compute_t*>scratch(SLOT_SOURCE)
    cdef compute_t* b = <compute_t*>scratch(SLOT_WEIGHTS)
    for r in range(first, last):
        weighted_row(t, tag, r, x, b, &lse, &sign)
        if t.base[OP_SIGN] != NULL:
            put_value(t[0], OP_SIGN, t.out_code, r, sign)
        elif sign < 0:
            lse = NAN
        put_value(t[0], OP_OUT, t.out_code, r, lse)
