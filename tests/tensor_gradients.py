"""Calls of attention's gradients on emulated devices, and what the kernels for tensor cores did in them."""

from typing import Any, NamedTuple

import devices
import gradient_oracle
import numpy as np
import pytest
from attention_cases import operands
from attention_options import Shape
from tensor_attention import NAME, Array, Launched, moved

import dualsoft as ds
from dualsoft.backends import cuda_gradients_tensor

Grads = ds.AttentionGrads


class LaunchedGradients(Launched):
    """The same of gradients."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, cuda_gradients_tensor)

    @property
    def kinds(self) -> list[tuple[int, bool]]:
        """Head dims that the kernels are compiled for, and whether keys were owned."""
        return [(int(macros["DS_DIM"]), bool(macros["DS_KEYS"])) for macros in self.variants]


class Given(NamedTuple):
    """What ``attention_backward`` is called with."""

    grad_out: Array
    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    options: dict[str, Any]
    grad_lse: Array | None = None


def forward(grad_out: Array | None, q: Array, k: Array, v: Array, **options: Any) -> Given:
    """The results of the forward pass beside its operands, and gradients of them, random where they are not given."""
    with ds.use_backend("reference"):
        out, lse = ds.attention(q, k, v, return_lse=True, **options)
    rng = np.random.default_rng(5)
    if grad_out is None:
        grad_out = rng.standard_normal(out.shape).astype(out.dtype)
    return Given(grad_out, q, k, v, out, lse, options, rng.standard_normal(lse.shape).astype(np.float32))


def given(key: str, shape: Shape, **options: Any) -> Given:
    return forward(None, *operands(key, shape), **options)


def differentiate(of: Given, name: str = NAME, needs: tuple[str, ...] = ("q", "k", "v")) -> Grads:
    at = NAME if name == "cuda" else name
    options = {key: moved(at, value) for key, value in of.options.items()}
    with ds.use_backend(name):
        got = ds.attention_backward(
            *(devices.put(at, x) for x in of[:6]), grad_lse=devices.put(at, of.grad_lse), needs=needs, **options
        )
        return Grads(*(None if x is None else devices.get(x) for x in got))


def wrong(got: Grads, of: Given, names: str = "qkv") -> str | None:
    """Why gradients of q, k and v, or of some of them, are not those of the oracle, or None."""
    want = gradient_oracle.gradients(*of[:4], grad_lse=of.grad_lse, **of.options)
    some = Grads(**{name: getattr(got, name) if name in names else None for name in gradient_oracle.NAMES})
    return gradient_oracle.wrong(some, {name: want[name] for name in names})


def strictly_wrong(got: Grads, of: Given) -> str | None:
    """The same by a computation in float64: to half a unit of float16's smallest numbers, and roundings of weights."""
    half = np.finfo(np.float16)
    with ds.use_backend("reference"):
        wide = [x.astype(np.float64) for x in of[:6]]
        exact = ds.attention_backward(*wide, grad_lse=of.grad_lse, **of.options)
    for name in "qkv":
        want = getattr(exact, name)
        if getattr(got, name) is None:
            continue
        error = np.abs(getattr(got, name) - want).max()
        allowed = float(half.smallest_subnormal) / 2 + np.abs(want).max() * float(half.eps)
        if not error <= allowed:
            return f"{name}: error {error:.3g}, allowed {allowed:.3g}"
    return None


def check(of: Given, name: str = NAME) -> None:
    why = wrong(differentiate(of, name), of)
    assert why is None, why
