"""Attention of half types on tensor cores: which problems these kernels serve, and their launches.

What special values concern is done once more by the exact kernel: it gets a word for each block of rows, a bit for each
row, and does nothing where all are 0.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dualsoft.attention_problem import AttentionProblem
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16

ROWS = 64
"""Rows of a block, here as in the exact kernel for float32."""
TYPES = {F16: "f16", BF16: "bf16"}
OLDEST = {F16: 75, BF16: 80}
_DIMS = (64, 128, 256)
"""Head dims that kernels are compiled for; smaller ones are filled up with zeros."""
_ELEMENTS_A_PIECE = 8
_MOST = 2.0**60
"""Of scales and softcaps, and their inverse the least."""
_ROW_OPTIONS = 40
"""Bytes of ``row_options``, one a row."""


def _keys(dim: int, architecture: int) -> int:
    """Return the keys of a tile: as many as registers and shared memory leave room for."""
    if dim > 128:
        return 32 if architecture >= 80 else 16
    return 32 if dim <= 64 and architecture >= 100 else 64


def _threads(dim: int) -> int:
    """Return the threads of a block: with small head dims a warp has 32 rows, which share what it reads, else 16."""
    return 64 if dim <= 64 else 128


def _shared(dim: int, architecture: int, has_addends: bool) -> int:
    """Return the bytes of the tiles: keys, values, queries where registers do not hold them, and addends if any."""
    keys = _keys(dim, architecture)
    rows = 2 * keys + (ROWS if dim > 128 else 0)
    return rows * dim * 2 + (ROWS * (keys * 4 + _ROW_OPTIONS) if has_addends else 0)


def _variant(code: int, dim: int) -> Variant:
    defines = (("DS_X", TYPES[code]), ("DS_DIM", dim))
    return Variant("attention_tensor.cu", "attention_tensor", defines, is_dynamic=True, oldest=OLDEST[code])


def variants(codes: tuple[int, ...] = (F16, BF16)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need."""
    for code in codes:
        if code in TYPES:
            yield from (_variant(code, dim) for dim in _DIMS)


def serves(p: AttentionProblem, task: np.ndarray[Any, Any], architecture: int) -> bool:
    """Return whether sequences of many rows go to tensor cores."""
    if p.x_code not in TYPES or architecture < OLDEST[p.x_code]:
        return False
    dims = (p.q.shape[-1], p.v.shape[-1])
    are_pieces = all(0 < n <= _DIMS[-1] and n % _ELEMENTS_A_PIECE == 0 for n in dims)
    is_one_dtype = p.x_code == p.k_code == p.v_code and (p.out_code == p.x_code or p.m is not None)
    are_numbers_ordinary = all(x == 0 or 1 / _MOST < abs(x) < _MOST for x in (p.scale, p.softcap))
    return are_pieces and is_one_dtype and are_numbers_ordinary and bool(task["at"]["is_wide"][:3].all())


def section(p: AttentionProblem, keys: int, cache: int) -> int:
    """Return how many heads of keys are served one after the other: what half the second-level cache holds of them."""
    if p.q_starts is not None:
        return 0
    head_bytes: int = keys * (p.q.shape[-1] + p.v.shape[-1]) * 2
    return max(1, cache // 2 // max(1, head_bytes))


def launch(p: AttentionProblem, task: np.ndarray[Any, Any], blocks: int, device: Device) -> tuple[Launch, Any]:
    """Return the launch, and the words that tell which rows are left to the exact kernel; ``blocks`` of rows in all."""
    odd = device.scratch((blocks,), "uint64")
    task["slices"] = task["runs"] = 1
    task["work"] = blocks
    task["section"] = section(p, int(task["keys"]), device.cache)
    dim = next(n for n in _DIMS if n >= max(p.q.shape[-1], p.v.shape[-1]))
    has_addends = any(x is not None for x in (p.bias, p.mask, p.block_mask, p.slopes))
    shared = _shared(dim, device.architecture, has_addends)
    return Launch(_variant(p.x_code, dim), min(blocks, MOST_BLOCKS), _threads(dim), (task, odd), shared), odd
