"""Log-sum-exp with weights on CUDA.

The arithmetic is float64 whatever the dtypes. A row is read once; long rows are cut into parts, whose sums a second
kernel joins. How many there are follows from the length alone: a row has the same bits in every batch.
"""

from collections.abc import Iterator

import numpy as np

from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_layout import layout_of
from dualsoft.backends.cuda_rows import STORAGE, factors_of, strides_of
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.problem import LogSumExpProblem

_GROUPS = (32, 256)
"""Threads a row."""
_LONGEST_OF_A_WARP = 512
_PART = 1 << 16
"""Elements of a row that a block adds up, at the least."""
_MOST_PARTS = 1024
_BLOCK = 128
_PART_VALUES = 4
"""float64 numbers of a part in scratch memory."""


def part_length(n: int) -> int:
    """Return how many elements of a row of ``n`` one block takes."""
    return max(_PART, -(-n // _MOST_PARTS))


def _variant(group: int, x_code: int, b_code: int, out_code: int) -> Variant:
    defines = (
        ("DS_X", STORAGE[x_code]),
        ("DS_W", STORAGE[b_code]),
        ("DS_Y", STORAGE[out_code]),
        ("DS_GROUP", group),
    )
    return Variant("weighted.cu", "weighted_rows", defines)


def _join_variant(out_code: int) -> Variant:
    return Variant("weighted_join.cu", "weighted_join", (("DS_Y", STORAGE[out_code]),))


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need, weights and results of the same dtype."""
    for code in codes:
        for group in _GROUPS:
            yield _variant(group, code, code, code)
        yield _join_variant(code)


def logsumexp(problem: LogSumExpProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output, and its sign."""
    x, out, axes, _, scale, where, x_code, out_code, sign, b, b_code = problem
    factors, factor = factors_of(scale)
    at = layout_of(x.shape, axes, strides_of(x, out, where, factors, b, sign))
    length = part_length(at.n)
    parts = -(-at.n // length)
    scratch = device.scratch((at.rows, parts, _PART_VALUES)) if parts > 1 else None
    group = _GROUPS[at.n > _LONGEST_OF_A_WARP]
    operands = (x, b, where, factors, factor, out, sign, scratch, np.int64(parts), np.int64(length), at.struct)
    block = max(group, _BLOCK)
    blocks = -(-at.rows * parts * group // block)
    yield Launch(_variant(group, x_code, b_code, out_code), min(blocks, MOST_BLOCKS), block, operands)
    if parts > 1:
        blocks = min(-(-at.rows * 32 // _BLOCK), MOST_BLOCKS)
        yield Launch(_join_variant(out_code), blocks, _BLOCK, (scratch, out, sign, np.int64(parts), at.struct))
