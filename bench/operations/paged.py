"""paged: decode with the cache in pages that lie anywhere."""

from bench.attention.case import AttentionCase
from bench.attention.contest import AttentionOperation


def step(batch: int, length: int, page_size: int, dtype: str) -> AttentionCase:
    """Return a step of several texts at once."""
    label = f"batch {batch}, GQA 32:8, {length} keys, pages of {page_size}"
    return AttentionCase(label, batch, 32, 8, 1, length, 128, dtype, page_size=page_size)


OPERATION = AttentionOperation(
    name="paged",
    cases=(
        step(1, 4096, 16, "float32"),
        *(step(4, 8192, page_size, dtype) for dtype in ("float32", "bfloat16") for page_size in (16, 256)),
    ),
    bound_by="memory",
)
