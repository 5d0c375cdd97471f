"""What answers the problems: a backend is a name, whether it can be used, what it takes, and how it runs."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np


class Backend(NamedTuple):
    """A way to answer problems.

    ``accepts`` is asked with a problem before each run, and with an array by ``backend_for``.
    """

    name: str
    available: Callable[[], str | None]
    """None when it can be used, else the reason why not."""
    accepts: Callable[[Any], bool]
    run: Callable[[Any], None]
    """Writes the problem's ``out``."""
    variant: Callable[[str], "Backend"] | None = None
    """The backend called ``name:variant``; raises ValueError if there is none, RuntimeError if it cannot be used."""
    warmup: Callable[[Iterable[int]], int] | None = None
    """Compiles what calls on arrays of these dtype codes can need, and returns how many kernels that is."""
    module: Callable[[], ModuleType] = lambda: np
    """The module whose arrays a usable backend takes."""


__all__ = ["Backend"]
