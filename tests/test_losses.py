"""Losses and gradients beyond the matrix: special values, what does not count, totals, layouts, in place, bits."""

from collections.abc import Callable
from typing import Any

import loss_oracle
import numpy as np
import oracle
import pytest
from cases import DTYPES, LAYOUTS, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import mismatch

import dualsoft as ds
from dualsoft import accuracy

Array = np.ndarray[Any, Any]
INF, NAN = np.inf, np.nan
STEP = 1e-5
DIFFERENCE = 1e3 * STEP**3
"""What a central difference is off by: third derivatives of a few dozen elements of order 1, times the cubed step."""
WRITABLE = [name for name in LAYOUTS if "read-only" not in name]


def lse_of(x: Array, axis: Any = -1) -> Any:
    return ds.softmax_state(x, axis)


def labels_of(x: Array, axis: int = -1) -> Array:
    shape = list(x.shape)
    n = shape.pop(axis)
    return np.random.default_rng(3).integers(0, n, shape)


# a gradient of x along an axis, into out
GRADIENTS: dict[str, Callable[[Array, int, Any], Array]] = {
    "cross_entropy": lambda x, axis, out: ds.cross_entropy_backward(
        1.0, x, labels_of(x, axis), lse_of(x, axis), axis, reduction="sum", label_smoothing=0.1, out=out
    ),
    "logsumexp": lambda x, axis, out: ds.logsumexp_backward(1.0, x, lse_of(x, axis), axis, out=out),
    "softmax": lambda x, axis, out: ds.softmax_backward(np.cos(np.arange(x.size)).reshape(x.shape), x, axis, out=out),
    "log_softmax": lambda x, axis, out: ds.log_softmax_backward(
        np.cos(np.arange(x.size)).reshape(x.shape), x, axis, out=out
    ),
}
LOSSES: dict[str, Callable[[Array, int], Array]] = {
    "indices": lambda x, axis: ds.cross_entropy(x, labels_of(x, axis), axis, reduction="none"),
    "smoothed": lambda x, axis: ds.cross_entropy(
        x, labels_of(x, axis), axis, reduction="none", label_smoothing=0.1, z_loss=0.01
    ),
    "probabilities": lambda x, axis: ds.cross_entropy(x, np.cos(x), axis, reduction="none", label_smoothing=0.1),
}


def same_bits(got: Array, want: Array, label: str = "") -> None:
    np.testing.assert_array_equal(
        np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(want).view(np.uint8), err_msg=label
    )


# ------------------------------------------------------------------ special values
@pytest.mark.parametrize("key", DTYPES)
def test_special_rows(key: str, backend: str) -> None:
    """A row of -inf is NaN, one with NaN too, and no other; +inf costs inf, and NaN where a label is at it."""
    rows = [[0, 1, 2], [-INF] * 3, [0, NAN, 1], [INF, 0, 1], [0, INF, 1], [-INF, 0, 0], [0, -INF, 0]]
    x = np.array(rows, DTYPES[key])
    labels = np.array([2, 0, 0, 1, 1, 0, 2])
    loss, lse = ds.cross_entropy(x, labels, reduction="none", return_lse=True)
    two = np.log(2)
    expected = [np.log1p(np.exp(-1) + np.exp(-2)), NAN, NAN, INF, NAN, INF, two]
    near = accuracy.unit_roundoff("float32") * 8
    np.testing.assert_allclose(np.asarray(loss, np.float64), expected, rtol=near)
    np.testing.assert_array_equal(np.asarray(lse, np.float64)[1:5], [-INF, NAN, INF, INF])
    _, lse = ds.cross_entropy(x, np.full(x.shape, 0.25), return_lse=True)
    np.testing.assert_array_equal(np.asarray(lse, np.float64)[1:5], [-INF, NAN, INF, INF])
    gradient = ds.cross_entropy_backward(np.ones(7), x, labels, lse_of(x), reduction="none").astype(np.float64)
    assert np.isnan(gradient[1:3]).all()
    np.testing.assert_array_equal(gradient[3], [NAN, -1, 0])
    np.testing.assert_array_equal(gradient[5], [-1, 0.5, 0.5])
    gradient = ds.logsumexp_backward(np.ones(7), x, ds.logsumexp(x, -1), -1).astype(np.float64)
    np.testing.assert_array_equal(gradient[1], [0, 0, 0])
    assert np.isnan(gradient[2]).all()
    np.testing.assert_array_equal(gradient[3], [NAN, 0, 0])
    np.testing.assert_array_equal(gradient[5], [0, 0.5, 0.5])


