"""The matrix of losses and gradients: function x group of cases x dtype x backend and ISA level, against the oracle."""

import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import loss_oracle
import numpy as np
import oracle
import pytest
from cases import DTYPES, GROUPS, Case, group
from conftest import DEVICES, USABLE
from devices import is_device
from moving import LOSSES, Moving
from oracle import Expected
from tolerance import FORMATS, mismatch

import dualsoft as ds

Array = np.ndarray[Any, Any]
ON_DEVICES = {("data", "f32"), ("data", "f64"), ("short_rows", "f16"), ("short_rows", "bf16"), ("options", "f32")}
"""Groups and dtypes that meet each branch of the kernels, which take seconds to compile for each dtype."""
MOST_ON_DEVICES = 20_000
SMOOTHED = {"label_smoothing": 0.125, "z_loss": 0.0625}  # exact in every dtype


def gradient_dtype(x: Array) -> Any:
    return np.dtype(np.float64) if x.dtype.kind in "biu" else x.dtype.newbyteorder("=")


def loss_dtype(x: Array) -> Any:
    dt = gradient_dtype(x)
    return dt if dt.itemsize >= 4 else np.dtype(np.float32)


def roundoff(dtype: Any) -> float:
    return float(2.0 ** -FORMATS[np.dtype(dtype).name][0])


def random_of(x: Array) -> np.random.Generator:
    return np.random.default_rng([x.ndim, *x.shape])


def row_shape(x: Array, axis: Any) -> tuple[int, ...]:
    axes = oracle.axes_of(axis, x.ndim)
    return tuple(n for k, n in enumerate(x.shape) if k not in axes)


def as_rows(value: Array, x: Array, axis: Any, wide: Any) -> Array:
    """A reduced array as rows (..., 1)."""
    axes = oracle.axes_of(axis, x.ndim)
    return oracle.to_rows(np.expand_dims(oracle.widen(value, wide), axes), axes)


def squeezed(want: Expected, axis: int, ndim: int) -> Expected:
    axes = oracle.axes_of(axis, ndim)
    return want._replace(**{k: getattr(want, k).squeeze(axes) for k in ("value", "magnitude", "spread")})


class Question:
    """One call: what to compute, and the answer with the function whose bound holds."""

    def __init__(self, what: str, call: Callable[[], Any], want: Expected, dtype: Any, function: str) -> None:
        self.what, self.call, self.want, self.dtype, self.function = what, call, want, dtype, function


def labels_for(x: Array, axis: int) -> tuple[Array, Array, int]:
    """Indices, probabilities, and an index to ignore."""
    rng, n = random_of(x), x.shape[axis]
    indices = rng.integers(0, n, row_shape(x, axis))
    probabilities = rng.random(x.shape)
    probabilities[rng.random(x.shape) < 0.3] = 0
    dt = gradient_dtype(x)
    return indices, (probabilities / n).astype(dt), int(indices.flat[0])


def ask_cross_entropy(case: Case) -> Iterator[Question]:
    x, axis = case.x, case.axis
    assert isinstance(axis, int)
    wide, dt = oracle.wide_type(x.dtype), loss_dtype(x)
    indices, probabilities, ignored = labels_for(x, axis)
    plain: dict[str, Any] = {}
    for name, labels, options in (
        ("indices", indices, plain),
        ("smoothed", indices, {**SMOOTHED, "ignore_index": ignored}),
        ("probabilities", probabilities, plain),
        ("probabilities, smoothed", probabilities, SMOOTHED),
    ):
        t = loss_oracle.target(x, axis, labels, wide, options.get("ignore_index"), options.get("label_smoothing", 0))
        each = loss_oracle.cross_entropy(x, axis, wide, t, options.get("z_loss", 0))

        def call(reduction: str, labels: Array = labels, options: Any = options) -> Any:
            return ds.cross_entropy(x, labels, axis, reduction=reduction, **options)

        yield Question(
            name,
            lambda call=call: call("none"),
            squeezed(each, axis, x.ndim),
            dt,
            "cross_entropy",  # type: ignore[misc]
        )
        if name == "smoothed":
            for reduction in ("sum", "mean"):
                want = loss_oracle.total(each, t.counts, reduction)
                yield Question(
                    reduction,
                    lambda call=call, r=reduction: call(r),
                    want,
                    dt,
                    "cross_entropy",  # type: ignore[misc]
                )
    lse = squeezed(oracle.logsumexp(x, axis, wide)[0], axis, x.ndim)
    yield Question("lse", lambda: ds.cross_entropy(x, indices, axis, return_lse=True)[1], lse, dt, "logsumexp")


def ask_cross_entropy_backward(case: Case) -> Iterator[Question]:
    x, axis = case.x, case.axis
    assert isinstance(axis, int)
    wide, dt = oracle.wide_type(x.dtype), gradient_dtype(x)
    indices, probabilities, ignored = labels_for(x, axis)
    grad = random_of(x).uniform(-1, 1, row_shape(x, axis))
    rows = as_rows(grad, x, axis, wide)
    for name, labels, options, reduction in (
        ("indices", indices, {}, "none"),
        ("smoothed", indices, {**SMOOTHED, "ignore_index": ignored}, "mean"),
        ("probabilities, smoothed", probabilities, SMOOTHED, "none"),
    ):
        t = loss_oracle.target(x, axis, labels, wide, options.get("ignore_index"), options.get("label_smoothing", 0))
        g: Any = rows if reduction == "none" else wide(0.5) / max(np.count_nonzero(t.counts), 1)
        for exact in (True, False):
            given = 0.0 if exact else roundoff(loss_dtype(x))
            want = loss_oracle.cross_entropy_backward(x, axis, wide, g, t, options.get("z_loss", 0), given)

            def call(labels: Array = labels, options: Any = options, r: str = reduction, exact: bool = exact) -> Any:
                lse = ds.softmax_state(x, axis) if exact else ds.cross_entropy(x, indices, axis, return_lse=True)[1]
                outer = grad if r == "none" else 0.5
                return ds.cross_entropy_backward(outer, x, labels, lse, axis, reduction=r, **options)

            yield Question(f"{name}, state: {exact}", call, want, dt, "cross_entropy_backward")


