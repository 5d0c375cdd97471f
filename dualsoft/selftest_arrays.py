"""Arrays of the self-test on their way to a backend and back: cases are NumPy arrays, and a device takes its own."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dualsoft.arrays import to_host
from dualsoft.block_mask import BlockMask

Array = np.ndarray[Any, Any]


class Calls:
    """Calls of public functions with the arrays of one kind.

    Parameters
    ----------
    asarray : callable, optional
        Makes an array that the backend takes of a NumPy array, as ``cupy.asarray`` does. Without it they stay.
    """

    def __init__(self, asarray: Callable[[Array], Any] | None = None) -> None:
        self._asarray = asarray

    def __call__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return what a function answers: arrays become NumPy arrays, anything else comes as it is."""
        placed = [self.put(value) for value in arguments]
        return self.get(function(*placed, **{name: self.put(value) for name, value in options.items()}))

    def put(self, value: Any) -> Any:
        """Return an argument as the backend takes it."""
        if self._asarray is None:
            return value
        if isinstance(value, BlockMask):
            return BlockMask(self.put(to_host(value.mask)), value.block_q, value.block_k)
        return self._asarray(value) if isinstance(value, np.ndarray) else value

    @staticmethod
    def get(value: Any) -> Any:
        """Return a result, or each of several, as the caller compares it."""
        if isinstance(value, tuple):
            return tuple(map(Calls.get, value))
        return to_host(value)
