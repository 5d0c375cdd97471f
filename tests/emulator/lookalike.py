"""Objects that answer to CuPy's names: one for each architecture that the emulator stands for."""

from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np

from .adoption import check_operands, each_array, is_device_array, is_view, plain, plain_tree, written_results
from .array import check_dtype, from_host
from .array import ndarray as DeviceArray
from .devices import Device, Stream, get_current_stream
from .errors import CompileException, CUDADriverError, CUDARuntimeError
from .launch import SHARED_LIMITS, RawKernel, RawModule
from .memory import DEVICE_COUNT, AnyArray, Memory, MemoryPointer, alloc, current_device

_MULTIPROCESSORS = {75: 40, 80: 108, 86: 84, 89: 128, 90: 132, 100: 148, 120: 170}
_CACHES = {75: 4, 80: 40, 86: 6, 89: 72, 90: 50, 100: 126, 120: 96}
"""MiB of second-level cache."""
_READS_NOTHING = (
    *("may_share_memory", "shares_memory", "result_type", "can_cast", "ndim", "shape", "size"),
    *("zeros_like", "ones_like", "full_like"),
)


class CuPy(ModuleType):
    """A stand-in for the module ``cupy`` on a machine with cards of one architecture.

    What is not written here is NumPy's function of the same name: it takes and returns device arrays and, as CuPy's,
    refuses arrays of the host.
    """

    def __init__(self, architecture: int) -> None:
        super().__init__(f"emulator.sm_{architecture}", f"CuPy as on a card of architecture sm_{architecture}.")
        self.architecture = architecture
        self.ndarray = DeviceArray
        self.RawModule = _bound(RawModule, architecture)
        self.RawKernel = RawKernel
        self.cuda = _cuda(architecture)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(np, name)
        if isinstance(value, ModuleType):
            raise AttributeError(f"the emulator has no {name}: write what is needed of it with other functions")
        if isinstance(value, type) or not callable(value):
            return value
        return _device_function(name, value)

    @staticmethod
    def empty(shape: int | Sequence[int], dtype: Any = float, order: str = "C") -> DeviceArray:
        return DeviceArray(shape, dtype, order=order)

    @staticmethod
    def zeros(shape: int | Sequence[int], dtype: Any = float, order: str = "C") -> DeviceArray:
        return CuPy.full(shape, 0, dtype, order)

    @staticmethod
    def ones(shape: int | Sequence[int], dtype: Any = float, order: str = "C") -> DeviceArray:
        return CuPy.full(shape, 1, dtype, order)

    @staticmethod
    def full(shape: int | Sequence[int], fill_value: Any, dtype: Any = None, order: str = "C") -> DeviceArray:
        kind = np.asarray(plain_tree(fill_value)).dtype if dtype is None else dtype
        result = DeviceArray(shape, kind, order=order)
        result[...] = fill_value
        return result

    @staticmethod
    def empty_like(
        prototype: DeviceArray, dtype: Any = None, order: str = "K", subok: object = None, shape: Any = None
    ) -> DeviceArray:
        if not is_device_array(prototype):
            raise TypeError(f"Unsupported type {type(prototype)}")
        host = np.empty_like(plain(prototype), dtype, order, False, shape)  # type: ignore[call-overload]
        check_dtype(host.dtype)
        return DeviceArray(host.shape, host.dtype, alloc(host.nbytes), host.strides)

    @staticmethod
    def asarray(
        a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, blocking: bool = False
    ) -> DeviceArray:
        return CuPy.array(a, dtype, bool(copy), order or "K")

    @staticmethod
    def array(
        obj: Any,
        dtype: Any = None,
        copy: bool = True,
        order: str = "K",
        subok: bool = False,
        ndmin: int = 0,
        *,
        blocking: bool = False,
    ) -> DeviceArray:
        if is_device_array(obj):
            kind = obj.dtype if dtype is None else np.dtype(dtype)
            has_order = {"C": obj.flags.c_contiguous, "F": obj.flags.f_contiguous}.get(order, True)
            keeps = not copy and kind == obj.dtype and has_order
            array: DeviceArray = obj if keeps else obj.astype(kind, order)
        else:
            # CuPy reads a host array in its own order of axes, and makes it dense.
            array = from_host(np.array(plain_tree(obj), dtype=dtype, order=order, copy=True))  # type: ignore[call-overload]
        missing = max(ndmin - array.ndim, 0)
        return cast(DeviceArray, array[(None,) * missing]) if missing else array

    @staticmethod
    def ascontiguousarray(a: Any, dtype: Any = None) -> DeviceArray:
        array = CuPy.array(a, dtype, False, "C")
        return array if array.ndim else cast(DeviceArray, array[None])

    @staticmethod
    def asnumpy(
        a: Any, stream: object = None, order: str = "C", out: AnyArray | None = None, *, blocking: bool = True
    ) -> AnyArray:
        if is_device_array(a):
            result: AnyArray = a.get(order=order, out=out)
            return result
        return np.asarray(a, order=order)  # type: ignore[call-overload,no-any-return]

    @staticmethod
    def copyto(dst: DeviceArray, src: Any, casting: str = "same_kind", where: Any = None) -> None:
        _refuse_host((dst, src, where))
        if where is None:
            np.copyto(dst, src)
        else:
            np.copyto(dst, src, where=where)

    @staticmethod
    def einsum(subscripts: Any, *operands: Any, dtype: Any = None, optimize: Any = False) -> DeviceArray:
        # NumPy's takes out=, order= and casting= as well.
        contracted = _device_function("einsum", np.einsum)
        return cast(DeviceArray, contracted(subscripts, *operands, dtype=dtype, optimize=optimize))

    def get_array_module(self, *args: Any) -> ModuleType:
        return self if any(is_device_array(value) for value in args) else np


