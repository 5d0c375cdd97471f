"""The trace, and the textbook algorithms with their access counts."""

import tracemalloc
from typing import Any

import numpy as np
import oracle
import pytest
from cases import DTYPES, normal
from tolerance import mismatch

import dualsoft as ds
from dualsoft import algorithms

COUNTS = {"naive_softmax": (2, 3), "safe_softmax": (3, 4), "online_softmax": (2, 3)}
EXAMPLE = [2.0, 1.0, 3.0, 0.5]
ROWS = [(None, -np.inf, 0), (2, 2, 1.0), (1, 2, 1.36787944), (3, 3, 1.50321472), (0.5, 3, 1.58529972)]


def test_trace_of_the_worked_example() -> None:
    table = ds.trace(EXAMPLE)
    assert len(table) == len(ROWS)
    for row, want in zip(table, ROWS, strict=True):
        assert (row[0] is None) == (want[0] is None)
        assert row[0] in (None, want[0])
        assert row[1] == want[1]
        np.testing.assert_array_almost_equal_nulp(np.float32(row[2]), np.float32(want[2]))
    assert table[-1][1:] == tuple(table[len(ROWS) - 1])[1:]
    lines = str(table).splitlines()
    assert len(lines) >= len(ROWS) + 1
    for line, words in zip(
        lines[-len(ROWS) :], (("-inf", "0"), ("2",), ("1.3679",), ("1.5032",), ("1.5853",)), strict=True
    ):
        assert all(word in line for word in words), line


def test_trace_is_the_state() -> None:
    x = normal("f64", 200)
    state = ds.softmax_state(x)
    last = ds.trace(x)[-1]
    assert last[1] == state.m
    _, d, _ = oracle.state(x, None, np.longdouble)
    assert not mismatch(
        "softmax_state",
        np.float64(last[2]),
        d._replace(value=d.value[0], spread=d.spread[0], magnitude=d.magnitude[0] * len(x)),
        np.float64,
    )
    assert len(ds.trace([])) == 1


def test_trace_of_special_values() -> None:
    assert ds.trace([-np.inf, 1.0])[-1][1:] == (1, 1)
    assert ds.trace([1.0, np.inf, 2.0])[-1][1:] == (np.inf, np.inf)
    assert np.isnan(ds.trace([1.0, np.nan, 2.0])[-1][2])


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    f = getattr(algorithms, name)
    assert (f.passes, f.accesses_per_element) == COUNTS[name]
    assert f.__doc__
    assert name in f.__name__


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", COUNTS)
def test_values(name: str, key: str) -> None:
    """Plain loops have no blocked sums: their error grows with the row, so the bound is taken once per 16 elements."""
    x = normal(key, 3, 4, 65)
    for axis in (-1, 0, 1):
        want = oracle.softmax(x, axis, oracle.wide_type(x.dtype))
        slack = 1 + x.shape[axis] // 16
        got = getattr(algorithms, name)(x, axis)
        why = mismatch("softmax", got, want._replace(magnitude=want.magnitude * slack), x.dtype)
        assert not why, why


def test_naive_overflows_and_the_others_do_not() -> None:
    x = np.float32([100.0, 0.0])
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(algorithms.naive_softmax(x)).all()
    for f in (algorithms.safe_softmax, algorithms.online_softmax):
        assert f(x)[0] == 1


def test_a_thousand_random_vectors() -> None:
    """Online and safe softmax differ by rounding only."""
    x = np.random.default_rng(0).uniform(-50, 50, (1000, 64))
    online, safe = algorithms.online_softmax(x), algorithms.safe_softmax(x)
    assert np.abs(online - safe).max() < 1e-12


@pytest.mark.parametrize("name", COUNTS)
def test_memory(name: str) -> None:
    """Peak memory beyond the input: the output and a few temporaries of its size, never more."""
    x = np.zeros((64, 4096))
    f: Any = getattr(algorithms, name)
    f(x[:1])
    tracemalloc.start()
    f(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"\n{name}: {peak / x.nbytes:.2f} times the input", end="")
    assert x.nbytes <= peak < 4.1 * x.nbytes
