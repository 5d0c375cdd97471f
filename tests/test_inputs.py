"""What is taken as an array, and the dtype and kind of what comes back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import DTYPES, normal

import dualsoft as ds

Array = np.ndarray[Any, Any]
f2, f4, f8, bf = np.float16, np.float32, np.float64, DTYPES["bf16"]
same = np.testing.assert_array_equal


class Frame:
    """Something that NumPy can convert, as a data frame is."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.values if dtype is None else self.values.astype(dtype)


@pytest.mark.parametrize("f", [ds.softmax, ds.log_softmax, ds.logsumexp, ds.cumulative_logsumexp])
def test_array_likes(f: Callable[..., Any], backend: str, tmp_path: Path) -> None:
    x = normal("f64", 3, 4)
    want = f(x, 1)
    stored = np.memmap(tmp_path / "x", np.float64, "w+", shape=(3, 4))
    stored[...] = x
    for given in (x.tolist(), tuple(map(tuple, x.tolist())), Frame(x), x.view(np.matrix), stored, x.view(np.recarray)):
        got = f(given, 1)
        assert type(got) is np.ndarray
        same(got, want)


def test_options_are_array_likes(backend: str) -> None:
    x = normal("f32", 3, 4)
    same(ds.softmax(x, 1, where=[True, False, True, True]), ds.softmax(x, 1, where=np.array([1, 0, 1, 1], bool)))
    same(ds.softmax(x, 1, scale=[[1], [2], [3]]), ds.softmax(x, 1, scale=np.array([[1.0], [2.0], [3.0]])))
    same(ds.logsumexp(x, 1, [1, 2, 3, 4]), ds.logsumexp(x, 1, np.array([1, 2, 3, 4])))
    same(ds.softmax(x, 1, dtype="float64"), ds.softmax(x, 1, dtype=np.dtype(f8)))
    same(ds.softmax(x, np.int8(1)), ds.softmax(x, 1))
    same(ds.softmax(x, 1, where=np.True_), ds.softmax(x, 1))


def test_scalars(backend: str) -> None:
    for x, dtype in ((3, f8), (3.0, f8), (True, f8), (f4(3), f4), (f2(3), f2), (np.int8(3), f8), (np.array(3, bf), bf)):
        for f, want in ((ds.softmax, 1), (ds.log_softmax, 0), (ds.logsumexp, float(x))):
            got = f(x)
            assert got == want
            assert got.dtype == dtype
            assert np.isscalar(got) or type(got) is np.dtype(dtype).type
    state = ds.softmax_state(3.0)
    assert (state.m, state.d, state.lse) == (3, 1, 3)
    assert isinstance(state.lse, f8)


# dtypes of a and b -> of the result
PAIRS = [
    (f4, f4, f4), (f4, f8, f8), (f8, f4, f8), (f2, f2, f2), (f2, f4, f4), (bf, bf, bf), (bf, f4, f4), (f2, f8, f8),
    (np.int64, np.int64, f8), (np.bool_, np.bool_, f8), (f4, np.int8, f4), (f4, np.int16, f4), (f4, np.int32, f8),
    (f2, np.int8, f2), (np.int32, f4, f8), (f4, np.bool_, f4),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "result"), PAIRS, ids=lambda d: np.dtype(d).name)
def test_result_type_of_a_and_b(a: Any, b: Any, result: Any, backend: str) -> None:
    value, sign = ds.logsumexp(np.ones(3, a), b=np.ones(3, b), return_sign=True)
    assert value.dtype == sign.dtype == result
    assert sign == 1


def test_python_numbers_are_weak(backend: str) -> None:
    for dtype in DTYPES.values():
        assert ds.logsumexp(np.ones(3, dtype), b=2.0).dtype == dtype
        assert ds.logsumexp(np.ones(3, dtype), b=2).dtype == dtype


@pytest.mark.parametrize("key", DTYPES)
def test_options_never_change_the_dtype(key: str, backend: str) -> None:
    x = normal(key, 3, 4)
    for scale in (2, 2.0, f8(2), np.full((3, 1), 2.0), np.int64(2)):
        for f in (ds.softmax, ds.log_softmax, ds.logsumexp):
            assert f(x, 1, scale=scale).dtype == x.dtype
    assert ds.softmax_state(x, 1).m.dtype == ds.softmax_state(x, 1).lse.dtype == f8


def test_results_are_native(backend: str) -> None:
    for code in (">f4", ">f8", ">f2", ">i4"):
        got = ds.softmax(np.arange(5).astype(code))
        assert got.dtype.isnative
        np.testing.assert_array_equal(got, ds.softmax(np.arange(5).astype(code[1:])))


def test_integers_are_converted_before_arithmetic(backend: str) -> None:
    """-128 - 127 wraps in int8, 0 - 1 in unsigned, and 2^53 + 1 has no float64."""
    for code in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"):
        low, high = (0, 1) if code == "?" else (np.iinfo(code).min, np.iinfo(code).max)
        x = np.array([low, high, low], code)
        same(ds.softmax(x), ds.softmax(x.astype(f8)))
        same(ds.logsumexp(x), ds.logsumexp(x.astype(f8)))
        same(ds.log_softmax(x[::-1]), ds.log_softmax(x.astype(f8)[::-1]))


@pytest.mark.parametrize("key", DTYPES)
def test_wider_dtype_is_wider_arithmetic(key: str, backend: str) -> None:
    """dtype= computes as if the input had been widened first."""
    x = normal(key, 3, 1000)
    same(ds.softmax(x, 1, dtype=f8), ds.softmax(x.astype(f8), 1))
    same(ds.logsumexp(x, 1, dtype=f8), ds.logsumexp(x.astype(f8), 1))
    if x.dtype.itemsize == 2:
        same(ds.softmax(x, 1), ds.softmax(x.astype(f4), 1).astype(x.dtype))
        same(ds.logsumexp(x, 1), ds.logsumexp(x.astype(f4), 1).astype(x.dtype))


def test_as_many_axes_as_numpy_has(backend: str) -> None:
    most = 64 if int(np.__version__.split(".")[0]) > 1 else 32
    x = normal("f32", 5).reshape((1,) * (most - 2) + (5, 1))
    same(ds.softmax(x, -2), ds.softmax(x.ravel()).reshape(x.shape))
    same(ds.softmax(x, -1), np.ones(x.shape, f4))
    same(ds.logsumexp(x, tuple(range(most))), ds.logsumexp(x.ravel()))
