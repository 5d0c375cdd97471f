"""The running log-sum-exp on CUDA: a block, or a warp of one, goes along its row segment by segment.

The arithmetic is float64 whatever the dtypes.
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
    blocks = min(-(-at.rows * group // block), MOST_BLOCKS)
    operands = (x, out, np.int64(out.strides[axis]), np.int32(initial), at.struct)
    yield Launch(_variant(group, x_code, out_code), blocks, block, operands)
