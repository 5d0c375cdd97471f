"""What a KVCache refuses, and that a refused call has changed nothing."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cache_model import HEAD_DIM, HEAD_DIM_V, HEADS, Model, check, layouts, new, tokens

import dualsoft as ds

GOOD: dict[str, Any] = {"batch": 2, "kv_heads": 2, "capacity": 4, "head_dim": 3, "dtype": np.float32}


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("batch", -1, ValueError), ("batch", 1.0, TypeError), ("batch", True, TypeError), ("kv_heads", 0, ValueError),
        ("kv_heads", "2", TypeError), ("capacity", -1, ValueError), ("capacity", None, TypeError),
        ("head_dim", 0, ValueError), ("head_dim_v", 0, ValueError), ("page_size", 0, ValueError),
        ("page_size", 2.5, TypeError), ("dtype", None, TypeError), ("dtype", np.int32, TypeError),
        ("dtype", np.complex64, TypeError), ("dtype", ml_dtypes.float8_e4m3fn, TypeError),
        ("like", [[1], [2, 3]], ValueError),
    ],
)  # fmt: skip
def test_refused_sizes(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        ds.KVCache(**GOOD | {name: value})


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 2**70}, {"kv_heads": 2**61}, {"capacity": 2**62}, {"head_dim": 2**62}, {"head_dim_v": 2**62},
        {"batch": 2**62, "capacity": 0}, {"page_size": 2**62}, {"page_size": 2**62, "capacity": 0},
        {"capacity": 2**62, "page_size": 1}, {"batch": 2**31, "capacity": 2**30},
    ],
)  # fmt: skip
def test_sizes_beyond_any_memory(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="batch, kv_heads, capacity, head_dim, head_dim_v and page_size together"):
        ds.KVCache(**GOOD | wrong)


K, V = np.ones((2, HEADS, 3, HEAD_DIM), np.float32), np.ones((2, HEADS, 3, HEAD_DIM_V), np.float32)
ERRORS: dict[str, tuple[Callable[[ds.KVCache], Any], type[Exception], str]] = {
    "k of another rank": (lambda c: c.append(K[0], V), ValueError, r"k must have the shape .*\(2, 2, tokens, 3\), got"),
    "k of another batch": (lambda c: c.append(K[:1], V), ValueError, "k must have the shape"),
    "v of other heads": (lambda c: c.append(K, V[:, :1]), ValueError, "v must have the shape"),
    "v of another head_dim": (lambda c: c.append(K, K), ValueError, "head_dim_v"),
    "counts that differ": (lambda c: c.append(K, V[:, :, :2]), ValueError, "same number of tokens, got 3 and 2"),
    "complex": (lambda c: c.append(K, V * 1j), TypeError, "v must be real"),
    "strings": (lambda c: c.append(K.astype(str), V), TypeError, "k must be real"),
    "masked": (lambda c: c.append(np.ma.masked_array(K), V), TypeError, "masked"),
    "too many": (lambda c: c.append(K, V), ValueError, "sequence 1 holds 4 tokens and 3 more.*7 .*capacity of 6"),
    "a length below 0": (lambda c: c.append(K, V, [-1, 0]), ValueError, r"lengths\[0\]"),
    "a length above": (lambda c: c.append(K, V, [0, 4]), ValueError, r"lengths\[1\].* 3, got 4"),
    "a length for one only": (lambda c: c.append(K, V, [1]), ValueError, r"each of 2 sequences, got the shape \(1,\)"),
    "lengths that are not integers": (lambda c: c.append(K, V, [1.0, 1.0]), TypeError, "lengths must be integers"),
    "lengths that are bool": (lambda c: c.append(K, V, [True, False]), TypeError, "lengths must be integers"),
    "truncate to more": (lambda c: c.truncate([3, 4]), ValueError, r"lengths\[0\].* 2 tokens.* got 3"),
    "truncate below 0": (lambda c: c.truncate(-1), ValueError, "lengths"),
    "truncate to None": (lambda c: c.truncate(None), TypeError, "lengths"),
    "reorder of one": (lambda c: c.reorder([0]), ValueError, "2 sequences"),
    "reorder of none there": (lambda c: c.reorder([0, 2]), ValueError, r"batch_index\[1\] is 2, .* 2 sequences"),
    "reorder by bool": (lambda c: c.reorder([True, False]), TypeError, "batch_index"),
    "fork of a matrix": (lambda c: c.fork([[0]]), ValueError, "batch_index"),
    "fork of an integer": (lambda c: c.fork(0), ValueError, "batch_index"),
    "fork of none there": (lambda c: c.fork([-3]), ValueError, "batch_index"),
    "fork by floats": (lambda c: c.fork([0.0]), TypeError, "batch_index"),
}  # fmt: skip


@layouts
@pytest.mark.parametrize("what", ERRORS)
def test_errors_write_nothing(page_size: int | None, what: str) -> None:
    call, error, message = ERRORS[what]
    rng = np.random.default_rng(11)
    cache, model = new(2, 6, page_size), Model(2)
    k, v = tokens(rng, 2, 4)
    cache.append(k, v, [2, 4])
    model.append(k, v, [2, 4])

    def memory() -> tuple[Any, ...]:
        return (cache.k, cache.v) if page_size is None else (cache.k_pages, cache.v_pages, cache.page_table)

    copies = [x.copy() for x in memory()]
    with pytest.raises(error, match=message):
        call(cache)
    check(cache, model)
    for now, before in zip(memory(), copies, strict=True):
        np.testing.assert_array_equal(now, before)
