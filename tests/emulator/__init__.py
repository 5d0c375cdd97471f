"""CUDA kernels on the CPU: the same source text and the same host code, run under checks that a card does not make.

``cp = emulator.cupy_for("sm_80")`` is an object with CuPy's names on a machine that has such a card. A kernel that is
wrong raises `KernelFault`, with the file and line of its source. `settings` chooses the order of threads, `profile`
tells what each line moved. The package itself answers to CuPy's names, too, for arrays: ``emulator.empty((2, 3))``.
"""

from types import SimpleNamespace
from typing import Any

from .array import ndarray
from .build import why_not
from .devices import get_current_stream
from .errors import BuildError, CompileException, CUDADriverError, KernelFault, TranslationError
from .faults import Fault, LaunchRefused, ProfileRow, Statistics, profile, statistics
from .lookalike import CuPy, cupy_for
from .settings import SCHEDULES, Settings, current, settings
from .transfer import to_device
from .translate import translate

__all__ = [
    "SCHEDULES",
    "BuildError",
    "CUDADriverError",
    "CompileException",
    "CuPy",
    "Fault",
    "KernelFault",
    "LaunchRefused",
    "ProfileRow",
    "Settings",
    "Statistics",
    "TranslationError",
    "cupy_for",
    "current",
    "ndarray",
    "profile",
    "settings",
    "statistics",
    "to_device",
    "translate",
    "why_not",
]

cuda = SimpleNamespace(get_current_stream=get_current_stream)
"""What host code asks of ``cupy.cuda`` by way of an array, whose architecture nobody knows."""


def __getattr__(name: str) -> Any:
    # What makes arrays is the same for all architectures; kernels need one and are not reached this way.
    if name.startswith("_") or name in ("RawModule", "RawKernel"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(cupy_for("sm_80"), name)
