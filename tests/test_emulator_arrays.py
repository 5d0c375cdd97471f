"""Arrays in the emulator's device memory: CuPy's names, NumPy's functions, and what is known of each byte."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import emulator
import numpy as np
import pytest
from emulator import KernelFault, cupy_for, to_device
from emulator.library import core
from small_kernels import SKIP

pytestmark = SKIP
cp = cupy_for("sm_80")


def on_device(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return cp.asarray(np.arange(np.prod(shape)).reshape(shape).astype(dtype))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x[0],
        lambda x: x[0, 1],
        lambda x: x[..., 1:],
        lambda x: x[None],
        lambda x: x.T,
        lambda x: x.reshape(4, 3),
        lambda x: x.view(np.int32),
        lambda x: x.real,
        lambda x: np.swapaxes(x, 0, 1),
        lambda x: np.broadcast_to(x, (2, 3, 4)),
        lambda x: cp.expand_dims(x, 0),
        lambda x: x[::-1, ::2].squeeze(),
    ],
)
def test_views_share_memory(compute: Callable[[Any], Any]) -> None:
    x = on_device((3, 4))
    view = compute(x)
    assert type(view) is emulator.ndarray
    assert np.shares_memory(np.asarray(view), np.asarray(x))
    assert view.data.mem is x.data.mem


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: 2.0 * x,
        lambda x: x > 1,
        lambda x: -x,
        lambda x: x @ x.T,
        lambda x: x.sum(),
        lambda x: x.mean(axis=0),
        lambda x: np.max(x),
        lambda x: x.astype(np.float64),
        lambda x: x.copy(),
        lambda x: x.T.reshape(-1),
        lambda x: x.flatten(),
        lambda x: x[x > 1],
        lambda x: x[np.array([0, 2])],
        lambda x: np.stack([x, x]),
        lambda x: np.where(x > 1, x, 0),
        lambda x: np.exp(x),
        lambda x: np.add.reduce(x),
        lambda x: np.einsum("ij,kj->ik", x, x),
    ],
)
def test_new_results_lie_on_the_device(compute: Callable[[Any], Any]) -> None:
    x = on_device((3, 4))
    result, expected = compute(x), compute(np.asarray(x))
    assert type(result) is emulator.ndarray
    assert core().holds(result.data.ptr)
    assert not np.shares_memory(np.asarray(result), np.asarray(x))
    np.testing.assert_array_equal(result.get(), expected)
    assert result.dtype == np.asarray(expected).dtype


def test_several_results() -> None:
    parts = np.split(on_device((4,)), 2)
    assert [type(part) for part in parts] == [emulator.ndarray] * 2
    fraction, whole = np.modf(on_device((4,)))
    assert type(fraction) is type(whole) is emulator.ndarray


def test_scalars_stay_arrays() -> None:
    x = on_device((3,))
    for zero_dimensional in (x[1], x.sum(), x.max(), cp.zeros(()), next(iter(x)), x[1] + x[2]):
        assert type(zero_dimensional) is emulator.ndarray
        assert zero_dimensional.shape == ()
    assert (float(x[1]), int(x[2]), bool(x[0]), x.item(1), x.tolist()) == (1.0, 2, False, 1.0, [0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.get(),
        lambda x: cp.asnumpy(x),
        lambda x: x + 1,
        lambda x: x.sum(),
        lambda x: np.sum(x),
        lambda x: cp.exp(x),
        lambda x: np.stack([x]),
        lambda x: x.tolist(),
        lambda x: x.copy().get(),
        lambda x: x[[0]].get(),
        lambda x: np.testing.assert_array_equal(x, 0),
        lambda x: float(x[0, 0]),
        lambda x: pickle.dumps(x),
    ],
)
def test_reading_what_nothing_wrote_is_a_fault(read: Callable[[Any], Any]) -> None:
    with pytest.raises(KernelFault, match="unwritten output: nothing wrote"):
        read(cp.empty((2, 3)))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.fill(1),
        lambda x: x.__setitem__(Ellipsis, 1),
        lambda x: x.set(np.ones((2, 3))),
        lambda x: np.copyto(x, 1),
        lambda x: np.copyto(x, np.ones(3)),
        lambda x: np.add(1, np.ones((2, 3)), out=x),
        lambda x: np.sum(np.ones((4, 2, 3)), axis=0, out=x),
        lambda x: x.T.__setitem__(slice(None), 1),
        lambda x: x.__setitem__(([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]), 1),
        lambda x: x.__setitem__(np.ones((2, 3), bool), 1),
        lambda x: x.data.memset(0, x.nbytes),
    ],
)
def test_writing_by_numpy_counts(write: Callable[[Any], Any]) -> None:
    x = cp.empty((2, 3))
    write(x)
    assert x.get().shape == (2, 3)


def test_writing_a_part_counts_for_the_part() -> None:
    x = cp.empty((4, 4), np.float16)
    x[::2, 1] = 1
    assert x[::2, 1].get().tolist() == [1, 1]
    with pytest.raises(KernelFault, match="wrote 14 of the 16 elements"):
        x.get()


def test_copies_hand_on_what_is_known() -> None:
    x = cp.empty((2, 4))
    x[:, :2] = 3
    larger = cp.empty((3, 4))
    larger[1:] = x
    for array in (x.copy(), x.astype(np.float32), larger[1:], x[[0, 1]]):
        assert (array[:, :2].get() == 3).all()
        with pytest.raises(KernelFault):
            array[:, 2].get()
    x[...] = 0
    assert (larger[1:, :2].get() == 3).all()


def test_what_reads_nothing_takes_unwritten_arrays() -> None:
    x = cp.empty((2, 3), np.float16)
    assert cp.empty_like(x).dtype == np.float16
    assert cp.may_share_memory(x, x.T)
    assert not cp.may_share_memory(x, cp.empty(3))
    assert np.result_type(x, np.float32) == np.float32
    assert cp.zeros_like(x).get().sum() == 0
    assert cp.broadcast_to(x, (2, 2, 3)).strides == (0, 6, 2)


def test_layouts_of_new_arrays() -> None:
    assert cp.empty((2, 3, 4), np.int8, "F").strides == (1, 2, 6)
    assert cp.empty_like(on_device((2, 3)).T).strides == (4, 12)
    assert (on_device((2, 3)).T + 1).strides == (4, 12)
    assert cp.asarray(np.arange(6.0).reshape(2, 3).T).strides == (8, 24)
    assert cp.ascontiguousarray(on_device((2, 3)).T).flags.c_contiguous
    assert cp.asarray(np.arange(6)[::-2]).tolist() == [5, 3, 1]


def test_constructor() -> None:
    x = on_device((4, 4))
    view = cp.ndarray((2, 2), np.float32, x.data + 4 * 15, (-16, -4))
    assert view.tolist() == [[15, 14], [11, 10]]
    with pytest.raises(ValueError, match="memptr is required"):
        cp.ndarray((2,), strides=(8,))
    with pytest.raises(ValueError, match="strides"):
        cp.ndarray((5,), np.float32, x.data, (16,))
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cp.ndarray((2,), "U3")


def test_unaligned_and_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = cp.asarray(np.arange(4).astype(ml_dtypes.bfloat16))
    assert (x * 2).dtype == ml_dtypes.bfloat16
    assert x.get().tolist() == [0, 1, 2, 3]
    memory = cp.zeros(9, np.uint8)
    unaligned = cp.ndarray((2,), np.float32, memory.data + 1)
    unaligned[...] = [1, 2]
    assert unaligned.data.ptr % 4 == 1
    assert unaligned.get().tolist() == [1, 2]


def test_memory_is_freed_with_the_last_view() -> None:
    x = cp.empty((1000,))
    address, view = x.data.ptr, x[10:20].T
    del x
    assert core().allocation_of(address) == (address, 8000)
    del view
    assert core().allocation_of(address) is None


def test_large_arrays() -> None:
    x = cp.zeros((1 << 26,), np.int8)
    assert not x[-1]
    with pytest.raises(MemoryError):
        cp.empty((1 << 40,), np.int8)


def test_pickles_and_copies() -> None:
    x = on_device((2, 3))
    for other in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        assert type(other) is emulator.ndarray
        assert not np.shares_memory(np.asarray(other), np.asarray(x))
        np.testing.assert_array_equal(other, x)


def test_cupys_functions_refuse_arrays_of_the_host() -> None:
    x = on_device((3,))
    with pytest.raises(TypeError, match="Unsupported type"):
        cp.maximum(x, np.ones(3))
    with pytest.raises(TypeError, match="Unsupported type"):
        cp.zeros_like(np.ones(3))
    assert cp.maximum(x, np.float32(1)).tolist() == [1, 1, 2]
    assert np.maximum(x, np.ones(3)).tolist() == [1, 1, 2]


def test_byte_order() -> None:
    x = cp.asarray(np.arange(3, dtype=">f4"))
    assert x.dtype.isnative
    assert x.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="no arrays of dtype"):
        to_device(cp, np.arange(3, dtype=np.dtype(np.float32).newbyteorder()))


def test_host_reads_can_be_forbidden() -> None:
    x = on_device((3,))
    with emulator.settings(host_reads=False):
        y = x * 2 + 1
        for read in (y.get, y.tolist, lambda: bool(y[0] > 0), lambda: float(y[0]), lambda: int(y[0])):
            with pytest.raises(KernelFault, match="host read"):
                read()
    assert y.tolist() == [1, 3, 5]


def test_devices() -> None:
    with cp.cuda.Device(1) as device:
        x = cp.zeros(3)
        assert cp.cuda.get_device_id() == cp.cuda.Device().id == 1
    assert x.device == device == cp.cuda.Device(1)
    assert on_device((3,)).device.id == 0
    assert cp.cuda.Device(0).compute_capability == "80"
    assert cupy_for("sm_90").cuda.Device().attributes["MultiProcessorCount"] == 132
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        cp.cuda.Device(2)


HOST = np.frombuffer(bytes(range(256)) * 3, np.uint8)[1:]


@pytest.mark.parametrize(
    "x",
    [
        HOST[:40].view(np.float32)[::-3],
        HOST[3:51].view(np.float32).reshape(3, 4).T,
        np.broadcast_to(HOST[:16].view(np.float32), (3, 4)),
        HOST[:400:7],
        np.lib.stride_tricks.as_strided(HOST[:120].view(np.float32), (5, 4), (4, 8)),
        np.float64(3) + np.zeros(()),
        np.zeros((0, 3)),
    ],
    ids=["negative", "transposed", "broadcast", "strided", "overlapping", "scalar", "empty"],
)
def test_to_device_keeps_the_layout(x: Any) -> None:
    y = to_device(cp, x)
    np.testing.assert_array_equal(y.get(), x)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    if x.size:
        assert y.strides == x.strides
        assert (y.data.ptr - x.__array_interface__["data"][0]) % 16 == 0


def test_to_device_hides_what_lies_between() -> None:
    x = to_device(cp, np.arange(8.0)[::2])
    with pytest.raises(KernelFault, match="wrote 3 of the 7 elements"):
        cp.ndarray((7,), np.float64, x.data).get()


def test_the_package_answers_to_cupys_names() -> None:
    assert type(emulator.zeros((2,))) is emulator.ndarray
    assert emulator.where(on_device((3,)) > 1, 1, 0).tolist() == [0, 0, 1]
    assert emulator.float32 is np.float32
    for absent in ("RawModule", "nonesuch", "linalg"):
        with pytest.raises(AttributeError):
            getattr(emulator, absent)
