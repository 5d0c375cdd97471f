"""Calls of attention on emulated devices, and what the kernels for tensor cores did in them."""

from types import ModuleType
from typing import Any, NamedTuple

import attention_oracle
import devices
import numpy as np
import pytest
from attention_options import Shape
from tolerance import attention_mismatch

import dualsoft as ds
from dualsoft.backends import cuda_attention_tensor

NAME = "cuda-emulated:sm_80"
Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    key: str
    shape: Shape
    options: dict[str, Any]
    name: str = NAME


GROUPED = Shape((2,), 6, 2, 50, 150, 64, 64)


class Launched:
    """The launches of a module's kernels for tensor cores since the test began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType = cuda_attention_tensor) -> None:
        self.variants: list[dict[str, Any]] = []
        """The macros of each."""
        self._words: list[Any] = []
        launch = module.launch

        def spy(*arguments: Any) -> Any:
            made, words = launch(*arguments)
            self.variants.append(dict(made.variant.defines))
            self._words.append(words)
            return made, words

        monkeypatch.setattr(module, "launch", spy)

    @property
    def head_dims(self) -> list[int]:
        """Head dims that the kernels are compiled for."""
        return [int(macros["DS_DIM"]) for macros in self.variants]

    @property
    def lines_left(self) -> list[int]:
        """How many lines each launch has left to the exact kernel."""
        return [sum(int(word).bit_count() for word in words.get()) for words in self._words]


def moved(name: str, value: Any) -> Any:
    """An option's value where the backend's arrays are."""
    if isinstance(value, ds.BlockMask):
        return ds.BlockMask(devices.put(name, np.asarray(value.mask)), value.block_q, value.block_k)
    return devices.put(name, value)


def attend(q: Array, k: Array, v: Array, name: str = NAME, **options: Any) -> tuple[Array, Array]:
    with ds.use_backend(name):
        at = NAME if name == "cuda" else name
        cp, given = devices.module(at), {key: moved(at, x) for key, x in options.items()}
        out, lse = ds.attention(*(cp.asarray(x) for x in (q, k, v)), return_lse=True, **given)
        return out.get(), lse.get()


def attend_by_state(q: Array, k: Array, v: Array, name: str = NAME, **options: Any) -> tuple[Array, Array]:
    """What the state of all keys becomes at its end, in the dtypes of ``attend``."""
    with ds.use_backend(name):
        at = NAME if name == "cuda" else name
        cp, given = devices.module(at), {key: moved(at, x) for key, x in options.items()}
        out, lse = ds.attention_state(*(cp.asarray(x) for x in (q, k, v)), **given).finalize()
        with np.errstate(over="ignore"):
            return out.get().astype(q.dtype), lse.get().astype(np.float32)


def check(q: Array, k: Array, v: Array, name: str = NAME, **options: Any) -> None:
    why = attention_mismatch(*attend(q, k, v, name, **options), attention_oracle.attention(q, k, v, **options))
    assert not why, why
