"""Attention by its formula, the scores stored, in a wider type: what every backend is compared with.

Independent of the package on purpose: the reference backend is held to it as well. Arithmetic that a backend does in
float32 is done here in float64, its float64 in longdouble. The same steps in the result's own dtype are the "plain"
computation, whose error is the measure of a backend's.
"""

import pickle
from hashlib import sha1
from typing import Any, NamedTuple

import numpy as np
from oracle import Array, shift, widen


class Answer(NamedTuple):
    """A right answer and what its tolerance depends on."""

    out: Array  # (..., Hq, Sq, Dv), exact to the wider type
    lse: Array  # (..., Hq, Sq), likewise
    plain: Array  # as out, from the plain computation
    size: Array  # (..., Hq, Sq): the largest score that counts, nothing cancelled
    m: Array  # (..., Hq, Sq): the largest score, sinks included; 0 where there is none
    head_dim: int
    dtype: Any  # of out
    lse_dtype: Any

    @property
    def plain_error(self) -> float:
        return largest(np.asarray(self.plain).astype(np.float64).astype(self.out.dtype) - self.out)


class Scores(NamedTuple):
    s: Array  # (..., Hq, Sq, Sk): -inf where unseen
    size: Array  # likewise: |scale|·sum |q·k| + |bias| + |alibi|, 0 where unseen


def largest(value: Array) -> float:
    return float(np.abs(value[np.isfinite(value)]).max(initial=0))


def upwards(a: Array, b: Array) -> Array:
    """a @ b, one term after the other."""
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    for k in range(a.shape[-1]):
        total += a[..., k, None] * b[..., k, None, :]
    return total


def downwards(a: Array, b: Array) -> Array:
    return upwards(a[..., ::-1], b[..., ::-1, :])


def by_lanes(a: Array, b: Array) -> Array:
    """Every fourth term in a sum of its own."""
    first, second, third, fourth = (upwards(a[..., lane::4], b[..., lane::4, :]) for lane in range(4))
    return (first + third) + (second + fourth)


def by_halves(a: Array, b: Array) -> Array:
    half = a.shape[-1] // 2
    return upwards(a[..., :half], b[..., :half, :]) + upwards(a[..., half:], b[..., half:, :])


def exp_by_exp2(x: Array) -> Array:
    return np.exp2(x * x.dtype.type(1.4426950408889634))


def shuffled(seed: int) -> Any:
    def product(a: Array, b: Array) -> Array:
        order = np.random.default_rng(seed).permutation(a.shape[-1])
        return upwards(a[..., order], b[..., order, :])

    return product


# The order of a sum's terms is not part of the plain computation, nor is the base of its exponentials: of several ways
# the worst result is the measure. One way alone may be right by chance where few elements, or one large score, decide.
PLAIN_WAYS = (
    (np.matmul, np.exp), (upwards, exp_by_exp2), (downwards, np.exp), (by_lanes, exp_by_exp2), (by_halves, np.exp),
)  # fmt: skip
MORE_WAYS = tuple((shuffled(seed), np.exp) for seed in range(6))
FEW, MANY = 4000, 50000


def ways(scores: int) -> Any:
    """The fewer scores, the more ways."""
    return PLAIN_WAYS + MORE_WAYS if scores <= FEW else PLAIN_WAYS if scores <= MANY else PLAIN_WAYS[:2]


_answers: dict[bytes, Answer] = {}
FAR = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 90.0}  # exp of less than -FAR is nothing in a sum


def result_dtype(*arrays: Any) -> Any:
    dt = np.result_type(*(np.asarray(a).dtype for a in arrays))
    return np.dtype(np.float64) if dt.kind in "biu" else dt.newbyteorder("=")


def attention(q: Any, k: Any, v: Any, **options: Any) -> Answer:
    """The answer to ``dualsoft.attention`` with the same arguments; kept, since every backend is asked the same."""
    call = sha1(pickle.dumps((q, k, v, options)), usedforsecurity=False).digest()
    answer = _answers.get(call)
    if answer is None:
        if len(_answers) > 3000:
            _answers.clear()
        answer = _answers[call] = compute(q, k, v, **options)
    return answer


