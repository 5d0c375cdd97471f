"""Libraries are built once, shared between architectures where they can be, and never half written."""

import os
import subprocess
import sys
from pathlib import Path

import emulator
import pytest
from emulator import BuildError, build
from small_kernels import SKIP

pytestmark = SKIP

PLAIN = 'extern "C" __global__ void kernel(float* y) { y[threadIdx.x] = VALUE; }'
ASYNC = 'extern "C" __global__ void kernel() { asm volatile("cp.async.commit_group;" ::: "memory"); }'
OF_NUMBER = 'extern "C" __global__ void kernel(float* y) { y[0] = __CUDA_ARCH__; }'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of libraries, in use while the test runs."""
    monkeypatch.setenv("DUALSOFT_EMULATOR_CACHE", str(tmp_path))
    return tmp_path


def built(folder: Path) -> int:
    return len(list(folder.glob("kernels_*.so")))


def test_a_library_is_built_once(folder: Path) -> None:
    first = build.kernel_library(PLAIN, ("-DVALUE=1",), 80)
    written = first.stat().st_mtime_ns
    assert build.kernel_library(PLAIN, ("-DVALUE=1",), 80) == first
    assert first.stat().st_mtime_ns == written
    # What the preprocessor takes away makes no other library.
    build.kernel_library(f"{PLAIN} // a comment", ("-DVALUE=1", "-DOTHER=2", "--std=c++17"), 80)
    assert built(folder) == 1
    build.kernel_library(PLAIN, ("-DVALUE=2",), 80)
    assert built(folder) == 2
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize(
    ("text", "architectures", "libraries"),
    [(PLAIN, (75, 80, 90), 1), (ASYNC, (80, 90), 1), (OF_NUMBER, (75, 80, 90), 3)],
    ids=["plain", "of later architectures", "by its number"],
)
def test_architectures_share(folder: Path, text: str, architectures: tuple[int, ...], libraries: int) -> None:
    for architecture in architectures:
        build.kernel_library(text, ("-DVALUE=1",), architecture)
    assert built(folder) == libraries


def test_what_is_there_does_not_hide_what_an_architecture_lacks(folder: Path) -> None:
    build.kernel_library(ASYNC, (), 80)
    with pytest.raises(emulator.CompileException, match="no instruction ptx_cp_async_commit_group"):
        build.kernel_library(ASYNC, (), 75)


def test_processes_may_build_the_same_at_the_same_time(folder: Path) -> None:
    program = f"from emulator import build; print(build.kernel_library({PLAIN!r}, ('-DVALUE=3',), 80).stat().st_size)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    sizes = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(sizes) == 1
    assert not list(folder.glob("*.tmp"))


def test_a_missing_compiler_is_a_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert emulator.why_not() is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in str(emulator.why_not())
    with pytest.raises(BuildError, match="no-such-compiler"):
        build.core_library()


def test_an_unknown_machine_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "sparc64")
    assert "this is sparc64" in str(emulator.why_not())


def test_the_folder_must_be_the_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(BuildError, match="belongs to another user"):
        build.cache_folder()


def test_program_modules_find_asarray(folder: Path) -> None:
    program = (
        "import numpy as np, dualsoft\nfrom emulator import asarrays\n"
        "x = np.arange(6.0).reshape(2, 3)\ny = dualsoft.softmax(asarrays.asarray(x), axis=-1)\n"
        "ulp, _ = dualsoft.accuracy.bound('softmax', x.dtype, n=3, spread=2.0, backend='cuda')\n"
        "near = 2 * ulp * dualsoft.accuracy.unit_roundoff(x.dtype)\n"
        "np.testing.assert_allclose(asarrays.asnumpy(y), dualsoft.algorithms.safe_softmax(x), rtol=near)\n"
        "assert dualsoft.backend_for(y) == 'cuda-emulated:sm_90', dualsoft.backend_for(y)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "DUALSOFT_EMULATED_ARCH": "sm_90"}
    environment.pop("DUALSOFT_EMULATOR_CACHE")
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
