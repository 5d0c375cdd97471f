"""softmax: one read of x and one write of as much."""

from typing import Any

import numpy as np

import dualsoft
from bench.contest import Array
from bench.operation import SOFTMAX_CASES, Operation


def formula(numpy: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute what one writes in NumPy, without temporaries."""
    numpy.subtract(x, x.max(axis=axis, keepdims=True), out=out)
    numpy.exp(out, out=out)
    return numpy.divide(out, out.sum(axis=axis, keepdims=True), out=out)


def exact(x: Array, axis: int) -> Array:
    """Compute the softmax of wide x."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


OPERATION = Operation(
    name="softmax",
    cases=SOFTMAX_CASES,
    reduces=False,
    ceiling="copy",
    exact=exact,
    size=lambda x, y, axis: y,
    contenders={
        "dualsoft": lambda _, x, axis, out: dualsoft.softmax(x, axis, out=out),
        "numpy": formula,
        "scipy": lambda scipy, x, axis, out: scipy.special.softmax(x, axis=axis),
        "cupyx": lambda cupyx, x, axis, out: cupyx.scipy.special.softmax(x, axis=axis),
        "torch": lambda torch, x, axis, out: torch.softmax(x, axis, out=out),
        "torch.compile": lambda torch, x, axis, out: out.copy_(torch.softmax(x, axis)),
        "jax": lambda jax, x, axis, out: jax.nn.softmax(x, axis=axis),
    },
)
