"""The kernels of losses and gradients on the emulator: small calls against the oracle, and mistakes that must show."""

from collections.abc import Iterator
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from cuda_loss_cases import CALLS, MUTATIONS
from cuda_mistakes import WRONG
from placed import Placed

from dualsoft.backends import cuda, nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
SOURCES = ("losses.cu", "totals.cu", "gradients.cu", "loss_columns.cu", "gradient_columns.cu")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    assert CALLS[name].wrong(Placed(NAME)) is None


class Planted(Placed):
    """The backend ``cuda`` on arrays of the emulator."""

    def _put(self, x: Any) -> Any:
        return devices.put(NAME, x)


def seen_in(name: str) -> str | None:
    """How a mistake shows in a call: the kinds of faults, or `WRONG`; None if it does not."""
    try:
        return None if CALLS[name].wrong(Planted("cuda")) is None else WRONG
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
    for call in mutation.calls:
        how = seen_in(call)
        assert how is not None, f"{call}: nobody sees it"
        assert any(sign in how for sign in mutation.signs), f"{call}: seen as {how}"
