"""The kernels of losses and gradients on the emulator: small calls against the oracle, and mistakes that must show."""

from collections.abc import Iterator
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from cases import normal
from cuda_loss_cases import CALLS, MUTATIONS, SMOOTHED, Call, gradient, labels, loss, soft
from cuda_mistakes import WRONG
from moving import LOSSES, Moving

from dualsoft.backends import cuda, cuda_columns, cuda_losses, cuda_rows, nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
SECTOR = 32
SOURCES = ("losses.cu", "totals.cu", "gradients.cu", "loss_columns.cu", "gradient_columns.cu")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    assert CALLS[name].wrong(Moving(NAME, LOSSES)) is None


# ------------------------------------------------------------------ sectors
ROWS, PIXELS, HALVES = normal("f32", 8, 1024), normal("f32", 2, 21, 64, 8), normal("f16", 40, 64)
LONG = normal("f32", 2, 16384)  # two segments a row


def beside(x: Any) -> Any:
    return np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype)


MOVED = {
    "indices": (loss(ROWS, labels(ROWS)), 1, 0),
    "indices, smoothed": (loss(ROWS, labels(ROWS), **SMOOTHED), 1, 0),
    "probabilities": (loss(ROWS, soft(ROWS), **SMOOTHED), 2, 0),
    "indices, long": (loss(LONG, labels(LONG), **SMOOTHED), 1, 0),
    "indices, pixels": (loss(PIXELS, labels(PIXELS, 1), 1), 1, 0),
    "indices, pixels, smoothed": (loss(PIXELS, labels(PIXELS, 1), 1, **SMOOTHED), 1, 0),
    "probabilities, pixels": (loss(PIXELS, soft(PIXELS), 1), 2, 0),
    "indices, columns of halves": (loss(HALVES, labels(HALVES, 0), 0), 1, 0),
    "gradient": (gradient(ROWS, labels(ROWS)), 1, 1),
    "gradient, probabilities": (gradient(ROWS, soft(ROWS)), 2, 1),
    "gradient, long": (gradient(LONG, labels(LONG)), 1, 1),
    "gradient, pixels": (gradient(PIXELS, labels(PIXELS, 1), 1), 1, 1),
    "gradient, probabilities, pixels": (gradient(PIXELS, soft(PIXELS), 1), 2, 1),
    "softmax": (Call("softmax_backward", ROWS, beside(ROWS)), 2, 1),
    # of a long row what is still in registers after the sum, its last segment, is not read again
    "softmax, long": (Call("softmax_backward", LONG, beside(LONG)), 3, 1),
    "softmax, pixels": (Call("softmax_backward", PIXELS, beside(PIXELS), 1), 2, 1),
    "log_softmax, pixels": (Call("log_softmax_backward", PIXELS, beside(PIXELS), 1), 2, 1),
    "logsumexp": (Call("logsumexp_backward", ROWS), 1, 1),
    "logsumexp, pixels": (Call("logsumexp_backward", PIXELS, None, 1), 1, 1),
}
"""Calls with how many operands of the size of x are read and written; all of one size."""


@pytest.mark.parametrize("name", MOVED)
def test_each_sector_is_moved_once(name: str) -> None:
    """Besides, a row has a few numbers, and the element at its label is looked at once more."""
    call, read, written = MOVED[name]
    size = 16 if call.axis == -1 else call.x.dtype.itemsize
    emulator.profile()
    with emulator.settings(profile=True):
        call.make(Moving(NAME, LOSSES))
    found = [row for row in emulator.profile() if (row.space, row.bytes) == ("global", size)]
    sectors, rows = call.x.nbytes // SECTOR, call.x.size // call.x.shape[call.axis]
    of_labels = rows if size < 16 and not np.issubdtype(np.asarray(call.beside).dtype, np.floating) else 0
    loads = sum(row.units for row in found if row.operation == "load")
    assert read * sectors <= loads <= read * sectors + of_labels
    losses = rows * call.x.dtype.itemsize // SECTOR if size < 16 and not written else 0
    stores = sum(row.units for row in found if row.operation == "store")
    assert written * sectors <= stores <= written * sectors + losses


# ------------------------------------------------------------------ bits
def fewer_blocks(patch: pytest.MonkeyPatch) -> None:
    for module in (cuda_rows, cuda_columns):
        patch.setattr(module, "MOST_BLOCKS", 2)


def nothing_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuda_columns.Tiles, "keeping", lambda tiles, limit, operands=1: tiles)


def a_block_a_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cuda_losses, "_ENOUGH_BLOCKS", 1)


FAR = LONG + np.float32(1e4)
WAYS = {
    "rows": (loss(ROWS[:, :40], labels(ROWS[:, :40])), fewer_blocks),
    "parts": (loss(LONG, labels(LONG), **SMOOTHED), fewer_blocks),
    "columns": (loss(HALVES, labels(HALVES, 0), 0, **SMOOTHED), fewer_blocks),
    "gradients of columns": (gradient(HALVES, labels(HALVES, 0), 0, **SMOOTHED), fewer_blocks),
    "columns that are not kept": (Call("softmax_backward", HALVES, beside(HALVES), 0), nothing_kept),
    "a long row": (gradient(LONG, labels(LONG), **SMOOTHED), a_block_a_row),
    "a long row, refined": (gradient(FAR, labels(FAR))._replace(rounds_lse=True), a_block_a_row),
}


@pytest.mark.parametrize("name", WAYS)
def test_how_the_work_is_shared_out_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, patch = WAYS[name]
    want = call.make(Moving(NAME, LOSSES))
    patch(monkeypatch)
    assert call.make(Moving(NAME, LOSSES)).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["loss, long soft", "loss, columns", "softmax, columns", "gradient, images"])
def test_the_order_of_threads_changes_no_bit(name: str) -> None:
    want = CALLS[name].make(Moving(NAME, LOSSES)).tobytes()
    for way in ({"schedule": "descending"}, {"schedule": "random", "seed": 1, "preempt": True}):
        with emulator.settings(**way):
            assert CALLS[name].make(Moving(NAME, LOSSES)).tobytes() == want, way


# ------------------------------------------------------------------ planted mistakes
def seen_in(name: str) -> str | None:
    """How a mistake shows in a call: the kinds of faults, or `WRONG`; None if it does not."""
    try:
        return None if CALLS[name].wrong(Moving("cuda", LOSSES)) is None else WRONG
    except emulator.KernelFault as fault:
        return ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, assemble = MUTATIONS[name], nvrtc.assemble
    assert any(mutation.old in assemble(source) for source in SOURCES), (
        "the kernels have changed, and this test with them"
    )
    monkeypatch.setattr(nvrtc, "assemble", lambda source: assemble(source).replace(mutation.old, mutation.new))
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    monkeypatch.setitem(devices._MODULES, "cuda", devices.module(NAME))
    for call in mutation.calls:
        how = seen_in(call)
        assert how is not None, f"{call}: nobody sees it"
        assert any(sign in how for sign in mutation.signs), f"{call}: seen as {how}"
