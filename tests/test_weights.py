"""logsumexp with weights: values and signs against the oracle, for weights of any dtype, shape and layout."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import oracle
import pytest
from cases import DTYPES, LAYOUTS, normal
from conftest import DEVICES, USABLE
from devices import SAME_TEXT, get, is_device, put, runs_the_text_of_sm_80
from oracle import Expected
from tolerance import mismatch

import dualsoft as ds

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    name: str
    a: Array
    b: Any
    axis: Any = -1
    options: dict[str, Any] = {}  # noqa: RUF012 (a constant)


def weights(kind: str, shape: tuple[int, ...], dtype: Any) -> Array:
    random = np.random.default_rng([len(kind), *shape])
    b = random.uniform(0.1, 3, shape)
    if kind == "signed":
        b *= random.choice([-1, 1, 1, 1], shape)
    elif kind == "with zeros":
        b[random.random(shape) < 0.4] = 0
    elif kind == "negative":
        b = -b
    elif kind == "wide":
        b *= 10.0 ** random.uniform(-3, 3, shape)
    return b.astype(dtype)


def cases(key: str) -> Iterator[Case]:
    dt = DTYPES[key]
    for n in (1, 2, 3, 7, 8, 15, 16, 17, 33, 64, 65, 300, 4097, 70001):
        for kind in ("positive", "signed", "with zeros", "negative", "wide"):
            yield Case(f"{kind}, n={n}", normal(key, 2, n), weights(kind, (2, n), dt))
    a = normal(key, 5, 6, 37)
    for axis in (0, 1, 2, (0, 2), (1, 2), None):
        for kind in ("positive", "signed", "with zeros"):
            yield Case(f"{kind}, axis {axis}", a, weights(kind, a.shape, dt), axis)
        yield Case(f"one weight a column, axis {axis}", a, weights("signed", (37,), dt), axis)
        yield Case(f"one weight a row, axis {axis}", a, weights("positive", (6, 1), dt), axis)
    where = np.random.default_rng(2).random(a.shape) < 0.5
    signed = weights("signed", a.shape, dt)
    for axis in (0, 2):
        yield Case(f"where, axis {axis}", a, signed, axis, {"where": where})
        yield Case(f"where and scale, axis {axis}", a, signed, axis, {"where": where, "scale": 0.7})
    yield Case("scale by row", a, signed, 2, {"scale": np.linspace(-1, 2, 30).reshape(5, 6, 1)})
    for layout, view in LAYOUTS.items():
        yield Case(f"b: {layout}", a, view(signed), 1)
        yield Case(f"a and b: {layout}", view(a), view(signed), 2)
    for other in (*("?", "i1", ">f4"), *(("u2", "i8", ">i4") if key != "bf16" else ())):
        b = (np.abs(signed.astype(np.float64)) * 3).astype(other)
        yield Case(f"b of {np.dtype(other).str}", a, b, 2, {"dtype": dt})
    yield Case("a tiny rest", np.array([[0, -40], [-30, 0]], dt), np.array([1, 2], dt))
    yield Case("a tiny negative rest", np.array([[0, -9], [-12, 0]], dt), np.array([[1, -1], [-1, 1]], dt))
    yield Case("far below zero", np.array([[-900, -901.5]], dt), np.array([0.5, -0.25], dt))
    yield Case("a grows to the shape of b", normal(key, 4, 1), weights("positive", (3, 1, 9), dt), (0, 2))


def fits(case: Case, backend: str) -> bool:
    """CuPy has no arrays in the other byte order; long rows take the emulator long, so one kind of weights must do."""
    if not is_device(backend):
        return True
    native = case.a.dtype.isnative and np.asarray(case.b).dtype.isnative
    return native and (case.a.size < 10_000 or case.name.startswith("signed"))


def broadcast(case: Case) -> tuple[Array, Array]:
    return np.broadcast_arrays(case.a, case.b)  # type: ignore[return-value]


@pytest.mark.parametrize("backend", USABLE + DEVICES)
@pytest.mark.parametrize("key", DTYPES)
def test_weights(key: str, backend: str) -> None:
    if runs_the_text_of_sm_80(backend, key):
        pytest.skip(SAME_TEXT)
    with ds.use_backend(backend):
        run_weights(key, backend)


def run_weights(key: str, backend: str) -> None:
    failures, dt = [], DTYPES[key]
    for case in filter(lambda case: fits(case, backend), cases(key)):
        a, b = broadcast(case)
        wide = oracle.wide_type(a.dtype, b.dtype, dt)
        options = {k: v for k, v in case.options.items() if k != "dtype"}
        want, want_sign = oracle.logsumexp(a, case.axis, wide, b=b, **options)
        a, b = put(backend, case.a), put(backend, case.b)
        placed = {k: put(backend, v) for k, v in case.options.items()}
        got, sign = map(get, ds.logsumexp(a, case.axis, b, keepdims=True, return_sign=True, **placed))
        why = mismatch("logsumexp", got, want, dt, backend.partition("-")[0])
        zero = np.zeros_like(want_sign)
        why = why or mismatch("logsumexp", sign, Expected(want_sign, zero, zero, 1), dt)
        plain = get(ds.logsumexp(a, case.axis, b, keepdims=True, **placed))
        same = np.where(np.asarray(sign) < 0, np.nan, got.astype(float))
        if not why and not np.array_equal(plain.astype(float), same, equal_nan=True):
            why = "without return_sign: not the same, or not NaN where the sum is negative"
        if why:
            failures.append(f"{case.name}: {why}")
    if failures:
        pytest.fail(f"{len(failures)} fail\n" + "\n".join(failures[:20]), pytrace=False)


@pytest.mark.parametrize("backend", USABLE + DEVICES)
@pytest.mark.parametrize("key", DTYPES)
def test_weights_of_one_change_nothing(key: str, backend: str) -> None:
    """Within the bound; tiny rests included."""
    for x in (normal(key, 5, 400), np.array([[0, -9.0], [-9.0, 0]], DTYPES[key])):
        want = oracle.logsumexp(x, 1, oracle.wide_type(x.dtype))[0]
        with ds.use_backend(backend):
            got = get(ds.logsumexp(put(backend, x), 1, put(backend, np.ones_like(x)), keepdims=True))
        doubled = want._replace(magnitude=want.magnitude * 2)  # a sum of products rounds once more
        why = mismatch("logsumexp", got, doubled, x.dtype, backend.partition("-")[0])
        assert not why, why


SPECIAL: list[tuple[str, list[float], list[float], float, float]] = [
    # the row, its weights, the logarithm and the sign
    ("+inf", [np.inf, 1], [2, 1], np.inf, 1),
    ("+inf, negative", [np.inf, 1], [-2, 1], np.inf, -1),
    ("infinity minus infinity", [np.inf, np.inf], [1, -2], np.nan, np.nan),
    ("+inf is hidden", [np.inf, 0], [0, 1], 0, 1),
    ("nothing but -inf", [-np.inf, -np.inf], [1, -1], -np.inf, 0),
    ("NaN is hidden", [np.nan, 0], [0, 1], 0, 1),
    ("NaN", [np.nan, 0], [1, 0], np.nan, np.nan),
    ("a weight is NaN", [-np.inf, 0], [np.nan, 1], np.nan, np.nan),
    ("a weight is infinite", [0, 0], [-np.inf, 1], np.inf, -1),
    ("weights are infinite", [0, 0], [-np.inf, np.inf], np.nan, np.nan),
    ("a sum of nothing", [5, 5], [1, -1], -np.inf, 0),
    ("every weight is 0", [5, np.nan], [0, 0], -np.inf, 0),
]


@pytest.mark.parametrize("n", [2, 600, 70_000])
@pytest.mark.parametrize("backend", USABLE + DEVICES)
def test_special_values(n: int, backend: str) -> None:
    """In rows that are served in different ways; all else in them is hidden, or adds nothing."""
    if runs_the_text_of_sm_80(backend, "f64"):
        pytest.skip(SAME_TEXT)
    a, b = np.full((len(SPECIAL), n), np.nan), np.zeros((len(SPECIAL), n))
    b[:, 2::3], a[:, 2::3] = 1, -np.inf
    for row, (_, values, weight, _, _) in enumerate(SPECIAL):
        a[row, [0, -1]], b[row, [0, -1]] = values, weight
    with ds.use_backend(backend), np.errstate(all="ignore"):
        got, sign = map(get, ds.logsumexp(put(backend, a), 1, put(backend, b), return_sign=True))
        plain = get(ds.logsumexp(put(backend, a), 1, put(backend, b)))
    for row, (name, *_, want, want_sign) in enumerate(SPECIAL):
        np.testing.assert_array_equal(got[row], want, err_msg=name)
        np.testing.assert_array_equal(sign[row], want_sign, err_msg=name)
        np.testing.assert_array_equal(plain[row], np.nan if want_sign < 0 else want, err_msg=name)
