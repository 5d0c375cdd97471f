"""softmax_topk and sample on the emulator: their answers, what they read, their bits, and mistakes that must show."""

from functools import cache
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from cases import DTYPES, normal
from cuda_mistakes import WRONG, Mutation
from cuda_topk_cases import CALLS, EQUIVALENT, MUTATIONS

import dualsoft as ds
from dualsoft.backends import nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
SECTOR = 32
SOURCES = ("topk.cu", "topk_join.cu", "sample.cu")


def answer(name: str, backend: str) -> tuple[Any, ...]:
    """The arrays that a call returns."""
    call = CALLS[name]
    options = {key: devices.put(backend, value) for key, value in call.options.items()}
    with ds.use_backend(backend):
        got = getattr(ds, call.function)(devices.put(backend, call.x), **options)
    return tuple(map(devices.get, got)) if isinstance(got, tuple) else (devices.get(got),)


@cache
def wanted(name: str) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        return answer(name, "reference")


def found_wrong(name: str, backend: str = NAME) -> str | None:
    """Make the call; what is wrong with its answer, or None."""
    got, want, call = answer(name, backend), wanted(name), CALLS[name]
    if call.function == "sample":
        return None if np.array_equal(got[0], want[0]) else f"drew {got[0]}, not {want[0]}"
    if not np.array_equal(got[1], want[1]):
        return "the indices are wrong"
    axis = call.options.get("axis", -1)
    if (np.diff(np.nan_to_num(got[0].astype(np.float64)), axis=axis) > 0).any():
        return "the values rise"
    spread = float(np.abs(np.where(np.isfinite(call.x), call.x, 0).astype(np.float64)).max()) * 2
    for what, part in (("values", 0), ("lse", 2)):
        exact = want[part].astype(np.float64)
        bound = ds.accuracy.bound("softmax_topk", got[part].dtype, n=call.x.shape[axis], spread=spread)
        unit = ds.accuracy.ulp(np.where(np.isfinite(exact), exact, 0), got[part].dtype)
        with np.errstate(invalid="ignore"):
            near = np.abs(got[part].astype(np.float64) - exact) <= bound.ulp * np.maximum(unit, 2.0**-149)
        if not (near | (exact == got[part]) | (np.isnan(exact) & np.isnan(got[part].astype(np.float64)))).all():
            return f"the {what} are wrong"
    return None


@pytest.mark.parametrize("name", CALLS)
def test_answers(name: str) -> None:
    assert found_wrong(name) is None


@pytest.mark.parametrize("backend", ["cuda-emulated:sm_75", "cuda-emulated:sm_90"])
@pytest.mark.parametrize("name", ["topk parts", "topk warp, many", "sample top_k and all others", "sample plain"])
def test_answers_of_other_architectures(name: str, backend: str) -> None:
    assert found_wrong(name, backend) is None


@pytest.mark.parametrize("key", DTYPES)
@pytest.mark.parametrize("n", [40, 900, 9001])
def test_lse_is_that_of_logsumexp(key: str, n: int) -> None:
    """To the bit, by rows and by columns; a row has the bits of its own in any batch and layout."""
    dtype = np.float64 if key == "f64" else np.float32
    x = normal(key, 3, n)
    x[0] -= x[0]
    with ds.use_backend(NAME):
        placed = devices.put(NAME, x)
        got = ds.softmax_topk(placed, 3)
        assert (got.lse.get() == ds.logsumexp(placed, -1, dtype=dtype).get()).all()
        turned = devices.put(NAME, np.asfortranarray(x))
        assert (ds.softmax_topk(turned, 3).lse.get() == ds.logsumexp(turned, -1, dtype=dtype).get()).all()
        alone = ds.softmax_topk(devices.put(NAME, x[1:2]), 3)
        assert all(one.get().tobytes() == all_of.get()[1:2].tobytes() for one, all_of in zip(alone, got, strict=True))


