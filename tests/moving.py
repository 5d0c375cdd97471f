"""``dualsoft`` as tests see it on a device backend: arrays go to the device with their layout, results come back.

So one test text serves NumPy arrays and device arrays. Small integers stay where they are: they may lie on the host.
"""

from typing import Any

import numpy as np
from devices import get, module, put

import dualsoft

ON_HOST = {"kv_lengths", "causal_offset", "lengths", "key_start", "key_total"}
POSITIONAL_ON_HOST = {"attention_varlen": (3, 4), "attention_paged": (3, 4), "attention_varlen_backward": (6, 7)}


class Moving:
    """Names of ``dualsoft``, whose functions of attention work on the arrays of a device."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        found = getattr(dualsoft, name)
        if name == "KVCache":
            return lambda *args, **options: Cache(self, found(*args, **options, like=module(self._backend).empty(0)))
        return self._function(name, found) if name.startswith("attention") else found

    def _function(self, name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            stay = POSITIONAL_ON_HOST.get(name, ())
            placed = [x if at in stay else self.put(x) for at, x in enumerate(args)]
            result = function(*placed, **{key: x if key in ON_HOST else self.put(x) for key, x in options.items()})
            return self.got(result, options.get("out"))

        return call

    def put(self, x: Any) -> Any:
        if isinstance(x, dualsoft.BlockMask):
            return dualsoft.BlockMask(put(self._backend, np.asarray(x.mask)), x.block_q, x.block_k)
        if isinstance(x, np.ndarray) and not x.dtype.isnative:
            x = x.astype(x.dtype.newbyteorder("="))  # CuPy has no others
        return put(self._backend, x)

    @staticmethod
    def got(result: Any, out: Any = None) -> Any:
        if isinstance(result, dualsoft.AttentionState):
            return result.to("cpu")
        if isinstance(result, dualsoft.AttentionGrads):
            return dualsoft.AttentionGrads(*(None if x is None else get(x) for x in result))
        if isinstance(result, tuple):
            return Moving.got(result[0], out), *map(get, result[1:])
        if out is None:
            return get(result)
        out[...] = get(result)
        return out


class Cache:
    """A KVCache of a device that is used with NumPy arrays."""

    def __init__(self, moving: Moving, cache: Any) -> None:
        self._moving, self._cache = moving, cache

    def append(self, k: Any, v: Any, lengths: Any = None) -> None:
        self._cache.append(self._moving.put(k), self._moving.put(v), lengths)

    def attention(self, q: Any, **options: Any) -> Any:
        placed = {key: x if key in ON_HOST else self._moving.put(x) for key, x in options.items()}
        return Moving.got(self._cache.attention(self._moving.put(q), **placed), options.get("out"))

    def fork(self, index: Any) -> "Cache":
        return Cache(self._moving, self._cache.fork(index))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)
