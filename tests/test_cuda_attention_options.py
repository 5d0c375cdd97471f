"""Options of attention, and states, on tensor cores: which rows stay there, and what they come out as."""

from typing import Any, NamedTuple

import attention_oracle
import devices
import emulator
import numpy as np
import pytest
from attention_cases import lone, operands
from attention_options import Shape
from cases import DTYPES
from tensor_attention import NAME, Array, Launched, attend, attend_by_state, check
from tolerance import attention_mismatch, relative

import dualsoft as ds

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
GROUPED = Shape((2,), 4, 2, 50, 150, 64, 64)
RNG = np.random.default_rng(7)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    return Launched(monkeypatch)


def mostly(*shape: int) -> Array:
    return RNG.random(shape) < 0.7


def normal(dtype: Any, *shape: int) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def mask_with_hidden_rows() -> Array:
    mask = mostly(2, 4, 50, 150)
    mask[:, :, ::3] = False
    return mask


def bias_that_hides() -> Array:
    bias = normal(np.float32, 50, 150)
    bias[RNG.random(bias.shape) < 0.3] = -np.inf
    bias[4] = -np.inf
    return bias


def padding(dtype: Any) -> Array:
    """The way to hide the first keys without infinities."""
    return np.where(np.arange(150) < 100, np.finfo(dtype).min, 0).astype(dtype)


