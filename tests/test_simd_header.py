"""The SIMD header's own C++ test, compiled for each ISA level with the host's compiler, and for aarch64 under qemu."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from process import ROOT

from dualsoft import isa

SOURCE = ROOT / "cysrc" / "tests" / "test_simd.cpp"
FLAGS = ("-O2", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wno-psabi")
X86 = {"x86_64_v2": "x86-64-v2", "x86_64_v3": "x86-64-v3", "x86_64_v4": "x86-64-v4"}
CROSS = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"


def compile_and_run(compiler: str, flags: tuple[str, ...], runner: tuple[str, ...], where: Path) -> None:
    program = where / "test_simd"
    command = [compiler, *FLAGS, *flags, f"-I{ROOT / 'cysrc'}", str(SOURCE), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr[-4000:]
    assert "warning" not in built.stderr, built.stderr[-4000:]
    done = subprocess.run([*runner, str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    print(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "")


@pytest.mark.parametrize("level", X86)
def test_x86_64(level: str, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("needs g++ on x86_64")
    if level not in isa.runnable():
        pytest.skip(f"this processor cannot run {level} ({isa.LEVELS[level].needs}), or _cpuid is not built")
    compile_and_run(compiler, (f"-march={X86[level]}",), (), tmp_path)


def test_aarch64(tmp_path: Path) -> None:
    if platform.machine() == "aarch64":
        compile_and_run("g++", (), (), tmp_path)
        return
    for tool, package in ((CROSS, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on PATH (Debian: {package})")
    compile_and_run(CROSS, ("-static",), (EMULATOR,), tmp_path)
