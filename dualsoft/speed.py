"""The short benchmark of ``python -m dualsoft``: against the NumPy formula, and SciPy where it is installed."""

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dualsoft.softmax import logsumexp, softmax

SECONDS_PER_ROW = 0.6


class Timing(NamedTuple):
    """One row: median seconds of each."""

    what: str
    dualsoft: float
    numpy: float
    scipy: float | None


def numpy_softmax(x: Any, axis: int) -> Any:
    """Compute what one writes without a library."""
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def numpy_logsumexp(x: Any, axis: int) -> Any:
    """Compute what one writes without a library."""
    m = x.max(axis=axis)
    return m + np.log(np.exp(x - np.expand_dims(m, axis)).sum(axis=axis))


def timings() -> Iterator[Timing]:
    """Measure each row in one go, taking turns, so that all meet the same conditions."""
    special = importlib.import_module("scipy.special") if importlib.util.find_spec("scipy") is not None else None
    for ours, formula in ((softmax, numpy_softmax), (logsumexp, numpy_logsumexp)):
        for shape, axis in (((64, 64), -1), ((1000, 1000), -1), ((20_000, 16), -1), ((1000, 1000), 0)):
            x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            functions: list[Callable[[Any, int], Any]] = [ours, formula]
            if special is not None:
                functions.append(getattr(special, ours.__name__))
            medians = _medians(functions, x, axis)
            what = f"{ours.__name__} float32 {shape[0]}x{shape[1]} axis {axis}"
            yield Timing(what, medians[0], medians[1], medians[2] if special is not None else None)


def _medians(functions: list[Callable[[Any, int], Any]], x: Any, axis: int) -> list[float]:
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + SECONDS_PER_ROW
    while time.perf_counter() < end or len(times[0]) < 5:
        for function, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            function(x, axis)
            taken.append(time.perf_counter() - start)
    return [float(np.median(taken)) for taken in times]
