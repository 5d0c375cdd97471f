"""The rules for the arguments of ``KVCache``: sizes, new tokens, lengths and indices."""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from dualsoft.arguments import integer_of, result_dtype
from dualsoft.arrays import Array, as_array, is_cupy, module_of, same_kind
from dualsoft.attention_arguments import bias_of, blocks_of, mask_of
from dualsoft.block_mask import BlockMask
from dualsoft.cache_storage import Sizes
from dualsoft.dtypes import FLOAT64, DType, find_format

_JUDGES: dict[str, Any] = {"mask": mask_of, "bias": bias_of, "block_mask": blocks_of}


def sizes_of(
    batch: object,
    kv_heads: object,
    capacity: object,
    head_dim: object,
    head_dim_v: object,
    dtype: object,
    page_size: object,
) -> Sizes:
    """Return the sizes of a cache.

    Raises
    ------
    TypeError
        When one is not an integer, or the dtype is not one of the four floating-point types.
    ValueError
        When one is too small, or all together are more than can be addressed.
    """
    if dtype is None:
        raise TypeError("dtype must be float16, bfloat16, float32 or float64, got None")
    width = _size(head_dim, "head_dim", 1)
    sizes = Sizes(
        _size(batch, "batch", 0),
        _size(kv_heads, "kv_heads", 1),
        _size(capacity, "capacity", 0),
        width,
        width if head_dim_v is None else _size(head_dim_v, "head_dim_v", 1),
        result_dtype(dtype, FLOAT64),
        None if page_size is None else _size(page_size, "page_size", 1),
    )
    slots = sizes.capacity if sizes.page_size is None else sizes.pages_per_sequence * sizes.page_size
    # NumPy wants an array to be addressable even where an axis is empty.
    tokens = max(sizes.batch, 1) * max(slots, sizes.page_size or 1)
    if tokens * max(8, sizes.kv_heads * (sizes.head_dim + sizes.head_dim_v) * sizes.dtype.itemsize) > sys.maxsize:
        raise ValueError(
            "batch, kv_heads, capacity, head_dim, head_dim_v and page_size together are more than any memory, got "
            f"{tuple(sizes[:5])} and {sizes.page_size}"
        )
    return sizes


def _size(value: object, name: str, least: int) -> int:
    size = integer_of(value, name)
    if size < least:
        raise ValueError(f"{name} must be at least {least}, got {size}")
    return size


def new_tokens(value: object, name: str, batch: int, heads: int, head_dim: int, dtype: DType, beside: Array) -> Array:
    """Return the keys or values to append, (batch, heads, any number of tokens, head_dim), in the cache's dtype.

    Raises
    ------
    TypeError
        When they are not real, or not the cache's kind of array.
    ValueError
        When the shape is another one.
    """
    array = value if type(value) is np.ndarray is type(beside) else same_kind(value, name, beside, "the cache")
    shape = array.shape
    if len(shape) != 4 or shape[0] != batch or shape[1] != heads or shape[3] != head_dim:
        dims = "head_dim" if name == "k" else "head_dim_v"
        raise ValueError(
            f"{name} must have the shape (batch, kv_heads, tokens, {dims}) = ({batch}, {heads}, tokens, {head_dim}), "
            f"got {shape}"
        )
    if array.dtype == dtype:
        return array
    if find_format(array.dtype) is None:
        raise TypeError(
            f"{name} must be real (an integer, float16, bfloat16, float32 or float64), got dtype {array.dtype}"
        )
    # A cache of a narrow dtype rounds, and what is beyond its range becomes infinite, as in any narrow computation.
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def query_of(value: object, sizes: Sizes, beside: Array) -> Array:
    """Return the queries, (batch, heads, any number of queries, head_dim).

    Raises
    ------
    TypeError
        When they are not real, not the cache's kind of array, or have no common dtype with it.
    ValueError
        When the shape is another one.
    """
    q = value if type(value) is np.ndarray is type(beside) else same_kind(value, "q", beside, "the cache")
    shape = q.shape
    if len(shape) != 4 or shape[0] != sizes.batch or shape[1] % sizes.kv_heads or shape[3] != sizes.head_dim:
        raise ValueError(
            f"q must have the shape (batch, heads, queries, head_dim) = ({sizes.batch}, a multiple of "
            f"{sizes.kv_heads}, queries, {sizes.head_dim}), as the cache has them, got {shape}"
        )
    if q.dtype != sizes.dtype:
        if find_format(q.dtype) is None:
            raise TypeError(f"q must be float16, bfloat16, float32, float64, an integer or bool, got dtype {q.dtype}")
        try:
            common = find_format(np.result_type(q.dtype, sizes.dtype))
        except TypeError:
            common = None
        if common is None:
            raise TypeError(
                f"q is {q.dtype} and the cache {sizes.dtype}: they have no common dtype that dualsoft takes"
            )
    return q


