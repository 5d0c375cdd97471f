"""The data of the test matrix: groups of cases for the softmax family, by dtype.

A case is one call's input and options. Groups run whole inside one test, so that ids stay few; the name of a case is
part of every failure message.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Axis = int | tuple[int, ...] | None

DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
INTEGERS = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">u4", ">i8")

# A difference in [first, last] below the maximum makes a subnormal weight; beyond last it is zero.
SUBNORMAL = {"f16": (9.8, 17.4), "bf16": (87.4, 92.0), "f32": (87.4, 103.9), "f64": (708.4, 745.1)}
# The largest common shift that leaves differences of order 1 representable, or the nearest to it.
SHIFT = {"f16": 1e3, "bf16": 1e8, "f32": 1e7, "f64": 1e8}


class Case(NamedTuple):
    name: str
    x: Array
    axis: Axis = -1
    options: Mapping[str, Any] = MappingProxyType({})


def normal(key: str, *shape: int, seed: int = 0, spread: float = 3.0) -> Array:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * spread).astype(DTYPES[key])


# ------------------------------------------------------------------ row lengths: vectors, blocks, cache, threads
def short_rows(key: str) -> Iterator[Case]:
    for n in (*range(1, 71), 96, 127, 128, 129, 255, 256, 257, 258, 511, 513, 1023, 1024, 1025, 1026):
        yield Case(f"3 rows of {n}", normal(key, 3, n))
    yield Case("20001 rows of 5", normal(key, 20001, 5))
    yield Case("3001 rows of 16", normal(key, 3001, 16))


def long_rows(key: str) -> Iterator[Case]:
    for n in (2047, 2049, 4095, 4096, 4097, 4098, 8191, 16384, 16385, 65535, 65536, 65537):
        yield Case(f"2 rows of {n}", normal(key, 2, n))
    yield Case("1 row of 131073", normal(key, 1, 131073))
    yield Case("1 row of 200001, outliers", outliers(key, 1, 200001))


# ------------------------------------------------------------------ what is in the rows
def outliers(key: str, *shape: int) -> Array:
    rng = np.random.default_rng(shape)
    x = rng.standard_normal(shape)
    x[rng.random(shape) < 0.01] *= 1e4 / 3
    return x.clip(-6e4, 6e4).astype(DTYPES[key])


def in_range(key: str, n: int, low: float, high: float) -> Array:
    """A maximum of 0 at a place that is no vector's first, and the rest so far below it."""
    x = -np.linspace(low, high, n).astype(DTYPES[key])
    x[n // 3] = 0
    return x


def data(key: str) -> Iterator[Case]:
    low, high = SUBNORMAL[key]
    dt = DTYPES[key]
    yield Case("outliers", outliers(key, 7, 1000))
    yield Case("subnormal weights", np.stack([in_range(key, 500, low, high), in_range(key, 500, high, high + 20)]))
    yield Case("weights from normal to zero", in_range(key, 3000, low / 2, high * 1.1)[None])
    for n in (1, 2, 33, 1000, 4099):
        yield Case(f"constant, n={n}", np.full((2, n), -7.25, dt))
        yield Case(f"zeros, n={n}", np.zeros((2, n), dt))
    yield Case("zeros, n=70000", np.zeros((1, 70000), dt))  # a sum of ones sticks in float16 at 2048
    for gap in (8.0, 16.0):
        if gap < high:
            # every s - m rounds alike, so nothing averages out
            x = np.full((2, 4097), 0.1 - gap, dt)
            x[:, 1234] = 0.1
            yield Case(f"one maximum, a constant rest {gap} below", x)
    yield Case("common shift up", (normal("f64", 5, 777) + SHIFT[key]).astype(dt))
    yield Case("common shift down", (normal("f64", 5, 777) - SHIFT[key]).astype(dt))
    ties = normal(key, 4, 515)
    ties[:, ::7] = 20
    yield Case("ties at the maximum", ties)
    ramp = np.linspace(-300, 30, 6001)
    yield Case("rising and falling", np.stack([ramp, ramp[::-1]]).astype(dt))
    for n in (2, 5, 40):
        # the maximum and the logarithm of the sum cancel: lse is near 0 while neither is
        yield Case(f"lse near 0, n={n}", (normal("f64", 4000, n, spread=1.5) - np.log(n)).astype(dt))
    rest = [[0, -40], [-40, 0], [-16, 0], [0, -9], [0, -30], [-80, 0]]
    yield Case("tiny rests", np.array(rest, dt))
    wide = np.full((6, 70), -60, dt)
    wide[np.arange(6), [0, 1, 15, 16, 63, 69]] = 0
    yield Case("tiny rests in wide rows", wide)
    sparse = np.full((3, 5000), -np.inf, dt)
    sparse[0, [2500, 4999]] = -2, -3
    sparse[1, 0] = 5
    sparse[2, ::1001] = 1
    yield Case("mostly -inf", sparse)
    yield Case("width one", np.array([[1e4], [-1e4], [0], [5]], dt))
    top = float(np.finfo(dt).max) if key != "bf16" else 3e38
    yield Case("the largest finite values", np.array([[top, -top, 0], [top, top, top], [-top, -top, -top]], dt))


# ------------------------------------------------------------------ axes and shapes
def axes(key: str) -> Iterator[Case]:
    x = normal(key, 3, 5, 4, 6)
    for axis in (None, 0, 1, 2, 3, -1, -3, (0,), (0, 1), (1, 2), (2, 3), (-1, -2), (0, 2), (1, 3), (3, 0), (0, 1, 3)):
        yield Case(f"shape (3, 5, 4, 6), axis {axis}", x, axis)
    yield Case("all axes as a tuple", x, (0, 1, 2, 3))
    for shape, axis in [
        ((300, 37), 0), ((17, 300), 0), ((5000, 3), 0), ((70001, 2), 0), ((2, 70, 33), 1), ((129, 1025), 0),
        ((3, 1000, 16), 1), ((40, 1, 50), (0, 2)), ((1, 77, 1), 1), ((77, 1), 1), ((6, 1, 5), None),
    ]:  # fmt: skip
        yield Case(f"shape {shape}, axis {axis}", normal(key, *shape), axis)
    for shape, axis in [((), None), ((), ()), ((1,), 0), ((4, 5), ()), ((1, 1, 1), (0, 2))]:
        yield Case(f"shape {shape}, axis {axis}", normal(key, *shape), axis)
    for shape, axis in [((0,), 0), ((10, 0), 1), ((0, 10), 1), ((4, 0, 5), 2), ((4, 0, 5), (0, 1)), ((3, 0), None)]:
        yield Case(f"empty, shape {shape}, axis {axis}", np.zeros(shape, DTYPES[key]), axis)


# ------------------------------------------------------------------ layouts: one content, many strides
def unaligned(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def stepped(x: Array) -> Array:
    big = np.full(tuple(3 * n for n in x.shape), 99, x.dtype)
    big[tuple(slice(1, None, 3) for _ in x.shape)] = x
    return big[tuple(slice(1, None, 3) for _ in x.shape)]


def reversed_view(x: Array) -> Array:
    back = (slice(None, None, -1),) * x.ndim
    return np.ascontiguousarray(x[back])[back]


def read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "C order": np.ascontiguousarray,
    "Fortran order": np.asfortranarray,
    "axes swapped": lambda x: np.ascontiguousarray(x.swapaxes(0, -1)).swapaxes(0, -1),
    "axes rolled": lambda x: np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(np.roll(np.arange(x.ndim), 1)),
    "steps of 3": stepped,
    "negative strides": reversed_view,
    "unaligned": unaligned,
    "read-only": read_only,
    "read-only, unaligned, reversed": lambda x: read_only(unaligned(x))[::-1],
}


def layouts(key: str) -> Iterator[Case]:
    for shape, every in [((6, 37), (None, 0, 1)), ((3, 18, 21), (1, (0, 2), -1)), ((2, 4100), (0, 1))]:
        x = normal(key, *shape)
        for name, view in LAYOUTS.items():
            for axis in every:
                yield Case(f"{name}, shape {shape}, axis {axis}", view(x), axis)
        if x.dtype.kind == "f" and key != "bf16":
            swapped = x.astype(x.dtype.newbyteorder(">"))
            for axis in every:
                yield Case(f"big-endian, shape {shape}, axis {axis}", swapped, axis)
                yield Case(f"big-endian, unaligned, shape {shape}, axis {axis}", unaligned(swapped)[::-1], axis)
    line = normal(key, 1, 53)
    for axis in (None, 0, 1):
        yield Case(f"broadcast rows, axis {axis}", np.broadcast_to(line, (5, 53)), axis)
        yield Case(f"broadcast columns, axis {axis}", np.broadcast_to(line.T, (53, 5)), axis)
        yield Case(f"one element everywhere, axis {axis}", np.broadcast_to(line[:, :1], (9, 67)), axis)


# ------------------------------------------------------------------ options
def options(key: str) -> Iterator[Case]:
    x = normal(key, 6, 4, 35)
    rng = np.random.default_rng(5)
    mask = rng.random(x.shape) < 0.6
    holes = mask.copy()
    holes[2] = False
    holes[3, 1] = False
    for axis in (-1, 0, 1, (0, 2), None):
        yield Case(f"where, axis {axis}", x, axis, {"where": mask})
        yield Case(f"where with empty rows, axis {axis}", x, axis, {"where": holes})
    yield Case("where by rows", x, -1, {"where": mask[:, :, :1]})
    yield Case("where by one row", x, -1, {"where": mask[0, 0]})
    yield Case("where all False", x, 0, {"where": False})
    yield Case("where all True, of strides", x, 0, {"where": np.ones((35, 4, 6), bool).T})
    hidden = x.copy()
    hidden[~mask] = 60
    hidden[..., 3][~mask[..., 3]] = np.nan
    hidden[..., 30][~mask[..., 30]] = np.inf
    for axis in (-1, 0):
        yield Case(f"where hides large values, NaN and inf, axis {axis}", hidden, axis, {"where": mask})
    for scale in (1.0, 0.1, 2.5, -1.0, -0.3, 0.0, 3, np.float32(0.7)):
        for axis in (-1, 0, (1, 2)):
            yield Case(f"scale {scale!r}, axis {axis}", x, axis, {"scale": scale})
    by_row = rng.uniform(-2, 2, (6, 4, 1))
    yield Case("scale by row", x, -1, {"scale": by_row})
    yield Case("scale by row, float32", x, -1, {"scale": by_row.astype(np.float32)})
    yield Case("scale by column", x, 0, {"scale": rng.uniform(0, 2, (4, 35))})
    yield Case("scale by row of some axes", x, (0, 2), {"scale": rng.uniform(0.5, 2, (4, 1))})
    yield Case("scale by row, where", x, -1, {"scale": by_row, "where": holes})
    long = normal(key, 2, 5001)
    yield Case("where and scale on long rows", long, -1, {"where": rng.random(long.shape) < 0.3, "scale": 1.7})
    yield Case("where and scale, long columns", long.T, 0, {"where": rng.random(long.T.shape) < 0.3, "scale": 0.6})
    for other in ("f16", "bf16", "f32", "f64"):
        yield Case(f"dtype={other}", x, -1, {"dtype": DTYPES[other]})
        yield Case(f"dtype={other}, axis 0, scale", x, 0, {"dtype": DTYPES[other], "scale": 0.9})


def integers(_: str) -> Iterator[Case]:
    rng = np.random.default_rng(9)
    for code in INTEGERS:
        dt = np.dtype(code)
        low, high = (0, 1) if code == "?" else (max(np.iinfo(dt).min, -300), min(np.iinfo(dt).max, 300))
        x = rng.integers(low, high, (5, 71), endpoint=True).astype(dt)
        x[0, :2] = low, high  # -128 - 127 wraps in int8
        for axis in (-1, 0, None):
            yield Case(f"{dt.str}, axis {axis}", x, axis)
        yield Case(f"{dt.str}, dtype=float32", x, -1, {"dtype": np.dtype(np.float32)})
        yield Case(f"{dt.str}, strided, where, scale", x[::-1, ::2], 1, {"where": x[::-1, ::2] != high, "scale": -0.25})
    for code in ("i8", "u8"):
        top = np.iinfo(code).max
        yield Case(f"{code}, at the end of its range", np.array([[top, top - 5000, 0], [1, 2, 3]], code))


GROUPS = {f.__name__: f for f in (short_rows, long_rows, data, axes, layouts, options, integers)}


@cache
def group(name: str, key: str) -> tuple[Case, ...]:
    return tuple(GROUPS[name](key))
