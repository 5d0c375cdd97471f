"""The kinds of array that dualsoft takes, told apart by their type and without importing anything.

NumPy arrays and what NumPy can convert are NumPy arrays here; CuPy arrays stay what they are; all else is refused
with a word on how to convert it, never converted silently.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from dualsoft.dtypes import find_format

Array = Any
"""A NumPy array, or a CuPy array (which has no type stubs)."""


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_device_modules = {"cupy"}
_nowhere = nullcontext()


def add_device_module(name: str) -> None:
    """Treat the class ``ndarray`` of the package ``name`` as CuPy's, whose functions it must have."""
    _device_modules.add(name)
    _device_module_of.cache_clear()


def is_cupy(value: object) -> bool:
    """Return whether ``value`` is a CuPy array."""
    kind: Any = type(value)
    return _device_module_of(kind) is not None


@lru_cache(maxsize=256)
def _device_module_of(kind: type) -> str | None:
    """Return the name of the package that a type of device arrays comes from, itself or by way of its bases."""
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in _device_modules and base.__name__ == "ndarray":
            return root
    return None


def module_of(array: Array) -> ModuleType:
    """Return the module whose functions work on ``array``: NumPy, or CuPy if the caller's array is CuPy's."""
    if type(array) is np.ndarray:
        return np
    kind: Any = type(array)
    root = _device_module_of(kind)
    if root is None:
        return np
    try:
        return sys.modules[root]
    except KeyError:
        raise TypeError(f"{type(array).__name__} says it comes from {root!r}, which is not imported") from None


def on_device_of(array: Array) -> AbstractContextManager[Any]:
    """Return a context in which CuPy works on the device of ``array``; of a NumPy array, one that does nothing."""
    device: AbstractContextManager[Any] = array.device if is_cupy(array) else _nowhere
    return device


def with_device_of(
    chosen: Callable[[tuple[Any, ...]], Array],
) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """Return a decorator: what is called works on the device of the array ``chosen`` from its positional arguments.

    CuPy makes arrays on the current device, and computes there. A call with NumPy arrays costs one look at a type more.
    """

    def decorator(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        @wraps(function)
        def on_device(*given: _Given.args, **options: _Given.kwargs) -> _Result:
            array = chosen(given)
            if type(array) is np.ndarray or not is_cupy(array):
                return function(*given, **options)
            with on_device_of(array):
                return function(*given, **options)

        return on_device

    return decorator


def device_of(array: Array) -> int | None:
    """Return the number of the device that holds ``array``, None for a NumPy array."""
    return int(array.device.id) if is_cupy(array) else None


def as_array(value: object, name: str) -> Array:
    """Return argument ``name`` as a plain NumPy array or, unchanged, as a CuPy array.

    Raises
    ------
    TypeError
        For masked arrays, sparse matrices and the arrays of other libraries; the message says what to do.
    ValueError
        When NumPy makes no array of it, as of lists of unequal lengths.
    """
    kind = type(value)
    if kind is np.ndarray:
        return value
    # The modules that a type and its bases come from tell whose array it is without an import.
    origins = [str(base.__module__) for base in kind.__mro__]
    if any(origin.startswith("numpy.ma") for origin in origins):
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost: pass {name}.data and "
            f"where=~numpy.ma.getmaskarray({name}) (to attention, what its queries may see as mask=)"
        )
    if any(origin.startswith(("scipy.sparse", "cupyx.scipy.sparse")) for origin in origins):
        raise TypeError(f"{name} is a {kind.__name__}, a sparse array: pass {name}.toarray()")
    if is_cupy(value):
        return value
    if hasattr(kind, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
        raise TypeError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, neither a NumPy nor a CuPy array, and is not "
            f"converted silently: pass numpy.from_dlpack({name}) (or cupy.from_dlpack for device memory)"
        )
    if hasattr(kind, "__cuda_array_interface__"):
        raise TypeError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, device memory that is no CuPy array, and is not "
            f"converted silently: pass cupy.asarray({name})"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name} must be an array or convertible to one, got a {kind.__qualname__}: {error}"
        ) from error


def same_kind(value: object, name: str, beside: Array, beside_name: str) -> Array:
    """Return argument ``name`` as an array of the kind that ``beside`` has; numbers and lists go where that is.

    A list of what CuPy has no arrays of stays a NumPy array: its dtype is refused by who asked, in the usual words.

    Raises
    ------
    TypeError
        When one is a NumPy array and the other a CuPy array, or they are on two devices.
    """
    array = as_array(value, name)
    if is_cupy(array) != is_cupy(beside):
        if not isinstance(value, np.ndarray) and is_cupy(beside):
            return _moved(array, beside)
        raise TypeError(
            f"{name} is a {_kind_name(array)} array and {beside_name} a {_kind_name(beside)} array: "
            f"arrays are never moved silently, convert one of them"
        )
    if is_cupy(array) and array.device.id != beside.device.id:
        raise TypeError(
            f"{name} is on device {array.device.id} and {beside_name} on device {beside.device.id}: "
            f"arrays are never moved silently, convert one of them"
        )
    return array


def number_or_same_kind(value: object, name: str, beside: Array, beside_name: str) -> Array:
    """Return what ``same_kind`` does, but leave a number on the host, as a NumPy array without axes."""
    if is_cupy(beside) and not isinstance(value, np.ndarray) and not is_cupy(value):
        array = as_array(value, name)
        if array.ndim == 0:
            return array
    return same_kind(value, name, beside, beside_name)


def _moved(array: np.ndarray[Any, Any], beside: Array) -> Array:
    """Return what the caller gave as numbers or lists as an array where ``beside`` is."""
    if find_format(array.dtype, complex_too=True) is None:
        return array
    xp = module_of(beside)
    with on_device_of(beside):
        if array.ndim == 0 and array.dtype.kind in "biufc":
            # An argument of a kernel: a copy from the host could not be captured in a CUDA graph.
            return own(xp.full((), array[()], array.dtype))
        return own(xp.asarray(array))


_captured: list[Array] = []


def own(array: Array) -> Array:
    """Return memory that a call takes for itself on the current device; of a captured call it is kept for good.

    A CUDA graph goes on using what its calls were captured with, and the pool would give that to others.
    """
    if is_cupy(array) and module_of(array).cuda.get_current_stream().is_capturing():
        _captured.append(array)
    return array


def _kind_name(array: Array) -> str:
    return "CuPy" if is_cupy(array) else "NumPy"


def delivered(result: Array, out: Array) -> Array:
    """Return ``out``, copied to from ``result`` where an overlap made a problem compute into another array."""
    if result is out or result.base is out:
        return out
    if not module_of(out).may_share_memory(result, out):
        with on_device_of(out):
            out[...] = result.reshape(out.shape)
    return out


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """Return a NumPy array with the contents of ``array``, copied only if it is on a device."""
    host: np.ndarray[Any, Any] = array.get() if is_cupy(array) else array
    return host


def scalar_if_0d(array: Array) -> Any:
    """Return a NumPy scalar for a 0-d NumPy array, as NumPy's reductions do, and any other array unchanged."""
    return array[()] if array.ndim == 0 and not is_cupy(array) else array
