"""Attention on CUDA: the task that the kernels are given, which variants serve a problem, and their launches.

Which kernel a sequence goes to follows from the number of its rows, and where its sums are cut from its own keys: bits
depend on neither the batch nor the room behind the keys.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dualsoft.attention_problem import AttentionProblem
from dualsoft.backends import cuda_attention_tensor
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_task import OPERANDS, TASK, Batch, batch_of, place
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64

FEW_ROWS = 16
"""Sequences of so many rows, the queries of all heads that share a head of keys, are served as decode steps are."""
_TYPES = {F16: "f16", BF16: "bf16", F32: "f32", F64: "f64"}
_BLOCK = 128
# By arithmetic: rows of a block (few, many), and columns of the values that it takes.
_ROWS = {"f32": (8, 64), "f64": (8, 32)}
_COLUMNS = {"f32": 128, "f64": 64}
_RUN = {True: 1024, False: 2048}
SECOND_GRID = 256
"""Blocks that look for rows which tensor cores have left; each has room for partial results of its own."""
_SUM_BYTES = {"f32": 8, "f64": 16}


def _variant(storage: str, arithmetic: str, has_options: bool, is_few: bool) -> Variant:
    defines = (("DS_X", storage), ("DS_C", arithmetic), ("DS_OPTIONS", int(has_options)), ("DS_FEW", int(is_few)))
    return Variant("attention.cu", "attention", defines)


def _merging(arithmetic: str) -> Variant:
    return Variant("attention_merge.cu", "attention_merge", (("DS_C", arithmetic),))


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need."""
    for arithmetic in sorted({arithmetic_of(code) for code in codes}):
        yield _merging(arithmetic)
        for storage in (*(_TYPES[code] for code in codes if arithmetic_of(code) == arithmetic), "anything"):
            for has_options in (False, True) if storage != "anything" else (True,):
                for is_few in (False, True):
                    yield _variant(storage, arithmetic, has_options, is_few)


def arithmetic_of(code: int) -> str:
    """Return the type of the arithmetic of results of this dtype."""
    return "f64" if code == F64 else "f32"


def storage_of(codes: set[int], arithmetic: str) -> str:
    """Return the type of all operands, or that it is told at run time."""
    code = next(iter(codes))
    return _TYPES.get(code, "anything") if len(codes) == 1 and arithmetic_of(code) == arithmetic else "anything"


