"""Softmax and log-sum-exp of rows on CUDA: which variant of which kernel serves a problem, and its launch.

The variant follows from the row length, the dtypes and the layout alone, never from the number of rows: a row has the
same bits in every batch.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dualsoft.arrays import Array
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_layout import Layout, layout_of
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64
from dualsoft.problem import LogSumExpProblem, SoftmaxProblem

STORAGE = {
    F16: "f16",
    BF16: "bf16",
    F32: "f32",
    F64: "f64",
    BOOL: "boolean",
    I8: "i8",
    U8: "u8",
    I16: "i16",
    U16: "u16",
    I32: "i32",
    U32: "u32",
    I64: "i64",
    U64: "u64",
}
"""Codes of dtypes to their names in ``cuda/types.cuh``."""

_BYTES = {F16: 2, BF16: 2, F32: 4, F64: 8, BOOL: 1, I8: 1, U8: 1, I16: 2, U16: 2, I32: 4, U32: 4, I64: 8, U64: 8}
_NARROW = (F16, BF16, F32)


class Shape(NamedTuple):
    """How a row is shared out."""

    group: int
    """Threads."""
    items: int
    """Elements that a thread holds."""
    tiled: bool = False
    """Whether the row may be longer than one such segment, and goes through the registers piece by piece."""


# Longer rows need more threads, and more elements a thread before that. What float64 arithmetic holds takes twice the
# registers. Segments of tiled rows are smaller than the longest rows in one piece: there are registers for both then.
_SHAPES = {
    name: (
        *(Shape(8, 8), Shape(32, 8)),
        *(Shape(group, items) for group in (32, 128, 256, 512)),
        Shape(256, items, tiled=True),
    )
    for name, items in (("narrow", 32), ("wide", 16))
}
_SMALLEST_BLOCK = 128


def _width(x_code: int, out_code: int) -> str:
    return "narrow" if x_code in _NARROW and out_code in _NARROW else "wide"


def shape_for(n: int, width: str) -> Shape:
    """Return how rows of ``n`` elements are shared out."""
    return next(shape for shape in _SHAPES[width] if shape.tiled or n <= shape.group * shape.items)


def _variant(kernel: str, shape: Shape, x_code: int, out_code: int, direct: bool, log: bool) -> Variant:
    chunk = min(16 // _BYTES[x_code], shape.items)
    defines: list[tuple[str, str | int]] = [
        ("DS_X", STORAGE[x_code]),
        ("DS_Y", STORAGE[out_code]),
        ("DS_GROUP", shape.group),
        ("DS_CHUNK", chunk),
        ("DS_SLOTS", shape.items // chunk),
        ("DS_DIRECT", int(direct)),
        ("DS_TILED", int(shape.tiled)),
    ]
    if kernel == "softmax_rows":
        defines.append(("DS_LOG", int(log)))
    return Variant(kernel.replace("_rows", ".cu"), kernel, tuple(defines))


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need, results of the same dtype."""
    for code in codes:
        for shape in _SHAPES[_width(code, code)]:
            for direct in (True, False):
                yield _variant("softmax_rows", shape, code, code, direct, False)
                yield _variant("softmax_rows", shape, code, code, direct, True)
                yield _variant("logsumexp_rows", shape, code, code, direct, False)


def softmax(problem: SoftmaxProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output."""
    x, out, axes, _, scale, where, x_code, out_code, log = problem
    factors, factor = factors_of(scale)
    at = layout_of(x.shape, axes, strides_of(x, out, where, factors, None, None))
    shape = shape_for(at.n, _width(x_code, out_code))
    plain = where is None and factors is None and factor == 1
    direct = plain and _is_direct(at, 0, x) and _is_direct(at, 1, out, shape, x_code)
    variant = _variant("softmax_rows", shape, x_code, out_code, direct, log)
    yield _launch(variant, shape, at, (x, where, factors, factor, out, at.struct))


def logsumexp(problem: LogSumExpProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output, and its sign."""
    x, out, axes, _, scale, where, x_code, out_code, sign, _, _ = problem
    factors, factor = factors_of(scale)
    at = layout_of(x.shape, axes, strides_of(x, out, where, factors, None, sign))
    shape = shape_for(at.n, _width(x_code, out_code))
    direct = where is None and factors is None and factor == 1 and _is_direct(at, 0, x)
    variant = _variant("logsumexp_rows", shape, x_code, out_code, direct, False)
    yield _launch(variant, shape, at, (x, where, factors, factor, out, sign, at.struct))


def factors_of(scale: float | Array | None) -> tuple[Array | None, np.float64]:
    """Return the scale by row, if it is one, and else the scale of all, 1 where there is none."""
    if scale is None or isinstance(scale, float):
        return None, np.float64(1.0 if scale is None else scale)
    return scale, np.float64(1.0)


def strides_of(*operands: Array | None) -> tuple[tuple[int, ...] | None, ...]:
    """Return the strides of the operands, 0 along axes of length 1: there they mean nothing."""
    return tuple(
        None
        if array is None
        else tuple(0 if length == 1 else step for length, step in zip(array.shape, array.strides, strict=True))
        for array in operands
    )


def _is_direct(at: Layout, operand: int, array: Array, shape: Shape | None = None, x_code: int = F64) -> bool:
    """Return whether the rows of an operand are contiguous and each chunk lies where one access of its size may go."""
    size = array.dtype.itemsize
    chunk = 16 if shape is None else min(16, size * min(16 // _BYTES[x_code], shape.items))
    contiguous = at.steps[operand] == size or at.n == 1
    return contiguous and at.alignment[operand] % chunk == 0 and array.data.ptr % chunk == 0


def _launch(variant: Variant, shape: Shape, at: Layout, arguments: tuple[Any, ...]) -> Launch:
    block = max(shape.group, _SMALLEST_BLOCK)
    blocks = -(-at.rows * shape.group // block)
    return Launch(variant, min(blocks, MOST_BLOCKS), block, arguments)
