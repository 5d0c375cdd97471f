"""Attention: ``attention``, and the same for packed sequences, for paged keys, and for a chunk of the keys."""

from typing import Any

from dualsoft.arrays import delivered
from dualsoft.attention_problem import (
    AttentionProblem,
    attention_problem,
    attention_state_problem,
    paged_problem,
    varlen_problem,
)
from dualsoft.attention_state import AttentionState, state_of_parts
from dualsoft.block_mask import BlockMask
from dualsoft.registry import run

Window = tuple[int | None, int | None] | None


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    causal_offset: Any = None,
    window: Window = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    kv_lengths: Any = None,
    block_mask: BlockMask | None = None,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Compute exact attention, ``out[i] = sum_j softmax_j(scale·q[i]·k[j])·v[j]``, without storing the scores.

    The score of query i and key j is, in this order, ``s = scale·q·k``, ``softcap·tanh(s / softcap)``, ``+ bias``,
    ``- slope·|i + offset - j|``; then keys are hidden.

    Parameters
    ----------
    q : array_like
        (..., Hq, Sq, D). float16, bfloat16, float32, float64; integers and bool are taken as float64. Any strides:
        a layout (B, S, H, D) is the view ``x.swapaxes(-2, -3)``. (S, D) is one head.
    k, v : array_like
        (..., Hk, Sk, D) and (..., Hk, Sk, Dv). Hq must be a multiple of Hk: query head h reads head
        ``h // (Hq // Hk)``. Leading axes broadcast.
    mask : array_like of bool, optional
        Broadcasts to (..., Hq, Sq, Sk); True takes part.
    bias : array_like, optional
        Real, broadcasts to (..., Hq, Sq, Sk); is added to the scores. -inf hides; no finite number does.
    causal : bool, optional
        Whether query i sees only the keys ``j <= i + offset``.
    causal_offset : int or array_like of int, optional
        ``offset``, for all or one for each sequence (the batch shape). By default the number of keys less Sq: the last
        query sees the last key, as with a cache. 0 is the convention of ``is_causal`` in PyTorch. With slopes or a far
        window, at most 2**40 from 0.
    window : (int or None, int or None), optional
        ``(left, right)``: ``i + offset - left <= j <= i + offset + right``. None or -1: no bound.
    scale : real number, optional
        By default ``1 / sqrt(D)``.
    softcap : real number, optional
        None or 0: off.
    sinks : array_like, optional
        (Hq,): a logit for each head that joins the denominator and has no value.
    alibi_slopes : array_like, optional
        (Hq,) or (..., Hq).
    kv_lengths : array_like of int, optional
        The number of keys of each sequence, 0 to Sk, in the batch shape. What lies beyond is never read into a result.
    block_mask : BlockMask, optional
        Which blocks of scores take part; the others cost nothing.
    return_lse : bool, optional
        Whether to return the log of the denominator too.
    out : ndarray, optional
        Where to write the result; its shape and dtype. It may overlap inputs.

    Returns
    -------
    out : ndarray
        (..., Hq, Sq, Dv), in the joint dtype of q, k and v; (Sq, Dv) when these are all (S, D).
    lse : ndarray
        With ``return_lse``: (..., Hq, Sq), in nats, sinks included. float32; float64 when ``out`` is float64.

    Raises
    ------
    ValueError
        For shapes and values that do not fit.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    A query that sees no key gives 0 and an lse of -inf (the sink, with one). A score of -inf counts as unseen. A query
    that sees a score of NaN is NaN; of +inf, NaN with an lse of +inf. What a hidden key or value holds, NaN too, never
    reaches a query that does not see it. Half types and float32 are computed in float32 or wider. Extra memory grows
    with Sq, not with Sq·Sk. T. Dao and others, *FlashAttention*, 2022 (arXiv 2205.14135); M. Milakov and N. Gimelshein,
    *Online normalizer calculation for softmax*, 2018 (arXiv 1805.02867). The bound on the error is
    ``accuracy.attention_bound``.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> q = k = numpy.zeros((3, 2))
    >>> dualsoft.attention(q, k, [[1.0], [2.0], [6.0]], causal=True).ravel().tolist()
    [1.0, 1.5, 3.0]
    """
    options = (mask, bias, causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, kv_lengths, block_mask)
    problem, alone = attention_problem(q, k, v, options, return_lse, out)
    return _answer(problem, out, alone)


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    causal_offset: Any = None,
    window: Window = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    kv_lengths: Any = None,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Compute attention of sequences of different lengths, packed one after the other without padding.

    Sequence b has the queries ``q[:, cu_seqlens_q[b]:cu_seqlens_q[b + 1]]`` and the keys
    ``k[:, cu_seqlens_k[b]:cu_seqlens_k[b + 1]]``; the formula is that of ``attention``.

    Parameters
    ----------
    q : array_like
        (Hq, total_q, D).
    k, v : array_like
        (Hk, total_k, D) and (Hk, total_k, Dv).
    cu_seqlens_q, cu_seqlens_k : array_like of int
        (n + 1,): where each of n sequences starts, and the total. They rise from 0; sequences may be empty.
    mask, bias : array_like, optional
        Broadcast to (Hq, total_q, longest), ``longest`` the keys of the longest sequence: column j is the key j of the
        query's own sequence.
    causal_offset, kv_lengths : array_like of int, optional
        (n,); ``kv_lengths`` counts the keys of each sequence that take part, by default all.
    alibi_slopes : array_like, optional
        (Hq,) or (n, Hq).
    causal, window, scale, softcap, sinks, return_lse, out
        As for ``attention``.

    Returns
    -------
    out : ndarray
        (Hq, total_q, Dv).
    lse : ndarray
        With ``return_lse``: (Hq, total_q).

    Raises
    ------
    ValueError
        For shapes and values that do not fit.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    Special values, accuracy and papers: see ``attention``. A sequence has the bits that it has alone.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> x = numpy.zeros((1, 3, 2))
    >>> v = numpy.array([[[1.0], [3.0], [7.0]]])
    >>> dualsoft.attention_varlen(x, x, v, [0, 2, 3], [0, 2, 3]).ravel().tolist()
    [2.0, 2.0, 7.0]
    """
    options = (mask, bias, causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, kv_lengths, None)
    return _answer(varlen_problem(q, k, v, cu_seqlens_q, cu_seqlens_k, options, return_lse, out), out, False)


