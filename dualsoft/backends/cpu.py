"""The compiled kernels for NumPy arrays: each problem is one call of one kernel of one ISA level."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from dualsoft import dtypes, isa, linear_chunks
from dualsoft.arrays import Array, is_cupy
from dualsoft.attention_problem import AttentionProblem
from dualsoft.backends import Backend
from dualsoft.dtypes import BF16, F64
from dualsoft.gradient_problem import GradientProblem
from dualsoft.linear_problem import LinearCrossEntropyProblem, LinearGradientProblem
from dualsoft.loss_problem import (
    CrossEntropyGradientProblem,
    CrossEntropyProblem,
    LogSumExpGradientProblem,
    SoftmaxGradientProblem,
    Targets,
    share_of_row,
    total_of,
)
from dualsoft.problem import (
    CumulativeProblem,
    LogSumExpProblem,
    NormalizeProblem,
    Problem,
    SoftmaxProblem,
    StateProblem,
)
from dualsoft.threads import limit
from dualsoft.topk_problem import SampleProblem, TopKProblem

_uint16 = np.dtype(np.uint16)


def _softmax(kernels: ModuleType, problem: SoftmaxProblem) -> None:
    x, out, _, mask, scale, where, x_code, out_code, log = problem
    if x_code == BF16:
        x = x.view(_uint16)
    if out_code == BF16:
        out = out.view(_uint16)
    kernels.softmax(x, x_code, out, out_code, mask, log, scale, where, limit())


def _logsumexp(kernels: ModuleType, problem: LogSumExpProblem) -> None:
    x, out, _, mask, scale, where, x_code, out_code, sign, b, b_code = problem
    if x_code == BF16:
        x = x.view(_uint16)
    if out_code == BF16:
        out = out.view(_uint16)
        if sign is not None:
            sign = sign.view(_uint16)
    if b_code == BF16:
        b = b.view(_uint16)  # type: ignore[union-attr]
    kernels.logsumexp(x, x_code, out, sign, out_code, mask, scale, where, b, b_code, limit())


def _state(kernels: ModuleType, problem: StateProblem) -> None:
    x, m, rest, _, mask, scale, where, x_code = problem
    if x_code == BF16:
        x = x.view(_uint16)
    kernels.state(x, x_code, m, rest, mask, scale, where, limit())


def _normalize(kernels: ModuleType, problem: NormalizeProblem) -> None:
    x, out, _, mask, scale, where, x_code, out_code, m, rest = problem
    kernels.normalize(_bits(x, x_code), x_code, _bits(out, out_code), out_code, m, rest, mask, scale, where, limit())


def _cumulative(kernels: ModuleType, problem: CumulativeProblem) -> None:
    x, out, axes, _, x_code, out_code, initial = problem
    kernels.cumulative_logsumexp(_bits(x, x_code), x_code, _bits(out, out_code), out_code, axes[0], initial, limit())


def _attention(kernels: ModuleType, problem: AttentionProblem) -> None:
    # Taken apart at once: a decode step takes few microseconds.
    q, k, v, out, lse, m, d, scale, softcap, left, right, lengths, offsets, mask, bias, sinks, slopes, *rest = problem
    block_mask, block_q, block_k, q_starts, k_starts, pages, q_code, k_code, v_code, out_code, bias_code = rest
    if q_code == BF16:
        q = q.view(_uint16)
    if k_code == BF16:
        k = k.view(_uint16)
    if v_code == BF16:
        v = v.view(_uint16)
    if out_code == BF16:
        out = out.view(_uint16)
    if bias_code == BF16:
        bias = bias.view(_uint16)  # type: ignore[union-attr]
    kernels.attention(
        *(q, q_code, k, k_code, v, v_code, out, out_code, lse, m, d, scale, softcap, left, right, lengths, offsets),
        *(mask, bias, bias_code, sinks, slopes, block_mask, block_q, block_k, q_starts, k_starts, pages, limit()),
    )


def _topk(kernels: ModuleType, problem: TopKProblem) -> None:
    x, out, indices, lse, _, mask, k, scale, where, x_code, out_code, lse_code = problem
    kernels.softmax_topk(
        *(_bits(x, x_code), x_code, _bits(out, out_code), out_code, indices, lse, lse_code, k),
        *(mask, scale, where, limit()),
    )


def _sample(kernels: ModuleType, problem: SampleProblem) -> None:
    x, out, _, mask, options, key, x_code = problem
    kernels.sample(_bits(x, x_code), x_code, out, mask, options, key, limit())


def _gradients(kernels: ModuleType, problem: GradientProblem) -> None:
    call = problem.forward
    given = (
        *((call.q, call.x_code), (call.k, call.k_code), (call.v, call.v_code), (call.out, problem.out_code)),
        *((call.lse, problem.lse_code), (problem.grad_out, problem.grad_out_code)),
        *((problem.grad_lse, problem.grad_lse_code), (problem.dq, problem.dq_code), (problem.dk, problem.dk_code)),
        *((problem.dv, problem.dv_code), (problem.dbias, problem.dbias_code)),
    )
    kernels.attention_backward(
        *(part for array, code in given for part in (_bits(array, code), code)),
        *(problem.bias_sums, problem.dsinks, call.out_code == F64, call.scale, call.softcap, call.left, call.right),
        *(call.lengths, call.offsets, call.mask, _bits(call.bias, call.bias_code), call.bias_code, call.sinks),
        *(call.slopes, call.block_mask, call.block_q, call.block_k, call.q_starts, call.k_starts, limit()),
    )


def _bits(array: Array, code: int) -> Array:
    """Return what the kernel reads: bfloat16 arrays have no buffer, so their bits are passed."""
    return array.view(_uint16) if code == BF16 and array is not None else array


def _cross_entropy(kernels: ModuleType, problem: CrossEntropyProblem) -> None:
    x, out, axes, mask, x_code, out_code, targets, lse = problem
    each_row = targets.reduction == "none"
    # A total is taken of float64 losses in one order: it neither drifts nor depends on the threads.
    losses = out if each_row else np.empty([1 if axis in axes else n for axis, n in enumerate(x.shape)])
    loss_code = out_code if each_row else F64
    lse_code = out_code
    kernels.cross_entropy(
        *(_bits(x, x_code), x_code, losses, loss_code, lse, lse_code, mask, *_targets(x, axes, targets), limit())
    )
    if not each_row:
        total_of(problem, losses)


def _targets(x: Array, axes: tuple[int, ...], targets: Targets) -> tuple[Any, ...]:
    """Return labels, second, its code, the ignored label, hard, uniform and z_loss, as the kernels take them."""
    labels, code, ignored, smoothing, z_loss, _ = targets
    operands = (labels, None, -1) if code < 0 else (None, _bits(labels, code), code)
    return *operands, ignored, 1 - smoothing, smoothing / x.shape[axes[0]], z_loss


def _cross_entropy_gradient(kernels: ModuleType, problem: CrossEntropyGradientProblem) -> None:
    x, out, axes, mask, x_code, out_code, targets, (m, rest, roundoff), _ = problem
    labels, second, code, ignored, hard, uniform, z_loss = _targets(x, axes, targets)
    kernels.cross_entropy_gradient(
        *(_bits(x, x_code), x_code, _bits(out, out_code), out_code, mask, labels, second, code, ignored),
        *(m, rest, roundoff, share_of_row(problem), hard, uniform, z_loss, limit()),
    )


def _logsumexp_gradient(kernels: ModuleType, problem: LogSumExpGradientProblem) -> None:
    x, out, _, mask, x_code, out_code, scale, where, (m, rest, roundoff), grad, b, b_code = problem
    weights = None if b is None else _bits(b, b_code)
    kernels.logsumexp_gradient(
        *(_bits(x, x_code), x_code, _bits(out, out_code), out_code, mask, weights, b_code),
        *(m, rest, roundoff, grad, scale, where, limit()),
    )


def _softmax_gradient(kernels: ModuleType, problem: SoftmaxGradientProblem) -> None:
    x, out, _, mask, x_code, out_code, where, grad, grad_code, factor, log = problem
    kernels.softmax_gradient(
        *(_bits(x, x_code), x_code, _bits(out, out_code), out_code, mask, log),
        *(_bits(grad, grad_code), grad_code, factor, where, limit()),
    )


def _blocks_by(kernels: ModuleType) -> Callable[[Any], None]:
    """Return what answers the problems of one block of a product."""
    return lambda problem: _CALLS[type(problem)](kernels, problem)


_CALLS: dict[type, Callable[[ModuleType, Any], None]] = {
    SoftmaxProblem: _softmax,
    LogSumExpProblem: _logsumexp,
    StateProblem: _state,
    NormalizeProblem: _normalize,
    CumulativeProblem: _cumulative,
    AttentionProblem: _attention,
    CrossEntropyProblem: _cross_entropy,
    CrossEntropyGradientProblem: _cross_entropy_gradient,
    LogSumExpGradientProblem: _logsumexp_gradient,
    SoftmaxGradientProblem: _softmax_gradient,
    LinearCrossEntropyProblem: lambda kernels, problem: linear_chunks.cross_entropy(problem, _blocks_by(kernels)),
    LinearGradientProblem: lambda kernels, problem: linear_chunks.gradients(problem, _blocks_by(kernels)),
    TopKProblem: _topk,
    SampleProblem: _sample,
    GradientProblem: _gradients,
}


def _accepts(work: Problem | Array) -> bool:
    if type(work) in _CALLS:
        return work.x_code >= 0 and type(work.x) is np.ndarray
    return isinstance(work, np.ndarray) and not is_cupy(work) and dtypes.find_format(work.dtype) is not None


def _available() -> str | None:
    if isa.chosen() is not None:
        return None
    installed = isa.built()
    if not installed:
        return "no compiled kernels are installed"
    return f"no compiled level can be used: {isa.why_not(installed[0])}"


def _load(level: str) -> ModuleType:
    """Import the kernels of ``level`` and make sure that they were built from the same sources as this package."""
    kernels = isa.load(level)
    for name in ("F32", "F64", "F16", "BF16", "BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "SWAPPED"):
        if getattr(kernels, name) != getattr(dtypes, name):
            raise ImportError(
                f"{isa.module_name(level)} was built from other sources than this package: build it again"
            )
    return kernels


_default: ModuleType | None = None


def _run_default(problem: Problem) -> None:
    _CALLS[type(problem)](_default or _load_default(), problem)


def _load_default() -> ModuleType:
    global _default
    chosen = isa.chosen()
    if chosen is None:
        raise RuntimeError(f"the cpu backend cannot be used: {_available()}")
    _default = _load(chosen)
    return _default


def _serve(name: str, kernels: ModuleType) -> Backend:
    def run(problem: Problem) -> None:
        _CALLS[type(problem)](kernels, problem)

    return Backend(name, lambda: None, _accepts, run)


def level(name: str) -> Backend:
    """Return the backend ``cpu:name`` that runs one ISA level.

    Raises
    ------
    ValueError
        When there is no such level.
    RuntimeError
        When it was not built or cannot run here.
    """
    asked = f"cpu:{name}"
    isa.check(name, asked)
    return _serve(asked, _load(name))


BACKEND = Backend("cpu", _available, _accepts, _run_default, level)
