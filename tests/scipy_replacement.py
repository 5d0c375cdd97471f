"""A pytest plugin: dualsoft's three functions stand where SciPy's were, before SciPy's test module is imported."""

import os
from typing import Any

import pytest
import scipy.special
from scipy._lib import _array_api

import dualsoft

NAMES = ("softmax", "log_softmax", "logsumexp")
# SciPy decides by the function which array libraries its tests run with; newer releases keep that in this table.
table: dict[Any, Any] = getattr(_array_api, "xp_capabilities_table", {})

for name in NAMES:
    theirs, ours = getattr(scipy.special, name), getattr(dualsoft, name)
    if theirs in table:
        table[ours] = table[theirs]
    setattr(scipy.special, name, ours)


def pytest_configure() -> None:
    if "BACKEND_UNDER_TEST" in os.environ:
        dualsoft.use_backend(os.environ["BACKEND_UNDER_TEST"]).__enter__()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The test module must have picked up the replacements, or the run would prove nothing."""
    for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
        for name in NAMES:
            if getattr(module, name) is not getattr(dualsoft, name):
                raise pytest.UsageError(f"{module.__name__}.{name} is still SciPy's")
