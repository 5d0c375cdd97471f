"""Losses and gradients on device arrays: the tests of NumPy arrays with their arrays moved, and what devices add."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import test_linear_loss
import test_losses
from cases import normal
from conftest import DEVICES
from devices import get, put
from moving import LOSSES, Moving

import dualsoft as ds
from dualsoft import linear_chunks

Array = np.ndarray[Any, Any]
NAN = np.nan
BACKENDS = [name for name in DEVICES if name in ("cuda-emulated:sm_80", "cuda")]
KEYS = ("f16", "bf16", "f32", "f64")

SHARED: list[tuple[str, tuple[Any, ...]]] = [
    *(("test_special_rows", (key,)) for key in KEYS),
    ("test_a_probability_of_0_counts_nothing", ()),
    ("test_smoothing_by_1_leaves_the_label_out", ()),
    *(("test_gradient_at_a_label_that_smoothing_takes_away", (smoothing,)) for smoothing in (0.25, 0.75, 1.0)),
    *(("test_nan_beside_an_infinity", (logarithm,)) for logarithm in ("softmax_state", "logsumexp")),
    *(("test_ignored_rows", (ignored,)) for ignored in (-100, 1, 2**40)),
    ("test_nothing_counts", ()),
    ("test_a_large_common_shift", ()),
    ("test_lse_of_more_than_these_elements", ()),
    ("test_weights_far_from_1", ()),
    ("test_weights_of_0_hide", ()),
    ("test_hidden_elements_get_nothing", ()),
    ("test_the_gradient_at_a_sure_label_keeps_its_accuracy", ()),
    ("test_out_may_be_the_incoming_gradient", ()),
    ("test_gradients_are_those_of_the_functions", ()),
]
LINEAR = ("test_against_whole_logits", "test_gradients")


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for module in (test_losses, test_linear_loss):
        monkeypatch.setattr(module, "ds", Moving(request.param, LOSSES))
    with ds.use_backend(request.param):
        yield request.param


@pytest.mark.parametrize(("name", "given"), SHARED)
def test_as_on_the_host(name: str, given: tuple[Any, ...], device: str) -> None:
    getattr(test_losses, name)(*given, device)


@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_as_on_the_host(name: str, soft: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_chunks, "BLOCK_ROWS", 16)
    monkeypatch.setattr(linear_chunks, "BLOCK_CLASSES", 32)
    getattr(test_linear_loss, name)("f32", soft, device)


def test_linear_rows_that_do_not_count(device: str) -> None:
    test_linear_loss.test_rows_that_do_not_count_are_not_read(device)


# ------------------------------------------------------------------ labels that the host does not read
def test_labels_of_no_class(device: str) -> None:
    """Their rows are NaN, and so are totals over them; no other row is, and nothing outside is touched."""
    x = normal("f32", 5, 300)
    labels = np.array([3, -1, 299, 300, 2**40])
    given, there = put(device, x), put(device, labels)
    loss, lse = ds.cross_entropy(given, there, reduction="none", return_lse=True)
    wrong = np.array([False, True, False, True, True])
    np.testing.assert_array_equal(np.isnan(get(loss)), wrong)
    assert np.isfinite(get(lse)).all()
    gradient = get(ds.cross_entropy_backward(1.0, given, there, lse, reduction="sum"))
    np.testing.assert_array_equal(np.isnan(gradient).all(1), wrong)
    np.testing.assert_array_equal(np.isnan(gradient).any(1), wrong)
    assert np.isnan(get(ds.cross_entropy(given, there)))
    ignored = ds.cross_entropy(given[:2], there[:2], ignore_index=-1)
    np.testing.assert_array_equal(get(ignored), get(loss)[0])
    with pytest.raises(ValueError, match="labels must be within"):
        ds.cross_entropy(given, labels)
    hidden, weight = put(device, normal("f32", 5, 3)), put(device, normal("f32", 300, 3))
    linear = get(ds.linear_cross_entropy(hidden, weight, there, reduction="none"))
    np.testing.assert_array_equal(np.isnan(linear), wrong)
    grads = ds.linear_cross_entropy_backward(1.0, hidden, weight, there, put(device, np.zeros(5)), reduction="sum")
    np.testing.assert_array_equal(np.isnan(get(grads.hidden)).all(1), wrong)


def test_labels_of_the_host_beside_device_logits(device: str) -> None:
    x, labels = put(device, normal("f32", 4, 33)), np.array([0, 5, 32, 5])
    for options in ({}, {"ignore_index": 5}):
        there = ds.cross_entropy(x, put(device, labels), **options)
        np.testing.assert_array_equal(get(ds.cross_entropy(x, labels, **options)), get(there))
        lse = ds.logsumexp(x, -1)
        there = ds.cross_entropy_backward(1.0, x, put(device, labels), lse, **options)
        np.testing.assert_array_equal(get(ds.cross_entropy_backward(1.0, x, labels, lse, **options)), get(there))


# ------------------------------------------------------------------ totals, layouts, in place
def test_totals_of_many_rows(device: str) -> None:
    """More entries than one block adds up."""
    x = np.zeros((9001, 2), np.float32)
    x[:, 0] = 0.125
    labels = np.zeros(len(x), int)
    labels[::3] = 7
    moving = Moving(device, LOSSES)
    one = float(moving.cross_entropy(x[1:2].astype(np.float64), labels[1:2]))
    total = moving.cross_entropy(x, labels, reduction="sum", ignore_index=7)
    assert total == pytest.approx(6000 * one, rel=2.0**-23)
    assert moving.cross_entropy(x, labels, ignore_index=7) == pytest.approx(one, rel=2.0**-23)


@pytest.mark.parametrize("name", test_losses.GRADIENTS)
def test_layouts_and_in_place(name: str, device: str) -> None:
    """One row has one gradient, however it lies; long rows go by segments; the input may be the output."""
    for shape, axis in (((3, 5, 37), 1), ((3, 300), 1), ((2, 8200), 1), ((8200, 2), 0)):
        x = -np.abs(normal("f32", *shape))
        inside = x.copy()
        assert test_losses.GRADIENTS[name](inside, axis, inside) is inside
        test_losses.same_bits(inside, test_losses.GRADIENTS[name](x, axis, None), f"{shape}")
        unaligned = np.zeros(x.size + 1, np.float32)[1:].reshape(shape)
        unaligned[...] = x
        test_losses.same_bits(test_losses.GRADIENTS[name](unaligned, axis, unaligned), inside, f"unaligned, {shape}")


def test_bits_do_not_depend_on_other_rows(device: str) -> None:
    """A row has the same bits in every batch, contiguous or a column; its gradient in both, unless it needs a sum."""
    moving = Moving(device, LOSSES)
    for n in (37, 300, 8200):
        x, grad, lse = normal("f32", 7, n), normal("f32", 7, n, seed=1), np.linspace(8, 10, 7)
        labels = np.array([0, n - 1, 5, 1, 2, 3, 4])
        calls = {
            "cross_entropy": lambda k, x, labels=labels: moving.cross_entropy(
                x[k], labels[k], reduction="none", z_loss=0.1, label_smoothing=0.1
            ),
            "logsumexp_backward": lambda k, x, lse=lse: moving.logsumexp_backward(1.0, x[k], lse[k], -1),
            "softmax_backward": lambda k, x, grad=grad: moving.softmax_backward(grad[k], x[k], -1),
        }
        for name, call in calls.items():
            for layout, arranged in (("rows", x), ("columns", np.asfortranarray(x))):
                together = call(slice(None), arranged)
                for some in (slice(2), slice(3, 6), slice(6, 0, -2)):
                    test_losses.same_bits(call(some, arranged), together[some], f"{name} of {layout}, n={n}, {some}")
        turned = np.asfortranarray(x)
        test_losses.same_bits(
            calls["logsumexp_backward"](slice(None), turned), calls["logsumexp_backward"](slice(None), x), f"n={n}"
        )
