"""Peak memory of attention over long sequences, and offsets beyond 32 bits."""

import sys

import attention_oracle
import numpy as np
import pytest
from conftest import USABLE
from process import run_code
from tolerance import attention_mismatch

import dualsoft as ds

needs_kernels = pytest.mark.skipif(not any(":" in name for name in USABLE), reason="no compiled level can be used here")
linux = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux counts it")

# One head of 16384 queries and keys has a GiB of scores in float32; 65536 within a window have 16 GiB.
PEAK = """
import resource, sys
import numpy as np, dualsoft as ds
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
def operands(n, dtype=np.float32, d=32):
    return [np.random.default_rng(0).standard_normal((n, d), dtype=np.float32).astype(dtype) for _ in range(3)]
n = 16384
long, longer = operands(n), operands(4 * n)
half = operands(n, np.float16)
bias, mask = np.zeros((1, n), np.float32), np.ones((n, 1), bool)
blocks = ds.BlockMask(np.eye(n // 256, dtype=bool), 256, 256)
starts = np.arange(0, n + 1, n // 4)
calls = {
    "full": lambda s: ds.attention(*(x[s] for x in long), return_lse=True),
    "causal": lambda s: ds.attention(*(x[s] for x in long), causal=True),
    "half": lambda s: ds.attention(*(x[s] for x in half), causal=True),
    "mask, bias and softcap": lambda s: ds.attention(
        *(x[s] for x in long), mask=mask[s], bias=bias[:, s], softcap=30, causal=True),
    "blocks": lambda s: ds.attention(*long, block_mask=blocks),
    "window": lambda s: ds.attention(*(x[s] for x in longer), causal=True, window=(255, 0)),
    "state": lambda s: ds.attention_state(*(x[s] for x in long), causal=True),
    "decode": lambda s: ds.attention(longer[0][:1], longer[1][s], longer[2][s]),
    "varlen": lambda s: ds.attention_varlen(*(x[None] for x in long), starts, starts, causal=True),
}
for call in calls.values():
    call(slice(0, 600))
for name, call in calls.items():
    before = peak()
    call(slice(None))
    print(name, peak() - before, sep=":")
"""


@needs_kernels
@linux
def test_no_scores_are_stored() -> None:
    """The result (2 to 8 MiB) and tiles; less than a row of scores for each thread."""
    lines = run_code(PEAK).splitlines()
    added = {name: int(mib) for name, mib in (line.split(":") for line in lines)}
    assert len(added) == 9
    assert max(added.values()) < 32, added


@needs_kernels
@pytest.mark.parametrize("axis", ["keys", "head dim", "heads"])
def test_offsets_beyond_2_to_the_31(axis: str) -> None:
    """A view whose elements lie more than 2^31 apart; only the pages that it touches exist."""
    step = 2**26 + 16
    shape, strides = {
        "keys": ((1, 40, 4), (0, step, 1)),
        "head dim": ((1, 40, 40), (0, 1, step)),
        "heads": ((40, 8, 4), (step, 4, 1)),
    }[axis]
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    assert last > 2**31
    try:
        pool = np.zeros(last + 1, np.float16)
    except MemoryError:
        pytest.skip("this system does not lend 5 GiB of addresses")
    k = np.lib.stride_tricks.as_strided(pool, shape, [2 * s for s in strides])
    content = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    k[...] = content
    q = np.random.default_rng(1).standard_normal((shape[0], 5, shape[2])).astype(np.float16)
    for options in ({}, {"causal": True}):
        want = attention_oracle.attention(q, content, content, **options)
        why = attention_mismatch(*ds.attention(q, k, k, return_lse=True, **options), want)
        assert not why, why
        want = attention_oracle.attention(q[:, :1], content, content, **options)
        why = attention_mismatch(*ds.attention(q[:, :1], k, k, return_lse=True, **options), want)
        assert not why, why


@needs_kernels
def test_more_keys_than_float32_counts() -> None:
    """2^24 + 3 equal scores: a float32 sum of ones would stick at 2^24."""
    n = 2**24 + 2**22 + 3
    k = np.broadcast_to(np.float32(0), (n, 1))
    out, lse = ds.attention(np.ones((1, 1), np.float32), k, np.broadcast_to(np.float32(1), (n, 1)), return_lse=True)
    assert abs(float(lse[0]) - np.log(n)) <= 2 * float(ds.accuracy.ulp(np.log(n), np.float32))
    assert abs(float(out[0, 0]) - 1) <= 4 * float(ds.accuracy.ulp(1.0, np.float32))
