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
from dualsoft.problem import LogSumExpProblem, NormalizeProblem, SoftmaxProblem, StateProblem

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
    """How a row, or a segment of one, is shared out."""

    group: int
    """Threads."""
    items: int
    """Elements that a thread holds."""

    @property
    def length(self) -> int:
        """The longest row."""
        return self.group * self.items


# Longer rows need more threads, and more elements a thread before that. What float64 arithmetic holds takes twice the
# registers.
SHAPES = {
    name: (Shape(8, 8), Shape(32, 8), *(Shape(group, items) for group in (32, 128, 256)))
    for name, items in (("narrow", 32), ("wide", 16))
}
SEGMENTS = {"narrow": Shape(256, 32), "wide": Shape(256, 16)}
"""Longer rows go segment by segment, the same segments whether a row is kept in shared memory or read twice."""
_MOST_PARTS = 1024
_SMALLEST_BLOCK = 128


def width_of(x_code: int, out_code: int) -> str:
    """Return "narrow" where the arithmetic is float32, else "wide"."""
    return "narrow" if x_code in _NARROW and out_code in _NARROW else "wide"


def shape_for(n: int, width: str) -> Shape | None:
    """Return how rows of ``n`` elements are shared out in one piece, None for rows that are too long."""
    return next((shape for shape in SHAPES[width] if n <= shape.length), None)


