"""Calls on device arrays: kinds and devices that do not mix, empty work, results that go where they should."""

import re
from collections.abc import Iterator
from typing import Any

import devices
import emulator
import ml_dtypes
import numpy as np
import oracle
import pytest
from cases import DTYPES, normal
from emulator import launch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from tolerance import mismatch

import dualsoft as ds
from dualsoft import registry
from dualsoft.backends import cuda_launch

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
ELEMENTWISE = (ds.softmax, ds.log_softmax)
EVERY = (*ELEMENTWISE, ds.logsumexp)


@pytest.fixture
def cp() -> Iterator[Any]:
    with ds.use_backend(NAME):
        yield devices.module(NAME)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, int]]:
    """The launches of the test: grid, block and the current device."""
    found: list[tuple[Any, Any, int]] = []
    run = launch.RawKernel.__call__

    def recorded(kernel: Any, grid: Any, block: Any, args: Any, **options: Any) -> None:
        found.append((grid, block, launch.current_device.id))
        run(kernel, grid, block, args, **options)

    monkeypatch.setattr(launch.RawKernel, "__call__", recorded)
    return found


# ------------------------------------------------------------------ kinds that do not mix
@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize(
    ("name", "value"),
    [("where", np.ones((3, 40), bool)), ("scale", np.ones((3, 1))), ("scale", np.ones(())), ("out", np.ones((3, 40)))],
    ids=["where", "scale", "scale of no axes", "out"],
)
def test_numpy_beside_a_device_array(function: Any, name: str, value: Any, cp: Any, launches: list[Any]) -> None:
    x = cp.zeros((3, 40))
    if function is ds.logsumexp and name == "out":
        value = np.ones(3)
    with pytest.raises(TypeError, match=rf"{name} is a NumPy array and x a CuPy array.*never moved silently"):
        function(x, -1, **{name: value})
    assert launches == []


@pytest.mark.parametrize("function", EVERY)
def test_a_device_array_beside_numpy(function: Any, cp: Any, launches: list[Any]) -> None:
    x = np.zeros((3, 40))
    out = cp.zeros(3 if function is ds.logsumexp else (3, 40))
    with ds.use_backend("reference"):
        for name, value in (("where", cp.ones((3, 40), bool)), ("scale", cp.ones((3, 1))), ("out", out)):
            with pytest.raises(TypeError, match=rf"{name} is a CuPy array and x a NumPy array.*never moved silently"):
                function(x, -1, **{name: value})
    assert launches == []


def test_the_other_kind_for_a_backend_that_was_asked_for(cp: Any) -> None:
    with pytest.raises(TypeError, match=r"'cuda-emulated:sm_80' was asked for and does not take a numpy\.ndarray"):
        ds.softmax(np.zeros((3, 4)), -1)
    for name in ("cpu", "reference"):
        with ds.use_backend(name), pytest.raises(TypeError, match="never moved silently"):
            ds.softmax(cp.zeros((3, 4)), -1)


def test_numbers_and_lists_go_where_the_array_is(cp: Any) -> None:
    x = cp.asarray(normal("f32", 3, 5))
    host = x.get()
    where = [True, True, False, True, True]
    want = oracle.softmax(host, -1, oracle.wide_type(host.dtype), where=np.array([where] * 3), scale=2.0)
    got = ds.softmax(x, -1, where=where, scale=[2.0])
    assert mismatch("softmax", got.get(), want, host.dtype, "cuda") is None
    assert type(got) is emulator.ndarray


def test_what_no_device_holds_is_refused_as_beside_numpy(cp: Any, launches: list[Any]) -> None:
    host = normal("f32", 3, 5)
    for options in (
        {"scale": "2"},
        {"scale": [1j]},
        {"where": "no"},
        {"where": [1, 0, 1, 1, 0]},
        {"b": "x"},
        {"b": [None] * 5},
    ):
        with pytest.raises(TypeError) as of_host, ds.use_backend("reference"):
            ds.logsumexp(host, -1, **options)
        with pytest.raises(TypeError, match=re.escape(str(of_host.value))):
            ds.logsumexp(cp.asarray(host), -1, **options)
    assert launches == []


def test_integers_are_not_read_from_a_device(cp: Any) -> None:
    with emulator.settings(host_reads=False), pytest.raises(TypeError, match="axis must be an integer"):
        ds.cumulative_logsumexp(cp.zeros((3, 4)), cp.ones((), np.int64)[...])


class Labelled(emulator.ndarray):  # type: ignore[misc, unused-ignore]
    """A user's subclass, of a module that has none of CuPy's functions."""


