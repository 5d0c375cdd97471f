# The interface of attention's gradients: buffers in, two tasks out. The work is in gradient_schedule.hpp and below.

def attention_backward(
    q, int q_code, k, int k_code, v, int v_code, out, int out_code, lse, int lse_code, grad_out, int grad_out_code, grad_lse, int grad_lse_code,
    dq, int dq_code, dk, int dk_code, dv, int dv_code, dbias, int dbias_code, bint bias_sums, dsinks, bint float64, double scale, double softcap,
    int64_t left, int64_t right, lengths, offsets, mask, bias, int bias_code, sinks, slopes, block_mask, Py_ssize_t block_q, Py_ssize_t block_k,
    q_starts, k_starts, int threads
):
    cdef attention_buffers given, gradients
    cdef gradient_task g
    cdef bint done
    cdef int which
    memset(given.held, 0, sizeof(given.held))
    memset(gradients.held, 0, sizeof(gradients.held))
    try:
        hold(&given, AT_Q, q, False)
        hold(&given, AT_K, k, False)
        hold(&given, AT_V, v, False)
        hold(&given, AT_OUT, out, False)
        hold(&given, AT_LSE, lse, False)
        hold(&given, AT_MASK, mask, False)
        hold(&given, AT_BIAS, bias, False)
        hold(&given, AT_BLOCK_MASK, block_mask, False)
        hold(&given, BUFFER_LENGTHS, lengths, False)
        hold(&given, BUFFER_OFFSETS, offsets, False)
        hold(&given, BUFFER_SINKS, sinks, False)
        hold(&given, BUFFER_SLOPES, slopes, False)
        hold(&given, BUFFER_Q_STARTS, q_starts, False)
        hold(&given, BUFFER_K_STARTS, k_starts, False)
        hold(&gradients, AT_OUT, grad_out, False)
        hold(&gradients, AT_LSE, grad_lse, False)
        hold(&gradients, AT_Q, dq, True)
        hold(&gradients, AT_K, dk, True)
        hold(&gradients, AT_V, dv, True)
        hold(&gradients, AT_BIAS, dbias, True)
        hold(&gradients, BUFFER_SINKS, dsinks, True)
        g.inputs.scale, g.inputs.softcap, g.inputs.left, g.inputs.right = scale, softcap, left, right
        g.inputs.block_q, g.inputs.block_k = block_q, block_k
        describe_attention(&g.inputs, &given)
        g.gradients = g.inputs
        describe_gradients(&g.gradients, &gradients)
        g.inputs.code[AT_Q], g.inputs.code[AT_K], g.inputs.code[AT_V], g.inputs.code[AT_OUT] = q_code, k_code, v_code, out_code
        g.inputs.code[AT_LSE], g.inputs.code[AT_BIAS] = lse_code, bias_code
        g.gradients.code[AT_Q], g.gradients.code[AT_K], g.gradients.code[AT_V], g.gradients.code[AT_OUT] = dq_code, dk_code, dv_code, grad_out_code
        g.gradients.code[AT_LSE], g.gradients.code[AT_BIAS] = grad_lse_code, dbias_code
        g.bias_sums = bias_sums
        g.sinks = <double*>contents(&gradients, BUFFER_SINKS)
        with nogil:
            if in_parallel():
                threads = 1
            elif threads <= 0:
                threads = openmp_threads()
            if float64:
                done = run_gradients[double](g, threads)
            else:
                done = run_gradients[float](g, threads)
        if not done:
            raise MemoryError("dualsoft: no memory for a thread's tiles, or for parts of a gradient; the gradients are incomplete")
    finally:
        for which in range(BUFFERS):
            if given.held[which]:
                PyBuffer_Release(&given.view[which])
            if gradients.held[which]:
                PyBuffer_Release(&gradients.view[which])


cdef void describe_gradients(attention_task* t, attention_buffers* b) noexcept:
    """Pointers and strides of the gradients in the places of their operands; all else is that of the inputs."""
    cdef int op, i
    for op in range(AT_OPERANDS):
        t.base[op] = NULL
        if b.held[op]:
            place(t, b, op, 1 if op == AT_LSE else 2)
        for i in range(t.batch_axes):
            t.batch_stride[i][op] = b.view[op].strides[i] if b.held[op] else 0
