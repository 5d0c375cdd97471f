"""KVCache: the keys and values of the tokens seen so far, for decoding with attention."""

from typing import Any

import numpy as np

from dualsoft.arrays import Array, as_array, with_device_of
from dualsoft.attention import attention, attention_paged
from dualsoft.cache_arguments import (
    check_capacity,
    counts_of,
    kept_lengths,
    new_tokens,
    options_for_all_slots,
    query_of,
    sequence_index,
    sizes_of,
)
from dualsoft.cache_storage import Pages, Sized, Sizes, Strips, apart, shown, write

_at_home = with_device_of(lambda given: given[0]._storage.k)


class KVCache(Sized):
    """Keys and values of a batch of sequences, which grow by ``append`` and are read by ``attention``.

    The arrays given are copied, never kept. A call that raises has changed nothing, and one that is interrupted (by
    Ctrl-C) leaves the cache as it was, or as the call was to leave it.

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
        When a size is below 1 (``batch`` and ``capacity``: below 0), or all together are more than any memory.

    Notes
    -----
    With pages, memory is a pool of pages, and a table of the pages of each sequence. The pool of a new cache has
    ``batch * ceil(capacity / page_size)`` of them, so that no ``append`` within the capacity lacks one. ``reorder`` and
    ``fork`` copy page numbers and no page: users of a page are counted, and one that is filled in part and used more
    than once is copied by whoever writes to it next. A cache and its forks have one pool, and must stay in one thread
    together. The pool grows (to at least twice its size, which moves it) only where forks have come to need more pages
    than it has. Pages of a cache that is gone, or past a truncation, are used again. See W. Kwon et al., *Efficient
    memory management for large language model serving with PagedAttention*, 2023 (arXiv 2309.06180).

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

    __slots__ = ("__weakref__", "_held", "_lengths", "_longest", "_storage", "_uniform")
    __hash__ = None  # type: ignore[assignment]
    _lengths: np.ndarray[Any, np.dtype[np.int64]] | None

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
        self._sizes = sizes = sizes_of(batch, kv_heads, capacity, head_dim, head_dim_v, dtype, page_size)
        beside = np.empty(0) if like is None else as_array(like, "like")
        kind = Strips if page_size is None else Pages
        self._keep([0] * sizes.batch, kind.empty(sizes, beside))

    def _keep(self, held: list[int], storage: Strips | Pages) -> None:
        longest = max(held, default=0)
        uniform = min(held, default=0) == longest
        # Interruptions come at calls and loops only: all five change or none. The lengths become an array when somebody
        # asks; most steps of a decoding need none.
        self._held, self._longest, self._uniform, self._lengths, self._storage = held, longest, uniform, None, storage

    def _lengths_array(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        if self._lengths is None:
            self._lengths = np.array(self._held, np.int64)
        return self._lengths

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Tokens that each sequence holds: a new NumPy array, int64, of shape (batch,)."""
        return self._lengths_array().copy()

    @property
    def k(self) -> Any:
        """The keys, (batch, kv_heads, longest length, head_dim), read-only and without a copy.

        Past the length of a shorter sequence it may hold anything. A cache with pages has ``k_pages`` instead.
        """
        return shown(self._strips("k").k[:, :, : self._longest])

    @property
    def v(self) -> Any:
        """The values, (batch, kv_heads, longest length, head_dim_v); as ``k``."""
        return shown(self._strips("v").v[:, :, : self._longest])

    @property
    def k_pages(self) -> Any:
        """The keys of the whole pool, (pages, kv_heads, page_size, head_dim), read-only; until the pool next grows."""
        return shown(self._pages("k_pages").k)

    @property
    def v_pages(self) -> Any:
        """The values of the whole pool, (pages, kv_heads, page_size, head_dim_v); as ``k_pages``."""
        return shown(self._pages("v_pages").v)

    @property
    def page_table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The pages of each sequence, (batch, ceil(capacity / page_size)), -1 for none: a new NumPy array, int64."""
        return self._pages("page_table").table.copy()

    @property
    def pages_used(self) -> int:
        """Pages of the pool that hold tokens, of this cache or of those it shares the pool with."""
        pool = self._pages("pages_used").pool
        return len(pool.references) - len(pool.free)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values; with pages those of the whole pool, which forks share."""
        return int(self._storage.k.nbytes + self._storage.v.nbytes)

    def _strips(self, name: str) -> Strips:
        if not isinstance(self._storage, Strips):
            raise AttributeError(f"a KVCache with pages has no {name}: see k_pages, v_pages and page_table")
        self._storage.settle(self._held)
        return self._storage

    def _pages(self, name: str) -> Pages:
        if not isinstance(self._storage, Pages):
            raise AttributeError(f"a KVCache without page_size has no {name}: see k and v")
        self._storage.settle(self._held)
        return self._storage

    @_at_home
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

        Examples
        --------
        >>> import dualsoft, numpy
        >>> cache = dualsoft.KVCache(2, 1, 8, 4, dtype=numpy.float32)
        >>> cache.append(numpy.ones((2, 1, 3, 4)), numpy.ones((2, 1, 3, 4)), lengths=[3, 1])
        >>> cache.lengths.tolist()
        [3, 1]
        """
        sizes, storage = self._sizes, self._storage
        batch, heads, dtype = sizes.batch, sizes.kv_heads, sizes.dtype
        k = new_tokens(k, "k", batch, heads, sizes.head_dim, dtype, storage.k)
        v = new_tokens(v, "v", batch, heads, sizes.head_dim_v, dtype, storage.v)
        tokens = k.shape[2]
        if v.shape[2] != tokens:
            raise ValueError(f"k and v must have the same number of tokens, got {tokens} and {v.shape[2]}")
        k, v = apart(storage, k, v)
        start, end = self._longest, self._longest + tokens
        if lengths is None and self._uniform and type(storage) is Strips and batch and end <= sizes.capacity:
            storage.settle(self._held)
            storage.k[:, :, start:end] = k
            storage.v[:, :, start:end] = v
            self._held, self._longest, self._lengths = [end] * batch, end, None
            return
        counts = [tokens] * batch if lengths is None else counts_of(lengths, tokens, batch)
        check_capacity(self._held, counts, sizes.capacity)
        try:
            write(storage, storage.reserve(self._held, counts), k, v)
            self._keep([length + count for length, count in zip(self._held, counts, strict=True)], storage)
        except BaseException:
            storage.settle(self._held)  # a pool that others share must not wait for the next call
            raise

    @_at_home
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

        Examples
        --------
        >>> import dualsoft, numpy
        >>> cache = dualsoft.KVCache(2, 1, 8, 4, dtype=numpy.float32)
        >>> cache.append(numpy.ones((2, 1, 5, 4)), numpy.ones((2, 1, 5, 4)))
        >>> cache.truncate([5, 2])
        >>> cache.lengths.tolist()
        [5, 2]
        """
        kept = kept_lengths(lengths, self._held)
        self._keep(kept, self._storage)
        self._storage.settle(kept)

    @_at_home
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

        Examples
        --------
        >>> import dualsoft, numpy
        >>> cache = dualsoft.KVCache(3, 1, 8, 4, dtype=numpy.float32, page_size=4)
        >>> cache.append(numpy.ones((3, 1, 4, 4)), numpy.ones((3, 1, 4, 4)), lengths=[4, 3, 2])
        >>> cache.reorder([0, 0, 2])
        >>> cache.lengths.tolist(), cache.pages_used
        ([4, 4, 2], 2)
        """
        index = sequence_index(batch_index, self._sizes.batch, self._sizes.batch)
        if index != list(range(len(index))):
            storage = self._storage.reordered(index, self._held)
            self._keep([self._held[source] for source in index], storage)
            storage.settle(self._held)

    @_at_home
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

        Examples
        --------
        >>> import dualsoft, numpy
        >>> cache = dualsoft.KVCache(1, 1, 8, 4, dtype=numpy.float32, page_size=4)
        >>> cache.append(numpy.ones((1, 1, 3, 4)), numpy.ones((1, 1, 3, 4)))
        >>> both = cache.fork([0, 0])
        >>> both.lengths.tolist(), cache.pages_used
        ([3, 3], 1)
        """
        index = sequence_index(batch_index, self._sizes.batch, None)
        other = object.__new__(KVCache)
        other._sizes = self._sizes._replace(batch=len(index))
        other._keep([self._held[source] for source in index], self._storage.fork(index, self._held))
        return other

    @_at_home
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
            As ``dualsoft.attention``; and when ``q`` is not of this batch, these heads and this head_dim, or
            ``kv_lengths`` is given.

        Notes
        -----
        ``causal`` is False by default, as it is in ``dualsoft.attention``: one new query sees all keys either way. With
        ``causal=True`` the last query sees the last key. Where ``append`` took fewer tokens of some sequences, that is
        not so: pass ``causal_offset=`` the lengths before the ``append``.

        Examples
        --------
        >>> import dualsoft, numpy
        >>> cache = dualsoft.KVCache(1, 1, 8, 2, dtype=numpy.float32)
        >>> cache.append(numpy.zeros((1, 1, 2, 2)), [[[[1.0, 2.0], [3.0, 6.0]]]])
        >>> cache.attention(numpy.ones((1, 1, 1, 2), numpy.float32)).tolist()
        [[[[2.0, 4.0]]]]
        """
        if "kv_lengths" in options:
            raise TypeError("kv_lengths is not an option here: they are the cache's own lengths")
        q = query_of(q, self._sizes, self._storage.k)
        storage, longest = self._storage, self._longest
        if isinstance(storage, Strips):
            storage.settle(self._held)
            if not self._uniform:
                options["kv_lengths"] = self._lengths_array()
            return attention(q, storage.k[:, :, :longest], storage.v[:, :, :longest], **options)
        used = -(-longest // storage.page_size)
        options = options_for_all_slots(options, longest, used * storage.page_size, q)
        return attention_paged(q, storage.k, storage.v, storage.table[:, :used], self._lengths_array(), **options)

    def __copy__(self) -> "KVCache":
        return self.fork(range(self._sizes.batch))

    def __deepcopy__(self, memo: dict[int, Any]) -> "KVCache":
        return self.__copy__()

    @_at_home
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


def _rebuilt(sizes: Sizes, k: Array, v: Array, held: list[int]) -> KVCache:
    cache = KVCache(**sizes._asdict(), like=k)
    cache.append(k, v, held)
    return cache
