"""One row of the table: prepare every contender, check its result, time them in turns."""

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bench.ceilings import ceiling_call
from bench.libraries import Call, Library, dtype_named, reason
from bench.operation import BASELINE, Array, Case, Operation
from dualsoft import accuracy

OURS = "dualsoft"
OURS_IN_BASELINE = f"dualsoft {BASELINE}"
SETTLE_SECONDS = 0.005
"""Longer than OpenMP's threads spin, after a call, for more work."""
TURN_SECONDS = 0.001


class Result(NamedTuple):
    """What became of one contender: its times, or the reason why there are none."""

    times: list[float]
    """Seconds a call, one a repetition."""
    error_ulp: float | None = None
    """The largest error of its result, in ulp."""
    reason: str | None = None
    wrong: bool = False

    @property
    def median(self) -> float | None:
        """The median of the times, None where there are none."""
        return float(np.median(self.times)) if self.times else None


class Row(NamedTuple):
    """One row: a case with every contender's result."""

    operation: str
    shape: tuple[int, ...]
    axis: int
    dtype: str
    bytes_moved: int
    ceiling: str
    """"read" or "copy"; its result is that of the contender of this name, absent for arrays that caches may hold."""
    results: dict[str, Result]


class _Truth(NamedTuple):
    """The right result, and the spacing of the dtype at the size that counts its errors."""

    exact: Array
    spacing: Array
    limit: Array
    """dualsoft's bound."""
    shared_limit: Array
    """Half of the dtype's digits: beyond it something else was computed."""


def measure(
    operation: Operation,
    case: Case,
    libraries: Mapping[str, Library | str],
    threads: int,
    repeat: int,
    tick: Callable[[], None],
) -> Row:
    """Measure one case.

    Parameters
    ----------
    operation : Operation
    case : Case
    libraries : dict of str to (Library or str)
        dualsoft and its peers, or the reasons why they do not take part.
    threads : int
        For the ceilings; the libraries know theirs.
    repeat : int
        How often each contender has its turn.
    tick : callable
        Called after each repetition.

    Returns
    -------
    Row
    """
    shape, axis = case.shape.lengths, case.shape.axis
    calls: dict[str, Call] = {}
    results: dict[str, Result] = {}
    try:
        dtype = dtype_named(case.dtype)
    except ModuleNotFoundError as error:
        why = f"not installed (no module {error.name})"
        return Row(operation.name, shape, axis, case.dtype, 0, operation.ceiling, {OURS: Result([], reason=why)})
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(dtype)
    out = np.empty(operation.result_shape(case.shape), dtype)
    moved = operation.bytes_moved(x, out)
    truth = _truth(operation, x, axis)
    for name, library in libraries.items():
        results[name], call = _prepared(operation, name, library, x, axis, truth)
        if call is not None:
            calls[name] = call
    del truth
    ours, function = libraries[OURS], operation.contenders[OURS]
    if x.dtype.itemsize < 4 and isinstance(ours, Library) and not isinstance(function, str):
        wide_out = np.empty(out.shape, BASELINE)
        calls[OURS_IN_BASELINE] = ours.bound(ours.module, function, x.astype(BASELINE), axis, wide_out)
        results[OURS_IN_BASELINE] = Result([])
    ceiling = ceiling_call(operation.ceiling, x, threads)
    if isinstance(ceiling, str):
        results[operation.ceiling] = Result([], reason=ceiling)
    elif ceiling is not None:
        calls[operation.ceiling], results[operation.ceiling] = ceiling, Result([])
    for name, times in in_turns(calls, repeat, tick).items():
        results[name] = results[name]._replace(times=times)
    return Row(operation.name, shape, axis, case.dtype, moved, operation.ceiling, results)


def _truth(operation: Operation, x: Array, axis: int) -> _Truth:
    wide = x.astype(np.longdouble if x.dtype == np.float64 else np.float64)
    exact = operation.exact(wide, axis)
    size = operation.size(wide, exact, axis)
    spread = float(np.max(np.max(wide, axis=axis) - np.min(wide, axis=axis)))
    spacing = accuracy.ulp(size, x.dtype)
    bound = accuracy.bound(operation.name, x.dtype, n=x.shape[axis], spread=spread)
    limit = bound.ulp * spacing + bound.absolute
    least = accuracy.ulp(0.0, x.dtype)
    shared_limit = math.sqrt(accuracy.unit_roundoff(x.dtype)) * np.abs(size) + least
    return _Truth(exact, spacing, limit, shared_limit)


def _prepared(
    operation: Operation, name: str, library: Library | str, x: Array, axis: int, truth: _Truth
) -> tuple[Result, Call | None]:
    """Return the contender's result so far, and its call if it can be timed."""
    function = operation.contenders.get(name, f"{operation.name} has no contender for it")
    if isinstance(library, str):
        return Result([], reason=library), None
    if isinstance(function, str):
        return Result([], reason=function), None
    if x.dtype.name not in library.dtypes:
        return Result([], reason=library.why_only), None
    out = np.empty(truth.exact.shape, x.dtype)
    try:
        call = library.bound(
            library.module, function, library.given(library.module, x), axis, library.given(library.module, out)
        )
        found = library.taken(call()).astype(truth.exact.dtype)
    except Exception as error:  # a contender that fails is a result
        return Result([], reason=f"fails: {reason(error)}"), None
    if found.shape != truth.exact.shape:
        return Result([], reason=f"gives the shape {found.shape} instead of {truth.exact.shape}", wrong=True), None
    distance = np.abs(found - truth.exact)
    ulps = float(np.max(distance / truth.spacing))
    limit = truth.limit if name == OURS else truth.shared_limit
    # Written so that NaN is wrong too.
    if not bool(np.all(distance <= limit)):
        by = ulps if math.isfinite(ulps) else None
        beyond = "its bound" if name == OURS else "half of the digits"
        return Result([], by, f"not timed: is wrong by {ulps:.3g} ulp, beyond {beyond}", wrong=True), None
    return Result([], ulps), call


def in_turns(calls: Mapping[str, Call], repeat: int, tick: Callable[[], None]) -> dict[str, list[float]]:
    """Time every call once a repetition, in rotating order.

    Parameters
    ----------
    calls : dict of str to callable
        Complete when they return.
    repeat : int
        The number of repetitions.
    tick : callable
        Called after each repetition.

    Returns
    -------
    dict of str to list of float
        Seconds a call, one a repetition.
    """
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for repetition in range(repeat):
            start = repetition % len(names) if names else 0
            for name in names[start:] + names[:start]:
                times[name].append(_turn(calls[name]))
            tick()
    finally:
        if collecting:
            gc.enable()
    return times


def _turn(call: Call) -> float:
    begin = time.perf_counter()
    count, settled = 0, False
    while not settled:
        call()
        count += 1
        elapsed = time.perf_counter() - begin
        settled = elapsed >= SETTLE_SECONDS
    calls = max(1, round(TURN_SECONDS * count / elapsed))
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def row_record(row: Row) -> dict[str, Any]:
    """Return a row as it is written to JSON."""
    results = {
        name: {
            "median": result.median,
            "times": result.times,
            "error_ulp": result.error_ulp,
            "reason": result.reason,
            "wrong": result.wrong,
        }
        for name, result in row.results.items()
    }
    return row._replace(results={})._asdict() | {"shape": list(row.shape), "results": results}


def ours_failed(row: Row) -> str | None:
    """Return what is wrong with dualsoft's result, None if nothing is; a dtype that is not installed is not."""
    result = row.results[OURS]
    if result.times or (result.reason or "").startswith("not installed"):
        return None
    return result.reason or "it has no times"
