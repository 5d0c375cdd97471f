"""cumulative_logsumexp: one read of x and one write of as much, with a running sum between them."""

import numpy as np

import dualsoft
from bench.operation import LONG_ROW, SHORT_ROWS, SQUARE, THOUSAND, TINY, VOCABULARY, Case, Operation

OPERATION = Operation(
    name="cumulative_logsumexp",
    cases=tuple(Case(shape, "float32") for shape in (SQUARE, THOUSAND, VOCABULARY, SHORT_ROWS, LONG_ROW, TINY)),
    reduces=False,
    ceiling="copy",
    exact=lambda x, axis: np.logaddexp.accumulate(x, axis=axis),
    size=lambda x, y, axis: np.maximum(np.abs(y), np.abs(np.maximum.accumulate(x, axis=axis))),
    contenders={
        "dualsoft": lambda _, x, axis, out: dualsoft.cumulative_logsumexp(x, axis, out=out),
        "numpy": lambda numpy, x, axis, out: numpy.logaddexp.accumulate(x, axis=axis, out=out),
        "scipy": "SciPy has no such function",
        "cupyx": "cupyx has no such function",
        "torch": lambda torch, x, axis, out: torch.logcumsumexp(x, axis, out=out),
        "torch.compile": lambda torch, x, axis, out: out.copy_(torch.logcumsumexp(x, axis)),
        "jax": lambda jax, x, axis, out: jax.lax.cumlogsumexp(x, axis=axis % x.ndim),
    },
)