def attention_paged(
    q: Any,
    k_pages: Any,
    v_pages: Any,
    page_table: Any,
    kv_lengths: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    causal_offset: Any = None,
    window: Window = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    block_mask: BlockMask | None = None,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Compute attention over keys that are kept in pages of fixed size, in any order.

    Key j of sequence b is key ``j % page_size`` of the page ``page_table[b, j // page_size]``; the formula is that of
    ``attention``.

    Parameters
    ----------
    q : array_like
        (B, Hq, Sq, D).
    k_pages, v_pages : array_like
        (pages, Hk, page_size, D) and (pages, Hk, page_size, Dv).
    page_table : array_like of int
        (B, pages of a sequence). Entries past the last page that a sequence uses may hold anything.
    kv_lengths : array_like of int
        (B,): the number of keys of each sequence.
    mask, bias, block_mask : optional
        As for ``attention``, with Sk = pages of a sequence · page_size.
    causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, return_lse, out
        As for ``attention``.

    Returns
    -------
    out : ndarray
        (B, Hq, Sq, Dv).
    lse : ndarray
        With ``return_lse``: (B, Hq, Sq).

    Raises
    ------
    ValueError
        For shapes and values that do not fit, a used page that does not exist, a length beyond the table.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    Special values, accuracy and papers: see ``attention``, whose bits these are. Pages: W. Kwon and others, *Efficient
    memory management for large language model serving with PagedAttention*, 2023 (arXiv 2309.06180).

    Examples
    --------
    >>> import dualsoft, numpy
    >>> q, pages = numpy.zeros((1, 1, 1, 2)), numpy.zeros((3, 1, 2, 2))
    >>> values = numpy.arange(6.0).reshape(3, 1, 2, 1)
    >>> dualsoft.attention_paged(q, pages, values, [[2, 0]], [3]).item()  # keys 4, 5 and 0
    3.0
    """
    options = (mask, bias, causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, kv_lengths, block_mask)
    return _answer(paged_problem(q, k_pages, v_pages, page_table, options, return_lse, out), out, False)


def attention_state(
    q: Any,
    k: Any,
    v: Any,
    *,
    key_start: int = 0,
    key_total: int | None = None,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    causal_offset: Any = None,
    window: Window = None,
    scale: Any = None,
    softcap: Any = None,
    alibi_slopes: Any = None,
    kv_lengths: Any = None,
    block_mask: BlockMask | None = None,
) -> AttentionState:
    """Compute the partial result of attention for one chunk of the keys; those of all chunks ``merge`` to the whole.

    ``m = max s``, ``d = sum_j exp(s_j - m)``, ``out = sum_j exp(s_j - m)·v[j]`` with the scores s of ``attention``.

    Parameters
    ----------
    q : array_like
        (..., Hq, Sq, D).
    k, v : array_like
        (..., Hk, n, D) and (..., Hk, n, Dv): the chunk.
    key_start : int, optional
        How many keys come before the chunk.
    key_total : int, optional
        How many keys there are in all; by default the chunk is the last.
    mask, bias, block_mask : optional
        As for ``attention``, for the keys of the chunk.
    causal, causal_offset, window, alibi_slopes, kv_lengths : optional
        As for ``attention`` with all the keys: positions and lengths are those of the whole.
    scale, softcap : optional
        As for ``attention``. Sinks join at the end: ``AttentionState.finalize(sinks=...)``.

    Returns
    -------
    AttentionState
        ``out`` (..., Hq, Sq, Dv), float32 (float64 when the joint dtype of q, k and v is); ``m`` and ``d``
        (..., Hq, Sq).

    Raises
    ------
    ValueError
        For shapes and values that do not fit, and a chunk that is not within ``key_total``.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    Special values: see ``AttentionState``. M. N. Rabe and C. Staats, *Self-attention does not need O(n^2) memory*, 2021
    (arXiv 2112.05682).

    Examples
    --------
    >>> import dualsoft, numpy
    >>> state = dualsoft.attention_state(numpy.zeros((1, 2)), numpy.zeros((3, 2)), [[1.0], [2.0], [6.0]])
    >>> state.out.item(), state.m.item(), state.d.item()
    (9.0, 0.0, 3.0)
    """
    options = (mask, bias, causal, causal_offset, window, scale, softcap, None, alibi_slopes, kv_lengths, block_mask)
    problem, alone = attention_state_problem(q, k, v, options, key_start, key_total)
    out, m, d = problem.out, problem.m, problem.d
    if out.size:
        run(problem)
    return state_of_parts(*((out[0], m[0], d[0]) if alone and m is not None and d is not None else (out, m, d)))


def _answer(problem: AttentionProblem, out: Any, alone: bool) -> Any:
    """Run a problem; return what its caller wants, without the head axis where q, k and v came without."""
    result, lse = problem[3], problem[4]
    if result.size:
        run(problem)
    if alone:
        result, lse = result[0], None if lse is None else lse[0]
    if out is not None:
        result = delivered(result, out)
    return result if lse is None else (result, lse)
