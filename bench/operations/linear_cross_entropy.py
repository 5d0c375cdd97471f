"""linear_cross_entropy, one loss a row: hidden states x times a vocabulary; the product takes the time."""

from functools import cache
from typing import Any

import numpy as np

import dualsoft
from bench.contest import Array
from bench.operation import Case, Operation
from bench.operations.cross_entropy import labels
from bench.options import Shape
from dualsoft.linear_chunks import BLOCK_CLASSES, BLOCK_ROWS

CLASSES = 49152


@cache
def vocabulary(classes: int, dim: int, dtype: Any) -> Array:
    """Return the weight of each class."""
    found = np.random.default_rng(2).standard_normal((classes, dim), dtype=np.float32) / np.sqrt(dim)
    return found.astype(dtype)


def classes_for(x: Array) -> int:
    """Return how many classes go with x: few where x is small."""
    return CLASSES if x.shape[0] * x.shape[1] >= 2**18 else 64


def parts(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Return the weight and the labels that go with x."""
    return vocabulary(classes_for(x), x.shape[1], dtype), labels(x.shape[0], classes_for(x))


def formula(numpy: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute what one writes in NumPy, all logits stored."""
    weight, index = parts(x, x.dtype)
    logits = x @ weight.T
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[np.arange(len(x)), index]
    return numpy.subtract(numpy.log(numpy.exp(logits, out=logits).sum(axis=1)), picked, out=out)


def exact(x: Array, axis: int) -> Array:
    """Compute the losses of wide x; the weights are those of float32."""
    weight, index = parts(x, np.dtype(np.float32))
    logits = x @ weight.astype(x.dtype).T
    logits -= logits.max(axis=1, keepdims=True)
    return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(x)), index]


def size(x: Array, y: Array, axis: int) -> Array:
    """Return the size whose ulp counts: as many units as a product has terms."""
    weight, _ = parts(x, np.dtype(np.float32))
    largest = np.linalg.norm(x, axis=1) * np.linalg.norm(weight.astype(x.dtype), axis=1).max()
    return x.shape[1] * np.maximum(np.abs(y), largest)


def by_torch(torch: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute the losses as torch does, all logits stored."""
    weight, index = parts(x, np.dtype(np.float32))
    logits = torch.nn.functional.linear(x, torch.from_numpy(weight).to(x.dtype))
    return torch.nn.functional.cross_entropy(logits, torch.from_numpy(index), reduction="none")


def by_jax(jax: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute the losses as one writes them in JAX, all logits stored."""
    weight, index = parts(x, np.dtype(np.float32))
    logits = x @ jax.numpy.asarray(weight).T
    picked = jax.numpy.take_along_axis(logits, index[:, None], 1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - picked


def ours(module: Any, x: Array, axis: int, out: Array) -> Array:
    """Compute the losses."""
    weight, index = parts(x, np.dtype(np.float32))
    return dualsoft.linear_cross_entropy(x, weight, index, reduction="none")


def product(module: Any, x: Array, axis: int, out: Array) -> Array:
    """Multiply as dualsoft does, a block after the other in the same memory, and look at no logit."""
    weight, _ = parts(x, np.dtype(np.float32))
    block = np.empty((BLOCK_ROWS, BLOCK_CLASSES), x.dtype)
    for row in range(0, len(x), BLOCK_ROWS):
        rows = x[row : row + BLOCK_ROWS]
        for first in range(0, len(weight), BLOCK_CLASSES):
            classes = weight[first : first + BLOCK_CLASSES]
            np.matmul(rows, classes.T, out=block[: len(rows), : len(classes)])
    return block


OPERATION = Operation(
    name="linear_cross_entropy",
    cases=(Case(Shape((1024, 576), -1), "float32"),),
    reduces=True,
    ceiling="read",
    exact=exact,
    size=size,
    contenders={
        "dualsoft": ours,
        "numpy": formula,
        "scipy": "SciPy has no such function",
        "torch": by_torch,
        "torch.compile": by_torch,
        "jax": by_jax,
    },
    takes_shapes=False,
    beside={"numpy: the product alone": product},
    stored=lambda x: (x.shape[0] * classes_for(x) * int(x.dtype.itemsize), "all logits"),
)
