"""Bits: a row's result depends on its values, length, stride, dtype, options and the ISA level, and on nothing else."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cases import DTYPES, normal
from process import python

import dualsoft as ds

Array = np.ndarray[Any, Any]
LENGTHS = (1, 3, 15, 16, 17, 33, 64, 70, 255, 1025, 4097, 16385, 70001)


def by_rows(function: Callable[..., Array]) -> Callable[[Array, int], Array]:
    """The function of a 2-D array with its rows first, whichever axis it goes along."""

    def along(x: Array, axis: int) -> Array:
        y = function(x, axis)
        return np.moveaxis(y, axis, -1) if y.shape == x.shape else y

    return along


def state_arrays(x: Array, axis: int) -> Array:
    state = ds.softmax_state(x, axis)
    return np.stack([state.m, state.d, state.lse], -1)


def weighted(x: Array, axis: int) -> Array:
    b = np.linspace(-1, 3, x.shape[axis]).astype(x.dtype)
    return ds.logsumexp(x, axis, b if axis == 1 else b[:, None], return_sign=True)[0]


FUNCTIONS: dict[str, Callable[[Array, int], Array]] = {
    "softmax": by_rows(ds.softmax),
    "log_softmax": by_rows(ds.log_softmax),
    "logsumexp": ds.logsumexp,
    "weighted logsumexp": weighted,
    "state": state_arrays,
    "cumulative": by_rows(ds.cumulative_logsumexp),
}


def same_bits(got: Array, want: Array, label: str) -> None:
    np.testing.assert_array_equal(
        np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(want).view(np.uint8), err_msg=label
    )


@pytest.fixture(params=DTYPES)
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FUNCTIONS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_row_alone_and_anywhere_in_a_batch(name: str, key: str, backend: str) -> None:
    f = FUNCTIONS[name]
    for n in LENGTHS if (name, backend) != ("cumulative", "reference") else LENGTHS[:9]:  # that is a loop in Python
        rows = 40 if n < 2000 else 5
        x = normal(key, rows, n)
        batch = f(x, 1)
        for i in sorted({0, 1, rows // 2, rows - 1}):
            same_bits(f(x[i : i + 1], 1)[0], batch[i], f"row {i} of {rows}, n={n}")
        order = np.random.default_rng(0).permutation(rows)
        same_bits(f(x[order], 1), batch[order], f"shuffled batch, n={n}")


def test_column_alone_and_anywhere_in_a_batch(name: str, key: str, backend: str) -> None:
    """Along axis 0 the stride is that of the batch: a column is cut out of it as a view."""
    f = FUNCTIONS[name]
    for n in (1, 2, 17, 70, 300, 5001):
        x = normal(key, n, 39)
        batch = f(x, 0)
        for j in (0, 1, 8, 15, 16, 31, 32, 38):
            same_bits(f(x[:, j : j + 1], 0)[0], batch[j], f"column {j}, n={n}")
        same_bits(f(x[:, 3:30], 0), batch[3:30], f"columns 3 to 30, n={n}")


def test_threads(name: str, key: str, level: str) -> None:
    f = FUNCTIONS[name]
    for shape in ((1, 200001), (3, 70001), (257, 1000), (4001, 16)):
        x = normal(key, *shape)
        for axis, a in ((1, x), (0, np.ascontiguousarray(x.T))):
            with ds.num_threads(1):
                want = f(a, axis)
            for threads in (2, 3, 4):
                with ds.num_threads(threads):
                    same_bits(f(a, axis), want, f"{threads} threads, shape {a.shape}, axis {axis}")
            same_bits(f(a, axis), want, "the default number of threads")


def test_repeated_runs(name: str, key: str, backend: str) -> None:
    x = normal(key, 7, 20001)
    want = FUNCTIONS[name](x, 1)
    for _ in range(5):
        same_bits(FUNCTIONS[name](x, 1), want, "a later run")


@pytest.mark.parametrize("function", [ds.softmax, ds.log_softmax], ids=lambda f: f.__name__)
def test_equal_elements_give_equal_outputs(function: Any, key: str, backend: str) -> None:
    """Wherever they stand: vector body, tail, another block, another thread."""
    for n in (*range(2, 71), 129, 1025, 4099, 70001):
        values = normal(key, 5)
        for x, axis in ((values[np.arange(n) % 5], 0), (np.stack([values[np.arange(n) % 5]] * 3, 1), 0)):
            y = function(x, axis)
            for k in range(min(5, n)):
                assert len(np.unique(y[k::5].astype(np.float64))) == 1, f"n={n}, element {k}, ndim={x.ndim}"


@pytest.mark.parametrize("function", [ds.softmax, ds.log_softmax], ids=lambda f: f.__name__)
def test_swapping_body_and_tail(function: Any, key: str, backend: str) -> None:
    """Terms that are exact in any order: a permutation of the row permutes the bits of the result."""
    random = np.random.default_rng(4)
    for n in (5, 16, 19, 37, 70, 300, 1027):
        x = np.full(n, -1e4 if key != "f16" else -6e4).astype(DTYPES[key])  # exp gives exactly 0
        x[:3] = 0
        y = function(x)
        for _ in range(10):
            order = random.permutation(n)
            same_bits(function(np.ascontiguousarray(x[order])), y[order], f"n={n}")


def test_python_threads(key: str, level: str) -> None:
    """Calls from several threads at once, each in its own context."""
    inputs = [normal(key, 9, 5000 + k, seed=k) for k in range(8)]
    want = [[f(x, 1) for f in FUNCTIONS.values()] for x in inputs]

    def work(k: int) -> list[Array]:
        with ds.use_backend(level), ds.num_threads(1 + k % 3):
            return [f(inputs[k % 8], 1) for f in FUNCTIONS.values()]

    with ThreadPoolExecutor(6) as pool:
        for k, got in enumerate(pool.map(work, range(24))):
            for a, b, name in zip(got, want[k % 8], FUNCTIONS, strict=True):
                same_bits(a, b, f"call {k}, {name}")


FORK = """
import os, sys, warnings
import numpy as np, dualsoft as ds
warnings.simplefilter("ignore")
x = np.random.default_rng(0).standard_normal((64, 70001), dtype=np.float32)
with ds.use_backend(sys.argv[1]), ds.num_threads(2):
    want = ds.softmax(x, 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(ds.softmax(x, 1), want) else 3)
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
    assert np.array_equal(ds.softmax(x, 1), want), "the parent after the fork"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_a_threaded_call(backend: str) -> None:
    done = python("-c", FORK, backend, timeout=60)
    assert done.returncode == 0, done.stderr
