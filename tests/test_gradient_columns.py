"""Gradients of rows that lie side by side, or are short: to the bit those of each row on its own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from cases import DTYPES, normal

import dualsoft as ds

Array = np.ndarray[Any, Any]
# Elements of a row, and rows: more than a tile, several segments, fewer rows than lanes, rows shorter than a register.
SHAPES = ((3, 37), (9, 70), (48, 7), (260, 20), (1025, 65), (5000, 4), (70001, 5))


class Rows(NamedTuple):
    x: Array
    beside: Array
    labels: Array
    where: Array | None = None

    def row(self, i: int) -> "Rows":
        return Rows(*(None if part is None else part[i : i + 1] for part in self))

    def as_columns(self) -> "Rows":
        return self._replace(
            **{k: None if (v := getattr(self, k)) is None else np.asfortranarray(v) for k in self._fields}
        )


def lse_of(x: Array) -> Any:
    return ds.softmax_state(x, -1)


def of_large(r: Rows) -> Array:
    """Of an lse whose rounding would show: the row's own takes its place."""
    x = r.x * r.x.dtype.type(90)
    return ds.logsumexp_backward(1.5, x, ds.logsumexp(x, -1), -1)


GRADIENTS: dict[str, Callable[[Rows], Array]] = {
    "softmax": lambda r: ds.softmax_backward(r.beside, r.x, -1, where=r.where, scale=0.7),
    "log_softmax": lambda r: ds.log_softmax_backward(r.beside, r.x, -1, where=r.where),
    "logsumexp": lambda r: ds.logsumexp_backward(1.5, r.x, lse_of(r.x), -1, where=r.where, scale=0.7),
    "weights": lambda r: ds.logsumexp_backward(1.5, r.x, lse_of(r.x), -1, b=r.beside, where=r.where),
    "large": of_large,
    "indices": lambda r: ds.cross_entropy_backward(
        1.0, r.x, r.labels, lse_of(r.x), reduction="sum", ignore_index=0, label_smoothing=0.1, z_loss=0.01
    ),
    "probabilities": lambda r: ds.cross_entropy_backward(1.0, r.x, np.abs(r.beside), lse_of(r.x), reduction="sum"),
}


def rows_of(key: str, n: int, count: int) -> Rows:
    """Some of them special."""
    draw = np.random.default_rng(3)
    x, beside = -np.abs(normal(key, count, n)), normal(key, count, n, seed=1)
    x[0, n // 2], x[1, 0], beside[2, n - 1] = -np.inf, np.nan, np.inf
    return Rows(x, beside, draw.integers(0, n, count))


def same(got: Array, want: Array, label: str) -> None:
    """Equal to the bit, but for what NaN is made of."""
    assert got.dtype == want.dtype
    odd = np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float64)), odd, err_msg=label)
    bits = np.dtype(f"u{want.itemsize}")
    np.testing.assert_array_equal(
        np.ascontiguousarray(got).view(bits)[~odd], np.ascontiguousarray(want).view(bits)[~odd], err_msg=label
    )


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_columns_are_rows(name: str, key: str, level: str) -> None:
    f = GRADIENTS[name]
    for n, count in SHAPES:
        rows = rows_of(key, n, count)
        visible = np.random.default_rng(2).random((count, n)) < 0.7
        for where in (None, visible) if name in ("softmax", "log_softmax", "logsumexp", "weights") else (None,):
            given = rows._replace(where=where)
            with np.errstate(all="ignore"):
                want = np.concatenate([f(given.row(i)) for i in range(count)])
                label = f"{count} rows of {n}, where={where is not None}"
                same(f(given.as_columns()), want, f"side by side, {label}")
                same(f(given), want, f"one after the other, {label}")
                with ds.num_threads(1):
                    same(f(given.as_columns()), want, f"one thread, {label}")


@pytest.mark.parametrize("key", DTYPES)
def test_columns_in_place(key: str, level: str) -> None:
    for n, count in ((9, 70), (1025, 65)):
        rows = rows_of(key, n, count)
        for name in ("softmax", "log_softmax"):
            f = ds.softmax_backward if name == "softmax" else ds.log_softmax_backward
            x, beside, *_ = rows.as_columns()
            want = f(beside, x, -1)
            for out in (0, 1):
                given = [x.copy(order="F"), beside.copy(order="F")]
                assert f(given[1], given[0], -1, out=given[out]) is given[out]
                same(given[out], want, f"{name} into {'x' if out == 0 else 'the incoming gradient'}")
