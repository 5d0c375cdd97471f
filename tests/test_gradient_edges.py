"""Edges of attention's gradients: rows that see nothing, huge lse, NaN, infinities, needs, shapes, errors, memory."""

import sys
from typing import Any

import gradient_oracle
import numpy as np
import pytest
from attention_cases import Shape, operands
from cases import DTYPES, LAYOUTS, Array
from conftest import USABLE
from devices import ONE
from process import run_code
from tolerance import far_from

import dualsoft as ds

F32 = np.float32
ON_DEVICES = {
    "test_hidden_reaches_nothing": ONE, "test_gradient_reaches_what_its_row_sees": ONE, "test_nan_row": ONE,
    "test_nothing_seen": ONE, "test_one_key": ONE, "test_sink_alone": ONE, "test_huge_lse": ONE, "test_layouts": ONE,
    "test_broadcast_operands": ONE, "test_one_head_without_its_axis": ONE, "test_needs": ONE,
    "test_bias_of_any_shape": ONE, "test_dtypes_of_mixed_operands": ONE,
}  # fmt: skip
SHAPE = Shape((2,), 4, 2, 30, 70, 20, 12)


def given(key: str = "f32", shape: Shape = SHAPE) -> tuple[Array, Array, Array, Array]:
    q, k, v = operands(key, shape)
    grad_out = np.random.default_rng(5).standard_normal((*q.shape[:-1], v.shape[-1])).astype(q.dtype)
    return grad_out, q, k, v


def backward(grad_out: Array, q: Array, k: Array, v: Array, needs: Any = "qkv", **options: Any) -> ds.AttentionGrads:
    out, lse = ds.attention(q, k, v, return_lse=True, **options)
    return ds.attention_backward(grad_out, q, k, v, out, lse, needs=tuple(needs), **options)


def same(got: ds.AttentionGrads, want: ds.AttentionGrads) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b) if b is not None else None


