"""The headers' own C++ tests: each ISA level by GCC and Clang, with sanitizers, and for aarch64 under qemu."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from process import ROOT

from dualsoft import isa

PROGRAMS = ("test_simd", "test_attention", "test_gradients")
# The flags of setup.py that decide results. GCC 12 takes the don't-care operands of its own AVX-512 intrinsics for
# uninitialized variables; Clang, which does not know one of the two options, says so unless told not to. OpenMP stays
# off: the sanitizers know nothing of its threads, and the work is cut for several all the same.
FLAGS = (
    "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-warning-option", "-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized",
    "-Wno-unknown-pragmas",
)  # fmt: skip
SANITIZE = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
X86 = {
    "x86_64_v2": ("-march=x86-64-v2",),
    "x86_64_v3": ("-march=x86-64-v3",),
    "x86_64_v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "x86_64_v4_bf16": ("-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512bf16"),
}
CROSS = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
EMULATED_SHARE = "4"
"""An emulator takes a quarter of the random arguments and calls."""


def compile_and_run(
    name: str,
    compiler: str,
    flags: tuple[str, ...],
    where: Path,
    runner: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
) -> str:
    """Build a test program, run it and return what it printed: a line for each group of checks."""
    source, program = ROOT / "cysrc" / "tests" / f"{name}.cpp", where / name
    command = [compiler, *FLAGS, *flags, f"-I{ROOT / 'cysrc'}", str(source), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr[-4000:]
    done = subprocess.run([*runner, str(program), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.endswith("all checks passed\n"), done.stdout[-4000:]
    print(done.stdout)
    return done.stdout


def require(level: str, compiler: str) -> None:
    if platform.machine() != "x86_64":
        pytest.skip(f"{level} needs an x86_64 processor")
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not on PATH")
    if level not in isa.runnable():
        pytest.skip(f"this processor cannot run {level} ({isa.LEVELS[level].needs}), or _cpuid is not built")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("level", X86)
@pytest.mark.parametrize("program", PROGRAMS)
def test_x86_64(program: str, level: str, compiler: str, tmp_path: Path) -> None:
    require(level, compiler)
    printed = compile_and_run(program, compiler, ("-O1", *X86[level]), tmp_path)
    assert f"fused multiply-add: {'no' if level == 'x86_64_v2' else 'yes'}" in printed
    if program == "test_attention":
        assert f"pairs of bfloat16: {'yes' if level == 'x86_64_v4_bf16' else 'no'}" in printed


@pytest.mark.parametrize(
    ("program", "level", "share"),
    [
        ("test_simd", "x86_64_v3", "4"),
        ("test_attention", "x86_64_v3", "4"),
        ("test_attention", "x86_64_v4_bf16", "8"),
        ("test_gradients", "x86_64_v3", "4"),
        ("test_gradients", "x86_64_v4_bf16", "8"),
    ],
)
def test_sanitizers_find_nothing(program: str, level: str, share: str, tmp_path: Path) -> None:
    """On the level whose code is closest to the others': buffers where v4 has masks, integers where it has scalef.

    Pairs of bfloat16 are one level's alone.
    """
    require(level, "g++")
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() { return 0; }")
    command = ["g++", *SANITIZE, str(probe), "-o", str(tmp_path / "probe")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("g++ has no sanitizer libraries here (Debian: libasan, libubsan)")
    compile_and_run(program, "g++", (*SANITIZE, *X86[level]), tmp_path, arguments=(share,))


@pytest.mark.parametrize("program", PROGRAMS)
def test_aarch64(program: str, tmp_path: Path) -> None:
    if platform.machine() == "aarch64":
        compile_and_run(program, "g++", ("-O1",), tmp_path)
        return
    for tool, package in ((CROSS, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on PATH (Debian: {package})")
    printed = compile_and_run(
        program,
        CROSS,
        ("-O1", "-march=armv8-a", "-static"),
        tmp_path,
        runner=(EMULATOR,),
        arguments=(EMULATED_SHARE,),
    )
    assert printed.startswith("registers of 16 bytes, fused multiply-add: yes")


@pytest.mark.parametrize("header", sorted(path.name for path in (ROOT / "cysrc").glob("*.hpp")))
def test_headers_stand_alone_on_aarch64(header: str, tmp_path: Path) -> None:
    """Each includes what it uses; what no test program instantiates is at least read."""
    if shutil.which(CROSS) is None:
        pytest.skip(f"{CROSS} is not on PATH (Debian: g++-aarch64-linux-gnu)")
    alone = tmp_path / "alone.cpp"
    alone.write_text(f'#include "{header}"\nint main() {{ return 0; }}\n')
    flags = (*FLAGS, "-Wno-unused-function", "-march=armv8-a", "-fsyntax-only", f"-I{ROOT / 'cysrc'}")
    done = subprocess.run([CROSS, *flags, str(alone)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
