"""The self-test of attention: each case by every function that can answer it, against the reference in longdouble.

Errors are shares of ``accuracy.attention_bound`` and ``accuracy.attention_lse_bound``.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dualsoft import accuracy
from dualsoft.attention import attention, attention_paged, attention_state, attention_varlen
from dualsoft.attention_problem import attention_problem
from dualsoft.backends import reference
from dualsoft.block_mask import BlockMask
from dualsoft.cache import KVCache
from dualsoft.selftest_arrays import Calls
from dualsoft.state_functions import merge

WIDE = np.dtype(np.longdouble)
PAGE = 16
_NAMES = (
    "mask",
    "bias",
    "causal",
    "causal_offset",
    "window",
    "scale",
    "softcap",
    "sinks",
    "alibi_slopes",
    "kv_lengths",
)
Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """The arguments of one call: q (2, 4, Sq, D), k and v (2, 2, Sk, ...)."""

    name: str
    q: Array
    k: Array
    v: Array
    options: dict[str, Any]
    blocks: BlockMask | None = None
    """The same as ``options["mask"]``, where that is made of blocks."""


class Plain(NamedTuple):
    """The plain computation of a call, for all query heads: NaN where a row sees nothing."""

    q: Array
    k: Array
    v: Array
    scale: Array
    slope: Array
    """The derivative of the softcap."""
    visible: Array
    p: Array
    sink: Array
    """The weight of the sinks, (2, 4, Sq, 1)."""
    m: Array
    """The largest score of each row, and below the largest size of one."""
    size: Array

    @property
    def out(self) -> Array:
        """What attention answers, not yet rounded."""
        reached = np.asarray(self.visible.any(axis=-2))[..., None]
        out: Array = self.p @ np.where(reached, self.v, 0)
        return out


class Expected(NamedTuple):
    """What the result must be, and how far from it it may be."""

    out: Array
    lse: Array
    out_limit: float
    lse_limit: Array


def attention_shares(dtype: np.dtype[Any], calls: Calls) -> Iterator[tuple[str, str, float]]:
    """Yield (function, case, worst error as a share of its bound) for inputs of one dtype."""
    for case, want in _answered(dtype):
        for function, out, lse in _answers(case, calls):
            shares = share_of(out, want.out, want.out_limit), share_of(lse, want.lse, want.lse_limit)
            yield function, case.name, max(shares)


def cases(dtype: np.dtype[Any]) -> Iterator[Case]:
    """Yield the calls to make."""
    rng = np.random.default_rng(20220527)

    def operands(queries: int, keys: int, dim: int, dim_v: int) -> tuple[Array, Array, Array]:
        shapes = (2, 4, queries, dim), (2, 2, keys, dim), (2, 2, keys, dim_v)
        q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
        return q, k, v

    yield Case("full", *operands(37, 83, 24, 20), {})
    yield Case("causal", *operands(70, 83, 64, 64), {"causal": True})
    yield Case("decode", *operands(1, 300, 128, 128), {"causal": True, "kv_lengths": np.array([300, 211])})
    options = {
        "bias": rng.standard_normal((4, 1, 83)),
        "mask": rng.random((2, 1, 37, 83)) < 0.8,
        "window": (40, 9),
        "scale": 0.3,
        "softcap": 3.0,
        "sinks": rng.standard_normal(4),
        "alibi_slopes": 2.0 ** -np.arange(1.0, 5.0),
    }
    yield Case("options", *operands(37, 83, 33, 17), options)
    blocks = rng.random((2, 4, 3, 6)) < 0.6
    mask = blocks.repeat(16, axis=2).repeat(16, axis=3)[..., :37, :83]
    yield Case("blocks", *operands(37, 83, 32, 32), {"mask": mask}, BlockMask(blocks, 16, 16))
    q, k, v = operands(5, 40, 16, 16)
    # What no query sees, a row without a key, and a value and a query that are not numbers.
    k[1, :, 30:], v[1, :, 30:] = np.nan, np.inf
    v[0, 1, 7, 3], q[0, 0, 2, 1] = -np.inf, np.nan
    mask = np.ones((5, 1), np.bool_)
    mask[3] = False
    yield Case("special", q, k, v, {"kv_lengths": np.array([40, 30]), "mask": mask})


@lru_cache
def _answered(dtype: np.dtype[Any]) -> list[tuple[Case, Expected]]:
    """Return the calls with what they must answer: once, for all backends."""
    return [(case, _expected(case)) for case in cases(dtype)]


def options_of(case: Case) -> Any:
    """Return the options of a call in the order in which problems take them."""
    return tuple(case.options.get(name, False if name == "causal" else None) for name in (*_NAMES, "block_mask"))


def _expected(case: Case) -> Expected:
    problem, _ = attention_problem(case.q, case.k, case.v, options_of(case), True, None)
    shape, dtype = problem.out.shape, case.q.dtype
    out, lse = np.empty(shape, WIDE), np.empty(shape[:-1], WIDE)
    reference.run(problem._replace(out=out, lse=lse), WIDE)
    lse_dtype = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    with np.errstate(all="ignore"):
        found = plain(case, lse_dtype)
        out_limit = accuracy.attention_bound(found.out.astype(dtype), out, dtype)
        lse_limit = accuracy.attention_lse_bound(lse, found.m, found.size, lse_dtype, head_dim=case.q.shape[-1])
    return Expected(out, lse, out_limit, lse_limit)


def plain(case: Case, compute: np.dtype[Any], product: Callable[[Array, Array], Array] = np.matmul) -> Plain:
    """Return the plain computation: scores and weights stored, rounded to the dtype of the call."""
    options, dtype = case.options, case.q.dtype
    q, k, v = case.q.astype(compute), *(np.repeat(x.astype(compute), 2, axis=1) for x in (case.k, case.v))
    scale = np.asarray(options.get("scale", q.shape[-1] ** -0.5), compute)
    s, size = (scale * product(left, right.swapaxes(-1, -2)) for left, right in ((q, k), (np.abs(q), np.abs(k))))
    slope = np.ones_like(s)
    if "softcap" in options:
        cap = np.asarray(options["softcap"], compute)
        slope = 1 - np.tanh(s / cap) ** 2
        s = cap * np.tanh(s / cap)
    position, visible = positions(case)
    distance = np.abs(position - np.arange(s.shape[-1]))
    slopes = np.reshape(options.get("alibi_slopes", np.zeros(4)), (4, 1, 1))
    bias = (options.get("bias", 0.0) - slopes * distance).astype(compute)
    s = np.where(visible, (s + bias).astype(dtype).astype(compute), -np.inf)
    sinks = np.reshape(options.get("sinks", np.full(4, -np.inf)), (4, 1, 1)).astype(compute)
    m = np.maximum(s.max(axis=-1, keepdims=True), sinks)
    p = np.exp(s - m)
    d = p.sum(axis=-1, keepdims=True) + np.exp(sinks - m)
    sizes = np.max(np.where(visible, size + np.abs(bias), 0), axis=-1)
    p = (p / d).astype(dtype).astype(compute)
    return Plain(q, k, v, scale, slope, visible, p, np.exp(sinks - m) / d, m[..., 0], sizes)


def positions(case: Case) -> tuple[Array, Array]:
    """Return the position of each query among the keys, (2, 1, Sq, 1), and what it sees, (2, 4, Sq, Sk)."""
    options, queries, keys = case.options, case.q.shape[2], case.k.shape[2]
    lengths = np.reshape(options.get("kv_lengths", np.full(2, keys)), (2, 1, 1, 1))
    position, j = np.arange(queries)[:, None] + lengths - queries, np.arange(keys)
    left, right = options.get("window", (keys + queries, 0 if "causal" in options else keys + queries))
    seen = (j < lengths) & (j >= position - left) & (j <= position + right)
    return position, np.broadcast_to(seen & options.get("mask", True), (2, 4, queries, keys))


def _answers(case: Case, calls: Calls) -> Iterator[tuple[str, Array, Array]]:
    """Yield (function, out, lse) of every function that can answer a case."""
    q, k, v, options = case.q, case.k, case.v, case.options
    yield "attention", *calls(attention, q, k, v, return_lse=True, **options)
    yield "attention_state", *_merged(case, calls)
    keys = k.shape[2]
    table = np.array([[2 * page + sequence for page in range(-(-keys // PAGE))] for sequence in range(2)])
    longer: dict[str, Any] = {
        name: np.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, PAGE * table.shape[1] - keys)])
        if name in ("mask", "bias") and value.shape[-1] > 1
        else value
        for name, value in options.items()
    }
    longer.setdefault("kv_lengths", np.full(2, keys))
    pages = _paged(k, table), _paged(v, table)
    yield "attention_paged", *calls(attention_paged, q, *pages, table, return_lse=True, **longer)
    if case.blocks is not None:
        others = {name: value for name, value in options.items() if name != "mask"}
        yield "BlockMask", *calls(attention, q, k, v, block_mask=case.blocks, return_lse=True, **others)
    for page_size in (None, PAGE):
        yield "KVCache", *_cached(case, page_size, calls)
    if "mask" not in options and "bias" not in options:
        packed = (np.concatenate(list(x), axis=1) for x in (q, k, v))
        starts = (np.arange(3) * x.shape[2] for x in (q, k))
        out, lse = calls(attention_varlen, *packed, *starts, return_lse=True, **options)
        yield "attention_varlen", np.stack(np.split(out, 2, axis=1)), np.stack(np.split(lse, 2, axis=1))


def _cached(case: Case, page_size: int | None, calls: Calls) -> tuple[Array, Array]:
    """Return the answer of a cache that got the keys in two pieces."""
    k, v, keys = case.k, case.v, case.k.shape[2]
    lengths = np.asarray(case.options.get("kv_lengths", np.full(2, keys)))
    room: dict[str, Any] = {"head_dim_v": v.shape[3], "dtype": k.dtype, "page_size": page_size}
    cache = calls(KVCache, 2, 2, keys, k.shape[3], like=k, **room)
    part = int(lengths.min()) // 2
    calls(cache.append, k[:, :, :part], v[:, :, :part])
    calls(cache.append, k[:, :, part:], v[:, :, part:], (lengths - part).tolist())
    options = {name: value for name, value in case.options.items() if name != "kv_lengths"}
    answer: tuple[Array, Array] = calls(cache.attention, case.q, return_lse=True, **options)
    return answer


def _merged(case: Case, calls: Calls) -> tuple[Array, Array]:
    """Return the answer of two chunks of the keys, merged."""
    keys = case.k.shape[2]
    options = {name: value for name, value in case.options.items() if name != "sinks"}
    states = []
    for chunk in (slice(0, keys // 3), slice(keys // 3, keys)):
        cut = {
            name: value[..., chunk] if name in ("mask", "bias") and value.shape[-1] > 1 else value
            for name, value in options.items()
        }
        k, v = case.k[:, :, chunk], case.v[:, :, chunk]
        states.append(calls(attention_state, case.q, k, v, key_start=chunk.start, key_total=keys, **cut))
    answer: tuple[Array, Array] = calls(merge(*states).finalize, case.q.dtype, case.options.get("sinks"))
    return answer


def _paged(x: Array, table: Array) -> Array:
    """Return keys or values in pages; what no key fills is NaN."""
    pages = np.full((table.size, x.shape[1], PAGE, x.shape[3]), np.nan, x.dtype)
    for sequence, row in enumerate(table):
        for number, page in enumerate(row):
            part = x[sequence, :, number * PAGE : (number + 1) * PAGE]
            pages[page, :, : part.shape[1]] = part
    return pages


def share_of(result: Array, exact: Array, limit: Any) -> float:
    """Return the largest error as a share of the limit; infinite where only one is finite or NaN."""
    wide = np.asarray(result).astype(WIDE)
    finite = np.isfinite(exact)
    if not np.where(finite, np.isfinite(wide), (wide == exact) | (np.isnan(wide) & np.isnan(exact))).all():
        return float("inf")
    error = np.abs(np.where(finite, wide - np.where(finite, exact, 0), 0))
    return float(np.max(error / np.where(finite, limit, 1), initial=0))
