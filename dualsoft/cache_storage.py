"""Where a ``KVCache`` keeps its tokens: one strip of memory a sequence, or pages of a pool that sequences share.

Both kinds hold ``k`` and ``v`` as (places, kv_heads, slots, head_dim): a place is a sequence or a page. ``reserve``
makes room and says where new tokens go, as runs (sequence, first new token, place, first slot, count). Lengths are the
caller's, trusted, and given to every method that needs them.

Any call may be interrupted, by Ctrl-C at any point of it. So nothing is ever written to a slot within a length, and
what a length does not reach is not there: it is the change of the caller's lengths, or to another storage, that makes
tokens come and go. ``settle`` does what is left to do, and comes first in every method.
"""

import weakref
from typing import Any, NamedTuple

import numpy as np

from dualsoft.arrays import Array, module_of, on_device_of
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


class Sized:
    """The sizes of a cache, to be read."""

    __slots__ = ("_sizes",)
    _sizes: Sizes

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self._sizes.batch

    @property
    def kv_heads(self) -> int:
        """Heads of the keys and values."""
        return self._sizes.kv_heads

    @property
    def capacity(self) -> int:
        """The most tokens that a sequence can hold."""
        return self._sizes.capacity

    @property
    def head_dim(self) -> int:
        """Length of a key."""
        return self._sizes.head_dim

    @property
    def head_dim_v(self) -> int:
        """Length of a value."""
        return self._sizes.head_dim_v

    @property
    def dtype(self) -> DType:
        """Dtype of the keys and values."""
        return self._sizes.dtype

    @property
    def page_size(self) -> int | None:
        """Tokens a page, or None without pages."""
        return self._sizes.page_size


def _empty_pair(places: int, slots: int, sizes: Sizes, like: Array) -> tuple[Array, Array]:
    # Zeros come from the system as untouched memory: they cost nothing until a token is written.
    zeros, shape = module_of(like).zeros, (places, sizes.kv_heads, slots)
    with on_device_of(like):
        return zeros((*shape, sizes.head_dim), sizes.dtype), zeros((*shape, sizes.head_dim_v), sizes.dtype)


def shown(array: Array) -> Array:
    """Return a view that cannot be written, where its kind of array knows of that."""
    view = array[...]
    if isinstance(view, np.ndarray):
        view.setflags(write=False)
    return view


def apart(storage: "Strips | Pages", k: Array, v: Array) -> tuple[Array, Array]:
    """Return new tokens that no write to ``storage`` changes: copies, where they may lie in its memory."""
    # A caller may append what the cache itself shows. That is a view, which an array with memory of its own is not.
    if k.base is None and v.base is None:
        return k, v
    k_store, v_store = storage.k, storage.v
    share = module_of(k_store).may_share_memory
    return (
        k.copy() if share(k, k_store) or share(k, v_store) else k,
        v.copy() if share(v, k_store) or share(v, v_store) else v,
    )


def write(storage: "Strips | Pages", runs: list[Run], k: Array, v: Array) -> None:
    """Copy new tokens, (batch, kv_heads, tokens, head_dim) and ``apart``, to where ``reserve`` said."""
    k_store, v_store = storage.k, storage.v
    for sequence, token, place, slot, count in runs:
        k_store[place, :, slot : slot + count] = k[sequence, :, token : token + count]
        v_store[place, :, slot : slot + count] = v[sequence, :, token : token + count]


class Strips:
    """Each sequence has ``capacity`` slots in a row.

    ``moved`` is what a reorder has decided and not yet written: sequences, and their keys and values to be.
    """

    __slots__ = ("k", "moved", "v")

    def __init__(self, k: Array, v: Array, moved: tuple[list[int], Array, Array] | None = None) -> None:
        self.k, self.v, self.moved = k, v, moved

    @classmethod
    def empty(cls, sizes: Sizes, like: Array) -> "Strips":
        """Return storage for ``sizes.batch`` sequences."""
        return cls(*_empty_pair(sizes.batch, sizes.capacity, sizes, like))

    def reserve(self, lengths: list[int], counts: list[int]) -> list[Run]:
        """Return one run a sequence."""
        self.settle(lengths)
        return [(b, 0, b, length, n) for b, (length, n) in enumerate(zip(lengths, counts, strict=True)) if n]

    def settle(self, lengths: list[int]) -> None:
        """Write what a reorder has decided. Interrupted, it is done again."""
        if self.moved is not None:
            sequences, k, v = self.moved
            self.k[sequences, :, : k.shape[2]] = k
            self.v[sequences, :, : v.shape[2]] = v
            self.moved = None

    def reordered(self, index: list[int], lengths: list[int]) -> "Strips":
        """Return the same storage where sequence b will be, once it settles, what sequence ``index[b]`` was."""
        self.settle(lengths)
        longest, moved = max(lengths), [b for b, source in enumerate(index) if b != source]
        sources = [index[b] for b in moved]
        return Strips(self.k, self.v, (moved, self.k[sources, :, :longest], self.v[sources, :, :longest]))

    def fork(self, index: list[int], lengths: list[int]) -> "Strips":
        """Return a copy of the sequences in ``index``."""
        self.settle(lengths)
        return Strips(*(self._copied(store, index, store.shape[2], lengths) for store in (self.k, self.v)))

    def gather(self, lengths: list[int]) -> tuple[Array, Array]:
        """Return all tokens as (batch, kv_heads, longest, head_dim), zeros past the end of a sequence."""
        self.settle(lengths)
        every, longest = list(range(len(lengths))), max(lengths, default=0)
        k, v = (self._copied(store, every, longest, lengths) for store in (self.k, self.v))
        return k, v

    @staticmethod
    def _copied(store: Array, index: list[int], slots: int, lengths: list[int]) -> Array:
        copy = module_of(store).zeros((len(index), store.shape[1], slots, store.shape[3]), store.dtype)
        for b, source in enumerate(index):
            copy[b, :, : lengths[source]] = store[source, :, : lengths[source]]
        return copy