# ------------------------------------------------------------------ what is not seen
@pytest.mark.parametrize("held", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", DTYPES)
def test_hidden_reaches_nothing(held: float, key: str, backend: str) -> None:
    """Keys and values behind a mask, and gradients of rows that see nothing."""
    grad_out, q, k, v = given(key)
    mask = np.ones((30, 70), bool)
    mask[:, 40:50], mask[3] = False, False
    want = backward(grad_out, q, k, v, mask=mask)
    for x in (k, v):
        x[..., 40:50, :] = held
    grad_out[..., 3, :] = held
    got = backward(grad_out, q, k, v, mask=mask)
    same(got, want)
    assert not got.q[..., 3, :].any()
    assert not got.k[..., 40:50, :].any()
    assert not got.v[..., 40:50, :].any()


@pytest.mark.parametrize("held", [np.nan, np.inf])
@pytest.mark.parametrize("key", ["f32", "bf16"])
def test_gradient_reaches_what_its_row_sees(held: float, key: str, backend: str) -> None:
    """grad_out of one query that is not finite: dv of the keys that it sees, dq of its own."""
    grad_out, q, k, v = given(key)
    want = backward(grad_out, q, k, v, causal=True)
    grad_out[0, 1, 9, 4] = held
    got = backward(grad_out, q, k, v, causal=True)
    sees = 9 + 40 + 1
    assert not np.isfinite(got.v[0, 0, :sees, 4]).any()
    np.testing.assert_array_equal(got.v[0, 0, sees:], want.v[0, 0, sees:])
    np.testing.assert_array_equal(got.v[0, 0, :, :4], want.v[0, 0, :, :4])
    assert np.isnan(got.q[0, 1, 9]).all()
    np.testing.assert_array_equal(got.k[0, 0, sees:], want.k[0, 0, sees:])
    np.testing.assert_array_equal(got.q[0, [0, 2, 3]], want.q[0, [0, 2, 3]])
    np.testing.assert_array_equal(got.v[1], want.v[1])


@pytest.mark.parametrize("key", ["f32", "bf16"])
def test_nan_row(key: str, backend: str) -> None:
    """A NaN in a query: its own gradient, and those of the keys and values that it sees."""
    grad_out, q, k, v = given(key)
    want = backward(grad_out, q, k, v, causal=True)
    q[1, 3, 2, 0] = np.nan
    got = backward(grad_out, q, k, v, causal=True)
    assert np.isnan(got.q[1, 3, 2]).all()
    for name in "kv":
        assert np.isnan(getattr(got, name)[1, 1, :43]).all()
        np.testing.assert_array_equal(getattr(got, name)[1, 1, 43:], getattr(want, name)[1, 1, 43:])
        np.testing.assert_array_equal(getattr(got, name)[1, 0], getattr(want, name)[1, 0])


def test_overflow(level: str) -> None:
    """A product beyond float32 stays with the queries that see its value, and with the keys that these see."""
    grad_out, q, k, v = given("bf16")
    grad_out[0, ..., 4] = 2
    want = backward(grad_out, q, k, v, window=(5, 0))
    v[0, 0, 45, 4] = 3e38  # seen by queries 5 to 10, which see keys 40 to 50
    got = backward(grad_out, q, k, v, window=(5, 0))
    assert not np.isfinite(got.q[0, :2, 5:11]).any()
    assert not np.isfinite(got.k[0, 0, 45]).any()
    got.q[0, :2, 5:11], got.k[0, 0, 40:51] = want.q[0, :2, 5:11], want.k[0, 0, 40:51]
    same(got, want)


def test_subnormal_bfloat16(level: str) -> None:
    """Among others they change no gradient; the level whose products take them for 0 says so to the bit."""
    rng = np.random.default_rng(3)
    x = given("bf16")
    for a in x:
        a[rng.random(a.shape) < 0.3] = np.array(3e-39).astype(a.dtype)
    without = [np.where(np.abs(a) < 1e-38, np.zeros_like(a), a) for a in x]
    out, lse = ds.attention(*x[1:], causal=True, return_lse=True)
    got = ds.attention_backward(*x, out, lse, causal=True)
    why = gradient_oracle.wrong(got, gradient_oracle.gradients(*x, causal=True))
    assert not why, why
    if level.endswith("_bf16"):
        same(got, ds.attention_backward(*without, out, lse, causal=True))


def test_infinite_lse_of_a_whole(backend: str) -> None:
    """Of more keys than are given: +inf says that the row is NaN, -inf that it sees nothing, whatever the scores."""
    grad_out, q, k, v = given()
    out, lse = ds.attention(q, k, v, return_lse=True)
    want = ds.attention_backward(grad_out, q, k, v, out, lse)
    lse[0, 1, 2], lse[1, 2, 3] = np.inf, -np.inf
    got = ds.attention_backward(grad_out, q, k, v, out, lse)
    assert np.isnan(got.q[0, 1, 2]).all()
    assert np.isnan(got.k[0, 0]).all()
    assert np.isnan(got.v[0, 0]).all()
    assert not got.q[1, 2, 3].any()
    lse[0, 1, 2], grad_out[1, 2, 3] = -np.inf, 0
    none = ds.attention_backward(grad_out, q, k, v, out, lse)
    np.testing.assert_array_equal(none.v[1, 1], got.v[1, 1])
    np.testing.assert_array_equal(none.v[1, 0], want.v[1, 0])
    assert np.isfinite(none.k).all()


def test_nothing_seen(backend: str) -> None:
    grad_out, q, k, v = given()
    for options in (
        {"mask": np.bool_(False)},
        {"kv_lengths": [0, 0]},
        {"bias": -np.inf},
        {"causal": True, "causal_offset": -99},
    ):
        for grad in backward(grad_out, q, k, v, **options)[:3]:
            assert not grad.any()
            assert not np.signbit(grad).all()


@pytest.mark.parametrize("key", DTYPES)
def test_one_key(key: str, backend: str) -> None:
    """A query that sees one key has weight 1 whatever the scores: no gradient but the value's, and that is exact."""
    grad_out, q, k, v = given(key)
    out, lse = ds.attention(q, k, v, return_lse=True, window=(0, 0), causal=True)
    got = ds.attention_backward(grad_out, q, k, v, out, lse, window=(0, 0), causal=True)
    small = 0 if backend != "reference" and key != "f64" else np.finfo(np.float64).eps * 1000
    assert np.abs(got.q.astype(float)).max() <= small
    assert np.abs(got.k.astype(float)).max() <= small


def test_sink_alone(backend: str) -> None:
    grad_out, q, k, v = given()
    options: dict[str, Any] = {"mask": np.bool_(False), "sinks": np.array([0.5, -3.0, 700.0, -700.0])}
    out, lse = ds.attention(q, k, v, return_lse=True, **options)
    grad_lse = np.random.default_rng(2).standard_normal(lse.shape).astype(F32)
    got = ds.attention_backward(grad_out, q, k, v, out, lse, grad_lse=grad_lse, needs=("sinks", "q"), **options)
    np.testing.assert_allclose(got.sinks, grad_lse.astype(np.float64).sum((0, 2)), rtol=float(np.finfo(F32).eps) * 64)
    assert not got.q.any()


@pytest.mark.parametrize("level", [1e3, -1e3, 1e6, -1e6, 1e30, -float(np.finfo(F32).max)])
def test_huge_lse(level: float, backend: str) -> None:
    """A common bias, however large, changes no gradient as long as it leaves the scores their digits, and is no NaN."""
    grad_out, q, k, v = given()
    got = backward(grad_out, q, k, v, bias=level)
    exact = (q * 0, k) if abs(level) > 1e6 else (q, k)
    want = backward(grad_out, *exact, v)
    spacing = float(np.spacing(F32(abs(level)))) if abs(level) <= 1e6 else 0.0
    for name in "kv" if abs(level) <= 1e6 else "v":
        a, b = getattr(got, name), getattr(want, name)
        assert np.isfinite(a).all()
        assert np.abs(a - b).max() <= (8 * spacing + 64 * np.finfo(F32).eps) * np.abs(b).max() * 4
    assert np.isfinite(got.q).all()


# ------------------------------------------------------------------ shapes and layouts
@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, key: str, backend: str) -> None:
    """All of the inputs, gradients too, may lie in any way."""
    view = LAYOUTS[name]
    grad_out, q, k, v = given(key)
    out, lse = ds.attention(q, k, v, return_lse=True, causal=True)
    laid_out = [view(x) for x in (grad_out, q, k, v, out, lse)]
    want = ds.attention_backward(*(np.ascontiguousarray(x) for x in laid_out), causal=True)
    same(ds.attention_backward(*laid_out, causal=True), want)


