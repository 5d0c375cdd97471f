"""KVCache: the keys and values of the tokens seen so far, for decoding with attention."""

from typing import Any

import numpy as np

from dualsoft.arrays import Array, as_array
from dualsoft.attention import attention, attention_paged
from dualsoft.cache_arguments import (
    check_capacity,
    counts_of,
    for_all_slots,
    kept_lengths,
    new_tokens,
    sequence_index,
    sizes_of,
)
from dualsoft.cache_storage import Pages, Sizes, Strips, write


class KVCache:
    """Keys and values of a batch of sequences, which grow by ``append`` and are read by ``attention``.

    The arrays given are copied, never kept. A call that raises has changed nothing.

    Parameters
    ----------
    batch : int
        Number of sequences.
    kv_heads : int
        Heads of the keys and values.
    capacity : int
        The most tokens that a sequence can hold. No result depends on it.
    head_dim : int
        Length of a key.
    head_dim_v : int, optional
        Length of a value; by default ``head_dim``.
    dtype : dtype
        float16, bfloat16, float32 or float64. What is appended in another dtype is rounded to it.
    page_size : int, optional
        Tokens a page. By default there are no pages: each sequence has one strip of memory of ``capacity`` tokens.
    like : ndarray, optional
        An array of the wanted kind; NumPy's by default.

    Raises
    ------
    TypeError
        When a size is not an integer, or the dtype not one of the four.
    ValueError
        When a size is too small: below 1, or below 0 for ``batch`` and ``capacity``.

    Notes
    -----
    With pages, memory is a pool of pages, and a table of the pages of each sequence. The pool of a new cache has
    ``batch * ceil(capacity / page_size)`` of them, so that no ``append`` within the capacity lacks one. ``reorder`` and
    ``fork`` copy page numbers and no page: users of a page are counted, and one that is filled in part and used more
    than once is copied by whoever writes to it next. A cache and its forks have one pool, and must stay in one thread
    together. The pool grows (to at least twice its size, which moves it) only where forks have come to need more pages
    than it has. Pages of a cache that is gone, or past a truncation, are used again. See W.
    Kwon et al., *Efficient memory management for large language model serving with PagedAttention*, 2023 (arXiv
    2309.06180).

    Lengths are kept on the host. Copying (``copy.copy``, ``copy.deepcopy``) is ``fork`` of all sequences. Pickles hold
    the tokens, not the pages.

    Examples
    --------
    >>> import dualsoft, numpy
    >>> cache = dualsoft.KVCache(1, 2, 16, 4, dtype=numpy.float32)
    >>> rng = numpy.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((1, 2, 3, 4), numpy.float32) for _ in "qkv")
    >>> whole = dualsoft.attention(q, k, v, causal=True)
    >>> steps = []
    >>> for i in range(3):
    ...     cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
    ...     steps.append(cache.attention(q[:, :, i : i + 1]))
    >>> bool(numpy.allclose(numpy.concatenate(steps, axis=2), whole, rtol=1e-5))
    True
    >>> cache
    KVCache(batch=1, kv_heads=2, capacity=16, head_dim=4, dtype=float32, lengths=[3])
    """

    __slots__ = ("_held", "_lengths", "_longest", "_sizes", "_storage", "_uniform")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        head_dim_v: int | None = None,
        dtype: Any,
        page_size: int | None = None,
        like: Any = None,
    ) -> None:
        sizes = sizes_of(batch, kv_heads, capacity, head_dim, head_dim_v, dtype, page_size)
        beside = np.empty(0) if like is None else as_array(like, "like")
        kind = Strips if page_size is None else Pages
        self._keep(sizes, kind.empty(sizes, beside), [0] * sizes.batch)

    def _keep(self, sizes: Sizes, storage: Strips | Pages, held: list[int]) -> None:
        self._sizes = sizes
        self._storage = storage
        self._set_lengths(held)

    def _set_lengths(self, held: list[int]) -> None:
        self._held = held
        self._longest = longest = max(held, default=0)
        self._uniform = all(length == longest for length in held)
        # As an array when somebody asks: most steps of a decoding need none.
        self._lengths: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def _lengths_array(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        if self._lengths is None:
            self._lengths = np.array(self._held, np.int64)
        return self._lengths

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
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the keys and values."""
        return self._sizes.dtype

    @property
    def page_size(self) -> int | None:
        """Tokens a page, or None without pages."""
        return self._sizes.page_size

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Tokens that each sequence holds: a new NumPy array, int64, of shape (batch,)."""
        return self._lengths_array().copy()

    @property
    def k(self) -> Any:
        """The keys, (batch, kv_heads, longest length, head_dim), read-only and without a copy.

        Past the length of a shorter sequence it may hold anything. A cache with pages has ``k_pages`` instead.
        """
        return _shown(self._strips("k").k[:, :, : self._longest])

    @property
    def v(self) -> Any:
        """The values, (batch, kv_heads, longest length, head_dim_v); as ``k``."""
        return _shown(self._strips("v").v[:, :, : self._longest])

    @property
    def k_pages(self) -> Any:
        """The keys of the whole pool, (pages, kv_heads, page_size, head_dim), read-only; until the pool next grows."""
        return _shown(self._pages("k_pages").k)

    @property
    def v_pages(self) -> Any:
        """The values of the whole pool, (pages, kv_heads, page_size, head_dim_v); as ``k_pages``."""
        return _shown(self._pages("v_pages").v)

    @property
    def page_table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The pages of each sequence, (batch, ceil(capacity / page_size)), -1 for none: a new NumPy array, int64."""
        return self._pages("page_table").table.copy()

    @property
    def pages_used(self) -> int:
        """Pages of the pool that hold tokens, of this cache or of those it shares the pool with."""
        pool = self._pages("pages_used").pool
        pool.collect()
        return len(pool.references) - len(pool.free)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values; with pages those of the whole pool, which forks share."""
        return int(self._storage.k.nbytes + self._storage.v.nbytes)

    def _strips(self, name: str) -> Strips:
        if not isinstance(self._storage, Strips):
            raise AttributeError(f"a KVCache with pages has no {name}: see k_pages, v_pages and page_table")
        return self._storage

    def _pages(self, name: str) -> Pages:
        if not isinstance(self._storage, Pages):
            raise AttributeError(f"a KVCache without page_size has no {name}: see k and v")
        return self._storage

    def append(self, k: Any, v: Any, lengths: Any = None) -> None:
        """Add tokens at the end of the sequences.

        Parameters
        ----------
        k : array_like
            (batch, kv_heads, tokens, head_dim).
        v : array_like
            (batch, kv_heads, tokens, head_dim_v).
        lengths : int or array_like of int, optional
            How many of the tokens each sequence gets, from the first on; by default all of them. Integers of the host.

        Raises
        ------
        ValueError
            For shapes that do not fit, a length outside [0, tokens], and past the capacity. Nothing is written then.
        TypeError
            For dtypes and kinds of array that are not taken.
        """
        sizes, storage = self._sizes, self._storage
        batch, heads, dtype = sizes.batch, sizes.kv_heads, sizes.dtype
        k = new_tokens(k, "k", batch, heads, sizes.head_dim, dtype, storage.k)
        v = new_tokens(v, "v", batch, heads, sizes.head_dim_v, dtype, storage.v)
        tokens = k.shape[2]
        if v.shape[2] != tokens:
            raise ValueError(f"k and v must have the same number of tokens, got {tokens} and {v.shape[2]}")
        start, end = self._longest, self._longest + tokens
        if lengths is None and self._uniform and batch and type(storage) is Strips and end <= sizes.capacity:
            storage.k[:, :, start:end] = k
            storage.v[:, :, start:end] = v
            self._longest, self._held, self._lengths = end, [end] * batch, None
            return
        counts = [tokens] * batch if lengths is None else counts_of(lengths, tokens, batch)
        check_capacity(self._held, counts, sizes.capacity)
        write(storage, storage.reserve(self._held, counts), k, v)
        self._set_lengths([length + count for length, count in zip(self._held, counts, strict=True)])

    def truncate(self, lengths: Any) -> None:
        """Forget all but the first ``lengths[b]`` tokens of each sequence.

        Parameters
        ----------
        lengths : int or array_like of int
            At least 0 and at most what the sequence holds. Integers of the host; one alone is for all sequences.

        Raises
        ------
        ValueError
            When a sequence does not hold as many, or there are more or fewer lengths than sequences.
        TypeError
            When they are not integers.
        """
        kept = kept_lengths(lengths, self._held)
        self._storage.truncate(kept)
        self._set_lengths(kept)

    def reorder(self, batch_index: Any) -> None:
        """Let each sequence b be what sequence ``batch_index[b]`` was: the surviving beams of a beam search.

        Parameters
        ----------
        batch_index : array_like of int
            Of shape (batch,), repetitions allowed. Integers of the host; negative ones count from the end.

        Raises
        ------
        ValueError
            When there is no such sequence, or the shape is another one.
        TypeError
            When they are not integers.
        """
        index = sequence_index(batch_index, self._sizes.batch, self._sizes.batch)
        self._storage.reorder(index, self._longest)
        self._set_lengths([self._held[source] for source in index])

    def fork(self, batch_index: Any) -> "KVCache":
        """Return a new cache whose sequence i starts as a copy of sequence ``batch_index[i]``; this one stays as it is.

        With pages, the two share them until one writes.

        Parameters
        ----------
        batch_index : array_like of int
            Any number of sequences, repetitions allowed. Integers of the host; negative ones count from the end.

        Returns
        -------
        KVCache
            Of the batch ``len(batch_index)``, all else as here.

        Raises
        ------
        ValueError
            When there is no such sequence.
        TypeError
            When they are not integers.
        """
        index = sequence_index(batch_index, self._sizes.batch, None)
        other = object.__new__(KVCache)
        other._keep(
            self._sizes._replace(batch=len(index)),
            self._storage.fork(index, self._longest),
            [self._held[source] for source in index],
        )
        return other

    def attention(self, q: Any, **options: Any) -> Any:
        """Compute attention of queries to the tokens held, as ``dualsoft.attention`` with ``kv_lengths``.

        Parameters
        ----------
        q : array_like
            (batch, heads, queries, head_dim); heads a multiple of ``kv_heads``.
        **options
            Those of ``dualsoft.attention`` but ``kv_lengths``: ``causal``, ``window``, ``return_lse`` and so on. For
            ``mask``, ``bias`` and ``block_mask`` the number of keys is that of the longest sequence, with pages too.

        Returns
        -------
        ndarray or tuple
            (batch, heads, queries, head_dim_v); with ``return_lse``, the pair ``(out, lse)``.

        Raises
        ------
        ValueError, TypeError
            As ``dualsoft.attention``; and when the batch of ``q`` is another one, or ``kv_lengths`` is given.

        Notes
        -----
        ``causal`` is False by default, as it is in ``dualsoft.attention``: one new query sees all keys either way. With
        ``causal=True`` the last query sees the last key. Where ``append`` took fewer tokens of some sequences, that is
        not so: pass ``causal_offset=`` the lengths before the ``append``.
        """
        if "kv_lengths" in options:
            raise TypeError("kv_lengths is not an option here: they are the cache's own lengths")
        q = as_array(q, "q")
        if q.ndim != 4 or q.shape[0] != self._sizes.batch:
            raise ValueError(
                f"q must have the shape (batch, heads, queries, head_dim) with the cache's batch of "
                f"{self._sizes.batch}, got {q.shape}"
            )
        storage, longest = self._storage, self._longest
        if isinstance(storage, Strips):
            if not self._uniform:
                options["kv_lengths"] = self._lengths_array()
            return attention(q, storage.k[:, :, :longest], storage.v[:, :, :longest], **options)
        used = -(-longest // storage.page_size)
        slots = used * storage.page_size
        if slots != longest:
            for name in ("mask", "bias", "block_mask"):
                if options.get(name) is not None:
                    options[name] = for_all_slots(options[name], name, longest, slots)
        return attention_paged(q, storage.k, storage.v, storage.table[:, :used], self._lengths_array(), **options)

    def __copy__(self) -> "KVCache":
        return self.fork(range(self._sizes.batch))

    def __deepcopy__(self, memo: dict[int, Any]) -> "KVCache":
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self._sizes, *self._storage.gather(self._held), self._held)

    def __repr__(self) -> str:
        sizes, value_dim, pages = self._sizes, "", ""
        if sizes.head_dim_v != sizes.head_dim:
            value_dim = f"head_dim_v={sizes.head_dim_v}, "
        if sizes.page_size is not None:
            pages = f"page_size={sizes.page_size}, "
        return (
            f"KVCache(batch={sizes.batch}, kv_heads={sizes.kv_heads}, capacity={sizes.capacity}, "
            f"head_dim={sizes.head_dim}, {value_dim}dtype={sizes.dtype}, {pages}lengths={self._held})"
        )


def _shown(array: Array) -> Array:
    view = array[...]
    if isinstance(view, np.ndarray):
        view.setflags(write=False)
    return view


def _rebuilt(sizes: Sizes, k: Array, v: Array, held: list[int]) -> KVCache:
    cache = KVCache(**sizes._asdict(), like=k)
    cache.append(k, v, held)
    return cache
