"""The gradients of attention by their formulas, the scores stored, in a wider type; as ``attention_oracle``.

The "plain" computation has the gradients that a plain forward pass leads to: its weights and the gradients of its
scores are rounded to the dtype, products are summed in float32 (float64).
"""

from typing import Any, NamedTuple

import attention_oracle as forward
import numpy as np
from attention_oracle import largest
from oracle import Array
from tolerance import far_from

from dualsoft import accuracy

NAMES = ("q", "k", "v", "bias", "sinks")


class Gradient(NamedTuple):
    """That of one operand."""

    exact: Array
    plain: Array  # in the operand's dtype: the worst of several ways
    dtype: Any
    of_out: float  # what the rounding of the given out adds to a sum over queries, in which all else may cancel

    @property
    def limit(self) -> float:
        """The criterion of attention's own result."""
        return accuracy.attention_bound(self.plain, self.exact, self.dtype) + self.of_out


class Call(NamedTuple):
    """What a pass works on, apart from its types."""

    operands: tuple[Array, Array, Array]
    grad_out: Array
    grad_lse: Array | None
    seen: Array
    sinks: Any
    options: dict[str, Any]


FEW, SOME = 64, 4096


def wrong(got: Any, want: dict[str, Gradient], slack: float = 1) -> str | None:
    """What is wrong with an ``AttentionGrads``, or None; ``slack`` times the criterion is allowed.

    The criterion is one of maxima, and that of the plain computation may be small by chance, the sooner the fewer
    elements there are: of a few (sinks, a bias that is broadcast) four times as much is allowed, of some twice.
    """
    for name in NAMES:
        found = getattr(got, name)
        if name not in want:
            if found is not None:
                return f"{name} was not asked for"
            continue
        size = want[name].exact.size
        allowed = slack * want[name].limit * (4 if size < FEW else 2 if size < SOME else 1)
        why = far_from(name, found, want[name].exact, allowed, want[name].dtype)
        if why:
            return why
    return None


def dtype_of(x: Any) -> Any:
    dt = np.asarray(x).dtype
    return np.dtype(np.float64) if dt.kind in "biu" else dt.newbyteorder("=")


def gradients(
    grad_out: Any, q: Any, k: Any, v: Any, *, grad_lse: Any = None, mask: Any = None, causal: bool = False,
    causal_offset: Any = None, window: Any = None, kv_lengths: Any = None, block_mask: Any = None, sinks: Any = None,
    bias: Any = None, scale: Any = None, softcap: Any = None, alibi_slopes: Any = None,
) -> dict[str, Gradient]:  # fmt: skip
    """Those of q, k and v, of the bias and of the sinks where there are."""
    given = {"q": q, "k": k, "v": v, "bias": bias, "sinks": sinks}
    arrays = [np.asarray(x) for x in (q, k, v)]
    result = forward.result_dtype(*arrays)
    arithmetic = np.dtype(np.float64 if result == np.float64 else np.float32)
    wide = np.longdouble if result == np.float64 else np.float64
    operands = tuple(x[None] if x.ndim == 2 else x for x in arrays)
    lone = all(x.ndim == 2 for x in arrays)
    grad_out, grad_lse = (None if x is None else np.asarray(x)[None] if lone else x for x in (grad_out, grad_lse))
    seen = forward.visible(*operands, mask, causal, causal_offset, window, kv_lengths, block_mask)
    options = {
        "bias": bias, "scale": scale, "softcap": softcap, "alibi_slopes": alibi_slopes,
        "positions": forward.positions_of(*operands, causal_offset, kv_lengths),
    }  # fmt: skip
    call = Call(operands, grad_out, grad_lse, seen, sinks, options)
    found: dict[str, Gradient] = {}
    with np.errstate(all="ignore"):
        exact = one_pass(call, wide, arithmetic, None, np.matmul, np.exp)
        for product, exponential in forward.ways(seen.size):
            plain = one_pass(call, arithmetic, arithmetic, result, product, exponential)
            for name in NAMES:
                if given[name] is None:
                    continue
                dtype = dtype_of(given[name])
                want = summed(exact[name], np.shape(given[name]))
                rounded = summed(plain[name], np.shape(given[name])).astype(dtype)
                error = largest(rounded.astype(np.float64).astype(wide) - want)
                of_out = 0.0
                if name in ("bias", "sinks") and want.size < np.size(exact["scores"]):
                    parts = exact["scores"] if name == "bias" else exact["shares"]
                    of_out = accuracy.unit_roundoff(result) * float(largest(summed(parts, np.shape(given[name]))))
                if name not in found or error > largest(found[name].plain.astype(np.float64).astype(wide) - want):
                    found[name] = Gradient(want, rounded, dtype, of_out)
    return found


