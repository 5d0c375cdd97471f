"""The rules for single arguments of attention: what ``attention_problem`` and ``AttentionState`` judge by."""

import math
from typing import Any

import numpy as np

from dualsoft.arguments import Shape, broadcast, integer_of, real
from dualsoft.arrays import Array, as_array, is_cupy, module_of, same_kind
from dualsoft.block_mask import BlockMask
from dualsoft.dtypes import FLOAT64, find_format

_ndarray = np.ndarray
INT64 = np.dtype(np.int64)
FARTHEST = 2**40
"""Offsets are cut here: beyond any number of keys, and sums of a few stay far from 2**63."""
_WIDEST = 4 * FARTHEST
"""Windows are cut here, where they reach over all keys from any offset, that of a chunk of keys included."""
_FEW = 64
_BATCH = "the batch shape of q, k and v"


def number_of(value: object, name: str) -> float:
    """Return one real number as a float.

    Raises
    ------
    TypeError
        When it is not real, an array with axes (be it of one element), or on a device.
    """
    if type(value) is float:
        return value
    array = as_array(value, name)
    if is_cupy(array) or find_format(array.dtype) is None:
        what = "a CuPy array" if is_cupy(array) else f"dtype {array.dtype}"
        raise TypeError(f"{name} must be a real number, got {what}")
    if array.ndim:
        raise TypeError(f"{name} must be one real number, got an array of the shape {array.shape}")
    return float(array)


def softcap_of(softcap: object) -> float:
    """Return the cap of the scores, 0 for none.

    Raises
    ------
    TypeError
        When it is not a real number.
    ValueError
        When it is negative, infinite or NaN.
    """
    cap = number_of(softcap, "softcap")
    if not 0 <= cap < math.inf:
        raise ValueError(f"softcap must be None, 0 (both: off) or a positive finite number, got {softcap!r}")
    return cap


def window_of(window: object, causal: bool) -> tuple[int, int]:
    """Return how many keys before and after its own position a query sees, -1 for all of them.

    Raises
    ------
    TypeError
        When ``window`` is not a pair of integers or None.
    ValueError
        When an entry is below -1, or there are not two.
    """
    if window is None:
        return -1, 0 if causal else -1
    if not isinstance(window, tuple | list):
        raise TypeError(f"window must be None or a pair (left, right), got {window!r}")
    if len(window) != 2:
        raise ValueError(f"window must be a pair (left, right), got {len(window)} entries: {window!r}")
    left, right = (-1 if bound is None else integer_of(bound, "window") for bound in window)
    if left < -1 or right < -1:
        raise ValueError(f"window must be of integers at least 0, or None or -1 for no bound, got {window!r}")
    # Its own position is the last that a causal query sees, whatever the window allows.
    return min(left, _WIDEST), 0 if causal else min(right, _WIDEST)


def needs_exact_offset(left: int, right: int, slopes: Array | None) -> str:
    """Return the option that an offset cut at ``FARTHEST`` would falsify, "" for none.

    A cut offset still has every key on the right side of a bound, unless the bound is about as far away itself.
    """
    if slopes is not None:
        return "alibi_slopes"
    return "a window beyond 2**39" if max(left, right) > FARTHEST // 2 else ""


def integers_of(value: object, name: str, shape: Shape, words: str, q: Array) -> Array:
    """Return integers of one shape as they came: NumPy's may stand beside CuPy data, not the other way round.

    Raises
    ------
    TypeError
        When they are not integers, or CuPy's beside NumPy data.
    ValueError
        When they have another shape; ``words`` say what it is.
    """
    array = value if type(value) is _ndarray else as_array(value, name)
    if array.dtype.kind not in "iu" and (array.size or isinstance(value, _ndarray)):
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    if type(array) is not _ndarray and not is_cupy(q):
        raise TypeError(f"{name} is a CuPy array and q a NumPy array: arrays are never moved silently, convert one")
    if array.shape != shape:
        raise ValueError(f"{name} must have {words}, {shape}, got the shape {array.shape}")
    return array


def bounds(array: Array) -> tuple[int, int]:
    """Return the least and the largest of one integer or more."""
    if array.size <= _FEW:
        values = array.ravel().tolist()  # Python's own are quicker on a few
        return min(values), max(values)
    return int(array.min()), int(array.max())


