"""One row of the table: prepare every contender, check its result, time them in turns."""

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bench.contest import Call, Contest, Form, Rate, Work
from bench.libraries import Library, dtype_named, reason

OURS = "dualsoft"
SETTLE_SECONDS = 0.005
"""Longer than OpenMP's threads spin, after a call, for more work."""
TURN_SECONDS = 0.001
TRIALS = 4


class Result(NamedTuple):
    """What became of one contender: its times, or the reason why there are none."""

    times: list[float]
    """Seconds a call, one a repetition."""
    error_ulp: float | None = None
    """The largest error of its result, in ulp."""
    reason: str | None = None
    wrong: bool = False
    form: str = ""
    """Which of the library's ways to do it was the fastest, where it has several."""
    note: str = ""

    @property
    def median(self) -> float | None:
        """The median of the times, None where there are none."""
        return float(np.median(self.times)) if self.times else None


class Row(NamedTuple):
    """One row: a case with every contender's result."""

    operation: str
    case: str
    shape: tuple[int, ...]
    axis: int | None
    """None where the operation is not along one axis."""
    dtype: str
    bytes_moved: int
    flops: float
    ceiling: str
    """The name of the ceiling that bounds the case; it may have no result, as for arrays that caches may hold."""
    ceilings: tuple[str, ...]
    baselines: tuple[str, ...]
    results: dict[str, Result]


def measure(
    operation: Any,
    case: Any,
    libraries: Mapping[str, Library | str],
    threads: int,
    repeat: int,
    tick: Callable[[], None],
    timed: Callable[[Call], Call | Rate] = lambda call: call,
    trial: Callable[[Call], float] | None = None,
) -> Row:
    """Measure one case.

    Parameters
    ----------
    operation : Operation or AttentionOperation
    case : Case or AttentionCase
    libraries : dict of str to (Library or str)
        dualsoft and its peers, or the reasons why they do not take part.
    threads : int
        For the ceilings; the libraries know theirs.
    repeat : int
        How often each contender has its turn.
    tick : callable
        Called after each repetition.
    timed : callable, optional
        Turns a contender's call into what is timed in its place.
    trial : callable, optional
        Returns about how long a call takes, to choose among a library's ways to do the same.

    Returns
    -------
    Row
    """
    try:
        dtype = dtype_named(case.dtype)
    except ModuleNotFoundError as error:
        work = operation.work(case, 0)
        results = {OURS: Result([], reason=f"not installed (no module {error.name})")}
        return _row(operation.name, case.dtype, work, (), (), results)
    contest: Contest = operation.contest(case, dtype)
    calls: dict[str, Call | Rate] = {}
    results = {}
    for name, library in libraries.items():
        results[name], call = _prepared(contest, name, library, case.dtype, trial or _trial)
        if call is not None:
            calls[name] = timed(call)
    ours = libraries[OURS]
    baselines = contest.baselines(ours) if OURS in calls and isinstance(ours, Library) else {}
    calls |= {name: timed(call) for name, call in baselines.items()}
    ceilings = contest.ceilings(threads)
    calls |= {name: ceiling for name, ceiling in ceilings.items() if not isinstance(ceiling, str)}
    for name in (*baselines, *ceilings):
        found = ceilings.get(name)
        results[name] = Result([], reason=found if isinstance(found, str) else None)
    for name, times in in_turns(calls, repeat, tick).items():
        results[name] = results[name]._replace(times=times)
    work = contest.work._replace(ceiling=next(iter(ceilings), contest.work.ceiling))
    return _row(operation.name, case.dtype, work, tuple(ceilings), tuple(baselines), results)


def _row(
    operation: str,
    dtype: str,
    work: Work,
    ceilings: tuple[str, ...],
    baselines: tuple[str, ...],
    results: dict[str, Result],
) -> Row:
    case, shape, axis, moved, flops, ceiling = work
    return Row(operation, case, shape, axis, dtype, moved, flops, ceiling, ceilings, baselines, results)


def _prepared(
    contest: Contest, name: str, library: Library | str, dtype: str, trial: Callable[[Call], float]
) -> tuple[Result, Call | None]:
    """Return the contender's result so far, and its fastest right call if it can be timed."""
    if isinstance(library, str):
        return Result([], reason=library), None
    if dtype not in library.dtypes:
        return Result([], reason=library.why_only), None
    try:
        forms = contest.forms(name, library)
    except Exception as error:  # a contender that fails is a result
        return Result([], reason=f"fails: {reason(error)}"), None
    if isinstance(forms, str):
        return Result([], reason=forms), None
    tried = {label: _checked(contest, form, ours=name == OURS) for label, form in forms.items()}
    right = {label: result for label, result in tried.items() if result.reason is None}
    if not right:
        return next(iter(tried.values())), None
    label = next(iter(right)) if len(right) == 1 else min(right, key=lambda key: trial(forms[key].call))
    return right[label]._replace(form=label, note=forms[label].note), forms[label].call


def _checked(contest: Contest, form: Form, ours: bool) -> Result:
    try:
        found = form.read(form.call())
    except Exception as error:  # a contender that fails is a result
        return Result([], reason=f"fails: {reason(error)}")
    if found.shape != contest.result_shape:
        return Result([], reason=f"gives the shape {found.shape} instead of {contest.result_shape}", wrong=True)
    ulps, limit = contest.judge(found, ours)
    if limit is not None:
        by = ulps if math.isfinite(ulps) else None
        return Result([], by, f"not timed: is wrong by {ulps:.3g} ulp, beyond {limit}", wrong=True)
    return Result([], ulps)


def _trial(call: Call) -> float:
    """Return the least seconds of a few calls: enough to choose among a library's ways to do the same."""
    taken = []
    for _ in range(TRIALS):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def in_turns(calls: Mapping[str, Call | Rate], repeat: int, tick: Callable[[], None]) -> dict[str, list[float]]:
    """Time every call once a repetition, in rotating order.

    Parameters
    ----------
    calls : dict of str to (callable or Rate)
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


def _turn(call: Call | Rate) -> float:
    if isinstance(call, Rate):
        return call.work / call.call()
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
            "form": result.form,
            "note": result.note,
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
