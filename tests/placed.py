"""Losses and gradients of ``dualsoft`` on a device: arrays go there with their layout, results come back.

So one test text serves NumPy arrays and device arrays: ``Placed(backend)`` stands where a test module has ``ds``.
"""

from typing import Any

import numpy as np
from devices import get, put

import dualsoft

MOVED = (
    *("cross_entropy", "cross_entropy_backward", "linear_cross_entropy", "linear_cross_entropy_backward"),
    *("softmax", "log_softmax", "logsumexp", "softmax_state"),
    *("softmax_backward", "log_softmax_backward", "logsumexp_backward"),
)


class Placed:
    """Names of ``dualsoft``, of which losses, gradients and what they are of work on the arrays of a device."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        found = getattr(dualsoft, name)
        return self._function(found) if name in MOVED else found

    def _function(self, function: Any) -> Any:
        def call(*args: Any, out: Any = None, **options: Any) -> Any:
            there: dict[int, Any] = {}  # one array that is given twice is one array there too

            def place(x: Any) -> Any:
                if isinstance(x, np.ndarray | np.generic | list):
                    there.setdefault(id(x), (x, self._put(np.asarray(x))))
                    return there[id(x)][1]
                return x

            if out is not None:
                options["out"] = out
            with dualsoft.use_backend(self._backend):
                result = function(*map(place, args), **{key: place(x) for key, x in options.items()})
            if out is None:
                return _got(result)
            out[...] = get(result)
            return out

        return call

    def _put(self, x: Any) -> Any:
        return put(self._backend, x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("=")))


def _got(result: Any) -> Any:
    if isinstance(result, dualsoft.LinearGrads):
        return dualsoft.LinearGrads(*map(get, result))
    return tuple(map(get, result)) if type(result) is tuple else get(result)