@pytest.mark.parametrize(("key", "n"), [("f16", 64), ("bf16", 1024), ("f32", 4096), ("f32", 24576), ("f64", 4096)])
def test_logits_are_read_once(key: str, n: int) -> None:
    """16 bytes at a time; what else is read are entries and pairs of parts."""
    x = devices.module(NAME).asarray(normal(key, max(1, 2000 // n), n))
    emulator.profile()
    with ds.use_backend(NAME), emulator.settings(profile=True):
        ds.softmax_topk(x, 5)
    rows = [row for row in emulator.profile() if (row.space, row.operation) == ("global", "load")]
    of_input = sum(row.units for row in rows if row.bytes == 16 and row.file != "topk_join.cu")
    assert of_input - x.nbytes // SECTOR <= 5 * (n > 8192) * 3, "the entries of three parts come back in the join"
    assert of_input >= x.nbytes // SECTOR


def test_a_draw_of_few_reads_logits_once() -> None:
    x = devices.module(NAME).asarray(normal("f32", 1, 16384))
    for options, looks in (({"top_k": 50}, 1), ({"temperature": 0}, 1), ({"top_p": 0.1}, 2), ({}, 2)):
        emulator.profile()
        with ds.use_backend(NAME), emulator.settings(profile=True):
            ds.sample(x, rng=1, **options)
        rows = [row for row in emulator.profile() if (row.space, row.operation) == ("global", "load")]
        elements = sum(row.requests * 32 * row.bytes for row in rows if row.bytes in (4, 16))
        assert looks * x.nbytes <= elements < looks * x.nbytes + 1024, options


@pytest.mark.parametrize("name", ["topk block", "topk parts", "topk warp", "sample top_p", "sample top_k"])
def test_the_order_of_threads_does_not_change_a_bit(name: str) -> None:
    want = [part.tobytes() for part in answer(name, NAME)]
    for way in ({"schedule": "descending"}, {"schedule": "random", "seed": 2, "preempt": True}):
        with emulator.settings(**way):
            assert [part.tobytes() for part in answer(name, NAME)] == want, way


def test_options_out_of_range_on_the_device() -> None:
    """The host does not read them: such rows give -1."""
    x = devices.put(NAME, normal("f32", 5, 30))
    for option, values in (
        ("temperature", [-1.0, np.nan, np.inf, 1, 1]),
        ("top_p", [-0.1, np.nan, 1.1, 1, 1]),
        ("min_p", [-0.1, np.nan, 1.1, 0, 1]),
        ("top_k", [-5, 0, -1, 1, 100]),
    ):
        with ds.use_backend(NAME):
            drawn = ds.sample(x, rng=1, **{option: devices.put(NAME, np.array(values))}).get()
        assert (drawn[:3] == -1).all(), option
        assert (drawn[3:] >= 0).all(), option


# ------------------------------------------------------------------ planted mistakes
def seen_in(name: str) -> str | None:
    """How a mistake shows in a call: the kinds of faults, or `WRONG`; None if it does not."""
    try:
        return None if found_wrong(name, "cuda") is None else WRONG
    except emulator.KernelFault as fault:
        return ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]


def plant(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    from dualsoft.backends import cuda

    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    monkeypatch.setitem(devices._MODULES, "cuda", devices.module(NAME))
    assemble = nvrtc.assemble
    assert any(mutation.old in assemble(source) for source in SOURCES), f"no source has {mutation.old!r}"
    monkeypatch.setattr(nvrtc, "assemble", lambda source: assemble(source).replace(mutation.old, mutation.new))


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    plant(mutation, monkeypatch)
    seen = {call: seen_in(call) for call in mutation.calls}
    assert any(how is not None and any(sign in how for sign in mutation.signs) for how in seen.values()), seen


@pytest.mark.parametrize("name", EQUIVALENT)
def test_equivalent_mutations_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, reason = EQUIVALENT[name]
    plant(mutation, monkeypatch)
    assert {call: seen_in(call) for call in mutation.calls} == dict.fromkeys(mutation.calls), reason
