"""Partial results of attention: chunks of keys, merged in any grouping, are the whole."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import attention_oracle
import numpy as np
import pytest
from attention_cases import Shape, operands
from attention_options import make_several
from cases import DTYPES, Array
from devices import ONE
from tolerance import attention_mismatch, attention_tolerance, far_from

import dualsoft as ds

ON_DEVICES = {
    "test_splits": ONE, "test_every_split_in_two": ONE, "test_lengths_by_sequence": ONE,
    "test_one_chunk_is_attention": ONE, "test_sinks_join_at_the_end": ONE, "test_infinite_values_in_one_chunk": ONE,
    "test_one_head_without_its_axis": ONE,
}  # fmt: skip
State = ds.AttentionState
INF, NAN = np.inf, np.nan
same = np.testing.assert_array_equal
SHAPES = (
    Shape((), 2, 1, 17, 90, 12, 10), Shape((2,), 4, 2, 5, 41, 8, 8), Shape((2,), 6, 2, 1, 300, 16, 20),
    Shape((), 1, 1, 70, 33, 4, 4),
)  # fmt: skip
# options that a chunk takes as the whole does, and those with an axis of keys, which is cut
OF_THE_WHOLE = ("causal", "causal_offset", "window", "scale", "softcap", "alibi_slopes", "kv_lengths")
BY_KEY = ("mask", "bias")


@pytest.fixture(params=DTYPES)
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def cut(x: Any, at: slice) -> Any:
    """A mask's or bias's part for the keys of a chunk."""
    return x[..., at] if np.ndim(x) and np.shape(x)[-1] > 1 else x


def chunks(shape: Shape, ends: list[int], q: Array, k: Array, v: Array, options: dict[str, Any]) -> Iterator[State]:
    for start, end in zip([0, *ends], [*ends, shape.seq_len_k], strict=True):
        at = slice(start, end)
        own = {name: cut(value, at) if name in BY_KEY else value for name, value in options.items()}
        yield ds.attention_state(
            q, k[..., at, :], v[..., at, :], key_start=start, key_total=shape.seq_len_k, **own
        )  # fmt: skip


def splits(rng: Any, n: int) -> list[int]:
    """Random ends of chunks, some of which may be empty."""
    return sorted(int(j) for j in rng.integers(0, n, int(rng.integers(0, 6)), endpoint=True))


def merge_randomly(rng: Any, states: list[State]) -> State:
    """Neighbours or not, two or several at a time, either side first."""
    states = list(states)
    while len(states) > 1:
        count = int(rng.integers(2, min(4, len(states)), endpoint=True))
        taken = [states.pop(int(rng.integers(len(states)))) for _ in range(count)]
        states.append(ds.merge(*taken) if count > 2 else taken[0] | taken[1])
    return states[0]


def why_not(state: State, want: Any, v: Array, merges: int, sinks: Any = None) -> str | None:
    """What is wrong with a merged state, or None: each merge rounds both outputs and their sum once more."""
    out, lse = state.finalize(want.dtype, sinks)
    finite = np.abs(v.astype(float)[np.isfinite(v.astype(float))]).max(initial=0)
    more = 3 * (merges + 1) * float(np.finfo(want.lse_dtype).eps / 2) * finite
    return attention_mismatch(out, lse, want, more)


def same_bits(a: State, b: State) -> None:
    for name in ("out", "m", "d"):
        same(np.asarray(getattr(a, name)).view(np.uint8), np.asarray(getattr(b, name)).view(np.uint8), err_msg=name)


# ------------------------------------------------------------------ splits of the keys
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_splits(shape: Shape, key: str, backend: str) -> None:
    q, k, v = operands(key, shape)
    for number in range(12):
        rng = np.random.default_rng([number, shape.seq_len_k])
        count = int(rng.integers(0, len(OF_THE_WHOLE) + len(BY_KEY), endpoint=True)) if number else 0
        names = list(rng.permutation([*OF_THE_WHOLE, *BY_KEY])[:count])
        label, options = make_several(rng, shape, names)
        want = attention_oracle.attention(q, k, v, **options)
        ends = splits(rng, shape.seq_len_k)
        states = list(chunks(shape, ends, q, k, v, options))
        for _ in range(2):
            why = why_not(merge_randomly(rng, states), want, v, len(states))
            assert not why, f"#{number}: {label}; ends {ends}: {why}"


def test_every_split_in_two(key: str, backend: str) -> None:
    shape = Shape((), 2, 1, 7, 20, 5, 6)
    q, k, v = operands(key, shape)
    for options in ({}, {"causal": True}, {"causal": True, "window": (4, 0)}, {"kv_lengths": 13, "causal": True}):
        want = attention_oracle.attention(q, k, v, **options)
        for end in range(shape.seq_len_k + 1):
            left, right = chunks(shape, [end], q, k, v, options)
            same_bits(left | right, right | left)
            why = why_not(left | right, want, v, 1)
            assert not why, f"{options}, end {end}: {why}"


def test_lengths_by_sequence(key: str, backend: str) -> None:
    """The default offset is that of the whole length, in every chunk."""
    shape = Shape((3,), 2, 2, 4, 30, 6, 6)
    q, k, v = operands(key, shape)
    for lengths in ([30, 11, 0], [10, 20, 1]):
        options = {"kv_lengths": np.array(lengths), "causal": True, "window": (9, 0), "alibi_slopes": [0.5, 0.1]}
        want = attention_oracle.attention(q, k, v, **options)
        for ends in ([10], [10, 20], [1, 29], [15, 15]):
            states = list(chunks(shape, ends, q, k, v, options))
            why = why_not(ds.merge(*states), want, v, len(states))
            assert not why, f"lengths {lengths}, ends {ends}: {why}"


def test_one_chunk_is_attention(key: str, backend: str) -> None:
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        for options in ({}, {"causal": True}, {"softcap": 3.0}):
            state = ds.attention_state(q, k, v, **options)
            assert state.out.dtype == (np.float64 if key == "f64" else np.float32)
            assert state.m.dtype == state.d.dtype == np.float64
            assert state.shape == q.shape[:-1]
            want = attention_oracle.attention(q, k, v, **options)
            why = why_not(state, want, v, 0)
            assert not why, f"{shape}, {options}: {why}"


def test_the_default_whole_ends_with_the_chunk(key: str, backend: str) -> None:
    shape = SHAPES[1]
    q, k, v = operands(key, shape)
    states = [ds.attention_state(q, k[..., :20, :], v[..., :20, :], key_total=41, causal=True)]
    states.append(ds.attention_state(q, k[..., 20:, :], v[..., 20:, :], key_start=20, causal=True))
    why = why_not(ds.merge(*states), attention_oracle.attention(q, k, v, causal=True), v, 1)
    assert not why, why


def test_sinks_join_at_the_end(key: str, backend: str) -> None:
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        sinks = np.linspace(-2, 8, shape.num_heads_q)
        want = attention_oracle.attention(q, k, v, causal=True, sinks=sinks)
        states = list(chunks(shape, [shape.seq_len_k // 3, shape.seq_len_k // 2], q, k, v, {"causal": True}))
        why = why_not(ds.merge(*states), want, v, 3, sinks)
        assert not why, f"{shape}: {why}"


@pytest.mark.parametrize("key", ["f32", "f64"])  # outputs of half types are rounded already
def test_finished_parts(key: str, backend: str) -> None:
    """What attention returned for chunks of the keys merges as well, through its lse."""
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        third = shape.seq_len_k // 3
        parts = [
            State.from_lse(*ds.attention(q, k[..., at, :], v[..., at, :], return_lse=True))
            for at in (slice(0, third), slice(third, 2 * third), slice(2 * third, None))
        ]
        want = attention_oracle.attention(q, k, v)
        out, lse = ds.merge(*parts).finalize()
        limit = attention_tolerance(want)[1]
        # the parts' lse are rounded, which moves the weights of a part by as much
        more = (2 * float(limit.max()) + 18 * float(np.finfo(out.dtype).eps)) * float(np.abs(v).max())
        why = attention_mismatch(out, None, want, more) or far_from("lse", lse, want.lse, 2 * limit, want.lse_dtype)
        assert not why, f"{shape}: {why}"


# ------------------------------------------------------------------ algebra
def some_states(key: str) -> list[State]:
    shape = Shape((2,), 2, 1, 6, 24, 4, 5)
    q, k, v = operands(key, shape, spread=8)
    bias = np.zeros((6, 24))
    bias[0], bias[1, 3], bias[2, 9], bias[3, 17] = -INF, INF, NAN, 1e4
    bias[4, 10:] = -INF
    return list(chunks(shape, [5, 11, 11, 19], q, k, v, {"bias": bias, "causal": True}))


def test_merge_is_symmetric(key: str, backend: str) -> None:
    states = some_states(key)
    for a in states:
        for b in states:
            same_bits(a | b, b | a)
            same_bits(ds.merge(a, b), a | b)


def test_merge_of_several_is_from_left_to_right(key: str, backend: str) -> None:
    a, b, c, *_ = some_states(key)
    same_bits(ds.merge(a, b, c), (a | b) | c)


@pytest.mark.parametrize("held", [NAN, INF, 7.0])
def test_empty_sides_are_exact(held: float, key: str, backend: str) -> None:
    for state in some_states(key):
        buffer, nothing = np.full(state.out.shape, held, state.out.dtype), np.full(state.shape, -INF)
        empties = [
            State(buffer, nothing, np.zeros(state.shape)),
            State(buffer, nothing, np.ones(state.shape)),
            State(buffer, np.zeros(state.shape), np.zeros(state.shape)),
            State.from_lse(buffer, nothing),
        ]
        for empty in empties:
            same(empty.out, np.zeros(state.out.shape))
            same(empty.lse, nothing)
            same_bits(state | empty, state)
            same_bits(empty | state, state)
            same_bits(empty | empty, empty)
            out, lse = empty.finalize()
            same(out, np.zeros(state.out.shape))
            same(lse, nothing)


def test_empty_rows_beside_others(key: str, backend: str) -> None:
    """Emptiness is a row's, not the state's."""
    whole = some_states(key)[0]
    lse = np.array(whole.lse)
    out = np.array(whole.finalize()[0])
    lse[:, :, ::2], out[:, :, ::2] = -INF, NAN
    merged = State.from_lse(out, lse) | whole
    for name in ("out", "m", "d"):
        same(getattr(merged, name)[:, :, ::2], getattr(whole, name)[:, :, ::2])


def test_nan_and_infinity_in_one_chunk(key: str, backend: str) -> None:
    shape = Shape((), 2, 1, 4, 30, 6, 6)
    q, k, v = operands(key, shape)
    bias = np.zeros((4, 30))
    bias[0, 4], bias[1, 22], bias[2, 3], bias[2, 21], bias[3] = NAN, INF, INF, NAN, -INF
    want = attention_oracle.attention(q, k, v, bias=bias)
    for ends in ([10], [10, 20], [4, 5, 21]):
        states = list(chunks(shape, ends, q, k, v, {"bias": bias}))
        for order in (states, states[::-1]):
            why = why_not(ds.merge(*order), want, v, len(states))
            assert not why, f"ends {ends}: {why}"
    same(want.lse[0], [NAN, INF, NAN, -INF])


@pytest.mark.parametrize("gap", [0.0, 50.0, 2000.0, 1e6])
def test_infinite_values_in_one_chunk(gap: float, backend: str) -> None:
    """The weight of a seen key is above 0 in exact arithmetic, however far below the maximum: inf stays inf."""
    q = np.ones((2, 1))
    for key, dtype in (("f32", np.float32), ("f64", np.float64)):
        k = np.array([[0.0], [0], [gap], [gap]], dtype)
        v = np.array([[INF, INF, 1], [1, -INF, 2], [3, 4, 5], [6, 7, 8]], dtype)
        for states in (
            [ds.attention_state(q.astype(dtype), k[at], v[at], scale=1) for at in (slice(2), slice(2, None))],
            [
                State.from_lse(*ds.attention(q.astype(dtype), k[at], v[at], scale=1, return_lse=True))
                for at in (slice(2), slice(2, None))
            ],
        ):
            for merged in (states[0] | states[1], states[1] | states[0]):
                out, lse = merged.finalize()
                same(out[:, 0], [INF, INF], err_msg=key)
                assert np.isnan(out[:, 1]).all()
                assert np.isfinite(out[:, 2]).all()
                assert np.isfinite(lse).all()


def test_far_apart(key: str, backend: str) -> None:
    """Chunks whose scores differ by more than the range of exp."""
    shape = Shape((), 1, 1, 3, 20, 4, 4)
    q, k, v = operands(key, shape)
    for level in (100.0, 1e4, 2.0**31, 3e38):
        for bias in (np.where(np.arange(20) < 9, 0, -level), np.where(np.arange(20) < 9, -level, 0)):
            want = attention_oracle.attention(q, k, v, bias=bias)
            states = list(chunks(shape, [4, 9, 15], q, k, v, {"bias": bias}))
            for order in (states, states[::-1]):
                why = why_not(ds.merge(*order), want, v, 4)
                assert not why, f"{level}: {why}"


# ------------------------------------------------------------------ the state as a value
def test_pickle_copy_and_pack(key: str, backend: str) -> None:
    for state in some_states(key):
        packed = state.pack()
        assert packed.dtype == np.float64
        assert packed.ndim == 1
        assert packed.flags.c_contiguous
        copies = copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))
        for other in (*copies, State.unpack(packed), state.to("cpu")):
            assert other == state
            same_bits(other, state)
            assert other.out.dtype == state.out.dtype


def test_states_never_change(backend: str) -> None:
    state = some_states("f32")[0]
    for name in ("out", "m", "d"):
        with pytest.raises(AttributeError):
            setattr(state, name, 0)
        with pytest.raises(ValueError, match="read-only"):
            getattr(state, name)[...] = 0
    out = np.ones((2, 3), np.float32)
    mine = State(out, [0.0, 0.0], [1.0, 1.0])
    out[...] = 7
    assert (mine.out == 1).all()


def test_equality(backend: str) -> None:
    first, second, *_ = some_states("f32")
    assert first == first | State.from_lse(np.zeros(first.out.shape, np.float32), np.full(first.shape, -INF))
    assert first != second
    assert first != 1
    assert "AttentionState" in repr(first)


@pytest.mark.parametrize("wanted", DTYPES)
def test_dtype_of_finalize(wanted: str, key: str, backend: str) -> None:
    q, k, v = operands(key, SHAPES[0])
    state = ds.attention_state(q, k, v)
    out, lse = state.finalize(dtype=DTYPES[wanted])
    assert out.dtype == DTYPES[wanted]
    assert lse.dtype == (np.float64 if "f64" in (key, wanted) else np.float32)
    assert state.finalize()[0].dtype == state.out.dtype


def test_one_head_without_its_axis(key: str, backend: str) -> None:
    q, k, v = (x[0] for x in operands(key, SHAPES[3]))
    want = attention_oracle.attention(q, k, v, causal=True)
    state = ds.attention_state(q, k[:11], v[:11], key_total=33, causal=True)
    state |= ds.attention_state(q, k[11:], v[11:], key_start=11, causal=True)
    assert state.shape == (70,)
    why = why_not(state, want, v, 1)
    assert not why, why
