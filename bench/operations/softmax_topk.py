"""softmax_topk: the five, or 256, most probable of each row; one read of x, the result is small."""

from typing import Any

import numpy as np

import dualsoft
from bench.contest import Array
from bench.operation import VOCABULARY, Case, Operation
from bench.options import Shape

K, MANY = 5, 256
LARGE = Shape((1024, 25000), -1)
SHAPES = (
    LARGE,
    VOCABULARY,
    Shape((32, 128256), -1),
    Shape((20000, 256), -1),
    Shape((100_000, 64), -1),
)


def formula(numpy: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute what one writes in NumPy: the whole softmax, sorted."""
    e = numpy.exp(x - x.max(axis=axis, keepdims=True))
    e /= e.sum(axis=axis, keepdims=True)
    order = numpy.take(numpy.argsort(-e, axis=axis), range(out.shape[axis]), axis=axis)
    return numpy.take_along_axis(e, order, axis)


def exact(x: Array, axis: int) -> Array:
    """Compute the softmax of wide x, the largest elements first."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return -np.sort(-e / e.sum(axis=axis, keepdims=True), axis=axis)


def with_torch(torch: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute the softmax, and choose from it."""
    return torch.topk(torch.softmax(x, axis), out.shape[axis], dim=axis).values


def with_jax(jax: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute the softmax, and choose from its last axis."""
    y = jax.numpy.moveaxis(jax.nn.softmax(x, axis=axis), axis, -1)
    return jax.numpy.moveaxis(jax.lax.top_k(y, out.shape[axis])[0], -1, axis)


OPERATION = Operation(
    name="softmax_topk",
    cases=(*(Case(shape, "float32") for shape in SHAPES), Case(LARGE, "float32", MANY)),
    reduces=False,
    ceiling="read",
    exact=exact,
    size=lambda x, y, axis: y,
    contenders={
        "dualsoft": lambda _, x, axis, out: dualsoft.softmax_topk(x, out.shape[axis], axis).values,
        "numpy": formula,
        "scipy": "SciPy has no such function",
        "torch": with_torch,
        "torch.compile": lambda torch, x, axis, out: out.copy_(with_torch(torch, x, axis, out)),
        "jax": with_jax,
    },
    result_length=K,
)