@pytest.mark.parametrize("logarithm", ["softmax_state", "logsumexp"])
def test_nan_beside_an_infinity(logarithm: str, backend: str) -> None:
    """NaN wins in its row, whatever the maximum of the others is; not over what takes no part."""
    x = np.array([[NAN, INF, 0], [NAN, -INF, -INF], [INF, -INF, NAN]])
    lse = getattr(ds, logarithm)(x, -1)
    assert np.isnan(ds.logsumexp_backward(1.0, x, lse, -1)).all()
    assert np.isnan(ds.logsumexp_backward(1.0, x, lse, -1, where=np.ones(3, bool), scale=2.0)).all()
    weighted = ds.logsumexp_backward(1.0, x, lse, -1, b=[1, 1, 0])
    np.testing.assert_array_equal(weighted, [[NAN, NAN, 0]] * 3)
    assert np.isnan(ds.cross_entropy_backward(1.0, x, [0, 1, 2], lse)).all()


def test_a_probability_of_0_counts_nothing(backend: str) -> None:
    x = np.array([[-INF, 0, 0], [-INF, 0, 0], [0, 0, 0]], np.float32)
    t = np.array([[0, 1, 0], [0.5, 0.5, 0], [0, 0, 0]])
    loss = ds.cross_entropy(x, t, reduction="none")
    np.testing.assert_array_equal(loss, [np.float32(np.log(2)), INF, 0])
    smoothed = ds.cross_entropy(x, t, reduction="none", label_smoothing=0.5)
    assert smoothed[0] == INF  # smoothing puts weight on the class that is -inf
    x[2, 1] = NAN
    assert np.isnan(ds.cross_entropy(x, t, reduction="none")[2])


def test_smoothing_by_1_leaves_the_label_out(backend: str) -> None:
    x = np.array([[0.0, -INF], [0.0, 0.0]])
    loss = ds.cross_entropy(x, [1, 1], label_smoothing=1, reduction="none")
    assert loss[0] == INF
    assert loss[1] == pytest.approx(np.log(2), rel=accuracy.unit_roundoff(np.float64) * 4)


@pytest.mark.parametrize("smoothing", [0.25, 0.5, 0.75, 1.0])
def test_gradient_at_a_label_that_smoothing_takes_away(smoothing: float, backend: str) -> None:
    """Its size is that of p and of what is left of the label: no 1 may cancel on the way."""
    x = np.random.default_rng(5).standard_normal((20, 1000))
    labels = labels_of(x)
    got = ds.cross_entropy_backward(1.0, x, labels, lse_of(x), reduction="sum", label_smoothing=smoothing)
    target = loss_oracle.target(x, -1, labels, np.longdouble, smoothing=smoothing)
    want = loss_oracle.cross_entropy_backward(x, -1, np.longdouble, np.ones((20, 1)), target)
    error = mismatch("cross_entropy_backward", got, want, np.float64)
    assert error is None, error


