"""Attention on a device: integers that the host never reads, and what bad ones do; results that stay on the device."""

from collections.abc import Iterator
from typing import Any

import attention_oracle
import devices
import emulator
import numpy as np
import pytest
from attention_cases import Shape, operands
from tolerance import attention_mismatch

import dualsoft as ds

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
QUERIES = pytest.mark.parametrize("queries", [1, 20])


@pytest.fixture
def cp() -> Iterator[Any]:
    with ds.use_backend(NAME):
        yield devices.module(NAME)


def made(queries: int) -> tuple[Any, Any, Any]:
    return operands("f32", Shape((3,), 4, 2, queries, 40, 8, 8))


def attend(cp: Any, function: Any, *arrays: Any, **options: Any) -> tuple[Any, Any]:
    placed = [cp.asarray(x) for x in arrays]
    moved = {name: cp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    with emulator.settings(host_reads=False):
        out, lse = function(*placed, return_lse=True, **moved)
    assert type(out) is type(lse) is emulator.ndarray
    return out.get(), lse.get()


@QUERIES
def test_integers_on_the_device(queries: int, cp: Any) -> None:
    q, k, v = made(queries)
    options: dict[str, Any] = {
        "kv_lengths": np.array([40, 7, 0]),
        "causal": True,
        "causal_offset": np.array([30, 0, 4]),
    }
    why = attention_mismatch(
        *attend(cp, ds.attention, q, k, v, **options), attention_oracle.attention(q, k, v, **options)
    )
    assert not why, why


@QUERIES
@pytest.mark.parametrize("bad", [-1, 41, 2**62, -(2**62)])
def test_a_bad_length(bad: int, queries: int, cp: Any) -> None:
    q, k, v = made(queries)
    out, lse = attend(cp, ds.attention, q, k, v, kv_lengths=np.array([40, bad, 9]))
    want, want_lse = attend(cp, ds.attention, q, k, v, kv_lengths=np.array([40, 0, 9]))
    for got, right in ((out, want), (lse, want_lse)):
        assert np.isnan(got[1]).all()
        np.testing.assert_array_equal(got[[0, 2]], right[[0, 2]])


@QUERIES
@pytest.mark.parametrize("bad", [-1, 9, 2**40])
def test_a_bad_page(bad: int, queries: int, cp: Any) -> None:
    q = made(queries)[0]
    k, v = (operands("f32", Shape((9,), 4, 2, 1, 16, 8, 8))[n] for n in (1, 2))
    table = np.array([[0, 1, 2], [3, bad, 5], [6, 7, 8]])
    out, _ = attend(cp, ds.attention_paged, q, k, v, table, np.array([48, 20, 16]))
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()
    unused, _ = attend(cp, ds.attention_paged, q, k, v, table, np.array([48, 16, 16]))
    assert np.isfinite(unused).all()


@pytest.mark.parametrize("bad", [[0, 30, 20, 60], [0, 20, 99, 60], [-5, 20, 30, 60], [0, 20, 30, 2**50]])
def test_bad_starts(bad: list[int], cp: Any) -> None:
    """Rows that a bad entry concerns are NaN, and nothing outside the arrays is touched."""
    q, k, v = operands("f32", Shape((), 4, 2, 60, 60, 8, 8))
    good = np.array([0, 20, 30, 60])
    out, _ = attend(cp, ds.attention_varlen, q, k, v, np.array(bad), good)
    assert np.isnan(out).any()
    out, _ = attend(cp, ds.attention_varlen, q, k, v, good, np.array(bad))
    assert np.isnan(out).any()
    out, lse = attend(cp, ds.attention_varlen, q, k, v, good, good)
    alone = attend(cp, ds.attention, q[:, 20:30], k[:, 20:30], v[:, 20:30])
    np.testing.assert_array_equal(out[:, 20:30], alone[0])
    np.testing.assert_array_equal(lse[:, 20:30], alone[1])


def test_states_merge_on_the_device(cp: Any) -> None:
    q, k, v = made(5)
    parts = [
        ds.attention_state(*(cp.asarray(x) for x in (q, k[:, :, at], v[:, :, at])), key_start=at.start, key_total=40)
        for at in (slice(0, 13), slice(13, 40))
    ]
    out, lse = (parts[0] | parts[1]).finalize()
    why = attention_mismatch(out.get(), lse.get(), attention_oracle.attention(q, k, v), more=1e-6)
    assert not why, why
