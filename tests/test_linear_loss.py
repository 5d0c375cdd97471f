"""linear_cross_entropy: the loss of logits that are never stored whole, against the loss of logits that are."""

from typing import Any

import numpy as np
import pytest
from cases import DTYPES
from process import run_code
from test_memory import linux, needs_kernels
from tolerance import far_from

import dualsoft as ds
from dualsoft import accuracy, linear_chunks

Array = np.ndarray[Any, Any]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum", "label_smoothing": 0.1, "z_loss": 0.01},
    {"reduction": "none", "ignore_index": 3, "label_smoothing": 0.2},
    {"reduction": "mean", "ignore_index": -100},
    {"reduction": "none", "label_smoothing": 1.0},
]
SIZES = [(5, 7, 11), (1, 1, 1), (37, 12, 75), (3, 0, 4)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that several rows and classes of them are needed."""
    monkeypatch.setattr(linear_chunks, "BLOCK_ROWS", 16)
    monkeypatch.setattr(linear_chunks, "BLOCK_CLASSES", 32)


class Data:
    """hidden, weight, bias, labels, and the logits in float64."""

    def __init__(self, key: str, rows: int, dim: int, classes: int) -> None:
        rng = np.random.default_rng([rows, dim, classes])
        dt = DTYPES[key]
        self.hidden = rng.standard_normal((rows, dim)).astype(dt)
        self.weight = rng.standard_normal((classes, dim)).astype(dt)
        self.bias = rng.standard_normal(classes).astype(dt)
        self.labels = rng.integers(0, classes, rows)
        self.labels[rows // 2] = min(3, classes - 1)
        self.probabilities = rng.dirichlet(np.ones(classes), rows)
        wide = [a.astype(np.float64) for a in (self.hidden, self.weight, self.bias)]
        self.logits = wide[0] @ wide[1].T + wide[2]


def limit(key: str, dim: int, size: Any, logit: float = 1.0) -> Any:
    """Of gradients; and of logarithms and losses, whose logits are the same sums of dim terms."""
    return accuracy.linear_gradient_bound(size, DTYPES[key], dim=dim, logit=logit)


def usable(options: dict[str, Any], soft: bool) -> dict[str, Any]:
    return {k: v for k, v in options.items() if not (soft and k == "ignore_index")}


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
def test_against_whole_logits(key: str, soft: bool, backend: str) -> None:
    for size in SIZES:
        data = Data(key, *size)
        labels = data.probabilities if soft else data.labels
        for given in OPTIONS:
            options = usable(given, soft)
            with ds.use_backend("reference"):
                want, want_lse = ds.cross_entropy(data.logits, labels, return_lse=True, **options)
            loss, lse = ds.linear_cross_entropy(
                data.hidden, data.weight, labels, bias=data.bias, return_lse=True, **options
            )
            without = ds.linear_cross_entropy(data.hidden, data.weight, labels, bias=data.bias, **options)
            dt = np.float64 if key == "f64" else np.float32
            assert loss.dtype == lse.dtype == without.dtype == dt
            near = limit(key, size[1], np.abs(data.logits).max(initial=1))
            of_total = near * (size[0] if "reduction" in options else 1)
            assert far_from("lse", lse, want_lse, near, dt) is None
            assert far_from("loss", loss, np.asarray(want), of_total, dt) is None
            assert far_from("loss without lse", without, np.asarray(loss, np.float64), of_total, dt) is None


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
def test_gradients(key: str, soft: bool, backend: str) -> None:
    for size in SIZES:
        data = Data(key, *size)
        labels = data.probabilities if soft else data.labels
        for given in OPTIONS:
            options = usable(given, soft)
            grad: Any = np.cos(np.arange(size[0])) if options.get("reduction") == "none" else 0.7
            with ds.use_backend("reference"):
                lse = ds.logsumexp(data.logits, -1)
                of_logits = ds.cross_entropy_backward(grad, data.logits, labels, lse, **options)
            got = ds.linear_cross_entropy_backward(
                grad, data.hidden, data.weight, labels, lse, bias=data.bias, **options
            )
            hidden, weight = data.hidden.astype(np.float64), data.weight.astype(np.float64)
            # Errors of a gradient of the logits are relative to the probability and the target, whose sums are these.
            size_of = np.abs(of_logits) + np.exp(data.logits - lse[:, None]) * np.max(np.abs(grad))
            for name, exact, largest in (
                ("hidden", of_logits @ weight, size_of @ np.abs(weight)),
                ("weight", of_logits.T @ hidden, size_of.T @ np.abs(hidden)),
                ("bias", of_logits.sum(0), size_of.sum(0)),
            ):
                found = getattr(got, name)
                assert found.dtype == DTYPES[key]
                assert found.shape == exact.shape
                near = limit(key, size[1], largest, np.abs(data.logits).max(initial=1))
                assert (np.abs(found.astype(np.float64) - exact) <= near).all(), (name, size, options)


def test_the_mean_of_logits_that_are_alike(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each addition loses is the same then, and must not add up over the classes of a block."""
    monkeypatch.setattr(linear_chunks, "BLOCK_CLASSES", 2048)
    hidden, weight = np.full((3, 1), 1.7, np.float16), np.full((4096, 1), 1000, np.float16)
    weight[::7] = 1001
    logits = hidden.astype(np.float64) @ weight.astype(np.float64).T
    want = ds.logsumexp(logits, 1) - logits.mean(1)
    loss = ds.linear_cross_entropy(hidden, weight, [0, 1, 2], label_smoothing=1, reduction="none")
    ulps = accuracy.bound("linear_cross_entropy", np.float32, n=4096, spread=0.0).ulp
    assert (np.abs(loss - want) <= ulps * accuracy.ulp(logits.max(), np.float32)).all()


def test_gradients_of_many_rows_do_not_drift() -> None:
    """4096 blocks of rows that are alike, so that each addition loses the same."""
    rows = 2**16
    hidden, weight = np.full((rows, 1), 1.3, np.float32), np.array([[-0.3], [0.9], [0.1]], np.float32)
    exact = np.exp(weight[:, 0].astype(np.float64) * hidden[0, 0])
    p, target = exact / exact.sum(), np.array([1, 0, 0])
    _, lse = ds.linear_cross_entropy(hidden, weight, np.zeros(rows, int), return_lse=True)
    grads = ds.linear_cross_entropy_backward(1.0, hidden, weight, np.zeros(rows, int), lse, reduction="sum")
    want, size = (rows * hidden[0, 0] * each[:, None] for each in (p - target, p + target))
    assert far_from("weight", grads.weight, want, limit("f32", 1, size, 1.3), np.float32) is None


def test_rows_that_do_not_count_are_not_read(backend: str) -> None:
    data = Data("f32", 9, 4, 6)
    data.labels[:] = np.arange(9) % 6
    clean = data.hidden.copy()
    data.hidden[3] = np.nan
    options: dict[str, Any] = {"ignore_index": 3}
    loss, lse = ds.linear_cross_entropy(data.hidden, data.weight, data.labels, return_lse=True, **options)
    assert loss == ds.linear_cross_entropy(clean, data.weight, data.labels, **options)
    got = ds.linear_cross_entropy_backward(1.0, data.hidden, data.weight, data.labels, lse, **options)
    want = ds.linear_cross_entropy_backward(1.0, clean, data.weight, data.labels, lse, **options)
    assert not got.hidden[3].any()
    assert np.isfinite(got.weight).all()
    assert far_from("weight", got.weight, want.weight.astype(np.float64), limit("f32", 4, 4.0), np.float32) is None
    assert got.bias is None


def test_leading_axes_strides_and_mixed_dtypes(backend: str) -> None:
    data = Data("f64", 12, 5, 7)
    hidden = data.hidden.reshape(2, 6, 5)
    labels = data.labels.reshape(2, 6)
    loss, lse = ds.linear_cross_entropy(hidden, data.weight, labels, reduction="none", return_lse=True)
    assert loss.shape == lse.shape == (2, 6)
    flat = ds.linear_cross_entropy(data.hidden, data.weight, data.labels, reduction="none")
    np.testing.assert_array_equal(loss.ravel(), flat)
    strided = np.asfortranarray(np.repeat(data.weight, 2, 0))[::2][::-1]
    turned = ds.linear_cross_entropy(hidden, strided, 6 - labels, reduction="none")
    assert far_from("loss", turned, loss, limit("f64", 5, 20.0), np.float64) is None
    got = ds.linear_cross_entropy_backward(np.ones((2, 6)), hidden, strided, 6 - labels, lse, reduction="none")
    assert got.hidden.shape == (2, 6, 5)
    one = ds.linear_cross_entropy(data.hidden[0], data.weight, data.labels[0], reduction="none")
    assert type(one) is np.float64
    half = ds.linear_cross_entropy(data.hidden.astype(np.float16), data.weight.astype(np.float32), data.labels)
    assert half.dtype == np.float32
    whole = ds.linear_cross_entropy_backward(
        1.0, np.eye(3, dtype=int), np.eye(3, dtype=np.float32), [0, 1, 2], np.zeros(3)
    )
    assert (whole.hidden.dtype, whole.weight.dtype) == (np.float64, np.float32)


def test_state_as_lse_and_bias_that_hides_classes(backend: str) -> None:
    data = Data("f32", 4, 3, 5)
    bias = np.array([0, 0, -np.inf, 0, 0], np.float32)
    labels = np.array([0, 1, 3, 2])
    loss = ds.linear_cross_entropy(data.hidden, data.weight, labels, bias=bias, reduction="none")
    assert np.isfinite(loss[:3]).all()
    assert loss[3] == np.inf
    logits = data.hidden @ data.weight.T + bias
    got = ds.linear_cross_entropy_backward(
        1.0, data.hidden, data.weight, labels, ds.softmax_state(logits, -1), bias=bias, reduction="sum"
    )
    of_logits = ds.cross_entropy_backward(1.0, logits, labels, ds.softmax_state(logits, -1), reduction="sum")
    assert far_from("bias", got.bias, of_logits.sum(0, np.float64), limit("f32", 3, 4.0), np.float32) is None


def test_empty(backend: str) -> None:
    weight = np.ones((4, 3), np.float32)
    assert np.isnan(ds.linear_cross_entropy(np.zeros((0, 3), np.float32), weight, []))
    got = ds.linear_cross_entropy_backward(1.0, np.zeros((0, 3), np.float32), weight, [], np.zeros(0))
    assert got.hidden.shape == (0, 3)
    assert not got.weight.any()


PEAK = """
import resource, numpy as np, dualsoft as ds
hidden, weight = np.ones((1024, 64), np.float32), np.ones((49152, 64), np.float32)
labels = np.arange(1024)
ds.linear_cross_entropy(hidden[:2], weight[:9], labels[:2])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
loss, lse = ds.linear_cross_entropy(hidden, weight, labels % 7, return_lse=True)
middle = peak()
ds.linear_cross_entropy_backward(1.0, hidden, weight, labels % 7, lse)
print(middle - before, peak() - middle)
"""


@needs_kernels
@linux
def test_memory_is_a_small_part_of_the_logits() -> None:
    """Less than an eighth of their 192 MiB, beside the gradients themselves."""
    forward, backward = map(int, run_code(PEAK).split())
    assert forward < 192 / 8
    assert backward < 192 / 8 + 12.25  # the gradients of hidden and weight
