"""Block-sparse masks of attention."""

from dataclasses import dataclass
from typing import Any

from dualsoft.arguments import integer_of
from dualsoft.arrays import as_array

LARGEST = 2**40
"""Larger blocks are cut to this: beyond any number of queries or keys, and the kernels' integers hold it."""


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class BlockMask:
    """Which blocks of a score matrix take part: the ``block_mask`` of attention.

    Score (i, j) takes part when ``mask[..., i // block_q, j // block_k]`` is True. Hidden blocks are never read.

    Parameters
    ----------
    mask : array_like of bool
        Broadcasts to (..., Hq, ceil(Sq / block_q), ceil(Sk / block_k)). Kept as it is, not copied.
    block_q, block_k : int
        Queries and keys in a block, at least 1. Any size is right (2**40 stands for larger ones); multiples of
        64 are fast.

    Raises
    ------
    TypeError
        When ``mask`` is not bool, or a size is not an integer.
    ValueError
        When a size is below 1.

    Notes
    -----
    Block-sparse attention: T. Dao and others, *FlashAttention*, 2022 (arXiv 2205.14135), section 3.3.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> diagonal = dualsoft.BlockMask(numpy.eye(2, dtype=bool), 2, 2)
    >>> x = numpy.zeros((4, 1))
    >>> dualsoft.attention(x, x, [[1.0], [2.0], [3.0], [5.0]], block_mask=diagonal).ravel().tolist()
    [1.5, 1.5, 4.0, 4.0]
    """

    mask: Any
    block_q: int
    block_k: int

    def __post_init__(self) -> None:
        array = as_array(self.mask, "mask")
        if array.dtype.kind != "b":
            raise TypeError(f"mask must be boolean (True takes part), got dtype {array.dtype}")
        object.__setattr__(self, "mask", array)
        for name in ("block_q", "block_k"):
            size = integer_of(getattr(self, name), name)
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
            object.__setattr__(self, name, min(size, LARGEST))

    def __repr__(self) -> str:
        return f"BlockMask(mask of shape {self.mask.shape}, block_q={self.block_q}, block_k={self.block_k})"
