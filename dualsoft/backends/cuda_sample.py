"""``sample`` on CUDA: one block a row, whatever its options, which the host does not read."""

from collections.abc import Iterator

import numpy as np

from dualsoft.backends.cuda_launch import Device, Launch
from dualsoft.backends.cuda_layout import layout_of
from dualsoft.backends.cuda_rows import (
    SEGMENTS,
    is_contiguous,
    launch_of,
    row_variant,
    state_code,
    strides_of,
    width_of,
)
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.topk_problem import SampleProblem


def _variant(x_code: int, direct: bool) -> Variant:
    code = state_code(x_code)
    return row_variant("sample.cu", "sample_rows", SEGMENTS[width_of(x_code, code)], x_code, code, direct)


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need."""
    for code in codes:
        for direct in (True, False):
            yield _variant(code, direct)


def sample(problem: SampleProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output."""
    x, out, (axis,), _, options, key, x_code = problem
    at = layout_of(x.shape, (axis,), strides_of(x, out, None, options, None, None))
    variant = _variant(x_code, is_contiguous(at, 0, x))
    shape = SEGMENTS[width_of(x_code, state_code(x_code))]
    operands = (x, options, np.int64(options.strides[axis]), out, at.struct, *key.astype(np.uint32))
    yield launch_of(variant, shape, at.rows, operands)
