"""The gradients of attention of half types on tensor cores: which problems these kernels serve, and their launches.

What special values concern is done once more by the exact kernel, as in the forward pass: a word for each block of
lines, a bit a line.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dualsoft.backends import cuda_attention_tensor
from dualsoft.backends.cuda_attention_tensor import OLDEST, TYPES, section
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_task import OPERANDS
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16
from dualsoft.gradient_problem import GradientProblem

_DIMS = (64, 128)
"""Head dims that kernels are compiled for; smaller ones are filled up with zeros, the exact kernel has larger ones."""
_ROWS = 64
"""Lines that a block owns, here as in the exact kernel for float32."""
_FIXED_BYTES = 4 * 56 + 32 + 16
"""Where lines come from, how scores are made, and which lines are left."""
_ROW_BYTES, _FACT_BYTES, _OPTION_BYTES = 32, 24, 40
"""Of a row on its way, of what it needs, and of that for addends."""


def _passing(dim: int, architecture: int) -> int:
    """Return the lines that pass by at a time: as many as registers and shared memory leave room for."""
    return 32 if dim <= 64 or architecture >= 80 else 16


def _threads(dim: int, are_keys: bool) -> int:
    """Return the threads of a block: a warp has 16 lines, or 32 queries of small head dims, which share reads."""
    return 64 if dim <= 64 and not are_keys else 128


def _shared(dim: int, are_keys: bool, architecture: int, has_addends: bool) -> int:
    """Return the bytes of what a block keeps: tiles, what its rows need, and addends if any."""
    passing = _passing(dim, architecture)
    facts = 2 * passing if are_keys else _ROWS
    tiles = 2 * (_ROWS + 2 * passing) * dim * 2
    addends = _ROWS * passing * 4 + facts * _OPTION_BYTES if has_addends else 0
    return tiles + passing * _ROW_BYTES + facts * _FACT_BYTES + _FIXED_BYTES + addends


def _variant(code: int, dim: int, are_keys: bool) -> Variant:
    defines = (("DS_X", TYPES[code]), ("DS_DIM", dim), ("DS_KEYS", int(are_keys)))
    return Variant("gradient_tensor.cu", "gradient_tensor", defines, is_dynamic=True, oldest=OLDEST[code])


def variants(codes: tuple[int, ...] = (F16, BF16)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need."""
    for code in codes:
        if code in TYPES:
            yield from (_variant(code, dim, are_keys) for dim in _DIMS for are_keys in (False, True))


def serves(problem: GradientProblem, task: np.ndarray[Any, Any], architecture: int) -> bool:
    """Return whether the gradients of q, k and v go to tensor cores."""
    p = problem.forward
    grad_out = task["gradients"]["at"][OPERANDS.index("out")]
    return (
        cuda_attention_tensor.serves(p, task["inputs"], architecture)
        and max(p.q.shape[-1], p.v.shape[-1]) <= _DIMS[-1]
        and problem.grad_out_code == p.x_code
        and bool(grad_out["is_wide"])
    )


def launch(
    problem: GradientProblem, task: np.ndarray[Any, Any], are_keys: bool, numbers: Any, device: Device
) -> tuple[Launch, Any]:
    """Return the launch, and the words that tell which lines are left to the exact kernel.

    ``task`` is that of the exact kernel for the same lines.
    """
    p = problem.forward
    inputs = task["inputs"]
    blocks = int(inputs["work"]) // int(inputs["slices"])
    odd = device.scratch((blocks,), "uint64")
    passing = p.q.shape[-2] * int(inputs["group"]) if are_keys else int(inputs["keys"])
    inputs["section"] = section(p, passing, device.cache)
    dim = next(n for n in _DIMS if n >= max(p.q.shape[-1], p.v.shape[-1]))
    has_addends = any(x is not None for x in (p.bias, p.mask, p.block_mask, p.slopes))
    shared = _shared(dim, are_keys, device.architecture, has_addends)
    variant = _variant(p.x_code, dim, are_keys)
    return Launch(variant, min(blocks, MOST_BLOCKS), _threads(dim, are_keys), (task, numbers, odd), shared), odd
