"""Every error: its type, and a message that names the argument, what came and what was wanted; nothing is written."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from cases import DTYPES

import dualsoft as ds

AxisError = np.exceptions.AxisError
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
FAMILY = {"softmax": ds.softmax, "log_softmax": ds.log_softmax, "logsumexp": ds.logsumexp}
STATE = ds.SoftmaxState(X.max(1), np.exp(X - X.max(1, keepdims=True)).sum(1))


class Foreign:
    """An array of another library: it can be exchanged, but is neither NumPy's nor CuPy's."""

    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("never called")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Sparse:
    """Stands for scipy.sparse, which is recognised by its module."""


class SparseOnDevice:
    """Stands for cupyx.scipy.sparse."""


class DeviceMemory:
    """Numba's device arrays, say: NumPy would copy it to the host without a word."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("never called")


Sparse.__module__ = "scipy.sparse._csr"
SparseOnDevice.__module__ = "cupyx.scipy.sparse._csr"

# what -> (keywords, exception, words of the message)
COMMON: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "axis too large": ({"axis": 2}, AxisError, ("axis", "2")),
    "axis too small": ({"axis": -3}, AxisError, ("axis", "-3")),
    "axis in a tuple": ({"axis": (0, 5)}, AxisError, ("axis", "5")),
    "axis twice": ({"axis": (0, -2)}, ValueError, ("axis", "(0, -2)")),
    "axis no integer": ({"axis": 1.0}, TypeError, ("axis", "1.0", "integer")),
    "axis of strings": ({"axis": ("0",)}, TypeError, ("axis", "'0'", "integer")),
    "axis a list": ({"axis": [0, 1]}, TypeError, ("axis", "[0, 1]", "tuple")),
    "axis a bool": ({"axis": True}, TypeError, ("axis", "True", "integer")),
    "where of ints": ({"axis": 1, "where": np.ones((3, 4), int)}, TypeError, ("where", "int64", "bool")),
    "where of floats": ({"axis": 1, "where": np.ones((3, 4))}, TypeError, ("where", "float64", "bool")),
    "where of a wrong shape": ({"axis": 1, "where": np.ones((2, 4), bool)}, ValueError, ("where", "(2, 4)", "(3, 4)")),
    "where of a higher rank": ({"where": np.ones((1, 3, 4), bool)}, ValueError, ("where", "(1, 3, 4)", "(3, 4)")),
    "scale complex": ({"axis": 1, "scale": 1j}, TypeError, ("scale", "complex")),
    "scale a string": ({"axis": 1, "scale": "2"}, TypeError, ("scale", "<U1")),
    "scale along the reduced axis": ({"axis": 1, "scale": np.ones((3, 4))}, ValueError, ("scale", "(3, 4)", "(3, 1)")),
    "scale of a wrong shape": ({"axis": 1, "scale": np.ones((2, 1))}, ValueError, ("scale", "(2, 1)", "(3, 1)")),
    "dtype an integer": ({"axis": 1, "dtype": np.int32}, TypeError, ("dtype", "int32", "float32")),
    "dtype longdouble": ({"axis": 1, "dtype": np.longdouble}, TypeError, ("dtype", "longdouble")),
    "dtype nonsense": ({"axis": 1, "dtype": "nonsense"}, TypeError, ("dtype", "nonsense")),
    "out no array": ({"axis": 1, "out": [0.0]}, TypeError, ("out", "list")),
    "out of a wrong dtype": ({"axis": 1, "out": "f8"}, TypeError, ("out", "float64", "float32")),
    "out against dtype=": ({"axis": 1, "out": "f4", "dtype": np.float64}, TypeError, ("out", "float32", "float64")),
    "out of a wrong shape": ({"axis": 1, "out": (9, 9)}, ValueError, ("out", "(9, 9)", "(3")),
    "out of a wrong rank": ({"axis": 1, "out": ()}, ValueError, ("out", "()", "(3")),
    "out of one place": ({"axis": 1, "out": "one place"}, ValueError, ("out", "one place")),
    "out read-only": ({"axis": 1, "out": "read-only"}, ValueError, ("out", "read-only")),
    "unknown keyword": ({"axes": 1}, TypeError, ("axes",)),
}