# ------------------------------------------------------------------ rows that do not count
@pytest.mark.parametrize("ignored", [-100, 1, 255, 2**40])
def test_ignored_rows(ignored: int, backend: str) -> None:
    """Inside and outside of the range: loss 0, gradient 0, not counted, whatever they hold."""
    x = normal("f32", 6, 3)
    labels = np.array([0, ignored, 2, ignored, 0, 2])
    x[1], x[3] = NAN, [INF, -INF, NAN]
    keep = np.array([0, 2, 4, 5])
    options: dict[str, Any] = {"ignore_index": ignored, "z_loss": 0.1, "label_smoothing": 0.1}
    each = ds.cross_entropy(x, labels, reduction="none", **options)
    assert (each[[1, 3]] == 0).all()
    options.pop("ignore_index")
    for reduction in ("mean", "sum"):
        got = ds.cross_entropy(x, labels, reduction=reduction, ignore_index=ignored, **options)
        same_bits(got, ds.cross_entropy(x[keep], labels[keep], reduction=reduction, **options))
        lse = ds.logsumexp(x, -1)
        gradient = ds.cross_entropy_backward(0.7, x, labels, lse, reduction=reduction, ignore_index=ignored, **options)
        assert (gradient[[1, 3]] == 0).all()
        kept = ds.cross_entropy_backward(0.7, x[keep], labels[keep], lse[keep], reduction=reduction, **options)
        same_bits(gradient[keep], kept)


@pytest.mark.parametrize(
    ("dtype", "ignored"), [("u8", 2**64 - 1), (">u8", 2**63), ("u1", 255), ("i1", -128), (">i2", -1), ("i8", -(2**63))]
)
def test_ignored_at_the_end_of_a_type(dtype: str, ignored: int, backend: str) -> None:
    x = normal("f32", 3, 4)
    labels = np.array([0, ignored, 3], dtype)
    each = ds.cross_entropy(x, labels, reduction="none", ignore_index=ignored)
    same_bits(each[[0, 2]], ds.cross_entropy(x[[0, 2]], [0, 3], reduction="none"))
    assert each[1] == 0
    gradient = ds.cross_entropy_backward(1.0, x, labels, lse_of(x), ignore_index=ignored)
    assert (gradient[1] == 0).all()
    assert gradient[[0, 2]].all()
    linear = ds.linear_cross_entropy(x, np.eye(4, dtype=np.float32), labels, reduction="none", ignore_index=ignored)
    np.testing.assert_array_equal(linear == 0, [False, True, False])


def test_nothing_counts(backend: str) -> None:
    x = normal("f32", 3, 4)
    labels = np.full(3, -1)
    assert np.isnan(ds.cross_entropy(x, labels, ignore_index=-1))
    assert ds.cross_entropy(x, labels, ignore_index=-1, reduction="sum") == 0
    assert (ds.cross_entropy(x, labels, ignore_index=-1, reduction="none") == 0).all()
    assert not ds.cross_entropy_backward(1.0, x, labels, ds.logsumexp(x, -1), ignore_index=-1).any()


def test_empty(backend: str) -> None:
    none = np.zeros((0, 4), np.float16)
    for labels in ([], np.zeros(0, np.uint8), np.zeros((0, 4))):
        assert np.isnan(ds.cross_entropy(none, labels))
        assert ds.cross_entropy(none, labels, reduction="sum") == 0
        assert ds.cross_entropy(none, labels, reduction="none").shape == (0,)
    assert ds.cross_entropy_backward(1.0, none, [], np.zeros(0)).shape == (0, 4)
    assert ds.softmax_backward(none, none, -1).shape == ds.log_softmax_backward(none, none, -1).shape == (0, 4)
    classless = np.zeros((2, 0))
    loss, lse = ds.cross_entropy(classless, [9, 9], ignore_index=9, reduction="none", return_lse=True)
    assert loss.tolist() == [0, 0]
    assert lse.tolist() == [-INF, -INF]
    assert np.isnan(ds.cross_entropy(classless, np.zeros((2, 0)), reduction="none")).all()
    assert np.isnan(ds.cross_entropy(classless, np.zeros((2, 0)), reduction="sum"))


def test_scalars_and_single_rows(backend: str) -> None:
    x = np.array([0.0, 0.0], np.float32)
    loss, lse = ds.cross_entropy(x, 1, reduction="none", return_lse=True)
    assert type(loss) is type(lse) is np.float32
    assert type(ds.cross_entropy(x.astype(np.float64), np.int8(0))) is np.float64
    assert ds.cross_entropy_backward(2.0, x, 1, lse).tolist() == [1, -1]
    assert ds.logsumexp_backward(1.0, np.float64(3), np.float64(3)) == 1


