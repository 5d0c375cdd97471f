"""The task of the attention kernels as a NumPy struct: ``attention_task`` of ``cuda/attention_task.cuh``."""

from typing import Any, NamedTuple

import numpy as np

from dualsoft.arrays import Array
from dualsoft.attention_problem import AttentionProblem
from dualsoft.dtypes import F32, F64, find_format

MAX_BATCH_AXES = 8
OPERANDS = ("q", "k", "v", "out", "lse", "m", "d", "mask", "bias", "block_mask")
_STATISTICS = ("lse", "m", "d")
_WIDE = 16

_PLACED = np.dtype(
    [
        *((name, np.int64) for name in ("base", "head", "row", "item")),
        ("batch", np.int64, MAX_BATCH_AXES),
        *((name, np.int64) for name in ("code", "is_wide")),
    ]
)
TASK = np.dtype(
    [
        *(("at", _PLACED, len(OPERANDS)), ("batch_axes", np.int64), ("batch_shape", np.int64, MAX_BATCH_AXES)),
        *((name, np.int64) for name in ("sequences", "heads_k", "group", "queries", "keys", "dim", "dim_v")),
        *((name, np.int64) for name in ("lengths", "offsets", "q_starts", "k_starts", "pages")),
        *((name, np.int64) for name in ("pages_each", "page_size", "page_count", "k_page", "v_page")),
        *((name, np.int64) for name in ("sinks", "slopes")),
        *((name, np.float64) for name in ("fold", "unit", "exact_unit", "softcap")),
        *((name, np.int64) for name in ("left", "right", "block_q", "block_k", "columns")),
        ("is_unseen", np.int64),
        *((name, np.int64) for name in ("row_blocks", "slices", "runs", "work", "rows_kept", "section")),
    ]
)
"""Addresses are integers here."""

GRADIENT_TASK = np.dtype(
    [
        *((name, TASK) for name in ("inputs", "gradients")),
        ("kind", np.int64),
        *((name, np.float64) for name in ("scale", "exact_lse")),
        *((name, np.int64) for name in ("heads_share", "rows_a_head")),
        *((name, np.int64) for name in ("bias_sums", "key_blocks", "sequences_own", "heads_own")),
    ]
)
"""``gradient_task`` of ``cuda/gradient_task.cuh``."""


class Batch(NamedTuple):
    """The batch axes, those that lie one inside the other joined."""

    shape: tuple[int, ...]
    strides: dict[str, tuple[int, ...]]
    """By operand."""


def _heads_first(name: str) -> int:
    """Return how many axes of an operand come after those of the batch."""
    return 2 if name in _STATISTICS or name == "dlse" else 3


def batch_of(p: AttentionProblem, gradients: dict[str, Array] | None = None) -> Batch:
    """Return the batch axes as all operands have them, and gradients beside these, whose names begin with ``d``.

    Raises
    ------
    ValueError
        For more axes than a kernel takes.
    """
    if p.q_starts is not None:
        return Batch((), {})
    there = {name: getattr(p, name) for name in OPERANDS if getattr(p, name) is not None}
    if p.pages is not None:
        there = {name: array for name, array in there.items() if name not in "kv"}
    there |= gradients or {}
    shape = p.q.shape[:-3]
    axes = {name: array.strides[: array.ndim - _heads_first(name)] for name, array in there.items()}
    merged: list[tuple[int, dict[str, int]]] = []
    for k, length in enumerate(shape):
        if length == 1:
            continue
        steps = {name: strides[k] for name, strides in axes.items()}
        if merged and all(merged[-1][1][name] == length * step for name, step in steps.items()):
            merged[-1] = merged[-1][0] * length, steps
        else:
            merged.append((length, steps))
    if len(merged) > MAX_BATCH_AXES:
        raise ValueError(
            f"the batch has {len(merged)} axes that cannot be joined, and the CUDA kernels take {MAX_BATCH_AXES}: "
            "pass contiguous copies"
        )
    return Batch(tuple(n for n, _ in merged), {name: tuple(steps[name] for _, steps in merged) for name in there})


def place(at: Any, p: AttentionProblem, name: str, batch: Batch, storage: str) -> None:
    """Fill in where an operand lies, if there is one."""
    array: Array | None = getattr(p, name)
    if array is not None:
        place_array(at, array, name, _code(p, name, array), batch.strides.get(name, ()), storage)


def place_array(at: Any, array: Array, name: str, code: int, batch: tuple[int, ...], storage: str) -> None:
    """Fill in where an array lies that has the axes of the operand ``name``."""
    at["base"] = array.data.ptr
    steps = [0 if length == 1 else step for length, step in zip(array.shape, array.strides, strict=True)]
    if name in _STATISTICS:
        steps.append(0)
    at["head"], at["row"], at["item"] = steps[-3:]
    at["batch"][: len(batch)] = batch
    at["code"] = code
    between = [*steps[:-1], array.data.ptr] if name not in _STATISTICS else [1]
    contiguous = steps[-1] == array.dtype.itemsize or array.shape[-1] == 1
    is_tile = name in ("q", "k", "v", "out")
    at["is_wide"] = is_tile and contiguous and not any(step % _WIDE for step in between) and storage != "anything"


def _code(p: AttentionProblem, name: str, array: Array) -> int:
    codes = {"q": p.x_code, "k": p.k_code, "v": p.v_code, "out": p.out_code, "bias": p.bias_code, "m": F64, "d": F64}
    if name == "lse":
        return F64 if array.dtype == np.float64 else F32
    if name in codes:
        return codes[name]
    known = find_format(array.dtype)
    return -1 if known is None else known.code
