"""Attention on a card: its cases and who takes part; one head of keys is compared with wider arithmetic."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.attention import gradients, ours, sdpa_cuda
from bench.attention.case import AttentionCase, Data, data_of, last_heads, last_of
from bench.attention.contest import AttentionOperation
from bench.attention.gradients import GradientOperation
from bench.attention.truth import truth_of
from bench.contest import Array, Call, Form, Rate, Verdict, Work
from bench.device import CACHE_FACTOR, HEAD_START, TURN_SECONDS, Clock, Rotation
from bench.device_contest import MOST_DRAWN, filled
from bench.libraries import Library, reason
from bench.operations.attention import SEQUENCES, square

SAMPLE_PAIRS = 2**24
"""Scores that are computed again."""
HALF_EDGE, EDGE = 8192, 4096
"""Of the square matrices whose product is the ceiling, in half types and in wider ones."""

_LENGTHS = tuple(2 * length for length in SEQUENCES)
SHARED = tuple(
    square(f"{kind} B=4 H=16 S=4096 D={dim}", 16, 4096, dim, batch=4, causal=kind == "causal", dtype="bfloat16")
    for dim in (64, 128)
    for kind in ("full", "causal")
)
GROUPED = square("causal GQA 32:8 B=2 S=4096 D=128", 32, 4096, 128, batch=2, causal=True, dtype="bfloat16")
WIDE = tuple(
    square(f"{kind} H=16 S={length} D=128", 16, length, 128, causal=kind == "causal", dtype=dtype)
    for dtype, length in (("float32", 2048), ("float64", 1024))
    for kind in ("full", "causal")
)
FORWARD = (
    *SHARED,
    GROUPED._replace(heads_k=8),
    *(case._replace(dtype="float16") for case in SHARED[2:]),
    square("full B=32 H=16 S=512 D=64", 16, 512, 64, batch=32, dtype="bfloat16"),
    square("full B=4 H=8 S=4096 D=256", 8, 4096, 256, batch=4, dtype="bfloat16"),
    square("causal H=16 S=16384 D=128", 16, 16384, 128, causal=True, dtype="bfloat16"),
    square("window 1024 H=16 S=16384 D=128", 16, 16384, 128, window=1024, dtype="bfloat16"),
    square("varlen causal, 8 sequences H=16 D=128", 16, sum(_LENGTHS), 128, lengths=_LENGTHS, causal=True)._replace(
        dtype="bfloat16"
    ),
    *WIDE,
)
BACKWARD = (*SHARED, GROUPED._replace(heads_k=8), *WIDE)


def _step(batch: int, heads_k: int, length: int, dtype: str, page_size: int = 0) -> AttentionCase:
    """Return a step of a language model: every query head asks once."""
    pages = f", pages of {page_size}" if page_size else ""
    label = f"batch {batch}, GQA 32:{heads_k}, {length} keys{pages}"
    return AttentionCase(label, batch, 32, heads_k, 1, length, 128, dtype, page_size=page_size)


CASES: dict[str, tuple[AttentionCase, ...]] = {
    "attention": FORWARD,
    "attention_backward": BACKWARD,
    "decode": (
        *(_step(*shape, dtype) for shape in ((16, 8, 8192), (1, 8, 131072)) for dtype in ("bfloat16", "float32")),
        _step(8, 32, 4096, "bfloat16"),
    ),
    "paged": tuple(_step(16, 8, 8192, "bfloat16", page_size) for page_size in (16, 256)),
}


class DeviceAttention:
    """An operation of attention with its cases on a card."""

    takes_shapes = False

    def __init__(self, operation: AttentionOperation | GradientOperation, clock: Clock) -> None:
        self._operation, self._clock = operation, clock
        self.name = operation.name
        self.cases = CASES[operation.name]

    def with_dtype(self, case: AttentionCase, dtype: str) -> AttentionCase:
        """Return a case in another dtype."""
        return case._replace(dtype=dtype)

    def contest(self, case: AttentionCase, dtype: np.dtype[Any]) -> "DeviceAttentionContest":
        """Make a case ready."""
        kind = BackwardContest if isinstance(self._operation, GradientOperation) else ForwardContest
        return kind(self._operation, case, dtype, self._clock)

    def work(self, case: AttentionCase, moved: int) -> Work:
        """Describe a case."""
        return self._operation.work(case, moved)


class DeviceAttentionContest:
    """One case: operands on the card, and on the host those of the last head of keys of the last batch entry."""

    def __init__(self, operation: Any, case: AttentionCase, dtype: np.dtype[Any], clock: Clock) -> None:
        self._case, self._clock, self._dtype = case, clock, dtype
        self._reads = operation.bound_by == "memory"
        data = data_of(case, dtype, MOST_DRAWN - 1)
        self._last = last_heads(case, data)
        self._data = _on_card(clock.device.cp, data)
        nbytes = [x.nbytes for x in (data.q, data.k, data.v)]
        # The result, and of gradients what they are of as well, has the size of what was read.
        moved = case.kv_bytes if self._reads else nbytes[0] + sum(nbytes)
        self.work = operation.work(case, moved)
        # Many calls may follow one another where no cache holds the operands, or where it does not matter.
        self._is_cold = not self._reads or moved >= CACHE_FACTOR * clock.device.cache_bytes

    def _forms(self, name: str, calls: Mapping[str, Call], read: Callable[[Any], Array]) -> dict[str, Form]:
        return {label: Form(Rotation(name, [call], self._is_cold), read) for label, call in calls.items()}

    def baselines(self, library: Library) -> dict[str, Call]:
        """Return nothing: float32 has cases of its own."""
        return {}

    def ceilings(self, threads: int) -> dict[str, Call | Rate | str]:
        """Return what copying as many bytes takes, or as many operations of CuPy's matrix product in this dtype."""
        if self._reads:
            return {"copy": Rate(self._clock.copy_rate, self.work.bytes_moved)}
        try:
            return {"GEMM": Rate(_product(self._clock, self._dtype), self.work.flops)}
        except Exception as error:  # the card or CuPy has no product in this dtype: the case is measured without
            return {"GEMM": f"cannot be measured: {reason(error)}"}


