"""The array type: NumPy's, with its elements in device memory, and CuPy's constructor and attributes.

NumPy functions, operators and methods work on it. What shares memory with an operand stays a view; anything new is
moved to device memory, 0-d arrays included, which stay arrays as in CuPy. Whatever NumPy writes counts as written. What
NumPy reads must have been written, except that copies hand the state of each element on.

``np.asarray(x)`` is a plain view of the same memory: writes through it are not seen, so write to ``x`` itself.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from .adoption import (
    check_current,
    check_operands,
    check_written,
    is_view,
    on_device,
    plain,
    plain_tree,
    written_results,
)
from .devices import Device
from .errors import KernelFault
from .memory import (
    AnyArray,
    Memory,
    MemoryPointer,
    address_of,
    copy_state,
    copy_state_of_chosen,
    count_unwritten,
    is_on_device,
    mark_chosen_written,
    mark_written,
    memory_of,
)
from .settings import current

_METHODS = (
    *("all", "any", "argmax", "argmin", "argpartition", "argsort", "byteswap", "choose", "clip", "compress", "conj"),
    *("conjugate", "cumprod", "cumsum", "diagonal", "dot", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat"),
    *("reshape", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "trace", "transpose", "var"),
)
_METHODS_IN_PLACE = ("partition", "put", "sort")
_READS_NOTHING = frozenset(
    function
    for function in (
        *(np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.min_scalar_type, np.common_type),
        *(np.may_share_memory, np.shares_memory, np.empty_like, np.zeros_like, np.ones_like, np.full_like),
        *(np.iscomplexobj, np.isrealobj),
    )
)
_WRITES_FIRST = frozenset((np.place, np.put, np.putmask, np.put_along_axis, np.fill_diagonal))


class ndarray(np.ndarray[Any, np.dtype[Any]]):
    """ndarray(shape, dtype=float, memptr=None, strides=None, order='C'): an array in device memory."""

    __module__ = "emulator"

    def __new__(
        cls,
        shape: int | Sequence[int],
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: Sequence[int] | None = None,
        order: str = "C",
    ) -> "ndarray":
        if strides is not None and memptr is None:
            raise ValueError("memptr is required if strides is given.")
        kind = np.dtype(dtype)
        check_dtype(kind)
        if memptr is None:
            lengths = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
            size = kind.itemsize
            for length in lengths:
                size *= int(length)
            memptr = MemoryPointer(Memory(size), 0)
        memory = np.asarray(memptr.mem)
        offset = memptr.ptr - memptr.mem.ptr
        return super().__new__(cls, shape, kind, memory, offset, strides, cast(Any, order))

    @property
    def data(self) -> MemoryPointer:  # type: ignore[override]
        """A pointer to element [0, 0, ...]."""
        memory = memory_of(self)
        return MemoryPointer(memory, address_of(self) - memory.ptr)

    @property
    def device(self) -> Device:  # type: ignore[override]
        """The device whose memory holds the elements."""
        return Device(memory_of(self).device_id)

    def get(
        self, stream: object = None, order: str = "C", out: AnyArray | None = None, blocking: bool = True
    ) -> AnyArray:
        """Return a copy on the host.

        Raises
        ------
        KernelFault
            If nothing has written some of the elements.
        """
        self._host_reads("get")
        if out is None:
            return np.array(plain(self), order=cast(Any, order), copy=True)
        out[...] = plain(self)
        return out

    def set(self, array: AnyArray, stream: object = None) -> None:
        """Copy an array of the host, of the same shape and dtype, to the device."""
        if not isinstance(array, np.ndarray) or array.dtype != self.dtype or array.shape != self.shape:
            raise ValueError("set takes a NumPy array of the same shape and dtype")
        self[...] = array

    def copy(self, order: str = "C") -> "ndarray":  # type: ignore[override]
        return self._copied(self.dtype, order)

    def astype(  # type: ignore[override]
        self, dtype: Any, order: str = "K", casting: str | None = None, subok: object = None, copy: bool = True
    ) -> "ndarray":
        kind = np.dtype(dtype)
        check_dtype(kind)
        if not copy and kind == self.dtype:
            return self
        return self._copied(kind, order)

    def flatten(self, order: str = "C") -> "ndarray":  # type: ignore[override]
        return cast(ndarray, self._copied(self.dtype, order).reshape(-1, order=cast(Any, order)))

    def fill(self, value: Any) -> None:
        self[...] = value

    def view(self, dtype: Any = None, type: object = None) -> "ndarray":  # type: ignore[override]
        source = plain(self)
        return device_view(source.view() if dtype is None else source.view(dtype))

    @property
    def flat(self) -> Any:
        # NumPy's iterator would write behind the back of what is known of the bytes.
        raise AttributeError("the emulator's arrays have no .flat: use .ravel()")

    def __getitem__(self, key: Any) -> Any:
        source, index = plain(self), _plain_key(key)
        chosen = source[index]
        if is_on_device(chosen):
            return device_view(chosen)
        check_current(self)
        result = on_device(chosen)
        if count_unwritten(source):
            copy_state_of_chosen(plain(result), source, index)
        return result

    def __setitem__(self, key: Any, value: Any) -> None:
        check_current((self, value))
        target, index = plain(self), _plain_key(key)
        chosen = target[index]
        if is_on_device(chosen):
            _assign(chosen, value)
            return
        check_written(value)
        target[index] = plain_tree(value)
        if count_unwritten(target):
            mark_chosen_written(target, index)

    def __iter__(self) -> Iterator[Any]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(len(self)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        check_operands(inputs)
        check_current(options.get("out"))
        results = getattr(ufunc, method)(*plain_tree(inputs), **plain_tree(options))
        if method == "at":
            mark_written(plain(inputs[0]))
            return None
        return written_results(results, options.get("out"))

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, options: Any) -> Any:
        if function is np.copyto and len(args) == 2 and not options:
            check_current(args)
            _assign(plain(args[0]), args[1])
            return None
        results = function(*plain_tree(args), **plain_tree(options))
        if function in _WRITES_FIRST:
            mark_written(plain(args[0]))
            return None
        if function is np.copyto:
            mark_written(plain(args[0]))
            return None
        reads = function not in _READS_NOTHING and not is_view(results)
        if reads:
            check_operands((args, {name: value for name, value in options.items() if name != "out"}))
        return written_results(results, options.get("out"))

    def item(self, *args: Any) -> Any:
        self._host_reads("item")
        return plain(self).item(*args)

    def tolist(self) -> Any:
        self._host_reads("tolist")
        return plain(self).tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        self._host_reads("tobytes")
        return plain(self).tobytes(order)

    def __bool__(self) -> bool:
        self._host_reads("bool")
        return bool(plain(self))

    def __float__(self) -> float:
        self._host_reads("float")
        return float(plain(self))

    def __int__(self) -> int:
        self._host_reads("int")
        return int(plain(self))

    def __index__(self) -> int:
        self._host_reads("index")
        return plain(self).__index__()

    def __complex__(self) -> complex:
        self._host_reads("complex")
        return complex(plain(self))

    def __contains__(self, value: object) -> bool:
        self._host_reads("in")
        return value in plain(self)

    def __repr__(self) -> str:
        return repr(plain(self))

    def __str__(self) -> str:
        return str(plain(self))

    def __format__(self, specification: str) -> str:
        return format(self.item() if self.ndim == 0 else str(self), specification)

    def __reduce__(self) -> Any:
        return from_host, (self.get(),)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __copy__(self) -> "ndarray":
        return self.copy()

    def __deepcopy__(self, memo: Any) -> "ndarray":
        return self.copy()

    def _copied(self, dtype: np.dtype[Any], order: str) -> "ndarray":
        check_current(self)
        result = empty_like_layout(np.empty_like(plain(self), dtype, cast(Any, order), subok=False))
        _assign(plain(result), self)
        return result

    def _host_reads(self, what: str) -> None:
        if not current().host_reads:
            raise KernelFault(f"host read: {what} reads a device array on the host, which waits for the device")
        check_written(self)


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ValueError for what CuPy has no arrays of."""
    if dtype.char not in "?bhilqBHILQefdFD" and dtype.name != "bfloat16":
        raise ValueError(f"Unsupported dtype {dtype}")
    if not dtype.isnative:
        raise ValueError(f"Unsupported dtype {dtype}: device arrays have the machine's byte order")


