"""float64 attention of many rows on tensor cores: the sums of fused multiply-adds to the bit, and what is loaded."""

from collections.abc import Callable
from typing import Any

import attention_oracle
import devices
import emulator
import gradient_oracle
import numpy as np
import pytest
from attention_cases import Shape, lone, operands
from cuda_mistakes_attention import F64_MUTATIONS, F64_SHAPES
from tensor_attention import attend, check
from tolerance import attention_mismatch

import dualsoft as ds
from dualsoft.backends import cuda, nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
PLAIN = devices.OLD_TEXT
FOUR, ONE = "cuda-emulated:sm_80", "cuda-emulated:sm_90"
"""The architectures with products of float64, by the instructions that 16 x 8 x 8 takes."""
Array = np.ndarray[Any, Any]

SHAPES = {
    **F64_SHAPES,
    "one element": lone(17, 65, 1),
    "dims within a step": lone(35, 63, 3, 5),
    "a step and one": lone(31, 66, 65, 63),
    "one key": lone(40, 1, 5, 3),
    "two slices of columns": lone(33, 70, 130),
    "long sums": Shape((), 2, 1, 11, 67, 300, 9),
}


def state(name: str, q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, ...]:
    with ds.use_backend(name):
        of = ds.attention_state(*(devices.put(name, x) for x in (q, k, v)), **options)
        return tuple(devices.get(x) for x in (of.out, of.m, of.d))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sums(shape: Shape) -> None:
    """The same bits with and without tensor cores, but for d, which each thread sums for keys of its own."""
    q, k, v = operands("f64", shape)
    check(q, k, v, FOUR, causal=True)
    out, m, d = state(PLAIN, q, k, v, causal=True)
    for name in (FOUR, ONE):
        others = state(name, q, k, v, causal=True)
        np.testing.assert_array_equal(others[0], out, err_msg=name)
        np.testing.assert_array_equal(others[1], m, err_msg=name)
        np.testing.assert_array_max_ulp(others[2], d, 4)


@pytest.mark.parametrize("shape", [lone(33, 70, 65, 63), lone(40, 67, 130, 3)], ids=["a step and one", "long sums"])
def test_gradients(shape: Shape) -> None:
    """With either instruction the same bits."""
    q, k, v = operands("f64", shape)
    with ds.use_backend("reference"):
        out, lse = ds.attention(q, k, v, return_lse=True, causal=True)
    given = (np.cos(out * 1e3), q, k, v, out, lse)
    found = []
    for name in (FOUR, ONE):
        with ds.use_backend(name):
            got = ds.attention_backward(*(devices.put(name, x) for x in given), causal=True)
            found.append(ds.AttentionGrads(*(None if x is None else devices.get(x) for x in got)))
    why = gradient_oracle.wrong(found[0], gradient_oracle.gradients(*given[:4], causal=True))
    assert why is None, why
    for got, want in zip(found[1][:3], found[0][:3], strict=True):
        np.testing.assert_array_equal(got, want)


OTHER_ORDER = {
    "{a[0], a[8 * pitch], a[4], a[8 * pitch + 4]}": "{a[4], a[8 * pitch + 4], a[0], a[8 * pitch]}",
    "x, b[8 * n * by_column], b[8 * n * by_column + 4 * by_depth]": (
        "x, b[8 * n * by_column + 4 * by_depth], b[8 * n * by_column]"
    ),
}
"""A step's last elements first."""


