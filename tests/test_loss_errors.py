"""Every error of the losses and gradients: its type, and a message that names the argument; nothing is written."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dualsoft as ds

AxisError = np.exceptions.AxisError
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
LABELS = np.array([0, 3, 1])
LSE = np.zeros(3, np.float32)
W = np.ones((5, 4), np.float32)
UNIFORM = np.full((3, 4), 0.25)

Changes = dict[str, Any]
# what -> (changed arguments, exception, words of the message)
TARGETS: dict[str, tuple[Changes, type[Exception], tuple[str, ...]]] = {
    "label too large": ({"labels": [0, 9, 1]}, ValueError, ("labels", "9", "[1]")),
    "label negative": ({"labels": [0, 3, -1]}, ValueError, ("labels", "-1", "[2]")),
    "label beside ignore_index": ({"labels": [-7, -1, 9], "ignore_index": -7}, ValueError, ("labels", "-1", "-7")),
    "label of 64 bits": ({"labels": np.array([0, 1, 2**64 - 1], np.uint64)}, ValueError, ("labels", str(2**64 - 1))),
    "label with the bits of ignore_index": (
        {"labels": np.array([0, 1, 2**64 - 1], np.uint64), "ignore_index": -1}, ValueError, ("labels", str(2**64 - 1))
    ),
    "ignore_index with the bits of a label": (
        {"labels": [0, -1, 1], "ignore_index": 2**64 - 1}, ValueError, ("labels", "-1 at [1]")
    ),
    "labels of bools": ({"labels": [True, False, True]}, TypeError, ("labels", "bool", "integers")),
    "labels of strings": ({"labels": ["a", "b", "c"]}, TypeError, ("labels", "<U1")),
    "labels complex": ({"labels": [0j, 0j, 0j]}, TypeError, ("labels", "complex128")),
    "labels too few": ({"labels": [0, 1]}, ValueError, ("labels", "(3,)", "(2,)")),
    "float indices": ({"labels": [0.0, 1.0, 2.0]}, ValueError, ("labels", "(3,)", "integers")),
    "ignore_index of a class": (
        {"labels": "probabilities", "ignore_index": 2}, ValueError, ("ignore_index=2", "probabilities")
    ),
    "ignore_index no integer": ({"ignore_index": 1.5}, TypeError, ("ignore_index", "1.5")),
    "ignore_index a bool": ({"ignore_index": True}, TypeError, ("ignore_index", "True")),
    "smoothing above 1": ({"label_smoothing": 1.25}, ValueError, ("label_smoothing", "[0, 1]", "1.25")),
    "smoothing negative": ({"label_smoothing": -0.5}, ValueError, ("label_smoothing", "-0.5")),
    "smoothing NaN": ({"label_smoothing": np.nan}, ValueError, ("label_smoothing", "nan")),
    "smoothing an array": ({"label_smoothing": [0.1]}, TypeError, ("label_smoothing", "(1,)")),
    "smoothing a string": ({"label_smoothing": "0.1"}, TypeError, ("label_smoothing",)),
    "z_loss negative": ({"z_loss": -1e-4}, ValueError, ("z_loss", "-0.0001")),
    "z_loss infinite": ({"z_loss": np.inf}, ValueError, ("z_loss", "inf")),
    "reduction unknown": ({"reduction": "average"}, ValueError, ("reduction", "'average'", "mean")),
    "reduction None": ({"reduction": None}, TypeError, ("reduction", "None")),
    "labels masked": ({"labels": np.ma.array([0, 1, 2])}, TypeError, ("labels", "masked")),
}  # fmt: skip
LOGITS: dict[str, tuple[Changes, type[Exception], tuple[str, ...]]] = {
    "axis too large": ({"axis": 2}, AxisError, ("axis", "2")),
    "axis None": ({"axis": None}, TypeError, ("axis", "None", "integer")),
    "axis a tuple": ({"axis": (1,)}, TypeError, ("axis", "(1,)", "integer")),
    "one-hot integers": ({"labels": np.eye(3, 4, dtype=int)}, ValueError, ("labels", "(3, 4)", "floating-point")),
    "logits complex": ({"logits": X + 0j}, TypeError, ("logits", "complex64")),
    "logits of strings": ({"logits": [["a"]]}, TypeError, ("logits", "<U1")),
}
BACKWARD: dict[str, tuple[Changes, type[Exception], tuple[str, ...]]] = {
    "lse too short": ({"lse": np.zeros(2)}, ValueError, ("lse", "(3,)", "(2,)")),
    "lse with the axis": ({"lse": np.zeros((3, 1))}, ValueError, ("lse", "(3,)", "(3, 1)")),
    "lse complex": ({"lse": np.zeros(3) + 0j}, TypeError, ("lse", "complex128")),
    "state of another shape": ({"lse": ds.SoftmaxState.identity(4)}, ValueError, ("lse", "(3,)", "(4,)")),
    "grad an array for a mean": ({"grad": np.ones(3)}, ValueError, ("grad", "(3,)", "()")),
    "grad too long": ({"grad": np.ones(4), "reduction": "none"}, ValueError, ("grad", "(4,)", "(3,)")),
    "grad complex": ({"grad": 1j}, TypeError, ("grad", "complex128")),
}
OUT: dict[str, tuple[Changes, type[Exception], tuple[str, ...]]] = {
    "out of a wrong dtype": ({"out": np.zeros((3, 4))}, TypeError, ("out", "float32", "float64")),
    "out of a wrong shape": ({"out": np.zeros(3, np.float32)}, ValueError, ("out", "(3, 4)", "(3,)")),
    "out no array": ({"out": [0.0]}, TypeError, ("out", "list")),
    "out read-only": ({"out": "read-only"}, ValueError, ("out", "read-only")),
    "out of one place": ({"out": "one place"}, ValueError, ("out", "one place")),
}
LINEAR: dict[str, tuple[Changes, type[Exception], tuple[str, ...]]] = {
    "weight of another width": ({"weight": np.ones((5, 3))}, ValueError, ("weight", "(3, 4)", "(5, 3)")),
    "weight of one axis": ({"weight": np.ones(4)}, ValueError, ("weight", "(4,)")),
    "hidden a number": ({"hidden": 1.0}, ValueError, ("hidden", "()")),
    "hidden complex": ({"hidden": X + 0j}, TypeError, ("hidden", "complex64")),
    "weight of strings": ({"weight": [["a"] * 4]}, TypeError, ("weight", "<U1")),
    "bias too short": ({"bias": np.ones(4)}, ValueError, ("bias", "(5,)", "(4,)")),
    "bias complex": ({"bias": np.ones(5) + 0j}, TypeError, ("bias", "complex128")),
}
FAMILY: dict[str, tuple[Changes, type[Exception], tuple[str, ...]]] = {
    "axis too large": ({"axis": 2}, AxisError, ("axis", "2")),
    "axis twice": ({"axis": (0, -2)}, ValueError, ("axis", "(0, -2)")),
    "axis a list": ({"axis": [0]}, TypeError, ("axis", "[0]", "tuple")),
    "where of ints": ({"where": np.ones((3, 4), int)}, TypeError, ("where", "int64")),
    "scale of a wrong shape": ({"scale": np.ones((2, 1))}, ValueError, ("scale", "(2, 1)")),
    "grad complex": ({"grad": 1j}, TypeError, ("grad", "complex128")),
    "grad too wide": ({"grad": np.ones((2, 5))}, ValueError, ("grad", "(2, 5)")),
    **OUT,
}

Table = dict[str, tuple[Changes, type[Exception], tuple[str, ...]]]
FUNCTIONS: dict[str, tuple[Callable[..., Any], Changes, Table]] = {
    "cross_entropy": (
        ds.cross_entropy,
        {"logits": X, "labels": LABELS},
        TARGETS | LOGITS | {"return_lse": ({"return_lse": "yes"}, TypeError, ("return_lse", "yes"))},
    ),
    "cross_entropy_backward": (
        ds.cross_entropy_backward,
        {"grad": 1.0, "logits": X, "labels": LABELS, "lse": LSE},
        TARGETS | LOGITS | BACKWARD | OUT,
    ),
    "linear_cross_entropy": (
        ds.linear_cross_entropy, {"hidden": X, "weight": W, "labels": LABELS}, TARGETS | LINEAR
    ),
    "linear_cross_entropy_backward": (
        ds.linear_cross_entropy_backward,
        {"grad": 1.0, "hidden": X, "weight": W, "labels": LABELS, "lse": LSE},
        TARGETS | LINEAR | BACKWARD,
    ),
    "softmax_backward": (ds.softmax_backward, {"grad": X, "y": X, "axis": 1}, FAMILY),
    "log_softmax_backward": (ds.log_softmax_backward, {"grad": X, "y": X, "axis": 1}, FAMILY),
    "logsumexp_backward": (
        ds.logsumexp_backward,
        {"grad": 1.0, "a": X, "lse": LSE, "axis": 1},
        FAMILY
        | {k: v for k, v in BACKWARD.items() if k.startswith(("lse", "state"))}
        | {
            "b of a wrong shape": ({"b": np.ones(5)}, ValueError, ("b", "(5,)", "(3, 4)")),
            "b complex": ({"b": 1j}, TypeError, ("b", "complex128")),
            "sign of a wrong shape": ({"sign": np.ones(5)}, ValueError, ("sign", "(5,)", "(3,)")),
        },
    ),
}  # fmt: skip


def made(name: str, value: Any, width: int) -> Any:
    if name == "labels" and isinstance(value, str):
        return np.full((3, width), 1 / width)
    if name != "out" or not isinstance(value, str):
        return value
    out = np.full((3, 4), 7, np.float32)
    if value == "one place":
        return np.lib.stride_tricks.as_strided(out, (3, 4), (4, 4))
    out.flags.writeable = False
    return out


def ids() -> list[Any]:
    return [
        pytest.param(name, what, id=f"{name}-{what}") for name, (_, _, table) in FUNCTIONS.items() for what in table
    ]


@pytest.mark.parametrize(("name", "what"), ids())
def test_error(name: str, what: str, backend: str) -> None:
    function, arguments, table = FUNCTIONS[name]
    changes, error, words = table[what]
    width = 5 if name.startswith("linear") else 4
    called = {k: made(k, v, width) for k, v in (arguments | changes).items()}
    out = called.get("out")
    before = out.copy() if isinstance(out, np.ndarray) else None
    with pytest.raises(error) as caught:
        function(**called)
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value), str(caught.value)
    if before is not None:
        np.testing.assert_array_equal(out, before)


def test_a_state_is_no_tuple(backend: str) -> None:
    """A tuple is an array of logarithms, not the arrays of a state."""
    got = ds.logsumexp_backward(1.0, np.zeros((2, 3)), (np.log(3), np.log(3)), 1)
    np.testing.assert_allclose(got, np.full((2, 3), 1 / 3))