# ------------------------------------------------------------------ totals
@pytest.mark.parametrize("key", DTYPES)
def test_totals_neither_overflow_nor_drift(key: str, backend: str) -> None:
    rows = 10**6 if backend != "reference" else 10**5
    x = np.zeros((rows, 2), DTYPES[key])
    x[:, 0] = 0.125
    labels = np.zeros(rows, np.int8)
    one = ds.cross_entropy(x[:1].astype(np.float64), labels[:1])
    dt = np.float64 if key == "f64" else np.float32
    mean, total = ds.cross_entropy(x, labels), ds.cross_entropy(x, labels, reduction="sum")
    assert mean.dtype == total.dtype == dt
    # NumPy's pairwise sum: a term is rounded 16 times in its block of 128, 3 where that ends, once for each halving.
    limit = (16 + 3 + np.ceil(np.log2(rows / 128))) * accuracy.unit_roundoff(dt)
    assert abs(mean - one) <= limit * one
    assert abs(total - rows * one) <= limit * rows * one


# ------------------------------------------------------------------ large logarithms
def test_a_large_common_shift(backend: str) -> None:
    for dt, shifts in ((np.float32, (1e8, -1e8, 1e20, 3e38)), (np.float64, (1e17, -1e20, 1e300)), (np.float16, (6e4,))):
        x = np.array([[s, s] for s in shifts], dt)
        labels = np.zeros(len(x), int)
        loss, lse = ds.cross_entropy(x, labels, reduction="none", return_lse=True)
        np.testing.assert_array_equal(loss, np.full(len(x), np.log(2)).astype(loss.dtype))
        for given_lse in (lse, ds.logsumexp(x, -1), lse_of(x)):
            got = ds.cross_entropy_backward(np.ones(len(x)), x, labels, given_lse, reduction="none")
            assert got.tolist() == [[-0.5, 0.5]] * len(x)
            assert ds.logsumexp_backward(1.0, x, given_lse, -1).tolist() == [[0.5, 0.5]] * len(x)


def test_lse_of_more_than_these_elements(backend: str) -> None:
    """A part of the classes with the lse of all, which is not replaced by that of the part, however large it is."""
    x = (normal("f32", 5, 40) + np.float32(1000)).astype(np.float32)
    lse = ds.logsumexp(x.astype(np.float64), -1)
    parts = [ds.logsumexp_backward(1.0, part, lse, -1) for part in (x[:, :15], x[:, 15:])]
    whole = ds.logsumexp_backward(1.0, x, lse, -1)
    np.testing.assert_allclose(np.concatenate(parts, -1), whole, rtol=accuracy.unit_roundoff("float32") * 64)


def test_weights_far_from_1(backend: str) -> None:
    """The logarithm of small weights is far below the elements: exp(x - lse) is large, times b it is not."""
    for dt in (np.float32, np.float64):
        b = np.array([1e-30, 3e-30], dt)
        x = np.array([50, 50], dt)
        lse = ds.logsumexp(x, b=b)
        got = ds.logsumexp_backward(1.0, x, lse, b=b)
        np.testing.assert_allclose(got, [0.25, 0.75], rtol=accuracy.unit_roundoff(dt) * 256)
    signed = ds.logsumexp([0.0, np.log(3)], b=[1.0, -1.0], return_sign=True)
    got = ds.logsumexp_backward(1.0, [0.0, np.log(3)], signed[0], b=[1.0, -1.0], sign=signed[1])
    np.testing.assert_allclose(got, [-0.5, 1.5], rtol=accuracy.unit_roundoff(np.float64) * 64)


def test_weights_of_0_hide(backend: str) -> None:
    x = np.array([0, 0, NAN, INF], np.float32)
    b = np.array([1, 1, 0, 0], np.float32)
    assert ds.logsumexp_backward(1.0, x, ds.logsumexp(x, b=b), b=b).tolist() == [0.5, 0.5, 0, 0]
    nothing_known = ds.logsumexp_backward(NAN, x, ds.logsumexp(x, b=b), b=b, scale=INF)
    np.testing.assert_array_equal(nothing_known, [NAN, NAN, 0, 0])


