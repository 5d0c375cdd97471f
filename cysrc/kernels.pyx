# distutils: language = c++
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""The softmax family and attention for one ISA level. One source; setup.py compiles it once a level, with that level's flags.

A call becomes a `task` (operands by base pointer and strides, axes split into kept and reduced) and runs one of these ways, which
give a row the same bits: rows where they lie (rows.pxi), tiles of columns (columns.pxi), two phases over segments (long.pxi).
Scalars that decide how a row's sum is split are constants of dtype and level, never of the batch or the number of threads.
"""
from cpython.buffer cimport PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cython.parallel cimport prange
from libc.math cimport INFINITY, NAN, exp as libc_exp, expm1 as libc_expm1, fabs, isfinite, log as libc_log, log1p as libc_log1p
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
from libc.stdint cimport int64_t
from simd cimport *
from time import perf_counter

ctypedef fused storage_t:
    float
    double
    f16
    bf16

ctypedef fused compute_t:
    float
    double

cdef enum:
    SOFTMAX, LOG_SOFTMAX, LOGSUMEXP, STATE, NORMALIZE, CUMULATIVE
    CROSS_ENTROPY, CROSS_ENTROPY_GRAD, LOGSUMEXP_GRAD, SOFTMAX_GRAD, LOG_SOFTMAX_GRAD

cdef enum:
    EXP_F32, EXP_F64, LOG1P_F64, READ, COPY

cdef enum:
    SEGMENT = 65536      # elements of a float32 row that share one maximum; half as many of a float64 row
    TILE = 131072        # float32 elements of a tile of columns, half as many of float64: half a megabyte
    SMALL = 8192         # elements that stay in the first-level cache
    BATCH = 64           # rows whose statistics are finished together
    MIN_WORK = 32768     # elements below which threads cost more than they bring
    PIECE = 16384        # elements of the smallest piece given to a thread
    DEFERRED = 98304     # bytes of a row's exponentials up to which they wait for the next row
    LONG_LINE = 2048     # bytes of a row from which streaming pays where rows are written alone: its ends share lines with others, which cannot be streamed

include "finish.pxi"
include "precise.pxi"
include "losses.pxi"
include "rows.pxi"
include "columns.pxi"
include "long.pxi"
include "weighted.pxi"
include "cumulative.pxi"
include "soft_labels.pxi"
include "gradients.pxi"
include "gradient_columns.pxi"
include "launch.pxi"
include "interface.pxi"
include "attention.pxi"
include "topk.pxi"
include "sample.pxi"
include "gradient.pxi"
