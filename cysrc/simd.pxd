# What the kernels use of the C++ headers in this folder.
from libc.stdint cimport int64_t

cdef extern from "simd.hpp" nogil:
    cdef cppclass f16:
        pass
    cdef cppclass bf16:
        pass
    cdef cppclass simd[S]:
        simd()
        simd(double)
        simd operator+(simd)
        simd operator-(simd)
        simd operator*(simd)
        simd operator/(simd)
        @staticmethod
        Py_ssize_t lanes()
    simd[S] load[S](const S* p)
    simd[S] load_partial[S](const S* p, Py_ssize_t n)
    void store[S](S* p, simd[S] x)
    void store_partial[S](S* p, simd[S] x, Py_ssize_t n)
    simd[S] zero_where_equal[S](simd[S] e, simd[S] x, simd[S] m)
    const char* DS_LEVEL
    simd[S] vmax[S](simd[S] a, simd[S] b)
    simd[S] vabs[S](simd[S] x)
    simd[S] pick_less[S](simd[S] x, simd[S] y, simd[S] a, simd[S] b)
    simd[S] pick_equal[S](simd[S] x, simd[S] m, simd[S] a, simd[S] b)
    Py_ssize_t count_equal[S](simd[S] x, simd[S] m)
    double hmax[S](simd[S] x)
    double hsum[S](simd[S] x)
    void to_doubles[S](simd[S] x, double* p)
    simd[S] max_rows[S](const simd[S]* rows)
    simd[S] sum_rows[S](const simd[S]* rows)
    void stream_fence()

cdef extern from "elementary.hpp" nogil:
    simd[S] exp[S](simd[S] x)
    simd[double] expm1(simd[double] x)
    simd[double] log1p(simd[double] r)
    double exp_one(double x)
    double log1p_one(double x)

cdef extern from "accumulate.hpp" nogil:
    const Py_ssize_t GROUP
    const Py_ssize_t BLOCK
    cdef cppclass block_total[S]:
        block_total()
    cdef cppclass wide[S]:
        wide()
        void add(simd[S] x)
        void add(const block_total[S]& b)
        void join(const wide& o)
        double total()

    cdef cppclass excess_sum:
        excess_sum()
        void add_exp(simd[double] x)
        void add_largest(double m)
        double log()

cdef extern from "runtime.hpp" nogil:
    const int HAS_OPENMP
    int openmp_threads()
    int in_parallel()
    void openmp_pause()
    Py_ssize_t stream_threshold()
    int SLOT_EXP, SLOT_SOURCE, SLOT_WEIGHTS, SLOT_BLOCK_MAX, SLOT_WIDE
    bint scratch_ready()
    void* scratch(int slot)
    void* work_memory(Py_ssize_t bytes)

cdef extern from "blocks.hpp" nogil:
    cdef cppclass lane_buffer[S]:
        lane_buffer()
        lane_buffer(void* memory)
        simd[S] get(Py_ssize_t i)
        void put(Py_ssize_t i, simd[S] x)
        lane_buffer at(Py_ssize_t i)
        void* memory()
    const double ZERO_SHIFT
    int OUT_SCALED, OUT_EXP, OUT_LOG
    simd[S] output_of[S](int kind, simd[S] v, simd[S] c, simd[S] s)
    simd[S] block_max[S](const S* x)
    block_total[S] block_sum[S](const S* x, simd[S] m, simd[S] c, lane_buffer[S] e, bint tied, bint keep, Py_ssize_t& count, const S* next, simd[S]& next_max)
    block_total[S] part_sum[S](const S* x, Py_ssize_t n, simd[S] m, simd[S] c, lane_buffer[S] e, bint tied, bint keep, Py_ssize_t& count)
    void few_stats[S](const S** x, Py_ssize_t n, bint keep, bint to_zero, lane_buffer[S] e, double* m, double* c, double* total, double* count)
    void few_output[S](S** out, const S** x, Py_ssize_t n, Py_ssize_t k, bint is_log, lane_buffer[S] e, const double* c, const double* value, bint past_cache)
    Py_ssize_t aligned_head[S](const S* out)
    void write_scaled[S](S* out, lane_buffer[S] e, Py_ssize_t n, simd[S] s, bint past_cache)
    void write_row[S](S* out, const S* x, Py_ssize_t n, simd[S] c, simd[S] s, bint is_log, bint past_cache)
    void strip_sum[S](lane_buffer[S] strip, Py_ssize_t n, simd[S] m, simd[S] c, bint keep, wide[S]* sums, simd[S]& count)
    void strip_totals[S](wide[S]* sums, Py_ssize_t n, double* totals)

