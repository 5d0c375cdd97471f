"""The gradients of attention on CUDA: what each row needs, then a launch for each gradient that is wanted.

A block owns rows of one gradient, or elements of that of the bias, and adds up in order all that they depend on. Half
types go to tensor cores first, and these launches find what is left.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dualsoft.arrays import Array
from dualsoft.attention_problem import AttentionProblem
from dualsoft.backends import cuda_gradients_tensor
from dualsoft.backends.cuda_attention import SECOND_GRID, arithmetic_of, storage_of, task_of, uploaded
from dualsoft.backends.cuda_launch import MOST_BLOCKS, Device, Launch
from dualsoft.backends.cuda_task import GRADIENT_TASK, OPERANDS, batch_of, place_array
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.gradient_problem import GradientProblem

_BLOCK = 128
# By arithmetic: rows of a block, and columns of a gradient that it takes.
_TILES = {"f32": (64, 128), "f64": (32, 64)}
_PASSING = 64
"""Lines of the other side that pass by a block at a time."""
_OF_ROWS, _OF_Q, _OF_K, _OF_V, _OF_BIAS = range(5)
_ROW_BYTES = 32
# Up to this size an lse tells the weights of few rows, whatever its rounding; half types round everything else more.
_EXACT_LSE, _EXACT_LSE_OF_HALVES = 1.0, 64.0

_SINKS = Variant("gradient_sinks.cu", "gradient_sinks", ())


def _variant(kernel: str, storage: str, arithmetic: str) -> Variant:
    return Variant(f"{kernel}.cu", kernel, (("DS_X", storage), ("DS_C", arithmetic), ("DS_FEW", 0)))


def variants(codes: tuple[int, ...] = (F16, BF16, F32, F64)) -> Iterator[Variant]:
    """Yield every variant that calls on arrays of these dtypes can need."""
    yield _SINKS
    for arithmetic in sorted({arithmetic_of(code) for code in codes}):
        known = [storage_of({code}, arithmetic) for code in codes if arithmetic_of(code) == arithmetic]
        for storage in (*known, "anything"):
            yield _variant("gradient_queries", storage, arithmetic)
            yield _variant("attention_gradient", storage, arithmetic)
        yield _variant("gradient_bias", "anything", arithmetic)


def attention_gradients(problem: GradientProblem, device: Device) -> Iterator[Launch]:
    """Yield what writes the problem's gradients."""
    p = uploaded(problem.forward, device)
    arithmetic = arithmetic_of(p.out_code)
    codes = {p.x_code, p.k_code, p.v_code, problem.out_code, problem.grad_out_code}
    storage = storage_of(codes, arithmetic)
    task = _task(problem, p, arithmetic, storage)
    numbers = device.scratch((int(task["rows_a_head"]) * p.q.shape[-3] * _ROW_BYTES // 8,))
    if p.q_starts is not None:
        # Queries that bad starts leave out have no numbers, and count for nothing.
        numbers.fill(0)
        if type(problem.forward.q_starts) is not np.ndarray and problem.dq is not None:
            problem.dq.fill(np.nan)
    rows, columns = _TILES[arithmetic]
    yield from _launch(
        _variant("gradient_queries", storage, arithmetic), _of_operand(task, p, _OF_ROWS, rows, columns), (numbers,)
    )
    on_tensor_cores = cuda_gradients_tensor.serves(problem, task, device.architecture)
    exact = _variant("attention_gradient", storage, arithmetic)
    words: dict[bool, Array] = {}
    for kind, array in ((_OF_Q, problem.dq), (_OF_K, problem.dk), (_OF_V, problem.dv)):
        if array is None:
            continue
        one, are_keys = _of_operand(task, p, kind, rows, columns), kind != _OF_Q
        if on_tensor_cores and are_keys not in words and int(one["inputs"]["work"]):
            first, words[are_keys] = cuda_gradients_tensor.launch(problem, one.copy(), are_keys, numbers, device)
            yield first
        yield from _launch(exact, one, (numbers, words.get(are_keys)))
    if problem.dbias is not None:
        yield from _launch(
            _variant("gradient_bias", "anything", arithmetic), _of_bias(task, p, problem.dbias, rows), (numbers,)
        )
    if problem.dsinks is not None:
        each = np.int64(task["rows_a_head"])
        yield Launch(_SINKS, p.q.shape[-3], _BLOCK, (p.sinks, problem.dsinks, numbers, each))


def _launch(variant: Variant, task: np.ndarray[Any, Any], others: tuple[Any, ...]) -> Iterator[Launch]:
    """Yield the launch, unless there is nothing to do: a few blocks where only rows that are left may be wanted."""
    work = int(task["inputs"]["work"])
    most = SECOND_GRID if len(others) > 1 and others[1] is not None else MOST_BLOCKS
    if work:
        yield Launch(variant, min(work, most), _BLOCK, (task, *others))


def _task(problem: GradientProblem, p: AttentionProblem, arithmetic: str, storage: str) -> np.ndarray[Any, Any]:
    """Return the task but for what depends on the launch."""
    arrays = {
        "q": (problem.dq, problem.dq_code),
        "k": (problem.dk, problem.dk_code),
        "v": (problem.dv, problem.dv_code),
        "out": (problem.grad_out, problem.grad_out_code),
        "lse": (problem.grad_lse, problem.grad_lse_code),
        "bias": (problem.dbias, problem.dbias_code),
    }
    there = {name: (array, code) for name, (array, code) in arrays.items() if array is not None}
    batch = batch_of(p, {f"d{name}": array for name, (array, _) in there.items()})
    task = np.zeros((), GRADIENT_TASK)
    task["inputs"] = task_of(p, arithmetic, storage, batch)[0]
    starts = problem.forward.q_starts, problem.forward.k_starts
    task["inputs"]["is_unseen"] = any(type(x) is not np.ndarray for x in starts)
    at = task["inputs"]["at"]
    at[OPERANDS.index("out")]["code"], at[OPERANDS.index("lse")]["code"] = problem.out_code, problem.lse_code
    task["gradients"] = task["inputs"]
    task["gradients"]["at"] = 0
    for name, (array, code) in there.items():
        to = task["gradients"]["at"][OPERANDS.index(name)]
        place_array(to, array, name, code, batch.strides.get(f"d{name}", ()), storage)
    task["scale"] = p.scale
    task["exact_lse"] = _exact_lse(problem, p)
    task["heads_share"] = 1
    sequences = 1 if p.q_starts is not None else math.prod(batch.shape)
    task["rows_a_head"] = p.q.shape[-2] * sequences
    task["bias_sums"] = problem.bias_sums
    return task


def _exact_lse(problem: GradientProblem, p: AttentionProblem) -> float:
    if p.out_code == F64 and problem.lse_code != F64:
        return 0.0
    return _EXACT_LSE_OF_HALVES if {p.x_code, p.k_code, p.v_code} <= {F16, BF16} else _EXACT_LSE


def _of_operand(
    task: np.ndarray[Any, Any], p: AttentionProblem, kind: int, rows: int, columns: int
) -> np.ndarray[Any, Any]:
    """Return the task of the launch for one kind of rows."""
    one = task.copy()
    inputs = one["inputs"]
    length = p.v.shape[-1] if kind == _OF_V else p.q.shape[-1]
    slices = 1 if kind == _OF_ROWS else -(-length // columns)
    lines = p.k.shape[-2] if kind in (_OF_K, _OF_V) else p.q.shape[-2] * int(inputs["group"])
    sequences = int(inputs["sequences"])
    blocks = lines // rows + sequences if p.q_starts is not None else -(-lines // rows) * sequences
    one["kind"] = kind
    inputs["slices"], inputs["row_blocks"] = slices, -(-lines // rows)
    inputs["work"] = blocks * int(inputs["heads_k"]) * slices
    return one


def _of_bias(task: np.ndarray[Any, Any], p: AttentionProblem, dbias: Array, rows: int) -> np.ndarray[Any, Any]:
    """Return the task of the launch for the bias: each query head is a head of its own there."""
    one = task.copy()
    inputs, to = one["inputs"], one["gradients"]["at"][OPERANDS.index("bias")]
    one["kind"], one["heads_share"] = _OF_BIAS, inputs["group"]
    for of in (inputs, one["gradients"]):
        of["heads_k"], of["group"] = p.q.shape[-3], 1
        of["at"]["is_wide"] = 0  # types are told at run time there: one variant serves all
    inputs["row_blocks"] = row_blocks = -(-p.q.shape[-2] // rows)
    one["key_blocks"] = key_blocks = -(-dbias.shape[-1] // _PASSING)
    one["heads_own"] = heads = p.q.shape[-3] if to["head"] else 1
    sequences = int(inputs["sequences"])
    if p.q_starts is not None:
        own = sequences if to["row"] else 1
    else:
        axes = zip(inputs["batch_shape"], to["batch"], strict=True)
        own = math.prod(int(length) for length, step in axes if step)
    one["sequences_own"] = own
    inputs["work"] = heads * own * (row_blocks if to["row"] else 1) * (key_blocks if to["item"] else 1)
    return one
