"""The frozen description of a call of attention, and the only place that judges its arguments.

One type serves ``attention``, ``attention_varlen``, ``attention_paged`` and ``attention_state``; a *sequence* is one
entry of the batch. Hq query heads share Hk heads of keys: head h reads ``h // (Hq // Hk)``.

==========  ==========================  ===================================  =====================
            plain                       varlen (``q_starts``)                paged (``pages``)
==========  ==========================  ===================================  =====================
q           (*batch, Hq, Sq, D)         (Hq, total_q, D)                     (B, Hq, Sq, D)
k           (*batch, Hk, Sk, D)         (Hk, total_k, D)                     (pages, Hk, page_size, D)
sequences   prod(batch)                 n                                    B
==========  ==========================  ===================================  =====================
"""

import math
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from dualsoft import attention_arguments as single
from dualsoft.arguments import Shape, check_truth, reduced_result
from dualsoft.arrays import Array, module_of, with_device_of
from dualsoft.attention_arguments import INT64
from dualsoft.attention_operands import Operands, operands
from dualsoft.dtypes import F32, F64, FLOAT64

_ndarray = np.ndarray
_empty = np.empty
_empty_like = np.empty_like
_new = tuple.__new__
_FLOAT32 = np.dtype(np.float32)

Options = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any, Any, Any]
"""mask, bias, causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, kv_lengths, block_mask."""


class AttentionProblem(NamedTuple):
    """``out = sum_j exp(s_j - lse)·v_j`` with ``lse = log sum_j exp(s_j)`` over the keys that a query sees.

    ``s = scale·q·k``, then ``softcap·tanh(s / softcap)``, ``+ bias``, ``- slope·|i + offset - j|``. Query i sees key j
    when ``j < length``, ``i + offset - left <= j <= i + offset + right``, and ``mask`` and ``block_mask`` are True.
    """

    q: Array
    k: Array
    v: Array
    out: Array
    """(..., Hq, Sq, Dv). Of a state: not divided by d, float32 or float64."""
    lse: Array | None
    """(..., Hq, Sq), float32 or float64; None where nobody wants it."""
    m: Array | None
    """Of a state only, as ``d``: (..., Hq, Sq), float64."""
    d: Array | None
    scale: float
    softcap: float
    """0: off."""
    left: int
    """-1: no bound, as ``right``."""
    right: int
    lengths: Array | None
    """int64, contiguous, (sequences,): the keys of each sequence; None: all of them."""
    offsets: Array | None
    """int64, contiguous, (sequences,): query i is at position i + offset of the keys; None where nothing needs it."""
    mask: Array | None
    """bool, broadcast to (*batch, Hq, Sq, Sk); varlen: (Hq, total_q, longest); paged: (B, Hq, Sq, table·page_size)."""
    bias: Array | None
    """Any real dtype, broadcast as ``mask``."""
    sinks: Array | None
    """float64, contiguous, (Hq,)."""
    slopes: Array | None
    """float64, contiguous, (sequences, Hq)."""
    block_mask: Array | None
    """bool, broadcast to (*batch, Hq, ceil(Sq / block_q), ceil(Sk / block_k))."""
    block_q: int
    """0 without ``block_mask``, as ``block_k``."""
    block_k: int
    q_starts: Array | None
    """int64, contiguous, (n + 1,), as ``k_starts``: varlen only."""
    k_starts: Array | None
    pages: Array | None
    """int64, contiguous, (B, pages of a sequence): paged only. What comes after the last used page may be anything."""
    x_code: int
    """Of q."""
    k_code: int
    v_code: int
    out_code: int
    """Arithmetic is float64 when this is F64, else float32."""
    bias_code: int
    """-1 without ``bias``."""

    @property
    def x(self) -> Array:
        """What tells the kind of array: ``q``."""
        return self.q


@with_device_of(itemgetter(0))
def attention_problem(
    q: Any, k: Any, v: Any, options: Options, return_lse: object, out: object
) -> tuple[AttentionProblem, bool]:
    """Judge the arguments of ``attention``; tell too whether the results have no head axis."""
    if type(return_lse) is not bool:
        check_truth(return_lse, "return_lse")
    given = operands(q, k, v)
    q, k = given.q, given.k
    batch, heads, queries, keys = q.shape[:-3], q.shape[-3], q.shape[-2], k.shape[-2]
    rules = rules_of(options, q, batch, heads, math.prod(batch), queries, keys)
    extras = extras_of(options, q, (*batch, heads, queries, keys))
    target = _target(out, given, extras)
    lse = _statistics(given) if return_lse else None
    return assembled(given, target, lse, None, None, rules, extras, None, None, None), given.alone


