"""Modules and kernels as CuPy's RawModule makes them: compiled with g++, their arguments checked, run on the core."""

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .adoption import is_device_array
from .build import kernel_library
from .errors import CompileException, CUDADriverError, KernelFault
from .faults import Fault, LaunchRefused, collected_faults
from .library import STATIC_LIMIT, KernelRecord, LaunchRecord, SettingsRecord, core
from .memory import MemoryPointer, address_of, current_device, memory_of
from .settings import SCHEDULES, current

SHARED_LIMITS = {
    75: 64 * 1024,
    80: 163 * 1024,
    86: 99 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    120: 99 * 1024,
}
"""Bytes of shared memory that a block may have after opting in, by architecture."""

_KIND_NAMES = {
    "p": "pointer",
    "i": "signed integer",
    "u": "unsigned integer",
    "b": "bool",
    "f": "floating-point number",
    "s": "struct",
}
_launching = threading.RLock()


class Packed(NamedTuple):
    """One argument as the driver gets it: the letter of its kind, and its bytes."""

    kind: str
    data: bytes


class RawModule:
    """Kernels compiled from one text, as ``cupy.RawModule``; ``architecture`` is 80 for sm_80."""

    architecture: ClassVar[int]

    def __init__(self, code: str, *, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        if not isinstance(code, str):
            raise TypeError(f"code must be str, not {type(code).__name__}")
        if not isinstance(options, tuple):
            raise TypeError(f"options must be a tuple, not {type(options).__name__}")
        if backend != "nvrtc":
            raise ValueError(f"the emulator stands for NVRTC, not for {backend!r}")
        self.code, self.options, self.backend = code, options, backend
        self._library: ctypes.CDLL | None = None

    def compile(self, log_stream: object = None) -> None:
        """Compile the text now.

        Raises
        ------
        CompileException
            If the text does not compile for the architecture.
        """
        if self._library is None:
            self._library = _loaded(str(kernel_library(self.code, self.options, self.architecture)))

    def get_function(self, name: str) -> "RawKernel":
        """Return a kernel; the text is compiled if it is not yet."""
        self.compile()
        try:
            record = KernelRecord.in_dll(self._library, f"emulator_kernel_{name}")  # type: ignore[arg-type]
        except ValueError:
            raise CUDADriverError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}") from None
        return RawKernel(name, record, SHARED_LIMITS[self.architecture])


