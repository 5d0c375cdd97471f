"""What the launch tables of the CUDA kernels hand to ``cuda.py``, and what they need to know of a device."""

from types import ModuleType
from typing import Any, NamedTuple

from dualsoft.arrays import Array, own
from dualsoft.backends.nvrtc import Variant

MOST_BLOCKS = 2**31 - 1
"""The most blocks of a grid in its first direction. Kernels go round where there is more to do."""


class Launch(NamedTuple):
    """A kernel with its grid and arguments."""

    variant: Variant
    grid: int
    block: int
    arguments: tuple[Any, ...]
    shared: int = 0
    """Bytes of dynamic shared memory."""


class Device:
    """A device of one CuPy module: its limits, and memory on it for results that only kernels see."""

    STATIC = 4096
    """Bytes of static shared memory that kernels with dynamic shared memory may have besides."""

    def __init__(self, cp: ModuleType, number: int) -> None:
        device = cp.cuda.Device(number)
        limits = device.attributes
        self.cp = cp
        self.id = number
        self.architecture = int(device.compute_capability)
        self.dynamic_limit: int = limits["MaxSharedMemoryPerBlockOptin"] - self.STATIC
        """The most bytes of dynamic shared memory that a launch may ask for."""
        self.cache: int = limits["L2CacheSize"]
        """Bytes of the second-level cache."""

    def scratch(self, shape: tuple[int, ...], dtype: str = "float64") -> Array:
        """Return memory from CuPy's pool. The device must be the current one; the stream orders its reuse."""
        return own(self.cp.empty(shape, dtype))