def test_broadcast_operands(backend: str) -> None:
    """The gradient of an operand that a batch shares is the sum over the batch."""
    grad_out, q, k, v = given()
    got = backward(grad_out, q, k[:1], v[0])
    whole = backward(grad_out, q, np.repeat(k[:1], 2, 0), np.repeat(v[:1], 2, 0))
    assert got.k.shape == k[:1].shape
    assert got.v.shape == v[0].shape
    limit = 4 * float(ds.accuracy.ulp(np.abs(whole.k).max() * 2, F32))
    assert np.abs(got.k[0] - whole.k.sum(0)).max() <= limit
    assert np.abs(got.v - whole.v.sum(0)).max() <= 4 * float(ds.accuracy.ulp(np.abs(whole.v).max() * 2, F32))


def test_one_head_without_its_axis(backend: str) -> None:
    grad_out, q, k, v = (x[0, 0] for x in given())
    got = backward(grad_out, q, k, v, causal=True)
    same(
        got,
        ds.AttentionGrads(
            *(None if g is None else g[0] for g in backward(*(x[None] for x in (grad_out, q, k, v)), causal=True))
        ),
    )


def test_needs(backend: str) -> None:
    """What is needed has the bits that it has beside everything else; the rest is None."""
    grad_out, q, k, v = given()
    options: dict[str, Any] = {
        "bias": np.random.default_rng(1).standard_normal((4, 30, 70)),
        "sinks": np.ones(4),
        "softcap": 5.0,
    }
    names = ("q", "k", "v", "bias", "sinks")
    whole = backward(grad_out, q, k, v, names, **options)
    for needs in ((), ("q",), ["k"], {"v"}, ("bias",), ("sinks",), ("v", "q"), ("sinks", "k", "bias"), ("q", "q")):
        got = backward(grad_out, q, k, v, needs, **options)
        for name in names:
            if name in needs:
                np.testing.assert_array_equal(getattr(got, name), getattr(whole, name))
            else:
                assert getattr(got, name) is None