def lengths_of(kv_lengths: object, shape: Shape, most: Any, q: Array) -> Array:
    """Return the keys of each sequence as a contiguous row of int64, in memory of its own.

    Nobody can change them between this check and their use. ``most``: the most allowed, one for all or one each.

    Raises
    ------
    TypeError
        When they are not integers.
    ValueError
        For another shape than the batch's, and for lengths outside [0, ``most``] that the host can see.
    """
    # 2**63 and more become negative.
    array = integers_of(kv_lengths, "kv_lengths", shape, _BATCH, q).astype(INT64).reshape(-1)
    if type(array) is _ndarray and array.size:
        if type(most) is int:
            low, high = bounds(array)
            if low < 0 or high > most:
                raise ValueError(f"kv_lengths must be within [0, {most}], got {low if low < 0 else high}")
        elif type(most) is _ndarray:
            wrong = (array < 0) | (array > most)
            if wrong.any():
                at = int(np.argmax(wrong))
                raise ValueError(
                    f"kv_lengths must be within the length of each sequence, got {array[at]} for sequence {at}, "
                    f"which has {most[at]} keys"
                )
    return array


def offset_of(causal_offset: object, shape: Shape, q: Array, exact: str = "") -> int | Array:
    """Return ``causal_offset``: an integer, or a contiguous row of int64 with one for each sequence.

    Beyond ``FARTHEST`` they are cut there. ``exact`` names the option that this would falsify, if there is one.

    Raises
    ------
    TypeError
        When it is not of integers.
    ValueError
        When it has another shape than the batch's, or, as far as the host sees, what would be cut must be exact.
    """
    if isinstance(causal_offset, bool | np.bool_):
        raise TypeError(f"causal_offset must be an integer or integers, got {causal_offset!r}")
    # Python's integers have no bounds: NumPy makes objects of large ones.
    array = None if type(causal_offset) is int else as_array(causal_offset, "causal_offset")
    if array is None or (array.ndim == 0 and type(array) is _ndarray and array.dtype.kind in "iu"):
        offset = int(causal_offset)  # type: ignore[call-overload]
        if exact:
            _check_near(offset, offset, exact)
        return min(max(offset, -FARTHEST), FARTHEST)
    array = integers_of(array, "causal_offset", shape, _BATCH, q)
    if exact and type(array) is _ndarray and array.size:
        _check_near(*bounds(array), exact)
    if array.dtype.kind == "u":
        array = module_of(array).minimum(array, np.uint64(FARTHEST))
    return module_of(array).clip(array.astype(INT64), -FARTHEST, FARTHEST).reshape(-1)


def _check_near(low: int, high: int, exact: str) -> None:
    if low < -FARTHEST or high > FARTHEST:
        far = low if low < -FARTHEST else high
        raise ValueError(f"causal_offset must be within -2**40 and 2**40 where {exact} is given, got {far}")


def slopes_of(alibi_slopes: object, batch: Shape, heads: int, sequences: int, q: Array) -> Array:
    """Return a slope for each sequence and head, float64 and contiguous.

    Raises
    ------
    TypeError
        When they are not real, or not the kind of array that ``q`` is.
    ValueError
        When the shape is neither (Hq,) nor the batch's with Hq.
    """
    array = real(same_kind(alibi_slopes, "alibi_slopes", q, "q"), "alibi_slopes")
    if array.shape != (heads,) and array.shape != (*batch, heads):
        allowed = f"({heads},)" if not batch else f"({heads},) or {(*batch, heads)}"
        raise ValueError(f"alibi_slopes must have the shape {allowed}, got {array.shape}")
    xp = module_of(array)
    return xp.ascontiguousarray(xp.broadcast_to(array, (*batch, heads)).astype(FLOAT64).reshape(sequences, heads))


def sinks_of(sinks: object, heads: int, q: Array) -> Array:
    """Return a sink for each head, float64 and contiguous.

    Raises
    ------
    TypeError
        When they are not real, or not the kind of array that ``q`` is.
    ValueError
        When the shape is not (Hq,).
    """
    array = real(same_kind(sinks, "sinks", q, "q"), "sinks")
    if array.shape != (heads,):
        raise ValueError(f"sinks must have the shape ({heads},), one for each head of q, got {array.shape}")
    return module_of(array).ascontiguousarray(array.astype(FLOAT64))


def mask_of(mask: object, shape: Shape, q: Array) -> Array:
    """Return ``mask`` broadcast to the shape of the scores.

    Raises
    ------
    TypeError
        When it is not boolean, or not the kind of array that ``q`` is.
    ValueError
        When it does not broadcast.
    """
    if isinstance(mask, BlockMask):
        raise TypeError("mask must be boolean, got a BlockMask: pass it as block_mask=")
    array = same_kind(mask, "mask", q, "q")
    if array.dtype.kind != "b":
        hint = "; numbers that are added to the scores are bias=" if array.dtype.kind != "O" else ""
        raise TypeError(f"mask must be boolean (True takes part), got dtype {array.dtype}{hint}")
    return array if array.shape == shape else broadcast(array, shape, "mask", "the shape of the scores")


