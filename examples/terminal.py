"""How the examples meet the world outside: what goes wrong there is said in a line, and is no traceback."""

import argparse
import io
import os
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np

import dualsoft

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells count: 128 and the number of the signal."""
NOBODY_READS = 141


def run(main: Callable[[], int]) -> int:
    """Run a program and return its exit status, whatever becomes of its output.

    Characters that the output cannot encode are written as escapes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = main()
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        status = NOBODY_READS
    except OSError as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        return INTERRUPTED
    # What is left in the buffer must not fail once more when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


def text(argument: str) -> str:
    """Return an argument of the command line that is whole text.

    Raises
    ------
    argparse.ArgumentTypeError
        When there are bytes in it that the locale's encoding does not have.
    """
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"must be text in the encoding of the locale, got {argument!r}") from error
    return argument


def backend(name: str, xp: ModuleType = np) -> str:
    """Return the name of a backend that can be used for float32 arrays of ``xp``; the empty one is that of the best.

    Raises
    ------
    argparse.ArgumentTypeError
        With the reason why not.
    """
    try:
        some = xp.zeros(1, np.float32)
        if name:
            with dualsoft.use_backend(name):
                dualsoft.backend_for(some)
        else:
            dualsoft.backend_for(some)
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def backend_or_cuda(name: str) -> str:
    """Return the name of a backend that can be used for float32, for NumPy's arrays or, "cuda", for CuPy's.

    Raises
    ------
    argparse.ArgumentTypeError
        With the reason why not.
    """
    if name != "cuda":
        return backend(name)
    reason = dualsoft.backends()[name]
    if reason is not None:
        raise argparse.ArgumentTypeError(f"the cuda backend cannot be used: {reason}")
    return name


def arrays_for(name: str | None) -> ModuleType:
    """Return the module whose arrays a backend takes."""
    if name != "cuda":
        return np
    import cupy  # what the backend has found

    found: ModuleType = cupy
    return found
