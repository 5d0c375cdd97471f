"""Gradients of attention: five matrix products a head, of which the scores' is made again from q, k and lse."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

import dualsoft
from bench.attention.case import AttentionCase, Data, data_of, visible
from bench.attention.plain import mask_of, too_large
from bench.ceilings import arithmetic
from bench.contest import BASELINE, Array, Call, Form, Rate, Verdict, Work
from bench.libraries import Library
from dualsoft import accuracy

PRODUCTS = 2.5
"""Those of the backward pass over the two of the forward pass: 10·Sq·Sk·D for a head that sees everything."""
LIMITED = ("dq", "dk", "dv")


class GradientOperation(NamedTuple):
    """The backward pass as an operation to be timed; the forward pass is done before."""

    name: str
    cases: tuple[AttentionCase, ...]
    takes_shapes: bool = False
    bound_by: Literal["arithmetic"] = "arithmetic"

    def with_dtype(self, case: AttentionCase, dtype: str) -> AttentionCase:
        """Return a case in another dtype."""
        return case._replace(dtype=dtype)

    def contest(self, case: AttentionCase, dtype: np.dtype[Any]) -> "GradientContest":
        """Make a case ready."""
        return GradientContest(self, case, dtype)

    def work(self, case: AttentionCase, moved: int) -> Work:
        """Describe a case."""
        shape = (case.batch, case.heads_q, case.seq_len_q, case.head_dim)
        return Work(case.label, shape, None, moved, PRODUCTS * case.flops, "")


class Gradient(NamedTuple):
    """The exact gradient of one operand, and the limits on its error."""

    exact: Array
    ulp: float
    limit: float
    """dualsoft's bound: that of ``accuracy.attention_bound`` from the plain computation in the same dtype."""
    shared_limit: float
    """Others': half of the dtype's digits."""


class GradientContest:
    """One case: operands, the gradient of the result, and dq, dk and dv from wide arithmetic.

    A result is dq, dk and dv behind one another, as rows of D.
    """

    def __init__(self, operation: GradientOperation, case: AttentionCase, dtype: np.dtype[Any]) -> None:
        self.operation, self.case = operation, case
        self.data = data_of(case, dtype)
        self.grad_out = grad_of(self.data)
        self.parts = gradients_of(case, self.data, self.grad_out)
        self.result_shape = (sum(len(part.exact) for part in self.parts), case.head_dim)
        # q, k, v, out and its gradient are read, dq, dk and dv written; lse is small.
        moved = 4 * self.data.q.nbytes + 2 * (self.data.k.nbytes + self.data.v.nbytes)
        self.work = operation.work(case, int(moved))

    def forms(self, name: str, library: Library) -> Mapping[str, Form] | str:
        """Return the ways in which a library does it, or the reason why it does not take part."""
        if name == "dualsoft":
            return {"": Form(ours_call(self.case, self.data, self.grad_out), rows_of)}
        if name not in _CONTENDERS:
            return f"{name} has no gradients of attention" if name != "torch.compile" else "its gradients are SDPA's"
        return _CONTENDERS[name](self.case, self.data, self.grad_out, library)

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare a result with the exact one, each of the three by its own limit."""
        return judged(self.parts, found, ours)

    def baselines(self, library: Library) -> dict[str, Call]:
        """Return dualsoft in float32, beside half types."""
        if self.data.q.dtype.itemsize >= 4:
            return {}
        wide = self.case._replace(dtype=BASELINE)
        data = data_of(wide, np.dtype(BASELINE))
        return {f"{library.name} {BASELINE}": ours_call(wide, data, grad_of(data))}

    def ceilings(self, threads: int) -> dict[str, Call | Rate | str]:
        """Return that of the arithmetic in this dtype."""
        name, ceiling = arithmetic(self.case.dtype, self.work.flops, threads)
        return {name: ceiling}


def judged(parts: Sequence[Gradient], found: Array, ours: bool) -> Verdict:
    """Compare dq, dk and dv behind one another with the exact ones, each by its own limit."""
    start, ulps, beyond = 0, 0.0, []
    for name, part in zip(LIMITED, parts, strict=True):
        rows = found[start : start + len(part.exact)].astype(part.exact.dtype)
        start += len(rows)
        worst = float(np.max(np.abs(rows - part.exact)))
        # maximum keeps NaN, and NaN is no smaller than any limit.
        ulps = float(np.maximum(ulps, worst / part.ulp))
        if not worst <= (part.limit if ours else part.shared_limit):
            beyond.append(name)
    called = "twice the plain computation's error" if ours else "half of the digits"
    return Verdict(ulps, f"{called}, in {' and '.join(beyond)}" if beyond else None)


def grad_of(data: Data) -> Array:
    """Return the gradient of the result, drawn as the operands are."""
    draw = np.random.default_rng(1)
    return draw.standard_normal(data.result_shape, dtype=np.float32).astype(data.q.dtype)


def rows_of(gradients: tuple[Array, ...]) -> Array:
    """Return dq, dk and dv behind one another; other gradients are left out."""
    return np.concatenate([np.asarray(x).reshape(-1, x.shape[-1]) for x in gradients[:3]])


def ours_call(case: AttentionCase, data: Data, grad_out: Array) -> Call:
    """Return dualsoft's call, after a forward pass."""
    q, k, v = data.q, data.k, data.v
    out, lse = dualsoft.attention(q, k, v, causal=case.causal, return_lse=True)
    return lambda: dualsoft.attention_backward(grad_out, q, k, v, out, lse, causal=case.causal)


