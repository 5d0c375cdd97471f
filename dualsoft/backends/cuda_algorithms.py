"""The textbook algorithms on CUDA: a block takes a row, and each pass of the method is a pass over memory."""

from collections.abc import Iterator

import numpy as np

from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_layout import layout_of
from dualsoft.backends.cuda_rows import STORAGE, strides_of
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.problem import TextbookProblem

_BLOCK = 256
"""``THREADS`` of ``cuda/algorithms.cu``."""
_METHODS = {"naive": 0, "safe": 1, "online": 2}
"""``method`` there."""


def _variant(x_code: int, out_code: int) -> Variant:
    return Variant("algorithms.cu", "textbook_rows", (("DS_X", STORAGE[x_code]), ("DS_Y", STORAGE[out_code])))


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need."""
    for code in codes:
        yield _variant(code, code)


def softmax(problem: TextbookProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output."""
    x, out, axes, _, x_code, out_code, method = problem
    at = layout_of(x.shape, axes, strides_of(x, out, None, None, None, None))
    arguments = (x, out, np.int32(_METHODS[method]), at.struct)
    yield Launch(_variant(x_code, out_code), min(at.rows, MOST_BLOCKS), _BLOCK, arguments)
