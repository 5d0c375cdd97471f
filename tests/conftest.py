"""Backends and ISA levels as test parameters.

A level that this machine cannot run is not collected; pytest's header says why. The same holds for the device backends,
"cuda" and the emulated ones, whose arrays are not NumPy's: only tests that move their arrays ask for these.
``DUALSOFT_TEST_REQUIRE`` (names separated by commas, such as ``cpu:x86_64_v4,cuda``) makes the absence of one of them a
failure.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import devices
import moving
import numpy as np
import pytest

import dualsoft
from dualsoft import isa

LEVELS = tuple(isa.LEVELS)


def reason_not_usable(name: str) -> str | None:
    try:
        with dualsoft.use_backend(name):
            return None
    except (RuntimeError, ValueError) as error:
        return str(error)


REASONS = {name: reason_not_usable(name) for name in ("reference", *(f"cpu:{level}" for level in LEVELS))}
USABLE = [name for name, reason in REASONS.items() if reason is None]
DEVICE_REASONS = devices.reasons()
DEVICES = [name for name, reason in DEVICE_REASONS.items() if reason is None]
REQUIRED = [name for name in os.environ.get("DUALSOFT_TEST_REQUIRE", "").split(",") if name]


def pytest_report_header() -> list[str]:
    lines = [f"dualsoft {dualsoft.__version__}, backends under test: {', '.join(USABLE + DEVICES)}"]
    everything = REASONS | DEVICE_REASONS
    return lines + [f"  not under test: {name}: {reason}" for name, reason in everything.items() if reason is not None]


def pytest_configure() -> None:
    everything = REASONS | DEVICE_REASONS
    missing = {
        name: everything.get(name, "no such backend") for name in REQUIRED if everything.get(name, "") is not None
    }
    if missing:
        why = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise pytest.UsageError(f"DUALSOFT_TEST_REQUIRE asks for what cannot run here: {why}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``, a file stays in one process, which computes once what its tests share."""
    config.option.loadscopereorder = False
    return importlib.import_module("xdist.scheduler").LoadFileScheduling(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``backend`` is every usable one, and on devices too what a module names in ``ON_DEVICES``, with the devices."""
    marked = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "backend" in metafunc.fixturenames and not any("backend" in np.atleast_1d(names) for names in marked):
        wanted = getattr(metafunc.module, "ON_DEVICES", {}).get(metafunc.function.__name__, ())
        also = [name for name in DEVICES if name in wanted or (wanted and name == "cuda")]
        metafunc.parametrize("backend", USABLE + also, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the backend, in use while the test runs. On a device, tests have its arrays moved."""
    chosen = request.function.__name__ in getattr(request.module, "ON_DEVICES", ()) and "key" in request.fixturenames
    if chosen and devices.runs_the_text_of_sm_80(request.param, request.getfixturevalue("key"), on_tensor_cores=True):
        pytest.skip(devices.SAME_TEXT)
    if devices.is_device(request.param):
        for name, loaded in list(sys.modules.items()):
            if name.startswith("test_") and getattr(loaded, "ds", None) is dualsoft:
                monkeypatch.setattr(loaded, "ds", moving.Moving(request.param))
    with dualsoft.use_backend(request.param):
        yield request.param


@pytest.fixture(params=[name for name in USABLE if ":" in name])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """As ``backend``, but only compiled levels."""
    with dualsoft.use_backend(request.param):
        yield request.param


@pytest.fixture
def kernels(level: str) -> ModuleType:
    """The compiled module of the level."""
    return importlib.import_module(f"dualsoft._simd_{level.partition(':')[2]}")