def compute(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, causal: bool = False, causal_offset: Any = None,
    window: Any = None, scale: Any = None, softcap: Any = None, sinks: Any = None, alibi_slopes: Any = None,
    kv_lengths: Any = None, block_mask: Any = None, plain_ways: Any = None,
) -> Answer:  # fmt: skip
    q, k, v = (np.asarray(x) for x in (q, k, v))
    dtype = result_dtype(q, k, v)
    arithmetic = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    wide = np.longdouble if dtype == np.float64 else np.float64
    lone = q.ndim == 2
    if lone:
        q, k, v = q[None], k[None], v[None]
    options = {
        "bias": bias, "scale": scale, "softcap": softcap, "alibi_slopes": alibi_slopes,
        "positions": positions_of(q, k, v, causal_offset, kv_lengths),
    }  # fmt: skip
    seen = visible(q, k, v, mask, causal, causal_offset, window, kv_lengths, block_mask)
    with np.errstate(all="ignore"):
        exact = scores(*heads(q, k, wide), arithmetic, seen, **options)
        p, lse, m = softmax(exact.s, sinks, wide)
        out = weigh(p, exact.s, heads(q, v, wide)[1])
        worst, plain_out = -1.0, np.zeros(0)
        (q_plain, k_plain), v_plain = heads(q, k, arithmetic), heads(q, v, arithmetic)[1]
        for product, exponential in plain_ways or ways(exact.s.size):
            plain = scores(q_plain, k_plain, arithmetic, seen, product=product, **options).s
            plain = to_dtype(plain, dtype, arithmetic)
            p_plain = softmax(plain, sinks, arithmetic, exponential)[0].astype(dtype).astype(arithmetic)
            found = weigh(p_plain, plain, v_plain, product).astype(dtype)
            error = largest(found.astype(np.float64).astype(wide) - out)
            if error > worst:
                worst, plain_out = error, found
        size = size_that_counts(exact, m, q.shape[-1], arithmetic)
    parts = (x[0] if lone else x for x in (out, lse, plain_out, size, m))
    return Answer(*parts, q.shape[-1], dtype, arithmetic)


def heads(q: Array, x: Array, wide: Any) -> tuple[Array, Array]:
    """Both in the wide type, the heads of ``x`` repeated to those of ``q``."""
    repeated = np.repeat(widen(x, wide), q.shape[-3] // x.shape[-3], axis=-3)
    return widen(q, wide), repeated


def batch_of(q: Array, k: Array, v: Array) -> tuple[int, ...]:
    return np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])


def by_sequence(x: Any, batch: tuple[int, ...]) -> Array:
    """One number a sequence, as (..., 1, 1, 1)."""
    return np.broadcast_to(np.asarray(x).astype(np.int64), batch)[..., None, None, None]


def offset_of(q: Array, k: Array, v: Array, causal_offset: Any, kv_lengths: Any) -> Array:
    batch = batch_of(q, k, v)
    if causal_offset is not None:
        return by_sequence(causal_offset, batch)
    return by_sequence(k.shape[-2] if kv_lengths is None else kv_lengths, batch) - q.shape[-2]


def positions_of(q: Array, k: Array, v: Array, causal_offset: Any, kv_lengths: Any) -> Array:
    """i + offset - j, (..., 1, Sq, Sk)."""
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    return i + offset_of(q, k, v, causal_offset, kv_lengths) - j