def device_view(array: AnyArray) -> ndarray:
    """Return a plain view of device memory as a device array."""
    return np.ndarray.view(array, ndarray)


def empty_like_layout(array: AnyArray) -> ndarray:
    """Return an unwritten array with the shape, dtype and strides of a dense array of the host."""
    return ndarray(array.shape, array.dtype, MemoryPointer(Memory(array.nbytes), 0), array.strides)


def from_host(array: AnyArray) -> ndarray:
    """Return an array of the host copied to the device, its order of axes in memory kept."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    check_dtype(array.dtype)
    result = empty_like_layout(np.empty_like(array, subok=False))
    plain(result)[...] = array
    mark_written(plain(result))
    return result


def _assign(target: AnyArray, value: Any) -> None:
    """Write ``value`` to a plain view of device memory; unwritten elements of ``value`` stay unwritten."""
    if isinstance(value, ndarray):
        source = plain(value)
        target[...] = source
        copy_state(target, source)
    else:
        check_written(value)
        target[...] = plain_tree(value)
        mark_written(target)


def _plain_key(key: Any) -> Any:
    """Return an index that gives arrays, never scalars."""
    index = plain_tree(key)
    if isinstance(index, str) or (isinstance(index, list) and index and isinstance(index[0], str)):
        return index
    if isinstance(index, tuple):
        return index if any(part is Ellipsis for part in index) else (*index, Ellipsis)
    return index if index is Ellipsis else (index, Ellipsis)


def _method(name: str) -> Callable[..., Any]:
    original = getattr(np.ndarray, name)

    def method(self: ndarray, *args: Any, **options: Any) -> Any:
        results = original(plain(self), *plain_tree(args), **plain_tree(options))
        if not is_view(results):
            check_operands((self, args))
        return written_results(results, options.get("out"))

    method.__name__, method.__doc__ = name, original.__doc__
    return method


def _method_in_place(name: str) -> Callable[..., None]:
    original = getattr(np.ndarray, name)

    def method(self: ndarray, *args: Any, **options: Any) -> None:
        check_current((self, args))
        original(plain(self), *plain_tree(args), **plain_tree(options))
        mark_written(plain(self))

    method.__name__, method.__doc__ = name, original.__doc__
    return method


for _name in _METHODS:
    setattr(ndarray, _name, _method(_name))
for _name in _METHODS_IN_PLACE:
    setattr(ndarray, _name, _method_in_place(_name))
