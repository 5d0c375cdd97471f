"""The frozen description of a call for the gradients of attention, and the only place that judges its arguments.

What describes the forward pass is an ``AttentionProblem`` whose ``out`` and ``lse`` are inputs here.
"""

import math
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from dualsoft.arguments import Shape, real
from dualsoft.arrays import Array, as_array, module_of, same_kind, with_device_of
from dualsoft.attention_operands import Operands, operands
from dualsoft.attention_problem import AttentionProblem, Options, assembled, extras_of, packed_of, rules_of
from dualsoft.dtypes import F64, FLOAT64, DType, find_format

NEEDS = ("q", "k", "v", "bias", "sinks")
_FLOAT32 = np.dtype(np.float32)


class GradientProblem(NamedTuple):
    """``dv = p'·g``, ``dq = scale·ds·k``, ``dk = scale·ds'·q``, ``p = exp(s - lse)`` and ``ds = p·(g·v' - delta)``.

    g is ``grad_out`` and ``delta = sum g·out - grad_lse``, one for each query. ds is the gradient of the scores that
    enter the softmax, dbias, and is multiplied by ``1 - tanh(s / softcap)**2`` on the way to q and k. A gradient is
    written whole; those of k and v are 0 when they come.
    """

    forward: AttentionProblem
    """``out`` and ``lse`` are given, in any real dtype; ``out_code`` tells the arithmetic, as in the forward pass."""
    out_code: int
    """Of the given ``out``."""
    lse_code: int
    grad_out: Array
    """As ``forward.out``: (..., Hq, Sq, Dv)."""
    grad_out_code: int
    grad_lse: Array | None
    """(..., Hq, Sq)."""
    grad_lse_code: int
    """-1 without ``grad_lse``, as the codes of gradients that nobody needs."""
    dq: Array | None
    """(..., Hq, Sq, D); None where nobody needs it, as the others. 0 when it comes, as the others."""
    dq_code: int
    dk: Array | None
    dk_code: int
    dv: Array | None
    dv_code: int
    dbias: Array | None
    """As ``forward.bias``, broadcast by strides of 0 as that is."""
    dbias_code: int
    bias_sums: bool
    """Whether elements of ``dbias`` (float64 then) gather several scores' gradients, which are added."""
    dsinks: Array | None
    """float64, contiguous, (Hq,)."""

    @property
    def x(self) -> Array:
        """What tells the kind of array: ``q``."""
        return self.forward.q

    @property
    def x_code(self) -> int:
        """Of q."""
        return self.forward.x_code

    @property
    def out(self) -> tuple[Array, ...]:
        """What a backend writes."""
        return tuple(x for x in (self.dq, self.dk, self.dv, self.dbias, self.dsinks) if x is not None)


class Answer(NamedTuple):
    """A gradient as the caller gets it: what was computed, summed over the axes that the call broadcast."""

    computed: Array
    shape: Shape
    dtype: DType


Answers = dict[str, Answer]
"""By name, those that are needed."""


class _Made(NamedTuple):
    """A gradient for a backend to write, and what becomes of it."""

    array: Array | None
    code: int
    answer: Answer | None


_NOTHING = _Made(None, -1, None)


@with_device_of(itemgetter(1))
def gradient_problem(
    grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, grad_lse: Any, needs: object, options: Options
) -> tuple[GradientProblem, Answers]:
    """Judge the arguments of ``attention_backward``; tell too what to return."""
    wanted = _needs_of(needs, options)
    q, k, v = _arrays(q, k, v)
    given = operands(q, k, v)
    batch, heads, queries, keys = given.q.shape[:-3], given.q.shape[-3], given.q.shape[-2], given.k.shape[-2]
    rules = rules_of(options, given.q, batch, heads, math.prod(batch), queries, keys)
    extras = extras_of(options, given.q, (*batch, heads, queries, keys))
    out, lse = _like_out(out, "out", given), _like_lse(lse, "lse", given)
    forward = assembled(given, out, lse, None, None, rules, extras, None, None, None)
    return _problem(forward, (q, k, v), given, grad_out, grad_lse, wanted, options)


@with_device_of(itemgetter(1))
def packed_gradient_problem(
    grad_out: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    cu_seqlens_q: object,
    cu_seqlens_k: object,
    grad_lse: Any,
    needs: object,
    options: Options,
) -> tuple[GradientProblem, Answers]:
    """Judge the arguments of ``attention_varlen_backward``; tell too what to return."""
    wanted = _needs_of(needs, options)
    q, k, v = _arrays(q, k, v)
    given = operands(q, k, v)
    q_starts, k_starts, rules, extras = packed_of(given, cu_seqlens_q, cu_seqlens_k, options)
    out, lse = _like_out(out, "out", given), _like_lse(lse, "lse", given)
    forward = assembled(given, out, lse, None, None, rules, extras, q_starts, k_starts, None)
    return _problem(forward, (q, k, v), given, grad_out, grad_lse, wanted, options)


def _arrays(q: Any, k: Any, v: Any) -> tuple[Array, Array, Array]:
    """Return the operands as arrays of one kind, before anything is broadcast: their gradients have these shapes."""
    q = as_array(q, "q")
    return q, same_kind(k, "k", q, "q"), same_kind(v, "v", q, "q")