@pytest.mark.parametrize("is_changed", [False, True])
def test_one_key_in_any_order(is_changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a query that sees one key dp is delta, exactly, in whatever order tensor cores add."""
    assemble = nvrtc.assemble

    def changed(source: str) -> str:
        text = assemble(source)
        for old, new in OTHER_ORDER.items() if is_changed else ():
            assert text.count(old) == (source != "gradient_sinks.cu")
            text = text.replace(old, new)
        return text

    monkeypatch.setattr(nvrtc, "assemble", changed)
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(FOUR)), None))
    q, k, v = operands("f64", lone(40, 40, 9, 77))
    grad_out = np.cos(v * 1e3)
    with ds.use_backend("cuda"):
        given = (devices.put(FOUR, x) for x in (grad_out, q, k, v, v, (q * k).sum(-1) / 3))
        got = ds.attention_backward(*given, window=(0, 0), causal=True)
    assert not devices.get(got.q).any()
    assert not devices.get(got.k).any()
    np.testing.assert_array_max_ulp(devices.get(got.v), grad_out, 64)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_special_values(which: str, bad: float) -> None:
    """In the last element, alone in its step beside zeros: rows that do not see it keep their bits."""
    arrays = dict(zip("qkv", operands("f64", lone(37, 67, 65, 33)), strict=True))
    clean = attend(**arrays, causal=True)
    row = 30 if which == "q" else 61
    arrays[which][0, row, -1], arrays[which][0, row, 5] = bad, -bad
    got = attend(**arrays, causal=True)
    why = attention_mismatch(*got, attention_oracle.attention(**arrays, causal=True))
    assert not why, why
    sees = np.arange(37) == row if which == "q" else np.arange(37) + 30 >= row
    for a, b in zip(got, clean, strict=True):
        np.testing.assert_array_equal(a[0, ~sees], b[0, ~sees])
    mask = np.arange(67) != row
    if which != "q":
        for a, b in zip(
            attend(**arrays, mask=mask), attend(*operands("f64", lone(37, 67, 65, 33)), mask=mask), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_a_row_has_its_bits_anywhere() -> None:
    """In another place of its tile, in a longer sequence, and with room behind the keys."""
    q, k, v = operands("f64", lone(70, 150, 20, 70))
    out, lse = attend(q, k[:, :131], v[:, :131])
    for first in (1, 13):
        moved = attend(q[:, first:], k[:, :131], v[:, :131])
        np.testing.assert_array_equal(moved[0], out[:, first:])
        np.testing.assert_array_equal(moved[1], lse[:, first:])
    k[:, 131:], v[:, 131:] = np.nan, np.inf
    roomy = attend(q[None], k[None], v[None], kv_lengths=np.array([131]))
    np.testing.assert_array_equal(roomy[0][0], out)
    np.testing.assert_array_equal(roomy[1][0], lse)


@pytest.mark.parametrize("way", [{"schedule": "descending"}, {"schedule": "random", "seed": 2, "preempt": True}])
def test_the_order_of_threads_does_not_change_a_bit(way: dict[str, Any]) -> None:
    q, k, v = operands("f64", lone(70, 150, 20, 70))
    options = {"causal": True, "bias": np.linspace(-1, 1, 150)}
    want = attend(q, k, v, **options)
    with emulator.settings(**way):
        for got, right in zip(attend(q, k, v, **options), want, strict=True):
            np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize(("name", "instructions"), [(PLAIN, 0), (FOUR, 4), (ONE, 1)])
def test_nothing_is_moved_in_vain(name: str, instructions: int) -> None:
    """Three numbers a lane are loaded for a product of 16 x 8 x 8; fragments and weights have no bank conflicts."""
    q, k, v = operands("f64", lone(64, 256, 64))
    emulator.profile()
    with emulator.settings(profile=True):
        attend(q, k, v, name)
    products = 2 * 64 * 256 * 64 // (16 * 8 * 8)
    assert emulator.statistics().matrix_products == products * instructions
    in_shared = [row for row in emulator.profile() if row.space == "shared"]
    if instructions:
        loads = [row for row in in_shared if row.file == "attention_threads_f64.cuh"]
        assert {(row.operation, row.bytes) for row in loads} == {("load", 8)}
        assert sum(row.requests for row in loads) == 3 * products
        assert [row for row in in_shared if row.bytes == 8 and row.units != row.ideal] == []


# ------------------------------------------------------------------ planted mistakes
@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Plant one of the mistakes in all that is compiled during the test."""
    assemble = nvrtc.assemble

    def plant(name: str) -> None:
        mutation = F64_MUTATIONS[name]
        counts = [assemble(source).count(mutation.old) for source in ("attention.cu", "attention_gradient.cu")]
        assert max(counts) == 1, "the kernels have changed, and this test with them"
        monkeypatch.setattr(nvrtc, "assemble", lambda source: assemble(source).replace(mutation.old, mutation.new))

    return plant


@pytest.mark.parametrize("name", F64_MUTATIONS)
def test_mistakes_are_seen(name: str, planted: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = F64_MUTATIONS[name]
    planted(name)
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(FOUR)), None))
    for call in mutation.calls:
        q, k, v = operands("f64", F64_SHAPES[call])
        try:
            how = attention_mismatch(*attend(q, k, v, "cuda"), attention_oracle.attention(q, k, v)) and "wrong numbers"
        except emulator.KernelFault as fault:
            how = ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]
        assert how is not None, f"{call}: nobody sees it"
        assert any(sign in how for sign in mutation.signs), f"{call}: seen as {how}"
