"""Losses and gradients of rows on CUDA.

Rows that are contiguous have a warp, or a block that goes along them in segments; others are columns, of which a tile
has many side by side. Which kernel serves a problem follows from the row's length, the dtypes and the layout inside a
row alone. Class indices are not read by the host: one that is out of range makes its row NaN.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dualsoft.arrays import Array, is_cupy
from dualsoft.backends.cuda_columns import OFTEN_TWICE, Tiles, plan_of, whole_columns
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_layout import layout_of
from dualsoft.backends.cuda_rows import (
    SEGMENTS,
    Shape,
    factors_of,
    is_contiguous,
    launch_of,
    row_variant,
    state_code,
    strides_of,
    width_of,
)
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.loss_problem import (
    CrossEntropyGradientProblem,
    CrossEntropyProblem,
    LogSumExpGradientProblem,
    SoftmaxGradientProblem,
    Targets,
    share_of_row,
)

_SHORT = Shape(32, 8)
"""How rows of up to 256 elements are shared out; others go by segments."""
_STORED = (F16, BF16, F32, F64)
"""Elements of other types are told by codes, as columns are."""
_MOST_PARTS = 1024
"""Of a row: blocks that share it."""
_ENOUGH_BLOCKS = 512
"""Blocks that fill any card: with fewer rows, long ones have several blocks each where that changes no bit."""
_SUMS = 7
"""float64 numbers of a part: ``SUMS`` of ``cuda/loss_terms.cuh``."""
_ENTRY = 3
"""float64 numbers of an entry of a total: see ``cuda/totals.cuh``."""
_TOTALLED = 4096
"""Entries that a block adds up."""
_BLOCK = 256
_ANSWER = 80
"""``ANSWER_SIZE`` of ``cuda/gradient_columns.cu``."""
_WEIGHT = 4
"""The operand of a layout that is read beside x."""

# ``function`` of cuda/gradient_terms.cuh
_OF_SOFTMAX, _OF_LOG_SOFTMAX, _OF_LOGSUMEXP, _OF_CROSS_ENTROPY = range(4)

_TERMS = np.dtype(
    [
        *((name, np.float64) for name in ("hard", "uniform", "z_loss")),
        ("ignored", np.int64),
        *((name, np.int32) for name in ("ignores", "labels_code")),
    ]
)
"""``loss_terms`` of ``cuda/loss_terms.cuh``."""
_QUESTION = np.dtype(
    [
        *((name, np.float64) for name in ("factor", "grad", "hard", "uniform", "z_loss", "roundoff")),
        ("ignored", np.int64),
        *((name, np.int32) for name in ("of", "ignores", "x_code", "y_code", "beside_code", "is_alike")),
    ]
)
"""``question`` of ``cuda/gradient_terms.cuh``."""

_TOTAL = Variant("totals.cu", "total_of_entries", ())
_JOIN = Variant("loss_join.cu", "join_losses", ())


def _shape(n: int, x_code: int, out_code: int) -> Shape:
    return _SHORT if n <= _SHORT.length else SEGMENTS[width_of(x_code, out_code)]


def _loss_variant(shape: Shape, x_code: int, out_code: int) -> Variant:
    return row_variant("losses.cu", "loss_rows", shape, x_code, out_code)


def _gradient_variant(shape: Shape, x_code: int, out_code: int) -> Variant:
    return row_variant("gradients.cu", "gradient_rows", shape, x_code, out_code)


def _column_variant(kernel: str, x_code: int, out_code: int) -> Variant:
    arithmetic = "f32" if width_of(x_code, out_code) == "narrow" else "f64"
    return Variant(f"{kernel}.cu", kernel, (("DS_X", arithmetic),), is_dynamic=True)


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need, results of the same dtype."""
    yield _TOTAL
    yield _JOIN
    for code in dict.fromkeys(map(state_code, codes)):
        yield _column_variant("loss_columns", code, code)
        yield _column_variant("gradient_columns", code, code)
    for code in codes:
        loss_code = state_code(code)
        for shape in (_SHORT, SEGMENTS[width_of(code, loss_code)]):
            yield _loss_variant(shape, code, loss_code)
        for shape in (_SHORT, SEGMENTS[width_of(code, code)]):
            yield _gradient_variant(shape, code, code)


