"""The complex ``logsumexp``: served by the reference alone, in complex128."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dualsoft.problem import LogSumExpProblem

Array = np.ndarray[Any, Any]


def complex_logsumexp(problem: LogSumExpProblem, to_rows: Callable[[Array, tuple[int, ...]], Array]) -> None:
    """Write log sum b·exp(scale·x), its imaginary part in (-pi, pi]; with signs, log |sum| and the phase.

    The element of largest real part is taken out of the sum. Where the result is not finite, it is that of the plain
    formula, whose infinities follow the C99 rules for exp and log.
    """
    z = to_rows(problem.x, problem.axes).astype(np.complex128)
    if isinstance(problem.scale, np.ndarray):
        z = z * to_rows(problem.scale, problem.axes)
    elif problem.scale is not None:
        z = z * problem.scale
    weights = np.ones_like(z) if problem.b is None else to_rows(problem.b, problem.axes).astype(np.complex128)
    if problem.where is not None:
        weights = np.where(to_rows(problem.where, problem.axes), weights, 0)
    taking_part = weights != 0
    plain = np.sum(np.where(taking_part, _times(weights, np.exp(z)), 0), axis=1, keepdims=True)

    z = np.where(taking_part, z, -np.inf)
    first = np.argmax(np.where(np.isnan(z.real), -np.inf, z.real), axis=1, keepdims=True)
    m = np.take_along_axis(z, first, axis=1)
    p = np.take_along_axis(weights, first, axis=1)
    terms = np.where(taking_part, _times(weights, np.exp(z - m)), 0)
    np.put_along_axis(terms, first, 0, axis=1)
    s = np.sum(terms, axis=1, keepdims=True)
    size = m.real + _log_abs(p, s)
    angle = _wrap(m.imag + np.angle(p + s))
    if problem.sign is None:
        log = np.log(plain)
        log.imag = _wrap(log.imag)
        finite = np.isfinite(size) & np.isfinite(angle)
        exact = np.empty_like(log)
        exact.real, exact.imag = size, angle
        problem.out[...] = np.where(finite, exact, log).reshape(problem.out.shape)
        return
    finite = np.isfinite(size)
    problem.out[...] = np.where(finite, size, np.log(np.abs(plain))).reshape(problem.out.shape)
    phase = np.exp(1j * angle)
    problem.sign[...] = np.where(finite, phase, _phase(plain)).reshape(problem.sign.shape)


def _times(weights: Array, values: Array) -> Array:
    """Multiply, by the real part alone where a weight is real: infinities would turn to NaN in a complex product."""
    real = weights.imag == 0
    product = np.empty_like(values)
    product.real, product.imag = weights.real * values.real, weights.real * values.imag
    return np.where(real, np.where(weights == 1, values, product), weights * values)


def _log_abs(p: Array, s: Array) -> Array:
    """Return log |p + s|, by log1p where the sum is near 1: |1 + r|² - 1 = re·(2 + re) + im²."""
    re, im = (p.real - 1) + s.real, p.imag + s.imag
    excess = re * (2 + re) + im * im
    return np.asarray(np.where(np.abs(excess) < 0.5, 0.5 * np.log1p(excess), np.log(np.abs(p + s))))


def _wrap(angle: Array) -> Array:
    """Return the angle in (-pi, pi], unchanged where it is there already."""
    wrapped = -((-angle + np.pi) % (2 * np.pi) - np.pi)
    return np.asarray(np.where(np.abs(angle) < np.pi, angle, wrapped))


def _phase(value: Array) -> Array:
    """Return value / |value|, and 0 for 0."""
    return np.where(value == 0, 0, value / np.abs(value))
