"""PyTorch on a card: scaled_dot_product_attention by each of its kernels, forward and backward."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench.attention.case import AttentionCase, Data
from bench.contest import Array, Call
from bench.libraries import Library

KERNELS = {
    "flash": "FLASH_ATTENTION",
    "cuDNN": "CUDNN_ATTENTION",
    "memory-efficient": "EFFICIENT_ATTENTION",
    "stored scores": "MATH",
}
"""PyTorch's names for them; one that does not take a case fails when it is asked to."""


def why_not(case: AttentionCase) -> str | None:
    """Return why SDPA does not take part, None where it can."""
    if case.window or case.block:
        return "SDPA's fast kernels have no windows and no blocks"
    if case.lengths or case.page_size:
        return "SDPA has no sequences of several lengths and no pages"
    return None


def forward_calls(case: AttentionCase, data: Data, library: Library) -> dict[str, Call]:
    """Return a call of each kernel; those of one query a head have the group as queries of one head too."""
    torch = library.module
    q, k, v = (library.given(torch, x) for x in (data.q, data.k, data.v))
    options: dict[str, Any] = {"is_causal": case.causal} | ({"enable_gqa": True} if case.group > 1 else {})
    calls: dict[str, Call] = {}
    for label, kernel in _kernels(case):
        calls[label] = _without_gradients(torch, kernel, lambda sdpa: sdpa(q, k, v, **options))
    if case.group > 1 and case.seq_len_q == 1:
        folded, shape = q.reshape(case.batch, case.heads_k, case.group, case.head_dim), data.result_shape
        for label, kernel in _kernels(case):
            calls[f"{label}, a group as queries"] = _without_gradients(
                torch, kernel, lambda sdpa: sdpa(folded, k, v).reshape(shape)
            )
    return calls


def backward_calls(case: AttentionCase, data: Data, grad_out: Array, library: Library) -> dict[str, Call]:
    """Return autograd's call after a forward pass by each kernel that takes the case."""
    torch = library.module
    sdpa, chosen = torch.nn.functional.scaled_dot_product_attention, _chooser()
    q, k, v, g = (library.given(torch, x) for x in (data.q, data.k, data.v, grad_out))
    options = {"enable_gqa": True} if case.group > 1 else {}
    calls: dict[str, Call] = {}
    for label, kernel in _kernels(case):
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        try:
            with chosen(kernel):
                out = sdpa(*given, is_causal=case.causal, **options)
        except RuntimeError:  # "No available kernel": the next one may take it
            continue
        calls[label] = partial(torch.autograd.grad, out, given, g, retain_graph=True)
    return calls


def _kernels(case: AttentionCase) -> Iterator[tuple[str, Any]]:
    backends = importlib.import_module("torch.nn.attention").SDPBackend
    for label, name in KERNELS.items():
        if label != "stored scores" or case.dtype == "float64":  # which no other kernel takes
            yield label, getattr(backends, name)


def _chooser() -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = importlib.import_module("torch.nn.attention").sdpa_kernel
    return found


def _without_gradients(torch: Any, kernel: Any, call: Callable[[Any], Array]) -> Call:
    sdpa, chosen = torch.nn.functional.scaled_dot_product_attention, _chooser()

    def timed() -> Array:
        with torch.inference_mode(), chosen(kernel):
            return call(sdpa)

    return timed
