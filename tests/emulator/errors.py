"""What the emulator raises: faults of kernels, and the errors that CuPy would raise in the same place."""

from collections.abc import Sequence
from typing import Any


class KernelFault(RuntimeError):
    """A kernel, or the way it was launched, is wrong: one line a fault, with kind, file:line, block and thread.

    Attributes
    ----------
    faults
        What the core found, as `Fault`; empty for what is wrong before a kernel runs or after.
    """

    def __init__(self, text: str, faults: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.faults = tuple(faults)


class CompileException(Exception):
    """The text of a kernel does not compile for the architecture, as ``cupy.cuda.compiler.CompileException``."""


class TranslationError(CompileException):
    """An asm statement breaks a rule of inline PTX; the text names file and line."""


class CUDADriverError(RuntimeError):
    """A launch or an attribute that the driver refuses, as ``cupy_backends.cuda.api.driver.CUDADriverError``."""


class CUDARuntimeError(RuntimeError):
    """What the CUDA runtime refuses, as ``cupy_backends.cuda.api.runtime.CUDARuntimeError``."""


class BuildError(RuntimeError):
    """The emulator itself could not be built."""
