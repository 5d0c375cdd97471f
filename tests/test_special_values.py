"""Every rule about infinities, NaN, hidden elements, zero weights and empty axes."""

from typing import Any

import numpy as np
import oracle
import pytest
from cases import DTYPES
from tolerance import mismatch

import dualsoft as ds

INF, NAN = np.inf, np.nan
FAMILY = (ds.softmax, ds.log_softmax, ds.logsumexp)
WIDTHS = (*range(1, 71), 129, 257, 1025, 4099)
same = np.testing.assert_array_equal


@pytest.fixture(params=DTYPES.values(), ids=DTYPES.keys())
def dt(request: pytest.FixtureRequest) -> Any:
    return request.param


# row -> softmax, log_softmax, logsumexp, sign
ROWS: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    "all -inf": ([-INF, -INF, -INF], [NAN] * 3, [NAN] * 3, -INF, 0),
    "one -inf alone": ([-INF], [NAN], [NAN], -INF, 0),
    "+inf": ([0, INF, 1], [NAN] * 3, [-INF, NAN, -INF], INF, 1),
    "two +inf": ([INF, 0, INF], [NAN] * 3, [NAN, -INF, NAN], INF, 1),
    "one +inf alone": ([INF], [NAN], [NAN], INF, 1),
    "both infinities": ([INF, -INF], [NAN] * 2, [NAN, -INF], INF, 1),
    "NaN": ([0, NAN, 1], [NAN] * 3, [NAN] * 3, NAN, NAN),
    "NaN beside +inf": ([INF, NAN, 1], [NAN] * 3, [NAN] * 3, NAN, NAN),
    "NaN beside -inf": ([-INF, NAN], [NAN] * 2, [NAN] * 2, NAN, NAN),
    "-inf beside finite": ([-INF, 5, -INF], [0, 1, 0], [-INF, 0, -INF], 5, 1),
    "one finite alone": ([-3], [1], [0], -3, 1),
    "signed zeros": ([-0.0], [1], [0], 0, 1),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_row(row: Any, dt: Any, backend: str) -> None:
    x, softmax, log_softmax, lse, sign = row
    for pad in (0, 40, 4100):  # in vectors and blocks that otherwise hold -inf
        wide = np.concatenate([np.full(pad, -INF), x, np.full(pad, -INF)]).astype(dt)
        lone = slice(pad, pad + len(x))
        for axis, shaped in ((0, wide), (-1, np.stack([wide, wide])), (0, np.stack([wide] * 19, 1))):
            y, z = ds.softmax(shaped, axis), ds.log_softmax(shaped, axis)
            got, got_sign = ds.logsumexp(shaped, axis, return_sign=True)
            rows = np.moveaxis(shaped, axis, -1).shape[:-1]
            same(np.moveaxis(y, axis, -1)[..., lone].astype(float), np.broadcast_to(softmax, (*rows, len(x))))
            same(np.moveaxis(z, axis, -1)[..., lone].astype(float), np.broadcast_to(log_softmax, (*rows, len(x))))
            same(np.asarray(got).astype(float), np.full(rows, lse))
            same(np.asarray(got_sign).astype(float), np.full(rows, sign))
            state = ds.softmax_state(shaped, axis)
            same(state.lse, np.full(rows, lse))
            same(state.normalize(shaped, axis).astype(float), y.astype(float))


def test_signed_zero_weights_of_log_softmax_at_the_maximum(backend: str) -> None:
    assert ds.log_softmax(np.float32([7])) == 0
    assert ds.log_softmax(np.float32([7, -INF]))[0] == 0


