"""The ULP table: the kernels' exp and log1p by level and dtype; at most 1 ulp on their whole domain (``-s`` prints it).

The functions of the family take exponentials up to [-inf, 16] (weights are at most 1; logarithms near 0 are summed
unshifted) and log1p of rests in [-1/2, inf].
"""

from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import pytest

Array = np.ndarray[Any, Any]
MAX_ULP = 1.0
POINTS = 400_000
EXP_END = 16
LOG1P_START = -0.5
LEAST = {np.float32: -149, np.float64: -1074}  # exponent of the least subnormal


def exp_points(dtype: Any) -> Array:
    """[-inf, 16]: dense near 0 and the end, random over the exponents, along the subnormal results and past them."""
    random = np.random.default_rng(1)
    zero = float(LEAST[dtype] * np.log(2)) - 0.7
    normal_end = float((LEAST[dtype] + np.finfo(dtype).nmant) * np.log(2))
    tiny = np.ldexp(random.choice([-1, 1], POINTS // 8), random.integers(LEAST[dtype], 0, POINTS // 8))
    powers = np.arange(-24, 1100)[:, None] * -np.log(2)
    parts = [
        random.uniform(zero, 0, POINTS // 2),
        random.uniform(0, EXP_END, POINTS // 4),
        random.uniform(zero, normal_end, POINTS // 8),  # subnormal results
        np.linspace(-1, 1, POINTS // 8),
        powers + np.linspace(-1e-3, 1e-3, 9),  # where 2^n changes
        powers - np.log(2) / 2 + np.linspace(-1e-3, 1e-3, 9),  # where the reduction does
        [0.0, -0.0, 1.0, EXP_END, zero, zero - 1, -1e4, -np.finfo(dtype).max, -np.inf],
        tiny * random.uniform(1, 2, tiny.size),
    ]
    x = np.concatenate([np.ravel(p) for p in parts])
    x = x[x <= EXP_END].astype(dtype)
    last = dtype(zero + 0.7 - np.log(2))  # where the result turns to zero
    bits = last.view(f"i{last.itemsize}") + np.arange(-4000, 4000)
    return np.concatenate([x, bits.astype(f"i{last.itemsize}").view(dtype)])


def log1p_points() -> Array:
    """[-1/2, inf]: both signs over the exponents, dense where the reduction changes."""
    random = np.random.default_rng(2)
    edge = np.sqrt(2) - 1
    parts = [
        np.ldexp(random.random(POINTS // 2) + 1, random.integers(-1074, 1023, POINTS // 2)),
        np.ldexp(random.random(POINTS // 4) + 1, random.integers(-60, 5, POINTS // 4)),
        -np.ldexp(random.random(POINTS // 4) + 1, random.integers(-60, -2, POINTS // 4)),
        -np.ldexp(random.random(POINTS // 16) + 1, random.integers(-1074, -2, POINTS // 16)),
        np.linspace(LOG1P_START, 4, POINTS // 4),
        np.arange(1, 4000) - 1.0,
        np.ldexp(1.0, np.arange(-1074, 1024)),
        np.sqrt(0.5) - 1 + np.linspace(-1e-9, 1e-9, 2001),
        edge + np.linspace(-1e-9, 1e-9, 2001),
        [0.0, np.finfo(float).max, np.finfo(float).tiny, 5e-324, -5e-324, LOG1P_START],
    ]
    return np.concatenate([np.ravel(p) for p in parts])


def exact_log1p(x: Array) -> Array:
    return np.log1p(x.astype(np.longdouble))


def exact_exp(x: Array) -> Array:
    return np.exp(x.astype(np.float64 if x.dtype == np.float32 else np.longdouble))


def ulps(got: Array, want: Array) -> Array:
    """Distance in units of the spacing at ``want``, which below the normal numbers is the least one."""
    info = np.finfo(got.dtype)
    exponent = np.maximum(np.frexp(want)[1] - 1, info.minexp)
    return np.abs(got.astype(want.dtype) - want) / np.ldexp(np.ones_like(want), exponent - info.nmant)


def run_exp(kernels: ModuleType, x: Array) -> Array:
    out = np.full_like(x, np.nan)
    kernels.exp_array(x, out, kernels.F32 if x.dtype == np.float32 else kernels.F64)
    return out


def run_log1p(kernels: ModuleType, x: Array) -> Array:
    out = np.full_like(x, np.nan)
    kernels.log1p_array(x, out)
    return out


TABLE = [
    ("exp", np.float32, f"[-inf, {EXP_END}]", lambda: exp_points(np.float32), run_exp, exact_exp),
    ("exp", np.float64, f"[-inf, {EXP_END}]", lambda: exp_points(np.float64), run_exp, exact_exp),
    ("log1p", np.float64, f"[{LOG1P_START}, inf]", log1p_points, run_log1p, exact_log1p),
]


@pytest.mark.parametrize("row", TABLE, ids=[f"{r[0]}-{r[1].__name__}" for r in TABLE])
def test_table(row: Any, level: str, kernels: ModuleType) -> None:
    function, dtype, domain, points, run, exact = row
    x = points()
    with np.errstate(all="ignore"):
        want = exact(x)
        error = ulps(run(kernels, x), want)
    worst = int(np.nanargmax(error))
    print(
        f"\n{function:6} {dtype.__name__:8} {domain:12} {level:14} {error[worst]:.4f} ulp at {float(x[worst])!r}",
        end="",
    )
    assert not np.isnan(error).any(), f"not finite at {x[np.isnan(error)][:5]}"
    assert error[worst] <= MAX_ULP, f"{error[worst]} ulp at {float(x[worst])!r}"


def test_every_float32_near_its_range_ends(level: str, kernels: ModuleType) -> None:
    """All float32 numbers in [-2^-8, -2^-9] and in the last part of the subnormal results."""
    for first, last in ((2.0**-9, 2.0**-8), (87.0, 104.5)):
        ends = np.float32([first, last]).view(np.int32)
        x = -np.arange(ends[0], ends[1] + 1, dtype=np.int32).view(np.float32)[::4]
        error = ulps(run_exp(kernels, np.ascontiguousarray(x)), exact_exp(x))
        assert error.max() <= MAX_ULP, f"{error.max()} ulp at {x[error.argmax()]!r}"


def test_exact_points(level: str, kernels: ModuleType) -> None:
    for dtype in (np.float32, np.float64):
        x = np.array([-np.inf, 0.0, -0.0, np.nan, -1e30, -np.finfo(dtype).max], dtype)
        got = run_exp(kernels, x)
        np.testing.assert_array_equal(got, np.array([0, 1, 1, np.nan, 0, 0], dtype))
        assert not np.signbit(got[0])
    x = np.array([0.0, np.inf, np.nan, 5e-324, -5e-324])
    np.testing.assert_array_equal(run_log1p(kernels, x), x)


def test_longdouble_is_wide_enough() -> None:
    """The float64 rows of the table are only as good as longdouble: checked against 40 digits."""
    random = np.random.default_rng(3)
    with mpmath.workdps(40):
        for x in random.uniform(-740, EXP_END, 200):
            want = mpmath.exp(mpmath.mpf(float(x)))
            got = np.exp(np.longdouble(x))
            high = float(got)
            mantissa = mpmath.mpf(high) + mpmath.mpf(float(got - np.longdouble(high)))
            assert abs(mantissa - want) <= abs(want) * mpmath.mpf(2) ** -60 + mpmath.mpf(2) ** -1074
        for x in random.uniform(LOG1P_START, 50, 200):
            got = np.log1p(np.longdouble(x))
            high = float(got)
            assert (
                abs(mpmath.mpf(high) + mpmath.mpf(float(got - np.longdouble(high))) - mpmath.log1p(float(x)))
                <= 2.0**-58
            )


@pytest.mark.parametrize("n", [*range(1, 40), 1000])
def test_position_in_the_array_does_not_matter(n: int, level: str, kernels: ModuleType) -> None:
    for dtype in (np.float32, np.float64):
        values = exp_points(dtype)[: 40 * 7 : 7]
        alone = np.concatenate([run_exp(kernels, values[k : k + 1].copy()) for k in range(40)])
        got = run_exp(kernels, np.ascontiguousarray(np.resize(values, n)))
        np.testing.assert_array_equal(got, np.resize(alone, n))
