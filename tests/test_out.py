"""``out=``: right through any strides, in place, over any overlap, and only inside itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import DTYPES, LAYOUTS, normal

import dualsoft as ds

Array = np.ndarray[Any, Any]
ROWS: dict[str, Callable[..., Array]] = {"softmax": ds.softmax, "log_softmax": ds.log_softmax}
SHAPES = [((6, 37), 0), ((6, 37), 1), ((6, 37), None), ((3, 5, 260), (0, 2)), ((2, 4100), 1), ((700, 9), 0)]
WRITABLE = [name for name in LAYOUTS if "read-only" not in name]


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8)


def same_bits(got: Array, want: Array, label: str) -> None:
    np.testing.assert_array_equal(bits(got), bits(want), err_msg=label)


def cumulative(x: Array, axis: Any, out: Array | None = None) -> Array:
    return ds.cumulative_logsumexp(x, axis, out=out)


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", [*ROWS, "normalize", "cumulative"])
def test_strides_of_out(name: str, key: str, backend: str) -> None:
    for shape, axis in SHAPES:
        if name == "cumulative" and type(axis) is not int:
            continue
        x = normal(key, *shape)
        f = {"normalize": ds.softmax_state(x, axis).normalize, "cumulative": cumulative, **ROWS}[name]
        want = f(x, axis)
        for layout in WRITABLE:
            out = LAYOUTS[layout](np.full(shape, 7, x.dtype))
            root = out
            while isinstance(root.base, np.ndarray):
                root = root.base
            before = root.copy()
            assert f(x, axis, out=out) is out
            same_bits(out, want, f"{layout}, {shape}, axis {axis}")
            # what lies between the elements of out is not touched
            written = np.zeros(root.shape, bool) if layout == "steps of 3" else None
            if written is not None:
                written[tuple(slice(1, None, 3) for _ in shape)] = True
                same_bits(root[~written], before[~written], f"outside of out, {layout}, {shape}")


@pytest.mark.parametrize("key", DTYPES)
def test_rows_that_fill_the_cache(key: str, backend: str) -> None:
    """They may keep their exponentials in ``out``: from any place in a line of memory on, and never outside of it."""
    for n in (12_289, 24_600, 50_257, 65_536):
        x = normal(key, 4, n)
        x[1, n - 2], x[2, 5] = np.nan, np.inf
        want = np.full((4, 2 * n), 7, x.dtype)[:, ::2]  # gathered, and scattered
        ds.softmax(x, -1, out=want)
        assert np.isfinite(want[0].astype(np.float64)).all()
        in_place = x.copy()
        same_bits(ds.softmax(in_place, -1, out=in_place), want, f"in place, n={n}")
        for start in (0, 1, 7, 16):
            memory = np.full(4 * n + 64, 7, x.dtype)
            out = memory[start : start + 4 * n].reshape(4, n)
            ds.softmax(x, -1, out=out)
            same_bits(out, want, f"n={n}, {start} elements into memory")
            assert (memory[:start] == 7).all()
            assert (memory[start + 4 * n :] == 7).all()


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", ROWS)
def test_short_rows_past_the_cache(name: str, key: str, level: str) -> None:
    """Many rows that follow each other go past the cache as one piece, with the bits that a few of them get."""
    f = ROWS[name]
    for n in (5, 16, 50):
        rows = (12 << 20) // (n * DTYPES[key].itemsize) + 5
        x = normal(key, rows, n)
        for start in (0, 3):
            memory = np.full(rows * n + 64, 7, x.dtype)
            out = memory[start : start + rows * n].reshape(rows, n)
            f(x, -1, out=out)
            assert (memory[:start] == 7).all()
            assert (memory[start + rows * n :] == 7).all()
            few = rows // 4 + 1  # whose outputs stay in the cache
            for first in range(0, rows, few):
                part = slice(first, first + few)
                same_bits(out[part], f(x[part], -1), f"n={n}, {start} elements into memory, from row {first} on")
        same_bits(f(x, -1, out=x), out, f"in place, n={n}")


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", ROWS)
def test_in_place(name: str, key: str, backend: str) -> None:
    f = ROWS[name]
    for shape, axis in SHAPES:
        for layout in WRITABLE:
            x = LAYOUTS[layout](normal(key, *shape)).view()
            x = x.copy(order="K") if layout == "C order" else x
            want = f(x.copy(order="K") if layout in ("C order", "Fortran order") else x, axis)
            got = f(x, axis, out=x)
            assert got is x
            same_bits(got, want, f"{layout}, {shape}, axis {axis}")


def overlaps(key: str) -> dict[str, tuple[Array, Array]]:
    """Pairs (x, out) of one memory, none of them exactly in place."""

    def buffer() -> Array:
        return normal(key, 40, 40).ravel()

    line, square = buffer(), buffer().reshape(40, 40)
    one, two, three, four = buffer(), buffer(), buffer(), buffer().reshape(40, 40)
    return {
        "shifted by one element up": (line[:-1].reshape(13, 123), line[1:].reshape(13, 123)),
        "shifted by one element down": (one[1:].reshape(13, 123), one[:-1].reshape(13, 123)),
        "shifted by one row": (four[:-1], four[1:]),
        "transposed in place": (square, square.T),
        "reversed in place": (two, two[::-1]),
        "interleaved": (three[::2], three[1::2]),
        "broadcast row into its rows": (np.broadcast_to((s := buffer().reshape(40, 40))[3], (40, 40)), s),
    }


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", ROWS)
def test_overlap(name: str, key: str, backend: str) -> None:
    for label in overlaps(key):
        for axis in (None, 0, -1):
            x, out = overlaps(key)[label]
            want = ROWS[name](x, axis, out=np.empty_like(out))
            ROWS[name](x, axis, out=out)
            same_bits(out, want, f"{label}, axis {axis}")


def test_overlap_with_another_dtype(backend: str) -> None:
    raw = np.zeros(1600, np.uint8)
    x = raw[:800].view(np.float32)
    x[...] = normal("f32", 200)
    want = ds.softmax(x.copy(), dtype=np.float64)
    same_bits(ds.softmax(x, dtype=np.float64, out=raw.view(np.float64)), want, "wider out over its input")
    raw.view(np.float64)[...] = y = normal("f64", 200)
    want = ds.softmax(y, dtype=np.float32)
    got = ds.softmax(raw.view(np.float64), dtype=np.float32, out=raw[400:1200].view(np.float32))
    same_bits(got, want, "narrower out inside its input")


def test_overlap_with_options(backend: str) -> None:
    raw = np.zeros((8, 40), np.float32)
    where = raw.view(np.bool_)[:, ::4]  # the low byte of each element of out
    where[...] = np.random.default_rng(3).random((8, 40)) < 0.5
    x = normal("f32", 8, 40)
    want = ds.softmax(x, 1, where=where.copy())
    same_bits(ds.softmax(x, 1, where=where, out=raw), want, "out over where")
    scale = np.linspace(-1, 1, 160).reshape(8, 20)
    memory = scale.view(np.float32)
    want = ds.softmax(x, 1, scale=scale[:, :1].copy())
    same_bits(ds.softmax(x, 1, scale=scale[:, :1], out=memory), want, "out over scale")
    b = np.linspace(0.1, 1, 40, dtype=np.float32)
    want = ds.logsumexp(x, 1, b.copy())
    same_bits(ds.logsumexp(x, 1, b, out=b[3:11]), want, "out over b")


@pytest.mark.parametrize("key", DTYPES)
def test_reductions_into_out(key: str, backend: str) -> None:
    x = normal(key, 6, 5, 37)
    for axis, kept, shape in [
        (2, (6, 5, 1), (6, 5)),
        (0, (1, 5, 37), (5, 37)),
        ((0, 2), (1, 5, 1), (5,)),
        (None, (1, 1, 1), ()),
    ]:
        want = ds.logsumexp(x, axis)
        for keepdims, size in ((False, shape), (True, kept)):
            out = np.full((*size, 2), 7, x.dtype)[..., 0]
            got = ds.logsumexp(x, axis, keepdims=keepdims, out=out)
            assert got is out
            same_bits(out.reshape(shape), np.asarray(want), f"axis {axis}, keepdims {keepdims}")
            assert (out.base[..., 1] == 7).all()
        out = np.empty(shape, x.dtype)
        got, sign = ds.logsumexp(x, axis, return_sign=True, out=out)
        assert got is out
        assert (np.asarray(sign) == 1).all()
    first = x[..., 0].copy()
    same_bits(
        ds.logsumexp(x, 2, out=x[..., 0]), ds.logsumexp(np.concatenate([first[..., None], x[..., 1:]], 2), 2), "into x"
    )


def test_big_endian_in_place(backend: str) -> None:
    for native in (normal("f32", 7, 33), normal("f64", 7, 33)):
        x = native.astype(native.dtype.newbyteorder(">"))
        want = ds.softmax(x, 1)
        assert want.dtype == native.dtype
        assert ds.softmax(x, 1, out=x) is x
        same_bits(x.astype(native.dtype), want, "big-endian in place")


def test_result_memory_is_new(backend: str) -> None:
    x = normal("f64", 5, 6)
    assert not np.shares_memory(ds.softmax(x, 1), x)
    assert isinstance(ds.logsumexp(x), np.float64)
    assert isinstance(ds.logsumexp(np.float32(3)), np.float32)


@pytest.mark.parametrize("name", [*ROWS, "normalize", "cumulative"])
def test_out_that_overlaps_itself(name: str, backend: str) -> None:
    strided = np.lib.stride_tricks.as_strided
    for shape, strides, offset in [
        ((3, 4), (4, 4), 0),
        ((3, 4), (8, 4), 0),
        ((3, 4), (-4, 4), 8),
        ((3, 4), (16, 2), 0),
    ]:
        root = np.full(20, 7, np.float32)
        out = strided(root[offset:], shape, strides)
        f = {"normalize": ds.softmax_state(out.copy(), 1).normalize, "cumulative": cumulative, **ROWS}[name]
        for x in (np.ones(shape, np.float32), out):
            with pytest.raises(ValueError, match="out must have each element"):
                f(x, 1, out=out)
            assert (root == 7).all()
    with pytest.raises(ValueError, match="out must have each element"):
        ds.logsumexp(np.ones((3, 4, 5)), 2, out=strided(np.ones(6), (3, 4), (8, 8)))


def test_windows_in_place_are_refused(backend: str) -> None:
    line = np.arange(6, dtype=np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(line, 3, writeable=True)
    with pytest.raises(ValueError, match="strides"):
        ds.softmax(windows, 1, out=windows)
    assert (line == np.arange(6)).all()