cdef extern from "layout.hpp" nogil:
    int OP_X, OP_OUT, OP_WHERE, OP_WEIGHTS, OP_SCALE, OP_M, OP_REST, OP_SIGN, OP_SECOND, OP_LABEL, OP_GRAD, OPERANDS
    int CODE_F32, CODE_F64, CODE_F16, CODE_BF16, CODE_BOOL, CODE_I8, CODE_U8, CODE_I16, CODE_U16, CODE_I32, CODE_U32
    int CODE_I64, CODE_U64, CODE_SWAPPED
    Py_ssize_t item_size(int code)
    cdef cppclass axis_group:
        int ndim
        Py_ssize_t size
        Py_ssize_t inner_shape()
        Py_ssize_t inner_stride(int op)
        Py_ssize_t offset(Py_ssize_t index, int op)
    cdef cppclass task:
        task()
        char* base[11]
        axis_group kept, reduced
        int x_code, out_code, weights_code
        int operation
        int has_out, has_scale, past_cache, direct, failed
        double scale
        Py_ssize_t out_step
        int initial
        int second_code, loss_code, lse_code, in_rows, has_ignored
        int64_t ignored
        double hard, uniform, z_loss, grad, roundoff
        bint counts(Py_ssize_t r, int64_t* label)
        double row_grad(Py_ssize_t r)
        double element(Py_ssize_t r, Py_ssize_t index)
        void set(int op, void* pointer)
        void add_axis(int is_reduced, Py_ssize_t extent, const Py_ssize_t* strides)
        void finish()
        Py_ssize_t rows()
        Py_ssize_t cols()
        bint float64()
        bint columns()
        char* row(int op, Py_ssize_t r)
        double row_scale(Py_ssize_t r)
    void gather_run_of(int code, const char* src, Py_ssize_t stride, Py_ssize_t n, double* dst)
    void scatter_run_of(int code, const double* src, Py_ssize_t n, char* dst, Py_ssize_t stride)
    void row_starts[S](const task& t, int op, Py_ssize_t r, Py_ssize_t n, S** starts)
    void put_value(const task& t, int op, int code, Py_ssize_t r, double value)
    void put_values(const task& t, int op, int code, Py_ssize_t r, Py_ssize_t n, const double* values)
    double get_value(const task& t, int op, Py_ssize_t r)
    void gather_row[C](const task& t, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n, C* dst, C* weights)
    void gather_operand[C](const task& t, int op, int code, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n, C* dst, C hidden)
    void scatter_row[C](const task& t, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n, C* src, C hidden)
    cdef cppclass tile_source[C]:
        int op, code
        bint is_scaled
        C hidden
    void gather_tile_of[C](
        const task& t, tile_source[C] of, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n, Py_ssize_t plane, C* dst)
    void gather_tile[C](const task& t, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n, Py_ssize_t plane, C* dst)
    void scatter_tile[C](const task& t, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n, Py_ssize_t plane, const C* src, C hidden)
    bint write_tile[C](
        const task& t, Py_ssize_t r, Py_ssize_t cols, Py_ssize_t start, Py_ssize_t n, Py_ssize_t plane, const C* src, int kind,
        const C* c, const C* value)
    Py_ssize_t tile_shift(const task& t)

