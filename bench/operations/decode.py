"""decode: one query a head against a long cache, bound by reading the keys and values once."""

from bench.attention.case import AttentionCase
from bench.attention.contest import AttentionOperation

HEADS, DIM = 32, 128


def step(heads_k: int, length: int, dtype: str) -> AttentionCase:
    """Return a step of a language model: every query head asks once."""
    return AttentionCase(f"GQA {HEADS}:{heads_k}, {length} keys", 1, HEADS, heads_k, 1, length, DIM, dtype)


OPERATION = AttentionOperation(
    name="decode",
    cases=tuple(
        step(heads_k, length, dtype)
        for dtype in ("float32", "bfloat16")
        for heads_k in (8, 32)
        for length in (4096, 32768)
    ),
    bound_by="memory",
)
