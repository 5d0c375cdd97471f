"""Peak memory of large reductions, and indices beyond 32 bits."""

import sys

import numpy as np
import oracle
import pytest
from conftest import USABLE
from oracle import Expected
from process import run_code
from tolerance import mismatch

import dualsoft as ds

MIB = 2**20
needs_kernels = pytest.mark.skipif(not any(":" in name for name in USABLE), reason="no compiled level can be used here")
linux = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux counts it")

PEAK = """
import resource, sys
import numpy as np, dualsoft as ds
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
x = np.full((16384, 16384), 0.5, np.float32)
where = np.ones((16384, 1), bool)
small = x[:64]
calls = {
    "rows": lambda x: ds.logsumexp(x, 1),
    "columns": lambda x: ds.logsumexp(x, 0),
    "all": lambda x: ds.logsumexp(x),
    "strided": lambda x: ds.logsumexp(x[::-1, ::2], 1),
    "weights, where and scale": lambda x: ds.logsumexp(x, 1, b=x[:1], where=where[: len(x)], scale=2),
    "state": lambda x: ds.softmax_state(x, 1).lse,
    "softmax in place": lambda x: ds.softmax(x, 1, out=x),
    "softmax along axis 0 in place": lambda x: ds.softmax(x, 0, out=x),
}
for call in calls.values():
    call(small)
for name, call in calls.items():
    before = peak()
    call(x)
    print(name, peak() - before, sep=":")
"""


@needs_kernels
@linux
def test_a_gibibyte_adds_nothing() -> None:
    """Less than 10 MiB more than the 1 GiB input, threads' scratch included."""
    lines = run_code(PEAK).splitlines()
    added = {name: int(mib) for name, mib in (line.split(":") for line in lines)}
    assert len(added) == 8
    assert max(added.values()) < 10, added


def answer(n: int) -> Expected:
    value = np.log(np.asarray(n, np.longdouble))
    return Expected(value, value, np.zeros_like(value), n)


def test_rows_past_2_to_the_24(backend: str) -> None:
    """A float32 sum of ones would stick at 2^24."""
    n = 2**24 + 2**22 + 3
    for dtype in (np.float32, np.float16):
        x = np.broadcast_to(dtype(0), (1, n))
        why = mismatch("logsumexp", ds.logsumexp(x, 1)[0], answer(n), dtype, backend)
        assert not why, why
    if backend == "reference":
        return
    y = ds.log_softmax(np.broadcast_to(np.float32(0), n))
    assert y[0] == y[-1] == -ds.logsumexp(np.broadcast_to(np.float32(0), n))


@needs_kernels
@pytest.mark.parametrize("shape", [(1, 2**31 + 7), (2, 2**30 + 4)], ids=["one row", "two rows"])
def test_beyond_2_to_the_31(shape: tuple[int, int]) -> None:
    """float64 tells every element of the count; the last one is seen."""
    x = np.zeros(shape, np.int8)
    x[:, -1] = 22
    want = oracle.logsumexp(np.array([22.0, np.log(float(shape[1] - 1))]), 0, np.longdouble)[0]
    for value in ds.logsumexp(x, 1):
        one = Expected(want.value[0], want.magnitude[0], want.spread[0], shape[1])
        assert not mismatch("logsumexp", value, one, np.float64)
