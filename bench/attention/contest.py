"""Operations of attention: what their files declare, and how a case of theirs is made ready."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from bench.attention.case import AttentionCase, Data, data_of
from bench.attention.graph_onnx import attention_op_forms, contrib_forms
from bench.attention.graph_openvino import openvino_forms
from bench.attention.ours import ours_call, ours_forms
from bench.attention.plain import numpy_forms
from bench.attention.sdpa_jax import jax_forms
from bench.attention.sdpa_torch import flex_forms, torch_forms
from bench.attention.truth import truth_of
from bench.ceilings import arithmetic, read_call
from bench.contest import BASELINE, Array, Call, Form, Rate, Verdict, Work
from bench.libraries import Library

Forms = dict[str, Form] | str
_CONTENDERS: dict[str, Callable[[AttentionCase, Data, Library], Forms]] = {
    "dualsoft": lambda case, data, _: ours_forms(case, data),
    "numpy": lambda case, data, _: numpy_forms(case, data),
    "torch": torch_forms,
    "torch.compile": flex_forms,
    "jax": jax_forms,
    "onnxruntime": contrib_forms,
    "onnxruntime.attention": attention_op_forms,
    "openvino": openvino_forms,
}


class AttentionOperation(NamedTuple):
    """An operation of attention, to be timed."""

    name: str
    cases: tuple[AttentionCase, ...]
    bound_by: Literal["arithmetic", "memory"]
    """What the figures are held against: multiplications, or reading keys and values once."""
    takes_shapes: bool = False

    def with_dtype(self, case: AttentionCase, dtype: str) -> AttentionCase:
        """Return a case in another dtype."""
        return case._replace(dtype=dtype)

    def contest(self, case: AttentionCase, dtype: np.dtype[Any]) -> "AttentionContest":
        """Make a case ready."""
        return AttentionContest(self, case, dtype)

    def work(self, case: AttentionCase, moved: int) -> Work:
        """Describe a case."""
        shape = (case.batch, case.heads_q, case.seq_len_q, case.head_dim)
        flops = case.flops if self.bound_by == "arithmetic" else 0.0
        return Work(case.label, shape, None, moved, flops, "")


class AttentionContest:
    """One case of attention: operands, the result from wide arithmetic, and the limits on the errors."""

    def __init__(self, operation: AttentionOperation, case: AttentionCase, dtype: np.dtype[Any]) -> None:
        self.operation, self.case = operation, case
        self.data = data_of(case, dtype)
        self.truth = truth_of(case, self.data)
        self.result_shape = self.data.result_shape
        moved = case.kv_bytes if operation.bound_by == "memory" else self._moved()
        self.work = operation.work(case, moved)

    def _moved(self) -> int:
        data = self.data
        size = math.prod(self.result_shape) * int(data.q.dtype.itemsize)
        return int(data.q.nbytes + data.k.nbytes + data.v.nbytes) + size

    def forms(self, name: str, library: Library) -> Mapping[str, Form] | str:
        """Return the ways in which a library does it, or the reason why it does not take part."""
        if name not in _CONTENDERS:
            return f"{name} has no attention"
        return _CONTENDERS[name](self.case, self.data, library)

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare a result with the exact one."""
        return self.truth.judge(found, ours)

    def baselines(self, library: Library) -> dict[str, Call]:
        """Return dualsoft in float32, beside half types, and dualsoft without the mask of blocks."""
        found: dict[str, Call] = {}
        if self.data.q.dtype.itemsize < 4:
            wide = self.case._replace(dtype=BASELINE)
            found[f"{library.name} {BASELINE}"] = ours_call(wide, data_of(wide, np.dtype(BASELINE)))
        if self.case.block:
            found[f"{library.name} without block_mask"] = ours_call(self.case, self.data, block_mask=False)
        return found

    def ceilings(self, threads: int) -> dict[str, Call | Rate | str]:
        """Return that of the arithmetic in this dtype, or the time to read the keys and values and do nothing."""
        if self.operation.bound_by == "memory":
            pages = self.data.k_pages, self.data.v_pages
            return {"read": read_call(pages if self.case.page_size else (self.data.k, self.data.v), threads)}
        name, ceiling = arithmetic(self.case.dtype, self.case.flops, threads)
        return {name: ceiling}
