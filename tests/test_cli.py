"""``python -m dualsoft``: what it prints and its exit status."""

import re
import sys

import pytest
from conftest import USABLE
from process import ROOT, python

import dualsoft as ds

has_kernels = any(":" in name for name in USABLE)


@pytest.mark.skipif(not has_kernels, reason="no compiled level can be used here; test_registry.py has that case")
def test_info_and_self_test() -> None:
    done = python("-m", "dualsoft")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in (
        ds.__version__,
        "numpy",
        "reference",
        "cuda",
        "threads",
        *(name.partition(":")[2] or name for name in USABLE),
    ):
        assert word in done.stdout.lower(), f"{word} not in:\n{done.stdout}"
    for function in (
        "softmax", "log_softmax", "logsumexp", "cumulative_logsumexp", "softmax_state", "normalize", "attention",
        "attention_varlen", "attention_paged", "attention_state", "KVCache", "BlockMask",
    ):  # fmt: skip
        assert re.search(rf"^  {function} +[\d.e+]+ ", done.stdout, re.MULTILINE), f"{function} has no row"
    tables = done.stdout.partition("\nself-test")[0].splitlines()
    columns = {re.match(r"  \S+ +", line).end() for line in tables if line.startswith("  ")}  # type: ignore[union-attr]
    assert len(columns) == 1, f"the second columns begin at {columns}"


@pytest.mark.skipif(not has_kernels, reason="no compiled level can be used here")
def test_what_is_not_tested_is_said() -> None:
    code = """
import runpy, sys
from dualsoft import selftest, speed
found = selftest.importlib.util.find_spec
selftest.importlib.util.find_spec = lambda name, *rest: None if name == "ml_dtypes" else found(name, *rest)
kinds = selftest.all_dtypes()
check = lambda name, kind: selftest.Check(name, "softmax", kind, "case", 0.5)
selftest.run_checks = lambda names, *rest: [check(name, kind) for name in names for kind in kinds]
speed.timings = list
sys.argv = ["dualsoft"]
runpy.run_module("dualsoft", run_name="__main__")
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "bfloat16: not tested, ml_dtypes is not installed" in done.stdout


def test_a_reader_that_leaves_is_no_error() -> None:
    code = f"""
import subprocess, sys
command = [sys.executable, "-m", "dualsoft", "trace", *map(str, range(20000))]
program = subprocess.Popen(command, cwd={str(ROOT)!r}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
program.stdout.read(10)
program.stdout.close()
print(program.stderr.read().decode(), program.wait())
"""
    done = python("-c", code)
    assert done.stdout.split() == ["1"], done.stdout


@pytest.mark.skipif(not has_kernels, reason="no compiled level can be used here")
def test_a_failed_check_shows_in_the_exit_status() -> None:
    """With a bound that nothing can hold, the self-test must fail."""
    code = """
import runpy, sys
from dualsoft import accuracy
accuracy.bound = lambda *a, **k: accuracy.Bound(1e-9, 0.0)
sys.argv = ["dualsoft"]
runpy.run_module("dualsoft", run_name="__main__")
"""
    done = python("-c", code)
    assert done.returncode not in (0, None), done.stdout
    assert "Traceback" not in done.stderr


def test_trace() -> None:
    """The worked example of Milakov and Gimelshein's recurrence."""
    done = python("-m", "dualsoft", "trace", "2", "1", "3", "0.5")
    assert done.returncode == 0, done.stderr
    for number in ("-inf", "1.3679", "1.5032", "1.5853", "0.2321", "0.0854", "0.6308", "0.0518"):
        assert number in done.stdout, f"{number} not in:\n{done.stdout}"


def test_trace_of_negative_numbers_and_infinities() -> None:
    for arguments in (("-1", "-2.5"), ("--", "-1", "-inf", "-2.5")):
        done = python("-m", "dualsoft", "trace", *arguments)
        assert done.returncode == 0, done.stderr
        assert "0.8176" in done.stdout


@pytest.mark.parametrize("arguments", [("trace", "two"), ("trace",), ("nonsense",), ("--nonsense",)])
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    done = python("-m", "dualsoft", *arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr
    assert "Traceback" not in done.stderr


def test_help() -> None:
    done = python("-m", "dualsoft", "--help")
    assert done.returncode == 0
    assert "trace" in done.stdout


def test_import_is_light_and_quiet() -> None:
    """What takes long to import is left until somebody asks for it; nothing but NumPy comes from elsewhere."""
    code = """
import sys, numpy
before = set(sys.modules)
import dualsoft
print(*{name.partition(".")[0] for name in set(sys.modules) - before})
"""
    done = python("-W", "error", "-c", code, cwd=ROOT)
    assert not done.stderr
    new = set(done.stdout.split())
    assert not new & {"asyncio", "ctypes", "importlib_metadata", "multiprocessing", "secrets", "ssl", "unittest"}
    assert new - sys.stdlib_module_names == {"dualsoft"}
