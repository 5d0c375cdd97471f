"""sample: its distribution, its filters against their definition, the same draw by every backend, its noise."""

from typing import Any

import numpy as np
import pytest
from cases import DTYPES, normal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

import dualsoft as ds
from dualsoft import philox

Array = np.ndarray[Any, Any]
P = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
DRAWS = 40000


def fits(drawn: Array, p: Array) -> None:
    """A chi-square test of fixed draws: its answer never changes."""
    counts = np.bincount(drawn, minlength=len(p))
    assert counts[p == 0].sum() == 0
    seen = p > 0
    assert seen.sum() == 1 or stats.chisquare(counts[seen], p[seen] * len(drawn)).pvalue > 1e-3, counts


def logits(p: Array, rows: int = DRAWS) -> Array:
    return np.broadcast_to(np.log(p), (rows, len(p)))


@pytest.mark.parametrize(
    ("options", "p"),
    [
        ({}, P),
        ({"temperature": 0.5}, P**2),
        ({"temperature": 3.0}, P ** (1 / 3)),
        ({"top_k": 3}, P * (P > 0.12)),
        ({"top_k": 99}, P),
        ({"min_p": 0.2}, P * (P > 0.07)),
        ({"top_p": 0.7}, P * (P > 0.12)),  # 0.65 is not enough
        ({"top_p": 0.6}, P * (P > 0.2)),
        ({"top_p": 0.0}, P * (P == 0.4)),
        ({"top_p": 1.0}, P),
        ({"top_k": 4, "min_p": 0.3, "top_p": 0.8}, P * (P > 0.2)),  # 0.8 of 0.4 + 0.25 + 0.15 is 0.64
        ({"top_k": 3, "top_p": 0.8}, P * (P > 0.2)),  # 0.65 of 0.8 is enough: renormalised
        ({"temperature": 0.5, "top_p": 0.9}, P**2 * (P > 0.12)),
    ],
    ids=str,
)
def test_distribution(level: str, options: dict[str, Any], p: Array) -> None:
    fits(ds.sample(logits(P), rng=11, **options), p / p.sum())


