"""Device arrays on their way into NumPy functions, and the results on their way back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import KernelFault
from .memory import AnyArray, count_unwritten, current_device, is_on_device, mark_written, memory_of

if TYPE_CHECKING:
    from .array import ndarray

Tree = Any
"""Values in tuples, lists and dictionaries, as functions take and return them."""


def is_device_array(value: object) -> bool:
    """Return whether ``value`` is an array of the emulator, and not a plain NumPy view of one."""
    return isinstance(value, np.ndarray) and type(value) is not np.ndarray and is_on_device(value)


def plain(array: AnyArray) -> AnyArray:
    """Return a plain NumPy view."""
    return np.ndarray.view(array, np.ndarray)


def plain_tree(tree: Tree) -> Tree:
    """Return a tree with plain views in place of device arrays."""
    if is_device_array(tree):
        return plain(tree)
    if type(tree) in (tuple, list):
        return type(tree)(plain_tree(value) for value in tree)
    if type(tree) is dict:
        return {name: plain_tree(value) for name, value in tree.items()}
    return tree


def each_array(tree: Tree) -> Iterator[AnyArray]:
    """Yield the arrays in a tree."""
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from each_array(value)
    elif isinstance(tree, dict):
        yield from each_array(list(tree.values()))


def is_view(results: Tree) -> bool:
    """Return whether all arrays of the results lie in device memory, and there is one."""
    arrays = list(each_array(results))
    return bool(arrays) and all(is_on_device(array) for array in arrays)


def check_written(tree: Tree) -> None:
    """Refuse device arrays that hold what nothing has written.

    Raises
    ------
    KernelFault
        Naming the array's shape and how much of it was never written.
    """
    for array in each_array(tree):
        if is_device_array(array):
            missing = count_unwritten(array)
            if missing:
                raise KernelFault(
                    f"unwritten output: nothing wrote {missing} of the {array.size} elements of an array of shape "
                    f"{array.shape} and dtype {array.dtype}"
                )


def check_current(tree: Tree) -> None:
    """Refuse arrays of another device than the current one.

    CuPy computes on the current device: it warns of slow access, or refuses, and leaves the result on the wrong device.

    Raises
    ------
    KernelFault
        Naming both devices.
    """
    for array in each_array(tree):
        if is_device_array(array) and memory_of(array).device_id != current_device.id:
            raise KernelFault(
                f"wrong device: an array of shape {array.shape} on device {memory_of(array).device_id} is an operand "
                f"while device {current_device.id} is the current one"
            )


def check_operands(tree: Tree) -> None:
    """Refuse arrays that are on another device than the current one, or hold what nothing has written.

    Raises
    ------
    KernelFault
    """
    check_current(tree)
    check_written(tree)


def on_device(tree: Tree) -> Tree:
    """Return results as device arrays: views of device memory stay views, new arrays and scalars are moved there."""
    if isinstance(tree, np.ndarray):
        return _adopted(tree)
    if isinstance(tree, np.generic):
        return _adopted(np.asarray(tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(on_device(value) for value in tree))
    if type(tree) in (tuple, list):
        return type(tree)(on_device(value) for value in tree)
    return tree


def written_results(results: Tree, out: Tree) -> Tree:
    """Return results as device arrays; those that were written to ``out`` are the arrays given there."""
    if out is None:
        return on_device(results)
    if not isinstance(out, tuple):
        return _written(out)
    if len(out) == 1:
        return _written(out[0])
    pairs = zip(results, out, strict=True)
    return tuple(on_device(result) if given is None else _written(given) for result, given in pairs)


def _written(array: AnyArray) -> AnyArray:
    if is_device_array(array):
        mark_written(array)
    return array


def _adopted(array: AnyArray) -> "ndarray | AnyArray":
    # array.py needs this module for its methods.
    from .array import device_view, from_host

    if is_on_device(array):
        return device_view(plain(array))
    return from_host(plain(array))
