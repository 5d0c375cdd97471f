"""The matrix: every function x group of cases x dtype x backend and ISA level, against the oracle."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import oracle
import pytest
from cases import DTYPES, GROUPS, Case, group
from conftest import DEVICES, USABLE
from devices import SAME_TEXT, get, is_device, put, runs_the_text_of_sm_80
from oracle import Expected
from tolerance import mismatch

import dualsoft as ds
from dualsoft.arrays import is_cupy

Array = np.ndarray[Any, Any]


class Part(NamedTuple):
    """One array of a call's answer."""

    what: str
    got: Any
    want: Expected
    dtype: Any
    function: str  # whose bound holds
    precision: Any = None  # whose ulp counts, if not the dtype's


def result_dtype(case: Case) -> Any:
    if "dtype" in case.options:
        return case.options["dtype"]
    dt = case.x.dtype
    return np.dtype(np.float64) if dt.kind in "biu" else dt.newbyteorder("=")


def state_precision(case: Case) -> Any:
    """State values are float64, as exact as the arithmetic of their input."""
    return np.float64 if oracle.wide_type(case.x.dtype) is np.longdouble else np.float32


def wide_options(case: Case, *names: str) -> tuple[Any, dict[str, Any]]:
    wide = oracle.wide_type(case.x.dtype, result_dtype(case))
    return wide, {k: v for k, v in case.options.items() if k in names}


def check_softmax(case: Case, want: Expected) -> Iterator[Part]:
    yield Part("softmax", ds.softmax(case.x, case.axis, **case.options), want, result_dtype(case), "softmax")


def check_log_softmax(case: Case, want: Expected) -> Iterator[Part]:
    yield Part(
        "log_softmax", ds.log_softmax(case.x, case.axis, **case.options), want, result_dtype(case), "log_softmax"
    )


def check_logsumexp(case: Case, want: tuple[Expected, Array]) -> Iterator[Part]:
    dt = result_dtype(case)
    got, sign = ds.logsumexp(case.x, case.axis, keepdims=True, return_sign=True, **case.options)
    yield Part("logsumexp", got, want[0], dt, "logsumexp")
    yield Part("sign", sign, exactly(want[1]), dt, "logsumexp")
    axes = oracle.axes_of(case.axis, case.x.ndim)
    squeezed = want[0]._replace(**{k: getattr(want[0], k).squeeze(axes) for k in ("value", "magnitude", "spread")})
    yield Part("logsumexp without keepdims", ds.logsumexp(case.x, case.axis, **case.options), squeezed, dt, "logsumexp")


def check_state(case: Case, want: tuple[Expected, ...]) -> Iterator[Part]:
    options = {k: v for k, v in case.options.items() if k != "dtype"}
    axes = oracle.axes_of(case.axis, case.x.ndim)
    m, d, lse = (w._replace(**{k: getattr(w, k).squeeze(axes) for k in ("value", "magnitude", "spread")}) for w in want)
    got = ds.softmax_state(case.x, case.axis, **options)
    precision, f64 = state_precision(case), np.float64
    seen = ~np.isnan(d.value)  # a NaN rides on d; m beside it is free
    yield Part(
        "m", np.where(seen, got.m, np.nan), m._replace(value=np.where(seen, m.value, np.nan)), f64, "softmax", precision
    )
    yield Part("d", got.d, d, f64, "softmax_state", precision)
    yield Part("lse", got.lse, lse, f64, "logsumexp", precision)


def check_normalize(case: Case, want: Expected) -> Iterator[Part]:
    options = {k: v for k, v in case.options.items() if k != "dtype"}
    got = ds.softmax_state(case.x, case.axis, **options).normalize(case.x, case.axis, **options)
    yield Part("normalize", got, want, result_dtype(case), "softmax")


def check_cumulative_logsumexp(case: Case, want: tuple[Expected, Expected]) -> Iterator[Part]:
    dt = result_dtype(case)
    for initial in (False, True):
        got = ds.cumulative_logsumexp(case.x, case.axis, include_initial=initial, **case.options)
        yield Part(f"include_initial={initial}", got, want[initial], dt, "cumulative_logsumexp")


def check_softmax_topk(case: Case, want: tuple[Expected, Expected, Array]) -> Iterator[Part]:
    dt, axis = result_dtype(case), case.axis
    y, lse, order = want
    halves = dt.name in ("float16", "bfloat16")
    n = case.x.shape[axis]
    most = min(n, 100) if is_cupy(case.x) else n  # the emulator takes its time over sorts
    for k in dict.fromkeys((min(n, 3), most)):
        got = ds.softmax_topk(case.x, k, axis, **case.options)
        ranks = np.take(order, range(k), axis)
        best = y._replace(
            **{name: np.take_along_axis(getattr(y, name), ranks, axis) for name in ("value", "magnitude", "spread")}
        )
        yield Part(f"k={k}, values", got.values, best, dt, "softmax_topk")
        yield Part(f"k={k}, indices", got.indices, exactly(ranks), np.int64, "softmax_topk", np.float64)
        yield Part(f"k={k}, lse", got.lse, lse, np.dtype(np.float32) if halves else dt, "logsumexp")


