"""The running pair of device arrays: the same values as the host's, on the device that the arrays came from."""

from collections.abc import Iterator
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from cases import normal
from tolerance import relative

import dualsoft as ds
from dualsoft.backends import cuda

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
State = ds.SoftmaxState
OF_LOGARITHM, OF_SHARE = (relative(name, "float64") for name in ("logsumexp", "softmax"))
SPECIAL = np.array(
    [[0, 1, 2, 3], [-np.inf] * 4, [np.inf, 0, 1, 2], [np.nan, 0, np.inf, 1], [7, 7, 7, 7], [-np.inf, 5, 700, -700]]
)


@pytest.fixture(params=[0, 1], ids=["current", "other"])
def cp(request: pytest.FixtureRequest) -> Iterator[Any]:
    """CuPy's look-alike, for arrays on the current device or on another one."""
    module = devices.module(NAME)

    class OnDevice:
        def __getattr__(self, name: str) -> Any:
            return getattr(module, name)

        @staticmethod
        def asarray(*values: Any) -> Any:
            with module.cuda.Device(request.param):
                return module.asarray(*values)

        number = request.param

    with ds.use_backend(NAME):
        yield OnDevice()


@pytest.fixture
def as_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The emulator as the backend "cuda" itself, which ``to`` asks for."""
    module = devices.module(NAME)
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(module), None))
    return module


def values_of(state: State) -> list[Any]:
    return [devices.get(part) for part in (state.m, state.d, state.lse)]


def on_host(function: Any, *arguments: Any) -> Any:
    with ds.use_backend("reference"):
        return function(*arguments)


def assert_same(device: State, host: State, cp: Any) -> None:
    """The kernels are held to their bounds elsewhere: these rows have exact sums, or all but."""
    assert [part.device.id for part in (device.m, device.d, device.lse)] == [cp.number] * 3
    for got, want in zip(values_of(device), values_of(host), strict=True):
        np.testing.assert_allclose(got, want, rtol=OF_LOGARITHM)


def test_the_algebra_is_that_of_the_host(cp: Any) -> None:
    left, right = SPECIAL[:, :2], SPECIAL[:, 2:]
    host = [on_host(ds.softmax_state, part, -1) for part in (left, right)]
    device = [ds.softmax_state(cp.asarray(part), -1) for part in (left, right)]
    for got, want in zip(device, host, strict=True):
        assert_same(got, want, cp)
    assert_same(device[0] | device[1], host[0] | host[1], cp)
    assert (device[0] | device[1]) == (device[1] | device[0])
    assert_same(device[0].update(cp.asarray(right), -1), host[0] | host[1], cp)
    assert_same(ds.softmax_state(cp.asarray(left), -1, initial=device[1]), host[0] | host[1], cp)
    nothing = State.identity((6,), like=cp.asarray(left))
    assert_same(nothing, State.identity((6,)), cp)
    assert (nothing | device[0]) == device[0]
    assert_same(
        State(cp.asarray(SPECIAL[:, 0]), cp.asarray(np.full(6, 2.0))), State(SPECIAL[:, 0], np.full(6, 2.0)), cp
    )
    packed = device[0].pack()
    assert packed.device.id == cp.number
    assert State.unpack(packed) == device[0]
    assert "SoftmaxState" in repr(device[0])
    whole = device[0] | device[1]
    shares = whole.normalize(cp.asarray(left), -1)
    assert shares.device.id == cp.number
    want = on_host(lambda: (host[0] | host[1]).normalize(left, -1))
    np.testing.assert_allclose(shares.get(), want, rtol=OF_SHARE)


def test_states_of_two_places_do_not_mix(cp: Any) -> None:
    host, device = State.identity((3,)), State.identity((3,), like=cp.asarray(np.zeros(1)))
    assert host != device
    for a, b in ((host, device), (device, host)):
        with pytest.raises(TypeError, match="never moved silently"):
            a | b
    if cp.number:
        here = State.identity((3,), like=devices.module(NAME).zeros(1))
        assert here != device
        with pytest.raises(TypeError, match="on device"):
            here | device
    with pytest.raises(TypeError, match="never moved silently"):
        device.normalize(np.zeros((3, 2)), -1)
    with pytest.raises(ValueError, match="reduces to"):
        device.update(cp.asarray(np.zeros((2, 3))), 1)


def test_a_negative_d_that_the_host_does_not_see_is_nan(cp: Any) -> None:
    m, d = cp.asarray(np.zeros(3)), cp.asarray(np.array([-2.0, 3.0, -np.inf]))
    x = cp.asarray(np.zeros((3, 2)))
    for state in (State(m, d), State.unpack(cp.asarray(np.array([1, 1, 3, 0, 0, 0, -3.0, 2.0, -np.inf])))):
        want = [np.nan, 3, np.nan]
        np.testing.assert_array_equal(state.d.get(), want)
        shares = np.array([[1, 1]]) / np.array(want)[:, None]
        np.testing.assert_allclose(state.normalize(x, -1).get(), shares, rtol=OF_SHARE)
        np.testing.assert_array_equal((state | State.identity((3,), like=x)).d.get(), want)
    attention = ds.AttentionState(cp.asarray(np.ones((3, 1))), m, d)
    np.testing.assert_array_equal(attention.d.get(), [np.nan, 3, np.nan])
    np.testing.assert_array_equal(attention.finalize()[0].get()[:, 0], [np.nan, 1 / 3, np.nan])


def test_to_moves_and_stays(as_cuda: Any) -> None:
    host = on_host(ds.softmax_state, SPECIAL, -1)
    device = host.to("cuda")
    assert type(device.m) is as_cuda.ndarray
    assert device.to("cuda") is device
    assert host.to("cpu") is host
    back = device.to("cpu")
    assert type(back.m) is np.ndarray
    assert back == host
    with pytest.raises(ValueError, match="read-only"):
        back.m[...] = 0
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda', got 'tpu'"):
        device.to("tpu")
    with as_cuda.cuda.Device(1):
        assert host.to("cuda").m.device.id == 1
        assert device.to("cuda").m.device.id == 0, "where it is it stays"
    attention = ds.AttentionState(np.ones((2, 3)), np.zeros(2), np.ones(2))
    assert type(attention.to("cuda").m) is as_cuda.ndarray
    assert attention.to("cuda").to("cpu") == attention
    assert attention.to("cpu") is attention


@pytest.mark.parametrize("key", ["f16", "bf16", "f32", "f64"])
def test_a_trace_is_the_hosts(key: str, cp: Any) -> None:
    row = normal(key, 40)[::2]
    assert ds.trace(cp.asarray(row)) == ds.trace(row)
    with pytest.raises(ValueError, match="one dimension"):
        ds.trace(cp.asarray(row[None]))
