"""A case of attention: what is asked, what it costs, and its data."""

import math
from typing import Any, NamedTuple

import numpy as np

from bench.contest import Array


class AttentionCase(NamedTuple):
    """One row of the table; query and key have the same head_dim as the values."""

    label: str
    batch: int
    heads_q: int
    heads_k: int
    seq_len_q: int
    seq_len_k: int
    head_dim: int
    dtype: str = "float32"
    causal: bool = False
    window: int = 0
    """Keys that a query sees, its own and those before it; 0: all. Causal."""
    block: int = 0
    """Edge of the blocks of a `BlockMask` of which one in `BLOCKS` is visible; 0: none is hidden."""
    lengths: tuple[int, ...] = ()
    """Sequences of these lengths behind one another, instead of a batch."""
    page_size: int = 0
    """Keys and values come in pages of this many tokens."""

    @property
    def group(self) -> int:
        """Query heads to a head of keys."""
        return self.heads_q // self.heads_k

    @property
    def pairs(self) -> float:
        """Scores that are needed: of a causal square half are counted, of a window those inside it."""
        heads = self.batch * self.heads_q
        if self.lengths:
            return self.heads_q * sum(length * length for length in self.lengths) / (2 if self.causal else 1)
        whole = self.seq_len_q * self.seq_len_k
        if self.window:
            inside = min(self.window, self.seq_len_q)
            return heads * (inside * (inside + 1) / 2 + (self.seq_len_q - inside) * inside)
        return heads * (whole / BLOCKS if self.block else whole / 2 if self.causal else whole)

    @property
    def flops(self) -> float:
        """Floating-point operations of both products: 4·Sq·Sk·D for a head that sees everything."""
        return 4.0 * self.pairs * self.head_dim

    @property
    def elements(self) -> int:
        """The size that ``--quick`` looks at: the scores of all heads, hidden ones too."""
        if self.lengths:
            return self.heads_q * sum(length * length for length in self.lengths)
        return self.batch * self.heads_q * self.seq_len_q * self.seq_len_k

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values."""
        size = {"float64": 8, "float32": 4}.get(self.dtype, 2)
        return 2 * self.batch * self.heads_k * self.seq_len_k * self.head_dim * size


BLOCKS = 16


class Data(NamedTuple):
    """The operands: (B, H, S, D), of sequences of several lengths (H, total, D)."""

    q: Array
    k: Array
    v: Array
    blocks: Array | None
    """Visible blocks, (Sq / block, Sk / block)."""
    starts: Array | None
    """Where each sequence begins, and the total."""
    k_pages: Array | None
    v_pages: Array | None
    page_table: Array | None

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(self.q.shape)


def data_of(case: AttentionCase, dtype: np.dtype[Any], most_drawn: int | None = None) -> Data:
    """Draw a case's operands; scores get a standard deviation of 1, as in a network that was just initialised.

    An operand of more than ``most_drawn`` numbers repeats them.
    """
    draw = np.random.default_rng(0)

    def normal(heads: int, length: int) -> Array:
        shape = (heads, length, case.head_dim) if case.lengths else (case.batch, heads, length, case.head_dim)
        size = math.prod(shape)
        drawn = draw.standard_normal(min(size, most_drawn or size), dtype=np.float32)
        return np.resize(drawn.astype(dtype), shape)

    q = normal(case.heads_q, case.seq_len_q)
    k, v = (normal(case.heads_k, case.seq_len_k) for _ in range(2))
    blocks = starts = k_pages = v_pages = table = None
    if case.block:
        blocks = visible_blocks(math.ceil(case.seq_len_q / case.block), math.ceil(case.seq_len_k / case.block))
    if case.lengths:
        starts = np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int64)
    if case.page_size:
        table = draw.permutation(case.batch * (case.seq_len_k // case.page_size)).reshape(case.batch, -1)
        k_pages, v_pages = (_in_pages(x, table, case.page_size) for x in (k, v))
    return Data(q, k, v, blocks, starts, k_pages, v_pages, table)


def sequences(case: AttentionCase, data: Data) -> list[tuple[AttentionCase, Data]]:
    """Return sequences that lie behind one another as cases of their own."""
    found = []
    for first, last in zip(data.starts[:-1], data.starts[1:], strict=True) if data.starts is not None else ():
        length = int(last - first)
        part = case._replace(batch=1, seq_len_q=length, seq_len_k=length, lengths=())
        q, k, v = (np.ascontiguousarray(x[None, :, first:last]) for x in (data.q, data.k, data.v))
        found.append((part, data._replace(q=q, k=k, v=v, starts=None)))
    return found


def last_heads(case: AttentionCase, data: Data) -> tuple[AttentionCase, Data]:
    """Return the last head of keys of the last batch entry, and the query heads that share it, as a case of its own."""
    part = case._replace(batch=1, heads_q=case.group, heads_k=1, page_size=0)
    q, k, v = (last_of(x, heads) for x, heads in ((data.q, case.group), (data.k, 1), (data.v, 1)))
    return part, data._replace(q=q, k=k, v=v, k_pages=None, v_pages=None, page_table=None)


def last_of(x: Array, heads: int) -> Array:
    """Return the last heads of the last batch entry, with these axes."""
    return x[-heads:] if x.ndim == 3 else x[-1:, -heads:]


def visible_blocks(rows: int, columns: int) -> Array:
    """Return a mask with every `BLOCKS`-th block visible, in other columns from row to row."""
    return (np.arange(columns) + 5 * np.arange(rows)[:, None]) % BLOCKS == 0


def _in_pages(x: Array, table: Array, page_size: int) -> Array:
    """Return (B, H, S, D) as (pages, H, page_size, D), in the order that the table says."""
    batch, heads, length, dim = x.shape
    pages = np.empty((table.size, heads, page_size, dim), x.dtype)
    pages[table] = x.reshape(batch, heads, length // page_size, page_size, dim).swapaxes(1, 2)
    return pages


def visible(case: AttentionCase, data: Data, rows: Array, seq_len_k: int) -> Array | None:
    """Return which keys some queries see, (rows, seq_len_k), None for all.

    Where the case is causal it is square, so a query's own key has the query's index.
    """
    j = np.arange(seq_len_k)
    if data.blocks is not None:
        return np.asarray(data.blocks[rows[:, None] // case.block, j // case.block])
    if not case.causal and not case.window:
        return None
    seen = j <= rows[:, None]
    return seen & (j > rows[:, None] - case.window) if case.window else seen
