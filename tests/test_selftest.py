"""The self-test of ``python -m dualsoft`` on a device: on the emulator here what it does on a card."""

import sys
from types import SimpleNamespace
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from conftest import DEVICES

from dualsoft import __main__ as command
from dualsoft import selftest

pytestmark = pytest.mark.skipif(not DEVICES, reason=str(emulator.why_not()))


@pytest.mark.parametrize("dtype", list(selftest.all_dtypes()))
@pytest.mark.parametrize("backend", DEVICES)
def test_every_check_holds(backend: str, dtype: str) -> None:
    """The backend serves every function that it has kernels for: what it could not run would raise."""
    kinds = {dtype: selftest.all_dtypes()[dtype]}
    checks = list(selftest.run_checks([backend], lambda x: devices.put(backend, x), kinds))
    assert {check.backend for check in checks} == {backend}
    assert not [check for check in checks if not check.share <= 1]
    on_host = {check.function for check in selftest.run_checks(["reference"], None, {"float64": np.float64})}
    assert {check.function for check in checks} == on_host


def test_dtypes_that_the_device_lacks_are_left_out() -> None:
    def asarray(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if x.dtype.name == "bfloat16":
            raise ValueError("Unsupported dtype bfloat16")
        return x

    assert list(selftest.device_dtypes(asarray)) == [name for name in selftest.all_dtypes() if name != "bfloat16"]


def test_a_card_is_tested_beside_the_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its rows stand in the table, a dash where it has no such dtype, and what fails on it counts."""

    def run_checks(names: list[str], asarray: Any = None, kinds: Any = None) -> list[selftest.Check]:
        kinds = kinds or ["float32", "bfloat16"]
        return [
            selftest.Check(name, "softmax", kind, "rows", 2.0 if asarray else 0.5) for name in names for kind in kinds
        ]

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=lambda x: x))
    monkeypatch.setattr(command, "run_checks", run_checks)
    monkeypatch.setattr(command, "device_dtypes", lambda asarray: {"float32": np.float32})
    assert command._self_test(["cpu:x86_64_v2"], has_cuda=False)
    assert not command._self_test(["cpu:x86_64_v2"], has_cuda=True)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  softmax")]
    assert rows == [["softmax", "0.50", "0.50"], ["softmax", "0.50", "0.50"], ["softmax", "2.00", "-"]]