@with_device_of(itemgetter(0))
def attention_state_problem(
    q: Any, k: Any, v: Any, options: Options, key_start: object, key_total: object
) -> tuple[AttentionProblem, bool]:
    """Judge the arguments of ``attention_state``; tell too whether the results have no head axis."""
    given = operands(q, k, v)
    q, k = given.q, given.k
    batch, heads, queries, keys = q.shape[:-3], q.shape[-3], q.shape[-2], k.shape[-2]
    start, total = single.chunk_of(key_start, key_total, keys)
    rules = rules_of(options, q, batch, heads, math.prod(batch), queries, total)
    extras = extras_of(options, q, (*batch, heads, queries, keys))
    if start or total != keys:
        rules = _shifted(rules, start, keys)
    empty = _empty if type(q) is _ndarray else module_of(q).empty
    sums = FLOAT64 if given.result_code == F64 else _FLOAT32
    given = given._replace(result=sums, result_code=F64 if given.result_code == F64 else F32)
    m, d = empty(given.out_shape[:-1], FLOAT64), empty(given.out_shape[:-1], FLOAT64)
    target = _target(None, given, ())
    return assembled(given, target, None, m, d, rules, extras, None, None, None), given.alone


@with_device_of(itemgetter(0))
def varlen_problem(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: object,
    cu_seqlens_k: object,
    options: Options,
    return_lse: object,
    out: object,
) -> AttentionProblem:
    """Judge the arguments of ``attention_varlen``."""
    check_truth(return_lse, "return_lse")
    given = operands(q, k, v)
    q_starts, k_starts, rules, extras = packed_of(given, cu_seqlens_q, cu_seqlens_k, options)
    target = _target(out, given, extras)
    lse = _statistics(given) if return_lse else None
    return assembled(given, target, lse, None, None, rules, extras, q_starts, k_starts, None)


def packed_of(
    given: Operands, cu_seqlens_q: object, cu_seqlens_k: object, options: Options
) -> tuple[Array, Array, "Rules", "Extras"]:
    """Judge what packed sequences have in place of a batch, and their options."""
    for name, array in (("q", given.q), ("k", given.k), ("v", given.v)):
        if given.alone or array.ndim != 3:
            shape = array.shape[1:] if given.alone else array.shape
            raise ValueError(f"{name} must have the shape (heads, total length, head dim), got {shape}")
    q, k = given.q, given.k
    heads, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    q_starts = single.starts_of(cu_seqlens_q, "cu_seqlens_q", queries, "q", q)
    k_starts = single.starts_of(cu_seqlens_k, "cu_seqlens_k", keys, "k", q)
    if q_starts.shape != k_starts.shape:
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k must have the same shape, one entry more than there are sequences, got "
            f"{q_starts.shape} and {k_starts.shape}"
        )
    each_q, each_k = q_starts[1:] - q_starts[:-1], k_starts[1:] - k_starts[:-1]
    sequences = each_q.shape[0]
    rules = rules_of(options, q, (sequences,), heads, sequences, each_q, each_k)
    if type(each_k) is _ndarray:
        longest = int(each_k.max(initial=0))
    else:
        # Not read from a device: the kernel takes what the arrays have, and gives NaN for the rows of longer sequences.
        longest = max((single.last_axis(array) for array in (options[0], options[1])), default=0)
    return q_starts, k_starts, rules, extras_of(options, q, (heads, queries, longest))


@with_device_of(itemgetter(0))
def paged_problem(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    page_table: object,
    options: Options,
    return_lse: object,
    out: object,
) -> AttentionProblem:
    """Judge the arguments of ``attention_paged``."""
    if type(return_lse) is not bool:
        check_truth(return_lse, "return_lse")
    given = operands(q, k_pages, v_pages, ("q", "k_pages", "v_pages"), paged=True)
    q, k = given.q, given.k
    batch, heads, queries = q.shape[0], q.shape[1], q.shape[2]
    pages, _, page_size, _ = k.shape
    if options[9] is None:
        raise TypeError("kv_lengths must be the number of keys of each sequence, got None")
    table = single.table_of(page_table, batch, q)
    keys = table.shape[1] * page_size
    rules = rules_of(options, q, (batch,), heads, batch, queries, keys)
    single.check_pages(table, rules[4], pages, page_size)
    extras = extras_of(options, q, (batch, heads, queries, keys))
    target = _target(out, given, extras)
    lse = _statistics(given) if return_lse else None
    return assembled(given, target, lse, None, None, rules, extras, None, None, table)


