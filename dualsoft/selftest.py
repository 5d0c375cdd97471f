"""The self-test of ``python -m dualsoft``: every public function on every usable level against the reference.

The reference runs in ``numpy.longdouble`` on the same problem; errors are shares of ``accuracy.bound``.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dualsoft import accuracy
from dualsoft import problem as problems
from dualsoft.backends import reference
from dualsoft.registry import use_backend
from dualsoft.selftest_arrays import Calls
from dualsoft.selftest_attention import attention_shares
from dualsoft.selftest_gradients import attention_gradient_shares
from dualsoft.selftest_losses import gradient_shares, linear_shares, loss_shares, selection_shares
from dualsoft.softmax import cumulative_logsumexp, log_softmax, logsumexp, softmax
from dualsoft.state_functions import merge, softmax_state

WIDE = np.dtype(np.longdouble)
Array = np.ndarray[Any, Any]

_SHARES = (
    attention_shares,
    selection_shares,
    loss_shares,
    linear_shares,
    gradient_shares,
    attention_gradient_shares,
)


class Check(NamedTuple):
    """One comparison: the worst error as a share of its bound; above 1 it has failed."""

    backend: str
    function: str
    dtype: str
    case: str
    share: float


class Case(NamedTuple):
    """An input with the arguments that go with it."""

    name: str
    x: Array
    axis: int | tuple[int, ...] | None
    options: dict[str, Any]


def all_dtypes() -> dict[str, Any]:
    """Return the dtypes to test: bfloat16 only where the package that defines it is installed."""
    found: dict[str, Any] = {"float32": np.float32, "float64": np.float64, "float16": np.float16}
    if importlib.util.find_spec("ml_dtypes") is not None:
        found["bfloat16"] = importlib.import_module("ml_dtypes").bfloat16
    return found


def device_dtypes(asarray: Callable[[Array], Any]) -> dict[str, Any]:
    """Return those of the dtypes that a device takes: bfloat16 needs a CuPy that knows it."""
    found = {}
    for name, dtype in all_dtypes().items():
        try:
            asarray(np.zeros(1, dtype))
        except (TypeError, ValueError):
            continue
        found[name] = dtype
    return found


def run_checks(
    backends: Iterable[str],
    asarray: Callable[[Array], Any] | None = None,
    dtypes: Mapping[str, Any] | None = None,
) -> Iterator[Check]:
    """Run the whole self-test on the named backends.

    Parameters
    ----------
    backends : iterable of str
        As ``use_backend`` takes them.
    asarray : callable, optional
        Makes an array that these backends take of a NumPy array.
    dtypes : mapping of str, optional
        The dtypes by name; all by default.
    """
    calls = Calls(asarray)
    for backend in backends:
        for name, dtype in (dtypes or all_dtypes()).items():
            for case in _cases(dtype):
                with use_backend(backend):
                    for function, share in _shares(case, calls):
                        yield Check(backend, function, name, case.name, share)
            with use_backend(backend):
                for shares in _SHARES:
                    for function, case_name, share in shares(np.dtype(dtype), calls):
                        yield Check(backend, function, name, case_name, share)


def _cases(dtype: Any) -> Iterator[Case]:
    rng = np.random.default_rng(20180508)
    square = (rng.standard_normal((37, 261)) * 4).astype(dtype)
    yield Case("rows", square, -1, {})
    yield Case("columns", square, 0, {})
    yield Case("everything", square, None, {})
    yield Case("reversed view", square.T[::-2, ::-1], 1, {})
    yield Case("short rows", (rng.standard_normal((400, 7)) * 4).astype(dtype), -1, {})
    yield Case("long row", (rng.standard_normal((1, 40_001)) * 4).astype(dtype), -1, {})
    yield Case("two axes", square[:36].reshape(4, 9, 261), (0, 2), {})
    yield Case("where", square, -1, {"where": rng.random(square.shape) < 0.5})
    yield Case("scale", square, -1, {"scale": rng.uniform(0.5, 2, (37, 1))})
    special = square.copy()
    special[0, 3], special[1, 250], special[2], special[3, 1] = np.nan, np.inf, -np.inf, -np.inf
    special[4, :2] = np.nan, np.inf
    yield Case("special values", special, -1, {})


def _shares(case: Case, calls: Calls) -> Iterator[tuple[str, float]]:
    x, axis, options = case.x, case.axis, case.options
    where, scale = options.get("where"), options.get("scale")
    m, spread = _maximum(case)
    if scale is not None:
        spread = spread + np.max(_finite(np.abs(_scaled(case))), axis=axis, keepdims=True)
    kept = m.shape

    def share(function: str, result: Any, exact: Array, size: Array, spread: Any = 0.0) -> tuple[str, float]:
        result = np.asarray(result)
        limit = accuracy.bound(function, result.dtype, n=x.size, spread=spread)
        return function, _share(result, exact, limit, accuracy.ulp(size, result.dtype))

    for function, log in ((softmax, False), (log_softmax, True)):
        exact = _exact(problems.softmax_problem(x, axis, where, scale, None, None, log))
        size = np.maximum(np.maximum(np.abs(exact), spread), 1) if log else exact
        yield share(function.__name__, calls(function, x, axis, **options), exact, size, spread)
    b = np.asarray(np.random.default_rng(1).uniform(0.5, 2, x.shape), dtype=x.dtype)
    for weights in (None, b):
        result = np.asarray(calls(logsumexp, x, axis, weights, True, **options))
        exact = _exact(problems.logsumexp_problem(x, axis, weights, True, False, where, scale, None, None))
        yield share("logsumexp", result, exact, np.maximum(np.abs(exact), np.abs(m)))
    if isinstance(axis, int) and not options:
        exact = _running(x.dtype, case.name)
        size = np.maximum(np.abs(exact), np.abs(np.maximum.accumulate(x.astype(WIDE), axis)))
        yield share("cumulative_logsumexp", calls(cumulative_logsumexp, x, axis), exact, size)
    state = calls(softmax_state, x, axis, **options)
    halves = [] if axis != -1 or options else [calls(softmax_state, part, axis) for part in np.array_split(x, 2, axis)]
    d = 1 + _exact(problems.state_problem(x, axis, where, scale))
    compute = np.float64 if x.dtype == np.float64 else np.float32
    limit = accuracy.bound("softmax_state", compute, n=x.size, spread=np.nanmax(_finite(spread)))
    for made in [state, merge(*halves)] if halves else [state]:
        yield "softmax_state", _share(np.reshape(calls.get(made.d), kept), d, limit, accuracy.ulp(d, compute))
    exact = _exact(problems.softmax_problem(x, axis, where, scale, None, None, False))
    _, worst = share("softmax", calls(state.normalize, x, axis, **options), exact, exact, spread)
    yield "normalize", worst


@lru_cache
def _running(dtype: np.dtype[Any], name: str) -> Array:
    """Return the exact cumulative sums of a case: once for all backends, since they take a step an element."""
    case = next(case for case in _cases(dtype) if case.name == name)
    return _exact(problems.cumulative_problem(case.x, case.axis, False, None, None))


def _exact(problem: Any) -> Array:
    """Return the result of the reference in longdouble."""
    output = "rest" if isinstance(problem, problems.StateProblem) else "out"
    wide = problem._replace(**{output: np.empty(getattr(problem, output).shape, WIDE)})
    reference.run(wide, WIDE)
    exact: Array = getattr(wide, output)
    return exact


def _scaled(case: Case) -> Array:
    x = case.x.astype(WIDE)
    scale = case.options.get("scale")
    return x if scale is None else x * scale


def _maximum(case: Case) -> tuple[Array, Array]:
    """Return the maximum of what takes part, axes kept, and |x - m|."""
    values = _scaled(case)
    takes_part = ~np.isnan(values) & np.asarray(case.options.get("where", True))
    visible = np.where(takes_part, values, -np.inf)
    m = np.max(visible, axis=case.axis, keepdims=True)
    with np.errstate(invalid="ignore"):
        return m, _finite(np.abs(values - m))


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0)


def _share(result: Any, exact: Array, limit: accuracy.Bound, spacing: Array) -> float:
    """Return the largest error as a share of the bound; infinite where one is finite or NaN and the other is not."""
    result = result.astype(WIDE)
    finite = np.isfinite(exact)
    same = np.where(finite, np.isfinite(result), (result == exact) | (np.isnan(result) & np.isnan(exact)))
    if not same.all():
        return float("inf")
    with np.errstate(invalid="ignore"):
        shares = np.abs(result - exact) / (limit.ulp * spacing + limit.absolute)
    return float(np.max(np.where(finite, shares, 0), initial=0))