def everything(shape: Shape) -> dict[str, Any]:
    heads, queries, keys = shape.scores[-3:]
    return {
        "bias": normal(np.float16, heads, queries, 1),
        "mask": mostly(*(1 for _ in shape.batch), 1, 1, keys),
        "softcap": 3.0,
        "alibi_slopes": 2.0 ** -np.arange(1.0, heads + 1),
        "window": (40, 3),
        "block_mask": ds.BlockMask(mostly(heads, -(-queries // 4), -(-keys // 5)), 4, 5),
        "kv_lengths": keys - np.arange(np.prod(shape.batch, dtype=int)).reshape(shape.batch),
        "sinks": np.linspace(-1, 1, heads),
    }


class Case(NamedTuple):
    key: str
    options: dict[str, Any]
    shape: Shape = GROUPED
    name: str = NAME


SMALL, WIDE, WIDEST = (Shape((2,), 2, 1, 40, 100, *dims) for dims in ((64, 64), (128, 72), (256, 200)))
CASES = {
    "mask": Case("f16", {"mask": mask_with_hidden_rows()}),
    "mask of keys": Case("bf16", {"mask": mostly(150), "causal": True}),
    "bias": Case("f16", {"bias": bias_that_hides(), "causal": True}),
    "bias of the same type": Case("bf16", {"bias": normal(DTYPES["bf16"], 4, 1, 150)}),
    "bias with strides": Case("f16", {"bias": normal(np.float64, 150, 50).T[:, ::-1]}),
    "bias of integers": Case("bf16", {"bias": RNG.integers(-3, 4, (50, 1), np.int8)}),
    "padding": Case("f16", {"bias": padding(np.float32)}),
    "padding in f64": Case("bf16", {"bias": padding(np.float64)}),
    "softcap": Case("f16", {"softcap": 0.5}),
    "large softcap": Case("bf16", {"softcap": 1e4, "causal": True}),
    "small softcap": Case("f16", {"softcap": 1e-3}),
    "alibi": Case("bf16", {"alibi_slopes": np.array([[0.5, 0.25, 0.1, 0], [1, -0.05, 0.5, 2]]), "causal": True}),
    "blocks": Case("f16", {"block_mask": ds.BlockMask(mostly(4, 4, 50), 16, 3)}),
    "blocks of tiles": Case("bf16", {"block_mask": ds.BlockMask(np.array([[False, True, False]]), 64, 64)}),
    "negative scale": Case("f16", {"scale": -0.3}),
    "scale 0": Case("bf16", {"scale": 0}),
    "everything": Case("bf16", everything(GROUPED)),
    "everything, sm_75": Case("f16", everything(SMALL), SMALL, "cuda-emulated:sm_75"),
    "everything, sm_90": Case("bf16", everything(WIDE), WIDE, "cuda-emulated:sm_90"),
    "everything, head dim 256": Case("bf16", everything(WIDEST), WIDEST),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_options(case: Case, launched: Launched) -> None:
    """None of these rows needs the exact kernel, those that see no key included."""
    check(*operands(case.key, case.shape), name=case.name, **case.options)
    assert len(launched.head_dims) == 1
    assert not any(launched.lines_left)


# ------------------------------------------------------------------ special values
HIDDEN = np.arange(150) % 7 == 5
HIDING = {
    "mask": {"mask": ~HIDDEN},
    "bias": {"bias": np.where(HIDDEN, -np.inf, 0.25), "causal": True},
    "blocks": {"block_mask": ds.BlockMask(~HIDDEN[None], 64, 1), "softcap": 2.0},
}


@pytest.mark.parametrize("options", HIDING.values(), ids=HIDING)
def test_what_is_hidden_changes_no_bit(options: dict[str, Any], launched: Launched) -> None:
    q, k, v = operands("f16", GROUPED)
    want = attend(q, k, v, **options)
    k[..., HIDDEN, :], v[..., HIDDEN, :] = np.nan, np.inf
    for got, right in zip(attend(q, k, v, **options), want, strict=True):
        np.testing.assert_array_equal(got, right)
    assert not any(launched.lines_left)


def test_special_values_among_options(launched: Launched) -> None:
    q, k, v = operands("f16", GROUPED)
    bias = normal(np.float32, 50, 150)
    bias[3, 7], bias[9, 9], bias[20] = np.inf, np.nan, np.finfo(np.float32).min
    bias[30:40] = -(10.0 ** np.arange(7, 27, 2))[:, None]  # far below what exponents are exact for
    check(q, k, v, bias=bias, causal=True)
    check(q, k, v, alibi_slopes=np.array([np.inf, -np.inf, np.nan, 0.5]))
    k[0, 0, 9, 3], v[1, 1, 70, 5] = np.inf, -np.inf
    check(q, k, v, softcap=5.0, causal=True, causal_offset=-20)
    assert any(launched.lines_left)


# ------------------------------------------------------------------ states
def parts_merged(q: Array, k: Array, v: Array, cuts: tuple[int, ...], **options: Any) -> tuple[Array, Array]:
    keys = k.shape[-2]
    with ds.use_backend(NAME):
        cp = devices.module(NAME)
        q, k, v = (cp.asarray(x) for x in (q, k, v))
        parts = [
            ds.attention_state(q, k[..., a:b, :], v[..., a:b, :], key_start=a, key_total=keys, **options)
            for a, b in zip((0, *cuts), (*cuts, keys), strict=True)
        ]
        assert {part.out.dtype for part in parts} == {np.dtype(np.float32)}
        merged = parts[0]
        for part in parts[1:]:
            merged |= part
        out, lse = merged.finalize()
    return out.get(), lse.get()


@pytest.mark.parametrize(
    ("key", "shape", "options"),
    [
        ("f16", GROUPED, {"causal": True, "causal_offset": 70}),
        ("bf16", Shape((), 2, 1, 40, 150, 128, 136), {"softcap": 3.0}),
    ],
)
def test_states_merge(key: str, shape: Shape, options: dict[str, Any], launched: Launched) -> None:
    q, k, v = operands(key, shape)
    out, lse = parts_merged(q, k, v, (40, 90), **options)
    want = attention_oracle.attention(q, k, v, **options)
    why = attention_mismatch(out.astype(q.dtype), lse.astype(np.float32), want)
    assert not why, why
    assert len(launched.head_dims) == 3
    assert not any(launched.lines_left)


def test_a_state_has_the_bits_of_the_output(launched: Launched) -> None:
    """Its sums are those that an output is divided from, and a row without keys is empty."""
    q, k, v = operands("f16", lone(70, 40, 64, 40))
    with ds.use_backend(NAME):
        cp = devices.module(NAME)
        state = ds.attention_state(*(cp.asarray(x) for x in (q, k, v)), causal=True)
        out, m, d = (x.get() for x in (state.out, state.m, state.d))
    assert (m.dtype, d.dtype, out.dtype) == (np.float64, np.float64, np.float32)
    seen = np.arange(70) >= 30
    assert (m[0, ~seen] == -np.inf).all()
    assert not d[0, ~seen].any()
    assert not out[0, ~seen].any()
    share = out[0, seen] * (1 / d[0, seen, None]).astype(np.float32)
    given, lse = attend(q, k, v, causal=True)
    np.testing.assert_array_equal(share.astype(np.float16), given[0, seen])
    np.testing.assert_allclose(m[0, seen] + np.log(d[0, seen]), lse[0, seen], rtol=relative("logsumexp", "float32"))
    assert not any(launched.lines_left)


def test_special_values_in_states(launched: Launched) -> None:
    """Rows left to the exact kernel: of wide values, whose columns share one pair, and of more than one run of keys."""
    q, k, v = operands("bf16", Shape((), 1, 1, 20, 2100, 16, 136))
    v[0, 2070:, 3], v[0, 2090:, 131], v[0, 2085, 7], v[0, 2095, 130] = 3e38, -3e38, np.nan, np.inf
    want = attention_oracle.attention(q, k, v, causal=True)
    why = attention_mismatch(*attend_by_state(q, k, v, causal=True), want)
    assert not why, why
    assert any(launched.lines_left)


# ------------------------------------------------------------------ order, and what is moved
def test_packed_sequences_with_a_bias(launched: Launched) -> None:
    q, k, v = operands("bf16", Shape((), 4, 2, 90, 120, 64, 64))
    starts, key_starts = np.array([0, 30, 90]), np.array([0, 50, 120])
    bias = normal(np.float32, 4, 90, 70)
    with ds.use_backend(NAME):
        cp = devices.module(NAME)
        placed = [cp.asarray(x) for x in (q, k, v, starts, key_starts)]
        packed = ds.attention_varlen(*placed, bias=cp.asarray(bias), causal=True).get()
    for i in range(2):
        rows, keys = slice(*starts[i : i + 2]), slice(*key_starts[i : i + 2])
        alone = bias[:, rows, : keys.stop - keys.start]
        out, _ = attend(q[:, rows], k[:, keys], v[:, keys], bias=alone, causal=True)
        np.testing.assert_array_equal(packed[:, rows], out)
    assert len(launched.head_dims) == 3


@pytest.mark.parametrize("way", [{"schedule": "descending"}, {"schedule": "random", "seed": 2, "preempt": True}])
def test_the_order_of_threads_does_not_change_a_bit(way: dict[str, Any]) -> None:
    q, k, v = operands("f16", lone(70, 150, 64))
    v[0, 100, 5] = np.nan  # so that rows ask which addends others have
    options = {"block_mask": ds.BlockMask(mostly(9, 22), 8, 7), "bias": normal(np.float32, 150)}
    want = attend(q, k, v, **options)
    with emulator.settings(**way):
        for got, right in zip(attend(q, k, v, **options), want, strict=True):
            np.testing.assert_array_equal(got, right)


def test_nothing_is_moved_in_vain() -> None:
    """The sums of a state fill the sectors that they are stored to; addends have no bank conflicts."""
    q, k, v = operands("f16", lone(64, 64, 64))
    emulator.profile()
    with emulator.settings(profile=True):
        attend_by_state(q, k, v, bias=normal(np.float32, 64, 64))
    rows = emulator.profile()
    stores = [row for row in rows if (row.space, row.operation, row.bytes) == ("global", "store", 8)]
    assert sum(row.units for row in stores) >= 64 * 64 * 4 // 32
    addends = [row for row in rows if row.file == "attention_tensor_options.cuh" and row.space == "shared"]
    assert sum(row.requests for row in addends) >= 2 * 64 * 64 // 64
    assert [row for row in (*stores, *addends) if row.bytes == 8 and row.units != row.ideal] == []
