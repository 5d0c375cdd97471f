"""The self-test of ``python -m dualsoft``: on the emulator here what it does on a card, and that it can fail."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from conftest import DEVICES

from dualsoft import __main__ as command
from dualsoft import selftest, use_backend
from dualsoft.selftest_arrays import Calls
from dualsoft.selftest_gradients import attention_gradient_shares
from dualsoft.selftest_losses import gradient_shares, linear_shares, loss_shares, selection_shares

needs_device = pytest.mark.skipif(not DEVICES, reason=str(emulator.why_not()))


EMULATED = ("float16", "float32", "bfloat16")
"""By architecture."""


def chosen() -> Iterator[tuple[str, str]]:
    """All dtypes on a card; on the emulator, which takes a minute for one, each architecture has another."""
    one = {f"{devices.EMULATED}:{name}": dtype for name, dtype in zip(devices.ARCHITECTURES, EMULATED, strict=True)}
    for backend in DEVICES:
        for dtype in selftest.all_dtypes():
            if one.get(backend, dtype) == dtype:
                yield backend, dtype


@needs_device
@pytest.mark.parametrize(("backend", "dtype"), list(chosen()))
def test_every_check_holds(backend: str, dtype: str) -> None:
    """The backend serves every public function: what it could not run would raise."""
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

    cp = SimpleNamespace(asarray=lambda x: x)
    monkeypatch.setattr(command, "require", lambda name: SimpleNamespace(module=lambda: cp))
    monkeypatch.setattr(command, "run_checks", run_checks)
    monkeypatch.setattr(command, "device_dtypes", lambda asarray: {"float32": np.float32})
    assert command._self_test(["cpu:x86_64_v2"], has_cuda=False)
    assert not command._self_test(["cpu:x86_64_v2"], has_cuda=True)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  softmax")]
    assert rows == [["softmax", "0.50", "0.50"], ["softmax", "0.50", "0.50"], ["softmax", "2.00", "-"]]


class Wrong(Calls):
    """Calls whose answers are off by 1 %, or by one place."""

    @staticmethod
    def get(value: Any) -> Any:
        right = Calls.get(value)
        if isinstance(right, tuple):
            return tuple(map(Wrong.get, right))
        return right if right is None else right + 1 if right.dtype.kind == "i" else (right * 1.01).astype(right.dtype)

    def __call__(self, function: Any, *arguments: Any, **options: Any) -> Any:
        return self.get(function(*arguments, **options))


CHECKS = (selection_shares, loss_shares, linear_shares, gradient_shares, attention_gradient_shares)


@pytest.mark.parametrize("shares", CHECKS, ids=lambda shares: shares.__name__)
def test_every_check_can_fail(shares: Any) -> None:
    """An answer that is off by 1 % fails every check of float32 and float64, and the right one none."""
    for dtype in (np.float32, np.float64):
        with use_backend("reference"):
            right = list(shares(np.dtype(dtype), Calls()))
            wrong = list(shares(np.dtype(dtype), Wrong()))
        assert all(share <= 1 for _, _, share in right)
        # what has no size, an index of -1 or a sum that is 0, is in no check alone
        assert all(share > 1 for _, _, share in wrong), wrong