def test_hidden_elements_get_nothing(backend: str) -> None:
    where = np.array([True, True, False, False])
    x = np.array([0, 0, NAN, INF], np.float32)
    grad = np.array([1, 0, NAN, INF], np.float32)
    assert ds.logsumexp_backward(1.0, x, np.log(2), where=where).tolist() == [0.5, 0.5, 0, 0]
    y = np.array([0.5, 0.5, NAN, 7], np.float32)
    assert ds.softmax_backward(grad, y, where=where).tolist() == [0.25, -0.25, 0, 0]
    y = np.array([0, -INF, NAN, INF], np.float32)
    assert ds.log_softmax_backward(grad, y, where=where).tolist() == [0, 0, 0, 0]


def test_the_gradient_at_a_sure_label_keeps_its_accuracy(backend: str) -> None:
    for dt in (np.float32, np.float64):
        x = np.array([[0, -40], [0, -60]], dt)
        got = ds.cross_entropy_backward(np.ones(2), x, [0, 0], lse_of(x), reduction="none")
        np.testing.assert_allclose(got[:, 0], -np.exp([-40.0, -60.0]), rtol=accuracy.unit_roundoff(dt) * 8)


# ------------------------------------------------------------------ layouts, out, bits
@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_layouts_and_out(name: str, key: str, backend: str) -> None:
    for shape, axis in (((6, 37), 0), ((6, 37), 1), ((3, 5, 260), 1), ((2, 4100), 1), ((700, 9), 0)):
        x = -np.abs(normal(key, *shape))
        for layout, arrange in LAYOUTS.items():
            label = f"{layout}, {shape}, axis {axis}"
            want = GRADIENTS[name](arrange(x).copy(), axis, None)  # one layout has the rows in another order
            assert want.dtype == x.dtype
            same_bits(GRADIENTS[name](arrange(x), axis, None), want, label)
            if layout in WRITABLE:
                out = arrange(np.full(shape, 7, x.dtype))
                assert GRADIENTS[name](x, axis, out) is out
                same_bits(out, want, f"out, {label}")
                inside = arrange(x).copy(order="K") if layout == "C order" else arrange(x.copy())
                got = GRADIENTS[name](inside, axis, inside)
                assert got is inside
                same_bits(got, want, f"in place, {label}")


@pytest.mark.parametrize("name", GRADIENTS)
def test_overlaps(name: str, backend: str) -> None:
    x = -np.abs(normal("f32", 40, 41))
    want = GRADIENTS[name](x[:, :40].copy(), 1, None)
    memory = x.copy()
    got = GRADIENTS[name](memory[:, :40], 1, memory[:, 1:])
    same_bits(got, want, "shifted by one element")
    square = x[:, :40].copy()
    same_bits(GRADIENTS[name](square, 1, square.T), want, "transposed")


def test_out_may_be_the_incoming_gradient(backend: str) -> None:
    for f in (ds.softmax_backward, ds.log_softmax_backward):
        y, grad = -np.abs(normal("f32", 5, 300)), normal("f32", 5, 300, seed=1)
        want = f(grad, y, 1)
        got = f(grad, y, 1, out=grad)
        assert got is grad
        same_bits(got, want)


def test_other_byte_order(backend: str) -> None:
    x = normal("f32", 4, 33)
    swapped = x.astype(">f4")
    labels = labels_of(x)
    same_bits(ds.cross_entropy(swapped, labels.astype(">i4")), ds.cross_entropy(x, labels))
    probabilities = ds.softmax(x, -1)
    want = ds.cross_entropy_backward(1.0, x, probabilities, lse_of(x))
    same_bits(ds.cross_entropy_backward(1.0, swapped, probabilities.astype(">f4"), lse_of(x)), want)


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", [*GRADIENTS, *LOSSES])
def test_rows_depend_on_themselves_alone(name: str, key: str, backend: str) -> None:
    """Not on the batch, not on what is beside them, not on threads."""
    f = LOSSES[name] if name in LOSSES else lambda x, axis: GRADIENTS[name](x, axis, None)
    for n in (1, 16, 17, 70, 1025, 4097, 70001):
        rows = 20 if n < 2000 else 3
        x = np.broadcast_to(-np.abs(normal(key, 1, n)), (rows, n)).copy()  # what accompanies a row differs by row
        x[1:] = -np.abs(normal(key, rows - 1, n, seed=1))
        batch = f(x, 1)
        if name in ("softmax", "log_softmax", "indices", "smoothed", "cross_entropy"):
            alone = f(x[:1], 1)
            same_bits(alone[0], batch[0], f"n={n}")
        if backend == "reference":
            continue
        for threads in (1, 2, 3):
            with ds.num_threads(threads):
                same_bits(f(x, 1), batch, f"{threads} threads, n={n}")
                same_bits(f(x[:1], 1), f(x[:1].copy(), 1), f"{threads} threads, one row, n={n}")