def bias_of(bias: object, shape: Shape, q: Array) -> tuple[Array, int]:
    """Return ``bias`` broadcast to the shape of the scores, and the code of its dtype.

    Raises
    ------
    TypeError
        When it is boolean or not real, or not the kind of array that ``q`` is.
    ValueError
        When it does not broadcast.
    """
    array = same_kind(bias, "bias", q, "q")
    known = find_format(array.dtype)
    if known is None or array.dtype.kind == "b":
        hint = ": True and False are for mask=" if array.dtype.kind == "b" else ""
        raise TypeError(f"bias must be real numbers, got dtype {array.dtype}{hint}")
    if array.shape != shape:
        array = broadcast(array, shape, "bias", "the shape of the scores")
    return array, known.code


def blocks_of(block_mask: object, scores: Shape, q: Array) -> Array:
    """Return the array of ``block_mask`` broadcast to the shape of the scores in blocks.

    Raises
    ------
    TypeError
        When it is not a BlockMask, or not the kind of array that ``q`` is.
    ValueError
        When it does not broadcast.
    """
    if not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"block_mask must be a dualsoft.BlockMask(mask, block_q, block_k), got a {type(block_mask).__qualname__}"
        )
    array = same_kind(block_mask.mask, "block_mask", q, "q")
    *outer, queries, keys = scores
    shape = (*outer, -(-queries // block_mask.block_q), -(-keys // block_mask.block_k))
    what = f"the shape of the scores in blocks of {block_mask.block_q} by {block_mask.block_k},"
    return array if array.shape == shape else broadcast(array, shape, "block_mask", what)


def starts_of(cu_seqlens: object, name: str, total: int, of: str, q: Array) -> Array:
    """Return where each sequence starts and the last ends, int64, contiguous, in memory of its own.

    Raises
    ------
    TypeError
        When they are not integers.
    ValueError
        When there is not one axis of one entry or more, or, as far as the host sees, they do not rise from 0 to
        ``total``.
    """
    array = as_array(cu_seqlens, name)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} must have the shape (sequences + 1,), got {array.shape}")
    array = integers_of(array, name, array.shape, "its own shape", q).astype(INT64)
    if type(array) is _ndarray:
        if array[0] != 0 or array[-1] != total:
            raise ValueError(
                f"{name} must begin with 0 and end with {total}, the length of {of}, got {array[0]} and {array[-1]}"
            )
        falls = array[1:] < array[:-1]
        if falls.any():
            at = int(np.argmax(falls))
            raise ValueError(f"{name} must never fall, got {array[at]} and then {array[at + 1]} at entry {at + 1}")
    return array


def last_axis(array: Any) -> int:
    """Return the length of the last axis of a mask or bias; 0 where there is none."""
    shape = getattr(array, "shape", ())
    return int(shape[-1]) if shape else 0


def table_of(page_table: object, batch: int, q: Array) -> Array:
    """Return the page table as int64, contiguous, in memory of its own.

    Raises
    ------
    TypeError
        When it is not of integers.
    ValueError
        When the shape is not (batch, pages of a sequence).
    """
    array = as_array(page_table, "page_table")
    if array.ndim != 2 or array.shape[0] != batch:
        raise ValueError(f"page_table must have the shape ({batch}, pages of a sequence), got {array.shape}")
    return integers_of(array, "page_table", array.shape, "its own shape", q).astype(INT64, order="C")


def chunk_of(key_start: object, key_total: object, keys: int) -> tuple[int, int]:
    """Return where a chunk of ``keys`` keys begins, and of how many it is a part; by default it is the last.

    Raises
    ------
    TypeError
        When one is not an integer.
    ValueError
        When the chunk is not within the whole.
    """
    start = integer_of(key_start, "key_start")
    total = start + keys if key_total is None else integer_of(key_total, "key_total")
    if not 0 <= start <= start + keys <= total <= FARTHEST:
        raise ValueError(
            f"key_start must be at least 0, and key_start plus the {keys} keys at most key_total (itself at most "
            f"2**40), got key_start={start} and key_total={total}"
        )
    return start, total


def check_pages(table: Array, lengths: Array, pages: int, page_size: int) -> None:
    """Refuse used entries of a page table (int64) outside [0, ``pages``), as far as the host sees.

    Raises
    ------
    ValueError
    """
    if not (type(table) is type(lengths) is _ndarray) or not table.size:
        return
    # Negative entries are the largest of all without a sign. Only a used one is an error.
    if table.view(np.uint64).max() < pages:
        return
    used = np.arange(table.shape[1]) < -(-lengths // page_size)[:, None]
    wrong = used & ((table < 0) | (table >= pages))
    if wrong.any():
        sequence, at = (int(index) for index in np.argwhere(wrong)[0])
        raise ValueError(
            f"page_table must be within [0, {pages}) where it is used, got {table[sequence, at]} for page {at} of "
            f"sequence {sequence}, which has {lengths[sequence]} keys"
        )
