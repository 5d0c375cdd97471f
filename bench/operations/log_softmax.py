"""log_softmax: one read of x and one write of as much."""

from typing import Any

import numpy as np

import dualsoft
from bench.contest import Array
from bench.operation import SOFTMAX_CASES, Operation, distance


def formula(numpy: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute what one writes in NumPy, with one temporary."""
    numpy.subtract(x, x.max(axis=axis, keepdims=True), out=out)
    return numpy.subtract(out, numpy.log(numpy.exp(out).sum(axis=axis, keepdims=True)), out=out)


def exact(x: Array, axis: int) -> Array:
    """Compute the log-softmax of wide x."""
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


OPERATION = Operation(
    name="log_softmax",
    cases=SOFTMAX_CASES,
    reduces=False,
    ceiling="copy",
    exact=exact,
    size=lambda x, y, axis: np.maximum(np.maximum(distance(x, axis), np.abs(y)), 1),
    contenders={
        "dualsoft": lambda _, x, axis, out: dualsoft.log_softmax(x, axis, out=out),
        "numpy": formula,
        "scipy": lambda scipy, x, axis, out: scipy.special.log_softmax(x, axis=axis),
        "cupyx": lambda cupyx, x, axis, out: cupyx.scipy.special.log_softmax(x, axis=axis),
        "torch": lambda torch, x, axis, out: torch.log_softmax(x, axis, out=out),
        "torch.compile": lambda torch, x, axis, out: out.copy_(torch.log_softmax(x, axis)),
        "jax": lambda jax, x, axis, out: jax.nn.log_softmax(x, axis=axis),
    },
)
