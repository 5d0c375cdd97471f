"""Bits of attention: the same for any number of threads, batch, place in it, cache capacity, page size and run."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from attention_cases import Shape, operands
from cases import DTYPES, LAYOUTS, Array
from devices import ONE
from process import python

import dualsoft as ds

ON_DEVICES = {
    # The emulator runs a program in one order, unless it is told otherwise: other tests do that.
    "test_repeated_runs": ("cuda",), "test_sequence_alone_and_anywhere_in_a_batch": ONE, "test_heads_alone": ONE,
    "test_page_size": ONE, "test_varlen": ONE,
}  # fmt: skip
# prefill of several tiles, many heads of a few tiles, decode of many keys, decode of a batch, a verified draft
SHAPES = {
    "prefill": Shape((), 2, 1, 390, 530, 32, 32),
    "heads": Shape((2,), 6, 2, 70, 140, 20, 12),
    "decode": Shape((), 8, 2, 1, 5003, 16, 16),
    "decode of a batch": Shape((5,), 4, 1, 1, 700, 24, 24),
    "few queries": Shape((2,), 6, 2, 5, 1100, 16, 16),
}
Result = tuple[Array, Array]


def options_of(shape: Shape) -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(1)
    blocks = rng.random((shape.num_heads_q, -(-shape.seq_len_q // 33), -(-shape.seq_len_k // 48))) < 0.6
    return {
        "plain": {},
        "causal": {"causal": True},
        "window and sinks": {"window": (90, 10), "sinks": np.linspace(-1, 1, shape.num_heads_q)},
        "mask and bias": {
            "mask": rng.random(shape.scores[-2:]) < 0.8,
            "bias": rng.standard_normal((shape.num_heads_q, 1, shape.seq_len_k)).astype(np.float32),
        },
        "blocks, alibi and softcap": {
            "block_mask": ds.BlockMask(blocks, 33, 48),
            "alibi_slopes": 0.1 * np.ones(shape.num_heads_q),
            "softcap": 4.0,
        },
        "lengths": {"kv_lengths": np.resize([shape.seq_len_k // 2, shape.seq_len_k - 1], shape.batch), "causal": True},
    }


def by_sequence(options: dict[str, Any], batch: Any) -> dict[str, Any]:
    """The options for the sequences that are taken out of the batch."""
    return {name: value[batch] if name == "kv_lengths" else value for name, value in options.items()}


def same(got: Result, want: Result, label: str) -> None:
    for a, b, what in zip(got, want, ("out", "lse"), strict=True):
        np.testing.assert_array_equal(
            np.ascontiguousarray(a).view(np.uint8), np.ascontiguousarray(b).view(np.uint8), err_msg=f"{what}, {label}"
        )


def leave_to_bf16(key: str, backend: str) -> None:
    """On the emulator, for shapes that no tensor core serves."""
    if key == "f16" and backend.startswith("cuda-emulated"):
        pytest.skip("bfloat16 goes the same way: as many bytes, float32 once they are loaded")


def attend(q: Array, k: Array, v: Array, **options: Any) -> Result:
    out, lse = ds.attention(q, k, v, return_lse=True, **options)
    return out, lse


@pytest.fixture(params=DTYPES)
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


@pytest.mark.parametrize("name", ["heads", "decode of a batch"])
def test_layouts(name: str, key: str, level: str) -> None:
    """Operands that lie in another way are gathered, not multiplied in another way."""
    x = operands(key, SHAPES[name])
    for layout, view in LAYOUTS.items():
        laid_out = [view(a) for a in x]
        want = attend(*(np.ascontiguousarray(a) for a in laid_out), causal=True)
        same(attend(*laid_out, causal=True), want, layout)


def test_threads(shape: Shape, key: str, level: str) -> None:
    q, k, v = operands(key, shape)
    for name, options in options_of(shape).items():
        with ds.num_threads(1):
            want = attend(q, k, v, **options)
        for threads in (2, 3, 4):
            with ds.num_threads(threads):
                same(attend(q, k, v, **options), want, f"{name}, {threads} threads")
        same(attend(q, k, v, **options), want, f"{name}, the default number of threads")


def test_repeated_runs(key: str, backend: str) -> None:
    shape = SHAPES["few queries"]
    q, k, v = operands(key, shape)
    for name, options in options_of(shape).items():
        want = attend(q, k, v, **options)
        for _ in range(3):
            same(attend(q, k, v, **options), want, f"{name}, a later run")


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.batch])
def test_sequence_alone_and_anywhere_in_a_batch(name: str, key: str, backend: str) -> None:
    leave_to_bf16(key, backend)
    shape = SHAPES[name]
    q, k, v = operands(key, shape)
    n = shape.batch[0]
    order = np.random.default_rng(0).permutation(n)
    for label, options in options_of(shape).items():
        out, lse = attend(q, k, v, **options)
        for b in range(n):
            alone = attend(q[b], k[b], v[b], **by_sequence(options, b))
            same(alone, (out[b], lse[b]), f"{label}, sequence {b} alone")
        shuffled = attend(q[order], k[order], v[order], **by_sequence(options, order))
        same(shuffled, (out[order], lse[order]), f"{label}, another order")
        many = np.resize(np.arange(n), 7)
        same(attend(q[many], k[many], v[many], **by_sequence(options, many)), (out[many], lse[many]), f"{label}, more")


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.num_heads_k > 1])
def test_heads_alone(name: str, key: str, backend: str) -> None:
    """A KV head with its group is a call of its own."""
    leave_to_bf16(key, backend)
    shape = SHAPES[name]
    q, k, v = operands(key, shape)
    group = shape.num_heads_q // shape.num_heads_k
    for options in ({}, {"causal": True}, {"window": (50, 3)}):
        out, lse = attend(q, k, v, **options)
        for h in range(shape.num_heads_k):
            at = slice(h * group, (h + 1) * group)
            alone = attend(q[..., at, :, :], k[..., h : h + 1, :, :], v[..., h : h + 1, :, :], **options)
            same(alone, (out[..., at, :, :], lse[..., at, :]), f"{options}, KV head {h}")


@pytest.mark.parametrize("seq_len_q", [1, 3, 40])
def test_cache_capacity(seq_len_q: int, key: str, backend: str) -> None:
    """Room behind the keys changes no bit, whatever it holds."""
    for length in (1, 31, 530):
        shape = Shape((2,), 4, 2, seq_len_q, length, 16, 16)
        q, k, v = operands(key, shape)
        lengths = np.array([length, max(length - 7, 1)])
        for options in ({}, {"causal": True, "window": (20, 0)}, {"alibi_slopes": 0.1 * np.ones(4)}):
            want = attend(q, k, v, kv_lengths=lengths, **options)
            for capacity in (length + 1, length + 33, 1600):
                room = [np.full((2, 2, capacity, 16), np.nan, k.dtype) for _ in range(2)]
                room[0][:, :, :length], room[1][:, :, :length] = k, v
                got = attend(q, *room, kv_lengths=lengths, **options)
                same(got, want, f"length {length}, capacity {capacity}, {options}")
            exact = attend(q[:1], k[:1], v[:1], **options)
            same((want[0][:1], want[1][:1]), exact, f"length {length} of as many, {options}")


@pytest.mark.parametrize("seq_len_q", [1, 3, 40])
@pytest.mark.parametrize("page_size", [1, 5, 16, 64, 300])
def test_page_size(page_size: int, seq_len_q: int, key: str, backend: str) -> None:
    """Paged keys give the bits of contiguous ones."""
    leave_to_bf16(key, backend)
    length = 277
    q, k, v = operands(key, Shape((2,), 4, 2, seq_len_q, length, 16, 12))
    count = -(-length // page_size)
    table = np.random.default_rng(2).permutation(2 * count + 3)[: 2 * count].reshape(2, count)
    lengths = np.array([length, length - 30])
    pages = [paged(x, table, page_size) for x in (k, v)]
    for options in ({}, {"causal": True}, {"window": (60, 0)}, {"sinks": np.ones(4)}):
        got = ds.attention_paged(q, *pages, table, lengths, return_lse=True, **options)
        same(got, attend(q, k, v, kv_lengths=lengths, **options), f"{options}")


def paged(x: Array, table: Array, page_size: int) -> Array:
    """x (B, H, S, D) in pages (pages, H, page_size, D) at the places of the table, NaN elsewhere."""
    pages = np.full((int(table.max()) + 1, x.shape[1], page_size, x.shape[3]), np.nan, x.dtype)
    for b, row in enumerate(table):
        for place, page in enumerate(row):
            part = x[b, :, place * page_size : (place + 1) * page_size]
            pages[page, :, : part.shape[1]] = part
    return pages


def test_varlen(key: str, backend: str) -> None:
    """A sequence of a packed batch gives the bits of a call of its own."""
    leave_to_bf16(key, backend)
    lengths_q, lengths_k = [1, 40, 0, 5, 130, 1], [300, 40, 10, 5, 131, 1]
    starts_q, starts_k = (np.cumsum([0, *n]) for n in (lengths_q, lengths_k))
    q = operands(key, Shape((), 4, 2, int(starts_q[-1]), 1, 16, 16))[0]
    _, k, v = operands(key, Shape((), 4, 2, 1, int(starts_k[-1]), 16, 12))
    for options in ({}, {"causal": True}, {"window": (7, 2)}, {"sinks": np.ones(4), "softcap": 3.0}):
        out, lse = ds.attention_varlen(q, k, v, starts_q, starts_k, return_lse=True, **options)
        for n in range(6):
            at_q, at_k = slice(starts_q[n], starts_q[n + 1]), slice(starts_k[n], starts_k[n + 1])
            alone = attend(q[:, at_q], k[:, at_k], v[:, at_k], **options)
            same((out[:, at_q], lse[:, at_q]), alone, f"{options}, sequence {n}")


def test_python_threads(level: str) -> None:
    """Calls from several threads at once, each in its own context."""
    made = [operands(key, shape) for key in ("f32", "bf16") for shape in SHAPES.values()]
    want = [attend(*x, causal=True) for x in made]

    def work(number: int) -> Result:
        with ds.use_backend(level), ds.num_threads(1 + number % 3):
            return attend(*made[number % len(made)], causal=True)

    with ThreadPoolExecutor(6) as pool:
        for number, got in enumerate(pool.map(work, range(3 * len(made)))):
            same(got, want[number % len(made)], f"call {number}")


FORK = """
import os, sys, warnings
import numpy as np, dualsoft as ds
warnings.simplefilter("ignore")
x = np.random.default_rng(0).standard_normal((4, 700, 32), dtype=np.float32)
with ds.use_backend(sys.argv[1]), ds.num_threads(2):
    want = ds.attention(x, x, x)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(ds.attention(x, x, x), want) else 3)
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
    assert np.array_equal(ds.attention(x, x, x), want), "the parent after the fork"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_a_threaded_call(level: str) -> None:
    done = python("-c", FORK, level, timeout=60)
    assert done.returncode == 0, done.stderr


STATES: dict[str, Callable[..., Any]] = {
    "whole": lambda q, k, v: ds.attention_state(q, k, v, causal=True),
    "chunk": lambda q, k, v: ds.attention_state(q, k[..., 5:, :], v[..., 5:, :], causal=True, key_start=5),
}


@pytest.mark.parametrize("name", STATES)
def test_threads_of_a_state(name: str, key: str, level: str) -> None:
    q, k, v = operands(key, SHAPES["few queries"])
    with ds.num_threads(1):
        want = STATES[name](q, k, v)
    for threads in (2, 4):
        with ds.num_threads(threads):
            assert STATES[name](q, k, v) == want