class Pool:
    """Pages, and how many sequences use each. Caches made by ``fork`` have one pool together."""

    __slots__ = ("_like", "_sizes", "free", "k", "references", "retired", "unsettled", "users", "v")

    def __init__(self, sizes: Sizes, like: Array) -> None:
        self._sizes, self._like = sizes, like
        total = sizes.batch * sizes.pages_per_sequence
        self.k, self.v = self._arrays(total)
        self.references = [0] * total
        self.free = list(range(total - 1, -1, -1))
        self.users: weakref.WeakSet[Pages] = weakref.WeakSet()
        # Page lists of caches that are gone. Their finalizers may run in the middle of anything, so they only leave
        # word here.
        self.retired: list[list[list[int]]] = []
        # True while counts change; found True, the call that changed them was interrupted, and they may be wrong.
        self.unsettled = False

    def _arrays(self, total: int) -> tuple[Array, Array]:
        return _empty_pair(total, self._sizes.page_size or 1, self._sizes, self._like)

    def settle(self) -> None:
        """Free the pages of caches that are gone; count anew after an interruption."""
        if self.unsettled:
            self._recount()
        elif self.retired:
            self.unsettled = True
            while self.retired:
                for pages in self.retired.pop():
                    for page in pages:
                        self.drop(page)
            self.unsettled = False

    def _recount(self) -> None:
        """Count the uses of each page in the page lists, which an interruption leaves right."""
        users = list(self.users)  # none of these can go, and retire, before the end
        self.retired.clear()
        references = [0] * len(self.references)
        for user in users:
            for row in user.rows:
                for page in row:
                    references[page] += 1
        free = [page for page in range(len(references) - 1, -1, -1) if not references[page]]
        self.references, self.free, self.unsettled = references, free, False

    def reserve(self, wanted: int) -> None:
        """See to it that ``wanted`` pages are free; the pool grows, to at least twice its size, where they are not."""
        if wanted <= len(self.free):
            return
        before = len(self.references)
        total = max(2 * before, before + wanted - len(self.free))
        k, v = self._arrays(total)
        k[:before], v[:before] = self.k, self.v
        references = self.references + [0] * (total - before)
        free = [*range(total - 1, before - 1, -1), *self.free]
        # Interruptions come at calls and loops only: all four change or none.
        self.k, self.v, self.references, self.free = k, v, references, free

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

    ``table`` is the same as an array, (batch, pages_per_sequence), -1 where no page is used. Both may go on past what a
    length needs, after a call that was interrupted, until they settle.
    """

    __slots__ = ("__weakref__", "page_size", "pool", "rows", "table")

    def __init__(self, pool: Pool, rows: list[list[int]], table: Table, page_size: int) -> None:
        self.pool, self.rows, self.table, self.page_size = pool, rows, table, page_size
        weakref.finalize(self, pool.retired.append, rows).atexit = False
        pool.users.add(self)

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
        self.settle(lengths)
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
        pool.unsettled = True
        for sequence, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            self._extend(runs, sequence, length, count)
        pool.unsettled = False
        return runs

    def _extend(self, runs: list[Run], sequence: int, length: int, count: int) -> None:
        size, pool, row = self.page_size, self.pool, self.rows[sequence]
        slot, token = length % size, 0
        if slot and count and pool.references[row[-1]] > 1:
            last, page = len(row) - 1, pool.split(row[-1], slot)
            row[last] = self.table[sequence, last] = page  # no call in between: both change or neither
        while token < count:
            if not slot:
                page = pool.take()
                row.append(page)  # before the table: what settles goes by the row
                self.table[sequence, len(row) - 1] = page
            piece = min(size - slot, count - token)
            runs.append((sequence, token, row[-1], slot, piece))
            slot, token = 0, token + piece

    def settle(self, lengths: list[int]) -> None:
        """Give back the pages past each length, and those of caches that are gone."""
        pool, size = self.pool, self.page_size
        pool.settle()
        for sequence, (row, length) in enumerate(zip(self.rows, lengths, strict=True)):
            used = -(-length // size)
            if len(row) > used:
                pool.unsettled = True
                self.table[sequence, used:] = -1
                for page in row[used:]:
                    pool.drop(page)
                del row[used:]
                pool.unsettled = False

    def fork(self, index: list[int], lengths: list[int]) -> "Pages":
        """Return storage of the sequences in ``index`` that shares their pages, each used once more for each."""
        self.settle(lengths)
        pool, rows = self.pool, [self.rows[source].copy() for source in index]
        table = self.table[np.array(index, np.intp)]
        pool.unsettled = True
        for row in rows:
            for page in row:
                pool.references[page] += 1
        forked = Pages(pool, rows, table, self.page_size)
        pool.unsettled = False
        return forked

    reordered = fork

    def gather(self, lengths: list[int]) -> tuple[Array, Array]:
        """Return all tokens as (batch, kv_heads, longest, head_dim), zeros past the end of a sequence."""
        self.settle(lengths)
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