def cross_entropy(problem: CrossEntropyProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the loss of each row, or their sum or mean, and lse if it is asked for."""
    x, out, axes, _, x_code, out_code, targets, lse = problem
    labels = _on_device(targets, device)
    each = out if targets.reduction == "none" else None
    strides = strides_of(x, each, None, None, labels, lse)
    at = layout_of(x.shape, axes, strides)
    entries = device.scratch((at.rows, _ENTRY)) if each is None else None
    results, terms = (each, lse, entries), np.zeros((), _TERMS)
    terms[()] = (*_terms_of(targets, at.n), targets.labels_code)
    if x_code in _STORED and is_contiguous(at, 0, x):
        shape = _shape(at.n, x_code, out_code)
        parts, length = _parts(at.n, shape, _MOST_PARTS)
        sums = device.scratch((at.rows * parts, _SUMS)) if parts > 1 else None
        is_alike = targets.labels_code == x_code and is_contiguous(at, _WEIGHT, labels)
        sharing = (sums, np.int64(parts), np.int64(length), terms, at.struct)
        operands = (x, labels, np.int32(is_alike), *results, *sharing)
        yield launch_of(_loss_variant(shape, x_code, out_code), shape, at.rows * parts, operands)
        if sums is not None:
            joining = (
                x,
                np.int32(x_code),
                labels,
                *results,
                np.int32(out_code),
                sums,
                np.int64(parts),
                terms,
                at.struct,
            )
            yield launch_of(_JOIN, Shape(32, 1), at.rows, joining)
    else:
        plan = plan_of(x.shape, axes, strides, (x.dtype.itemsize, out.dtype.itemsize))
        tiles = whole_columns(plan, x, out.dtype.itemsize)
        if lse is not None and at.n <= OFTEN_TWICE:
            tiles = tiles.keeping(device.dynamic_limit)
        reading = (x, np.int32(x_code), np.int32(_is_aligned(x)), labels, np.int32(_is_aligned(labels)))
        yield tiles.launch(_column_variant("loss_columns", x_code, out_code), *reading, *results, terms)
    if entries is not None:
        yield from _total(entries, at.rows, out, out_code, targets.reduction == "mean", device)


def _parts(n: int, shape: Shape, most: int) -> tuple[int, int]:
    """Return into how many parts a row goes, ``most`` at the most, and of how many segments each."""
    segments = max(1, -(-n // shape.length))
    length = -(-segments // most)
    return -(-segments // length), length


def _is_aligned(array: Array | None) -> bool:
    """Return whether all elements lie at multiples of their size."""
    if array is None:
        return True
    size = array.dtype.itemsize
    steps = (step for length, step in zip(array.shape, array.strides, strict=True) if length != 1)
    return array.data.ptr % size == 0 and all(step % size == 0 for step in steps)


def _total(entries: Array, rows: int, out: Array, out_code: int, is_mean: bool, device: Device) -> Iterator[Launch]:
    """Yield what adds up all entries, some thousands of them at a time."""
    code = np.int32(out_code)
    while rows > _TOTALLED:
        length = max(_TOTALLED, -(-rows // MOST_BLOCKS))
        blocks = -(-rows // length)
        parts = device.scratch((blocks, _ENTRY))
        yield Launch(
            _TOTAL, blocks, _BLOCK, (entries, np.int64(rows), np.int64(length), parts, None, code, np.int32(0))
        )
        entries, rows = parts, blocks
    yield Launch(_TOTAL, 1, _BLOCK, (entries, np.int64(rows), np.int64(rows), None, out, code, np.int32(is_mean)))


def _on_device(targets: Targets, device: Device) -> Array:
    # What the host sees may stand beside device data.
    return targets.labels if is_cupy(targets.labels) else device.cp.asarray(targets.labels)


class _Terms(NamedTuple):
    """Shares of the label and of each class, the factor of lse², the index of rows that do not count, if any."""

    hard: float = 1.0
    uniform: float = 0.0
    z_loss: float = 0.0
    ignored: int = 0
    ignores: bool = False


def _terms_of(targets: Targets, n: int) -> _Terms:
    ignored = None if targets.labels_code >= 0 else targets.ignored
    smoothing = targets.smoothing
    return _Terms(1 - smoothing, smoothing / max(n, 1), targets.z_loss, ignored or 0, ignored is not None)


def cross_entropy_gradient(problem: CrossEntropyGradientProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the gradient of the logits."""
    targets, axis = problem.targets, problem.axes[0]
    labels = _on_device(targets, device)
    grad = _share(problem, labels, device)
    terms = _terms_of(targets, problem.x.shape[axis])
    is_soft = targets.labels_code >= 0
    beside = _Beside(labels if is_soft else None, targets.labels_code)
    yield _gradients(problem, _OF_CROSS_ENTROPY, beside, grad, device, None if is_soft else labels, terms)


def _share(problem: CrossEntropyGradientProblem, labels: Array, device: Device) -> float | Array:
    """Return the gradient of each row's loss; how many rows count is known to the device alone where labels are."""
    targets = problem.targets
    if (
        targets.reduction != "mean"
        or targets.labels_code >= 0
        or targets.ignored is None
        or labels is not targets.labels
    ):
        return share_of_row(problem)
    cp = device.cp
    return cp.asarray(problem.grad, "float64") / cp.maximum(cp.count_nonzero(labels != targets.ignored), 1)


def logsumexp_gradient(problem: LogSumExpGradientProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the gradient of the elements."""
    yield _gradients(problem, _OF_LOGSUMEXP, _Beside(problem.b, problem.b_code), problem.grad, device)


def softmax_gradient(problem: SoftmaxGradientProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the gradient of what softmax, or log_softmax, was taken of."""
    of = _OF_LOG_SOFTMAX if problem.log else _OF_SOFTMAX
    yield _gradients(problem, of, _Beside(problem.grad, problem.grad_code), problem.factor, device)


class _Beside(NamedTuple):
    """What is read beside x, if anything is, and its dtype."""

    array: Array | None
    code: int


def _gradients(
    problem: Any,
    of: int,
    beside: _Beside,
    grad: float | Array,
    device: Device,
    labels: Array | None = None,
    terms: _Terms | None = None,
) -> Launch:
    x, out, x_code, out_code = problem.x, problem.out, problem.x_code, problem.out_code
    where, lse = getattr(problem, "where", None), getattr(problem, "lse", None)
    factors, factor = factors_of(getattr(problem, "scale", None))
    m, rest, roundoff = (None, None, 0.0) if lse is None else lse
    grads, each = (None, grad) if isinstance(grad, float) else (_along(x, grad), math.nan)
    strides = strides_of(x, out, where, factors, beside.array, labels, m, rest, grads)
    at = layout_of(x.shape, problem.axes, strides)
    rows: tuple[Any, ...] = (labels, m, rest, grads, out)
    is_alike = beside.array is not None and beside.code == x_code and is_contiguous(at, _WEIGHT, beside.array)
    hard, uniform, z_loss, ignored, ignores = terms or _Terms()
    numbers = (factor, each, hard, uniform, z_loss, roundoff, ignored, of, ignores)
    question = np.zeros((), _QUESTION)
    question[()] = (*numbers, x_code, out_code, -1 if beside.array is None else beside.code, is_alike)
    is_direct = where is None and is_contiguous(at, 0, x) and is_contiguous(at, 1, out)
    if is_direct and x_code in _STORED:
        shape = _shape(at.n, x_code, out_code)
        needs_sum = beside.array is not None and of != _OF_LOGSUMEXP
        is_whole = needs_sum or any(a is not None and a.data.ptr == out.data.ptr for a in (x, beside.array))
        parts, length = _parts(at.n, shape, 1 if is_whole else -(-_ENOUGH_BLOCKS // max(at.rows, 1)))
        arguments = (x, factors, beside.array, *rows, np.int64(parts), np.int64(length), question, at.struct, at.more)
        return launch_of(_gradient_variant(shape, x_code, out_code), shape, at.rows * parts, arguments)
    tiles = _gradient_tiles(problem, strides, of, beside.array is not None, device)
    aligned = _is_aligned(x) | _is_aligned(out) << 1 | _is_aligned(beside.array) << 2
    operands = (x, where, factors, beside.array, *rows, np.int32(aligned), question)
    launch = tiles.launch(_column_variant("gradient_columns", x_code, out_code), *operands)
    return launch._replace(arguments=(*launch.arguments[:-1], at.more, launch.arguments[-1]))


def _gradient_tiles(problem: Any, strides: Any, of: int, has_beside: bool, device: Device) -> Tiles:
    """Return the tiles of a gradient: what is summed before it is used is kept where there is room."""
    x, out = problem.x, problem.out
    plan = plan_of(x.shape, problem.axes, strides, (x.dtype.itemsize, out.dtype.itemsize))
    tiles = whole_columns(plan, x, 4 if width_of(problem.x_code, problem.out_code) == "narrow" else 8, _ANSWER)
    if not has_beside or of == _OF_LOGSUMEXP:
        return tiles
    return tiles.keeping(device.dynamic_limit, 2 if of == _OF_SOFTMAX else 1)


def _along(x: Array, grad: Array) -> Array:
    """Return a number for each row as an array with the axes of x; one for all has strides of 0."""
    return grad if grad.ndim else grad.reshape((1,) * x.ndim)
