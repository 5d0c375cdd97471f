"""The matrix of attention's gradients: groups of cases x dtype x backend and ISA level, against the oracle."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import gradient_oracle
import numpy as np
import pytest
from attention_cases import AttentionCase, group
from cases import DTYPES, Array
from conftest import USABLE
from gradient_oracle import Gradient

import dualsoft as ds

# group of cases -> every how many of them: the oracle takes a dozen products a case
GROUPS = {
    "lengths": 1, "block_lengths": 3, "dims": 1, "empties": 1, "heads_and_batches": 2, "layouts": 3, "data": 3,
    "single_options": 1, "pairs_of_options": 1, "mixed_options": 2, "large": 1, "minus_infinity": 2, "mixed_dtypes": 1,
    "integers": 4,
}  # fmt: skip


class GradientCase(AttentionCase):
    """With gradients of the results, drawn from its sizes."""

    def results(self) -> tuple[Array, Array]:
        out, lse = ds.attention(self.q, self.k, self.v, return_lse=True, **self.options)
        return out, lse

    def incoming(self) -> tuple[Array, Array | None]:
        """Gradients of out, and of lse for every other case."""
        with ds.use_backend("reference"):
            out, lse = self.results()
        rng = np.random.default_rng([7, *out.shape])
        grad_out, grad_lse = rng.standard_normal(out.shape).astype(out.dtype), rng.standard_normal(lse.shape)
        return grad_out, grad_lse.astype(lse.dtype) if len(self.name) % 2 else None

    def needs(self) -> tuple[str, ...]:
        return ("q", "k", "v", *(name for name in ("bias", "sinks") if self.options.get(name) is not None))


@lru_cache(maxsize=1)  # the backends of one (group, dtype) run one after the other
def expected(name: str, key: str) -> list[tuple[GradientCase, Array, Array | None, dict[str, Gradient]]]:
    found = []
    for case in map(GradientCase._make, group(name, key)[:: GROUPS[name]]):
        grad_out, grad_lse = case.incoming()
        want = gradient_oracle.gradients(grad_out, case.q, case.k, case.v, grad_lse=grad_lse, **case.options)
        found.append((case, grad_out, grad_lse, want))
    return found


def contents(*given: Any) -> list[bytes]:
    return [a.tobytes() for a in given if isinstance(a, np.ndarray)]


def check(case: GradientCase, grad_out: Array, grad_lse: Array | None, want: dict[str, Gradient]) -> str | None:
    out, lse = case.results()
    given = (grad_out, case.q, case.k, case.v, out, lse)
    before = contents(*given, grad_lse, *case.options.values())
    got = ds.attention_backward(*given, grad_lse=grad_lse, needs=case.needs(), **case.options)
    if contents(*given, grad_lse, *case.options.values()) != before:
        return "an input was written"
    return gradient_oracle.wrong(got, want)


def ids() -> Iterator[Any]:
    for name in GROUPS:
        for key in DTYPES if name != "integers" else ("f64",):
            yield pytest.param(name, key, id=f"{name}-{'int' if name == 'integers' else key}")


@pytest.mark.parametrize("backend", USABLE, indirect=True)  # on top, so that it changes fastest
@pytest.mark.parametrize(("name", "key"), list(ids()))
def test_matrix(name: str, key: str, backend: str) -> None:
    failures, cases = [], expected(name, key)
    for case, *rest in cases:
        why = check(case, *rest)
        if why:
            failures.append(f"{case.name}: {why}")
    if failures:
        pytest.fail(f"{len(failures)} of {len(cases)} fail\n" + "\n".join(failures[:20]), pytrace=False)
    if not cases:
        pytest.fail("no case ran")
