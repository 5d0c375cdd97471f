"""Host arrays on a device in exactly their layout: for the emulator and for CuPy on a card."""

import ctypes
from types import ModuleType
from typing import Any

import numpy as np

from .adoption import is_device_array, plain
from .library import core
from .memory import AnyArray, mark_written, memory_of

_ALIGNMENT = 16
"""Bytes of the widest access: the offset of an array to a multiple of this decides which paths a kernel takes."""


def to_device(cp: ModuleType, x: AnyArray, keep_layout: bool = True) -> Any:
    """Return ``x`` on the current device, with the same strides, overlaps and offset to 16 bytes.

    On the emulator the bytes between the elements are uninitialised, so that a kernel that reads them is found.

    Raises
    ------
    TypeError
        If ``x`` is not in the machine's byte order: CuPy has no such arrays.
    """
    if not x.dtype.isnative:
        raise TypeError(f"CuPy has no arrays of dtype {x.dtype.str}")
    if not keep_layout or x.size == 0:
        return cp.asarray(x)
    address = int(x.__array_interface__["data"][0])
    spans = [(length - 1) * stride for length, stride in zip(x.shape, x.strides, strict=True)]
    first = sum(span for span in spans if span < 0)
    size = sum(abs(span) for span in spans) + x.itemsize
    padding = (address + first) % _ALIGNMENT
    staging = np.zeros(padding + size, np.uint8)
    staging[padding:] = np.frombuffer(ctypes.string_at(address + first, size), np.uint8)
    memory = cp.asarray(staging)
    result = cp.ndarray(x.shape, x.dtype, memory.data + (padding - first), x.strides)
    if is_device_array(memory):
        core().mark_uninitialised(memory_of(memory).ptr, memory.nbytes)
        plain(result)[...] = x
        mark_written(plain(result))
    return result
