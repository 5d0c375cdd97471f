"""Values that never change: what the states of the running pair and of attention share."""

from typing import Any, NoReturn, Self

import numpy as np


class Frozen:
    """A value whose attributes nobody can set or delete; a copy of it is itself."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{_named(self)} never changes: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{_named(self)} never changes: cannot delete {name!r}")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def _named(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def locked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view that cannot be made writable: NumPy lets only the owner of the memory take read-only back."""
    owner = array.base
    array.setflags(write=False)
    if owner is None:
        return array.view()
    if isinstance(owner, np.ndarray):
        owner.setflags(write=False)
    return array
