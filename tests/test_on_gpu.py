"""``bench/on_gpu.sh`` without a card: what it would run, and that it goes on after a failure and says so."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from process import ROOT

SCRIPT = ROOT / "bench" / "on_gpu.sh"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

STEPS = {
    "install": "-m pip install",
    "conformance": "gpu_conformance.py",
    "matrix": "-m pytest",
    "cases": "run.py",
    "bench": "-m bench --backend cuda softmax",
    "attention": "-m bench --backend cuda attention",
}
"""The steps, and what is in the command of each alone."""

STAND_IN = """#!/bin/sh
# An interpreter that fails at what FAILS names, and otherwise says what it was called with.
echo "called: $*"
case "$*" in *"$FAILS"*) exit 3 ;; esac
exit 0
"""


def on_gpu(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    path = tmp_path / "interpreter"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return str(path)


def test_a_dry_run_says_what_would_run(tmp_path: Path, stand_in: str) -> None:
    out = tmp_path / "result"
    done = on_gpu("--dry-run", "--cases", "somewhere", "--out", str(out), PYTHON=stand_in, FAILS="nothing")
    assert done.returncode == 0, done.stderr
    log = (out / "log.txt").read_text()
    assert [path.name for path in out.iterdir()] == ["log.txt"]
    for step in STEPS:
        assert f"{step}: would run, for at most " in log
    for key in ("date: 2", "commit: ", "card: ", "driver: ", "CuPy: ", "NVRTC: ", "backend: "):
        assert key in log
    assert "DUALSOFT_TEST_REQUIRE=cuda" in log
    assert log.endswith("nothing has run\n")
    assert all(line in done.stdout for line in log.splitlines())


def test_a_dry_run_leaves_nothing_behind(stand_in: str) -> None:
    before = sorted((ROOT / "bench" / "results").iterdir())
    done = on_gpu("--dry-run", "--no-install", PYTHON=stand_in, FAILS="nothing")
    assert done.returncode == 0, done.stderr
    assert "install: " not in done.stdout
    assert "cases: " not in done.stdout
    assert "bench/results/gpu-" in done.stdout
    assert sorted((ROOT / "bench" / "results").iterdir()) == before


@pytest.mark.parametrize("failing", STEPS)
def test_a_failing_step_stops_no_other(tmp_path: Path, stand_in: str, failing: str) -> None:
    out = tmp_path / "result"
    done = on_gpu("--out", str(out), "--cases", str(tmp_path), PYTHON=stand_in, FAILS=STEPS[failing])
    assert done.returncode == 1, done.stderr
    lines = (out / "log.txt").read_text().splitlines()
    steps = {name: line for line in lines if (name := line.partition(":")[0]) in STEPS and ": status " in line}
    assert list(steps) == list(STEPS)
    assert [name for name, line in steps.items() if "status 3 after" in line] == [failing]
    assert sum("status 0 after" in line for line in steps.values()) == len(STEPS) - 1
    assert lines[-1] == "some steps failed, see above"
    assert {path.name for path in out.iterdir()} == {"log.txt", *(f"{name}.txt" for name in STEPS)}
    assert "called: " in (out / "matrix.txt").read_text()


def test_when_all_pass_it_says_so(tmp_path: Path, stand_in: str) -> None:
    done = on_gpu("--no-install", "--out", str(tmp_path / "result"), PYTHON=stand_in, FAILS="nothing")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "result" / "log.txt").read_text()
    assert log.endswith("all steps passed\n")
    for name in ("bench", "attention"):
        assert str(tmp_path / "result" / f"{name}.json") in log


def test_another_cupy_is_not_installed_beside_one(tmp_path: Path, stand_in: str) -> None:
    with_cupy = on_gpu("--dry-run", PYTHON=stand_in, FAILS="nothing").stdout
    without = on_gpu("--dry-run", PYTHON=stand_in, FAILS="import cupy").stdout
    assert "pip install -e .[test]" in with_cupy
    assert "pip install -e .[test-cuda]" in without


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--out",)])
def test_wrong_command_lines(arguments: tuple[str, ...]) -> None:
    assert on_gpu(*arguments).returncode == 2
    assert on_gpu("--dry-run", PYTHON="no-such-interpreter").returncode == 2


def test_shellcheck_has_nothing_to_say() -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([program, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