def visible(
    q: Array, k: Array, v: Array, mask: Any, causal: bool, causal_offset: Any, window: Any, kv_lengths: Any,
    block_mask: Any,
) -> Array:  # fmt: skip
    """(..., Hq, Sq, Sk), bool."""
    batch = batch_of(q, k, v)
    num_heads, seq_len_q, seq_len_k = q.shape[-3], q.shape[-2], k.shape[-2]
    seen = np.ones((*batch, num_heads, seq_len_q, seq_len_k), bool)
    back = positions_of(q, k, v, causal_offset, kv_lengths)
    if kv_lengths is not None:
        seen &= np.arange(seq_len_k) < by_sequence(kv_lengths, batch)
    if mask is not None:
        seen &= np.asarray(mask)
    if causal:
        seen &= back >= 0
    if window is not None:
        left, right = window
        if left not in (None, -1):
            seen &= back <= left
        if right not in (None, -1):
            seen &= -back <= right
    if block_mask is not None:
        i, j = np.arange(seq_len_q) // block_mask.block_q, np.arange(seq_len_k) // block_mask.block_k
        blocks = np.asarray(block_mask.mask)
        blocks = np.broadcast_to(
            blocks,
            (*batch, num_heads, -(-seq_len_q // block_mask.block_q), -(-seq_len_k // block_mask.block_k)),
        )
        seen &= blocks[..., i[:, None], j[None, :]]
    return seen


def scores(
    q: Array, k: Array, arithmetic: Any, seen: Array, *, bias: Any, scale: Any, softcap: Any, alibi_slopes: Any,
    positions: Array, product: Any = np.matmul,
) -> Scores:  # fmt: skip
    """In the dtype of ``q`` and ``k``, in the order of the contract."""
    wide = q.dtype.type
    transposed = k.swapaxes(-1, -2)
    factor = 1 / np.sqrt(wide(q.shape[-1])) if scale is None else held(wide, scale)
    s = product(q, transposed)
    if wide is np.float32 and not np.isfinite(s).all():
        s = np.where(
            np.isfinite(s), s, product(q.astype(np.float64), transposed.astype(np.float64))
        )  # before the scale
    s = (factor * s).astype(wide)
    size = np.abs(factor) * (np.abs(q) @ np.abs(transposed))
    if softcap:
        cap = held(wide, softcap)
        s = (cap * np.tanh(s / cap)).astype(wide)
    lowest = -float(np.finfo(arithmetic).max)
    if bias is not None:
        added = np.asarray(bias).astype(np.float64)
        added = np.where(np.isfinite(added), np.maximum(added, lowest), added).astype(wide)
        s, size = add(s, added, lowest), size + np.abs(added)
    if alibi_slopes is not None:
        # float64 at least: a slope that float32 does not hold is finite all the same
        slopes = np.asarray(alibi_slopes).astype(np.promote_types(wide, np.float64))[..., None, None]
        added = -slopes * np.abs(positions)
        added = np.where(np.isfinite(slopes), np.maximum(added, lowest), added).astype(wide)
        s, size = add(s, added, lowest), size + np.abs(added)
    s = np.where(seen, s, -np.inf).astype(wide)
    return Scores(s, np.where(s > -np.inf, size, 0))


def held(wide: Any, number: Any) -> Array:
    """The number in that type, or in float64 if that is too narrow; an array, since in NumPy 1 a scalar widens none."""
    limits, size = np.finfo(wide), abs(float(number))
    fits = size == 0 or not np.isfinite(size) or limits.tiny <= size <= limits.max
    return np.array([number], wide if fits else np.float64)


def add(s: Array, added: Array, lowest: float) -> Array:
    """-inf where one of them is, whatever the other; never where both are finite."""
    total = np.where((s == -np.inf) | (added == -np.inf), -np.inf, s + added)
    return np.where(np.isfinite(s) & np.isfinite(added), np.maximum(total, s.dtype.type(lowest)), total)


def to_dtype(s: Array, dtype: Any, arithmetic: Any) -> Array:
    """Scores rounded to the dtype of the result; a finite one that is out of its range becomes the last in it."""
    top = arithmetic.type(65504.0 if dtype == np.float16 else float(np.finfo(arithmetic).max) * 0.995)
    clipped = s if dtype == arithmetic else np.where(np.isfinite(s), np.clip(s, -top, top), s)
    return clipped.astype(dtype).astype(arithmetic)


def softmax(s: Array, sinks: Any, wide: Any, exponential: Any = np.exp) -> tuple[Array, Array, Array]:
    """Weights (..., Sq, Sk); lse and the maximum, (..., Sq)."""
    wide = np.dtype(wide).type
    m = s.max(-1, keepdims=True, initial=-np.inf)
    sink = None if sinks is None else np.asarray(sinks).astype(wide)[:, None, None]
    if sink is not None:
        m = np.maximum(m, sink)
    e = exponential(s - shift(m))
    d = e.sum(-1, keepdims=True)
    if sink is not None:
        d = d + exponential(sink - shift(m))
    lse = np.where(m == np.inf, np.inf, shift(m) + np.log(d))
    p = np.where(d == 0, 0, e / d)
    p = np.where((m == np.inf) | np.isnan(d), np.nan, p)
    return p, np.where(np.isnan(m), np.nan, lse)[..., 0], np.where(np.isfinite(m), m, 0)[..., 0]


def weigh(p: Array, s: Array, v: Array, product: Any = np.matmul) -> Array:
    """p·v where only seen values count, whatever the others hold: every weight of a seen one is above 0."""
    finite = np.isfinite(v)
    out = product(p, np.where(finite, v, 0))
    if s.shape[-1] and np.isnan(p).any():
        out = np.where(np.isnan(p).any(-1, keepdims=True), np.nan, out)
    if not finite.all():
        seen = (s > -np.inf).astype(np.float64)
        nan, up, down = (seen @ flag.astype(np.float64) > 0 for flag in (np.isnan(v), v == np.inf, v == -np.inf))
        lost = np.isnan(out) | nan | (up & down)
        out = np.where(lost, np.nan, np.where(up, np.inf, np.where(down, -np.inf, out)))
    return out


def size_that_counts(exact: Scores, m: Array, head_dim: int, arithmetic: Any) -> Array:
    """The largest size among the scores that may come near the maximum: lse changes by no more than these do."""
    s, size = exact
    error = (head_dim + 8) * float(np.finfo(arithmetic).eps / 2) * size
    top = np.maximum((s - error).max(-1, keepdims=True, initial=-np.inf), m[..., None])
    near = s + error >= shift(top) - FAR[arithmetic]
    found = np.where(near, size, 0).max(-1, initial=0)
    return np.where(np.isfinite(found), found, 0)


def join(answers: list[Answer], axis: int) -> Answer:
    """The answers of a call's sequences as the answer to the call; ``axis`` is that of ``lse``, from the end."""
    first = answers[0]
    rows = {name: np.concatenate([getattr(a, name) for a in answers], axis) for name in ("lse", "size", "m")}
    outs = {name: np.concatenate([getattr(a, name) for a in answers], axis - 1) for name in ("out", "plain")}
    return first._replace(**rows, **outs)