def ask_logsumexp_backward(case: Case) -> Iterator[Question]:
    x, axis = case.x, case.axis
    options = {k: v for k, v in case.options.items() if k != "dtype"}
    wide, dt = oracle.wide_type(x.dtype), gradient_dtype(x)
    grad = random_of(x).uniform(-1, 1, row_shape(x, axis))
    rows = as_rows(grad, x, axis, wide)
    for exact in (True, False):
        want = loss_oracle.logsumexp_backward(x, axis, wide, rows, roundoff=0 if exact else roundoff(dt), **options)

        def call(exact: bool = exact) -> Any:
            of = ds.softmax_state if exact else ds.logsumexp
            return ds.logsumexp_backward(grad, x, of(x, axis, **options), axis, **options)

        yield Question(f"state: {exact}", call, want, dt, "logsumexp_backward")


def ask_softmax_backward(case: Case, log: bool = False) -> Iterator[Question]:
    axis, options = case.axis, {k: v for k, v in case.options.items() if k != "dtype"}
    forward, backward = ("log_softmax", "log_softmax_backward") if log else ("softmax", "softmax_backward")
    with ds.use_backend("reference"):
        y = np.asarray(getattr(ds, forward)(case.x, axis, **options))
    grad = random_of(case.x).standard_normal(case.x.shape).astype(y.dtype)
    wide = oracle.wide_type(y.dtype)
    want = loss_oracle.softmax_backward(grad, y, axis, wide, log, **options)
    function = f"{'log_' if log else ''}softmax_backward"
    yield Question("all", lambda: getattr(ds, backward)(grad, y, axis, **options), want, y.dtype, function)


def ask_log_softmax_backward(case: Case) -> Iterator[Question]:
    return ask_softmax_backward(case, log=True)


ASK: dict[str, Callable[[Case], Iterator[Question]]] = {
    "cross_entropy": ask_cross_entropy,
    "cross_entropy_backward": ask_cross_entropy_backward,
    "logsumexp_backward": ask_logsumexp_backward,
    "softmax_backward": ask_softmax_backward,
    "log_softmax_backward": ask_log_softmax_backward,
}


def fits(name: str, case: Case) -> bool:
    """Cross-entropy has one axis and no options; without classes there is no label."""
    if not name.startswith("cross_entropy"):
        return True
    return type(case.axis) is int and not case.options and case.x.ndim > 0 and case.x.size > 0


@lru_cache(maxsize=2)  # the backends of one (function, group, dtype) run one after the other
def questions(name: str, group_name: str, key: str) -> list[tuple[Case, list[Question]]]:
    return [(case, list(ASK[name](case))) for case in group(group_name, key) if fits(name, case)]


def ids() -> Iterator[Any]:
    for group_name in GROUPS:
        for key in DTYPES if group_name != "integers" else ("f64",):
            for name in ASK:
                if name.startswith("cross_entropy") and group_name == "options":
                    continue
                yield pytest.param(
                    name, group_name, key, id=f"{name}-{group_name}-{'int' if group_name == 'integers' else key}"
                )


@pytest.mark.parametrize("backend", USABLE + DEVICES)  # the inner loop, for the sake of `questions`
@pytest.mark.parametrize(("name", "group_name", "key"), list(ids()))
def test_matrix(name: str, group_name: str, key: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_device(backend) and (group_name, key) not in ON_DEVICES:
        pytest.skip("what the groups and dtypes of ON_DEVICES show already")
    if backend == "cuda-emulated:sm_90" or (backend == "cuda-emulated:sm_75" and key != "bf16"):
        pytest.skip("the text that cuda-emulated:sm_80 runs: it has no branch by architecture but bfloat16's on sm_75")
    asked = questions(name, group_name, key)
    if is_device(backend):
        monkeypatch.setattr(sys.modules[__name__], "ds", Moving(backend, LOSSES))
    run_matrix(asked, backend)


def run_matrix(cases: list[tuple[Case, list[Question]]], backend: str) -> None:
    failures, ran = [], 0
    for case, asked in cases:
        if is_device(backend) and (not case.x.dtype.isnative or case.x.size > MOST_ON_DEVICES):
            continue  # CuPy has no arrays in the other byte order; the emulator is slow
        before = case.x.tobytes()
        for q in asked:
            ran += 1
            with ds.use_backend(backend):
                got = q.call()
            why = mismatch(q.function, got, q.want, q.dtype, backend.partition("-")[0])
            if why:
                failures.append(f"{case.name}: {q.what}: {why}")
        if case.x.tobytes() != before:
            failures.append(f"{case.name}: the input was written")
    if failures:
        pytest.fail(f"{len(failures)} of {ran} fail\n" + "\n".join(failures[:20]), pytrace=False)
    if not ran:
        pytest.fail("no case ran")