def attention(problem: AttentionProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's output and its statistics."""
    p = uploaded(problem, device)
    if p.q_starts is not None:
        _fill_with_nan(p, problem)
    arithmetic = arithmetic_of(p.out_code)
    storage = storage_of({p.x_code, p.k_code, p.v_code}, arithmetic)
    task, has_options = task_of(p, arithmetic, storage, batch_of(p))
    task["is_unseen"] = type(problem.q_starts) is not np.ndarray
    for is_few in _kinds(problem):
        variant = _variant(storage, arithmetic, has_options, is_few)
        on_tensor_cores = not is_few and cuda_attention_tensor.serves(p, task, device.architecture)
        yield from _launches(p, task.copy(), device, variant, is_few, on_tensor_cores)


_INTEGERS = ("lengths", "offsets", "q_starts", "k_starts", "pages")


def uploaded(problem: AttentionProblem, device: Device) -> AttentionProblem:
    """Return the problem with integers of the host on the device; they may stand beside arrays of a device."""
    given = {name: getattr(problem, name) for name in _INTEGERS}
    placed = {name: device.cp.asarray(x) for name, x in given.items() if type(x) is np.ndarray}
    return problem._replace(**placed)


def _fill_with_nan(p: AttentionProblem, given: AttentionProblem) -> None:
    """Write NaN to all results where starts that the host has not seen may leave rows out."""
    if type(given.q_starts) is not np.ndarray:
        for array in (p.out, p.lse):
            if array is not None:
                array.fill(np.nan)


def _kinds(problem: AttentionProblem) -> tuple[bool, ...]:
    """Return which kernels sequences may need: that for few rows, that for many."""
    group = problem.q.shape[-3] // problem.k.shape[-3]
    if problem.q_starts is None:
        return (problem.q.shape[-2] * group <= FEW_ROWS,)
    if type(problem.q_starts) is not np.ndarray:
        return (True, False)
    rows = np.diff(problem.q_starts) * group
    few = rows <= FEW_ROWS
    return tuple(is_few for is_few in (True, False) if (few == is_few).any())


def task_of(p: AttentionProblem, arithmetic: str, storage: str, batch: Batch) -> tuple[np.ndarray[Any, Any], bool]:
    """Return the task but for what depends on the kernel, and whether scores meet more than their scale."""
    task = np.zeros((), TASK)
    for number, name in enumerate(OPERANDS):
        place(task["at"][number], p, name, batch, storage)
    fold, unit, exact_unit = _scale(p.scale, arithmetic)
    task["fold"], task["unit"], task["exact_unit"] = fold, unit, exact_unit
    _fill_shapes(task, p, batch)
    for name in (*_INTEGERS, "sinks", "slopes"):
        array = getattr(p, name)
        task[name] = 0 if array is None else array.data.ptr
    for name in ("softcap", "left", "right", "block_q", "block_k"):
        task[name] = min(getattr(p, name), 2**62)
    extras = (p.mask, p.bias, p.block_mask, p.slopes)
    has_options = any(x is not None for x in extras) or p.softcap != 0 or not math.isfinite(p.scale)
    # Mixed dtypes are seldom: one variant serves them.
    return task, has_options or storage == "anything"


def _fill_shapes(task: np.ndarray[Any, Any], p: AttentionProblem, batch: Batch) -> None:
    q, k = p.q.shape, p.k.shape
    task["batch_axes"], task["batch_shape"][: len(batch.shape)] = len(batch.shape), batch.shape
    task["heads_k"], task["group"] = k[-3], q[-3] // k[-3]
    task["queries"], task["keys"], task["dim"], task["dim_v"] = q[-2], k[-2], q[-1], p.v.shape[-1]
    task["sequences"] = math.prod(batch.shape)
    task["columns"] = -1
    if p.q_starts is not None:
        task["sequences"] = p.q_starts.shape[0] - 1
        widths = [x.shape[-1] for x in (p.mask, p.bias) if x is not None and x.strides[-1]]
        task["columns"] = min(widths, default=-1)
    if p.pages is not None:
        task["page_count"], task["page_size"], task["pages_each"] = k[0], k[2], p.pages.shape[1]
        task["k_page"], task["v_page"] = p.k.strides[0], p.v.strides[0]
        task["keys"] = p.pages.shape[1] * k[2]


def _scale(scale: float, arithmetic: str) -> tuple[float, float, float]:
    """Return fold and unit, scale = fold·unit, and unit as far as the arithmetic holds it, in the middle.

    The power of two is folded into the queries, which rounds nothing; the rest, from 1 to 2, waits until the exponent.
    """
    if scale == 0 or math.isnan(scale):
        return scale, 1.0, 1.0
    most = 100 if arithmetic == "f32" else 1000
    exponent = 0 if math.isinf(scale) else min(most, max(-most, math.frexp(abs(scale))[1] - 1))
    exact = math.ldexp(abs(scale), -exponent) if math.isfinite(scale) else math.inf
    held = exact if math.isinf(exact) else min(2.0**most, max(2.0**-most, exact))
    return math.copysign(2.0**exponent, scale), held, exact


def _launches(
    p: AttentionProblem,
    task: np.ndarray[Any, Any],
    device: Device,
    variant: Variant,
    is_few: bool,
    on_tensor_cores: bool,
) -> Iterator[Launch]:
    arithmetic = str(dict(variant.defines)["DS_C"])
    rows, columns = _ROWS[arithmetic][0 if is_few else 1], _COLUMNS[arithmetic]
    group, heads, sequences, keys = (int(task[name]) for name in ("group", "heads_k", "sequences", "keys"))
    most = p.q.shape[-2] * group
    slices, runs = -(-p.v.shape[-1] // columns), max(1, -(-keys // _RUN[is_few]))
    blocks = (most // rows + sequences if p.q_starts is not None else -(-most // rows) * sequences) * heads
    task["row_blocks"] = -(-most // rows)
    grid, wanted = MOST_BLOCKS, None
    if on_tensor_cores:
        first, wanted = cuda_attention_tensor.launch(p, task.copy(), blocks, device)
        yield first
        grid = SECOND_GRID
    task["slices"], task["runs"] = slices, runs if is_few else 1
    task["rows_kept"] = rows_kept = min(most, FEW_ROWS)
    task["work"] = work = blocks * slices * int(task["runs"])
    grid = min(work, grid)
    sums = pairs = None
    # Columns of a state share one pair, so its runs are merged by the kernel that sees all of them.
    merges_itself = on_tensor_cores and p.m is None
    if runs > 1 or (p.m is not None and slices > 1):
        slots = blocks * slices * runs * rows_kept if is_few else grid * rows if merges_itself else work * rows
        sums = device.scratch((slots * columns * _SUM_BYTES[arithmetic],), "uint8")
        pairs = device.scratch((slots * 2,))
    yield Launch(variant, grid, _BLOCK, (task, sums, pairs, wanted))
    if sums is not None and not merges_itself:
        arguments = (task, sums, pairs, np.int32(rows), np.int32(is_few), wanted)
        yield Launch(_merging(arithmetic), min(blocks, MOST_BLOCKS), _BLOCK, arguments)
