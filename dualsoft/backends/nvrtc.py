"""CUDA source text: from the files in ``cuda/`` to one string and its options, and from these to a kernel.

Includes are inlined, with ``#line``, because CuPy's cache of compiled kernels sees the string that it is given and
nothing else: a file that changed has to change the string.
"""

import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

OPTIONS = ("--std=c++17", "--fmad=false")
"""What every kernel is compiled with. A fused multiply-add is written where it is meant."""

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_PRAGMA_ONCE = "#pragma once\n"


class Variant(NamedTuple):
    """One kernel of one source file, specialised by macros."""

    source: str
    """A file in ``cuda/``."""
    kernel: str
    defines: tuple[tuple[str, str | int], ...]
    is_dynamic: bool = False
    """Whether launches give it dynamic shared memory."""
    oldest: int = 75
    """The lowest compute capability, times ten, that it compiles for."""

    @property
    def name(self) -> str:
        """The kernel with what sets this variant apart."""
        macros = ", ".join(f"{key.removeprefix('DS_').lower()}={value}" for key, value in self.defines)
        return f"{self.kernel}[{macros}]"

    def options(self) -> tuple[str, ...]:
        """What the compiler is called with."""
        return OPTIONS + tuple(f"-D{key}={value}" for key, value in self.defines)


@cache
def folder() -> Path:
    """Return the folder of the CUDA sources: beside this package in a checkout, inside it where it was installed.

    Raises
    ------
    FileNotFoundError
        When it is in neither place.
    """
    package = Path(__file__).parents[1]
    for place in (package / "cuda", package.parent / "cuda"):
        if (place / "types.cuh").exists():
            return place
    raise FileNotFoundError(f"the CUDA sources are neither in {package} nor beside it: install dualsoft again")


@cache
def assemble(source: str) -> str:
    """Return a source file with its includes inlined, each once, where it is first asked for."""
    done: set[str] = set()

    def inlined(name: str) -> str:
        done.add(name)
        lines = [f'#line 1 "{name}"']
        for number, line in enumerate((folder() / name).read_text(encoding="utf-8").splitlines(), start=1):
            included = _INCLUDE.match(line)
            if included is None:
                lines.append("" if line == _PRAGMA_ONCE.strip() else line)
            elif included[1] in done:
                lines.append("")
            else:
                lines += [inlined(included[1]), f'#line {number + 1} "{name}"']
        return "\n".join(lines)

    return inlined(source) + "\n"


def load(cp: ModuleType, variant: Variant) -> Any:
    """Return the kernel of a variant for CuPy's current device, compiled at its first use and cached on disk by CuPy.

    Raises
    ------
    RuntimeError
        When it does not compile: the compiler's words and the options.
    """
    options = variant.options()
    module = cp.RawModule(code=assemble(variant.source), options=options)
    try:
        return module.get_function(variant.kernel)
    except cp.cuda.compiler.CompileException as error:
        raise RuntimeError(
            f"NVRTC does not compile {variant.source} with {' '.join(options)}; please report this with what it says:\n"
            f"{error}"
        ) from error