cdef extern from "gradients.hpp" nogil:
    int GRAD_EXP, GRAD_EXP_TIMES, GRAD_EXP_PLUS, GRAD_TIMES
    cdef cppclass row_gradient:
        double c, a, b, w
        bint zero
    cdef cppclass beside[S]:
        beside()
        beside(const void* p, bint gathered)
    void add_all[S](beside[S] t, Py_ssize_t n, wide[S]& sum)
    void add_differences[S](const S* x, Py_ssize_t n, simd[S] k, wide[S]& sum)
    void add_weighted[S](const S* x, beside[S] t, Py_ssize_t n, simd[S] k, wide[S]& sum)
    void add_products[S](const S* x, beside[S] t, Py_ssize_t n, wide[S]& sum)
    cdef cppclass lane_gradients[S]:
        void set(Py_ssize_t lane, const row_gradient& g)
    void strip_sum_beside[S](bint are_products, lane_buffer[S] x, lane_buffer[S] t, Py_ssize_t n, wide[S]* sums)
    void strip_gradient[S](int kind, lane_buffer[S] x, lane_buffer[S] t, Py_ssize_t n, const lane_gradients[S]& of)
    void write_gradient[S](int kind, S* out, const S* x, beside[S] t, Py_ssize_t n, const row_gradient& g, bint past_cache)

cdef extern from "topk.hpp" nogil:
    int OP_INDICES, OP_LSE, OP_OPTIONS
    cdef cppclass topk_row:
        double m, d
        bint is_nan
    cdef cppclass topk_list[S]:
        topk_list()
        topk_list(void* memory, Py_ssize_t k, Py_ssize_t n)
        @staticmethod
        Py_ssize_t needs(Py_ssize_t k, Py_ssize_t n)
        Py_ssize_t count
        void clear()
        void scan_row(const S* x, Py_ssize_t n, lane_buffer[S] tops, Py_ssize_t first)
        void finish()
        void store_list(char* keys, Py_ssize_t* indices)
        void offer_list(const char* keys, const Py_ssize_t* indices, Py_ssize_t n)
        void put(const task& t, Py_ssize_t r, Py_ssize_t out_step, Py_ssize_t index_step, const topk_row& row)
    void gather_keys[C](const task& t, Py_ssize_t r, Py_ssize_t start, Py_ssize_t n, C* keys)

cdef extern from "sample.hpp" nogil:
    cdef cppclass sampler[S]:
        @staticmethod
        Py_ssize_t needs(Py_ssize_t n)
    int64_t sample_row[S](const S* x, Py_ssize_t n, const double* options, const unsigned int* key, int64_t row, void* memory)

cdef extern from "schedule.hpp" nogil:
    int AT_Q, AT_K, AT_V, AT_OUT, AT_LSE, AT_M, AT_D, AT_MASK, AT_BIAS, AT_BLOCK_MASK, AT_OPERANDS
    cdef cppclass attention_task:
        attention_task()
        char* base[10]
        int code[10]
        Py_ssize_t head[10]
        Py_ssize_t row[10]
        Py_ssize_t item[10]
        int batch_axes
        Py_ssize_t batch_shape[64]
        Py_ssize_t batch_stride[64][10]
        Py_ssize_t sequences, heads_k, group, queries, keys, dim, dim_v, pages_each, page_size, block_q, block_k
        Py_ssize_t page_stride[10]
        const int64_t* lengths
        const int64_t* offsets
        const int64_t* q_starts
        const int64_t* k_starts
        const int64_t* pages
        const double* sinks
        const double* slopes
        double scale, softcap
        int64_t left, right
    bint run_attention[C](const attention_task& t, int threads)
    cdef cppclass lane_arithmetic[C]:
        pass
    double multiply_add_flops[A](Py_ssize_t repeats, int threads)
    double pair_flops(Py_ssize_t repeats, int threads)

cdef extern from "gradient_schedule.hpp" nogil:
    cdef cppclass gradient_task:
        gradient_task()
        attention_task inputs, gradients
        bint bias_sums
        double* sinks
    bint run_gradients[C](const gradient_task& g, int threads)
