"""Calls of attention on emulated devices, and what the kernels for tensor cores did in them."""

from typing import Any

import attention_oracle
import devices
import numpy as np
import pytest
from tolerance import attention_mismatch

import dualsoft as ds
from dualsoft.backends import cuda_attention_tensor

NAME = "cuda-emulated:sm_80"
Array = np.ndarray[Any, Any]


class Launched:
    """The launches of kernels for tensor cores since the test began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.head_dims: list[int] = []
        self._words: list[Any] = []
        launch = cuda_attention_tensor.launch

        def spy(*arguments: Any) -> Any:
            made, words = launch(*arguments)
            self.head_dims.append(int(dict(made.variant.defines)["DS_DIM"]))
            self._words.append(words)
            return made, words

        monkeypatch.setattr(cuda_attention_tensor, "launch", spy)

    @property
    def rows_left(self) -> int:
        """How many rows they have left to the exact kernel."""
        return sum(int(word).bit_count() for words in self._words for word in words.get())


def on_device(cp: Any, value: Any) -> Any:
    if isinstance(value, ds.BlockMask):
        return ds.BlockMask(cp.asarray(value.mask), value.block_q, value.block_k)
    return cp.asarray(value) if isinstance(value, np.ndarray) else value


def attend(q: Array, k: Array, v: Array, name: str = NAME, **options: Any) -> tuple[Array, Array]:
    with ds.use_backend(name):
        cp = devices.module(NAME if name == "cuda" else name)
        moved = {key: on_device(cp, x) for key, x in options.items()}
        out, lse = ds.attention(*(cp.asarray(x) for x in (q, k, v)), return_lse=True, **moved)
        return out.get(), lse.get()


def attend_by_state(q: Array, k: Array, v: Array, name: str = NAME, **options: Any) -> tuple[Array, Array]:
    """What the state of all keys becomes at its end, in the dtypes of ``attend``."""
    with ds.use_backend(name):
        cp = devices.module(NAME if name == "cuda" else name)
        moved = {key: on_device(cp, x) for key, x in options.items()}
        out, lse = ds.attention_state(*(cp.asarray(x) for x in (q, k, v)), **moved).finalize()
        with np.errstate(over="ignore"):
            return out.get().astype(q.dtype), lse.get().astype(np.float32)


def check(q: Array, k: Array, v: Array, name: str = NAME, **options: Any) -> None:
    why = attention_mismatch(*attend(q, k, v, name, **options), attention_oracle.attention(q, k, v, **options))
    assert not why, why