def exactly(value: Array) -> Expected:
    zero = np.zeros_like(value)
    return Expected(value, zero, zero, 1)


def expect_state(case: Case) -> tuple[Expected, ...]:
    options = {k: v for k, v in case.options.items() if k != "dtype"}
    return oracle.state(case.x, case.axis, oracle.wide_type(case.x.dtype), **options)


def expect(name: str, case: Case) -> Any:
    wide, options = wide_options(case, "where", "scale")
    if name == "state":
        return expect_state(case)
    if name == "normalize":
        return oracle.softmax(case.x, case.axis, oracle.wide_type(case.x.dtype), **options)
    if name == "softmax_topk":
        lse, _ = oracle.logsumexp(case.x, case.axis, wide, **options)
        flat = {k: getattr(lse, k).squeeze(case.axis) for k in ("value", "magnitude", "spread")}
        return (
            oracle.softmax(case.x, case.axis, wide, **options),
            lse._replace(**flat),
            oracle.ranking(case.x, case.axis, **options),
        )
    if name == "cumulative_logsumexp":
        return tuple(oracle.cumulative_logsumexp(case.x, case.axis, wide, initial) for initial in (False, True))
    return getattr(oracle, name)(case.x, case.axis, wide, **options)


CHECKS: dict[str, Callable[..., Iterator[Part]]] = {
    "softmax": check_softmax,
    "log_softmax": check_log_softmax,
    "logsumexp": check_logsumexp,
    "state": check_state,
    "normalize": check_normalize,
    "cumulative_logsumexp": check_cumulative_logsumexp,
    "softmax_topk": check_softmax_topk,
}


SERVED_ON_DEVICES = (
    "softmax",
    "log_softmax",
    "logsumexp",
    "state",
    "normalize",
    "cumulative_logsumexp",
    "softmax_topk",
)


def on(backend: str, case: Case) -> Case:
    """The case with its arrays where the backend takes them."""
    options = {name: put(backend, value) for name, value in case.options.items()}
    return case._replace(x=put(backend, np.asarray(case.x)), options=options)


def fits_device(case: Case) -> bool:
    """CuPy has no arrays in the other byte order."""
    return case.x.dtype.isnative


def fits(name: str, case: Case) -> bool:
    """State, normalize and top-k take no dtype, top-k one axis; the cumulative sum no where, no scale, one axis."""
    if name == "cumulative_logsumexp":
        return type(case.axis) is int and not set(case.options) - {"dtype"}
    if name == "softmax_topk" and (type(case.axis) is not int or not case.x.shape[case.axis]):
        return False
    return name not in ("state", "normalize", "softmax_topk") or "dtype" not in case.options


@lru_cache(maxsize=2)  # the backends of one (function, group, dtype) run one after the other
def expected(name: str, group_name: str, key: str) -> list[tuple[Case, Any]]:
    return [(case, expect(name, case)) for case in group(group_name, key) if fits(name, case)]


def ids() -> Iterator[Any]:
    for group_name in GROUPS:
        for key in DTYPES if group_name != "integers" else ("f64",):
            for name in CHECKS:
                yield pytest.param(
                    name, group_name, key, id=f"{name}-{group_name}-{'int' if group_name == 'integers' else key}"
                )


@pytest.mark.parametrize("backend", USABLE + DEVICES)  # the inner loop, for the sake of `expected`
@pytest.mark.parametrize(("name", "group_name", "key"), list(ids()))
def test_matrix(name: str, group_name: str, key: str, backend: str) -> None:
    if is_device(backend) and name not in SERVED_ON_DEVICES:
        pytest.skip(f"the CUDA backend has no kernels for {name} yet")
    if name == "softmax_topk" and backend.startswith("cuda-emulated"):
        pytest.skip(
            "all ranks of a row are hundreds of launches, too many for the emulator: test_cuda_topk.py has fewer"
        )
    # How long a row may be that shared memory keeps, and how it gets there, depends on the architecture.
    may_be_kept = group_name == "long_rows" and name in ("softmax", "log_softmax")
    if runs_the_text_of_sm_80(backend, key) and not may_be_kept:
        pytest.skip(SAME_TEXT)
    with ds.use_backend(backend):
        run_matrix(name, group_name, key, backend)


def run_matrix(name: str, group_name: str, key: str, backend: str) -> None:
    failures, ran = [], 0
    for case, want in expected(name, group_name, key):
        if name == "cumulative_logsumexp" and backend == "reference" and case.x.size > 20000:
            continue  # a loop in Python, step by step
        if is_device(backend) and not fits_device(case):
            continue
        before, placed = case.x.tobytes(), on(backend, case)
        for part in CHECKS[name](placed, want):
            ran += 1
            why = mismatch(
                part.function, get(part.got), part.want, part.dtype, backend.partition("-")[0], part.precision
            )
            if why:
                failures.append(f"{case.name}: {part.what}: {why}")
        if get(placed.x).tobytes() != before:
            failures.append(f"{case.name}: the input was written")
    if failures:
        pytest.fail(f"{len(failures)} of {ran} fail\n" + "\n".join(failures[:20]), pytrace=False)
    if not ran:
        pytest.fail("no case ran")