def row_variant(
    source: str, kernel: str, shape: Shape, x_code: int, out_code: int, direct: bool = True, **more: str | int
) -> Variant:
    """Return a variant of a kernel over rows that are shared out by ``cuda/rows.cuh``."""
    chunk = min(16 // _BYTES[x_code], shape.items)
    defines: dict[str, str | int] = {
        "DS_X": STORAGE[x_code],
        "DS_Y": STORAGE[out_code],
        "DS_GROUP": shape.group,
        "DS_CHUNK": chunk,
        "DS_SLOTS": shape.items // chunk,
        "DS_DIRECT": int(direct),
        **more,
    }
    return Variant(source, kernel, tuple(defines.items()), is_dynamic=kernel == "softmax_kept")


def _softmax_variant(shape: Shape, x_code: int, out_code: int, direct: bool, log: bool) -> Variant:
    return row_variant("softmax.cu", "softmax_rows", shape, x_code, out_code, direct, DS_LOG=int(log))


def _kept_variant(x_code: int, out_code: int, log: bool) -> Variant:
    return row_variant(
        "softmax_kept.cu", "softmax_kept", SEGMENTS[width_of(x_code, out_code)], x_code, out_code, DS_LOG=int(log)
    )


def _normalize_variant(shape: Shape, x_code: int, out_code: int, direct: bool, log: bool) -> Variant:
    return row_variant("normalize.cu", "normalize_rows", shape, x_code, out_code, direct, DS_LOG=int(log))


def _logsumexp_variant(shape: Shape, x_code: int, out_code: int, direct: bool) -> Variant:
    return row_variant("logsumexp.cu", "logsumexp_rows", shape, x_code, out_code, direct)


def _parts_variant(x_code: int, out_code: int, direct: bool) -> Variant:
    return row_variant("parts.cu", "parts_of_rows", SEGMENTS[width_of(x_code, out_code)], x_code, out_code, direct)


def _join_variant(out_code: int) -> Variant:
    return Variant("join.cu", "join_parts", (("DS_Y", STORAGE[out_code]),))


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need, results of the same dtype."""
    for out_code in dict.fromkeys(out for code in codes for out in (code, state_code(code))):
        yield _join_variant(out_code)
    for code in codes:
        width, arithmetic = width_of(code, code), state_code(code)
        for log in (False, True):
            yield _kept_variant(code, code, log)
        for direct in (True, False):
            for shape in SHAPES[width]:
                yield _softmax_variant(shape, code, code, direct, False)
                yield _softmax_variant(shape, code, code, direct, True)
                for out_code in {code, arithmetic}:
                    yield _logsumexp_variant(shape, code, out_code, direct)
            for shape in (*SHAPES[width][:2], SEGMENTS[width]):
                yield _normalize_variant(shape, code, code, direct, False)
            yield _normalize_variant(SEGMENTS[width], code, code, direct, True)
            for out_code in {code, arithmetic}:
                yield _parts_variant(code, out_code, direct)


class Input(NamedTuple):
    """What every kernel reads its rows by."""

    arguments: tuple[Any, ...]
    """x, where, the scale by row, the scale of all."""
    at: Layout
    is_plain: bool
    """Whether nothing is hidden and rows are contiguous."""
    code: int

    def parts(self, width: str) -> tuple[int, int]:
        """Return into how many parts a long row goes, and of how many segments each: of its length alone."""
        segments = -(-self.at.n // SEGMENTS[width].length)
        length = -(-segments // _MOST_PARTS)
        return -(-segments // length), length


def input_of(problem: Any, out: Array, weight: Array | None, sign: Array | None) -> Input:
    x, where = problem.x, problem.where
    factors, factor = factors_of(problem.scale)
    at = layout_of(x.shape, problem.axes, strides_of(x, out, where, factors, weight, sign))
    is_plain = where is None and is_contiguous(at, 0, x)
    return Input((x, where, factors, factor), at, is_plain, problem.x_code)


def softmax(problem: SoftmaxProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output."""
    x, out, out_code, log = problem.x, problem.out, problem.out_code, problem.log
    given = input_of(problem, out, None, None)
    at, width = given.at, width_of(given.code, out_code)
    shape = shape_for(at.n, width)
    direct = given.is_plain and is_contiguous(at, 1, out)
    if shape is not None:
        variant = _softmax_variant(shape, given.code, out_code, direct, log)
        yield launch_of(variant, shape, at.rows, (*given.arguments, out, at.struct))
    elif (
        direct and _BYTES[given.code] > 1 and (kept := _whole_chunks(at.n * _BYTES[given.code])) <= device.dynamic_limit
    ):
        variant = _kept_variant(given.code, out_code, log)
        yield launch_of(variant, SEGMENTS[width], at.rows, (x, *given.arguments[2:], out, at.struct))._replace(
            shared=kept
        )
    else:
        yield from _softmax_of_long_rows(problem, given, direct, device)


def _whole_chunks(size: int) -> int:
    return -(-size // 16) * 16


def _softmax_of_long_rows(problem: SoftmaxProblem, given: Input, direct: bool, device: Device) -> Iterator[Launch]:
    """Yield, for as many rows at a time as the cache holds, what finds their pairs and what reads them once more."""
    out, out_code, at = problem.out, problem.out_code, given.at
    width = width_of(given.code, out_code)
    reduced = tuple(1 if k in problem.axes else length for k, length in enumerate(out.shape))
    m, rest = device.scratch(reduced), device.scratch(reduced)
    state = layout_of(out.shape, problem.axes, strides_of(problem.x, m, None, None, None, rest))
    normalizing = input_of(problem, out, m, rest).at
    segments = SEGMENTS[width]
    together = max(1, device.cache // 2 // (at.n * _BYTES[given.code]))
    scratch = device.scratch((min(together, at.rows) * given.parts(width)[0], 3))
    for first in range(0, at.rows, together):
        rows = min(together, at.rows - first)
        yield from _states(given, out_code, scratch, first, rows, (m, rest), True, state, out_code)
        units = rows * -(-at.n // segments.length)
        variant = _normalize_variant(segments, given.code, out_code, direct, problem.log)
        last = (normalizing.struct, np.int64(first), np.int64(rows))
        yield launch_of(variant, segments, units, (*given.arguments, m, rest, out, *last))


def _states(
    given: Input,
    out_code: int,
    scratch: Array,
    first: int,
    rows: int,
    results: tuple[Array, Array | None],
    is_state: bool,
    at: Layout,
    arithmetic: int,
) -> Iterator[Launch]:
    """Yield what reduces the long rows from ``first`` on: to their states, or to logarithms and signs."""
    width = width_of(given.code, arithmetic)
    parts, length = given.parts(width)
    rest = (np.int64(first), np.int64(rows))
    variant = _parts_variant(given.code, arithmetic, given.is_plain)
    reading = (*given.arguments, scratch, given.at.struct, *rest, np.int64(parts), np.int64(length))
    yield launch_of(variant, SEGMENTS[width], rows * parts, reading)
    yield joining(out_code, scratch, parts, results, is_state, at, first, rows)


def joining(
    out_code: int,
    pairs: Array,
    parts: int,
    results: tuple[Array, Array | None],
    is_state: bool,
    at: Layout,
    first: int,
    rows: int,
) -> Launch:
    """Return what joins the pairs of the parts of the rows from ``first`` on."""
    writing = (pairs, np.int64(parts), *results, np.int32(is_state), at.struct, np.int64(first), np.int64(rows))
    return launch_of(_join_variant(out_code), Shape(32, 1), rows, writing)


def logsumexp(problem: LogSumExpProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output, and its sign."""
    yield from _reduction(problem, problem.out, problem.sign, problem.out_code, False, device)


def state(problem: StateProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes m and d - 1."""
    yield from _reduction(problem, problem.m, problem.rest, state_code(problem.x_code), True, device)


def state_code(x_code: int) -> int:
    """Return the code of the arithmetic that a state is made by: its values are not rounded to half types."""
    return F32 if x_code in _NARROW else F64


def _reduction(
    problem: Any, out: Array, sign: Array | None, code: int, is_state: bool, device: Device
) -> Iterator[Launch]:
    given = input_of(problem, out, None, sign)
    at = given.at
    shape = shape_for(at.n, width_of(given.code, code))
    if shape is not None:
        variant = _logsumexp_variant(shape, given.code, code, given.is_plain)
        yield launch_of(variant, shape, at.rows, (*given.arguments, out, sign, np.int32(is_state), at.struct))
    else:
        scratch = device.scratch((at.rows * given.parts(width_of(given.code, code))[0], 3))
        yield from _states(given, code, scratch, 0, at.rows, (out, sign), is_state, at, code)


def normalize(problem: NormalizeProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes exp(x - m) / d."""
    out, out_code, m, rest = problem.out, problem.out_code, problem.m, problem.rest
    given = input_of(problem, out, m, rest)
    at, width = given.at, width_of(given.code, out_code)
    shape = next((short for short in SHAPES[width][:2] if at.n <= short.length), SEGMENTS[width])
    direct = given.is_plain and is_contiguous(at, 1, out)
    units = at.rows * -(-at.n // shape.length)
    variant = _normalize_variant(shape, given.code, out_code, direct, False)
    last = (at.struct, np.int64(0), np.int64(at.rows))
    yield launch_of(variant, shape, units, (*given.arguments, m, rest, out, *last))


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


def is_contiguous(at: Layout, operand: int, array: Array) -> bool:
    """Return whether the rows of an operand are contiguous and its elements lie at multiples of their size."""
    size = array.dtype.itemsize
    contiguous = at.steps[operand] == size or at.n == 1
    return contiguous and at.alignment[operand] % size == 0 and array.data.ptr % size == 0


def launch_of(variant: Variant, shape: Shape, units: int, arguments: tuple[Any, ...]) -> Launch:
    """Return the launch of a kernel whose teams take a row, or another unit, each."""
    block = max(shape.group, _SMALLEST_BLOCK)
    blocks = -(-units * shape.group // block)
    return Launch(variant, min(blocks, MOST_BLOCKS), block, arguments)