class ForwardContest(DeviceAttentionContest):
    """attention, its decode steps and pages."""

    def __init__(self, operation: Any, case: AttentionCase, dtype: np.dtype[Any], clock: Clock) -> None:
        super().__init__(operation, case, dtype, clock)
        part, data = self._last
        self._truth = truth_of(part, data, SAMPLE_PAIRS)
        self.result_shape = data.result_shape

    def forms(self, name: str, library: Library) -> Mapping[str, Form] | str:
        """Return the ways in which a library does it, or the reason why it does not take part."""
        calls: dict[str, Call]
        if name == "dualsoft":
            calls = {"": ours.ours_call(self._case, self._data, xp=self._clock.device.cp)}
        elif name != "torch":
            return f"{name} has no attention"
        elif (why := sdpa_cuda.why_not(self._case)) is not None:
            return why
        else:
            calls = sdpa_cuda.forward_calls(self._case, self._data, library)
        return self._forms(name, calls, lambda result: library.taken(last_of(result, self._case.group)))

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare the last heads with the exact ones."""
        return self._truth.judge(found, ours)


class BackwardContest(DeviceAttentionContest):
    """attention_backward: dq, dk and dv of the last heads behind one another, as rows of D."""

    def __init__(self, operation: Any, case: AttentionCase, dtype: np.dtype[Any], clock: Clock) -> None:
        super().__init__(operation, case, dtype, clock)
        part, data = self._last
        grad_out = filled(np, self._data.result_shape, dtype)
        self._grad_out = clock.device.cp.asarray(grad_out)
        self._parts = gradients.gradients_of(part, data, last_of(grad_out, case.group))
        self.result_shape = (sum(len(part.exact) for part in self._parts), case.head_dim)

    def forms(self, name: str, library: Library) -> Mapping[str, Form] | str:
        """Return the ways in which a library does it, or the reason why it does not take part."""
        calls: dict[str, Call]
        if name == "dualsoft":
            calls = {"": gradients.ours_call(self._case, self._data, self._grad_out)}
        elif name == "torch":
            calls = sdpa_cuda.backward_calls(self._case, self._data, self._grad_out, library)
            if not calls:
                return "none of its kernels takes this case"
        else:
            return f"{name} has no gradients of attention"
        return self._forms(name, calls, lambda found: self._rows(found, library))

    def _rows(self, found: Any, library: Library) -> Array:
        heads = (self._case.group, 1, 1)
        return gradients.rows_of(
            tuple(library.taken(last_of(x, count)) for x, count in zip(found[:3], heads, strict=True))
        )

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare the gradients of the last heads with the exact ones."""
        return gradients.judged(self._parts, found, ours)


def _on_card(cp: Any, data: Data) -> Data:
    """Return the operands there; keys and values that lie in pages are needed in one piece by nobody."""
    if data.page_table is not None:
        data = data._replace(k=None, v=None)
    return Data(*(None if x is None else cp.asarray(x) for x in data))


def _product(clock: Clock, dtype: np.dtype[Any]) -> Callable[[], float]:
    """Return what measures the operations a second of CuPy's product of two square matrices."""
    cp, edge = clock.device.cp, HALF_EDGE if dtype.itemsize == 2 else EDGE
    a, b = (filled(cp, (edge, edge), dtype) for _ in range(2))
    out = cp.empty((edge, edge), dtype)

    def call() -> Array:
        return cp.matmul(a, b, out=out)

    for _ in range(2):  # the first one chooses its kernel
        first = clock.span(call, 1, 0.0)
    calls = max(1, math.ceil(TURN_SECONDS / first.device))

    def rate() -> float:
        return 2.0 * edge**3 / clock.span(call, calls, HEAD_START * first.host * calls).device

    return rate