@cache
def cupy_for(architecture: str) -> CuPy:
    """Return the stand-in for CuPy on cards of ``architecture``, such as "sm_80".

    Raises
    ------
    ValueError
        For an architecture that the emulator does not know.
    """
    number = architecture.removeprefix("sm_")
    if not number.isdigit() or int(number) not in _MULTIPROCESSORS:
        known = ", ".join(f"sm_{known}" for known in _MULTIPROCESSORS)
        raise ValueError(f"the emulator stands for {known}, not for {architecture!r}")
    return CuPy(int(number))


class _ArchitectureDevice(Device):
    """A device that knows which card it is."""

    architecture: ClassVar[int]

    @property
    def compute_capability(self) -> str:
        return str(self.architecture)

    @property
    def attributes(self) -> dict[str, int]:
        return {
            "MultiProcessorCount": _MULTIPROCESSORS[self.architecture],
            "MaxSharedMemoryPerBlockOptin": SHARED_LIMITS[self.architecture],
            "L2CacheSize": _CACHES[self.architecture] << 20,
            "MaxSharedMemoryPerBlock": 48 * 1024,
            "MaxThreadsPerBlock": 1024,
            "WarpSize": 32,
            "ComputeCapabilityMajor": self.architecture // 10,
            "ComputeCapabilityMinor": self.architecture % 10,
        }


def _bound(kind: type[Any], architecture: int) -> Any:
    """Return a class whose instances belong to an architecture."""
    return type(kind.__name__.removeprefix("_Architecture"), (kind,), {"architecture": architecture})


def _cuda(architecture: int) -> SimpleNamespace:
    return SimpleNamespace(
        Device=_bound(_ArchitectureDevice, architecture),
        Memory=Memory,
        MemoryPointer=MemoryPointer,
        Stream=Stream,
        alloc=alloc,
        compiler=SimpleNamespace(CompileException=CompileException),
        driver=SimpleNamespace(CUDADriverError=CUDADriverError),
        get_current_stream=get_current_stream,
        get_device_id=lambda: current_device.id,
        is_available=lambda: True,
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
        runtime=SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDevice=lambda: current_device.id,
            getDeviceCount=lambda: DEVICE_COUNT,
            runtimeGetVersion=lambda: 13000,
            driverGetVersion=lambda: 13000,
        ),
    )


@cache
def _device_function(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        _refuse_host((args, options))
        results = function(*plain_tree(args), **plain_tree(options))
        if name not in _READS_NOTHING and not is_view(results):
            check_operands((args, {key: value for key, value in options.items() if key != "out"}))
        return written_results(results, options.get("out"))

    call.__name__, call.__doc__ = name, function.__doc__
    return call


def _refuse_host(tree: Any) -> None:
    for array in each_array(tree):
        if not is_device_array(array):
            raise TypeError(f"Unsupported type {type(array)}: CuPy's functions take no arrays of the host")
