"""Which backend answers a problem: the first usable one that accepts it, or the one that the caller asked for.

The order is cpu, cuda, reference, then backends registered from outside, the oldest first: installing a package never
changes who answers the calls that dualsoft answers itself.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

import numpy as np

from dualsoft import isa
from dualsoft.arguments import integer_of
from dualsoft.arrays import Array, as_array
from dualsoft.backends import Backend, cpu, cuda, reference
from dualsoft.dtypes import BF16, COMPLEX, SWAPPED, find_format
from dualsoft.problem import Problem

ENTRY_POINTS = "dualsoft.backends"
PURE = "DUALSOFT_PURE"

_builtin: dict[str, Backend] = {
    "cpu": cpu.BACKEND,
    "cuda": cuda.BACKEND,
    "reference": reference.BACKEND,
}
_registered: dict[str, Backend] = {}
_entry_points_loaded = False

_forced: ContextVar[Backend | None] = ContextVar("dualsoft_backend", default=None)
_default: Backend | None = None
_serving: dict[type, Backend] = {}


def run(problem: Problem) -> None:
    """Let the backend in charge write the problem's output."""
    backend = _forced.get()
    if backend is None:
        # Complex numbers and kinds of array that were not seen yet take the longer way.
        backend = _serving.get(type(problem.x))
        if backend is None or problem.x_code == COMPLEX:
            backend = _find(problem)
    elif not backend.accepts(problem):
        backend = _instead_of(backend, problem)
    backend.run(problem)


def _find(work: Any) -> Backend:
    """Return the first usable backend that accepts a problem or an array."""
    global _default
    if _default is None:
        # DUALSOFT_SIMD asking for what cannot run raises here: it must never be answered by another backend.
        reason = cpu.BACKEND.available()
        _default = cpu.BACKEND if reason is None else reference.BACKEND
        if reason is not None and os.environ.get(PURE) != "1":
            warnings.warn(
                f"{reason}: NumPy arrays are served by the slow reference backend. Install dualsoft with a C++ "
                f"compiler at hand, or set {PURE}=1 to say that this is meant.",
                RuntimeWarning,
                stacklevel=_callers_level(),
            )
    if _default.accepts(work):
        if getattr(work, "x_code", COMPLEX) != COMPLEX:
            _serving[type(work.x)] = _default
        return _default
    for backend in _builtin.values():
        if backend.accepts(work) and backend.available() is None:
            return backend
    for backend in _plugins().values():
        if _reason(backend) is None and backend.accepts(work):
            return backend
    raise TypeError(_nobody(work))


