"""attention_backward: dq, dk and dv from q, k, v, the result and its lse, bound by multiplications."""

from bench.attention.gradients import GradientOperation
from bench.operations.attention import CAUSAL, FULL, GROUPED, SHORT

OPERATION = GradientOperation(
    name="attention_backward",
    cases=(
        *FULL,
        *CAUSAL,
        SHORT,
        GROUPED,
        *(case._replace(dtype="bfloat16") for case in (*FULL, *CAUSAL, SHORT, GROUPED)),
        *(case._replace(dtype=dtype) for dtype in ("float16", "float64") for case in (FULL[0], CAUSAL[0])),
    ),
)
