"""q, k and v of attention: their kinds, dtypes and shapes, judged against one another."""

from typing import Any, NamedTuple, NoReturn

import numpy as np

from dualsoft.arguments import Shape
from dualsoft.arrays import Array, as_array, module_of, same_kind
from dualsoft.dtypes import FORMATS, PLAIN_FORMATS, DType, find_format

_ndarray = np.ndarray
_new = tuple.__new__


class Operands(NamedTuple):
    """q, k and v, each with a head axis, checked against one another."""

    q: Array
    k: Array
    v: Array
    q_code: int
    k_code: int
    v_code: int
    result: DType
    result_code: int
    out_shape: Shape
    alone: bool
    """Whether all three came without a head axis, so that the results have none."""


def operands(q: Any, k: Any, v: Any, names: tuple[str, str, str] = ("q", "k", "v"), paged: bool = False) -> Operands:
    """Judge q, k and v: their kinds, dtypes and shapes; broadcast their batch axes."""
    plain = None
    if type(q) is type(k) is type(v) is _ndarray and q.dtype is k.dtype is v.dtype:
        plain = PLAIN_FORMATS.get(q.dtype)
    if plain is not None:
        q_code, result, result_code, _ = plain
        k_code = v_code = q_code
    else:
        q = as_array(q, names[0])
        k, v = same_kind(k, names[1], q, names[0]), same_kind(v, names[2], q, names[0])
        q_code, k_code, v_code, result, result_code = _joint(q, k, v, names)
    alone = q.ndim == k.ndim == v.ndim == 2
    if q.ndim < 3 or k.ndim < 3 or v.ndim < 3:
        q, k, v = (_with_heads(array, name) for array, name in zip((q, k, v), names, strict=True))
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if paged and not (len(q_shape) == len(k_shape) == len(v_shape) == 4 and k_shape[0] == v_shape[0]):
        raise ValueError(
            "q must have the shape (batch, heads, queries, head dim), k_pages and v_pages (pages, heads, page size, "
            f"head dim), got {q_shape}, {k_shape} and {v_shape}"
        )
    heads, queries, dim = q_shape[-3:]
    kv_heads, keys, k_dim = k_shape[-3:]
    dim_v = v_shape[-1]
    if (
        dim != k_dim
        or not (dim and dim_v)
        or v_shape[-3:-1] != (kv_heads, keys)
        or (heads != kv_heads and (not kv_heads or heads % kv_heads))
        or (paged and not keys)
    ):
        _refuse_shapes(q_shape, k_shape, v_shape, names)
    batch = q_shape[:-3]
    if not paged and not (batch == k_shape[:-3] == v_shape[:-3]):
        q, k, v, batch = _broadcast(q, k, v, names)
    out_shape = (*batch, heads, queries, dim_v)
    return _new(Operands, (q, k, v, q_code, k_code, v_code, result, result_code, out_shape, alone))


def _joint(q: Array, k: Array, v: Array, names: tuple[str, str, str]) -> tuple[int, int, int, DType, int]:
    """Return the codes of q, k and v, and the dtype of the result with its code."""
    formats = []
    for array, name in zip((q, k, v), names, strict=True):
        known = FORMATS.get(array.dtype) or find_format(array.dtype)
        if known is None:
            raise TypeError(
                f"{name} has dtype {array.dtype}; it must be float16, bfloat16, float32, float64, an integer or bool"
            )
        formats.append(known)
    try:
        together = find_format(np.result_type(q.dtype, k.dtype, v.dtype))
    except TypeError:
        together = None
    if together is None:
        raise TypeError(
            f"{names[0]} is {q.dtype}, {names[1]} {k.dtype} and {names[2]} {v.dtype}: they have no common dtype that "
            "dualsoft takes"
        )
    return formats[0].code, formats[1].code, formats[2].code, together.result, together.result_code


def _with_heads(array: Array, name: str) -> Array:
    """Return ``array`` with a head axis: (S, D) is one head."""
    if array.ndim < 2:
        raise ValueError(
            f"{name} must have the shape (..., heads, length, head dim) or (length, head dim), got {array.shape}"
        )
    return array[None] if array.ndim == 2 else array


def _refuse_shapes(q: Shape, k: Shape, v: Shape, names: tuple[str, str, str]) -> NoReturn:
    """Raise the ValueError that says what is wrong with the last three axes."""
    q_name, k_name, v_name = names
    shapes = f"got the shapes {q}, {k} and {v}"
    if not q[-1] or not v[-1]:
        raise ValueError(f"the head dim of {q_name} and of {v_name} (last axis) must be at least 1, {shapes}")
    if q[-1] != k[-1]:
        raise ValueError(f"{q_name} and {k_name} must have the same head dim (last axis), {shapes}")
    if k[-2] != v[-2]:
        raise ValueError(f"{k_name} and {v_name} must have the same length (axis -2), {shapes}")
    if k[-3] != v[-3]:
        raise ValueError(f"{k_name} and {v_name} must have the same number of heads (axis -3), {shapes}")
    if not k[-3] or q[-3] % k[-3]:
        raise ValueError(
            f"the {q[-3]} heads of {q_name} (axis -3) must be a multiple of the {k[-3]} heads of {k_name} and "
            f"{v_name}, {shapes}"
        )
    raise ValueError(f"the pages of {k_name} and {v_name} must have at least one key, {shapes}")


def _broadcast(q: Array, k: Array, v: Array, names: tuple[str, str, str]) -> tuple[Array, Array, Array, Shape]:
    try:
        batch = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    except ValueError:
        raise ValueError(
            f"the batch axes of {', '.join(names[:2])} and {names[2]} (all but the last three) must broadcast, got the "
            f"shapes {q.shape}, {k.shape} and {v.shape}"
        ) from None
    to = module_of(q).broadcast_to
    q, k, v = (to(array, batch + array.shape[-3:]) for array in (q, k, v))
    return q, k, v, batch
