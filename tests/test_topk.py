"""softmax_topk beyond the matrix: the order, the edges, the bits, many k and lengths by hypothesis."""

from typing import Any

import numpy as np
import oracle
import pytest
from cases import DTYPES, normal
from conftest import USABLE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dualsoft as ds

Array = np.ndarray[Any, Any]
F32 = np.float32


def by_softmax(x: Array, k: int, **options: Any) -> tuple[Array, Array]:
    """Values and indices from the whole softmax of the same backend and an order found by Python."""
    indices = oracle.ranking(x, -1, **options)[..., :k]
    return np.take_along_axis(ds.softmax(x, -1, **options), indices, -1), indices


def test_ties_go_to_the_lower_index(backend: str) -> None:
    x = np.array([[0] * 8, [1, 3, 3, 3, 2, 3, 0, 1], [-0.0, 0, -0.0, 0, -1, 0, -0.0, 0]], F32)
    got = ds.softmax_topk(x, 3)
    assert got.indices.tolist() == [[0, 1, 2], [1, 2, 3], [0, 1, 2]]
    assert got.indices.dtype == np.int64


@pytest.mark.parametrize("n", [1000, 70000])
def test_many_ties_at_the_border(backend: str, n: int) -> None:
    x = np.zeros((2, n), F32)
    x[1] = np.arange(n) % 3
    for k in (1, 50, 400, n):
        want = np.stack(
            [np.arange(k), np.concatenate([np.arange(2, n, 3), np.arange(1, n, 3), np.arange(0, n, 3)])[:k]]
        )
        assert (ds.softmax_topk(x, k).indices == want).all()


def test_order_is_that_of_x_under_a_scale(backend: str) -> None:
    """Products that round to one float32, or to 0, do not make two elements equal."""
    x = np.array([[1, np.nextafter(F32(1), F32(2)), 1 - 2.0**-24]], F32)
    for scale, want in ((0.3, [1, 0, 2]), (1e-60, [1, 0, 2]), (-0.3, [2, 0, 1]), (0.0, [0, 1, 2])):
        assert ds.softmax_topk(x, 3, scale=scale).indices.tolist() == [want], scale


def test_nan_rows(backend: str) -> None:
    x = normal("f32", 3, 300)
    x[0, [7, 250]] = np.nan
    x[1] = np.nan
    got = ds.softmax_topk(x, 20)
    assert np.isnan(got.values[:2]).all()
    assert np.isnan(got.lse[:2]).all()
    assert got.indices[0, :2].tolist() == [7, 250]
    assert got.indices[1].tolist() == list(range(20))
    assert all(len(set(row)) == 20 and row.min() >= 0 and row.max() < 300 for row in got.indices)
    assert np.isfinite(got.values[2]).all()


def test_infinite_rows(backend: str) -> None:
    x = np.full((3, 40), -np.inf, F32)
    x[1, [3, 30]] = 1, 2
    x[2, 5] = np.inf
    got = ds.softmax_topk(x, 4)
    assert got.indices.tolist() == [[0, 1, 2, 3], [30, 3, 0, 1], [5, 0, 1, 2]]
    assert np.isnan(got.values[[0, 2]]).all()
    assert got.values[1, 2:].tolist() == [0, 0]
    assert got.lse[[0, 2]].tolist() == [-np.inf, np.inf]


def test_hidden_elements_come_last_whatever_they_hold(backend: str) -> None:
    x = np.array([[np.nan, 5, -np.inf, np.inf, 1, 9], [np.nan] * 6], F32)
    where = np.array([[False, True, True, False, True, False], [False] * 6])
    got = ds.softmax_topk(x, 6, where=where)
    assert got.indices.tolist() == [[1, 4, 2, 0, 3, 5], [0, 1, 2, 3, 4, 5]]
    assert got.values[0, 2:].tolist() == [0] * 4
    assert got.values[1].tolist() == [0] * 6
    assert got.lse[1] == -np.inf


def test_all_of_a_row_sums_to_one_and_falls(backend: str) -> None:
    x = normal("f64", 3, 5000)
    values, indices, _ = ds.softmax_topk(x, 5000)
    assert (np.sort(indices) == np.arange(5000)).all()
    assert (np.diff(values) <= 0).all()
    np.testing.assert_array_max_ulp(values.sum(-1), np.ones(3), 5000)


@pytest.mark.parametrize("key", DTYPES)
def test_lse_is_that_of_logsumexp(level: str, key: str) -> None:
    x = normal(key, 5, 777)
    x[0] -= x[0]
    dtype = np.float64 if key == "f64" else np.float32
    assert (ds.softmax_topk(x, 3).lse == ds.logsumexp(x, -1, dtype=dtype)).all()


