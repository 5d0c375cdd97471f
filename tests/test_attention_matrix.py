"""The matrix of attention: groups of cases x dtype x backend and ISA level, against the oracle."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import attention_oracle
import numpy as np
import pytest
from attention_cases import GROUPS, AttentionCase, group
from attention_oracle import Answer
from cases import DTYPES
from conftest import DEVICES, USABLE
from devices import EMULATED, is_device
from tolerance import attention_mismatch

import dualsoft as ds


@lru_cache(maxsize=1)  # the backends of one (group, dtype) run one after the other
def expected(group_name: str, key: str) -> list[tuple[AttentionCase, Answer]]:
    return [(case, attention_oracle.compute(case.q, case.k, case.v, **case.options)) for case in group(group_name, key)]


def contents(case: AttentionCase) -> list[bytes]:
    arrays = [case.q, case.k, case.v, *case.options.values()]
    return [a.tobytes() for a in arrays if isinstance(a, np.ndarray)]


def check(case: AttentionCase, want: Answer) -> str | None:
    before = contents(case)
    out, lse = ds.attention(case.q, case.k, case.v, return_lse=True, **case.options)
    why = attention_mismatch(out, lse, want)
    if why is not None:
        return why
    given = np.full(out.shape, 7, out.dtype)
    alone = ds.attention(case.q, case.k, case.v, out=given, **case.options)
    if alone is not given:
        return "out= is not what comes back"
    if alone.tobytes() != out.tobytes():
        return "other bits without return_lse"
    if contents(case) != before:
        return "an input was written"
    return None


def ids() -> Iterator[Any]:
    for group_name in GROUPS:
        for key in DTYPES if group_name != "integers" else ("f64",):
            yield pytest.param(group_name, key, id=f"{group_name}-{'int' if group_name == 'integers' else key}")


def cases_for(backend: str, cases: list[tuple[AttentionCase, Answer]]) -> list[tuple[AttentionCase, Answer]]:
    """All of them, but a sample on the emulator, which takes a thousand times as long as a card."""
    if not is_device(backend):
        return cases
    arrays = [(case, want) for case, want in cases if isinstance(case.q, np.ndarray)]
    return arrays[:: SAMPLES[backend]] if backend.startswith(EMULATED) else arrays


SAMPLES = {"cuda-emulated:sm_75": 29, "cuda-emulated:sm_80": 7, "cuda-emulated:sm_90": 31}
"""One case of so many; the numbers have no common divisor."""


@pytest.mark.parametrize("backend", USABLE + DEVICES, indirect=True)  # on top, so that it changes fastest
@pytest.mark.parametrize(("group_name", "key"), list(ids()))
def test_matrix(group_name: str, key: str, backend: str) -> None:
    failures, cases = [], cases_for(backend, expected(group_name, key))
    for case, want in cases:
        why = check(case, want)
        if why:
            failures.append(f"{case.name}: {why}")
    if failures:
        pytest.fail(f"{len(failures)} of {len(cases)} fail\n" + "\n".join(failures[:20]), pytrace=False)
    if not cases:
        pytest.fail("no case ran")
