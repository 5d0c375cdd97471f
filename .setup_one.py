"""The build: one extension module per ISA level from one Cython source. Everything declarative is in pyproject.toml."""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, ExecError, PlatformError

LEVELS = {
    "x86_64": {
        "x86_64_v2": ["-march=x86-64-v2"],
        "x86_64_v3": ["-march=x86-64-v3"],
        "x86_64_v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
        "x86_64_v4_bf16": ["-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512bf16"],
    },
    "aarch64": {"aarch64": ["-march=armv8-a"]},
}
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
# Contraction and fast-math would change results: a fused multiply-add is written where it is meant.
FLAGS = [
    "-O3",
    "-std=c++17",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
    "-Wno-unknown-warning-option",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]
HEADERS = sorted(str(p) for p in Path("cysrc").glob("*.hpp"))
SOURCES = sorted(str(p) for p in Path("cysrc").glob("*.p[xy]*"))
PURE = os.environ.get("DUALSOFT_PURE", "") not in ("", "0")


def extensions() -> list[Extension]:
    """One extension per level, each cythonized into a folder of its own so that the object files differ."""
    from Cython.Build import cythonize

    built = cythonize(
        [Extension("dualsoft._cpuid", ["cysrc/cpuid.pyx"], language="c++", extra_compile_args=["-O1", "-std=c++17"])],
        build_dir="build/cython/cpuid",
        quiet=True,
    )
    for level, flags in LEVELS[MACHINE].items():
        extension = Extension(
            f"dualsoft._simd_{level}",
            ["cysrc/kernels.pyx"],
            include_dirs=["cysrc"],
            language="c++",
            depends=HEADERS + SOURCES,
            extra_compile_args=[*FLAGS, *flags],
        )
        built += cythonize([extension], build_dir=f"build/cython/{level}", include_path=["cysrc"], quiet=True)
        # after cythonize: a string macro it would carry over into the levels that follow
        built[-1].define_macros = [("DS_LEVEL", f'"{level}"')]
    return built


class BuildKernels(build_ext):
    """Adds OpenMP where the compiler has it, and says what to install where there is no compiler."""

    def build_extensions(self) -> None:
        if not self._compiles("int main() { return 0; }"):
            raise PlatformError(
                "dualsoft's kernels need a C++17 compiler (GCC 12, Clang 14 or newer) and none works here. Install one "
                "(Debian and Ubuntu: g++; Fedora: gcc-c++; macOS: the Xcode command line tools) or set CXX, "
                "or set DUALSOFT_PURE=1 to build without kernels: slow, NumPy only."
            )
        openmp = (
            ["-fopenmp"]
            if self._compiles("#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }", ["-fopenmp"])
            else []
        )
        if not openmp:
            print("dualsoft: the compiler has no OpenMP; the kernels will use one thread", file=sys.stderr)
        for extension in self.extensions:
            if extension.name.startswith("dualsoft._simd_"):
                extension.extra_compile_args += openmp
                extension.extra_link_args += openmp
        # Two levels at a time use both cores of a small machine and stay within its memory.
        self.parallel = self.parallel or min(2, os.cpu_count() or 1)
        super().build_extensions()

    def _compiles(self, source: str, flags: list[str] | None = None) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "probe.cpp")
            path.write_text(source)
            try:
                objects = self.compiler.compile(
                    [str(path)], output_dir=folder, extra_postargs=["-std=c++17", *(flags or [])]
                )
                self.compiler.link_executable(
                    objects, "probe", output_dir=folder, extra_postargs=flags or [], target_lang="c++"
                )
            except (CompileError, ExecError, OSError, subprocess.SubprocessError):
                return False
            except (
                Exception
            ) as error:  # distutils raises its own LinkError, which setuptools does not export everywhere
                if type(error).__name__ in ("LinkError", "DistutilsExecError", "CompileError"):
                    return False
                raise
        return True


if PURE:
    print("dualsoft: DUALSOFT_PURE is set, building without kernels", file=sys.stderr)
elif MACHINE not in LEVELS:
    raise PlatformError(f"dualsoft has no kernels for {MACHINE}; set DUALSOFT_PURE=1 to build without kernels")

LEVELS[MACHINE] = {k: v for k, v in LEVELS[MACHINE].items() if k == "x86_64_v2"}
setup(ext_modules=[] if PURE else extensions(), cmdclass={"build_ext": BuildKernels})