# ------------------------------------------------------------------ any options together
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_options(data: st.DataObject) -> None:
    """The kernels against the oracle, and the gradient against differences of the oracle's loss, in float64."""
    rows, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 40))
    seed, axis = data.draw(st.integers(0, 2**32)), data.draw(st.sampled_from((0, 1)))
    smoothing, z_loss = data.draw(st.sampled_from((0, 0.1, 1))), data.draw(st.sampled_from((0, 0.01)))
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, n) if axis == 1 else (n, rows)) * 3
    soft = data.draw(st.booleans())
    labels = rng.random(x.shape) if soft else rng.integers(0, n, rows)
    ignored = None if soft else data.draw(st.sampled_from((None, 0, -100)))
    options = {"label_smoothing": smoothing, "z_loss": z_loss, "ignore_index": ignored}
    wide = np.longdouble
    t = loss_oracle.target(x, axis, labels, wide, ignored, smoothing)
    want = loss_oracle.cross_entropy(x, axis, wide, t, z_loss)
    got, lse = ds.cross_entropy(x, labels, axis, reduction="none", return_lse=True, **options)  # type: ignore[arg-type]
    assert not (why := mismatch("cross_entropy", np.expand_dims(got, axis), want, np.float64)), why
    grad = rng.uniform(-1, 1, rows)
    found = ds.cross_entropy_backward(grad, x, labels, lse, axis, reduction="none", **options)  # type: ignore[arg-type]
    step = rng.standard_normal(x.shape) * STEP

    def loss_at(point: Array) -> Any:
        return (loss_oracle.cross_entropy(point, axis, wide, t, z_loss).value.squeeze(axis) * grad).sum()

    slope = (loss_at(x + step) - loss_at(x - step)) / 2
    assert float(slope) == pytest.approx(float((found * step).sum()), abs=DIFFERENCE)
    assert oracle.wide_type(x.dtype) is wide


def test_gradients_are_those_of_the_functions(backend: str) -> None:
    """softmax, log_softmax and logsumexp by differences of the oracle."""
    rng = np.random.default_rng(0)
    x, grad, step = (size * rng.standard_normal((3, 4, 15)) for size in (1, 1, STEP))
    where, scale, axis = rng.random(x.shape) < 0.7, rng.uniform(0.5, 2, (3, 1, 1)), (1, 2)
    options: dict[str, Any] = {"where": where, "scale": scale}
    for name in ("softmax", "log_softmax"):
        y = getattr(ds, name)(x, axis, **options)
        found = getattr(ds, f"{name}_backward")(grad, y, axis, **options)
        up, down = (getattr(oracle, name)(x + s, axis, np.longdouble, **options).value for s in (step, -step))
        slope = ((np.where(where, up, 0) - np.where(where, down, 0)) * grad).sum() / 2
        assert float(slope) == pytest.approx(float((found * step).sum()), abs=DIFFERENCE)
    found = ds.logsumexp_backward(grad[:, 0, 0], x, ds.logsumexp(x, axis, **options), axis, **options)
    up, down = (oracle.logsumexp(x + s, axis, np.longdouble, **options)[0].value for s in (step, -step))
    slope = ((up - down)[:, 0, 0] * grad[:, 0, 0]).sum() / 2
    assert float(slope) == pytest.approx(float((found * step).sum()), abs=DIFFERENCE)
