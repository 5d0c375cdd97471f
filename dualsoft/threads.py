"""How many threads the kernels may use: for the process, or for a block of code."""

import operator
import os
from contextvars import ContextVar, Token
from types import TracebackType

from dualsoft import isa

ENVIRONMENT = "DUALSOFT_NUM_THREADS"
MOST = 4096
"""The most threads that may be asked for: beyond it a number is a mistake, and starting them would end the process."""

_override: ContextVar[int] = ContextVar("dualsoft_num_threads", default=0)
_process: int | None = None


def limit() -> int:
    """Return the most threads a kernel may use now, 0 for OpenMP's own number."""
    return _override.get() or (_process if _process is not None else _from_environment())


def set_num_threads(n: int | None) -> None:
    """Set the most threads that calls of this process use.

    Parameters
    ----------
    n : int or None
        At least 1. None goes back to OpenMP's own number (``OMP_NUM_THREADS``, else the number of processors).

    Raises
    ------
    TypeError
        When ``n`` is not an integer; True and False are not.
    ValueError
        When ``n`` is below 1, or above 4096.

    Notes
    -----
    Results do not depend on the number of threads, bit for bit.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.set_num_threads(1)
    >>> dualsoft.get_num_threads()
    1
    >>> dualsoft.set_num_threads(None)
    """
    global _process
    _process = 0 if n is None else _valid(n, "n")


def get_num_threads() -> int:
    """Return the most threads that a call made here and now would use.

    Returns
    -------
    int
        The innermost ``num_threads``, else what ``set_num_threads`` or ``DUALSOFT_NUM_THREADS`` said, else OpenMP's own
        number; 1 where no compiled kernels are installed.

    Examples
    --------
    >>> import dualsoft
    >>> with dualsoft.num_threads(2):
    ...     dualsoft.get_num_threads()
    2
    """
    n = limit()
    if n:
        return n
    level = isa.chosen()
    return 1 if level is None else int(isa.load(level).max_threads())


class num_threads:  # a context manager, used like a function
    """Set the most threads that the calls inside a ``with`` block use.

    Only this thread and this asynchronous task see it.

    Parameters
    ----------
    n : int
        At least 1.

    Raises
    ------
    TypeError
        When ``n`` is not an integer; True and False are not.
    ValueError
        When ``n`` is below 1, or above 4096.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> with dualsoft.num_threads(1):
    ...     dualsoft.logsumexp(numpy.zeros(1)).item()
    0.0
    """

    __slots__ = ("_n", "_tokens")

    def __init__(self, n: int) -> None:
        self._n = _valid(n, "n")
        self._tokens: list[Token[int]] = []

    def __enter__(self) -> None:
        self._tokens.append(_override.set(self._n))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _override.reset(self._tokens.pop())


def _valid(n: object, name: str) -> int:
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"{name} must be an integer, got {n!r}")
    try:
        count = operator.index(n)
    except TypeError:  # NumPy's arrays and scalars all have the method, and only some can answer
        raise TypeError(f"{name} must be an integer, got {n!r}") from None
    if not 1 <= count <= MOST:
        raise ValueError(f"{name} must be between 1 and {MOST}, got {count}")
    return count


def _from_environment() -> int:
    """Read ``DUALSOFT_NUM_THREADS`` once, at the first call: an error at import would be out of place."""
    global _process
    text = os.environ.get(ENVIRONMENT, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{ENVIRONMENT} must be an integer of at least 1, got {text!r}")
    _process = _valid(int(text), ENVIRONMENT) if text else 0
    return _process


def _pause() -> None:
    """Let OpenMP's threads end: a child of ``fork`` would wait for ever for threads that it does not have."""
    for kernels in isa.loaded():
        kernels.pause_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_pause)