def test_k_of_zero_and_empty_arrays(backend: str) -> None:
    x = normal("f32", 3, 10)
    got = ds.softmax_topk(x, 0)
    assert got.values.shape == got.indices.shape == (3, 0)
    assert (got.lse == ds.logsumexp(x, -1)).all()
    assert ds.softmax_topk(np.zeros((0, 5), F32), 2).values.shape == (0, 2)
    assert ds.softmax_topk(np.zeros((2, 0), F32), 0).lse.tolist() == [-np.inf] * 2


def test_shapes(backend: str) -> None:
    x = normal("f32", 4, 30, 5)
    got = ds.softmax_topk(x, 3, axis=1)
    assert got.values.shape == got.indices.shape == (4, 3, 5)
    assert got.lse.shape == (4, 5)
    flat = ds.softmax_topk(x[0, :, 0], 2)
    assert flat.values.shape == (2,)
    assert isinstance(flat.lse, np.float32)
    assert ds.softmax_topk([1, 3, 2], 1).values.dtype == np.float64


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"k": 5}, ValueError, ("k", "5", "4")),
        ({"k": -1}, ValueError, ("k", "-1", "4")),
        ({"k": 2.0}, TypeError, ("k", "2.0", "integer")),
        ({"k": True}, TypeError, ("k", "True", "integer")),
        ({"k": 1, "axis": 2}, np.exceptions.AxisError, ("axis", "2")),
        ({"k": 1, "axis": None}, TypeError, ("axis", "None", "integer")),
        ({"k": 1, "axis": (0, 1)}, TypeError, ("axis", "(0, 1)", "integer")),
        ({"k": 1, "where": np.ones((3, 4))}, TypeError, ("where", "float64")),
        ({"k": 1, "scale": np.ones((3, 4))}, ValueError, ("scale", "(3, 4)", "(3, 1)")),
        ({"k": 1, "x": np.zeros((3, 4), complex)}, TypeError, ("x", "complex128")),
    ],
)
def test_errors(arguments: dict[str, Any], error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        ds.softmax_topk(**({"x": np.zeros((3, 4), F32)} | arguments))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("key", DTYPES)
def test_bits_do_not_depend_on_batch_layout_or_threads(level: str, key: str) -> None:
    x = normal(key, 3, 140001)
    want = ds.softmax_topk(x, 70)
    alone = [ds.softmax_topk(row, 70) for row in x]
    with ds.num_threads(2):
        many = ds.softmax_topk(np.repeat(x, 2, axis=0), 70)
    turned = ds.softmax_topk(np.asfortranarray(x), 70)
    for part, name in enumerate(want._fields):
        for got in (np.stack([row[part] for row in alone]), many[part][::2], turned[part]):
            assert np.array_equal(got, want[part]), name


@st.composite
def rows(draw: Any) -> tuple[Array, int, dict[str, Any]]:
    n = draw(st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 255, 257, 600, 4097]))
    key = draw(st.sampled_from(list(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.standard_normal((2, n)) * draw(st.sampled_from([0.1, 3.0, 60.0]))
    kind = draw(st.sampled_from(["plain", "ties", "rising", "falling", "-inf"]))
    if kind == "ties":
        x = np.round(x)
    if kind in ("rising", "falling"):
        x = np.sort(x)[:, :: 1 if kind == "rising" else -1]
    if kind == "-inf":
        x[:, 1:][rng.random((2, n - 1)) < 0.7] = -np.inf
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["where"] = rng.random((2, n)) < draw(st.sampled_from([0.05, 0.5, 1.0]))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.5, -2.0, 0.0]))
    return x.astype(DTYPES[key]), draw(st.integers(0, n)), options


@pytest.mark.parametrize("name", [name for name in USABLE if ":" in name])
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows())
def test_any_options(name: str, drawn: tuple[Array, int, dict[str, Any]]) -> None:
    x, k, options = drawn
    with ds.use_backend(name):
        got = ds.softmax_topk(x, k, **options)
        values, indices = by_softmax(x, k, **options)
    assert np.array_equal(got.indices, indices)
    precision = got.values.dtype
    spacing = ds.accuracy.ulp(values.astype(np.float64), precision)
    spread = np.max(np.abs(x.astype(np.float64)), initial=0, where=np.isfinite(x)) * 6
    bound = ds.accuracy.bound("softmax_topk", precision, n=x.shape[1], spread=spread)
    error = np.abs(got.values.astype(np.float64) - values.astype(np.float64))
    assert ((error <= 2 * bound.ulp * spacing) | (np.isnan(got.values) & np.isnan(values))).all()
