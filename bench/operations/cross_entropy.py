"""cross_entropy, one loss a row: one read of x; labels and losses are small."""

from functools import cache
from typing import Any

import numpy as np

import dualsoft
from bench.contest import Array
from bench.operation import COLUMNS, SHORT_ROWS, SQUARE, THOUSAND, Case, Operation
from bench.options import Shape

LANGUAGE_MODEL = Shape((512, 50257), -1)


@cache
def labels(rows: int, classes: int) -> Array:
    """Return a class for each row."""
    return np.random.default_rng(1).integers(0, classes, rows)


def labels_of(x: Array, axis: int) -> Array:
    """Return a class for each row of x, a matrix."""
    classes = x.shape[axis]
    return labels(x.shape[0] * x.shape[1] // classes, classes)


def formula(numpy: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute what one writes in NumPy, with one temporary."""
    m = x.max(axis=axis, keepdims=True)
    e = x - m
    picked = np.take_along_axis(e, np.expand_dims(labels_of(x, axis), axis), axis).squeeze(axis)
    total = numpy.exp(e, out=e).sum(axis=axis)
    return numpy.subtract(numpy.log(total), picked, out=out)


def exact(x: Array, axis: int) -> Array:
    """Compute the losses of wide x."""
    distance = x - np.max(x, axis=axis, keepdims=True)
    picked = np.take_along_axis(distance, np.expand_dims(labels_of(x, axis), axis), axis).squeeze(axis)
    return np.log(np.exp(distance).sum(axis=axis)) - picked


def by_torch(torch: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute the losses as torch does, classes on its second axis."""
    found = torch.nn.functional.cross_entropy(
        x.movedim(axis, 1), torch.from_numpy(labels_of(x, axis)), reduction="none"
    )
    return found if out.dtype == found.dtype else found.to(out.dtype)


def by_jax(jax: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute the losses as one writes them in JAX."""
    picked = jax.numpy.take_along_axis(x, jax.numpy.expand_dims(labels_of(x, axis), axis), axis).squeeze(axis)
    return jax.nn.logsumexp(x, axis=axis) - picked


OPERATION = Operation(
    name="cross_entropy",
    cases=(
        *(Case(shape, "float32") for shape in (LANGUAGE_MODEL, SQUARE, THOUSAND, SHORT_ROWS, COLUMNS)),
        *(Case(LANGUAGE_MODEL, dtype) for dtype in ("float16", "bfloat16")),
    ),
    reduces=True,
    ceiling="read",
    exact=exact,
    size=lambda x, y, axis: np.maximum(np.abs(y), 1),
    contenders={
        "dualsoft": lambda _, x, axis, out: dualsoft.cross_entropy(x, labels_of(x, axis), axis, reduction="none"),
        "numpy": formula,
        "scipy": "SciPy has no such function",
        "torch": by_torch,
        "torch.compile": by_torch,
        "jax": by_jax,
    },
)
