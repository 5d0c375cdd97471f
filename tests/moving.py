"""``dualsoft`` as tests see it on a device backend: arrays go to the device with their layout, results come back.

One test text thus serves NumPy arrays and device arrays: ``Moving(backend, names)`` stands where a module has ``ds``.
Small integers of attention stay where they are: they may lie on the host.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from devices import get, module, put

import dualsoft

ATTENTION = tuple(name for name in dualsoft.__all__ if name.startswith("attention") or name == "KVCache")
LOSSES = (
    *("cross_entropy", "cross_entropy_backward", "linear_cross_entropy", "linear_cross_entropy_backward"),
    *("softmax", "log_softmax", "logsumexp", "softmax_state"),
    *("softmax_backward", "log_softmax_backward", "logsumexp_backward"),
)
"""Losses, gradients and what they are of."""

ON_HOST = {"kv_lengths", "causal_offset", "lengths", "key_start", "key_total"}
POSITIONAL_ON_HOST = {"attention_varlen": (3, 4), "attention_paged": (3, 4), "attention_varlen_backward": (6, 7)}


class Moving:
    """Names of ``dualsoft``, of which ``names`` work on the arrays of a device."""

    def __init__(self, backend: str, names: Collection[str] = ATTENTION) -> None:
        self._backend, self._names = backend, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(dualsoft, name)
        if name not in self._names:
            return found
        if name == "KVCache":
            like = module(self._backend).empty(0)
            return lambda *args, **options: Cache(self._backend, found(*args, **options, like=like))
        return moving(self._backend, found, POSITIONAL_ON_HOST.get(name, ()))


class Cache:
    """A KVCache of a device that is used with NumPy arrays."""

    def __init__(self, backend: str, cache: Any) -> None:
        self._backend, self._cache = backend, cache

    def fork(self, index: Any) -> "Cache":
        return Cache(self._backend, self._cache.fork(index))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cache, name)
        return moving(self._backend, found, (2,)) if name in ("append", "attention") else found


def moving(backend: str, function: Callable[..., Any], on_host: Collection[int]) -> Callable[..., Any]:
    """``function`` on the device, for arrays of the host but the positional arguments ``on_host``."""

    def call(*args: Any, **options: Any) -> Any:
        there: dict[int, Any] = {}  # one array that is given twice is one array there too

        def move(x: Any) -> Any:
            if id(x) not in there:
                there[id(x)] = _put(backend, x)
            return there[id(x)]

        # Operands may be lists and NumPy's numbers, which are arrays on a device; in options they stay what they are.
        operands = [np.asarray(x) if isinstance(x, np.generic | list) else x for x in args]
        moved = [args[at] if at in on_host else move(x) for at, x in enumerate(operands)]
        with dualsoft.use_backend(backend):
            result = function(*moved, **{key: x if key in ON_HOST else move(x) for key, x in options.items()})
        return _got(result, options.get("out"))

    return call


def _put(backend: str, x: Any) -> Any:
    if isinstance(x, dualsoft.BlockMask):
        return dualsoft.BlockMask(_put(backend, np.asarray(x.mask)), x.block_q, x.block_k)
    if not isinstance(x, np.ndarray):
        return x
    return put(backend, x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("=")))  # CuPy has no others


def _got(result: Any, out: Any = None) -> Any:
    """The arrays of a result on the host. States of the softmax family stay: they are arguments of gradients."""
    if isinstance(result, dualsoft.AttentionState):
        return result.to("cpu")
    if hasattr(result, "_fields"):
        return result._make(map(_got, result))
    if isinstance(result, tuple):
        return _got(result[0], out), *map(get, result[1:])
    if out is None:
        return get(result)
    out[...] = get(result)
    return out