def numpy_forms(case: AttentionCase, data: Data, grad_out: Array, _: Library) -> dict[str, Form] | str:
    """Five products over the stored weights, heads broadcast: the forward pass has kept them."""
    why = too_large(case, data.q.dtype.itemsize)
    if why is not None:
        return why
    scale = data.q.dtype.type(1 / math.sqrt(case.head_dim))
    shape = (case.batch, case.heads_k, case.group, case.seq_len_q, case.head_dim)
    q, g = data.q.reshape(shape), grad_out.reshape(shape)
    k, v = data.k[:, :, None], data.v[:, :, None]
    seen = mask_of(case, data)
    s = (q @ k.swapaxes(-1, -2)) * scale
    if seen is not None:
        s[..., ~seen] = -np.inf
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    out = p @ v

    def call() -> tuple[Array, ...]:
        ds = g @ v.swapaxes(-1, -2)
        ds -= (g * out).sum(axis=-1, keepdims=True)
        ds *= p
        ds *= scale
        dk, dv = (x.swapaxes(-1, -2) @ y for x, y in ((ds, q), (p, g)))
        return ds @ k, dk.sum(axis=2), dv.sum(axis=2)

    return {"": Form(call, rows_of)}


def torch_forms(case: AttentionCase, data: Data, grad_out: Array, library: Library) -> dict[str, Form] | str:
    """Return autograd of SDPA, whose forward pass is not timed."""
    torch = library.module
    q, k, v, g = (library.given(torch, x) for x in (data.q, data.k, data.v, grad_out))
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    options = {"enable_gqa": True} if case.group > 1 else {}
    out = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=case.causal, **options)
    return {
        "autograd of SDPA": Form(
            lambda: torch.autograd.grad(out, given, g, retain_graph=True),
            lambda found: rows_of(tuple(library.taken(x) for x in found)),
        )
    }


def jax_forms(case: AttentionCase, data: Data, grad_out: Array, library: Library) -> dict[str, Form] | str:
    """Return the compiled pull-back of dot_product_attention, on (B, S, H, D), the layout of its own."""
    why = too_large(case)
    if why is not None:
        return why
    jax = library.module
    q, k, v, g = (
        jax.numpy.asarray(np.ascontiguousarray(x.swapaxes(-2, -3))) for x in (data.q, data.k, data.v, grad_out)
    )

    def attend(q: Array, k: Array, v: Array) -> Array:
        return jax.nn.dot_product_attention(q, k, v, is_causal=case.causal)

    pull = jax.jit(lambda q, k, v: jax.vjp(attend, q, k, v)[1])(q, k, v)
    compiled = jax.jit(lambda pull, g: pull(g))
    return {
        "": Form(
            lambda: jax.block_until_ready(compiled(pull, g)),
            lambda found: rows_of(tuple(np.asarray(x).swapaxes(-2, -3) for x in found)),
        )
    }


_CONTENDERS: dict[str, Callable[[AttentionCase, Data, Array, Library], dict[str, Form] | str]] = {
    "numpy": numpy_forms,
    "torch": torch_forms,
    "jax": jax_forms,
}


def gradients_of(case: AttentionCase, data: Data, grad_out: Array) -> tuple[Gradient, ...]:
    """Compute the exact gradients, and the plain ones that set the limits, head by head."""
    dtype = data.q.dtype
    wide = np.dtype(np.longdouble if dtype == np.float64 else np.float64)
    sums = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    shapes = data.q.shape, data.k.shape, data.v.shape
    exact, plain = ([np.zeros(shape, kind) for shape in shapes] for kind in (wide, sums))
    seen = visible(case, data, np.arange(case.seq_len_q), case.seq_len_k)
    for b, h in np.ndindex(case.batch, case.heads_q):
        at = b, h // case.group
        head = data.q[b, h], data.k[at], data.v[at], grad_out[b, h]
        for whole, found in (
            (exact, _backward([x.astype(wide) for x in head], seen, None)),
            (plain, _backward([x.astype(sums) for x in head], seen, dtype)),
        ):
            whole[0][b, h] = found[0]
            whole[1][at] += found[1]
            whole[2][at] += found[2]
    parts = []
    for fine, rough in zip(exact, plain, strict=True):
        rows = fine.reshape(-1, case.head_dim)
        limit = accuracy.attention_bound(rough.astype(dtype).reshape(rows.shape), rows, dtype)
        largest = float(np.max(np.abs(rows)))
        shared = math.sqrt(accuracy.unit_roundoff(dtype)) * largest
        parts.append(Gradient(rows, float(accuracy.ulp(largest, dtype)), limit, shared))
    return tuple(parts)


def _backward(head: list[Array], seen: Array | None, dtype: Any) -> tuple[Array, Array, Array]:
    """Compute dq, dk and dv of a head; with a dtype, scores, weights and their gradients are rounded to it."""
    q, k, v, g = head

    def rounded(x: Array) -> Array:
        return x if dtype is None else x.astype(dtype).astype(x.dtype, copy=False)

    scale = 1 / np.sqrt(q.dtype.type(q.shape[-1]))
    s = rounded((q @ k.T) * scale)
    if seen is not None:
        s[~seen] = -np.inf
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p = rounded(p / p.sum(axis=1, keepdims=True))
    delta = (g * rounded(p @ v)).sum(axis=1, keepdims=True)
    ds = rounded(p * (g @ v.T - delta))
    return scale * (ds @ k), scale * (ds.T @ q), p.T @ g
