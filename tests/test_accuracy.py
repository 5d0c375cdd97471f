"""The bound itself: never looser than what the documentation promises, affine in the spread, refusing nonsense."""

from typing import Any

import numpy as np
import pytest
from cases import DTYPES
from tolerance import FORMATS

from dualsoft import accuracy

FUNCTIONS = (
    "linear_cross_entropy",
    *("softmax", "log_softmax", "logsumexp", "cumulative_logsumexp", "softmax_state", "exp", "log1p", "cross_entropy"),
    *("softmax_backward", "log_softmax_backward", "logsumexp_backward", "cross_entropy_backward"),
)
# float32 and float64: ulp at spread 0, ulp per unit of spread
PROMISED = {"softmax": (4, 1), "log_softmax": (2, 1), "logsumexp": (2, 1), "exp": (1, 0), "log1p": (1, 0)}
LENGTHS = (1, 10, 1000, 10**6, 2**40)


@pytest.mark.parametrize("function", PROMISED)
@pytest.mark.parametrize("key", DTYPES)
def test_never_looser_than_promised(function: str, key: str) -> None:
    """Half types: the float32 result rounded once, half an ulp and float32's own bound in the half type's ulp."""
    dt = DTYPES[key]
    start, slope = PROMISED[function]
    for n in LENGTHS:
        for spread in (0.0, 1.0, 88.0, 1e4):
            ulp, absolute = accuracy.bound(function, dt, n=n, spread=spread)
            allowed = start + slope * spread
            if key in ("f16", "bf16"):
                allowed = 0.5 + allowed * 2.0 ** (FORMATS[dt.name][0] - FORMATS["float32"][0])
            assert 0 < ulp <= allowed, f"n={n}, spread={spread}: {ulp} > {allowed}"
            assert absolute == 0 or function == "softmax"


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("key", DTYPES)
def test_spread_by_element(function: str, key: str) -> None:
    """An array of spreads gives each element's own bound, and more spread never a tighter one."""
    for n in LENGTHS:
        spreads = np.array([0.0, 1.0, 1000.0])
        each = [accuracy.bound(function, DTYPES[key], n=n, spread=s).ulp for s in spreads]
        together = accuracy.bound(function, DTYPES[key], n=n, spread=spreads).ulp
        np.testing.assert_array_equal(np.broadcast_to(together, 3), each)
        assert each == sorted(each)


def test_named_and_the_same_for_every_way_to_say_the_dtype() -> None:
    bound = accuracy.bound("softmax", np.float32, n=10, spread=2.0)
    assert (bound.ulp, bound.absolute) == tuple(bound)
    assert (
        bound
        == accuracy.bound("softmax", "float32", n=10, spread=2.0)
        == accuracy.bound("softmax", np.dtype("f4"), n=10, spread=2)
    )


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"function": "tanh"}, ValueError, "tanh"),
        ({"dtype": np.int32}, TypeError, "int32"),
        ({"n": -1}, ValueError, "n"),
        ({"spread": -1.0}, ValueError, "spread"),
        ({"n": "3"}, TypeError, "n must be an integer, got '3'"),
        ({"n": None}, TypeError, "n must be an integer, got None"),
        ({"n": 3.5}, TypeError, "n must be an integer, got 3.5"),
        ({"spread": "a"}, TypeError, "spread must be real, got 'a'"),
        ({"spread": None}, TypeError, "spread must be real, got None"),
        ({"spread": np.nan}, ValueError, "spread must be at least 0, got nan"),
        ({"dtype": "zz"}, TypeError, "dtype must be float16.*'zz'"),
        ({"dtype": None}, TypeError, "dtype must be float16.*None"),
        ({"backend": "gpu"}, ValueError, "backend.*'gpu'"),
        ({"backend": 3}, TypeError, "backend must be a string, got 3"),
    ],
)
def test_errors(arguments: dict[str, Any], error: type[Exception], word: str) -> None:
    given: dict[str, Any] = {"function": "softmax", "dtype": np.float32, "n": 4, "spread": 1.0} | arguments
    with pytest.raises(error, match=word):
        accuracy.bound(given.pop("function"), given.pop("dtype"), **given)