def _needs_of(needs: object, options: Options) -> frozenset[str]:
    """Return which gradients are needed.

    Raises
    ------
    TypeError
        When ``needs`` is not a tuple, list or set.
    ValueError
        For a name that is not known, and for an option that was not given.
    """
    if not isinstance(needs, tuple | list | set | frozenset):
        raise TypeError(f"needs must be a tuple, list or set of names, of {NEEDS}, got {needs!r}")
    for name in needs:
        if name not in NEEDS:
            raise ValueError(f"needs must be of the names {NEEDS}, got {name!r}")
    for name, option in (("bias", options[1]), ("sinks", options[7])):
        if name in needs and option is None:
            raise ValueError(f"needs names {name!r}, and {name} was not given")
    return frozenset(needs)


def _like_out(value: Any, name: str, given: Operands) -> Array:
    """Return ``out`` or its gradient with an axis of heads."""
    return _beside(value, name, given, given.out_shape, "that of the result of attention")


def _like_lse(value: Any, name: str, given: Operands) -> Array:
    """Return ``lse`` or its gradient with an axis of heads."""
    return _beside(value, name, given, given.out_shape[:-1], "that of the lse of attention")


def _beside(value: Any, name: str, given: Operands, shape: Shape, what: str) -> Array:
    array = real(same_kind(value, name, given.q, "q"), name)
    expected = shape[1:] if given.alone else shape
    if array.shape != expected:
        raise ValueError(f"{name} must have the shape {expected}, {what}, got {array.shape}")
    return array[None] if given.alone else array


def _problem(
    forward: AttentionProblem,
    plain: tuple[Array, Array, Array],
    given: Operands,
    grad_out: Any,
    grad_lse: Any,
    wanted: frozenset[str],
    options: Options,
) -> tuple[GradientProblem, Answers]:
    grad_out = _like_out(grad_out, "grad_out", given)
    grad_lse = None if grad_lse is None else _like_lse(grad_lse, "grad_lse", given)
    xp = module_of(given.q)
    sums = FLOAT64 if given.result_code == F64 else _FLOAT32
    made = {
        name: _of_operand(array, whole, sums) if name in wanted else _NOTHING
        for name, array, whole in zip("qkv", plain, (given.q, given.k, given.v), strict=True)
    }
    made["bias"] = _of_bias(options[1], forward, given) if "bias" in wanted else _NOTHING
    made["sinks"] = _NOTHING
    if "sinks" in wanted:
        sinks = same_kind(options[7], "sinks", given.q, "q")
        array = xp.zeros(sinks.shape, FLOAT64)
        made["sinks"] = _Made(array, F64, Answer(array, sinks.shape, _dtype_of(sinks)))
    dq, dk, dv, dbias = (made[name] for name in ("q", "k", "v", "bias"))
    problem = GradientProblem(
        forward=forward,
        out_code=_code_of(forward.out),
        lse_code=_code_of(forward.lse),
        grad_out=grad_out,
        grad_out_code=_code_of(grad_out),
        grad_lse=grad_lse,
        grad_lse_code=_code_of(grad_lse),
        dq=dq.array,
        dq_code=dq.code,
        dk=dk.array,
        dk_code=dk.code,
        dv=dv.array,
        dv_code=dv.code,
        dbias=dbias.array,
        dbias_code=dbias.code,
        bias_sums=_gathers(dbias, forward.bias),
        dsinks=made["sinks"].array,
    )
    return problem, {name: one.answer for name, one in made.items() if one.answer is not None}


def _code_of(array: Array | None) -> int:
    known = None if array is None else find_format(array.dtype)
    return -1 if known is None else known.code


def _dtype_of(array: Array) -> DType:
    """Return the dtype of the gradient of ``array``: its own in the machine's byte order, float64 for integers."""
    known = find_format(array.dtype)
    return FLOAT64 if known is None else known.result


def _of_operand(array: Array, whole: Array, sums: DType) -> _Made:
    """Make the gradient of q, k or v. Of an operand that was broadcast there is one for each use, to be summed."""
    xp, dtype = module_of(array), _dtype_of(array)
    used = whole.shape
    if math.prod(used) == math.prod(array.shape):
        # In the order of the operand's axes: what came as a view of (B, S, H, D) has a gradient that is one.
        like = xp.zeros_like(whole, dtype=dtype)
        if like.strides[-1] != like.itemsize:
            like = xp.zeros(used, dtype)
    else:
        like = xp.zeros(used, sums)
    return _Made(like, _code_of(like), Answer(like, array.shape, dtype))


def _of_bias(bias: Any, forward: AttentionProblem, given: Operands) -> _Made:
    """Make the gradient of the bias: in its dtype where it has an element for every score, else float64 to add to."""
    array = same_kind(bias, "bias", given.q, "q")
    xp, dtype = module_of(array), _dtype_of(array)
    scores = () if forward.bias is None else forward.bias.shape
    shape = (1,) * (len(scores) - array.ndim) + array.shape
    made = xp.zeros(shape, dtype if shape == scores else FLOAT64)
    view = made
    if shape != scores:
        strides = tuple(0 if n == 1 else step for n, step in zip(shape, made.strides, strict=True))
        view = xp.ndarray(scores, FLOAT64, made if xp is np else made.data, strides=strides)
    return _Made(view, _code_of(made), Answer(made, array.shape, dtype))


def _gathers(made: _Made, bias: Array | None) -> bool:
    return made.answer is not None and bias is not None and made.answer.computed.shape != bias.shape
