"""What memory allows, measured beside the contenders with kernels that do nothing else."""

from typing import Any, Literal

import numpy as np

from bench.libraries import Call
from bench.operation import Array
from dualsoft import isa

LEAST_BYTES = 64 * 2**20
"""Below this, an array may lie in a cache and memory is no ceiling."""


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
    level = isa.chosen()
    kernels: Any = None if level is None else isa.load(level)
    if not hasattr(kernels, f"stream_{kind}"):
        return f"the kernels of {level} were built without stream_{kind}"
    # Only the bytes matter, and float32 is what the kernels read.
    flat = x.reshape(-1).view(np.float32)
    if kind == "read":
        return lambda: kernels.stream_read(flat, threads)
    out = np.empty_like(flat)
    return lambda: kernels.stream_copy(flat, out, threads)
