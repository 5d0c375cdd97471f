"""The algebra of the running pair, mostly by property."""

import copy
import math
import pickle
from itertools import permutations
from typing import Any

import numpy as np
import oracle
import pytest
from cases import DTYPES, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tolerance import mismatch, relative

import dualsoft as ds

Array = np.ndarray[Any, Any]
State = ds.SoftmaxState
INF = np.inf
same = np.testing.assert_array_equal

finite = st.floats(-1e4, 1e4)
extended = st.one_of(finite, st.sampled_from([-INF, INF, np.nan, 0.0]))
rows = hnp.arrays(np.float64, st.integers(0, 40), elements=extended)
plain_rows = hnp.arrays(np.float64, st.integers(1, 40), elements=finite)


def equal(a: State, b: State) -> None:
    """Equal by bits, where NaN equals NaN and the m beside a NaN d is free."""
    same(a.d, b.d)
    same(a.lse, b.lse)
    same(np.where(np.isnan(a.d), 0, a.m), np.where(np.isnan(b.d), 0, b.m))


def agree(state: State, x: Array, merges: int = 0) -> None:
    """``state`` is that of the whole row ``x``: m is exact, d and lse are within float64's bounds, once per merge."""
    m, d, lse = (
        w._replace(**{k: getattr(w, k)[..., 0] for k in ("value", "magnitude", "spread")})
        for w in oracle.state(x, -1, np.longdouble)
    )
    if not np.isnan(d.value).any():
        same(state.m, m.value.astype(float))
    for got, want, function in ((state.d, d, "softmax_state"), (state.lse, lse, "logsumexp")):
        why = mismatch(function, got, want._replace(magnitude=want.magnitude * (1 + merges)), np.float64)
        assert not why, why


@given(rows)
def test_identity_is_exact(x: Array) -> None:
    state = ds.softmax_state(x, 0)
    none = State.identity(())
    for merged in (ds.merge(state, none), ds.merge(none, state), none | state, state | none):
        equal(merged, state)
    empty = none | none
    assert (empty.m, empty.d, empty.lse) == (-INF, 0, -INF)


@given(rows, rows)
def test_commutative_by_bits(x: Array, y: Array) -> None:
    a, b = ds.softmax_state(x, 0), ds.softmax_state(y, 0)
    equal(a | b, b | a)


@given(plain_rows, plain_rows, plain_rows)
def test_associative_within_the_bound(x: Array, y: Array, z: Array) -> None:
    a, b, c = (ds.softmax_state(part, 0) for part in (x, y, z))
    joined = np.concatenate([x, y, z])
    for merged in ((a | b) | c, a | (b | c), ds.merge(a, b, c), ds.merge(c, a, b)):
        agree(merged, joined, merges=2)


@given(st.lists(rows, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_grouping_is_the_whole(parts: list[Array], random: Any) -> None:
    states = [ds.softmax_state(part, 0) for part in parts]
    while len(states) > 1:  # merge any two, in any order, until one is left
        random.shuffle(states)
        states.append(ds.merge(states.pop(), states.pop()))
    agree(states[0], np.concatenate(parts), merges=len(parts) - 1)


def test_every_permutation() -> None:
    x = normal("f64", 120, seed=3)
    parts = [ds.softmax_state(part, 0) for part in np.split(x, [7, 7, 60])]  # one of them empty
    for order in permutations(parts):
        agree(ds.merge(*order), x, merges=3)


@pytest.mark.parametrize("key", DTYPES)
def test_chunks_of_every_dtype(key: str, backend: str) -> None:
    x = normal(key, 4, 1000)
    wide = oracle.wide_type(x.dtype)
    lse = oracle.state(x, 1, wide)[2]
    want = lse._replace(value=lse.value[:, 0], magnitude=lse.magnitude[:, 0], spread=lse.spread[:, 0])
    precision = np.float64 if wide is np.longdouble else np.float32
    state = State.identity((4,))
    for chunk in np.array_split(x, [1, 8, 8, 500, 999], axis=1):
        by_initial = ds.softmax_state(chunk, 1, initial=state)
        by_merge = ds.merge(state, ds.softmax_state(chunk, 1))
        state = state.update(chunk, 1)
        equal(state, by_initial)
        equal(state, by_merge)
    merged = want._replace(magnitude=want.magnitude * 6)
    why = mismatch("logsumexp", state.lse, merged, np.float64, backend, precision)
    assert not why, why


@pytest.mark.parametrize("key", DTYPES)
def test_normalize_is_softmax(key: str, backend: str) -> None:
    x = normal(key, 5, 7, 300)
    where = np.random.default_rng(1).random(x.shape) < 0.5
    for axis, scale in ((2, None), (0, 0.7), ((0, 2), -1.0), (None, None), (1, np.full((5, 1, 300), 2.0))):
        for options in ({"scale": scale}, {"scale": scale, "where": where}):
            y = ds.softmax_state(x, axis, **options).normalize(x, axis, **options)  # type: ignore[arg-type]
            want = oracle.softmax(x, axis, oracle.wide_type(x.dtype), **options)
            why = mismatch("softmax", y, want, x.dtype, backend)
            assert not why, f"axis {axis}: {why}"


def test_special_pairs(backend: str) -> None:
    def of(*x: float) -> State:
        return ds.softmax_state(np.array(x), 0)

    table = [
        (of(INF), of(1.0), INF, INF),
        (of(INF), of(INF), INF, INF),
        (of(-INF), of(INF), INF, INF),
        (of(-INF), of(-INF), -INF, 0),
        (of(-INF), of(2.0), 2, 1),
    ]
    for a, b, m, d in table:
        for merged in (a | b, b | a):
            assert (merged.m, merged.d) == (m, d)
            assert merged.lse == (m if not math.isfinite(m) else m + math.log(d))
    for other in (of(1.0), of(INF), of(-INF), of(), of(np.nan)):
        assert np.isnan((of(np.nan) | other).d)
        assert np.isnan((other | of(np.nan, 3.0)).lse)


@pytest.mark.parametrize("gap", [20.0, 36.0, 40.0, 100.0, 700.0])
def test_lse_keeps_tiny_rests(gap: float, backend: str) -> None:
    """d = 1 + exp(-gap) rounds to 1; the logarithm keeps exp(-gap), also through merges, packing and pickling."""
    a, b = ds.softmax_state(np.array([0.0]), 0), ds.softmax_state(np.array([-gap]), 0)
    row = np.array([0.0, -gap])
    merged = a | b
    for state in (merged, ds.softmax_state(row, 0), State.unpack(merged.pack()), pickle.loads(pickle.dumps(merged))):
        agree(state, row)
        assert state.lse > 0


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4), elements=extended))
def test_copies_are_equal(x: Array) -> None:
    state = ds.softmax_state(x, -1)
    for other in (
        pickle.loads(pickle.dumps(state)), copy.copy(state), copy.deepcopy(state), state.to("cpu"),
        State.unpack(state.pack()), State.unpack(np.frombuffer(state.pack().tobytes())),
    ):  # fmt: skip
        equal(other, state)
        assert other.shape == state.shape == x.shape[:-1]
        same(np.asarray(other.m), np.asarray(state.m))


