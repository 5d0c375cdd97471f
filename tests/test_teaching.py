"""The trace, and the textbook algorithms with their access and memory counts."""

import tracemalloc
from typing import Any

import attention_oracle
import numpy as np
import oracle
import pytest
from cases import DTYPES, normal
from conftest import DEVICES
from devices import get, put
from test_errors import Foreign
from tolerance import attention_mismatch, mismatch

import dualsoft as ds
from dualsoft import algorithms

COUNTS = {"naive_softmax": (2, 3), "safe_softmax": (3, 4), "online_softmax": (2, 3)}
ATTENTION = ("standard_attention", "chunked_attention")
SHAPES = [  # q, k, v: one head, batches that broadcast, grouped heads, more queries than keys, no keys, one of each
    ((70, 8), (70, 8), (70, 5)),
    ((2, 4, 65, 8), (1, 2, 33, 8), (2, 33, 16)),
    ((1, 2, 1, 16), (3, 1, 100, 16), (1, 100, 3)),
    ((2, 130, 4), (2, 7, 4), (2, 7, 4)),
    ((1, 5, 4), (1, 0, 4), (1, 0, 3)),
    ((1, 1), (1, 1), (1, 1)),
]
EXAMPLE = [2.0, 1.0, 3.0, 0.5]
ROWS = [(None, -np.inf, 0), (2, 2, 1.0), (1, 2, 1.36787944), (3, 3, 1.50321472), (0.5, 3, 1.58529972)]


def test_trace_of_the_worked_example() -> None:
    table = ds.trace(EXAMPLE)
    assert len(table) == len(ROWS)
    for row, want in zip(table, ROWS, strict=True):
        assert (row[0] is None) == (want[0] is None)
        assert row[0] in (None, want[0])
        assert row[1] == want[1]
        np.testing.assert_array_almost_equal_nulp(np.float32(row[2]), np.float32(want[2]))
    assert table[-1][1:] == tuple(table[len(ROWS) - 1])[1:]
    lines = str(table).splitlines()
    assert len(lines) >= len(ROWS) + 1
    for line, words in zip(
        lines[-len(ROWS) :], (("-inf", "0"), ("2",), ("1.3679",), ("1.5032",), ("1.5853",)), strict=True
    ):
        assert all(word in line for word in words), line


def test_trace_is_the_state() -> None:
    x = normal("f64", 200)
    state = ds.softmax_state(x)
    last = ds.trace(x)[-1]
    assert last[1] == state.m
    _, d, _ = oracle.state(x, None, np.longdouble)
    assert not mismatch(
        "softmax_state",
        np.float64(last[2]),
        d._replace(value=d.value[0], spread=d.spread[0], magnitude=d.magnitude[0] * len(x)),
        np.float64,
    )
    assert len(ds.trace([])) == 1


def test_trace_of_special_values() -> None:
    assert ds.trace([-np.inf, 1.0])[-1][1:] == (1, 1)
    assert ds.trace([1.0, np.inf, 2.0])[-1][1:] == (np.inf, np.inf)
    assert np.isnan(ds.trace([1.0, np.nan, 2.0])[-1][2])


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    f = getattr(algorithms, name)
    assert (f.passes, f.accesses_per_element) == COUNTS[name]
    assert f.__doc__
    assert name in f.__name__