def test_subclasses_are_arrays_of_their_module(cp: Any) -> None:
    x = cp.asarray(normal("f32", 3, 40))
    mine = Labelled((3, 40), np.float32, x.data, x.strides)
    for function in EVERY:
        got = function(mine, -1, scale=[2.0], where=[True] * 40)
        assert got.get().tobytes() == function(x, -1, scale=2.0, where=[True] * 40).get().tobytes()
    state = ds.softmax_state(mine, -1)
    assert state == ds.softmax_state(x, -1)


# ------------------------------------------------------------------ two devices
@pytest.mark.parametrize("name", ["where", "scale", "out"])
def test_two_devices(name: str, cp: Any, launches: list[Any]) -> None:
    x = cp.zeros((3, 40))
    with cp.cuda.Device(1):
        other = {"where": cp.ones((3, 40), bool), "scale": cp.ones((3, 1)), "out": cp.zeros((3, 40))}[name]
    with pytest.raises(TypeError, match=rf"{name} is on device 1 and x on device 0.*never moved silently"):
        ds.softmax(x, -1, **{name: other})
    assert launches == []


@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("options", [{}, {"scale": [2.0]}, {"where": [True] * 40}], ids=["", "scale", "where"])
def test_the_device_of_the_array_is_made_current(function: Any, options: Any, cp: Any, launches: list[Any]) -> None:
    """Whatever device is the current one: its own runs the kernel and holds the result."""
    with cp.cuda.Device(1):
        x = cp.asarray(normal("f32", 3, 40))
    result = function(x, -1, **options)
    assert result.device.id == 1
    assert [device for _, _, device in launches] == [1]
    assert cp.cuda.Device().id == 0, "and the current device is what it was"
    assert result.get().tobytes() == function(cp.asarray(x.get()), -1, **options).get().tobytes()


def test_results_of_more_than_one_array_lie_on_its_device(cp: Any) -> None:
    with cp.cuda.Device(1):
        x = cp.zeros((3, 40))
    results = (
        *ds.logsumexp(x, -1, return_sign=True),
        ds.softmax(x, -1, out=x),
        ds.softmax(x[:, 1:], -1, out=x[:, :-1]),
        ds.softmax(x[:0], -1),
        ds.logsumexp(x[:, :0], -1),
    )
    assert [result.device.id for result in results] == [1] * len(results)


# ------------------------------------------------------------------ empty work
@pytest.mark.parametrize("shape", [(0,), (0, 40), (40, 0), (3, 0, 5)])
def test_nothing_to_do_launches_nothing(shape: tuple[int, ...], cp: Any, launches: list[Any]) -> None:
    x = cp.zeros(shape, np.float32)
    for function in ELEMENTWISE:
        for axis in (None, *range(len(shape))):
            result = function(x, axis)
            assert (result.shape, result.dtype, type(result)) == (shape, x.dtype, emulator.ndarray)
    for axis in (None, *range(len(shape))):
        lse, sign = ds.logsumexp(x, axis, return_sign=True)
        assert lse.shape == np.zeros(shape).sum(axis).shape
        assert (lse.get() == -np.inf).all()
        assert (sign.get() == 0).all()
    assert launches == []


def test_a_call_is_one_launch(cp: Any, launches: list[Any]) -> None:
    x = cp.zeros((3, 4, 50), np.float32)
    for count, call in enumerate(
        [
            lambda: ds.softmax(x, -1),
            lambda: ds.softmax(x, (0, 2), where=x == 0, scale=cp.ones((4, 1))),
            lambda: ds.log_softmax(x, None),
            lambda: ds.logsumexp(x, 0, keepdims=True, return_sign=True),
            lambda: ds.softmax(cp.zeros(()), None),
            lambda: ds.softmax(cp.zeros((1, 1)), 0),
        ],
        start=1,
    ):
        call()
        assert len(launches) == count
    assert all(grid[0] >= 1 for grid, _, _ in launches)


def test_a_reduction_over_everything_is_an_array_of_no_axes(cp: Any) -> None:
    for result in (ds.logsumexp(cp.zeros(5)), ds.softmax(cp.zeros(()))):
        assert type(result) is emulator.ndarray
        assert result.shape == ()


# ------------------------------------------------------------------ where results go
@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("n", [5, 100, 2000])
def test_in_place_gives_the_same_bits(key: str, n: int, cp: Any) -> None:
    for function in ELEMENTWISE:
        x = cp.asarray(normal(key, 4, n))
        want = function(x, -1).get()
        assert function(x, -1, out=x) is x
        assert x.get().tobytes() == want.tobytes()


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("n", [33, 300, 9001])
def test_in_place_at_any_address(key: str, n: int, cp: Any) -> None:
    """Pieces of 16 bytes are read where neighbours write: warps and blocks have to meet in between."""
    for rows in (1, 3) if n < 1000 else (1,):
        memory = normal(key, rows, n + 1)
        state = ds.softmax_state(cp.asarray(memory)[:, 1:], -1)
        for function in (ds.softmax, ds.log_softmax, ds.cumulative_logsumexp, state.normalize):
            x = cp.asarray(memory)[:, 1:]
            want = function(x, -1).get()
            assert function(x, -1, out=x) is x
            assert x.get().tobytes() == want.tobytes(), function


