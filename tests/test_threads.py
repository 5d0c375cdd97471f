"""The number of threads: for the process, for a block, from the environment."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import USABLE
from process import python, run_code

import dualsoft as ds

SHOW = "import dualsoft as ds; print(ds.get_num_threads())"
needs_kernels = pytest.mark.skipif(not any(":" in name for name in USABLE), reason="no compiled level can be used here")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    ds.set_num_threads(None)


def test_process_and_block() -> None:
    ds.set_num_threads(3)
    assert ds.get_num_threads() == 3
    with ds.num_threads(2):
        assert ds.get_num_threads() == 2
        with ds.num_threads(1):
            assert ds.get_num_threads() == 1
        ds.set_num_threads(5)
        assert ds.get_num_threads() == 2
    assert ds.get_num_threads() == 5
    with pytest.raises(ZeroDivisionError), ds.num_threads(7):
        raise ZeroDivisionError
    assert ds.get_num_threads() == 5


def test_a_block_is_this_threads_own() -> None:
    seen: list[int] = []
    ds.set_num_threads(4)
    with ds.num_threads(2):
        other = threading.Thread(target=lambda: seen.append(ds.get_num_threads()))
        other.start()
        other.join()
    assert seen == [4]


@pytest.mark.parametrize("bad", [0, -1, 10**9])
@pytest.mark.parametrize("f", [ds.set_num_threads, ds.num_threads], ids=lambda f: f.__name__)
def test_out_of_range(f: Any, bad: int) -> None:
    with pytest.raises(ValueError, match=str(bad)):
        f(bad)


@pytest.mark.parametrize("bad", [True, 2.0, "2", [2]])
@pytest.mark.parametrize("f", [ds.set_num_threads, ds.num_threads], ids=lambda f: f.__name__)
def test_no_integer(f: Any, bad: Any) -> None:
    with pytest.raises(TypeError, match="integer"):
        f(bad)
    if f is ds.num_threads:
        with pytest.raises(TypeError, match="integer"):
            f(None)


def test_environment() -> None:
    assert run_code(SHOW, DUALSOFT_NUM_THREADS="3") == "3"
    assert (
        run_code("import dualsoft as ds; ds.set_num_threads(2); print(ds.get_num_threads())", DUALSOFT_NUM_THREADS="3")
        == "2"
    )


@pytest.mark.parametrize("bad", ["0", "-2", "two", "1.5"])
def test_environment_nonsense(bad: str) -> None:
    done = python("-c", SHOW, DUALSOFT_NUM_THREADS=bad)
    assert done.returncode
    assert "DUALSOFT_NUM_THREADS" in done.stderr.splitlines()[-1]
    assert bad.strip("-") in done.stderr.splitlines()[-1]


@needs_kernels
def test_openmp_decides_by_default() -> None:
    code = "import dualsoft as ds; from dualsoft import isa; print(isa.load(isa.chosen()).OPENMP, ds.get_num_threads())"
    openmp, threads = run_code(code, OMP_NUM_THREADS="3").split()
    assert threads == ("3" if openmp == "True" else "1")


@needs_kernels
def test_threadpoolctl_is_obeyed() -> None:
    pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    code = """
import dualsoft as ds, threadpoolctl
from dualsoft import isa
openmp = isa.load(isa.chosen()).OPENMP
with threadpoolctl.threadpool_limits(1, user_api="openmp"):
    print(openmp, ds.get_num_threads())
"""
    assert run_code(code, OMP_NUM_THREADS="3").split()[1] == "1"


def test_waiting_threads_sleep_soon_unless_told_otherwise() -> None:
    """The policy is set for the loading of OpenMP alone: neither this process nor its children keep the variable."""
    show = "import os, dualsoft as ds; ds.softmax([0.0, 1.0]); print(os.environ.get('GOMP_SPINCOUNT'))"
    assert run_code(show) == "None"
    assert run_code(show, GOMP_SPINCOUNT="77") == "77"
