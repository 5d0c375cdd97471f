"""Rows that are not contiguous, on CUDA: columns side by side, every other element, and the like.

Whether these kernels serve a problem follows from the dtype, the options and the strides inside a row, never from the
rows beside it, and how many threads share a row from its length: a row has the same bits in every batch. How many rows
a block takes follows from what lies in memory where, and changes no bit.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dualsoft.arrays import Array
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_layout import Layout, Strides, layout_of
from dualsoft.backends.cuda_rows import STORAGE, factors_of, joining, state_code, strides_of
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.problem import LogSumExpProblem, NormalizeProblem, SoftmaxProblem, StateProblem

_HALVES = (F16, BF16)
_BYTES = {F16: 2, BF16: 2, F32: 4, F64: 8}

_BATCH = 8
"""``BATCH`` of ``cuda/columns.cuh``."""
_PLACE_OF_COLUMN = 32
"""Bytes of shared memory for each column of a tile: ``COLUMN_SIZE`` there."""
_MOST_STRANDS = 32
_PART = 4096
"""The longest column that one block takes; longer ones go part by part, and their pairs are joined."""
_MOST_THREADS = {True: 256, False: 512}
"""Of a block, by whether accesses are of 16 bytes."""
_MOST_MEETING = 32768
"""Bytes in which strands meet."""
_MOST_ON_EVERY_CARD = 60 << 10
"""Bytes of shared memory that a block may have on the oldest cards."""
_SECTOR = 32
OFTEN_TWICE = 256
"""Up to this length logarithms are often small, and summed twice then: the columns are kept."""
_ENOUGH_BLOCKS = 512
"""Blocks that fill any card: with fewer, they are made narrower."""

_TILING = np.dtype(
    [
        ("across", np.int64),
        ("part", np.int64),
        ("strands", np.int32),
        ("lanes", np.int32),
        ("strand_step", np.int32),
        ("lane_step", np.int32),
        ("kept", np.int32),
        ("padding", np.int32),
    ]
)


def serves(problem: Any) -> bool:
    """Return whether a problem is one for these kernels: elements of its rows are not neighbours, none are hidden."""
    x, scale = problem.x, problem.scale
    steps = [abs(x.strides[k]) for k in problem.axes if x.shape[k] != 1]
    return (
        bool(steps)
        and min(steps) != x.dtype.itemsize
        and problem.x_code in _BYTES
        and problem.where is None
        and (scale is None or isinstance(scale, float))
    )


def _variant(kernel: str, x_code: int, out_code: int, wide: bool, **more: int) -> Variant:
    defines: dict[str, str | int] = {
        "DS_X": STORAGE[x_code],
        "DS_Y": STORAGE[out_code],
        "DS_WIDTH": 16 // _BYTES[x_code] if wide else 1,
        **more,
    }
    return Variant(f"{kernel}.cu", kernel, tuple(defines.items()), is_dynamic=True)


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need, results of the same dtype."""
    for code in codes:
        for wide in (True, False):
            for log in (0, 1):
                yield _variant("softmax_columns", code, code, wide, DS_LOG=log)
                yield _variant("normalize_columns", code, code, wide, DS_LOG=log)
            for out_code in {code, state_code(code)}:
                yield _variant("logsumexp_columns", code, out_code, wide)


# ------------------------------------------------------------------ how columns are shared out
class Plan(NamedTuple):
    """What follows from shape, strides and the sizes of elements."""

    at: Layout
    across: int
    """Columns side by side: the length of the innermost kept axis."""
    strands: int
    is_across: bool
    """Whether neighbours in memory are of different columns."""
    alignment: tuple[int, int]
    """By x and y, what the addresses of vectors are multiples of if that of the array is; 0 where there are none."""


