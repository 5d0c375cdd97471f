"""The running log-sum-exp on CUDA: a block, or a warp of one, goes along its row segment by segment.

The arithmetic is float64 whatever the dtypes. Where there are few rows, and long ones, each part of a row has a block:
one launch finds the pairs of the parts, a second one the results. The parts follow from the length of the row alone,
and a block that takes all of them in turn goes by the same steps: a row has the same bits in every batch.
"""

from collections.abc import Iterator

import numpy as np

from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_layout import layout_of
from dualsoft.backends.cuda_rows import STORAGE, strides_of
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.problem import CumulativeProblem

_GROUPS = (32, 256)
"""Threads a row."""
_LONGEST_OF_A_WARP = 512
_BLOCK = 128
_SEGMENT = 2048
"""``SEGMENT`` of ``cuda/cumulative.cu`` for a block."""
_SHORTEST_PART = 4 * _SEGMENT
_MOST_PARTS = 256
_ENOUGH_ROWS = 256
"""Rows that fill a card with a block each."""
_WHOLE_ROWS, _PAIRS_OF_PARTS, _RESULTS_OF_PARTS = map(np.int32, range(3))
"""``task`` there."""


def part_length(n: int) -> int:
    """Return how many elements a part of a row of ``n`` has, but the last one."""
    return max(_SHORTEST_PART, -(-n // (_MOST_PARTS * _SEGMENT)) * _SEGMENT)


def _variant(group: int, x_code: int, out_code: int) -> Variant:
    defines = (("DS_X", STORAGE[x_code]), ("DS_Y", STORAGE[out_code]), ("DS_GROUP", group))
    return Variant("cumulative.cu", "cumulative_rows", defines)


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need, results of the same dtype."""
    for code in codes:
        for group in _GROUPS:
            yield _variant(group, code, code)


def cumulative_logsumexp(problem: CumulativeProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output."""
    x, out, (axis,), _, x_code, out_code, initial = problem
    at = layout_of(x.shape, (axis,), strides_of(x, out, None, None, None, None))
    group = _GROUPS[at.n > _LONGEST_OF_A_WARP]
    block = max(group, _BLOCK)
    length = part_length(at.n)
    parts = -(-at.n // length)
    pairs = device.scratch((at.rows * parts, 3)) if parts > 1 else None
    variant = _variant(group, x_code, out_code)
    operands = (x, out, np.int64(out.strides[axis]), np.int32(initial), pairs, np.int64(parts), np.int64(length))

    def launch(task: np.int32, units: int) -> Launch:
        return Launch(variant, min(-(-units * group // block), MOST_BLOCKS), block, (*operands, task, at.struct))

    if parts == 1 or at.rows >= _ENOUGH_ROWS:
        yield launch(_WHOLE_ROWS, at.rows)
    else:
        yield launch(_PAIRS_OF_PARTS, at.rows * parts)
        yield launch(_RESULTS_OF_PARTS, at.rows * parts)