def one_pass(
    call: Call, wide: Any, arithmetic: Any, dtype: Any, product: Any, exponential: Any
) -> dict[str, Array | None]:
    """The gradients in the type ``wide``, before any axis that was broadcast is summed; rounded to ``dtype``."""
    wide = np.dtype(wide)

    def rounded(x: Array) -> Array:
        return x if dtype is None else x.astype(dtype).astype(wide)

    q, k = forward.heads(call.operands[0], call.operands[1], wide)
    v = forward.heads(call.operands[0], call.operands[2], wide)[1]
    g = np.asarray(call.grad_out).astype(np.float64).astype(wide)
    s = forward.scores(q, k, arithmetic, call.seen, product=product, **call.options).s
    s = s if dtype is None else forward.to_dtype(s, dtype, arithmetic)
    p, lse, _ = forward.softmax(s, call.sinks, wide, exponential)
    p, seen = rounded(p), s > -np.inf
    p = np.where(seen | np.isnan(s), p, 0)
    out = rounded(forward.weigh(p, s, v, product))
    delta = np.where(out == 0, 0, g * out).sum(-1)
    if call.grad_lse is not None:
        delta = delta - np.asarray(call.grad_lse).astype(wide)
    ds = rounded(np.where(p == 0, 0, p * (product(g, v.swapaxes(-1, -2)) - delta[..., None])))
    factor = wide.type(1 / np.sqrt(wide.type(q.shape[-1])) if call.options["scale"] is None else call.options["scale"])
    raw = ds
    if call.options["softcap"]:
        raw = np.where(ds == 0, 0, ds * slope(factor * product(q, k.swapaxes(-1, -2)), call.options["softcap"]))
    group = q.shape[-3] // max(1, call.operands[1].shape[-3])
    found = {
        "q": factor * product(raw, np.where(np.isfinite(k), k, 0)),
        "k": shared(factor * product(raw.swapaxes(-1, -2), np.where(np.isfinite(q), q, 0)), group),
        "v": shared(product(p.swapaxes(-1, -2), g), group),
        "bias": ds,
        "sinks": None,
        # of what is summed into delta, the sizes: each gradient of a score has p times that of its row
        "scores": p * np.abs(np.where(out == 0, 0, g * out)).sum(-1)[..., None],
    }
    if call.sinks is not None:
        sink = np.asarray(call.sinks).astype(wide)[:, None]
        share = np.where(np.isneginf(sink) | np.isneginf(lse), 0, exponential(sink - lse))
        found["sinks"] = -(share * delta).sum(-1)
        found["shares"] = (share * np.abs(np.where(out == 0, 0, g * out)).sum(-1)).sum(-1)
    return found


def slope(s: Array, softcap: Any) -> Array:
    """The derivative of the softcap."""
    return np.asarray(1 - np.tanh(s / s.dtype.type(softcap)) ** 2)


def shared(x: Array, group: int) -> Array:
    """(..., Hq, S, D) summed over the query heads that share a head: (..., Hk, S, D)."""
    heads = x.shape[-3] // group if group else 0
    return x.reshape(*x.shape[:-3], heads, group, *x.shape[-2:]).sum(-3)


def summed(x: Array | None, shape: tuple[int, ...]) -> Array:
    """The sum over the axes in which an operand of this shape was broadcast."""
    if x is None:
        raise ValueError("there is no such gradient")
    kept = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = tuple(axis for axis, n in enumerate(kept) if n != x.shape[axis])
    return np.asarray(x.sum(axis=axes, keepdims=True).reshape(shape))