@pytest.mark.parametrize("backend", ["reference", *DEVICES])  # the first for NumPy's arrays, which need none
@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", COUNTS)
def test_values(name: str, key: str, backend: str) -> None:
    """Plain loops have no blocked sums: their error grows with the row, so the bound is taken once per 16 elements."""
    f = getattr(algorithms, name)
    for shape, axis in (((3, 4, 65), -1), ((3, 4, 65), 0), ((3, 4, 65), 1), ((2, 2600), -1)):
        x = normal(key, *shape)
        want = oracle.softmax(x, axis, oracle.wide_type(x.dtype))
        slack = 1 + x.shape[axis] // 16
        with ds.use_backend(backend):
            got = get(f(put(backend, x), axis))
        why = mismatch(
            "softmax", got, want._replace(magnitude=want.magnitude * slack), x.dtype, backend.partition("-")[0]
        )
        assert not why, f"{shape}, axis {axis}: {why}"


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("key", ["f32", "f64", "bf16"])
def test_devices_have_the_special_values_of_the_plain_text(key: str, backend: str) -> None:
    """Where nothing guards, both overflow alike; views, integers and empty arrays as well."""
    inf, nan = np.inf, np.nan
    rows = [[0, 1000, 1], [inf, 1, 2], [-inf] * 3, [nan, 1, 2], [-inf, 1, 2], [-inf, inf, 0], [88.5] * 3, [-1000] * 3]
    x = np.array(rows, DTYPES[key])
    given = (x, x[::-1, ::2], x.T, x[:0], x[:, :0], x[0], np.arange(5), np.broadcast_to(x[:, :1], (8, 4)))
    for name in COUNTS:
        f: Any = getattr(algorithms, name)
        for value in given:
            want = f(value)
            with ds.use_backend(backend):
                got = get(f(put(backend, value)))
            assert (got.shape, got.dtype) == (want.shape, want.dtype), name
            unit = 4 * ds.accuracy.unit_roundoff(want.dtype)
            np.testing.assert_allclose(got.astype(float), want.astype(float), unit, unit, err_msg=name)


def test_naive_overflows_and_the_others_do_not() -> None:
    x = np.float32([100.0, 0.0])
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(algorithms.naive_softmax(x)).all()
    for f in (algorithms.safe_softmax, algorithms.online_softmax):
        assert f(x)[0] == 1


def test_a_thousand_random_vectors() -> None:
    """Online and safe softmax differ by rounding only."""
    x = np.random.default_rng(0).uniform(-50, 50, (1000, 64))
    online, safe = algorithms.online_softmax(x), algorithms.safe_softmax(x)
    assert np.abs(online - safe).max() < 1e-12


@pytest.mark.parametrize("name", COUNTS)
def test_memory(name: str) -> None:
    """Peak memory beyond the input: the output and a few temporaries of its size, never more."""
    x = np.zeros((64, 4096))
    f: Any = getattr(algorithms, name)
    f(x[:1])
    tracemalloc.start()
    f(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"\n{name}: {peak / x.nbytes:.2f} times the input", end="")
    assert x.nbytes <= peak < 4.1 * x.nbytes


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_values(name: str, key: str, causal: bool) -> None:
    for shapes in SHAPES:
        q, k, v = (normal(key, *shape) for shape in shapes)
        heads = [x[None] if len(shapes[0]) == 2 else x for x in (q, k, v)]
        want = attention_oracle.attention(*heads, causal=causal)
        got = getattr(algorithms, name)(q, k, v, causal=causal)
        assert got.shape == want.out.shape[-got.ndim :]
        assert (got.ndim == 2) == (len(shapes[0]) == 2)
        why = attention_mismatch(got.reshape(want.out.shape), None, want)
        assert not why, f"{shapes}: {why}"


def test_attention_of_integers_and_a_scale() -> None:
    q, k, v = ([[1, 2]], [[3, 0], [0, 1]], [[4], [8]])
    for name in ATTENTION:
        f = getattr(algorithms, name)
        assert f(q, k, v).dtype == np.float64
        assert f(q, k, v, scale=0).tolist() == [[6.0]]
        # The reference takes other sums, in longdouble.
        with ds.use_backend("reference"):
            np.testing.assert_array_almost_equal_nulp(f(q, k, v), ds.attention(q, k, v), 4)