def expect(error: type[Exception], words: tuple[str, ...], call: Callable[[], Any]) -> None:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in: {message}"


def make_out(what: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(what, tuple):
        return np.full(what, 7, np.float32)
    if what == "read-only":
        out = np.full(shape, 7, np.float32)
        out.flags.writeable = False
        return out
    if what == "one place":
        return np.lib.stride_tricks.as_strided(np.full(1, 7, np.float32), shape, (0,) * len(shape))
    return np.full(shape, 7, what) if isinstance(what, str) else what


@pytest.mark.parametrize("case", COMMON.values(), ids=COMMON.keys())
@pytest.mark.parametrize("name", FAMILY)
def test_common(name: str, case: Any, backend: str) -> None:
    keywords, error, words = case
    keywords = dict(keywords)
    out = None
    if "out" in keywords:
        out = keywords["out"] = make_out(keywords["out"], (3,) if name == "logsumexp" else (3, 4))
    expect(error, words, lambda: FAMILY[name](X, **keywords))
    if isinstance(out, np.ndarray):
        assert (out == 7).all()


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("case", [k for k in COMMON if "out" not in k and "dtype" not in k and "keyword" not in k])
def test_nothing_written_on_error(name: str, case: str, backend: str) -> None:
    keywords, error, words = COMMON[case]
    out = np.full((3,) if name == "logsumexp" else (3, 4), 7, np.float32)
    expect(error, words, lambda: FAMILY[name](X, out=out, **keywords))
    assert (out == 7).all()


UNSUPPORTED = {
    "longdouble": np.ones(3, np.longdouble),
    "object": np.array([1, None], object),
    "str": np.array(["a"]),
    "datetime64": np.array(["2020-01-01"], "M8[D]"),
    "timedelta64": np.array([1], "m8[s]"),
    "void": np.zeros(2, [("a", "f4")]),
}


@pytest.mark.parametrize("key", UNSUPPORTED)
@pytest.mark.parametrize("f", [*FAMILY.values(), ds.softmax_state, ds.cumulative_logsumexp], ids=lambda f: f.__name__)
def test_dtype_of_the_input(f: Any, key: str, backend: str) -> None:
    x = UNSUPPORTED[key]
    first = "a" if f is ds.logsumexp else "x"
    expect(TypeError, (first, str(x.dtype), "float32"), lambda: f(x, -1))


@pytest.mark.parametrize("f", [ds.softmax, ds.log_softmax, ds.softmax_state, ds.cumulative_logsumexp])
def test_complex_is_for_logsumexp_only(f: Any, backend: str) -> None:
    expect(TypeError, ("x", "complex128", "float64"), lambda: f(np.ones(3, complex), -1))


@pytest.mark.parametrize("f", [*FAMILY.values(), ds.softmax_state, ds.cumulative_logsumexp], ids=lambda f: f.__name__)
def test_kinds_of_arrays(f: Any) -> None:
    first = "a" if f is ds.logsumexp else "x"
    expect(TypeError, (first, "where="), lambda: f(np.ma.masked_array([1.0, 2.0], [True, False]), -1))
    for sparse in (Sparse(), SparseOnDevice()):
        expect(TypeError, (first, "toarray"), lambda given=sparse: f(given, -1))
    expect(TypeError, (first, "DeviceMemory", "cupy.asarray"), lambda: f(DeviceMemory(), -1))
    expect(TypeError, (first, "Foreign"), lambda: f(Foreign(), -1))


def test_weights(backend: str) -> None:
    expect(ValueError, ("b", "(5,)", "(3, 4)"), lambda: ds.logsumexp(X, 1, np.ones(5)))
    expect(TypeError, ("b", "<U1"), lambda: ds.logsumexp(X, 1, np.array(["x"])))
    expect(TypeError, ("b", "where="), lambda: ds.logsumexp(X, 1, np.ma.masked_array([1.0] * 4, [1, 0, 0, 0])))
    expect(TypeError, ("b", "Foreign"), lambda: ds.logsumexp(X, 1, Foreign()))
    out = np.full(3, 7, np.float32)
    expect(TypeError, ("out", "float32", "float64"), lambda: ds.logsumexp(X, 1, np.ones(4), out=out))
    assert (out == 7).all()


def test_mixed_halves_follow_numpy(backend: str) -> None:
    """float16 with bfloat16: whatever NumPy promotes to, never a guess of ours."""
    a, b = np.ones(3, np.float16), np.ones(3, DTYPES["bf16"])
    try:
        promoted = np.result_type(a, b)
    except TypeError:
        expect(TypeError, ("float16", "bfloat16"), lambda: ds.logsumexp(a, b=b))
    else:
        assert ds.logsumexp(a, b=b).dtype == promoted


def test_cumulative(backend: str) -> None:
    out = np.full((3, 4), 7, np.float32)
    for axis, error, words in [
        (2, AxisError, ("axis", "2")),
        (None, TypeError, ("axis", "None", "integer")),
        ((0, 1), TypeError, ("axis", "(0, 1)", "integer")),
        (True, TypeError, ("axis", "True")),
    ]:
        expect(error, words, lambda axis=axis: ds.cumulative_logsumexp(X, axis, out=out))
    expect(ValueError, ("out", "(3, 4)", "(3, 5)"), lambda: ds.cumulative_logsumexp(X, include_initial=True, out=out))
    expect(AxisError, ("axis",), lambda: ds.cumulative_logsumexp(1.0))
    assert (out == 7).all()


def test_state_constructor() -> None:
    expect(ValueError, ("m", "d", "(2,)", "(3,)"), lambda: ds.SoftmaxState(np.zeros(2), np.ones(3)))
    expect(ValueError, ("d", "-1"), lambda: ds.SoftmaxState(0.0, -1.0))
    expect(TypeError, ("m", "complex"), lambda: ds.SoftmaxState(1j, 1.0))
    expect(TypeError, ("d", "<U1"), lambda: ds.SoftmaxState(0.0, "x"))


def test_state_methods() -> None:
    other = ds.softmax_state(X, 0)
    expect(ValueError, ("(3,)", "(4,)"), lambda: ds.merge(STATE, other))
    expect(ValueError, ("(3,)", "(4,)"), lambda: STATE | other)
    expect(TypeError, ("float",), lambda: ds.merge(STATE, 1.0))  # type: ignore[arg-type]
    expect(ValueError, ("(3,)", "(4,)"), lambda: STATE.update(X, 0))
    expect(ValueError, ("initial", "(3,)", "(4,)"), lambda: ds.softmax_state(X, 0, initial=STATE))
    expect(TypeError, ("initial", "float"), lambda: ds.softmax_state(X, 1, initial=1.0))  # type: ignore[arg-type]
    out = np.full((3, 4), 7, np.float32)
    expect(ValueError, ("(3,)", "(4,)"), lambda: STATE.normalize(X, 0, out=out))
    expect(ValueError, ("out", "(2, 2)", "(3, 4)"), lambda: STATE.normalize(X, 1, out=np.zeros((2, 2), np.float32)))
    assert (out == 7).all()
    expect(ValueError, ("device", "tpu"), lambda: STATE.to("tpu"))


@pytest.mark.parametrize("spoil", ["version", "shape", "length", "dtype", "rank"])
def test_unpack(spoil: str) -> None:
    packed = STATE.pack().copy()
    if spoil == "version":
        packed[0] += 1
    elif spoil == "shape":
        packed[2] = 2.5
    elif spoil == "length":
        packed = packed[:-1]
    elif spoil == "dtype":
        packed = packed.astype(np.float32)
    else:
        packed = packed[None]
    expect(TypeError if spoil == "dtype" else ValueError, (), lambda: ds.SoftmaxState.unpack(packed))


def test_trace_wants_one_axis() -> None:
    expect(ValueError, ("x", "(3, 4)", "one dimension"), lambda: ds.trace(X))


SEVERAL = np.array([True, False])
# what -> (call, exception, words of the message)
CALLS: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "ragged x": (lambda: ds.softmax([[1], [1, 2]]), ValueError, ("x", "list")),
    "ragged where": (lambda: ds.softmax(X, where=[[True], [True, False]]), ValueError, ("where", "list")),
    "num_threads": (lambda: ds.num_threads(np.array([2])), TypeError, ("n must", "[2]", "integer")),
    "set_num_threads": (lambda: ds.set_num_threads(np.array([2])), TypeError, ("n must", "[2]", "integer")),
    "update": (lambda: STATE.update(X, 0), ValueError, ("x has shape (3, 4)", "(4,)", "the state has shape (3,)")),
    "identity of a string": (lambda: ds.SoftmaxState.identity("a"), TypeError, ("shape", "'a'", "integer")),
    "identity of -1": (lambda: ds.SoftmaxState.identity((-1,)), ValueError, ("shape", "(-1,)", "negative")),
    "identity of 2.0": (lambda: ds.SoftmaxState.identity((2.0,)), TypeError, ("shape", "(2.0,)", "integer")),
    "keepdims": (lambda: ds.logsumexp(X, 1, keepdims=SEVERAL), TypeError, ("keepdims", "(2,)", "True or False")),
    "return_sign": (lambda: ds.logsumexp(X, 1, return_sign=SEVERAL), TypeError, ("return_sign", "(2,)")),
    "include_initial": (
        lambda: ds.cumulative_logsumexp(X, include_initial=SEVERAL),
        TypeError,
        ("include_initial", "(2,)"),
    ),
}


