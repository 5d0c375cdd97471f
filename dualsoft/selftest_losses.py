"""The self-test of losses, of the gradients of the softmax family, and of what selects and draws.

Each question has its answer from the reference in longdouble and the error that ``accuracy`` allows it; both are made
once, for all backends.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dualsoft import accuracy, linear_problem, loss_problem, topk_problem
from dualsoft.backends import reference
from dualsoft.gradients import log_softmax_backward, logsumexp_backward, softmax_backward
from dualsoft.linear_loss import linear_cross_entropy, linear_cross_entropy_backward
from dualsoft.losses import cross_entropy, cross_entropy_backward
from dualsoft.sampling import sample
from dualsoft.selftest_arrays import Calls
from dualsoft.selftest_attention import share_of
from dualsoft.topk import softmax_topk

WIDE = np.dtype(np.longdouble)
SMOOTHED: dict[str, Any] = {"label_smoothing": 0.125, "z_loss": 0.0625, "ignore_index": 3}
Array = np.ndarray[Any, Any]


class Question(NamedTuple):
    """A call, what it must answer and how far from that it may be, element by element."""

    function: str
    case: str
    ask: Callable[[Calls], Any]
    exact: Any
    limit: Any


class _Rows(NamedTuple):
    """What the sizes and spreads of a bound are made of: scores in longdouble, and of their rows the axis kept."""

    s: Array
    m: Array
    lse: Array

    @property
    def p(self) -> Array:
        p: Array = np.exp(self.s - self.lse)
        return p


def selection_shares(dtype: np.dtype[Any], calls: Calls) -> Iterator[tuple[str, str, float]]:
    """Yield (function, case, worst error as a share of its bound) of ``softmax_topk`` and ``sample``."""
    return _shares(_selections(dtype), calls)


def loss_shares(dtype: np.dtype[Any], calls: Calls) -> Iterator[tuple[str, str, float]]:
    """Yield the same of ``cross_entropy`` and its gradient."""
    return _shares(_losses(dtype), calls)


def linear_shares(dtype: np.dtype[Any], calls: Calls) -> Iterator[tuple[str, str, float]]:
    """Yield the same of ``linear_cross_entropy`` and its gradients."""
    return _shares(_linear(dtype), calls)


def gradient_shares(dtype: np.dtype[Any], calls: Calls) -> Iterator[tuple[str, str, float]]:
    """Yield the same of the gradients of ``softmax``, ``log_softmax`` and ``logsumexp``."""
    return _shares(_gradients(dtype), calls)


def _shares(questions: list[Question], calls: Calls) -> Iterator[tuple[str, str, float]]:
    for question in questions:
        answer = question.ask(calls)
        yield question.function, question.case, share_of(answer, np.asarray(question.exact), question.limit)


@lru_cache
def _selections(dtype: np.dtype[Any]) -> list[Question]:
    rng = np.random.default_rng(20180508)
    x = (rng.standard_normal((37, 261)) * 4).astype(dtype)
    rough = np.rint(x * dtype.type(0.5))
    rough[0, 3], rough[1], rough[2, 5] = np.nan, -np.inf, -np.inf
    found: list[Question] = []
    for name, values, k, axis, options in (
        ("rows", x, 9, -1, {}),
        ("columns", x, 37, 0, {}),
        ("one long row", (rng.standard_normal((1, 40_001)) * 4).astype(dtype), 50, -1, {}),
        ("where and scale", x, 40, -1, {"where": rng.random(x.shape) < 0.5, "scale": rng.uniform(-2, 2, (37, 1))}),
        ("ties and special values", rough, 20, -1, {}),
    ):
        found += _topk(name, values, k, axis, options)
    every = {"temperature": 0.7, "top_k": 60, "top_p": 0.9, "min_p": 0.001}
    for name, values, filters in (("rows", x, {}), ("filters", x, every), ("special values", rough, every)):
        found.append(_drawn(name, values, filters))
    return found


def _topk(name: str, x: Array, k: int, axis: int, options: dict[str, Any]) -> Iterator[Question]:
    problem = topk_problem.topk_problem(x, k, axis, options.get("where"), options.get("scale"))
    wide = problem._replace(out=np.empty(problem.out.shape, WIDE), lse=np.empty(problem.lse.shape, WIDE))
    reference.run(wide, WIDE)
    scaled = x.astype(WIDE) * options.get("scale", 1)
    s = np.take_along_axis(scaled, wide.indices, axis)
    m = np.max(np.where(options.get("where", True) & ~np.isnan(scaled), scaled, -np.inf), axis=axis, keepdims=True)
    with np.errstate(all="ignore"):
        spread = _finite(np.abs(s - m)) + (_finite(np.abs(s) + np.abs(m)) if "scale" in options else 0)
    out_dtype, lse_dtype = problem.out.dtype, problem.lse.dtype
    n, lse = x.shape[axis], wide.lse.reshape(m.shape)
    values = _limit("softmax_topk", out_dtype, n, wide.out, spread)
    logarithms = _limit("logsumexp", lse_dtype, n, np.maximum(np.abs(lse), np.abs(m)))
    if "scale" in options:
        p = np.exp(scaled - lse) * options.get("where", True)
        logarithms = logarithms + _in_logarithm((p * (np.abs(scaled) + np.abs(m))).sum(axis, keepdims=True), lse_dtype)

    def ask(of: int) -> Callable[[Calls], Any]:
        return lambda calls: calls(softmax_topk, x, k, axis, **options)[of]

    yield Question("softmax_topk", name, ask(0), wide.out, values)
    # Which are the largest is a matter of comparisons: half a place is no error, one is too much.
    yield Question("softmax_topk", name, ask(1), wide.indices, 0.5)
    yield Question("softmax_topk", name, ask(2), lse.squeeze(axis), logarithms.squeeze(axis))


def _drawn(name: str, x: Array, filters: dict[str, Any]) -> Question:
    temperature, top_k, top_p, min_p = (filters.get(name) for name in ("temperature", "top_k", "top_p", "min_p"))
    problem = topk_problem.sample_problem(x, -1, temperature or 1.0, top_k, top_p, min_p, 7)
    reference.run(problem)
    # Defined to the bit: every backend draws the same.
    return Question("sample", name, lambda calls: calls(sample, x, rng=7, **filters), problem.out.squeeze(-1), 0.5)


@lru_cache
def _losses(dtype: np.dtype[Any]) -> list[Question]:
    rng = np.random.default_rng(20180509)
    x = (rng.standard_normal((37, 261)) * 4).astype(dtype)
    found: list[Question] = []
    for axis, name in ((-1, "rows"), (0, "columns")):
        n, others = x.shape[axis], x.shape[1 + axis]
        labels: Array = rng.integers(0, n, (others,))
        labels[::7] = SMOOTHED["ignore_index"]
        soft = rng.dirichlet(np.ones(n), others)
        probabilities = (soft if axis else soft.T).astype(dtype)
        for of, given, options in (
            ("", labels, {}),
            (", smoothed", labels, SMOOTHED),
            (", probabilities", probabilities, {"z_loss": 0.0625}),
        ):
            found += _loss(name + of, x, given, axis, options)
    return found


def _loss(name: str, x: Array, labels: Array, axis: int, options: dict[str, Any]) -> Iterator[Question]:
    smoothing, z = (float(options.get(key, 0.0)) for key in ("label_smoothing", "z_loss"))
    ignored = options.get("ignore_index")
    arguments = (axis, ignored, smoothing, z, "none")
    problem = loss_problem.cross_entropy_problem(x, labels, *arguments, True)
    losses, logarithms = np.empty(problem.out.shape, WIDE), np.empty(problem.out.shape, WIDE)
    reference.run(problem._replace(out=losses, lse=logarithms), WIDE)
    s = x.astype(WIDE)
    rows, n, dtype = _Rows(s, s.max(axis=axis, keepdims=True), logarithms), x.shape[axis], problem.out.dtype
    size = np.abs(losses) + 2 * z * np.abs(rows.lse * rows.m)
    near = _limit("cross_entropy", dtype, n, size)
    near = near + _in_logarithm((rows.p * (rows.m - s)).sum(axis=axis, keepdims=True), dtype)
    near_lse = _limit("logsumexp", dtype, n, np.maximum(np.abs(rows.lse), np.abs(rows.m)))
    options = options | {"reduction": "none"}
    for of, (exact, limit) in enumerate(((losses, near), (logarithms, near_lse))):
        yield Question(
            "cross_entropy",
            name,
            lambda calls, of=of: calls(cross_entropy, x, labels, axis, return_lse=True, **options)[of],  # type: ignore[misc]
            exact.squeeze(axis),
            limit.squeeze(axis),
        )
    lse = logarithms.astype(dtype).squeeze(axis)
    grad = np.random.default_rng(1).uniform(-1, 1, lse.shape)
    made = loss_problem.cross_entropy_gradient_problem(grad, x, labels, lse, *arguments, None)
    of_grad = made._replace(out=np.empty(made.out.shape, WIDE))
    reference.run(of_grad, WIDE)
    index = np.arange(n) if axis else np.arange(n)[:, None]
    target = labels.astype(WIDE) if labels.ndim == 2 else (index == np.expand_dims(labels, axis)).astype(WIDE)
    g = np.abs(np.expand_dims(grad, axis))
    size = g * (rows.p * np.abs(1 + 2 * z * rows.lse) + (1 - smoothing) * target + smoothing / n)
    spread = np.abs(s - rows.lse) + np.minimum(np.abs(rows.lse), 128)
    yield Question(
        "cross_entropy_backward",
        name,
        lambda calls: calls(cross_entropy_backward, grad, x, labels, lse, axis, **options),
        of_grad.out,
        _limit("cross_entropy_backward", made.out.dtype, n, size, spread),
    )


@lru_cache
def _linear(dtype: np.dtype[Any]) -> list[Question]:
    rng = np.random.default_rng(20180510)
    hidden, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((70, 24), (300, 24), (300,)))
    labels: Array = rng.integers(0, 300, (70,))
    labels[::7] = SMOOTHED["ignore_index"]
    smoothing, z, ignored = SMOOTHED.values()
    arguments = (bias, ignored, smoothing, z, "none")
    problem = linear_problem.linear_cross_entropy_problem(hidden, weight, labels, *arguments, True)
    loss, logarithm = np.empty(problem.out.shape, WIDE), np.empty(problem.out.shape, WIDE)
    reference.run(problem._replace(out=loss, lse=logarithm), WIDE)
    loss, logarithm = loss.reshape(70), logarithm.reshape(70)
    lengths = [np.linalg.norm(array.astype(np.float64), axis=-1) for array in (hidden, weight)]
    loss_size = np.maximum(np.abs(loss), lengths[0] * lengths[1].max() + np.abs(bias.astype(np.float64)).max())
    loss_dtype, n = problem.out.dtype, 24 * 300
    bound = accuracy.bound("linear_cross_entropy", loss_dtype, n=n, spread=0.0)
    limit = 24 * bound.ulp * accuracy.ulp(loss_size, loss_dtype)
    options = SMOOTHED | {"bias": bias, "reduction": "none"}
    found = [
        Question(
            "linear_cross_entropy",
            "options",
            lambda calls, of=of: calls(linear_cross_entropy, hidden, weight, labels, return_lse=True, **options)[of],  # type: ignore[misc]
            exact,
            limit,
        )
        for of, exact in enumerate((loss, logarithm))
    ]
    grad, lse = rng.uniform(-1, 1, 70), logarithm.astype(loss_dtype)
    made = linear_problem.linear_gradient_problem(grad, hidden, weight, labels, lse, *arguments)
    outputs: dict[str, Any] = {name: np.empty(getattr(made, name).shape, WIDE) for name in ("hidden", "weight", "bias")}
    reference.run(made._replace(**outputs), WIDE)
    h, w = hidden.astype(np.float64), weight.astype(np.float64)
    logits = h @ w.T + bias.astype(np.float64)
    p = np.exp(logits - logarithm.astype(np.float64)[:, None])
    target = (np.arange(300) == labels[:, None]) * (1 - smoothing) + smoothing / 300
    size = np.abs(grad[:, None]) * (p * np.abs(1 + 2 * z * logarithm.astype(np.float64)[:, None]) + target)
    sizes = {"hidden": size @ np.abs(w), "weight": size.T @ np.abs(h), "bias": size.sum(0)}
    return found + [
        Question(
            "linear_cross_entropy_backward",
            name,
            lambda calls, of=of: calls(  # type: ignore[misc]
                linear_cross_entropy_backward, grad, hidden, weight, labels, lse, **options
            )[of],
            exact,
            accuracy.linear_gradient_bound(sizes[name], dtype, dim=24, logit=np.abs(logits).max()),
        )
        for of, (name, exact) in enumerate(outputs.items())
    ]


@lru_cache
def _gradients(dtype: np.dtype[Any]) -> list[Question]:
    rng = np.random.default_rng(20180511)
    x = (rng.standard_normal((37, 261)) * 4).astype(dtype)
    where, scale = rng.random(x.shape) < 0.5, rng.uniform(0.5, 2, (37, 1))
    found: list[Question] = []
    for name, values, axis, options in (
        ("rows", x, -1, {}),
        ("columns", x, 0, {}),
        ("reversed view", x.T[::-2, ::-1], 1, {}),
        ("everything", x, None, {}),
        ("where and scale", x, -1, {"where": where, "scale": scale}),
    ):
        found += _of_results(name, values, axis, options)
        found.append(_of_logarithm(name, values, axis, options))
    return found


def _of_results(name: str, x: Array, axis: Any, options: dict[str, Any]) -> Iterator[Question]:
    """Yield the gradients of softmax and log_softmax, from results of the reference."""
    where, scale = (np.asarray(options.get(key, of)) for key, of in (("where", True), ("scale", 1.0)))
    factor = np.abs(scale)
    rows = _rows(x, axis, options)
    grad: Array = np.random.default_rng(2).standard_normal(np.shape(x)).astype(x.dtype)
    size_of = np.where(where, np.abs(grad.astype(WIDE)), 0)
    for function, log in ((softmax_backward, False), (log_softmax_backward, True)):
        logarithms = np.where(where, rows.s - rows.lse, -np.inf)
        y = (logarithms if log else np.exp(logarithms)).astype(x.dtype)
        made = loss_problem.softmax_gradient_problem(
            grad, y, axis, options.get("where"), options.get("scale"), None, log
        )
        wide = made._replace(out=np.empty(made.out.shape, WIDE))
        reference.run(wide, WIDE)
        given = y.astype(WIDE)
        if log:
            size = factor * (size_of + np.exp(given) * size_of.sum(axis=axis, keepdims=True))
        else:
            size = factor * np.abs(given) * (size_of + (size_of * given).sum(axis=axis, keepdims=True))
        yield Question(
            function.__name__,
            name,
            lambda calls, function=function, y=y: calls(function, grad, y, axis, **options),  # type: ignore[misc]
            wide.out,
            _limit(function.__name__, y.dtype, x.size, size),
        )


def _of_logarithm(name: str, x: Array, axis: Any, options: dict[str, Any]) -> Question:
    rows = _rows(x, axis, options)
    lse = np.asarray(rows.lse.squeeze(axis)).astype(x.dtype)
    grad = np.random.default_rng(3).uniform(-1, 1, lse.shape)
    made = loss_problem.logsumexp_gradient_problem(
        grad, x, lse, axis, None, None, options.get("where"), options.get("scale"), None
    )
    wide = made._replace(out=np.empty(made.out.shape, WIDE))
    reference.run(wide, WIDE)
    spread = np.abs(rows.s - rows.lse) + np.minimum(np.abs(rows.lse), 128)
    if "scale" in options:
        spread = spread + np.abs(rows.s) + np.abs(rows.lse)
    return Question(
        "logsumexp_backward",
        name,
        lambda calls: calls(logsumexp_backward, grad, x, lse, axis, **options),
        wide.out,
        _limit("logsumexp_backward", made.out.dtype, x.size, wide.out, spread),
    )


def _rows(x: Array, axis: Any, options: dict[str, Any]) -> _Rows:
    s = x.astype(WIDE) * options.get("scale", 1)
    m = np.max(np.where(options.get("where", True), s, -np.inf), axis=axis, keepdims=True)
    total = np.sum(np.where(options.get("where", True), np.exp(s - m), 0), axis=axis, keepdims=True)
    return _Rows(s, m, m + np.log(total))


def _limit(function: str, dtype: Any, n: int, size: Any, spread: Any = 0.0) -> Any:
    """Return the error that ``accuracy.bound`` allows a result at the stated size; 1 where that is no number."""
    bound = accuracy.bound(function, dtype, n=n, spread=spread)
    return np.where(np.isfinite(size), bound.ulp * accuracy.ulp(size, dtype) + bound.absolute, 1)


def _in_logarithm(spread: Array, dtype: Any) -> Array:
    """Return what rounding the scores leaves in a logarithm, of the mean spread of a row: see ``accuracy.bound``."""
    return 2 * accuracy.unit_roundoff(dtype) * spread


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0)
