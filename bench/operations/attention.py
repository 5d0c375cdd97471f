"""attention: two matrix products a head with a softmax between them, bound by multiplications."""

from typing import Any

from bench.attention.case import AttentionCase
from bench.attention.contest import AttentionOperation

HEADS = 8
SEQUENCES = (2048, 1024, 777, 512, 300, 1500, 64, 1967)
"""8192 tokens in all."""


def square(label: str, heads: int, length: int, dim: int, *, batch: int = 1, **options: Any) -> AttentionCase:
    """Return a case with as many keys as queries, as at the start of a text."""
    return AttentionCase(label, batch, heads, heads, length, length, dim)._replace(**options)


FULL = tuple(square(f"full S=2048 D={dim}", HEADS, 2048, dim) for dim in (64, 128))
CAUSAL = tuple(square(f"causal S=2048 D={dim}", HEADS, 2048, dim, causal=True) for dim in (64, 128))
GROUPED = square("causal GQA 32:8 S=2048 D=128", 32, 2048, 128, causal=True)._replace(heads_k=8)
SHORT = square("full (4, 12, 128, 64)", 12, 128, 64, batch=4)

OPERATION = AttentionOperation(
    name="attention",
    cases=(
        *FULL,
        *CAUSAL,
        SHORT,
        GROUPED,
        *(square(f"window {w} S=4096 D=64", HEADS, 4096, 64, window=w) for w in (256, 1024)),
        *(square(f"one head, window 1024 S={s} D=64", 1, s, 64, window=1024) for s in (16384, 65536)),
        square("one head, causal S=65536 D=64", 1, 65536, 64, causal=True),
        square("1 of 16 blocks S=4096 D=64", HEADS, 4096, 64, block=128),
        square("varlen, 8 sequences D=64", HEADS, sum(SEQUENCES), 64, lengths=SEQUENCES),
        square("varlen causal, 8 sequences D=64", HEADS, sum(SEQUENCES), 64, lengths=SEQUENCES, causal=True),
        *(case._replace(dtype="bfloat16") for case in (*FULL, *CAUSAL, SHORT, GROUPED)),
        *(case._replace(dtype=dtype) for dtype in ("float16", "float64") for case in (FULL[0], CAUSAL[0])),
    ),
    bound_by="arithmetic",
)