def _callers_level() -> int:
    """Return the ``stacklevel`` at which a warning of the function that asks names the first line outside dualsoft."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    return level


def _nobody(work: Any) -> str:
    array: Array = getattr(work, "x", work)
    reasons = [
        f"{backend.name}: {_reason(backend)}"
        for backend in _builtin.values()
        if backend.accepts(work) and _reason(backend) is not None
    ]
    # A problem may be more than its array: the backend that serves such arrays does not serve this function, or option.
    reasons += [
        f"{backend.name}: it does not serve {_asked_for(work)}"
        for backend in _builtin.values()
        if array is not work and not backend.accepts(work) and backend.accepts(array) and _reason(backend) is None
    ]
    return f"no usable backend takes {_described(array)}" + (f" ({'; '.join(reasons)})" if reasons else "")


def _asked_for(work: Any) -> str:
    weighted = " with weights b" if getattr(work, "b", None) is not None else ""
    return f"a {type(work).__name__}{weighted} of dtype {work.x.dtype}"


def _instead_of(asked: Backend, work: Any) -> Backend:
    """Return who answers when the backend that was asked for does not accept a problem.

    Complex numbers are the reference's alone, whoever was asked for; anything else is the caller's error.
    """
    array: Array = getattr(work, "x", work)
    is_complex = array.dtype.kind == "c" or getattr(work, "x_code", None) == COMPLEX
    if is_complex and asked.name.partition(":")[0] == cpu.BACKEND.name and reference.BACKEND.accepts(work):
        return reference.BACKEND
    raise TypeError(
        f"the backend {asked.name!r} was asked for and does not take {_described(array)}; "
        "arrays are never moved silently"
    )


def _described(array: Array) -> str:
    return f"a {type(array).__module__}.{type(array).__qualname__} of dtype {array.dtype}"


def _plugins() -> dict[str, Backend]:
    """Return the backends from outside; entry points are loaded at the first call, and a broken one is a reason."""
    global _entry_points_loaded
    if not _entry_points_loaded:
        _entry_points_loaded = True
        from importlib.metadata import entry_points  # a third of the time of importing dualsoft, and seldom needed

        for point in entry_points(group=ENTRY_POINTS):
            if point.name not in _builtin and point.name not in _registered:
                _registered[point.name] = _from_entry_point(point.name, point.load)
    return _registered


def _from_entry_point(name: str, load: Callable[[], Any]) -> Backend:
    try:
        found = load()
        return Backend(name, found.available, found.accepts, found.run)
    except Exception as error:  # whatever another package raises must not break dualsoft
        reason = f"its entry point is broken: {type(error).__name__}: {error}"
        return Backend(name, lambda: reason, lambda work: False, _broken(reason))


def _broken(reason: str) -> Callable[[Any], None]:
    def fail(problem: Any) -> None:
        raise RuntimeError(reason)

    return fail


def _reason(backend: Backend) -> str | None:
    """Return why a backend cannot be used; an error on the way is the reason."""
    try:
        reason: object = backend.available()
    except Exception as error:  # as above
        return f"{type(error).__name__}: {error}"
    if reason is None or isinstance(reason, str):
        return reason
    return f"its available() must return None or the reason (a string), and returned {reason!r}"


def backends() -> dict[str, str | None]:
    """List the backends, with the reason for each that cannot be used.

    Returns
    -------
    dict of str to (str or None)
        Name to None where the backend can be used, else to the reason.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.backends()["reference"] is None
    True
    """
    return {name: _reason(backend) for name, backend in (_builtin | _plugins()).items()}


def backend_for(x: object) -> str:
    """Tell which backend would serve an array, here and now.

    Parameters
    ----------
    x : array_like
        Only its kind and dtype matter.

    Returns
    -------
    str
        A name from ``backends()``, or the name given to ``use_backend``.

    Raises
    ------
    TypeError
        When no usable backend takes it; the message says why.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> with dualsoft.use_backend("reference"):
    ...     dualsoft.backend_for(numpy.zeros(3))
    'reference'
    """
    array = as_array(x, "x")
    forced = _forced.get()
    if forced is None:
        return _find(array).name
    return forced.name if forced.accepts(array) else _instead_of(forced, array).name


def require(name: str) -> Backend:
    """Return the backend called ``name``, or raise.

    Raises
    ------
    TypeError
        When ``name`` is not a string.
    ValueError
        When there is no such backend or level.
    RuntimeError
        When it cannot be used; the message says why.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {name!r}")
    base, colon, rest = name.partition(":")
    known = _builtin if base in _builtin else _plugins()
    backend = known.get(base)
    if backend is None or (colon and backend.variant is None):
        levels = [f"cpu:{level}" for level in isa.LEVELS]
        raise ValueError(f"unknown backend {name!r}; known: {', '.join([*_builtin, *_plugins(), *levels])}")
    if colon and backend.variant is not None:
        return backend.variant(rest)
    # An error on the way (DUALSOFT_SIMD naming what cannot run) is the reason, said once.
    reason = _reason(backend)
    if reason is not None:
        raise RuntimeError(f"the backend {name!r} cannot be used: {reason}")
    return backend


class use_backend:  # a context manager, used like a function
    """Choose the backend for the calls inside a ``with`` block.

    Only this thread and this asynchronous task see it. Arrays are never moved: an array of a kind that the backend does
    not take is a TypeError. Complex ``logsumexp`` is served by the reference whatever backend was chosen.

    Parameters
    ----------
    name : str
        "reference", "cpu", "cpu:x86_64_v3" (one ISA level), "cuda", or another name from ``backends()``.

    Raises
    ------
    ValueError
        When the name is not known; the message lists the known ones.
    RuntimeError
        When the backend cannot be used here; the message says why.

    Examples
    --------
    >>> import dualsoft
    >>> with dualsoft.use_backend("reference"):
    ...     dualsoft.softmax([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """

    __slots__ = ("_backend", "_tokens")

    def __init__(self, name: str) -> None:
        self._backend = require(name)
        self._tokens: list[Token[Backend | None]] = []

    def __enter__(self) -> None:
        self._tokens.append(_forced.set(self._backend))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _forced.reset(self._tokens.pop())