# what has a truth value and is none; each would be True
UNTRUE = ("False", np.nan, 1.0, 2, -1, None, [1], (True,), Ellipsis, np.array(1.0), np.float64(1), np.array(["x"]))


@pytest.mark.parametrize("value", UNTRUE, ids=repr)
def test_what_is_no_truth_value(value: Any) -> None:
    expect(TypeError, ("keepdims", "True or False"), lambda: ds.logsumexp(X, 1, keepdims=value))
    expect(TypeError, ("return_sign", "True or False"), lambda: ds.logsumexp(X, 1, return_sign=value))
    expect(TypeError, ("include_initial", "True or False"), lambda: ds.cumulative_logsumexp(X, include_initial=value))


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS.keys())
def test_other_arguments(case: Any) -> None:
    expect(case[1], case[2], case[0])


def test_truth_values_of_numpy_are_taken() -> None:
    for true in (True, 1, np.True_, np.int8(1), np.uint64(1), np.array(True), np.array(1), np.array([True])):
        assert ds.logsumexp(X, 1, keepdims=true).shape == (3, 1)
        causal = ds.attention(X, X, X, causal=true, return_lse=true)
        for got, want in zip(causal, ds.attention(X, X, X, causal=True, return_lse=True), strict=True):
            np.testing.assert_array_equal(got, want)
    for false in (False, 0, np.False_, np.int64(0), np.array(False), np.array([0])):
        assert ds.logsumexp(X, 1, keepdims=false, return_sign=false).shape == (3,)
        np.testing.assert_array_equal(ds.attention(X, X, X, causal=false, return_lse=false), ds.attention(X, X, X))
    assert len(ds.logsumexp(X, 1, return_sign=np.array([1]))) == 2
    assert ds.cumulative_logsumexp(X, include_initial=np.False_).shape == X.shape


