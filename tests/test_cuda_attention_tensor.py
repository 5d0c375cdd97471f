"""Attention of half types on tensor cores: tiles and their edges, options, rows that the exact kernel takes over."""

import attention_oracle
import devices
import emulator
import numpy as np
import pytest
from attention_cases import lone, operands
from attention_options import Shape
from cuda_mistakes_attention import CALLS, MUTATIONS
from tensor_attention import GROUPED, NAME, Case, Launched, attend, attend_by_state, check
from tolerance import attention_mismatch

import dualsoft as ds
from dualsoft.backends import cuda, cuda_attention_tensor, nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    return Launched(monkeypatch)


CASES = {
    "one tile": Case("f16", lone(64, 64, 64), {}),
    "edges": Case("f16", lone(65, 129, 64), {}),
    "few keys": Case("bf16", lone(70, 1, 64), {}),
    "causal": Case("bf16", lone(130, 130, 64), {"causal": True}),
    "rows without keys": Case("f16", lone(100, 40, 64), {"causal": True}),
    "causal from the top left": Case("bf16", lone(70, 200, 128), {"causal": True, "causal_offset": 0}),
    "window": Case("f16", lone(90, 300, 64), {"window": (70, 3)}),
    "groups": Case("bf16", GROUPED, {"causal": True}),
    "lengths": Case("f16", GROUPED, {
        "kv_lengths": np.array([131, 0]), "causal": True, "causal_offset": np.array([20, 5]),
    }),
    "sinks": Case("bf16", GROUPED, {"sinks": [0.5, -np.inf, 3.0, 80.0, -2.0, 0.0], "causal": True}),
    "scale": Case("f16", lone(40, 70, 64), {"scale": 0.7}),
    "head dim 128": Case("f16", Shape((), 2, 1, 70, 100, 128, 128), {}),
    "head dims within the tile": Case("bf16", Shape((), 2, 2, 40, 70, 80, 48), {"causal": True}),
    "smallest head dims": Case("f16", lone(33, 70, 8, 16), {}),
    "head dim 256": Case("bf16", Shape((), 2, 1, 40, 100, 256, 200), {"causal": True}),
    "sm_75": Case("f16", GROUPED, {"causal": True}, "cuda-emulated:sm_75"),
    "sm_75, head dim 256": Case("f16", lone(70, 40, 256), {}, "cuda-emulated:sm_75"),
    "sm_90": Case("bf16", GROUPED, {"causal": True}, "cuda-emulated:sm_90"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_matrix(case: Case, launched: Launched) -> None:
    check(*operands(case.key, case.shape), name=case.name, **case.options)
    head_dim = max(case.shape.head_dim, case.shape.head_dim_v)
    assert launched.head_dims == [next(n for n in (64, 128, 256) if n >= head_dim)]


def test_what_the_exact_kernel_serves(launched: Launched) -> None:
    """Extreme numbers, mixed dtypes, rows that are no pieces of 16 bytes, and few rows."""
    q, k, v = operands("f16", lone(20, 30, 64))
    for options in ({"scale": 2.0**-70}, {"softcap": 2.0**70}):
        check(q, k, v, **options)
    for arrays in (
        (q[..., :60], k[..., :60], v),
        (q, k, v[..., :3]),
        (q[..., :16, :], k, v),
        (q, k.astype(np.float32), v),
    ):
        check(*arrays)
    assert not launched.head_dims


def test_views(launched: Launched) -> None:
    q, k, v = (np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3) for x in operands("bf16", GROUPED))
    check(q, k, v, causal=True)
    wide = np.zeros((*q.shape[:-1], 160), q.dtype)
    wide[..., 32:96] = q
    with ds.use_backend(NAME):
        cp = devices.module(NAME)
        out = cp.zeros((*q.shape[:-1], 65), q.dtype)[..., 1:]
        given = ds.attention(cp.asarray(wide)[..., 32:96], cp.asarray(k), cp.asarray(v), causal=True, out=out)
    np.testing.assert_array_equal(given.get(), attend(q, k, v, causal=True)[0])
    assert len(launched.head_dims) == 3


# ------------------------------------------------------------------ rows that the exact kernel takes over
BAD = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_special_values(which: str, bad: float, launched: Launched) -> None:
    """Rows that see one have the answer of the definition, and all others the bits that they have without it."""
    q, k, v = operands("f16", lone(80, 140, 64))
    clean, clean_lse = attend(q, k, v, causal=True)
    arrays = {"q": q.copy(), "k": k.copy(), "v": v.copy()}
    row = 70 if which == "q" else 100
    arrays[which][0, row, 5] = bad
    arrays[which][0, row, 20] = -bad
    q, k, v = arrays.values()
    out, lse = attend(q, k, v, causal=True)
    why = attention_mismatch(out, lse, attention_oracle.attention(q, k, v, causal=True))
    assert not why, why
    sees = np.arange(80) == row if which == "q" else np.arange(80) + 60 >= row
    np.testing.assert_array_equal(out[0, ~sees], clean[0, ~sees])
    np.testing.assert_array_equal(lse[0, ~sees], clean_lse[0, ~sees])
    assert len(launched.head_dims) == 2


def test_special_values_of_many_keys() -> None:
    """The exact kernel cuts keys into runs, and each block merges its own."""
    q, k, v = operands("bf16", Shape((), 2, 1, 40, 2100, 16, 136))
    v[0, 3, 7], v[0, 2090, 130], v[0, 2095, 7] = np.inf, np.nan, -np.inf
    q[1, 11] = np.nan
    check(q, k, v, causal=True, sinks=[0.5, 2.0])


def test_what_float32_does_not_hold() -> None:
    q, k, v = operands("bf16", lone(40, 70, 64))
    large = v.copy()
    large[0, 10:, 3] = 3e38
    check(q, k, large)
    for factor, scale in ((3e2, 0.125), (1e18, 0.125), (1e19, 2.0**-20)):
        check(q * np.array(factor, q.dtype), k * np.array(factor, k.dtype), v, scale=scale)
    check(np.full_like(q, 1e18), np.full_like(k, -1e19), v, scale=2.0**-20)


# ------------------------------------------------------------------ bits
def test_bits_depend_on_neither_batch_nor_capacity() -> None:
    q, k, v = operands("f16", Shape((3,), 2, 1, 40, 200, 64, 64))
    lengths = np.array([200, 70, 133])
    together = attend(q, k, v, kv_lengths=lengths, causal=True)
    for i, n in enumerate(lengths):
        alone = attend(q[i], k[i, :, :n], v[i, :, :n], causal=True)
        for both, one in zip(together, alone, strict=True):
            np.testing.assert_array_equal(both[i], one)


@pytest.mark.parametrize("section", [1, 3, 4, 9])
def test_heads_come_in_sections(section: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which heads and row blocks are served changes no bit; the last section may be smaller."""
    arrays = operands("f16", GROUPED)
    arrays[2][1, 0, 100, 5] = np.nan
    want = attend(*arrays, causal=True)
    monkeypatch.setattr(cuda_attention_tensor, "section", lambda *_: section)
    for got, right in zip(attend(*arrays, causal=True), want, strict=True):
        np.testing.assert_array_equal(got, right)


WAYS = (
    {"schedule": "descending"},
    {"schedule": "random", "seed": 1},
    {"schedule": "random", "seed": 2, "preempt": True},
)


@pytest.mark.parametrize("name", [NAME, "cuda-emulated:sm_75"])
def test_the_order_of_threads_does_not_change_a_bit(name: str) -> None:
    arrays = operands("f16", lone(70, 150, 64))
    arrays[2][0, 100, 5] = np.nan  # whose rows the exact kernel takes over
    want = attend(*arrays, name, causal=True)
    for way in WAYS:
        with emulator.settings(**way):
            for got, right in zip(attend(*arrays, name, causal=True), want, strict=True):
                np.testing.assert_array_equal(got, right)


def test_approximations_may_be_off_as_documented() -> None:
    with emulator.settings(perturb=True):
        check(*operands("f16", lone(70, 150, 64)), causal=True)


def test_packed_and_paged(launched: Launched) -> None:
    q, k, v = operands("bf16", Shape((), 4, 2, 90, 120, 64, 64))
    starts = np.array([0, 3, 3, 60, 90])
    key_starts = np.array([0, 40, 50, 50, 120])
    with ds.use_backend(NAME):
        cp = devices.module(NAME)
        placed = [cp.asarray(x) for x in (q, k, v, starts, key_starts)]
        packed, lse = (x.get() for x in ds.attention_varlen(*placed, causal=True, return_lse=True))
        for i in range(4):
            rows, keys = slice(*starts[i : i + 2]), slice(*key_starts[i : i + 2])
            out, alone = attend(q[:, rows], k[:, keys], v[:, keys], causal=True)
            np.testing.assert_array_equal(packed[:, rows], out)
            np.testing.assert_array_equal(lse[:, rows], alone)
        pages = [np.ascontiguousarray(x.reshape(2, 12, 10, 64).swapaxes(0, 1))[::-1] for x in (k, v)]
        table = np.array([[11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [3, 7, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0]])
        lengths = np.array([117, 25])
        query = np.stack([q[:, :30], q[:, 30:60]])
        placed = [cp.asarray(x) for x in (query, *pages, table, lengths)]
        paged = ds.attention_paged(*placed, causal=True, causal_offset=np.array([87, 0])).get()
    np.testing.assert_array_equal(paged[0], attend(query[0], k[:, :117], v[:, :117], causal=True)[0])
    sees_bad = np.arange(30) >= 20
    assert np.isnan(paged[1][:, sees_bad]).all()
    assert np.isfinite(paged[1][:, ~sees_bad]).all()
    assert len(launched.head_dims) == 4


# ------------------------------------------------------------------ what is moved
@pytest.mark.parametrize(("name", "head_dim"), [(NAME, 64), (NAME, 128), (NAME, 256), ("cuda-emulated:sm_75", 64)])
def test_nothing_is_moved_in_vain(name: str, head_dim: int) -> None:
    """Matrices come from shared memory without bank conflicts, and outputs fill the sectors that they are stored to."""
    q, k, v = operands("f16", lone(64, 64, head_dim))
    emulator.profile()
    with emulator.settings(profile=True):
        attend(q, k, v, name)
    rows = [row for row in emulator.profile() if row.file != "attention.cu"]
    matrices = [row for row in rows if row.file == "tensor.cuh" and (row.space, row.operation) == ("shared", "load")]
    assert sum(row.requests for row in matrices) >= 3 * 64 * head_dim // 64
    stores = [row for row in rows if (row.space, row.operation, row.bytes) == ("global", "store", 16)]
    assert sum(row.units for row in stores) == q.nbytes // 32
    assert [row for row in rows if row.bytes == 16 and row.units != row.ideal] == []


# ------------------------------------------------------------------ planted mistakes
@pytest.mark.parametrize("name", CALLS)
def test_the_kernels_as_they_are(name: str) -> None:
    call = CALLS[name]
    got = (attend_by_state if call.is_state else attend)(call.q, call.k, call.v, **call.options)
    why = attention_mismatch(*got, attention_oracle.attention(call.q, call.k, call.v, **call.options))
    assert not why, why


@pytest.mark.parametrize("name", MUTATIONS)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation, assemble = MUTATIONS[name], nvrtc.assemble
    counts = [assemble(source).count(mutation.old) for source in ("attention_tensor.cu", "attention_merge.cu")]
    assert max(counts) == 1, "the kernels have changed, and this test with them"
    monkeypatch.setattr(nvrtc, "assemble", lambda source: assemble(source).replace(mutation.old, mutation.new))
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    for call in mutation.calls:
        q, k, v, options, is_state = CALLS[call]
        try:
            got = (attend_by_state if is_state else attend)(q, k, v, "cuda", **options)
            want = attention_oracle.attention(q, k, v, **options)
            with np.errstate(all="ignore"):
                how = attention_mismatch(*got, want) and "wrong numbers"
        except emulator.KernelFault as fault:
            how = ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]
        assert how is not None, f"{call}: nobody sees it"
        assert any(sign in how for sign in mutation.signs), f"{call}: seen as {how}"
