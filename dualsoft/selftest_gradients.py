"""The self-test of attention's gradients: the calls of its own self-test, against the reference in longdouble.

Errors are shares of the criterion of attention's result, twice the error of the plain computation and 2 ulp
(``accuracy.attention_bound``). It is one of maxima, and that of a plain computation may be small by chance, the sooner
the fewer elements there are: of a few (sinks, a bias that is broadcast) four times as much is allowed, of some twice.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dualsoft import accuracy
from dualsoft.attention_gradients import attention_backward, attention_varlen_backward
from dualsoft.attention_problem import attention_problem
from dualsoft.backends import reference
from dualsoft.gradient_problem import gradient_problem
from dualsoft.selftest_arrays import Calls
from dualsoft.selftest_attention import Case, Plain, cases, options_of, plain, share_of

WIDE = np.dtype(np.longdouble)
FEW, SOME = 64, 4096
Array = np.ndarray[Any, Any]


class _Call(NamedTuple):
    """A backward pass: what it gets beside the operands of its case, and what must come of it."""

    case: Case
    grad_out: Array
    grad_lse: Array
    out: Array
    lse: Array
    needs: tuple[str, ...]
    exact: tuple[Array, ...]
    limits: tuple[float, ...]


def attention_gradient_shares(dtype: np.dtype[Any], calls: Calls) -> Iterator[tuple[str, str, float]]:
    """Yield (function, case, worst error as a share of its bound) for inputs of one dtype."""
    for call in _calls(dtype):
        for function, answer in _answers(call, calls):
            shares = map(share_of, answer, call.exact, call.limits)
            yield function, call.case.name, max(shares)


@lru_cache
def _calls(dtype: np.dtype[Any]) -> list[_Call]:
    return [_call(case) for case in cases(dtype)]


def _call(case: Case) -> _Call:
    rng, dtype = np.random.default_rng(20220527), case.q.dtype
    forward, _ = attention_problem(case.q, case.k, case.v, options_of(case), True, None)
    reference.run(forward)
    out, lse = forward.out, forward.lse
    if lse is None:
        raise RuntimeError("attention was asked for lse and made none")
    grad_out, grad_lse = (rng.standard_normal(like.shape).astype(like.dtype) for like in (out, lse))
    needs = ("q", "k", "v", *(name for name in ("bias", "sinks") if name in case.options))
    given = (case.q, case.k, case.v, *(case.options[name] for name in needs[3:]))
    exact = _exact(case, grad_out, grad_lse, out, lse, needs)
    limits = [0.0] * len(needs)
    for product in (np.matmul, _in_order):
        with np.errstate(all="ignore"):
            found = _plain_gradients(plain(case, lse.dtype, product), grad_out, grad_lse, dtype, product)
        for index, (name, array, want) in enumerate(zip(needs, given, exact, strict=True)):
            limits[index] = max(limits[index], _limit(found, name, array, want, dtype))
    return _Call(case, grad_out, grad_lse, out, lse, needs, exact, tuple(limits))


def _limit(found: dict[str, Any], name: str, array: Array, want: Array, dtype: np.dtype[Any]) -> float:
    """Return the error allowed the gradient of ``array``."""
    rounded = _summed(found[name], array.shape).astype(array.dtype)
    limit = accuracy.attention_bound(rounded, want, array.dtype)
    if name in found["shares"]:
        # What the rounding of the given out adds to a sum over queries, in which all else may cancel.
        limit += accuracy.unit_roundoff(dtype) * float(np.max(_summed(found["shares"][name], array.shape)))
    return limit * (4 if want.size < FEW else 2 if want.size < SOME else 1)


def _in_order(left: Array, right: Array) -> Array:
    """Return a product whose terms are added one after the other: as plain as matmul's, with errors of its own."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), left.dtype)
    for k in range(left.shape[-1]):
        total += left[..., k, None] * right[..., k, None, :]
    return total


def _exact(case: Case, grad_out: Array, grad_lse: Array, out: Array, lse: Array, needs: Any) -> tuple[Array, ...]:
    """Return the gradients by the reference in longdouble."""
    made, answers = gradient_problem(grad_out, case.q, case.k, case.v, out, lse, grad_lse, needs, options_of(case))
    # One gradient for each score and use: what was broadcast is summed here, in longdouble.
    outputs: dict[str, Any] = {name: np.zeros(getattr(made, f"d{name}").shape, WIDE) for name in needs}
    reference.run(made._replace(bias_sums=False, **{f"d{name}": x for name, x in outputs.items()}), WIDE)
    return tuple(_summed(x, answers[name].shape) for name, x in outputs.items())


def _plain_gradients(
    of: Plain, grad_out: Array, grad_lse: Array, dtype: np.dtype[Any], product: Callable[[Array, Array], Array]
) -> dict[str, Any]:
    """Return the gradients that a plain forward pass leads to, before what was broadcast is summed."""
    compute = of.q.dtype
    p = np.where(of.visible, of.p, 0)
    g = grad_out.astype(compute)
    parts = g * of.out.astype(dtype).astype(compute)
    delta = parts.sum(-1, keepdims=True) - grad_lse[..., None]
    ds = np.where(p == 0, 0, p * (product(g, of.v.swapaxes(-1, -2)) - delta)).astype(dtype).astype(compute)
    raw = ds * of.slope
    sizes = np.abs(parts).sum(-1, keepdims=True)
    q, k = (np.where(np.isfinite(x), x, 0) for x in (of.q, of.k))
    return {
        "q": of.scale * product(raw, k),
        "k": _shared(of.scale * product(raw.swapaxes(-1, -2), q)),
        "v": _shared(product(p.swapaxes(-1, -2), g)),
        "bias": ds,
        "sinks": -(of.sink * delta).sum((0, 2, 3)),
        "shares": {"bias": p * sizes, "sinks": (of.sink * sizes).sum((0, 2, 3))},
    }


def _shared(x: Array) -> Array:
    """Return what belongs to 4 heads of queries summed over the two that share a head of keys."""
    summed: Array = x.reshape(x.shape[0], 2, 2, *x.shape[2:]).sum(2)
    return summed


def _summed(x: Array, shape: tuple[int, ...]) -> Array:
    """Return the sum over the axes in which an operand of this shape was broadcast."""
    kept = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(axis for axis, n in enumerate(kept) if n != x.shape[axis])
    summed: Array = x.sum(axis=axes, keepdims=True).reshape(shape)
    return summed


def _answers(call: _Call, calls: Calls) -> Iterator[tuple[str, list[Array]]]:
    """Yield (function, gradients) of both functions, where packed sequences can have the options."""
    case = call.case
    q, k, v, options = case.q, case.k, case.v, case.options
    beside = (call.out, call.lse)
    asked: dict[str, Any] = {"grad_lse": call.grad_lse, "needs": call.needs, **options}
    yield "attention_backward", _wanted(calls(attention_backward, call.grad_out, q, k, v, *beside, **asked))
    if "mask" in options or "bias" in options:
        return
    grad_out, q, k, v, out, lse, grad_lse = (
        np.concatenate(list(x), axis=1) for x in (call.grad_out, q, k, v, *beside, call.grad_lse)
    )
    starts = (np.arange(3) * x.shape[2] for x in (case.q, case.k))
    asked["grad_lse"] = grad_lse
    packed = _wanted(calls(attention_varlen_backward, grad_out, q, k, v, out, lse, *starts, **asked))
    yield "attention_varlen_backward", [np.stack(np.split(x, 2, axis=1)) for x in packed]


def _wanted(answer: tuple[Any, ...]) -> list[Array]:
    return [x for x in answer if x is not None]
