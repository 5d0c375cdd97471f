"""softmax_topk and sample in plain NumPy: rows sorted whole.

``sample`` computes in float64 whatever the input, in the steps that ``dualsoft.philox`` defines: it is not an
approximation of what other backends do, but the same numbers.
"""

from typing import Any

import numpy as np

from dualsoft import philox
from dualsoft.topk_problem import SampleProblem

Array = np.ndarray[Any, Any]


def ranked(x: Array, scaled: Array, visible: Array | None, sign: Any, k: int) -> Array:
    """Return the indices of the k largest of each row: NaN, downwards, -inf, what is hidden; the lower index first.

    ``x`` are the elements and ``scaled`` their products with a scale of that sign.
    """
    with np.errstate(invalid="ignore"):
        order = x * sign
    group = np.where(np.isnan(scaled), 0, np.where(np.isneginf(order), 2, 1))
    if visible is not None:
        group = np.where(visible, group, 3)
    order = np.where(group == 1, order, 0)
    indices: Array = np.lexsort((-order, group), axis=1)[:, :k]
    return indices


def drawn(problem: SampleProblem, x: Array, options: Array, rows: Array) -> Array:
    """Return the index drawn from each row of the matrix ``x``: a column."""
    n = x.shape[1]
    m = np.max(x, axis=1, keepdims=True)
    temperature, top_k, min_p, top_p = (options[:, place : place + 1] for place in range(4))
    greedy = temperature == 0
    s = (x - m) / np.where(greedy, 1, temperature)
    s = np.where(np.isnan(s), -np.inf, s)
    order = np.argsort(-x, axis=1, kind="stable")
    ordered = np.take_along_axis(s, order, axis=1)
    kept = np.arange(n)[None, :] < top_k
    normal = min_p >= philox.LEAST_NORMAL
    least = philox.log(np.where(normal, min_p, 1), np.zeros_like(min_p))
    kept &= ~normal | (ordered >= least)
    kept &= within_mass(ordered, kept, top_p, 62 - n.bit_length())
    survives = np.zeros_like(kept)
    np.put_along_axis(survives, order, kept, axis=1)
    scores = np.where(survives, s + philox.gumbel(problem.key, rows, n), -np.inf)
    found = np.argmax(np.where(greedy, x, scores), axis=1)[:, None]
    nothing = np.isnan(x).any(axis=1, keepdims=True) | np.isneginf(m) | (np.isposinf(m) & ~greedy)
    valid = np.isfinite(temperature) & (temperature >= 0) & (top_k >= 1) & (min_p >= 0) & (top_p >= 0)
    return np.where(nothing | ~valid, -1, found)


def within_mass(s: Array, kept: Array, top_p: Array, bits: int) -> Array:
    """Return which elements, in falling order, belong to the fewest whose mass among those kept reaches ``top_p``."""
    weights = np.where(kept, np.rint(philox.exp(s) * 2.0**bits), 0).astype(np.uint64)
    sums = np.cumsum(weights, axis=1, dtype=np.uint64)
    total = sums[:, -1:]
    target = np.ceil(np.minimum(top_p, 1) * total.astype(np.float64)).astype(np.uint64)
    target = np.minimum(np.maximum(target, np.uint64(1)), total)
    inside: Array = (sums - weights < target) | (top_p >= 1)
    return inside
