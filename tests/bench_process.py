"""The benchmark, which lies at the root and is not installed: as a command, and its modules one by one."""

import importlib
import sys
from types import ModuleType
from typing import Any

from process import ROOT, python

RUN = "import runpy, sys; sys.argv = ['bench', *sys.argv[1:]]; runpy.run_module('bench', run_name='__main__')"


def bench(*arguments: str, first: str = "") -> Any:
    """Run ``python -m bench *arguments`` after the code ``first``."""
    return python("-c", first + RUN, *arguments, cwd=ROOT)


def module(name: str) -> ModuleType:
    """Import a module of the benchmark."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(name)
