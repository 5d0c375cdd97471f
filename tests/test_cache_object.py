"""A KVCache as an object: copies, pickles, attributes, weak references, the kind of its arrays, threads."""

import contextlib
import copy
import gc
import pickle
import sys
import threading
import types
import weakref
from typing import Any

import numpy as np
import pytest
from cache_model import HEAD_DIM, HEAD_DIM_V, HEADS, Model, check, layouts, new, tokens

import dualsoft as ds


@layouts
def test_copies_and_pickles(page_size: int | None) -> None:
    rng = np.random.default_rng(10)
    cache, model = new(3, 9, page_size), Model(3)
    k, v = tokens(rng, 3, 5)
    cache.append(k, v, [5, 0, 2])
    model.append(k, v, [5, 0, 2])
    copies = [copy.copy(cache), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
    cache.truncate(0)
    for other in copies:
        assert (other.capacity, other.page_size, other.dtype) == (9, page_size, np.float32)
        check(other, model)
        other.append(k[:, :, :1], v[:, :, :1])


@layouts
def test_pickles_hold_no_forgotten_tokens(page_size: int | None) -> None:
    rng = np.random.default_rng(13)
    cache = new(2, 9, page_size)
    cache.append(*tokens(rng, 2, 6))
    cache.truncate([5, 2])
    for copied in (pickle.loads(pickle.dumps(cache)), cache.fork([0, 1])):
        assert copied.lengths.tolist() == [5, 2]
        if page_size is None:
            assert not copied.k[1, :, 2:].any()
            assert not copied.v[1, :, 2:].any()
    for array in cache.__reduce__()[1][1:3]:
        assert array[1, :, :2].all()
        assert not array[1, :, 2:].any()


@layouts
def test_weak_references(page_size: int | None) -> None:
    cache = new(1, 4, page_size)
    reference = weakref.ref(cache)
    assert reference() is cache
    del cache
    gc.collect()
    assert reference() is None


class OnlyDevice(contextlib.nullcontext[None]):
    """The device that they are all on."""

    id = 0


class Device:
    """A stand-in for CuPy's arrays: of its own type, and with no way to NumPy's but ``x``."""

    base = None
    device = OnlyDevice()

    def __init__(self, x: Any) -> None:
        self.x = np.asarray(x)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim", "nbytes"):
            return getattr(self.x, name)
        raise AttributeError(name)

    def __getitem__(self, index: Any) -> "Device":
        return Device(self.x[index])

    def __setitem__(self, index: Any, value: "Device") -> None:
        self.x[index] = value.x

    def astype(self, dtype: Any) -> "Device":
        return Device(self.x.astype(dtype))


Device.__module__, Device.__name__ = "cupy", "ndarray"


@layouts
def test_like_decides_the_kind_of_array(page_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("cupy")
    module.zeros = lambda shape, dtype: Device(np.zeros(shape, dtype))  # type: ignore[attr-defined]
    module.may_share_memory = lambda a, b: np.may_share_memory(a.x, b.x)  # type: ignore[attr-defined]
    module.asarray = Device  # type: ignore[attr-defined]
    stream = types.SimpleNamespace(is_capturing=lambda: False)
    module.cuda = types.SimpleNamespace(get_current_stream=lambda: stream)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    cache = ds.KVCache(1, HEADS, 8, 3, dtype=np.float32, page_size=page_size, like=Device(np.zeros(1)))
    shown = cache.k if page_size is None else cache.k_pages
    assert type(shown) is Device
    k, _ = tokens(np.random.default_rng(0), 1, 3)
    cache.append(Device(k), k.tolist())
    assert cache.lengths.tolist() == [3]
    if page_size is None:
        for kept in (cache.k, cache.v, cache.fork([0]).v):
            assert type(kept) is Device
            np.testing.assert_array_equal(kept.x, k)
    with pytest.raises(TypeError, match="k is a NumPy array and the cache a CuPy array"):
        cache.append(k, k)
    plain = ds.KVCache(1, HEADS, 8, 3, dtype=np.float32, page_size=page_size, like=k)
    assert type(plain.k if page_size is None else plain.k_pages) is np.ndarray


@layouts
def test_caches_in_two_threads(page_size: int | None) -> None:
    """Each thread its own cache: nothing is shared between caches that are no forks."""
    failures: list[BaseException] = []
    begin = threading.Barrier(2)

    def work(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            cache, model = new(2, 30, page_size), Model(2)
            begin.wait()
            for _ in range(40):
                k, v = tokens(rng, 2, 3)
                counts = rng.integers(0, 4, 2).tolist()
                if max(n + more for n, more in zip(model.lengths, counts, strict=True)) > 30:
                    cache.truncate([0, 0])
                    model.truncate([0, 0])
                cache.append(k, v, counts)
                model.append(k, v, counts)
                fork = cache.fork([1])
                fork.truncate(0)
                fork.append(k[:1], v[:1])
                check(cache, model)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_attributes_and_repr() -> None:
    cache = ds.KVCache(np.int64(2), 3, 5, 4, dtype="float16", page_size=2)
    assert (cache.batch, cache.kv_heads, cache.capacity, cache.head_dim, cache.head_dim_v, cache.page_size) == (
        2, 3, 5, 4, 4, 2,
    )  # fmt: skip
    assert repr(cache) == (
        "KVCache(batch=2, kv_heads=3, capacity=5, head_dim=4, dtype=float16, page_size=2, lengths=[0, 0])"
    )
    assert repr(new(1, 2)) == (
        "KVCache(batch=1, kv_heads=2, capacity=2, head_dim=3, head_dim_v=4, dtype=float32, lengths=[0])"
    )
    assert new(1, 2).nbytes == HEADS * 2 * (HEAD_DIM + HEAD_DIM_V) * 4


@pytest.mark.parametrize(
    ("page_size", "names"), [(None, ("k_pages", "v_pages", "page_table", "pages_used")), (2, ("k", "v"))]
)
def test_what_the_other_layout_has(page_size: int | None, names: tuple[str, ...]) -> None:
    for name in names:
        with pytest.raises(AttributeError, match=f"has no {name}"):
            getattr(new(1, 4, page_size), name)


def test_what_it_shows_cannot_be_written() -> None:
    for page_size, names in ((None, ("k", "v")), (2, ("k_pages", "v_pages"))):
        for name in names:
            with pytest.raises(ValueError, match="read-only"):
                getattr(new(1, 4, page_size), name)[...] = 0
