"""Where attention's result goes: ``out=`` of any strides and over its inputs; array-likes, and what comes back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_cases import Shape, operands
from cases import DTYPES, LAYOUTS
from test_inputs import Frame

import dualsoft as ds

WRITABLE = [name for name in LAYOUTS if "read-only" not in name]
SHAPES = (
    Shape((2,), 4, 2, 7, 19, 12, 12), Shape((2,), 4, 2, 1, 90, 12, 20), Shape((), 2, 1, 130, 140, 9, 9),
)  # fmt: skip


@pytest.fixture(params=DTYPES)
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def same_bits(got: Any, want: Any, label: str = "") -> None:
    np.testing.assert_array_equal(
        np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(want).view(np.uint8), err_msg=label
    )


def test_strides_of_out(key: str, backend: str) -> None:
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        want, want_lse = ds.attention(q, k, v, causal=True, return_lse=True)
        for layout in WRITABLE:
            out = LAYOUTS[layout](np.full(want.shape, 7, want.dtype))
            root = out
            while isinstance(root.base, np.ndarray):
                root = root.base
            got, lse = ds.attention(q, k, v, causal=True, return_lse=True, out=out)
            assert got is out
            same_bits(out, want, f"{layout}, {shape}")
            same_bits(lse, want_lse, f"{layout}, {shape}")
            if layout == "steps of 3":
                between = np.ones(root.shape, bool)
                between[tuple(slice(1, None, 3) for _ in want.shape)] = False
                same_bits(root[between], np.full(between.sum(), 99, root.dtype), f"between the elements, {shape}")


def test_heads_and_tokens_swapped(key: str, backend: str) -> None:
    """(B, S, H, D) for everything, out included."""
    shape = SHAPES[0]
    q, k, v = operands(key, shape)
    out = np.zeros((2, 7, 4, 12), q.dtype)
    got = ds.attention(
        *(np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (q, k, v)), out=out.swapaxes(1, 2)
    )
    assert np.shares_memory(got, out)
    same_bits(out.swapaxes(1, 2), ds.attention(q, k, v))


def test_columns_of_a_wider_out(key: str, backend: str) -> None:
    """What lies beside them is not touched."""
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        want = ds.attention(q, k, v)
        for left, right in ((0, 1), (3, 0), (5, 7)):
            whole = np.full((*want.shape[:-1], left + want.shape[-1] + right), 7, want.dtype)
            out = whole[..., left : left + want.shape[-1]]
            ds.attention(q, k, v, out=out)
            same_bits(out, want)
            assert (whole[..., :left] == 7).all()
            assert (whole[..., left + want.shape[-1] :] == 7).all()


def test_into_an_input(key: str, backend: str) -> None:
    shape = Shape((2,), 3, 3, 40, 40, 8, 8)
    for options in ({}, {"causal": True}, {"window": (5, 5)}):
        want = ds.attention(*operands(key, shape), **options)
        for target in range(3):
            given = operands(key, shape)
            got = ds.attention(*given, out=given[target], **options)
            assert got is given[target]
            same_bits(got, want, f"into operand {target}, {options}")
    x = operands(key, shape)[0]
    want = ds.attention(x, x.copy(), x.copy())
    same_bits(ds.attention(x, x, x, out=x), want, "all of them one array")


def test_over_part_of_an_input(key: str, backend: str) -> None:
    shape = Shape((), 2, 2, 20, 20, 6, 6)
    want = ds.attention(*operands(key, shape))
    for target in range(3):
        given = list(operands(key, shape))
        memory = np.zeros((3, 20, 6), given[0].dtype)
        memory[:2] = given[target]
        given[target] = memory[:2]
        same_bits(ds.attention(*given, out=memory[1:]), want, f"one head further than operand {target}")
        given = list(operands(key, shape))
        same_bits(ds.attention(*given, out=given[target][:, ::-1]), want, f"operand {target} backwards")


def test_over_the_options(backend: str) -> None:
    shape = Shape((), 2, 1, 6, 8, 4, 8)
    q, k, v = operands("f32", shape)
    bias = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
    want = ds.attention(q, k, v, bias=bias)
    same_bits(ds.attention(q, k, v, bias=bias, out=bias), want, "out over bias")
    raw = np.zeros((2, 6, 8), np.float32)
    mask = raw.view(np.bool_)[..., ::4]
    mask[...] = np.random.default_rng(1).random(mask.shape) < 0.5
    want = ds.attention(q, k, v, mask=mask.copy())
    same_bits(ds.attention(q, k, v, mask=mask, out=raw), want, "out over mask")
    memory = np.zeros(96, np.float64)
    sinks = memory[:2]
    sinks[...] = 0.5, -1
    want = ds.attention(q, k, v, sinks=sinks.copy())
    same_bits(ds.attention(q, k, v, sinks=sinks, out=memory.view(np.float32)[:96].reshape(2, 6, 8)), want, "sinks")
    integers = np.zeros(96, np.int64)
    lengths = integers[:1].reshape(())
    lengths[...] = 5
    want = ds.attention(q, k, v, kv_lengths=5, causal=True)
    out = integers.view(np.float32)[:96].reshape(2, 6, 8)
    same_bits(ds.attention(q, k, v, kv_lengths=lengths, causal=True, out=out), want, "out over kv_lengths")


def test_out_of_varlen_and_pages_over_their_inputs(backend: str) -> None:
    q, k, v = operands("f32", Shape((), 2, 2, 12, 12, 8, 8))
    want = ds.attention_varlen(q, k, v, [0, 5, 12], [0, 7, 12])
    same_bits(ds.attention_varlen(q, k, v, [0, 5, 12], [0, 7, 12], out=q), want, "varlen into q")
    q, k, v = operands("f32", Shape((3,), 2, 2, 4, 4, 8, 8))
    table, lengths = [[0, 2], [1, 0], [2, 2]], [7, 5, 8]
    want = ds.attention_paged(q, k, v, table, lengths)
    for target in (k, v):
        kept = target.copy()
        same_bits(ds.attention_paged(q, k, v, table, lengths, out=target), want, "paged into its pages")
        target[...] = kept


def test_big_endian_out(backend: str) -> None:
    for key in ("f16", "f32", "f64"):
        q, k, v = operands(key, SHAPES[0])
        want = ds.attention(q, k, v)
        out = np.zeros(want.shape, want.dtype.newbyteorder(">"))
        assert ds.attention(q, k, v, out=out) is out
        same_bits(out.astype(want.dtype), want, key)


@pytest.mark.parametrize("strides", [(0, 0, 4), (0, 32, 4), (4, 4, 4), (8, 16, 4)])
def test_out_that_overlaps_itself(strides: tuple[int, ...], backend: str) -> None:
    q, k, v = operands("f32", Shape((), 2, 2, 4, 4, 8, 8))
    root = np.full(100, 7, np.float32)
    out = np.lib.stride_tricks.as_strided(root, (2, 4, 8), strides)
    with pytest.raises(ValueError, match="out must have each element"):
        ds.attention(q, k, v, out=out)
    assert (root == 7).all()


def test_array_likes(backend: str, tmp_path: Path) -> None:
    q, k, v = operands("f64", Shape((), 2, 1, 3, 5, 4, 4))
    want = ds.attention(q, k, v)
    stored = np.memmap(tmp_path / "k", np.float64, "w+", shape=k.shape)
    stored[...] = k
    for given in (
        (q.tolist(), k.tolist(), v.tolist()), (Frame(q), Frame(k), Frame(v)), (q, stored, v),
        (q.view(np.recarray), k, v),
    ):  # fmt: skip
        got = ds.attention(*given)
        assert type(got) is np.ndarray
        same_bits(got, want)
    options: dict[str, Any] = {
        "mask": [True, False, True, True, True], "bias": [[1], [2], [3]], "sinks": [0, 1], "alibi_slopes": (0.5, 0.25),
        "window": [3, 1], "causal": 1, "kv_lengths": np.int8(4), "scale": np.float16(0.5), "softcap": np.int64(3),
    }  # fmt: skip
    arrays = {name: np.asarray(value) for name, value in options.items() if name not in ("window", "causal")}
    same_bits(ds.attention(q, k, v, **options), ds.attention(q, k, v, **(options | arrays | {"causal": True})))


@pytest.mark.parametrize("key", DTYPES)
def test_what_comes_back(key: str, backend: str) -> None:
    wide = np.float64 if key == "f64" else np.float32
    for shape in SHAPES:
        q, k, v = operands(key, shape)
        out = ds.attention(q, k, v)
        assert type(out) is np.ndarray
        assert out.dtype == DTYPES[key]
        assert out.shape == (*shape.batch, shape.num_heads_q, shape.seq_len_q, shape.head_dim_v)
        assert out.flags.writeable
        assert not any(np.shares_memory(out, x) for x in (q, k, v))
        pair = ds.attention(q, k, v, return_lse=True)
        assert type(pair) is tuple
        assert pair[1].dtype == wide
        assert pair[1].shape == out.shape[:-1]
    # numbers of an option never decide the dtype
    options = {"bias": np.zeros(1), "sinks": np.zeros(4), "alibi_slopes": np.zeros(4), "scale": np.float64(1)}
    q, k, v = operands(key, SHAPES[0])
    assert ds.attention(q, k, v, **options).dtype == DTYPES[key]


def test_one_head_without_its_axis(key: str, backend: str) -> None:
    q, k, v = operands(key, Shape((), 1, 1, 5, 9, 4, 3))
    want, want_lse = ds.attention(q, k, v, return_lse=True)
    out = np.zeros((5, 3), q.dtype)
    got, lse = ds.attention(q[0], k[0], v[0], return_lse=True, out=out)
    assert got is out
    assert lse.shape == (5,)
    same_bits(out, want[0])
    same_bits(lse, want_lse[0])
    # one head of keys for several of queries, which have their axis
    q, k, v = operands(key, Shape((), 4, 1, 5, 9, 4, 3))
    same_bits(ds.attention(q, k[0], v[0]), ds.attention(q, k, v))