def counts_of(lengths: object, tokens: int, batch: int) -> list[int]:
    """Return how many of the new tokens each sequence gets.

    Raises
    ------
    TypeError, ValueError
        When they are not integers of the host between 0 and ``tokens``, one a sequence.
    """
    counts = host_integers(lengths, "lengths", batch)
    for sequence, count in enumerate(counts):
        if not 0 <= count <= tokens:
            raise ValueError(
                f"lengths[{sequence}] must be between 0 and the number of tokens given, {tokens}, got {count}"
            )
    return counts


def check_capacity(held: Iterable[int], counts: Iterable[int], capacity: int) -> None:
    """Refuse to grow past the capacity.

    Raises
    ------
    ValueError
        With the sizes.
    """
    for sequence, (length, count) in enumerate(zip(held, counts, strict=True)):
        if length + count > capacity:
            raise ValueError(
                f"sequence {sequence} holds {length} tokens and {count} more were given, {length + count} together: "
                f"past the capacity of {capacity}; nothing was written"
            )


def kept_lengths(lengths: object, held: list[int]) -> list[int]:
    """Return the lengths to truncate to.

    Raises
    ------
    TypeError, ValueError
        When they are not integers of the host between 0 and what each sequence holds.
    """
    kept = host_integers(lengths, "lengths", len(held))
    for sequence, (length, before) in enumerate(zip(kept, held, strict=True)):
        if not 0 <= length <= before:
            raise ValueError(
                f"lengths[{sequence}] must be between 0 and the {before} tokens that the sequence holds, got {length}"
            )
    return kept


def sequence_index(index: object, held: int, wanted: int | None) -> list[int]:
    """Return indices of sequences, counted from the front; ``wanted`` of them, or any number.

    Raises
    ------
    TypeError, ValueError
        When they are not integers of the host, too many or too few, or there is no such sequence.
    """
    array = _host_array(index, "batch_index")
    if array.ndim != 1 or (wanted is not None and len(array) != wanted):
        length = "any number of sequences" if wanted is None else f"{wanted} sequences"
        raise ValueError(f"batch_index must be a list of indices for {length}, got the shape {array.shape}")
    entries: list[int] = array.tolist()
    for place, entry in enumerate(entries):
        if not -held <= entry < held:
            raise ValueError(f"batch_index[{place}] is {entry}, but there are {held} sequences")
    return [entry % held for entry in entries]


def options_for_all_slots(options: dict[str, Any], keys: int, slots: int, q: Array) -> dict[str, Any]:
    """Return options whose masks and bias fit the keys of the longest sequence as those for all slots of its pages.

    What is added decides nothing: those slots are past every length.

    Raises
    ------
    TypeError, ValueError
        As ``dualsoft.attention``.
    """
    if keys == slots:
        return options
    given = {name: judge for name, judge in _JUDGES.items() if options.get(name) is not None}
    for name, judge in given.items():
        judge(options[name], (*q.shape[:3], keys), q)
    return options | {name: _for_all_slots(options[name], name, keys, slots, q) for name in given}


def _for_all_slots(value: Any, name: str, keys: int, slots: int, q: Array) -> Any:
    if isinstance(value, BlockMask):
        blocks, wanted = -(-keys // value.block_k), -(-slots // value.block_k)
        return BlockMask(_padded(same_kind(value.mask, name, q, "q"), blocks, wanted), value.block_q, value.block_k)
    return _padded(same_kind(value, name, q, "q"), keys, slots)


def _padded(array: Array, before: int, after: int) -> Array:
    if array.ndim == 0 or array.shape[-1] == 1:
        return array  # it broadcasts
    padded = module_of(array).zeros((*array.shape[:-1], after), array.dtype)
    padded[..., :before] = array
    return padded


def host_integers(value: object, name: str, count: int) -> list[int]:
    """Return ``count`` integers; one alone stands for all.

    Raises
    ------
    TypeError
        When they are not integers, or on a device.
    ValueError
        When there are more or fewer.
    """
    if type(value) is int:
        return [value] * count
    array = _host_array(value, name)
    if array.ndim == 0:
        return [int(array)] * count
    if array.shape != (count,):
        raise ValueError(
            f"{name} must be one integer or one for each of {count} sequences, got the shape {array.shape}"
        )
    integers: list[int] = array.tolist()
    return integers


def _host_array(value: object, name: str) -> np.ndarray[Any, Any]:
    array = as_array(value, name)
    if is_cupy(array):
        raise TypeError(f"{name} must be integers of the host, got a CuPy array: pass {name}.get()")
    host: np.ndarray[Any, Any] = array
    if host.size == 0 and not isinstance(value, np.ndarray):
        return host.astype(np.int64)  # an empty list says nothing of its dtype
    if host.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {host.dtype}")
    return host
