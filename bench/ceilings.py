"""What memory and arithmetic allow, measured beside the contenders with kernels that do nothing else."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from bench.contest import Array, Call, Rate
from dualsoft import isa

LEAST_BYTES = 64 * 2**20
"""Below this, an array may lie in a cache and memory is no ceiling."""
PLAIN, DOT = "fma", "bf16 dot"
"""The ceilings of arithmetic: fused multiply-adds of lanes, and the dot products of bfloat16 pairs."""


def _kernels() -> Any:
    level = isa.chosen()
    return None if level is None else isa.load(level)


def ceiling_call(kind: Literal["read", "copy"], x: Array, threads: int) -> Call | str | None:
    """Return the call that reads ``x`` once, or reads it and writes as much with streaming stores.

    Parameters
    ----------
    kind : {"read", "copy"}
    x : ndarray
        Contiguous.
    threads : int

    Returns
    -------
    callable, str or None
        None for arrays that caches may hold; a string is the reason why it cannot be measured.
    """
    if x.nbytes < LEAST_BYTES:
        return None
    kernels = _kernels()
    if not hasattr(kernels, f"stream_{kind}"):
        return f"the kernels of {isa.chosen()} were built without stream_{kind}"
    # Only the bytes matter, and float32 is what the kernels read.
    flat = x.reshape(-1).view(np.float32)
    if kind == "read":
        return lambda: kernels.stream_read(flat, threads)
    out = np.empty_like(flat)
    return lambda: kernels.stream_copy(flat, out, threads)


def read_call(arrays: Sequence[Array], threads: int) -> Call | str:
    """Return the call that reads every array once, wherever they lie: what the same bytes cost to look at."""
    kernels = _kernels()
    if not hasattr(kernels, "stream_read"):
        return f"the kernels of {isa.chosen()} were built without stream_read"
    flats = [array.reshape(-1).view(np.float32) for array in arrays]
    return lambda: [kernels.stream_read(flat, threads) for flat in flats]


def arithmetic(dtype: str, flops: float, threads: int) -> tuple[str, Rate | str]:
    """Return the name of the ceiling that arithmetic in ``dtype`` has, and how to measure it.

    Parameters
    ----------
    dtype : str
        float16 is computed in float32, and so is bfloat16 at levels without an instruction of its own.
    flops : float
        Of the case.
    threads : int
    """
    kernels = _kernels()
    if not hasattr(kernels, "fma_ceiling"):
        return PLAIN, f"the kernels of {isa.chosen()} were built without fma_ceiling"
    if dtype == "bfloat16" and kernels.fma_ceiling(kernels.BF16, threads) > 0:
        return DOT, Rate(lambda: kernels.fma_ceiling(kernels.BF16, threads) * 1e9, flops)
    code = kernels.F64 if dtype == "float64" else kernels.F32
    return PLAIN, Rate(lambda: kernels.fma_ceiling(code, threads) * 1e9, flops)
