"""``python -m dualsoft``: what is installed, a self-test against the reference, and a short benchmark.

The exit status is 0 when the compiled kernels are there and every check holds, else 1.
"""

import argparse
import os
import platform
import sys
from collections.abc import Sequence

import numpy as np

from dualsoft import __version__, isa
from dualsoft.registry import backends, require
from dualsoft.selftest import Check, device_dtypes, run_checks
from dualsoft.softmax import softmax
from dualsoft.speed import timings
from dualsoft.threads import get_num_threads
from dualsoft.trace import trace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dualsoft",
        description="Without a command: show what is installed, test it against the reference, and time it.",
        epilog="Exit status: 0 when the compiled kernels are there and every check holds, else 1.",
    )
    commands = parser.add_subparsers(dest="command", title="commands")
    tracer = commands.add_parser("trace", help="follow online softmax over a row of numbers")
    tracer.add_argument("numbers", nargs="+", type=float, metavar="NUMBER")
    # A negative number looks like an option to argparse unless no option looks like a number; infinities always do.
    given, rest = parser.parse_known_args(arguments)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)} (write -inf after --)")
    if given.command == "trace":
        return _trace(given.numbers)
    return _report()


def _trace(numbers: list[float]) -> int:
    print(trace(numbers))
    print()
    print("softmax:", ", ".join(f"{value:.4f}" for value in softmax(numbers)))
    return 0


def _report() -> int:
    has_kernels = _installed()
    levels = isa.usable() if has_kernels else []
    if not levels:
        print("\nThe compiled kernels cannot be used: see the reason above.")
        return 1
    passed = _self_test([f"cpu:{level}" for level in levels], has_cuda=backends()["cuda"] is None)
    _benchmark()
    return 0 if passed else 1


def _installed() -> bool:
    """Print what is installed; return whether the cpu backend can be used."""
    print(f"dualsoft {__version__}, Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}")
    reasons = backends()
    print("\nbackends")
    width = max(map(len, [*reasons, *isa.LEVELS]))
    for name, reason in reasons.items():
        print(f"  {name:<{width}} {'usable' if reason is None else reason}")
    print("\nlevels of instruction set")
    usable, chosen = isa.usable(), None if reasons["cpu"] else isa.chosen()
    for level, row in isa.LEVELS.items():
        word = "chosen" if level == chosen else "usable" if level in usable else isa.why_not(level, short=True)
        print(f"  {level:<{width}} {word}  ({row.needs})")
    if chosen is None:
        return False
    openmp = "with OpenMP" if isa.load(chosen).OPENMP else "built without OpenMP: one thread"
    print(f"\nthreads: {get_num_threads()} ({openmp})")
    return True


def _checks(names: list[str], has_cuda: bool) -> list[Check]:
    checks = list(run_checks(names))
    if has_cuda:
        asarray = require("cuda").module().asarray
        print("\nself-test of cuda: the first time compiles all kernels, for some minutes", flush=True)
        checks.extend(run_checks(["cuda"], asarray, device_dtypes(asarray)))
    return checks


def _self_test(names: list[str], has_cuda: bool) -> bool:
    """Print the worst error of each function and dtype, as a share of its bound; return whether all hold."""
    checks = _checks(names, has_cuda)
    failed = [check for check in checks if not check.share <= 1]
    dtypes = list(dict.fromkeys(check.dtype for check in checks))
    print("\nself-test: largest error as a share of its bound")
    if "bfloat16" not in dtypes:
        print("bfloat16: not tested, ml_dtypes is not installed")
    for name in dict.fromkeys(check.backend for check in checks):
        print("\n  " + f"{name:<30}" + "".join(f"{dtype:>10}" for dtype in dtypes))
        for function in dict.fromkeys(check.function for check in checks):
            cells = [_cell(checks, (name, function, dtype)) for dtype in dtypes]
            print(f"  {function:<30}" + "".join(cells))
    for check in failed:
        print(f"  FAILED {check.backend} {check.function} {check.dtype} {check.case}: {check.share:.3g} of the bound")
    print(f"\n  {len(checks) - len(failed)} of {len(checks)} checks hold")
    return not failed


def _cell(checks: list[Check], key: tuple[str, str, str]) -> str:
    """Return the worst share of a backend, function and dtype in ten columns; a dash where there is none."""
    shares = [check.share for check in checks if (check.backend, check.function, check.dtype) == key]
    if not shares:
        return f"{'-':>10}"
    worst = max(shares)
    return f"{worst:>10.2f}" if worst < 1000 else f"{worst:>10.1e}"


def _benchmark() -> None:
    print("\nspeed: microseconds, and how many times faster dualsoft is")
    print(f"  {'':<38}{'dualsoft':>10}{'numpy':>10}{'':>8}{'scipy':>10}")
    for row in timings():
        line = f"  {row.what:<38}{row.dualsoft * 1e6:>10.1f}{row.numpy * 1e6:>10.1f} {row.numpy / row.dualsoft:>6.1f}x"
        if row.scipy is not None:
            line += f"{row.scipy * 1e6:>10.1f} {row.scipy / row.dualsoft:>6.1f}x"
        print(line)


def _until_nobody_reads() -> int:
    """Run the command line; a reader that closes the pipe early, as ``head`` does, is no error to report."""
    try:
        status = main()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # What is left in the buffer must not fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


if __name__ == "__main__":
    sys.exit(_until_nobody_reads())