@pytest.mark.parametrize("bad", [NAN, INF])
def test_poison_stays_in_its_row(bad: float, dt: Any, backend: str) -> None:
    """One bad element at every position; the clean rows keep their bits."""
    for n in WIDTHS:
        places = np.unique([*range(min(n, 70)), n // 2, n - 1])
        clean = np.linspace(-3, 3, n).astype(dt)
        x = np.broadcast_to(clean, (len(places) + 1, n)).copy()
        x[np.arange(len(places)), places] = bad
        for axis, shaped in ((1, x), (0, np.ascontiguousarray(x.T))):
            y = np.moveaxis(ds.softmax(shaped, axis), axis, 1)
            assert np.isnan(y[:-1].astype(float)).all(), f"n={n}, axis={axis}"
            alone = np.ascontiguousarray(np.broadcast_to(clean, x.shape) if axis else np.broadcast_to(clean, x.shape).T)
            same(y[-1], np.moveaxis(ds.softmax(alone, axis), axis, 1)[-1])
            lse = ds.logsumexp(shaped, axis)
            same(lse[:-1].astype(float), np.full(len(places), bad))
            same(lse[-1], ds.logsumexp(alone, axis)[-1])
            z = np.moveaxis(ds.log_softmax(shaped, axis), axis, 1).astype(float)[:-1]
            hit = x[:-1].astype(float) == INF
            same(z, np.where(hit, NAN, -INF) if bad == INF else np.full(z.shape, NAN))
            d = ds.softmax_state(shaped, axis).d
            same(d[:-1], np.full(len(places), bad))


def test_cumulative(dt: Any, backend: str) -> None:
    for n in (1, 2, 15, 16, 17, 64, 70, 300):
        x = np.zeros((n + 1, n), dt)
        x[np.arange(n), np.arange(n)] = NAN
        y = ds.cumulative_logsumexp(x, 1).astype(float)
        same(np.isnan(y[:-1]), np.arange(n) >= np.arange(n)[:, None])
        assert np.isfinite(y[-1]).all()
        x[np.arange(n), np.arange(n)] = INF
        same(ds.cumulative_logsumexp(x, 1)[:-1].astype(float) == INF, np.arange(n) >= np.arange(n)[:, None])
        same(ds.cumulative_logsumexp(np.full((2, n), -INF, dt), 1).astype(float), np.full((2, n), -INF))


@pytest.mark.parametrize("hidden", [NAN, INF, -INF, 1e4])
def test_where_hides_everything(hidden: float, dt: Any, backend: str) -> None:
    """What a left-out element holds changes no bit."""
    for n in (*range(1, 71), 300, 4099):
        plain = np.linspace(-2, 2, n).astype(dt)
        visible = np.arange(n) % 3 != 1
        x = np.where(visible, plain, np.array(hidden).astype(dt))
        for axis, a, b, w in ((0, x, plain, visible), (0, *(np.stack([v] * 5, 1) for v in (x, plain, visible)))):
            for f in FAMILY:
                same(f(a, axis, where=w), f(b, axis, where=w), err_msg=f"{f.__name__}, n={n}, ndim={a.ndim}")
            y, z = ds.softmax(a, axis, where=w), ds.log_softmax(a, axis, where=w)
            assert (y[~w] == 0).all(), f"n={n}"
            assert (z[~w].astype(float) == -INF).all(), f"n={n}"
            assert (y[w] > 0).all(), f"n={n}"
            s, t = ds.softmax_state(a, axis, where=w), ds.softmax_state(b, axis, where=w)
            same(s.d, t.d)
            same(s.m, t.m)


@pytest.mark.parametrize("held", [0.0, NAN, INF, -INF])
def test_nothing_takes_part(held: float, dt: Any, backend: str) -> None:
    for n in (1, 3, 16, 33, 70, 1025):
        x = np.full((2, n), held, dt)
        for where in (False, np.zeros((2, n), bool), np.zeros((2, 1), bool)):
            same(ds.softmax(x, 1, where=where).astype(float), np.zeros((2, n)))
            same(ds.log_softmax(x, 1, where=where).astype(float), np.full((2, n), -INF))
            lse, sign = ds.logsumexp(x, 1, where=where, return_sign=True)
            same(lse.astype(float), np.full(2, -INF))
            same(sign.astype(float), np.zeros(2))
            state = ds.softmax_state(x, 1, where=where)
            same(state.m, np.full(2, -INF))
            same(state.d, np.zeros(2))
            same(state.normalize(x, 1, where=where).astype(float), np.zeros((2, n)))


def test_visible_all_minus_inf_is_as_without_where(dt: Any, backend: str) -> None:
    for n in (2, 17, 70, 1025):
        visible = np.arange(n) % 2 == 0
        x = np.where(visible, -INF, 3.0).astype(dt)
        same(ds.softmax(x, where=visible).astype(float), np.where(visible, NAN, 0))
        same(ds.log_softmax(x, where=visible).astype(float), np.where(visible, NAN, -INF))
        assert ds.logsumexp(x, where=visible) == -INF


@pytest.mark.parametrize("held", [NAN, INF, -INF, 1e4])
def test_zero_weight_hides_everything(held: float, dt: Any, backend: str) -> None:
    for n in (*range(1, 71), 300, 4099):
        live = np.arange(n) % 3 != 1
        x = np.where(live, np.linspace(-2, 2, n), held).astype(dt)
        plain = np.where(live, np.linspace(-2, 2, n), 0).astype(dt)
        b = np.where(live, 2.0, 0.0).astype(dt)
        same(ds.logsumexp(x, b=b), ds.logsumexp(plain, b=b), err_msg=f"n={n}")
        same(
            ds.logsumexp(np.stack([x] * 3, 1), 0, b=b[:, None]), ds.logsumexp(np.stack([plain] * 3, 1), 0, b=b[:, None])
        )
        lse, sign = ds.logsumexp(x, b=np.zeros(n, dt), return_sign=True)
        assert lse == -INF
        assert sign == 0


ONE = np.longdouble(1)
# a, b -> value without return_sign, value with it, sign
WEIGHTED: dict[str, tuple[Any, Any, Any, Any, float]] = {
    "negative weight at the maximum, positive sum": (
        [1, 0, 0, 0, 0],
        [-1, 1, 1, 1, 1],
        np.log(4 - np.exp(ONE)),
        np.log(4 - np.exp(ONE)),
        1,
    ),
    "negative sum": ([0, 0], [1, -3], NAN, np.log(2 * ONE), -1),
    "sum exactly zero": ([1, 1], [1, -1], -INF, -INF, 0),
    "+inf with negative weight": ([INF, 0], [-1, 1], NAN, INF, -1),
    "+inf beside what overflows": ([INF, 1e4, 1e4], [1, -1, -1], INF, INF, 1),
    "+inf minus inf": ([INF, INF], [1, -1], NAN, NAN, NAN),
    "all -inf": ([-INF, -INF], [1, -1], -INF, -INF, 0),
    "largest ignored, all else far below": ([-1000, 0], [1, 0], -1000, -1000, 1),
    "NaN with a weight": ([NAN, 0], [-1, 1], NAN, NAN, NAN),
    "a NaN weight": ([0, 0], [1, NAN], NAN, NAN, NAN),
}


@pytest.mark.parametrize("case", WEIGHTED.values(), ids=WEIGHTED.keys())
def test_weighted(case: Any, backend: str) -> None:
    a, b, plain, magnitude, sign = case
    for key in ("f32", "f64"):
        for pad in (0, 37):
            x = np.concatenate([np.full(pad, -INF), a]).astype(DTYPES[key])
            w = np.concatenate([np.ones(pad), b]).astype(DTYPES[key])
            wide = oracle.wide_type(DTYPES[key])
            limits, _ = oracle.logsumexp(x, 0, wide, b=w)
            got, got_sign = ds.logsumexp(x, b=w, keepdims=True, return_sign=True)
            for value, exact in ((ds.logsumexp(x, b=w, keepdims=True), plain), (got, magnitude)):
                why = mismatch("logsumexp", value, limits._replace(value=np.array([exact], wide)), DTYPES[key], backend)
                assert not why, why
            same(got_sign, np.array([sign], DTYPES[key]))


EMPTY = [((0,), 0), ((0,), None), ((10, 0), 1), ((10, 0), 0), ((0, 10), 1), ((4, 0, 5), (0, 1)), ((3, 0, 2), None)]


@pytest.mark.parametrize(("shape", "axis"), EMPTY)
def test_empty(shape: tuple[int, ...], axis: Any, dt: Any, backend: str) -> None:
    x = np.zeros(shape, dt)
    for f in (ds.softmax, ds.log_softmax):
        y = f(x, axis)
        assert (y.shape, y.dtype) == (shape, dt)
    lse, sign = ds.logsumexp(x, axis, return_sign=True)
    like = np.sum(np.zeros(shape), axis)
    same(np.asarray(lse).astype(float), np.full(np.shape(like), -INF))
    same(np.asarray(sign).astype(float), np.zeros(np.shape(like)))
    assert lse.dtype == dt
    assert ds.logsumexp(x, axis, keepdims=True).shape == np.sum(np.zeros(shape), axis, keepdims=True).shape
    state = ds.softmax_state(x, axis)
    same(state.m, np.full(np.shape(like), -INF))
    same(state.d, np.zeros(np.shape(like)))
    assert state.normalize(x, axis).shape == shape
    if type(axis) is int:
        assert ds.cumulative_logsumexp(x, axis).shape == shape
        initial = ds.cumulative_logsumexp(x, axis, include_initial=True)
        same(initial.astype(float), np.full(initial.shape, -INF))
        assert initial.shape[axis] == shape[axis] + 1