_WARM_DTYPES = ("float16", "bfloat16", "float32", "float64")


def warmup(backend: str = "cuda", dtypes: Any = _WARM_DTYPES, head_dims: Any = ()) -> int:
    """Compile the kernels that later calls need, so that the first of them does not wait.

    CuPy keeps compiled kernels on disk: a second process finds them there.

    Parameters
    ----------
    backend : str
        A name from ``backends()``. Only "cuda" compiles when it is called: the others return at once.
    dtypes : dtype, str, or a sequence of these
        The dtypes of the arrays to come. CUDA kernels are compiled for the current device.
    head_dims : int or sequence of int
        The head dimensions of attention to come. The CUDA backend has few kernels for each dtype, for all of them: it
        compiles these whatever is named here.

    Returns
    -------
    int
        How many kernels are ready.

    Raises
    ------
    ValueError, RuntimeError
        When there is no such backend, or it cannot be used; the message says why.
    TypeError
        For a dtype that is not float16, bfloat16, float32 or float64, or a head dimension that is no integer.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.warmup("reference")
    0
    """
    chosen = require(backend)
    codes = tuple(_float_code(entry) for entry in _each(dtypes))
    for entry in _each(head_dims):
        if integer_of(entry, "head_dims") < 1:
            raise ValueError(f"head_dims must be 1 or more, got {entry!r}")
    return 0 if chosen.warmup is None else chosen.warmup(codes)


def _each(given: Any) -> Iterable[Any]:
    return given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def _float_code(dtype: Any) -> int:
    if isinstance(dtype, str) and dtype == "bfloat16":
        return BF16  # a name that NumPy knows only once ml_dtypes is imported
    try:
        known = None if dtype is None else find_format(np.dtype(dtype))  # NumPy takes None for float64
    except TypeError:
        known = None
    if known is None or known.code & ~SWAPPED > BF16:
        raise TypeError(f"dtypes must be float16, bfloat16, float32 or float64, got {dtype!r}")
    return known.code & ~SWAPPED


def register_backend(
    name: str,
    *,
    available: Callable[[], str | None],
    accepts: Callable[[Any], bool],
    run: Callable[[Any], None],
    variant: Callable[[str], Backend] | None = None,
) -> None:
    """Add a backend from outside dualsoft.

    It serves where it is asked for by ``use_backend``, and by itself only what no backend of dualsoft takes.
    A package does the same with an entry point in the group "dualsoft.backends", whose object has these three
    attributes.

    Parameters
    ----------
    name : str
        A new name, without a colon.
    available : callable
        Returns None when the backend can be used, else the reason why not.
    accepts : callable
        Takes a problem (a named tuple of ``dualsoft.problem``) or an array; returns whether the backend serves it.
    run : callable
        Takes a problem and writes its ``out`` (for an update of the running pair ``m`` and ``rest``; with signs,
        ``sign`` too; of attention also those of ``lse``, ``m`` and ``d`` that are not None).
    variant : callable, optional
        Takes what follows the colon in ``use_backend("name:which")`` and returns a ``dualsoft.backends.Backend``;
        raises ValueError where there is none.

    Raises
    ------
    TypeError
        When ``name`` is not a string, or one of the others cannot be called.
    ValueError
        When the name is taken or has a colon.

    Examples
    --------
    >>> import dualsoft
    >>> dualsoft.register_backend("nobody", available=lambda: "an example", accepts=lambda work: False, run=print)
    >>> dualsoft.backends()["nobody"]
    'an example'
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {name!r}")
    if not name or ":" in name:
        raise ValueError(f"name must not be empty and have no colon, got {name!r}")
    given: dict[str, Any] = {"available": available, "accepts": accepts, "run": run}
    for argument, value in (given if variant is None else given | {"variant": variant}).items():
        if not callable(value):
            raise TypeError(f"{argument} must be callable, got {value!r}")
    if name in _builtin or name in _plugins():
        raise ValueError(f"the backend {name!r} exists already")
    _registered[name] = Backend(name, available, accepts, run, variant)
