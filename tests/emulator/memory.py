"""Device memory: allocations in the emulator's arena, pointers into them, and what is known of each byte.

A byte is unwritten until a kernel or NumPy has written it. Views of the state go by element: address, shape, strides.
"""

import ctypes
import threading
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from .library import core

AnyArray = npt.NDArray[Any]
DEVICE_COUNT = 2
"""Two devices, so that tests can mix them up. They share one arena."""


class _CurrentDevice(threading.local):
    def __init__(self) -> None:
        self.id = 0


current_device = _CurrentDevice()


class Memory:
    """An allocation, freed when the last array or pointer that refers to it is gone."""

    def __init__(self, size: int) -> None:
        self.size = int(size)
        self.device_id = current_device.id
        self.ptr: int = core().allocate(self.size)
        if not self.ptr:
            raise MemoryError(f"the emulator's arena has no room for {size} bytes")
        # Found again at the end of the interpreter's life, when modules may be gone.
        self._free = core().free

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            self._free(self.ptr)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # The NumPy array made from this refers to this object as its base, and so do all views of it.
        return {"shape": (max(self.size, 1),), "typestr": "|u1", "data": (self.ptr, False), "version": 3}


class MemoryPointer:
    """An address in device memory that keeps its allocation alive, as ``cupy.cuda.MemoryPointer``."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + int(offset)

    @property
    def device_id(self) -> int:
        return self.mem.device_id

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: SupportsIndex) -> "MemoryPointer":
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + int(offset))

    __radd__ = __add__

    def __sub__(self, offset: SupportsIndex) -> "MemoryPointer":
        return self + -int(offset)

    def memset(self, value: int, size: int) -> None:
        """Set ``size`` bytes to ``value``."""
        start = self.ptr - self.mem.ptr
        np.asarray(self.mem)[start : start + size] = value
        core().mark_initialised(self.ptr, size)


def alloc(size: int) -> MemoryPointer:
    """Return a pointer to ``size`` fresh bytes."""
    return MemoryPointer(Memory(size), 0)


def address_of(array: AnyArray) -> int:
    """Return the address of element [0, 0, ...]."""
    return int(array.__array_interface__["data"][0])


def is_on_device(array: AnyArray) -> bool:
    """Return whether the elements lie in the arena."""
    return core().holds(address_of(array))


def memory_of(array: AnyArray) -> Memory:
    """Return the allocation that a view refers to.

    Raises
    ------
    TypeError
        For an array of the host.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, Memory):
        raise TypeError("the array does not lie in device memory")
    return base


def count_unwritten(array: AnyArray) -> int:
    """Return how many elements have a byte that nothing wrote."""
    if array.size == 0:
        return 0
    if array.flags.c_contiguous and not core().count_unwritten(address_of(array), array.nbytes):
        return 0
    return int(core().count_unwritten_elements(address_of(array), *_layout(array), array.itemsize))


def mark_written(array: AnyArray) -> None:
    """Note that all elements were written."""
    if array.size == 0:
        return
    if array.flags.c_contiguous:
        core().mark_initialised(address_of(array), array.nbytes)
    else:
        core().mark_elements(address_of(array), *_layout(array), array.itemsize)


def copy_state(target: AnyArray, source: AnyArray) -> None:
    """Note of each element of ``target`` what is known of the same element of ``source``, which is broadcast."""
    if not count_unwritten(source):
        mark_written(target)
        return
    source = np.broadcast_to(source, target.shape)
    shape = _integers(target.shape)
    core().copy_element_states(
        address_of(target),
        _integers(target.strides),
        address_of(source),
        _integers(source.strides),
        target.ndim,
        shape,
        target.itemsize,
        source.itemsize,
    )


def element_addresses(array: AnyArray) -> npt.NDArray[np.int64]:
    """Return the address of each element, as an array of the same shape."""
    addresses = np.full(array.shape, address_of(array), np.int64)
    for axis, (length, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        shape = [1] * array.ndim
        shape[axis] = length
        addresses += (np.arange(length, dtype=np.int64) * stride).reshape(shape)
    return addresses


def mark_chosen_written(array: AnyArray, key: Any) -> None:
    """Note that what an index of integer or boolean arrays chooses was written."""
    for address in np.ravel(element_addresses(array)[key]):
        core().mark_initialised(int(address), array.itemsize)


def copy_state_of_chosen(target: AnyArray, source: AnyArray, key: Any) -> None:
    """Note of each element of ``target`` what is known of the element of ``source`` that an index of arrays chooses."""
    addresses = np.ravel(element_addresses(source)[key])
    for to, origin in zip(np.ravel(element_addresses(target)), addresses, strict=True):
        if core().count_unwritten(int(origin), source.itemsize):
            core().mark_uninitialised(int(to), target.itemsize)


def _layout(array: AnyArray) -> tuple[int, Any, Any]:
    return array.ndim, _integers(array.shape), _integers(array.strides)


def _integers(values: tuple[int, ...]) -> Any:
    return (ctypes.c_int64 * max(len(values), 1))(*values)