@lru_cache(maxsize=1024)
def plan_of(
    shape: tuple[int, ...], axes: tuple[int, ...], strides: tuple[Strides | None, ...], sizes: tuple[int, int]
) -> Plan:
    """Return the plan for arrays of these shape, reduced axes, strides by operand, and sizes of elements of x and y."""
    at = layout_of(shape, axes, strides)
    outer, inner = at.struct["outer"], at.struct["inner"]
    last = int(outer["rank"]) - 1
    across = int(outer["length"][last])
    alignment = []
    for operand, size in enumerate(sizes):
        side_by_side = outer["stride"][operand, last] == size and inner["rank"] == 1
        steps = [*outer["stride"][operand, :last], inner["stride"][operand, 0]]
        together = 64
        for step in steps:
            together |= abs(int(step))
        alignment.append(together & -together if side_by_side else 0)
    strands = min(_MOST_STRANDS, 1 << max(0, -(-at.n // _BATCH) - 1).bit_length())
    steps_of_x = abs(int(outer["stride"][0, last])), abs(int(inner["stride"][0, int(inner["rank"]) - 1]))
    return Plan(at, across, strands, across == 1 or steps_of_x[0] <= steps_of_x[1], (alignment[0], alignment[1]))


def _is_wide(plan: Plan, x: Array, size: int, out: Array | None) -> bool:
    """Return whether 16 bytes at a time hold columns side by side, at every element; ``out`` where it is written so."""
    width = 16 // size
    reads = plan.alignment[0] % 16 == 0 and plan.alignment[0] > 0 and x.data.ptr % 16 == 0
    if not reads or plan.across < width or out is None:
        return reads and plan.across >= width
    chunk = min(16, width * out.dtype.itemsize)
    return plan.alignment[1] > 0 and plan.alignment[1] % chunk == 0 and out.data.ptr % chunk == 0


def _lanes(plan: Plan, width: int, size: int, most: int, aligned: bool) -> int:
    """Return how many lanes of ``size`` bytes a block has, ``most`` at the most, fewer for few columns."""
    if not plan.is_across:
        return max(1, min(256 // plan.strands, plan.at.rows))
    lines, across = plan.at.rows // plan.across, -(-plan.across // width)
    lanes = -(-across // -(-across // most))
    least = max(1, (_SECTOR if aligned else 4 * _SECTOR) // size)
    while lanes > least and lanes % 2 == 0 and -(-lines * across // lanes) < _ENOUGH_BLOCKS:
        lanes //= 2
    if lanes == across:
        lanes *= min(most // across, lines)  # whole lines of columns
    return lanes


class Tiles(NamedTuple):
    """Blocks over all columns, and over the parts of these."""

    plan: Plan
    lanes: int
    width: int
    place: int
    """Bytes of shared memory for each thread and column."""
    size: int
    """Bytes of an element."""
    kept_size: int
    """Bytes of an element that is kept in shared memory."""
    part: int = _PART
    column: int = _PLACE_OF_COLUMN
    """Bytes of shared memory for each column."""
    kept: int = 0
    """How many operands are kept there."""

    @property
    def threads(self) -> int:
        return self.plan.strands * self.lanes

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        meeting = (self.threads * self.place + self.lanes * self.column) * self.width
        steps = -(-min(self.part, self.plan.at.n) // self.plan.strands)
        return meeting + self.kept * steps * self.threads * self.width * self.kept_size

    def on_every_card(self) -> "Tiles":
        """Return the tiles with as many lanes as fit on every card, in whole warps."""
        most = _MOST_ON_EVERY_CARD // (self.shared // self.lanes)
        return self if self.lanes <= most else self._replace(lanes=most // 32 * 32 or most)

    def keeping(self, limit: int, operands: int = 1) -> "Tiles":
        """Return the tiles as wide as shared memory holds two of them, or one; as they are where it holds none."""
        least = max(1, _SECTOR // (self.size * self.width))
        for most in (limit // 2, limit):
            tiles = self._replace(kept=operands)
            while tiles.shared > most and tiles.lanes % 2 == 0 and tiles.lanes > least:
                tiles = tiles._replace(lanes=tiles.lanes // 2)
            if tiles.shared <= most:
                return tiles
        return self

    def launch(self, variant: Variant, *arguments: Any) -> Launch:
        """Return the launch; the layout and how it is shared out are its last arguments."""
        plan = self.plan
        tiling = np.zeros((), _TILING)
        steps = (self.lanes, 1) if plan.is_across else (1, plan.strands)
        tiling[()] = (plan.across, self.part, plan.strands, self.lanes, *steps, self.kept, 0)
        vectors = plan.at.rows // plan.across * -(-plan.across // self.width)
        units = -(-vectors // self.lanes) * -(-plan.at.n // self.part)
        return Launch(variant, min(units, MOST_BLOCKS), self.threads, (*arguments, plan.at.struct, tiling), self.shared)


def _is_of_sectors(plan: Plan, x: Array) -> bool:
    return plan.alignment[0] > 0 and plan.alignment[0] % _SECTOR == 0 and x.data.ptr % _SECTOR == 0


def _tiles_of(plan: Plan, wide: bool, x: Array, out_code: int) -> Tiles:
    size = x.dtype.itemsize
    width = 16 // size if wide else 1
    place = 16 if out_code in _HALVES and size < 8 else 32
    most = min(_MOST_THREADS[wide], _MOST_MEETING // (width * place)) // plan.strands
    lanes = _lanes(plan, width, size * width, most, _is_of_sectors(plan, x))
    return Tiles(plan, lanes, width, place, size, size).on_every_card()


def whole_columns(plan: Plan, x: Array, compute_size: int, more: int = 0) -> Tiles:
    """Return tiles of whole columns, however long, whose type is told by a code; ``more`` bytes for each of them."""
    size, most = x.dtype.itemsize, (512 if compute_size == 4 else 256) // plan.strands
    lanes = _lanes(plan, 1, size, most, _is_of_sectors(plan, x))
    tiles = Tiles(plan, lanes, 1, 32, size, compute_size, max(plan.at.n, 1), _PLACE_OF_COLUMN + more)
    return tiles.on_every_card()


def _planned(problem: Any, out: Array, beside: Array | None = None, weight: Array | None = None) -> Plan:
    x = problem.x
    strides = strides_of(x, out, None, None, weight, beside)
    return plan_of(x.shape, problem.axes, strides, (x.dtype.itemsize, out.dtype.itemsize))


# ------------------------------------------------------------------ problems
def softmax(problem: SoftmaxProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output."""
    x, out, size, factor = problem.x, problem.out, problem.x.dtype.itemsize, factors_of(problem.scale)[1]
    plan = _planned(problem, out)
    if plan.at.n <= _PART:
        wide = _is_wide(plan, x, size, out)
        tiles = _tiles_of(plan, wide, x, problem.out_code).keeping(device.dynamic_limit)
        variant = _variant("softmax_columns", problem.x_code, problem.out_code, wide, DS_LOG=int(problem.log))
        yield tiles.launch(variant, x, factor, out)
        return
    reduced = tuple(1 if k in problem.axes else length for k, length in enumerate(out.shape))
    m, rest = device.scratch(reduced), device.scratch(reduced)
    state = StateProblem(x, m, rest, problem.axes, problem.mask, problem.scale, None, problem.x_code)
    yield from _reduction(state, m, rest, problem.out_code, True, device)
    yield from _normalization(problem, m, rest, problem.log)


def logsumexp(problem: LogSumExpProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output, and its sign."""
    yield from _reduction(problem, problem.out, problem.sign, problem.out_code, False, device)


def state(problem: StateProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes m and d - 1."""
    yield from _reduction(problem, problem.m, problem.rest, state_code(problem.x_code), True, device)


def normalize(problem: NormalizeProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes exp(x - m) / d."""
    yield from _normalization(problem, problem.m, problem.rest, False)


def _reduction(
    problem: Any, out: Array, sign: Array | None, code: int, is_state: bool, device: Device
) -> Iterator[Launch]:
    x, size = problem.x, problem.x.dtype.itemsize
    plan = _planned(problem, out, sign)
    wide = _is_wide(plan, x, size, None)
    tiles = _tiles_of(plan, wide, x, code)
    if plan.at.n <= OFTEN_TWICE and not is_state and code not in _HALVES:
        tiles = tiles.keeping(device.dynamic_limit)
    variant = _variant("logsumexp_columns", problem.x_code, code, wide)
    parts = -(-plan.at.n // _PART)
    pairs = device.scratch((plan.at.rows * parts, 3)) if parts > 1 else None
    yield tiles.launch(variant, x, factors_of(problem.scale)[1], out, sign, np.int32(is_state), pairs)
    if pairs is not None:
        yield joining(code, pairs, parts, (out, sign), is_state, plan.at, 0, plan.at.rows)


def _normalization(problem: Any, m: Array, rest: Array, log: bool) -> Iterator[Launch]:
    x, out, size = problem.x, problem.out, problem.x.dtype.itemsize
    plan = _planned(problem, out, rest, m)
    wide = _is_wide(plan, x, size, out)
    variant = _variant("normalize_columns", problem.x_code, problem.out_code, wide, DS_LOG=int(log))
    yield _tiles_of(plan, wide, x, problem.out_code).launch(variant, x, factors_of(problem.scale)[1], m, rest, out)