@pytest.mark.parametrize(
    "shape",
    [(), (70,), (30, 1), (30, 70), (4, 1, 1), (4, 30, 70), (2, 1, 30, 70), (2, 1, 1, 70), (2, 4, 30, 70), (1, 4, 1, 1)],
)
def test_bias_of_any_shape(shape: tuple[int, ...], backend: str) -> None:
    """dbias is that of the scores, summed to the shape of the bias."""
    grad_out, q, k, v = given("f64")
    bias = np.random.default_rng(1).standard_normal(shape)
    got = backward(grad_out, q, k, v, ("bias",), bias=bias, causal=True).bias
    every = np.broadcast_to(bias, (2, 4, 30, 70)).copy()
    whole = backward(grad_out, q, k, v, ("bias",), bias=every, causal=True).bias
    want = whole.sum(tuple(range(4 - len(shape))))
    want = want.sum(tuple(a for a, n in enumerate(shape) if n == 1), keepdims=True)
    assert np.shape(got) == shape
    assert far_from("dbias", got, np.asarray(want), np.abs(whole).sum() * np.finfo(float).eps, np.float64) is None


def test_dtypes_of_mixed_operands(backend: str) -> None:
    grad_out, q, k, v = given()
    got = backward(
        grad_out,
        q,
        k.astype(np.float16),
        (v * 4).astype(np.int8),
        (*"qkv", "bias", "sinks"),
        bias=np.int8(1),
        sinks=np.ones(4, np.float16),
    )
    assert [g.dtype for g in got] == [F32, np.float16, np.float64, np.float64, np.float16]
    swapped = backward(grad_out, q.astype(">f4"), k, v)
    assert swapped.q.dtype.isnative
    same(swapped, backward(grad_out, q, k, v))


# ------------------------------------------------------------------ errors
WRONG: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "grad_out of a wrong shape": ({"grad_out": np.ones((2, 4, 30, 13), F32)}, ValueError, ("grad_out", "12)", "13")),
    "grad_out complex": ({"grad_out": np.ones((2, 4, 30, 12), complex)}, TypeError, ("grad_out", "complex128")),
    "out of a wrong shape": ({"out": np.ones((2, 4, 12), F32)}, ValueError, ("out", "(2, 4, 30, 12)", "(2, 4, 12)")),
    "lse of a wrong shape": ({"lse": np.ones((2, 4, 31), F32)}, ValueError, ("lse", "(2, 4, 30)", "(2, 4, 31)")),
    "lse a string": ({"lse": "x"}, TypeError, ("lse", "<U1")),
    "grad_lse of a wrong shape": ({"grad_lse": 1.0}, ValueError, ("grad_lse", "(2, 4, 30)", "()")),
    "needs a string": ({"needs": "q"}, TypeError, ("needs", "'q'", "tuple")),
    "needs of an unknown name": ({"needs": ("q", "w")}, ValueError, ("needs", "'w'", "sinks")),
    "needs bias without one": ({"needs": ("bias",)}, ValueError, ("needs", "bias", "not given")),
    "needs sinks without them": ({"needs": ("sinks",)}, ValueError, ("needs", "sinks", "not given")),
    "k of another head dim": ({"k": np.ones((2, 2, 70, 9), F32)}, ValueError, ("q", "k", "head dim")),
    "mask of floats": ({"mask": np.ones(70, F32)}, TypeError, ("mask", "bias")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    change, kind, words = WRONG[name]
    grad_out, q, k, v = given()
    out, lse = ds.attention(q, k, v, return_lse=True)
    arguments = {"grad_out": grad_out, "q": q, "k": k, "v": v, "out": out, "lse": lse} | change
    with pytest.raises(kind) as caught:
        ds.attention_backward(**arguments)
    assert all(word in str(caught.value) for word in words), caught.value


# ------------------------------------------------------------------ memory
PEAK = """
import resource
import numpy as np, dualsoft as ds
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
n, d = 16384, 32
q, k, v, g = (np.random.default_rng(0).standard_normal((n, d), dtype=np.float32) for _ in range(4))
bias = np.zeros((1, n), np.float32)
out, lse = ds.attention(q, k, v, causal=True, bias=bias, return_lse=True)
def call(m):
    ds.attention_backward(
        g[:m], q[:m], k[:m], v[:m], out[:m], lse[:m], causal=True, bias=bias[:, :m], needs=("q", "k", "v", "bias"))
call(600)
before = peak()
call(n)
print(peak() - before)
"""


@pytest.mark.skipif(not any(":" in name for name in USABLE), reason="no compiled level can be used here")
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux counts it")
def test_no_scores_are_stored() -> None:
    """A GiB of scores; the gradients take 6 MiB, and dq in its parts 8 times 2."""
    assert int(run_code(PEAK)) < 64
