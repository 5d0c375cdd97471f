"""Calls of a KVCache that end in the middle: by a signal at any point, or by memory that there is not."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from cache_model import Model, check, check_pages, new, tokens

import dualsoft as ds
import dualsoft.cache as cache_module
from dualsoft import cache_storage

PAGES = pytest.mark.parametrize("page_size", [None, 4], ids=["strips", "pages"])
CAPACITY = 24
Pair = tuple[ds.KVCache, Model]


def family(page_size: int | None) -> list[Pair]:
    """A cache of three sequences and a fork of it; pages filled in part are used twice."""
    rng = np.random.default_rng(0)
    cache, model = new(3, CAPACITY, page_size), Model(3)
    for counts in ([5, 2, 9], [1, 3, 0]):
        k, v = tokens(rng, 3, max(counts))
        cache.append(k, v, counts)
        model.append(k, v, counts)
    index = [0, 2]
    return [(cache, model), (cache.fork(index), model.picked(index))]


K, V = tokens(np.random.default_rng(1), 3, 7)


def appended(pair: Pair, *counts: int) -> None:
    k, v = K[: len(counts)], V[: len(counts)]
    pair[0].append(k, v, counts)
    pair[1].append(k, v, counts)


CALLS: dict[str, tuple[Callable[[ds.KVCache], Any], Callable[[Model], Any]]] = {
    "append": (lambda c: c.append(K, V), lambda m: m.append(K, V, [7] * 3)),
    "ragged append": (lambda c: c.append(K, V, [1, 0, 7]), lambda m: m.append(K, V, [1, 0, 7])),
    "truncate": (lambda c: c.truncate([1, 0, 9]), lambda m: m.truncate([1, 0, 9])),
    "reorder": (lambda c: c.reorder([2, 2, 0]), lambda m: m.reorder([2, 2, 0])),
    "fork": (lambda c: c.fork([1, 1, 0, 2]), lambda m: None),
}


def interrupted(call: Callable[[], Any], at: int) -> bool:
    """Raise KeyboardInterrupt at the ``at``-th step, a line or a return, inside the cache; whether it came to that."""
    steps = 0

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == at:
            raise KeyboardInterrupt
        return step

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return step if Path(frame.f_code.co_filename).stem in ("cache", "cache_storage") else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def as_before_or_after(cache: ds.KVCache, before: Model, after: Model) -> Model:
    """What the cache holds must be one of the two."""
    model = after if cache.lengths.tolist() == after.lengths else before
    check(cache, model)
    return model


def goes_on(pairs: list[Pair]) -> None:
    """All caches still hold what they should, and after more calls too."""
    for pair in pairs:
        check(*pair)
    for pair in pairs:
        appended(pair, *range(pair[0].batch))
    for pair in pairs:
        check(*pair)
    check_pages(pairs)
    cache, model = pairs[0]
    cache.reorder([1, 0, 1])
    model.reorder([1, 0, 1])
    appended(pairs[0], 0, 1, 2)
    for pair in pairs:
        check(*pair)
    check_pages(pairs)


@PAGES
@pytest.mark.parametrize("what", CALLS)
def test_at_every_step(page_size: int | None, what: str) -> None:
    call, on_model = CALLS[what]
    at = 0
    while True:
        at += 1
        pairs = family(page_size)
        cache, before = pairs[0]
        after = before.picked(range(3))
        on_model(after)
        stopped = interrupted(lambda cache=cache: call(cache), at)  # type: ignore[misc]
        pairs[0] = (cache, as_before_or_after(cache, before, after))
        goes_on(pairs)
        if not stopped:
            break
    assert at > 10, "nothing was interrupted"


@PAGES
@pytest.mark.parametrize("after", ["attention", "append", "truncate", "reorder", "fork", "copy"])
def test_what_follows_an_interrupted_reorder(page_size: int | None, after: str) -> None:
    """Whatever the first call is that comes after it, at whichever step it stopped."""
    q, at, stopped = np.ones((3, 2, 1, 3), np.float32), 0, True
    while stopped:
        at += 1
        cache, before = family(page_size)[0]
        stopped = interrupted(lambda cache=cache: cache.reorder([2, 2, 0]), at)  # type: ignore[misc]
        reordered = before.picked([2, 2, 0])
        model = reordered if cache._held == reordered.lengths else before
        if after == "attention":
            fresh = new(3, CAPACITY, page_size)
            for b, (k, v) in enumerate(model.sequences):
                piece_k, piece_v = (np.repeat(x[None], 3, axis=0) for x in (k, v))
                fresh.append(piece_k, piece_v, [k.shape[1] * (b == i) for i in range(3)])
            np.testing.assert_array_equal(cache.attention(q), fresh.attention(q))
        elif after == "append":
            appended((cache, model), 7, 7, 7)
        elif after == "truncate":
            cache.truncate(2)
            model.truncate([2, 2, 2])
        elif after == "reorder":
            cache.reorder([1, 0, 0])
            model.reorder([1, 0, 0])
        else:
            cache = cache.fork([0, 1, 2]) if after == "fork" else pickle.loads(pickle.dumps(cache))
        check(cache, model)


def test_while_the_pool_grows() -> None:
    at = 0
    while True:
        at += 1
        pairs = family(4)
        forks = [pairs[0][0].fork([0, 1, 2]) for _ in range(2)]
        for fork in forks:
            fork.append(K, V)
        pairs += [(fork, pairs[0][1].picked(range(3))) for fork in forks]
        for _, model in pairs[2:]:
            model.append(K, V, [7] * 3)
        cache, before = pairs[2]
        after = before.picked(range(3))
        after.append(K, V, [7] * 3)
        stopped = interrupted(lambda cache=cache: cache.append(K, V), at)  # type: ignore[misc]
        pairs[2] = (cache, as_before_or_after(cache, before, after))
        for pair in pairs:
            check(*pair)
        check_pages(pairs)
        if not stopped:
            break


@PAGES
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_append_that_raises_has_changed_nothing(
    page_size: int | None, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = family(page_size)

    def half(storage: Any, runs: list[Any], k: Any, v: Any) -> None:
        cache_storage.write(storage, runs[:1], k, v)
        raise error

    monkeypatch.setattr(cache_module, "write", half)
    used = 0 if page_size is None else pairs[0][0].pages_used
    with pytest.raises(error):
        pairs[0][0].append(K, V, [7, 6, 5])
    monkeypatch.undo()
    if page_size is not None:
        # Two pages were shared, and may stay copied; those for the new tokens are free again.
        assert used <= pairs[1][0].pages_used <= used + 2
    check_pages(pairs)
    goes_on(pairs)


def test_interrupted_while_it_undoes_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = family(4)

    def fail(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache_module, "write", fail)
    monkeypatch.setattr(cache_storage.Pool, "drop", fail)
    with pytest.raises(KeyboardInterrupt):
        pairs[0][0].append(K, V)
    monkeypatch.undo()
    # the other cache is the next to be used
    appended(pairs[1], 7, 7)
    goes_on(pairs)


@PAGES
def test_no_memory_for_copies(page_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for those of a fork nor for a pool that must grow."""
    pairs = family(page_size)

    def fail(*given: Any) -> None:
        raise MemoryError

    if page_size is None:
        monkeypatch.setattr(cache_storage.Strips, "_copied", fail)
        with pytest.raises(MemoryError):
            pairs[0][0].fork([1, 2, 0])
    else:
        monkeypatch.setattr(cache_storage, "_empty_pair", fail)
        many = pairs[0][0].fork([0, 1, 2] * 8)
        with pytest.raises(MemoryError):
            many.append(np.tile(K, (8, 1, 1, 1)), np.tile(V, (8, 1, 1, 1)))
        del many
    monkeypatch.undo()
    check_pages(pairs)
    goes_on(pairs)