def assembled(
    given: Operands,
    out: Array,
    lse: Array | None,
    m: Array | None,
    d: Array | None,
    rules: "Rules",
    extras: "Extras",
    q_starts: Array | None,
    k_starts: Array | None,
    pages: Array | None,
) -> AttentionProblem:
    q, k, v, q_code, k_code, v_code, _, result_code, _, _ = given
    scale, softcap, left, right, lengths, offsets, slopes = rules
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    mask, bias, bias_code, sinks, block_mask, block_q, block_k = extras or _NO_EXTRAS
    # Built without names: a decode step takes few microseconds.
    return _new(
        AttentionProblem,
        (
            *(q, k, v, out, lse, m, d, scale, softcap, left, right, lengths, offsets, mask, bias, sinks, slopes),
            *(block_mask, block_q, block_k, q_starts, k_starts, pages, q_code, k_code, v_code, result_code, bias_code),
        ),
    )


Rules = tuple[float | None, float, int, int, Array | None, Array | None, Array | None]
"""scale, softcap, left, right, lengths, offsets, slopes."""


def rules_of(options: Options, q: Array, batch: Shape, heads: int, sequences: int, queries: Any, keys: Any) -> Rules:
    """Judge the numbers and the options with one entry a sequence.

    ``queries`` and ``keys`` are those of each sequence: one number for all, or an array.
    """
    _, _, causal, causal_offset, window, scale, softcap, _, alibi_slopes, kv_lengths, _ = options
    if type(causal) is not bool:
        check_truth(causal, "causal")
    if scale is not None and type(scale) is not float:
        scale = single.number_of(scale, "scale")
    cap = 0.0 if softcap is None else single.softcap_of(softcap)
    lengths = None if kv_lengths is None else single.lengths_of(kv_lengths, batch, keys, q)
    if window is None:
        left, right = -1, 0 if causal else -1
    else:
        left, right = single.window_of(window, bool(causal))
    slopes = None if alibi_slopes is None else single.slopes_of(alibi_slopes, batch, heads, sequences, q)
    if causal_offset is None:
        offset = None
    else:
        offset = single.offset_of(causal_offset, batch, q, single.needs_exact_offset(left, right, slopes))
    if left < 0 and slopes is None:
        if right < 0:
            return scale, cap, -1, -1, lengths, None, None
        if offset is None and right == 0 and type(queries) is int and queries == 1:
            # The last query sees every key: what a decode step is.
            return scale, cap, -1, -1, lengths, None, None
    if offset is None:
        offset = (keys if lengths is None else lengths) - queries
    if type(offset) is int:
        offset = module_of(q).full(sequences, offset, INT64)
    return scale, cap, left, right, lengths, offset, slopes


def _shifted(rules: Rules, start: int, keys: int) -> Rules:
    """Return the rules of a whole for its chunk of ``keys`` keys from ``start`` on."""
    scale, softcap, left, right, lengths, offsets, slopes = rules
    if lengths is not None:
        lengths = module_of(lengths).clip(lengths - start, 0, keys)
    if offsets is not None:
        offsets = offsets - start
    return scale, softcap, left, right, lengths, offsets, slopes


Extras = tuple[Any, ...]
"""mask, bias, bias_code, sinks, block_mask, block_q, block_k; nothing at all in the common case."""
_NO_EXTRAS: Extras = (None, None, -1, None, None, 0, 0)


def extras_of(options: Options, q: Array, scores: Shape) -> Extras:
    """Judge the options that have an entry a score, and the sinks."""
    mask, bias, sinks, block_mask = options[0], options[1], options[7], options[10]
    if mask is None and bias is None and sinks is None and block_mask is None:
        return ()
    bias_code, blocks, block_q, block_k = -1, None, 0, 0
    if mask is not None:
        mask = single.mask_of(mask, scores, q)
    if bias is not None:
        bias, bias_code = single.bias_of(bias, scores, q)
    if sinks is not None:
        sinks = single.sinks_of(sinks, scores[-3], q)
    if block_mask is not None:
        blocks = single.blocks_of(block_mask, scores, q)
        block_q, block_k = block_mask.block_q, block_mask.block_k
    return mask, bias, bias_code, sinks, blocks, block_q, block_k


def _target(out: object, given: Operands, extras: Extras) -> Array:
    """Return the array to write the result to: ``out`` unless it overlaps an input, else a new one."""
    q, shape, result = given.q, given.out_shape, given.result
    if out is None:
        if type(q) is not _ndarray:
            return module_of(q).empty(shape, result)
        # In the order of q's axes: what came as a view of (B, S, H, D) goes back without a copy.
        if q.shape == shape and q.dtype is result:
            made = _empty_like(q)
            if made.strides[-1] == made.itemsize:
                return made
        return _empty(shape, result)
    reads = (q, given.k, given.v, *(array for array in extras if not isinstance(array, int)))
    return reduced_result(out, shape, (0,), not given.alone, result, q, reads)


def _statistics(given: Operands) -> Array:
    """Return a new array for the lse."""
    empty = _empty if type(given.q) is _ndarray else module_of(given.q).empty
    return empty(given.out_shape[:-1], FLOAT64 if given.result_code == F64 else _FLOAT32)