def test_packed_lengths_that_overflow() -> None:
    with np.errstate(all="raise"):
        expect(ValueError, ("4 entries", "1e+300"), lambda: ds.SoftmaxState.unpack(np.array([1, 2, 1e300, 1e300])))


def test_quiet_when_numpy_raises() -> None:
    low, high = ds.SoftmaxState(-740.0, 1.5), ds.SoftmaxState(0.0, 1.0)
    with np.errstate(all="raise"):
        assert ds.merge(low, high).d >= 1
        assert ds.SoftmaxState(0.0, np.array([0.0, 1e-310])).lse[0] == -np.inf
        assert ds.trace([0.0, -740.0, -np.inf, np.inf, np.nan])[2].d == 1
        for f in (ds.algorithms.naive_softmax, ds.algorithms.safe_softmax, ds.algorithms.online_softmax):
            f(np.array([0.0, -740.0, -1e4]))
            f(np.array([0, -11], np.float16))
            f(np.array([-np.inf, -np.inf], np.float16))


def test_arrays_of_a_state_stay_read_only() -> None:
    for state in (STATE, ds.softmax_state(X, 1), ds.merge(STATE, STATE), ds.SoftmaxState.unpack(STATE.pack())):
        with pytest.raises(ValueError, match="WRITEABLE"):
            state.m.setflags(write=True)