class RawKernel:
    """A kernel, as ``cupy.RawKernel``: ``kernel(grid, block, arguments, shared_mem=0)``."""

    def __init__(self, name: str, record: KernelRecord, shared_limit: int) -> None:
        self.name = name
        self._record = record
        self._shared_limit = shared_limit
        self._dynamic_limit: int | None = None

    @property
    def max_threads_per_block(self) -> int:
        """The most threads that the kernel's launch bounds allow."""
        return self._record.max_threads or 1024

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The most dynamic shared memory that a launch may ask for."""
        return STATIC_LIMIT if self._dynamic_limit is None else self._dynamic_limit

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        if not 0 <= size <= self._shared_limit:
            limit = self._shared_limit
            raise CUDADriverError(f"CUDA_ERROR_INVALID_VALUE: {size} bytes of shared memory, the limit is {limit}")
        self._dynamic_limit = int(size)

    def __call__(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0) -> None:
        """Run the kernel to its end.

        Raises
        ------
        KernelFault
            With a line for each fault of the kernel, or for what is wrong with the arguments.
        LaunchRefused
            For what the driver would refuse: too large grids, blocks and shared memory.
        """
        packed = self._packed(args)
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise LaunchRefused(
                f"shared memory: {self.name}: {shared_mem} bytes asked for, max_dynamic_shared_size_bytes is "
                f"{self.max_dynamic_shared_size_bytes}"
            )
        self._run(_three(grid), _three(block), packed, shared_mem)

    def _run(self, grid: tuple[int, ...], block: tuple[int, ...], packed: list[Packed], shared_mem: int) -> None:
        buffers = [ctypes.create_string_buffer(argument.data, len(argument.data)) for argument in packed]
        addresses = (ctypes.c_void_p * max(len(buffers), 1))(*map(ctypes.addressof, buffers))
        total = STATIC_LIMIT if self._dynamic_limit is None else self._shared_limit
        launch = LaunchRecord(ctypes.pointer(self._record), addresses, grid, block, shared_mem, STATIC_LIMIT, total, 0)
        with _launching:
            core().configure(ctypes.byref(_settings_record()))
            refused = core().launch(ctypes.byref(launch))
            faults = collected_faults()
        if refused:
            raise LaunchRefused(f"{self.name}: {faults[0].text if faults else 'refused'}", faults)
        if faults:
            raise KernelFault(_report(self.name, faults), faults)

    def _packed(self, args: Sequence[Any]) -> list[Packed]:
        if not isinstance(args, tuple | list):
            raise TypeError(f"{self.name}: the arguments must be a tuple, not {type(args).__name__}")
        count = self._record.parameter_count
        if len(args) != count:
            raise KernelFault(f"argument count: {self.name}: {len(args)} arguments for {count} parameters")
        packed = []
        for index, argument in enumerate(args):
            parameter = self._record.parameters[index]
            value = pack(argument, f"{self.name}: argument {index}")
            kind = chr(parameter.kind)
            if kind == "p" and value.kind in "iu" and value.data == bytes(8):
                value = value._replace(kind="p")
            if (value.kind, len(value.data)) != (kind, parameter.size):
                given = f"{_KIND_NAMES[value.kind]} of {len(value.data)} bytes ({type(argument).__name__})"
                raise KernelFault(
                    f"wrong argument kind: {self.name}: argument {index} is a {given}, "
                    f"the parameter is a {_KIND_NAMES[kind]} of {parameter.size} bytes"
                )
            packed.append(value)
        return packed


def pack(argument: Any, name: str) -> Packed:
    """Return an argument as CuPy packs it: Python integers and floats in 8 bytes, size-1 NumPy arrays as they are.

    A null pointer is an integer of 8 bytes, 0.

    Raises
    ------
    KernelFault
        For arrays of the host and of another device than the current one, and for None.
    TypeError
        For what CuPy does not take.
    """
    if argument is None:
        # It gives the driver no address to read the argument from; kernels were seen to get 0xffffffff.
        raise KernelFault(f"wrong argument kind: {name} is None, which CuPy 13 does not pass as a null pointer: pass 0")
    if is_device_array(argument):
        _check_device(memory_of(argument).device_id, name)
        return Packed("p", address_of(argument).to_bytes(8, "little"))
    if isinstance(argument, MemoryPointer):
        _check_device(argument.device_id, name)
        return Packed("p", argument.ptr.to_bytes(8, "little"))
    if isinstance(argument, bool | int | float):
        argument = np.asarray(argument)
    if isinstance(argument, np.generic | np.ndarray):
        if argument.size != 1:
            raise TypeError(f"{name}: an array of the host with {argument.size} elements")
        kind = {"V": "s", "c": "s"}.get(argument.dtype.kind, argument.dtype.kind)
        if kind in _KIND_NAMES:
            return Packed(kind, argument.tobytes())
    raise TypeError(f"{name}: Unsupported type {type(argument)}")


def _check_device(number: int, name: str) -> None:
    if number != current_device.id:
        raise KernelFault(f"wrong device: {name} lies on device {number}, the current device is {current_device.id}")


def _three(lengths: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(lengths, tuple | list) or not 1 <= len(lengths) <= 3:
        raise TypeError(f"a grid or block is a tuple of one to three lengths, not {lengths!r}")
    whole = tuple(int(length) for length in lengths)
    if not all(0 <= length < 2**32 for length in whole):
        raise LaunchRefused(f"launch: CUDA_ERROR_INVALID_VALUE: {lengths}")
    return (*whole, *([1] * (3 - len(whole))))


def _settings_record() -> SettingsRecord:
    now = current()
    return SettingsRecord(
        SCHEDULES.index(now.schedule), now.preempt, now.races, now.profile, now.perturb, 0, now.seed, now.budget
    )


def _report(name: str, faults: list[Fault]) -> str:
    return "\n".join([f"{name}: {len(faults)} faults" if len(faults) > 1 else f"{name}: a fault", *map(str, faults)])


@cache
def _loaded(path: str) -> ctypes.CDLL:
    core()
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise CompileException(f"{path}: {error}") from error
