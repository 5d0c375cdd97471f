"""Arrays on another device than the current one: every function works where its arrays are, and leaves the rest alone.

The emulator's CuPy refuses to compute with arrays of another device than the current one, where CuPy itself would warn,
or refuse, and leave the result on the wrong device.
"""

from collections.abc import Callable, Iterator
from typing import Any

import devices
import emulator
import numpy as np
import pytest

import dualsoft as ds

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
RNG = np.random.default_rng(0)


def there(value: Any) -> Any:
    """An array of device 1."""
    cp = devices.module(NAME)
    with cp.cuda.Device(1):
        return cp.asarray(value)


def normal(*shape: int) -> Any:
    return there(RNG.standard_normal(shape).astype(np.float32))


@pytest.fixture(autouse=True)
def _current_device_stays() -> Iterator[None]:
    with ds.use_backend(NAME):
        yield
    assert devices.module(NAME).cuda.Device().id == 0


def arrays_of(result: Any) -> Iterator[Any]:
    if isinstance(result, emulator.ndarray):
        yield result
    elif isinstance(result, ds.SoftmaxState):
        yield from (result.m, result.d, result.lse)
    elif isinstance(result, ds.AttentionState):
        yield from (result.out, result.m, result.d, result.lse)
    elif isinstance(result, tuple | list):
        for part in result:
            yield from arrays_of(part)


def assert_there(result: Any) -> None:
    found = list(arrays_of(result))
    assert found
    assert [array.device.id for array in found] == [1] * len(found)
    for array in found:
        array.get()  # a fault where nothing wrote it


def with_an_overlap(function: Callable[..., Any]) -> Any:
    memory = normal(3, 41)
    return function(memory[:, 1:], -1, out=memory[:, :-1])


OF_ROWS: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: ds.softmax(x, -1, scale=[2.0], where=[True] * 40),
    "log_softmax": lambda x: ds.log_softmax(x, -1, scale=there(np.ones((3, 1), np.float32))),
    "logsumexp": lambda x: ds.logsumexp(x, -1, b=2, return_sign=True),
    "an overlap": lambda x: [with_an_overlap(f) for f in (ds.softmax, ds.softmax_state(x, -1).normalize)],
    "a sum over an overlap": lambda x: ds.logsumexp(x[:, 1:], -1, out=x[:, 0]),
    "nothing": lambda x: [ds.softmax_state(x[:, :0], -1), ds.logsumexp(x[:, :0], -1), ds.softmax_topk(x[:, :0], 0)],
    "cumulative_logsumexp": lambda x: ds.cumulative_logsumexp(x, include_initial=True),
    "softmax_topk": lambda x: ds.softmax_topk(x, 3),
    "sample": lambda x: ds.sample(x, top_k=[1, 2, 3], temperature=1, rng=0),
    "algorithms": lambda x: ds.algorithms.online_softmax(x),
    "states": lambda x: [
        ds.merge(ds.softmax_state(x, -1), ds.SoftmaxState(x[:, 0], [1.0, 2.0, 3.0])).update(x, -1),
        ds.SoftmaxState.unpack(ds.softmax_state(x, -1).pack()),
    ],
    "cross_entropy": lambda x: ds.cross_entropy(x, there([1, 2, 3]), return_lse=True),
    "cross_entropy_backward": lambda x: ds.cross_entropy_backward(1, x, there([1, 2, 3]), ds.softmax_state(x, -1)),
    "linear_cross_entropy": lambda x: ds.linear_cross_entropy(x, x, there([1, 2, 0]), bias=[0.0, 1.0, 2.0]),
    "linear_cross_entropy_backward": lambda x: ds.linear_cross_entropy_backward(
        1, x, x, there([1, 2, 0]), there(np.ones(3)), bias=[0.0, 1.0, 2.0]
    ),
    "logsumexp_backward": lambda x: ds.logsumexp_backward(1, x, there(np.ones(3)), -1, sign=[1, 1, 1], scale=[2.0]),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_rows(name: str) -> None:
    assert_there(OF_ROWS[name](normal(3, 40)))


# ------------------------------------------------------------------ attention
def operands() -> tuple[Any, Any, Any]:
    return normal(2, 4, 5, 16), normal(2, 2, 7, 16), normal(2, 2, 7, 8)


def every_option() -> dict[str, Any]:
    return {
        "bias": normal(1, 1, 5, 7),
        "mask": there(RNG.random((5, 7)) < 0.8),
        "causal": True,
        "causal_offset": there(np.array([2, 1])),
        "kv_lengths": there(np.array([7, 3])),
        "alibi_slopes": [1.0, 2.0, 3.0, 4.0],
        "sinks": normal(4),
    }


@pytest.mark.parametrize("given", ["no options", "every option"])
def test_attention(given: str) -> None:
    q, k, v = operands()
    options = every_option() if given == "every option" else {}
    out, lse = ds.attention(q, k, v, return_lse=True, **options)
    assert_there((out, lse))
    needs = ("q", "k", "v", "bias", "sinks") if options else ("q", "k", "v")
    assert_there(ds.attention_backward(out, q, k, v, out, lse, needs=needs, grad_lse=lse, **options))


def test_attention_of_packed_and_paged_sequences() -> None:
    q, k, v = operands()
    starts, key_starts = there(np.array([0, 2, 5])), there(np.array([0, 3, 7]))
    out, lse = ds.attention_varlen(q[0], k[0], v[0], starts, key_starts, return_lse=True)
    assert_there((out, lse))
    assert_there(ds.attention_varlen_backward(out, q[0], k[0], v[0], out, lse, starts, key_starts))
    pages, table = (normal(4, 2, 4, 16), normal(4, 2, 4, 8)), there(np.array([[0, 1], [2, 3]]))
    assert_there(ds.attention_paged(q, *pages, table, there(np.array([7, 3])), return_lse=True))


def test_states_of_attention() -> None:
    q, k, v = operands()
    parts = [
        ds.attention_state(q, k[..., at, :], v[..., at, :], key_start=at.start, key_total=7)
        for at in (slice(0, 4), slice(4, 7))
    ]
    whole = parts[0] | parts[1]
    out = whole.out
    again = [
        ds.AttentionState.unpack(whole.pack()),
        ds.AttentionState(out, whole.m, whole.d.get().tolist()),
        ds.AttentionState.from_lse(out, whole.lse),
    ]
    assert again[0] == whole
    assert_there([whole, again, whole.finalize(np.float16, sinks=[0.0, 1.0, 2.0, 3.0])])


@pytest.mark.parametrize("page_size", [None, 4])
def test_caches(page_size: int | None) -> None:
    q, k, v = operands()
    cache = ds.KVCache(2, 2, 8, 16, head_dim_v=8, dtype=np.float32, page_size=page_size, like=q)
    cache.append(k, v, lengths=[7, 5])
    cache.append(there(np.ones((2, 2, 1, 16))), there(np.ones((2, 2, 1, 8))))  # of another dtype
    cache.reorder([1, 0])
    fork = cache.fork([0, 1])
    fork.truncate(5)
    fork.append(k[:, :, :1], v[:, :, :1])
    assert_there([cache.attention(q, bias=normal(5, 8)), fork.attention(q, bias=normal(5, 6))])
