"""``softmax_topk`` on CUDA: the shapes of ``cuda_rows``, so that logarithms have the bits of ``logsumexp``.

Contiguous rows are read once for the pair and the largest elements. Where ``logsumexp`` has kernels of another order of
addition, or the elements of a row are gathered, it is launched by itself, and the row is read twice.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from dualsoft.arrays import Array
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_rows import (
    SEGMENTS,
    SHAPES,
    STORAGE,
    Input,
    Shape,
    input_of,
    launch_of,
    row_variant,
    shape_for,
    state_code,
    width_of,
)
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.problem import LogSumExpProblem
from dualsoft.topk_problem import TopKProblem

_MOST_RANKS = 1024
"""Of a launch: half of what the list of a block holds. More take several, each from the last of the one before on."""
_MOST_SCRATCH = 2**26
"""Bytes of entries of the parts of rows at a time."""
_ENTRY = 16
_JOINING = 256


def _variant(shape: Shape, x_code: int, lse_code: int, direct: bool) -> Variant:
    return row_variant("topk.cu", "topk_rows", shape, x_code, lse_code, direct)


def _join_variant(out_code: int, lse_code: int) -> Variant:
    return Variant("topk_join.cu", "topk_join", (("DS_X", STORAGE[out_code]), ("DS_Y", STORAGE[lse_code])))


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need, results of the same dtype."""
    for code in codes:
        lse_code, width = state_code(code), width_of(code, state_code(code))
        for shape in SHAPES[width]:
            yield _variant(shape, code, lse_code, True)
        yield _variant(SEGMENTS[width], code, lse_code, False)
        yield _join_variant(code, lse_code)


def softmax_topk(
    logsumexp: Callable[[LogSumExpProblem, Device], Iterable[Launch]], problem: TopKProblem, device: Device
) -> Iterator[Launch]:
    """Yield what writes the problem's outputs; ``logsumexp`` yields the launches of one."""
    given = input_of(problem, problem.out, problem.indices, problem.lse)
    lse: Array | None = problem.lse
    if not given.is_plain or not problem.k:
        yield from logsumexp(_logarithm(problem), device)
        lse = None
    for first in range(0, problem.k, _MOST_RANKS):
        k = min(_MOST_RANKS, problem.k - first)
        yield from _ranks(problem, given, None if first else lse, (np.int64(first), np.int32(k)), device)


def _logarithm(problem: TopKProblem) -> LogSumExpProblem:
    x, _, _, lse, axes, mask, _, scale, where, x_code, _, lse_code = problem
    return LogSumExpProblem(x, lse, axes, mask, scale, where, x_code, lse_code, None, None, 0)


def _ranks(
    problem: TopKProblem, given: Input, lse: Array | None, wanted: tuple[np.int64, np.int32], device: Device
) -> Iterator[Launch]:
    """Yield what writes some of the ranks of all rows."""
    out, indices, (axis,) = problem.out, problem.indices, problem.axes
    at, k = given.at, int(wanted[1])
    width = width_of(given.code, problem.lse_code)
    shape = (shape_for(at.n, width) or SEGMENTS[width]) if given.is_plain else SEGMENTS[width]
    variant = _variant(shape, given.code, problem.lse_code, given.is_plain)
    parts, length = given.parts(width)
    results = (out, np.int64(out.strides[axis]), indices, np.int64(indices.strides[axis]), lse)
    if parts == 1:
        last = (np.int64(0), np.int64(at.rows), np.int64(1), np.int64(length))
        yield launch_of(variant, shape, at.rows, (*given.arguments, *results, None, None, at.struct, *wanted, *last))
        return
    together = max(1, _MOST_SCRATCH // (parts * k * _ENTRY))
    pairs = device.scratch((min(together, at.rows) * parts, 3))
    entries = device.scratch((min(together, at.rows) * parts, k, 2), "uint64")
    for row in range(0, at.rows, together):
        rows = min(together, at.rows - row)
        here: tuple[Any, ...] = (np.int64(row), np.int64(rows), np.int64(parts))
        reading = (*given.arguments, *results[:-1], None, pairs, entries, at.struct, *wanted, *here, np.int64(length))
        yield launch_of(variant, shape, rows * parts, reading)
        writing = (pairs, entries, *given.arguments[2:], *results, at.struct, *wanted, *here)
        yield Launch(_join_variant(problem.out_code, problem.lse_code), min(rows, MOST_BLOCKS), _JOINING, writing)
