"""sample with top_p: one index a row; others sort the row. Draws differ, and each is judged by where it may fall."""

from typing import Any

import numpy as np

import dualsoft
from bench.contest import Array, Verdict
from bench.operation import VOCABULARY, AxisContest, Case, Operation
from bench.options import Shape

TOP_P = 0.9
SHAPES = (Shape((32, 128256), -1), VOCABULARY, Shape((1, 128256), -1))


def formula(numpy: Any, x: Array, axis: int, out: Array) -> Array:
    """Draw as one does in NumPy: sort the probabilities, cut, and look a uniform number up in the running sum."""
    order = numpy.argsort(-x, axis=axis)
    e = numpy.take_along_axis(x, order, axis)
    e = numpy.exp(e - e.max(axis=axis, keepdims=True))
    e /= e.sum(axis=axis, keepdims=True)
    total = numpy.cumsum(e, axis=axis)
    kept = numpy.where(total - e < TOP_P, e, 0)
    running = numpy.cumsum(kept, axis=axis)
    drawn = numpy.random.default_rng(1).random(out.shape)
    last = numpy.take(running, -1, axis=axis)
    place = (running < numpy.expand_dims(drawn * last, axis)).sum(axis=axis, keepdims=True)
    place = numpy.minimum(place, x.shape[axis] - 1)
    return numpy.take_along_axis(order, place, axis).squeeze(axis)


def exact(x: Array, axis: int) -> Array:
    """Compute, for each element of wide x, the probability of all before it in falling order."""
    order = np.argsort(-x, axis=axis, kind="stable")
    e = np.exp(np.take_along_axis(x, order, axis) - np.max(x, axis=axis, keepdims=True))
    e /= e.sum(axis=axis, keepdims=True)
    before = np.empty_like(e)
    np.put_along_axis(before, order, np.cumsum(e, axis=axis) - e, axis)
    return before


def with_torch(torch: Any, x: Array, axis: int, out: Array) -> Array:
    """Draw as one does in torch: sort, cut, multinomial."""
    p, order = torch.sort(torch.softmax(x.float().movedim(axis, -1), -1), descending=True, dim=-1)
    p = torch.where(torch.cumsum(p, -1) - p < TOP_P, p, 0)
    place = torch.multinomial(p.reshape(-1, p.shape[-1]), 1).reshape(*p.shape[:-1], 1)
    return torch.gather(order, -1, place).squeeze(-1)


def with_jax(jax: Any, x: Array, axis: int, out: Array) -> Array:
    """Draw as one does in JAX: sort, cut, categorical."""
    order = jax.numpy.argsort(-x, axis=axis)
    p = jax.numpy.take_along_axis(jax.nn.softmax(x, axis=axis), order, axis)
    kept = jax.numpy.where(jax.numpy.cumsum(p, axis=axis) - p < TOP_P, jax.numpy.log(p), -jax.numpy.inf)
    place = jax.random.categorical(jax.random.key(1), kept, axis=axis)
    return jax.numpy.take_along_axis(order, jax.numpy.expand_dims(place, axis), axis).squeeze(axis)


class SampleContest(AxisContest):
    """One case: x, and where draws from it may fall."""

    def __init__(self, operation: Operation, case: Case, dtype: np.dtype[Any]) -> None:
        self.operation, self.axis = operation, case.shape.axis
        self.x = np.random.default_rng(0).standard_normal(case.shape.lengths, dtype=np.float32).astype(dtype)
        self.result_shape = operation.result_shape(case)
        self.work = operation.work(case, operation.bytes_moved(self.x, np.empty(self.result_shape, np.int64)))
        self.before = operation.exact(self.x.astype(np.float64), self.axis)

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Say whether every index is one that top_p keeps; of others to within what their dtype sums."""
        index = np.expand_dims(np.asarray(found, np.int64), self.axis)
        if index.size and (index.min() < 0 or index.max() >= self.x.shape[self.axis]):
            return Verdict(np.inf, "the axis")
        before = np.take_along_axis(self.before, index, self.axis)
        slack = 1e-12 if ours else 0.02
        return Verdict(0.0, None if bool(np.all(before < TOP_P + slack)) else "what top_p keeps")


class SampleOperation(Operation):
    """A draw: its results are indices, not numbers that are near others."""

    def contest(self, case: Case, dtype: np.dtype[Any]) -> AxisContest:
        """Make a case ready."""
        return SampleContest(self, case, dtype)


OPERATION = SampleOperation(
    name="sample",
    cases=tuple(Case(shape, "float32") for shape in SHAPES),
    reduces=True,
    ceiling="read",
    exact=exact,
    size=lambda x, y, axis: y,
    contenders={
        "dualsoft": lambda _, x, axis, out: dualsoft.sample(x, axis, top_p=TOP_P, rng=1),
        "numpy": formula,
        "scipy": "SciPy has no such function",
        "torch": with_torch,
        "torch.compile": with_torch,
        "jax": with_jax,
    },
)