def test_pack_is_one_contiguous_array() -> None:
    packed = ds.softmax_state(normal("f32", 4, 9), 1).pack()
    assert packed.flags.c_contiguous
    assert packed.dtype == np.float64
    assert packed.ndim == 1
    other = ds.softmax_state(normal("f32", 4, 9, seed=8), 1)
    equal(State.unpack(packed) | other, ds.softmax_state(normal("f32", 4, 9), 1) | other)


def test_state_is_frozen() -> None:
    state = ds.softmax_state(normal("f64", 3, 4), 1)
    for name in ("m", "d", "lse", "anything"):
        with pytest.raises(AttributeError):
            setattr(state, name, 0)


def test_pair_by_hand(backend: str) -> None:
    state = State(np.array([3.0, -INF]), np.array([2.0, 0.0]))
    same(state.lse, [3 + math.log(2), -INF])
    same((state | State.identity((2,))).d, [2, 0])
    assert State.identity((2, 3)).shape == (2, 3)
    assert State.identity((2,), like=np.zeros(1, np.float32)).m.dtype == np.float64
    left, right = ds.softmax_state(np.array([2.0, 1.0]), 0), ds.softmax_state(np.array([3.0, 0.5]), 0)
    agree(left | right, np.array([2, 1, 3, 0.5]))


@pytest.mark.parametrize("d", [0.4, 1e-3, 1e-20, 1e-300])
def test_a_small_d_is_not_lost(d: float) -> None:
    """Next to the 1 that ``rest`` leaves out it would be, and from 1e-16 on the state would be an empty one."""
    state = State(np.array([700.0, -3.0]), np.array(d))
    for got, m in zip(state.lse, (700.0, -3.0), strict=True):
        np.testing.assert_allclose(got, m + math.log(d), rtol=relative("logsumexp", "float64"))
    assert (state | State.identity((2,))) == state


def test_equality_and_repr() -> None:
    a, b = (ds.softmax_state(np.array([2.0, 1.0, last]), 0) for last in (3.0, 4.0))
    assert a == ds.softmax_state(np.array([3.0, 2.0, 1.0]), 0)
    assert a != b
    assert a != 3
    assert "SoftmaxState" in repr(a)
    assert "1.503" in repr(a)


def test_moving_to_a_device_that_is_not_there() -> None:
    state = ds.softmax_state(np.arange(3.0), 0)
    reason = ds.backends()["cuda"]
    if reason is not None:
        with pytest.raises(RuntimeError, match="cuda"):
            state.to("cuda")
    equal(state.to("cpu"), state)


@settings(max_examples=25)
@given(plain_rows)
def test_bounds_of_d(x: Array) -> None:
    """1 <= d <= n, and the rescaling never raises it above."""
    d = ds.softmax_state(x, 0).d
    assert 1 <= d <= len(x)