def test_a_row_of_several_blocks_in_place_at_any_address(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_launch.Device, "STATIC", 1 << 30)  # no row is kept in shared memory
    monkeypatch.setattr(registry.require(NAME).run.__self__, "_devices", {})
    memory = normal("f32", 1, 20_001)
    for function in ELEMENTWISE:
        x = cp.asarray(memory)[:, 1:]
        want = function(x, -1).get()
        assert function(x, -1, out=x) is x
        assert x.get().tobytes() == want.tobytes(), function


@pytest.mark.parametrize("cut", [1, 8])
def test_an_out_that_overlaps_gives_the_same_bits(cut: int, cp: Any) -> None:
    for function in ELEMENTWISE:
        memory = cp.asarray(normal("f32", 4, 200))
        x, out = memory[:, cut:], memory[:, :-cut]
        want = function(x.copy(), -1).get()
        assert function(x, -1, out=out) is out
        assert out.get().tobytes() == want.tobytes()
    memory = cp.asarray(normal("f32", 8, 8))
    want = ds.logsumexp(memory.copy(), -1).get()
    assert ds.logsumexp(memory, -1, out=memory[:, 3]).get().tobytes() == want.tobytes()


def test_an_out_over_the_mask_or_the_scale(cp: Any) -> None:
    x = cp.asarray(normal("f64", 8, 8))
    factors = cp.asarray(normal("f64", 8, 8))
    want = ds.softmax(x, -1, scale=factors[:, :1].copy()).get()
    assert ds.softmax(x, -1, scale=factors[:, :1], out=factors).get().tobytes() == want.tobytes()


def test_an_out_that_does_not_fit(cp: Any, launches: list[Any]) -> None:
    x = cp.zeros((3, 40), np.float32)
    with pytest.raises(ValueError, match="out must have the shape"):
        ds.softmax(x, -1, out=cp.zeros((3, 41), np.float32))
    with pytest.raises(TypeError, match="out must have the dtype"):
        ds.softmax(x, -1, out=cp.zeros((3, 40)))
    with pytest.raises(ValueError, match="out must have each element in memory of its own"):
        ds.softmax(x, -1, out=cp.ndarray((3, 40), np.float32, cp.zeros(40, np.float32).data, (0, 4)))
    assert launches == []


def test_bfloat16(cp: Any) -> None:
    bf16 = ml_dtypes.bfloat16
    x = cp.asarray(normal("bf16", 3, 40))
    assert ds.softmax(x, -1).dtype == ds.logsumexp(x, -1).dtype == bf16
    assert ds.softmax(x, -1, dtype=np.float32).dtype == np.float32
    assert ds.softmax(x, -1, dtype=np.float64).dtype == np.float64
    assert ds.softmax(x.astype(np.float64), -1, dtype=bf16).dtype == bf16
    out = cp.empty((3, 40), bf16)
    assert ds.softmax(x, -1, out=out) is out
    wide = ds.softmax(x.astype(np.float32), -1).get()
    assert (np.abs(out.get().astype(np.float32) - wide) <= wide * 2.0**-8).all()


# ------------------------------------------------------------------ strides, against a dense copy
@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 64)),
    st.tuples(*[st.integers(-70, 70)] * 3),
    st.integers(0, 15),
    st.sampled_from(["f16", "f32", "f64"]),
)
def test_strides_do_not_change_a_bit(shape: Any, steps: Any, at: int, key: str) -> None:
    """Any strides in bytes, negative, 0, overlapping and unaligned ones included; n within two variants of a kernel.

    With a mask, which keeps to the kernels of rows: others serve rows that are not contiguous.
    """
    lengths = [abs(step) * (length - 1) for step, length in zip(steps, shape, strict=True)]
    size = np.dtype(DTYPES[key]).itemsize
    raw = np.frombuffer(np.random.default_rng([*shape, at]).bytes(sum(lengths) + size + at), np.uint8)
    first = at + sum(length for step, length in zip(steps, lengths, strict=True) if step < 0)
    view = as_strided(raw[first : first + size].view(DTYPES[key]), shape, steps, writeable=False)
    cp = devices.module(NAME)
    with ds.use_backend(NAME), np.errstate(all="ignore"):
        x, dense = devices.put(NAME, view), cp.asarray(np.ascontiguousarray(view))
        for function in EVERY:
            got = function(x, -1, where=cp.ones(shape, bool))
            assert got.get().tobytes() == function(dense, -1).get().tobytes(), function.__name__
