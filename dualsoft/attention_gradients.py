"""The gradients of attention: ``attention_backward``, and the same for packed sequences."""

from typing import Any, NamedTuple

from dualsoft.arrays import Array, module_of, on_device_of, scalar_if_0d
from dualsoft.attention import Window
from dualsoft.block_mask import BlockMask
from dualsoft.gradient_problem import Answer, Answers, GradientProblem, gradient_problem, packed_gradient_problem
from dualsoft.registry import run


class AttentionGrads(NamedTuple):
    """The gradients of attention's operands: how much a small change of each adds to what the results are used for.

    Parameters
    ----------
    q, k, v : ndarray or None
        In the shape and dtype of the operand; float64 for integers. None where they were not needed.
    bias, sinks : ndarray or None
        Likewise.

    Raises
    ------
    TypeError
        When one is left out.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.AttentionGrads(q=1.0, k=2.0, v=None, bias=None, sinks=None).k
    2.0
    """

    q: Array | None
    k: Array | None
    v: Array | None
    bias: Array | None
    sinks: Array | None


def attention_backward(
    grad_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    grad_lse: Any = None,
    needs: Any = ("q", "k", "v"),
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
) -> AttentionGrads:
    """Compute the gradients of attention from those of its results, without storing the scores.

    With ``p = exp(s - lse)``, recomputed, and ``ds = p·(grad_out·v' - sum grad_out·out + grad_lse)``:
    ``dv = p'·grad_out``, ``dq = scale·ds·k``, ``dk = scale·ds'·q``.

    Parameters
    ----------
    grad_out : array_like
        (..., Hq, Sq, Dv): the gradient of ``out``, real. Any strides.
    q, k, v : array_like
        As they were given to ``attention``.
    out : array_like
        (..., Hq, Sq, Dv): what ``attention`` returned.
    lse : array_like
        (..., Hq, Sq): likewise, with ``return_lse``.
    grad_lse : array_like, optional
        (..., Hq, Sq): the gradient of ``lse``; by default 0.
    needs : tuple, list or set of str, optional
        Which gradients to compute, of "q", "k", "v", "bias" and "sinks".
    mask, bias, causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, kv_lengths, block_mask : optional
        As they were given to ``attention``.

    Returns
    -------
    AttentionGrads
        ``q``, ``k``, ``v``, ``bias``, ``sinks``, each in the shape and dtype of what it is the gradient of (float64 for
        integers), summed over axes that were broadcast and over query heads that share a head; None where not needed.

    Raises
    ------
    ValueError
        For shapes and values that do not fit, and for ``needs`` that name an option that was not given.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    A query that sees no key has no gradient and gives none, whatever ``grad_out`` holds there. A query that is NaN
    makes the gradients NaN of itself and of the keys and values that it sees. What a hidden key, value or gradient
    holds reaches nothing that it is hidden from. ``out`` and ``lse`` may be those of more keys than ``k`` has, of which
    these are a chunk: the gradients are then the chunk's share. Each is summed in a fixed order: the bits do not
    depend on the number of threads. Extra memory grows with Sq·D and Sk·D, not with Sq·Sk. T. Dao, *FlashAttention-2*,
    2023 (arXiv 2307.08691). The bound on each gradient's error is ``accuracy.attention_bound``.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> q, k, v = numpy.zeros((1, 2)), numpy.array([[0.0, 1.0], [2.0, 0.0]]), numpy.array([[1.0], [3.0]])
    >>> out, lse = dualsoft.attention(q, k, v, return_lse=True, scale=1.0)
    >>> grads = dualsoft.attention_backward([[1.0]], q, k, v, out, lse, scale=1.0)
    >>> grads.v.round(15).tolist(), grads.q.round(15).tolist()
    ([[0.5], [0.5]], [[1.0, -0.5]])
    """
    options = (mask, bias, causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, kv_lengths, block_mask)
    return _answered(*gradient_problem(grad_out, q, k, v, out, lse, grad_lse, needs, options))


def attention_varlen_backward(
    grad_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    grad_lse: Any = None,
    needs: Any = ("q", "k", "v"),
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
) -> AttentionGrads:
    """Compute the gradients of ``attention_varlen``: of sequences packed one after the other.

    The formulas are those of ``attention_backward``.

    Parameters
    ----------
    grad_out : array_like
        (Hq, total_q, Dv): the gradient of ``out``.
    q, k, v : array_like
        As they were given to ``attention_varlen``.
    out, lse : array_like
        (Hq, total_q, Dv) and (Hq, total_q): what it returned.
    cu_seqlens_q, cu_seqlens_k : array_like of int
        As they were given to it.
    grad_lse : array_like, optional
        (Hq, total_q).
    needs : tuple, list or set of str, optional
        As for ``attention_backward``.
    mask, bias, causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, kv_lengths : optional
        As they were given to ``attention_varlen``.

    Returns
    -------
    AttentionGrads
        As of ``attention_backward``.

    Raises
    ------
    ValueError
        For shapes and values that do not fit.
    TypeError
        For dtypes and kinds of array that are not taken.

    Notes
    -----
    Special values, accuracy and the paper: see ``attention_backward``. A sequence has the bits that it has alone.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> x, v, starts = numpy.zeros((1, 3, 2)), numpy.array([[[1.0], [3.0], [7.0]]]), [0, 2, 3]
    >>> out, lse = dualsoft.attention_varlen(x, x, v, starts, starts, return_lse=True)
    >>> grads = dualsoft.attention_varlen_backward(numpy.ones((1, 3, 1)), x, x, v, out, lse, starts, starts)
    >>> grads.v.ravel().round(15).tolist()
    [1.0, 1.0, 1.0]
    """
    options = (mask, bias, causal, causal_offset, window, scale, softcap, sinks, alibi_slopes, kv_lengths, None)
    return _answered(
        *packed_gradient_problem(grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, grad_lse, needs, options)
    )


def _answered(problem: GradientProblem, answers: Answers) -> AttentionGrads:
    """Run a problem; return what its caller wants."""
    if answers and problem.grad_out.size:
        run(problem)
    return AttentionGrads(*(_delivered(answers.get(name)) for name in AttentionGrads._fields))


def _delivered(answer: Answer | None) -> Array | None:
    """Return a gradient in the shape and dtype of what it belongs to: summed over the axes that were broadcast."""
    if answer is None:
        return None
    computed, shape, dtype = answer
    with on_device_of(computed):
        if computed.shape != shape:
            kept = (1,) * (computed.ndim - len(shape)) + shape
            axes = tuple(axis for axis, n in enumerate(kept) if n != computed.shape[axis])
            if axes:
                computed = computed.sum(axis=axes, dtype=module_of(computed).float64)
            computed = computed.reshape(shape)
        return scalar_if_0d(computed if computed.dtype == dtype else computed.astype(dtype))
