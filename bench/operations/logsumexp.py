"""logsumexp: one read of x; the result is small."""

from typing import Any

import numpy as np

import dualsoft
from bench.contest import Array
from bench.operation import SOFTMAX_CASES, Operation


def formula(numpy: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute what one writes in NumPy, with one temporary."""
    m = x.max(axis=axis, keepdims=True)
    e = x - m
    total = numpy.exp(e, out=e).sum(axis=axis)
    return numpy.add(numpy.squeeze(m, axis), numpy.log(total), out=out)


def exact(x: Array, axis: int) -> Array:
    """Compute the log-sum-exp of wide x."""
    m = np.max(x, axis=axis, keepdims=True)
    return np.squeeze(m, axis) + np.log(np.exp(x - m).sum(axis=axis))


OPERATION = Operation(
    name="logsumexp",
    cases=SOFTMAX_CASES,
    reduces=True,
    ceiling="read",
    exact=exact,
    size=lambda x, y, axis: np.maximum(np.abs(y), np.abs(np.max(x, axis=axis))),
    contenders={
        "dualsoft": lambda _, x, axis, out: dualsoft.logsumexp(x, axis, out=out),
        "numpy": formula,
        "scipy": lambda scipy, x, axis, out: scipy.special.logsumexp(x, axis=axis),
        "cupyx": lambda cupyx, x, axis, out: cupyx.scipy.special.logsumexp(x, axis=axis),
        "torch": lambda torch, x, axis, out: torch.logsumexp(x, axis, out=out),
        "torch.compile": lambda torch, x, axis, out: out.copy_(torch.logsumexp(x, axis)),
        "jax": lambda jax, x, axis, out: jax.nn.logsumexp(x, axis=axis),
    },
)
