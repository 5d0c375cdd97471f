"""Where a ``KVCache`` keeps its tokens: one strip of memory a sequence, or pages of a pool that sequences share.

Both kinds hold ``k`` and ``v`` as (places, kv_heads, slots, head_dim): a place is a sequence or a page. ``reserve``
makes room and says where new tokens go, as runs (sequence, first new token, place, first slot, count). Lengths are the
caller's, trusted, and given to every method that needs them.
"""

import weakref
from typing import Any, NamedTuple

import numpy as np

from dualsoft.arrays import Array, module_of
from dualsoft.dtypes import DType

Run = tuple[int, int, int, int, int]
Table = np.ndarray[Any, np.dtype[np.int64]]


class Sizes(NamedTuple):
    """What a cache is made of, as its user gave it."""

    batch: int
    kv_heads: int
    capacity: int
    head_dim: int
    head_dim_v: int
    dtype: DType
    page_size: int | None

    @property
    def pages_per_sequence(self) -> int:
        """Columns of the page table; 0 where there are no pages."""
        return -(-self.capacity // self.page_size) if self.page_size else 0


def _empty_pair(places: int, slots: int, sizes: Sizes, like: Array) -> tuple[Array, Array]:
    # Zeros come from the system as untouched memory: they cost nothing until a token is written.
    zeros, shape = module_of(like).zeros, (places, sizes.kv_heads, slots)
    return zeros((*shape, sizes.head_dim), sizes.dtype), zeros((*shape, sizes.head_dim_v), sizes.dtype)


def write(storage: "Strips | Pages", runs: list[Run], k: Array, v: Array) -> None:
    """Copy new tokens, (batch, kv_heads, tokens, head_dim), to where ``reserve`` said."""
    k_store, v_store = storage.k, storage.v
    share = module_of(k_store).may_share_memory
    # A caller may append what the cache itself shows, and a run may write what a later one reads.
    k, v = (new.copy() if share(new, k_store) or share(new, v_store) else new for new in (k, v))
    for sequence, token, place, slot, count in runs:
        k_store[place, :, slot : slot + count] = k[sequence, :, token : token + count]
        v_store[place, :, slot : slot + count] = v[sequence, :, token : token + count]


class Strips:
    """Each sequence has ``capacity`` slots in a row."""

    __slots__ = ("k", "v")

    def __init__(self, k: Array, v: Array) -> None:
        self.k, self.v = k, v

    @classmethod
    def empty(cls, sizes: Sizes, like: Array) -> "Strips":
        """Return storage for ``sizes.batch`` sequences."""
        return cls(*_empty_pair(sizes.batch, sizes.capacity, sizes, like))

    def reserve(self, lengths: list[int], counts: list[int]) -> list[Run]:
        """Return one run a sequence."""
        return [(b, 0, b, length, n) for b, (length, n) in enumerate(zip(lengths, counts, strict=True)) if n]

    def truncate(self, lengths: list[int]) -> None:
        """Do nothing: slots past a length are free."""

    def reorder(self, index: list[int], longest: int) -> None:
        """Let sequence b be what sequence ``index[b]`` was."""
        moved = [b for b, source in enumerate(index) if b != source]
        if moved and longest:
            sources = [index[b] for b in moved]
            for store in (self.k, self.v):
                store[moved, :, :longest] = store[sources, :, :longest]

    def fork(self, index: list[int], longest: int) -> "Strips":
        """Return a copy of the sequences in ``index``."""
        copies = []
        for store in (self.k, self.v):
            copy = module_of(store).zeros((len(index), *store.shape[1:]), store.dtype)
            for b, source in enumerate(index):
                copy[b, :, :longest] = store[source, :, :longest]
            copies.append(copy)
        return Strips(*copies)

    def gather(self, lengths: list[int]) -> tuple[Array, Array]:
        """Return all tokens as (batch, kv_heads, longest, head_dim)."""
        longest = max(lengths, default=0)
        return self.k[:, :, :longest], self.v[:, :, :longest]


class Pool:
    """Pages, and how many sequences use each. Caches made by ``fork`` have one pool together."""

    __slots__ = ("_like", "_sizes", "free", "k", "references", "retired", "v")

    def __init__(self, sizes: Sizes, like: Array) -> None:
        self._sizes, self._like = sizes, like
        total = sizes.batch * sizes.pages_per_sequence
        self.k, self.v = self._arrays(total)
        self.references = [0] * total
        self.free = list(range(total - 1, -1, -1))
        # Page lists of caches that are gone. Their finalizers may run in the middle of anything, so they only leave
        # word here.
        self.retired: list[list[list[int]]] = []

    def _arrays(self, total: int) -> tuple[Array, Array]:
        return _empty_pair(total, self._sizes.page_size or 1, self._sizes, self._like)

    def collect(self) -> None:
        """Free the pages of caches that are gone."""
        while self.retired:
            for pages in self.retired.pop():
                for page in pages:
                    self.drop(page)

    def reserve(self, wanted: int) -> None:
        """See to it that ``wanted`` pages are free; the pool grows, to at least twice its size, where they are not."""
        if wanted <= len(self.free):
            return
        self.collect()
        if wanted <= len(self.free):
            return
        before = len(self.references)
        total = max(2 * before, before + wanted - len(self.free))
        k, v = self._arrays(total)
        k[:before], v[:before] = self.k, self.v
        self.k, self.v = k, v
        self.references += [0] * (total - before)
        self.free[:0] = range(total - 1, before - 1, -1)

    def take(self) -> int:
        """Return a free page, now used once."""
        page = self.free.pop()
        self.references[page] = 1
        return page

    def drop(self, page: int) -> None:
        """Count one user less."""
        self.references[page] -= 1
        if not self.references[page]:
            self.free.append(page)

    def split(self, page: int, filled: int) -> int:
        """Return a page of one's own with the first ``filled`` slots of a shared one."""
        own = self.take()
        for store in (self.k, self.v):
            store[own, :, :filled] = store[page, :, :filled]
        self.drop(page)
        return own


class Pages:
    """Each sequence has a list of pages, the last of them filled in part.

    ``table`` is the same as an array, (batch, pages_per_sequence), -1 where no page is used.
    """

    __slots__ = ("__weakref__", "page_size", "pool", "rows", "table")

    def __init__(self, pool: Pool, rows: list[list[int]], table: Table, page_size: int) -> None:
        self.pool, self.rows, self.table, self.page_size = pool, rows, table, page_size
        weakref.finalize(self, pool.retired.append, rows).atexit = False

    @classmethod
    def empty(cls, sizes: Sizes, like: Array) -> "Pages":
        """Return storage for ``sizes.batch`` sequences, with a pool that all of them fit in."""
        table = np.full((sizes.batch, sizes.pages_per_sequence), -1, np.int64)
        return cls(Pool(sizes, like), [[] for _ in range(sizes.batch)], table, sizes.page_size or 1)

    @property
    def k(self) -> Array:
        """The keys of all pages: (pages, kv_heads, page_size, head_dim)."""
        return self.pool.k

    @property
    def v(self) -> Array:
        """The values of all pages."""
        return self.pool.v

    def reserve(self, lengths: list[int], counts: list[int]) -> list[Run]:
        """Take the pages that new tokens need, and copies of shared ones that they go into."""
        size, pool = self.page_size, self.pool
        wanted, writers = 0, dict[int, int]()
        for row, length, count in zip(self.rows, lengths, counts, strict=True):
            if count:
                wanted += -(-(length + count) // size) - len(row)
                if length % size and pool.references[row[-1]] > 1:
                    writers[row[-1]] = writers.get(row[-1], 0) + 1
        # The last user of a page that everybody else has left may write to it.
        wanted += sum(min(n, pool.references[page] - 1) for page, n in writers.items())
        pool.reserve(wanted)
        runs: list[Run] = []
        for sequence, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            self._extend(runs, sequence, length, count)
        return runs

    def _extend(self, runs: list[Run], sequence: int, length: int, count: int) -> None:
        size, pool, row = self.page_size, self.pool, self.rows[sequence]
        slot, token = length % size, 0
        if slot and count and pool.references[row[-1]] > 1:
            row[-1] = self.table[sequence, len(row) - 1] = pool.split(row[-1], slot)
        while token < count:
            if not slot:
                page = pool.take()
                self.table[sequence, len(row)] = page
                row.append(page)
            piece = min(size - slot, count - token)
            runs.append((sequence, token, row[-1], slot, piece))
            slot, token = 0, token + piece

    def truncate(self, lengths: list[int]) -> None:
        """Give back the pages past each length."""
        for sequence, (row, length) in enumerate(zip(self.rows, lengths, strict=True)):
            used = -(-length // self.page_size)
            for page in row[used:]:
                self.pool.drop(page)
            del row[used:]
            self.table[sequence, used:] = -1

    def _shared(self, index: list[int]) -> tuple[list[list[int]], Table]:
        """Return page lists and table of the sequences in ``index``, each page counted once more for each use."""
        rows = [self.rows[source].copy() for source in index]
        for row in rows:
            for page in row:
                self.pool.references[page] += 1
        return rows, self.table[np.array(index, np.intp)]

    def reorder(self, index: list[int], longest: int) -> None:
        """Let sequence b be what sequence ``index[b]`` was. No page is copied."""
        rows, table = self._shared(index)
        self.truncate([0] * len(index))
        self.rows[:] = rows
        self.table[...] = table

    def fork(self, index: list[int], longest: int) -> "Pages":
        """Return storage of the sequences in ``index`` that shares their pages."""
        return Pages(self.pool, *self._shared(index), self.page_size)

    def gather(self, lengths: list[int]) -> tuple[Array, Array]:
        """Return all tokens as (batch, kv_heads, longest, head_dim), zeros past the end of a sequence."""
        size, longest = self.page_size, max(lengths, default=0)
        gathered = []
        for store in (self.k, self.v):
            _, heads, _, head_dim = store.shape
            tokens = module_of(store).zeros((len(lengths), heads, longest, head_dim), store.dtype)
            for sequence, (row, length) in enumerate(zip(self.rows, lengths, strict=True)):
                for k, page in enumerate(row):
                    count = min(size, length - k * size)
                    tokens[sequence, :, k * size : k * size + count] = store[page, :, :count]
            gathered.append(tokens)
        return gathered[0], gathered[1]