def test_distribution_of_many(level: str) -> None:
    """More elements than a block, in two groups and one alone."""
    x = np.zeros((DRAWS // 4, 3000), np.float32)
    x[:, 1000:] = -2
    x[:, 2500] = 7
    drawn = ds.sample(x, rng=5)
    group = np.where(drawn == 2500, 2, np.where(drawn < 1000, 0, 1))
    p = np.array([1000, 1999 * np.exp(-2), np.exp(7)])
    fits(group, p / p.sum())
    fits(drawn[group == 0] // 100, np.full(10, 0.1))


def test_rows_and_keys_differ(backend: str) -> None:
    x = np.zeros((50, 1000), np.float32)
    first = ds.sample(x, rng=1)
    assert len(set(first.tolist())) > 40
    assert (first == ds.sample(x, rng=1)).all()
    assert (first != ds.sample(x, rng=2)).sum() > 40
    assert (ds.sample(x) != ds.sample(x)).sum() > 40


def test_generators_move_on() -> None:
    x = np.zeros((8, 1000))
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    first, second = ds.sample(x, rng=one), ds.sample(x, rng=one)
    assert (first != second).any()
    assert (ds.sample(x, rng=other) == first).all()
    assert (ds.sample(x, rng=np.random.PCG64(3)) == first).all()
    state = one.bit_generator.state
    with pytest.raises(ValueError, match="top_p"):
        ds.sample(x, top_p=2, rng=one)
    assert one.bit_generator.state == state, "an error must not use the generator up"


def test_greedy(backend: str) -> None:
    x = np.array([[1, 3, 3], [np.inf, 0, np.inf], [-np.inf, -np.inf, -5], [-np.inf] * 3, [0, np.nan, 9]], np.float32)
    assert ds.sample(x, temperature=0, top_k=1, rng=0).tolist() == [1, 0, 2, -1, -1]
    assert ds.sample(x, temperature=[0, 0, 1, 0, 0], rng=0).tolist() == [1, 0, 2, -1, -1]


def test_rows_without_a_distribution(backend: str) -> None:
    x = normal("f32", 5, 600)
    x[0, 599] = np.nan
    x[1] = -np.inf
    x[2, 3] = np.inf
    x[3, :500] = -np.inf
    for options in ({}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}):
        drawn = ds.sample(x, rng=1, **options)
        assert drawn[:3].tolist() == [-1, -1, -1]
        assert drawn[3] >= 500
        assert 0 <= drawn[4] < 600


def test_ties_at_a_border_go_to_the_lower_index(backend: str) -> None:
    x = np.zeros((3000, 300), np.float32)
    for options, most in (({"top_k": 7}, 7), ({"top_p": 0.1}, 30), ({"top_k": 100, "top_p": 0.1}, 10)):
        assert set(ds.sample(x, rng=2, **options).tolist()) == set(range(most))


def test_options_by_row(backend: str) -> None:
    x = normal("f32", 6, 4, 50)
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {
        "temperature": rng.uniform(0.2, 2, (6, 1)),
        "top_k": rng.integers(1, 60, 4),
        "top_p": rng.uniform(0, 1, (6, 4)),
        "min_p": np.float32(0.01),
    }
    drawn = ds.sample(x, rng=9, **options)
    assert drawn.shape == (6, 4)
    noise = philox.gumbel(philox.random_key(9), np.arange(24), 50).reshape(x.shape)
    for at in np.ndindex(6, 4):
        one = {name: np.broadcast_to(value, (6, 4))[at] for name, value in options.items()}
        assert drawn[at] == by_definition(x[at], noise[at], **one)


def by_definition(
    x: Array, noise: Array, temperature: Any = 1.0, top_k: Any = None, min_p: Any = 0.0, top_p: Any = 1.0
) -> int:
    """One row in the words of the docstring, with its own probabilities; not for draws on a knife's edge."""
    order = sorted(range(len(x)), key=lambda j: (-x[j], j))[:top_k]
    s = (x.astype(np.float64) - float(x.max())) / temperature
    order = [j for j in order if s[j] >= np.log(min_p)] if min_p else order
    weights = np.exp(s[order])
    kept = int(np.searchsorted(np.cumsum(weights), top_p * weights.sum() * (1 - 1e-12))) + 1
    order = order[: max(kept, 1)]
    return max(order, key=lambda j: (s[j] + noise[j], -j))


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("n", [1, 17, 300, 5000, 128256])
def test_the_same_draw_everywhere(level: str, key: str, n: int) -> None:
    x = normal(key, 4, n)
    for options in ({}, {"temperature": 0.3, "top_p": 0.9}, {"top_k": 40, "min_p": 0.02}, {"top_p": 0.4}):
        drawn = ds.sample(x, rng=n, **options)
        with ds.use_backend("reference"):
            assert (drawn == ds.sample(x, rng=n, **options)).all()
        assert (drawn == ds.sample(x.astype(np.float64), rng=n, **options)).all()
        assert (drawn == ds.sample(np.asfortranarray(x)[:, ::-1][:, ::-1], rng=n, **options)).all()
        assert (drawn == ds.sample(x.T, axis=0, rng=n, **options)).all()
        with ds.num_threads(2):
            assert (drawn == ds.sample(x, rng=n, **options)).all()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_options(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 2, 16, 65, 257, 1000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = rng.standard_normal((3, n)).astype(np.float32) * data.draw(st.sampled_from([0.5, 4.0, 300.0]))
    if data.draw(st.booleans()):
        x = np.round(x)
    options = {
        "temperature": data.draw(st.sampled_from([0.0, 1e-320, 1e-3, 0.7, 1.0, 50.0, 1e300])),
        "top_k": data.draw(st.none() | st.integers(1, n + 3)),
        "top_p": data.draw(st.none() | st.floats(0, 1)),
        "min_p": data.draw(st.none() | st.floats(0, 1)),
        "rng": data.draw(st.integers(0, 99)),
    }
    with ds.use_backend("reference"):
        want = ds.sample(x, **options)
    assert (ds.sample(x, **options) == want).all()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temperature": -1.0}, ValueError, ("temperature", "-1.0", "finite")),
        ({"temperature": np.inf}, ValueError, ("temperature", "inf", "finite")),
        ({"temperature": np.nan}, ValueError, ("temperature", "nan")),
        ({"temperature": "1"}, TypeError, ("temperature", "<U1")),
        ({"temperature": np.ones(4)}, ValueError, ("temperature", "(4,)", "(3,)")),
        ({"top_k": 0}, ValueError, ("top_k", "0", "None")),
        ({"top_k": 2.0}, TypeError, ("top_k", "2.0", "integer")),
        ({"top_k": True}, TypeError, ("top_k", "True", "integer")),
        ({"top_p": 1.1}, ValueError, ("top_p", "1.1", "1")),
        ({"min_p": [0.1, 0.2, -0.1]}, ValueError, ("min_p", "-0.1")),
        ({"rng": -1}, ValueError, ("rng", "-1")),
        ({"rng": 1.5}, TypeError, ("rng", "float")),
        ({"axis": 2}, np.exceptions.AxisError, ("axis", "2")),
        ({"logits": np.zeros((3, 0))}, ValueError, ("logits", "(3, 0)")),
        ({"logits": np.zeros((3, 4), complex)}, TypeError, ("logits", "complex128")),
    ],
    ids=str,
)
def test_errors(options: dict[str, Any], error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        ds.sample(**({"logits": np.zeros((3, 4), np.float32)} | options))
    assert all(word in str(caught.value) for word in words), caught.value


def test_no_rows() -> None:
    assert ds.sample(np.zeros((0, 5))).shape == (0,)
    assert ds.sample(np.zeros((0, 0))).shape == (0,)
    assert isinstance(ds.sample([0.0, 1.0]), np.int64)


def test_philox_known_answers() -> None:
    """The vectors that its authors publish."""
    ones, pi = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    for counter, key, want in (
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones, ones), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (pi[:4], pi[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ):
        words = tuple(np.array([word], np.uint64) for word in counter)
        found = philox.philox((key[0], key[1]), (words[0], words[1], words[2], words[3]))
        assert tuple(int(word[0]) for word in found) == want


def test_noise_is_gumbel() -> None:
    noise = philox.gumbel(philox.random_key(3), np.arange(50), 4001)
    assert stats.kstest(noise.ravel(), "gumbel_r").pvalue > 1e-3
    assert abs(np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]) < 0.01


def test_elementary_functions() -> None:
    rng = np.random.default_rng(0)
    u, s = np.exp(rng.uniform(-700, 700, 50000)), -rng.uniform(0, 64, 50000)
    for got, exact in (
        (philox.log(u, np.zeros_like(u)), np.log(u.astype(np.longdouble))),
        (philox.exp(s), np.exp(s.astype(np.longdouble))),
    ):
        assert (np.abs(got - exact) <= 2 * ds.accuracy.ulp(exact, np.float64)).all()
    assert philox.exp(np.array([0.0, -65.0, -np.inf])).tolist() == [1, 0, 0]