def test_a_query_without_a_key_gives_0() -> None:
    q, k, v = np.ones((5, 2)), np.ones((3, 2)), np.ones((3, 4))
    for name in ATTENTION:
        out = getattr(algorithms, name)(q, k, v, causal=True)
        assert (out[:2] == 0).all()
        assert (out[2:] == 1).all()


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_errors(name: str) -> None:
    """The arguments are judged as those of ``attention`` are."""
    f = getattr(algorithms, name)
    x = np.ones((2, 3, 4))
    halves = (x.astype(np.float16), x.astype(DTYPES["bf16"]), x)
    for arguments, options, error, word in (
        ((x, x[..., :3], x), {}, ValueError, "head dim"),
        ((x[..., :0], x[..., :0], x), {}, ValueError, "head dim"),
        ((x, x, x[..., :0]), {}, ValueError, "head dim"),
        ((x, x[:, :2], x), {}, ValueError, "length"),
        ((x[:1], x, x), {}, ValueError, "heads"),
        ((x[:, None], x[:, None], np.ones((3, 1, 3, 4))), {}, ValueError, "broadcast"),
        ((x[0, 0], x, x), {}, ValueError, r"q must have the shape .*\(4,\)"),
        ((x.astype(complex), x, x), {}, TypeError, "complex128"),
        ((np.ma.array(x), x, x), {}, TypeError, "masked"),
        ((x, x, x), {"scale": "x"}, TypeError, "scale must be a real number"),
        ((x, x, x), {"scale": [1.0]}, TypeError, "scale must be one real number"),
        ((x, x, x), {"scale": 1j}, TypeError, "scale must be a real number"),
        ((x, x, x), {"scale": 10**400}, TypeError, "scale must be a real number"),
        ((x, x, x), {"causal": "False"}, TypeError, "causal must be True or False"),
        ((x, x, x), {"causal": Foreign()}, TypeError, "causal must be True or False"),
        ((x, x, x), {"causal": np.array([True, False])}, TypeError, "causal must be True or False"),
    ):
        with pytest.raises(error, match=word):
            f(*arguments, **options)
    try:
        promoted = np.result_type(*halves[:2])
    except TypeError:
        with pytest.raises(TypeError, match="q is float16, k bfloat16 and v float64: they have no common dtype"):
            f(*halves)
    else:
        assert f(*halves[:2], halves[0]).dtype == promoted


def test_attention_without_heads() -> None:
    for name in ATTENTION:
        assert getattr(algorithms, name)(*[np.ones((2, 0, 3, 4))] * 3).shape == (2, 0, 3, 4)


def peak_elements(name: str, length: int, dim: int, causal: bool) -> float:
    """What a call has allocated at its peak, beside its result, in float64 elements."""
    f: Any = getattr(algorithms, name)
    x = np.zeros((length, dim))
    f(x[:2], x[:2], x[:2])
    tracemalloc.start()
    out = f(x, x, x, causal=causal)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (peak - out.nbytes) / x.itemsize


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_memory(name: str) -> None:
    """The count is what is allocated, but for small change; to hide keys takes none."""
    count = getattr(algorithms, name).memory
    for length in (512, 1024):
        plain, causal = (peak_elements(name, length, 32, causal) for causal in (False, True))
        ratio = plain / count(length, length, 32)
        print(f"\n{name}, {length}: {ratio:.3f} times the count", end="")
        assert 1 <= ratio < 1.15
        assert causal < plain + 100


def test_chunks_need_the_square_root() -> None:
    """Sixteen times the length: four times the memory, against 256 times."""
    chunked, standard = algorithms.chunked_attention.memory, algorithms.standard_attention.memory
    assert 3.5 < chunked(65536, 65536, 64) / chunked(4096, 4096, 64) < 4
    assert 250 < standard(65536, 65536, 64) / standard(4096, 4096, 64) < 256
    # less than four: NumPy's own buffers have the same size for both, a larger one in NumPy 1
    small, large = (peak_elements("chunked_attention", length, 16, False) for length in (256, 4096))
    assert 2.5 < large / small < 4
    assert peak_elements("chunked_attention", 4096, 16, True) < standard(4096, 4096, 16) / 50
