"""Attention's gradients on tensor cores: tiles and their edges, small numbers, lines left to the exact kernel."""

from typing import Any

import devices
import emulator
import numpy as np
import pytest
from attention_cases import lone, operands
from attention_options import Shape
from cuda_mistakes import WRONG
from cuda_mistakes_gradients import CALLS, MISTAKES
from tensor_attention import GROUPED, NAME, Array, Case
from tensor_gradients import Given, LaunchedGradients, check, differentiate, forward, given, strictly_wrong

import dualsoft as ds
from dualsoft.backends import cuda, cuda_gradients_tensor, nvrtc

pytestmark = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> LaunchedGradients:
    return LaunchedGradients(monkeypatch)


def random(*shape: int) -> Array:
    return np.random.default_rng([7, *shape]).standard_normal(shape)


def blocks() -> ds.BlockMask:
    """Of the tiles of keys the second one is seen by the last rows alone, the third by nobody."""
    seen = np.ones((14, 22), bool)
    seen[:12, 9:18], seen[:, 18:] = False, False
    return ds.BlockMask(seen, 5, 7)


CASES = {
    "one tile": Case("f16", lone(64, 64, 64), {}),
    "edges": Case("f16", lone(65, 129, 64), {}),
    "few rows, few keys": Case("bf16", lone(3, 2, 64), {}),
    "causal": Case("bf16", lone(130, 130, 64), {"causal": True}),
    "rows without keys": Case("f16", lone(100, 40, 64), {"causal": True}),
    "causal from the top left": Case("f16", lone(70, 200, 64), {"causal": True, "causal_offset": 0}),
    "window": Case("f16", lone(90, 300, 64), {"window": (70, 3)}),
    "groups": Case("bf16", GROUPED, {"causal": True}),
    "lengths": Case("f16", GROUPED, {
        "kv_lengths": np.array([131, 0]), "causal": True, "causal_offset": np.array([20, 5]),
    }),
    "sinks": Case("f16", GROUPED, {"sinks": np.array([0.5, -np.inf, 3.0, 8.0, -2.0, 0.0]), "causal": True}),
    "softcap": Case("bf16", GROUPED, {"softcap": 0.7}),
    "softcap that nothing reaches": Case("f16", lone(70, 70, 64), {"softcap": 900.0}),
    "mask": Case("f16", lone(70, 150, 64), {"mask": random(70, 150) < 0.5}),
    "mask and lengths": Case("bf16", GROUPED, {"mask": random(2, 1, 50, 150) < 1, "kv_lengths": np.array([131, 0])}),
    "bias": Case("f16", GROUPED, {"bias": random(6, 50, 150), "causal": True, "softcap": 2.0}),
    "bias of float32": Case("bf16", GROUPED, {"bias": random(2, 1, 50, 150).astype(np.float32), "window": (30, 2)}),
    "bias of the type, by key": Case("f16", GROUPED, {"bias": random(150).astype(np.float16)}),
    "bias of the lowest number": Case("f16", lone(70, 70, 64), {
        "bias": np.where(random(70, 70) < 0.5, 0, np.finfo(np.float32).min).astype(np.float32),
    }),
    "alibi": Case("f16", GROUPED, {"alibi_slopes": 2.0 ** -np.arange(6), "causal": True}),
    "blocks": Case("f16", lone(70, 150, 64), {"block_mask": blocks()}),
    "blocks, mask, causal": Case("bf16", lone(70, 150, 64), {
        "block_mask": blocks(), "causal": True, "mask": random(1, 150) < 1,
    }),
    "scale below 0": Case("f16", lone(40, 70, 64), {"scale": -0.7}),
    "head dim 128": Case("f16", Shape((), 2, 1, 70, 100, 128, 128), {"causal": True}),
    "head dims within the tile": Case("f16", Shape((), 2, 2, 40, 70, 80, 48), {"window": (9, None)}),
    "smallest head dims": Case("f16", lone(33, 70, 8, 16), {}),
    "sm_75": Case("f16", GROUPED, {"causal": True}, "cuda-emulated:sm_75"),
    "sm_75, head dim 128": Case("f16", lone(70, 40, 128), {}, "cuda-emulated:sm_75"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_matrix(case: Case, launched: LaunchedGradients) -> None:
    check(given(case.key, case.shape, **case.options), case.name)
    dim = 64 if max(case.shape.head_dim, case.shape.head_dim_v) <= 64 else 128
    assert launched.kinds == [(dim, False), (dim, True)]
    assert launched.lines_left == [0, 0]


def test_what_the_exact_kernel_serves(launched: LaunchedGradients) -> None:
    """Extreme scales, rows that are no pieces of 16 bytes, longer ones, mixed dtypes."""
    whole = given("f16", lone(20, 30, 64))
    check(given("f16", lone(20, 30, 20)))
    check(given("f16", lone(20, 30, 136)))
    check(given("f16", lone(20, 30, 64), scale=2.0**-70))
    check(whole._replace(grad_out=whole.grad_out.astype(np.float32)))
    check(given("bf16", lone(20, 30, 64)), "cuda-emulated:sm_75")
    assert not launched.kinds


def test_needs(launched: LaunchedGradients) -> None:
    """Only what is needed is launched; dk and dv have the same bits alone."""
    of = given("f16", lone(70, 90, 64))
    whole = differentiate(of)
    launched.variants.clear()
    for name, are_keys in (("q", False), ("k", True), ("v", True)):
        alone = differentiate(of, needs=(name,))
        np.testing.assert_array_equal(getattr(alone, name), getattr(whole, name))
        assert launched.kinds == [(64, are_keys)]
        launched.variants.clear()


def test_views_and_shared_keys(launched: LaunchedGradients) -> None:
    """Heads of a token side by side; keys that a batch shares have float32 sums; rows of q with a gap between them."""
    of = given("f16", GROUPED)
    whole = differentiate(of)
    seen_by_token = [np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3) for x in of[:5]]
    got = differentiate(Given(*seen_by_token, *of[5:]))
    for name in "qkv":
        np.testing.assert_array_equal(getattr(got, name), getattr(whole, name))
    shared = forward(None, of.q, of.k[:1], of.v[:1])
    check(shared)
    wide = np.zeros((*of.q.shape[:-1], 96), of.q.dtype)
    wide[..., 8:72] = of.q
    with ds.use_backend(NAME):
        cp = devices.module(NAME)
        placed = [cp.asarray(x) for x in of[:6]]
        placed[1] = cp.asarray(wide)[..., 8:72]
        got = ds.attention_backward(*placed, grad_lse=cp.asarray(of.grad_lse))
    np.testing.assert_array_equal(got.q.get(), whole.q)
    assert len(launched.kinds) == 8


# ------------------------------------------------------------------ numbers
@pytest.mark.parametrize("size", [1e-4, 1e-6])
def test_small_gradients(size: float, launched: LaunchedGradients) -> None:
    """Of float16 they are right to half a unit of its smallest numbers: ds, which is far below, keeps its digits."""
    of = given("f16", lone(70, 600, 64))
    of = of._replace(grad_out=(of.grad_out * np.float32(size)).astype(np.float16), grad_lse=None)
    why = strictly_wrong(differentiate(of), of)
    assert why is None, why
    assert launched.lines_left == [0, 0]


def test_gradients_that_grow_along_a_line() -> None:
    """Each tile brings larger ones by far: what is there is brought down, and loses nothing that shows."""
    of = given("f16", lone(300, 300, 64))
    grown = (2.0 ** np.linspace(-24, 10, 300))[:, None]
    check(of._replace(grad_out=(of.grad_out * grown).astype(np.float16), grad_lse=None))
    check(forward(None, of.q, of.k, (of.v * grown).astype(np.float16))._replace(grad_lse=None))


@pytest.mark.parametrize("scale", [3.0, 40.0, 1000.0])
def test_large_scores(scale: float, launched: LaunchedGradients) -> None:
    """Where the rounding of a score would show in its weight, rows and the keys that they see are left."""
    check(given("f16", lone(70, 90, 64), scale=scale))
    assert (launched.lines_left != [0, 0]) == (scale == 1000.0)


@pytest.mark.parametrize("away", [-12.0, 3.0])
def test_an_lse_of_other_keys(away: float, launched: LaunchedGradients) -> None:
    """Of more keys weights are small, and keep their digits; of fewer they are more than float16 holds, and left."""
    of = given("f16", lone(70, 90, 64))
    other = of._replace(lse=of.lse - np.float32(away), grad_lse=None, out=np.zeros_like(of.out))
    why = strictly_wrong(differentiate(other), other)
    assert why is None, why
    assert (launched.lines_left != [0, 0]) == (away > 0)


# ------------------------------------------------------------------ lines that the exact kernel takes over
BAD = (np.nan, np.inf)


def exact(of: Given, monkeypatch: pytest.MonkeyPatch) -> ds.AttentionGrads:
    with monkeypatch.context() as patch:
        patch.setattr(cuda_gradients_tensor, "serves", lambda *_: False)
        return differentiate(of)


def with_bad(of: Given, which: str, line: int, bad: float) -> Given:
    x = getattr(of, which).copy()
    x[0, line, 5], x[0, line, 20] = bad, -bad
    whole = of._replace(**{which: x})
    if which == "grad_out":
        return whole
    return forward(of.grad_out, whole.q, whole.k, whole.v, **of.options)._replace(grad_lse=of.grad_lse)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("which", ["grad_out", "q", "k", "v"])
def test_special_values(which: str, bad: float, launched: LaunchedGradients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that see one have the bits of the exact kernel, and all others those that they have without it."""
    of = given("f16", lone(80, 140, 64), causal=True)
    line = 70 if which in ("grad_out", "q") else 100
    spoiled = with_bad(of, which, line, bad)
    clean, want = differentiate(of), exact(spoiled, monkeypatch)
    got = differentiate(spoiled)
    if which in ("grad_out", "q"):
        rows, keys = np.arange(80) == line, np.arange(140) <= line + 60
    else:
        rows, keys = np.arange(80) + 60 >= line, np.arange(140) == line
        # a row that sees the key is NaN, and so is what it gives to all keys that it sees
        keys = np.full(140, np.isnan(want.k[0]).any(-1)) | keys
    np.testing.assert_array_equal(got.q[0, rows], want.q[0, rows])
    np.testing.assert_array_equal(got.q[0, ~rows], clean.q[0, ~rows])
    for name in "kv":
        np.testing.assert_array_equal(getattr(got, name)[0, keys], getattr(want, name)[0, keys])
    if which in ("grad_out", "q"):
        for name in "kv":
            np.testing.assert_array_equal(getattr(got, name)[0, ~keys], getattr(clean, name)[0, ~keys])
        assert launched.lines_left == [0, 0, 1, 131]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_hidden_changes_no_bit(bad: float, launched: LaunchedGradients) -> None:
    """Keys past the lengths, rows that see none of a block's keys, padding: in the same tiles as what is seen."""
    options = {"kv_lengths": np.array([131, 70]), "window": (30, 0), "causal_offset": np.array([60, 0])}
    of = given("f16", GROUPED, **options)
    clean = differentiate(of)
    k, v, q, grad_out = of.k.copy(), of.v.copy(), of.q.copy(), of.grad_out.copy()
    for x in (k, v):
        x[0, :, 131:, 3], x[1, :, 70:, 9] = bad, bad
        x[0, :, :30, 7] = bad  # behind every window
    got = differentiate(of._replace(k=k, v=v))
    for name in "qkv":
        np.testing.assert_array_equal(getattr(got, name), getattr(clean, name))
    assert launched.lines_left[2] == 0
    # with an lse of -inf a row sees nothing
    lse, hidden = of.lse.copy(), np.arange(50) % 7 == 3
    lse[..., hidden] = -np.inf
    base = differentiate(of._replace(lse=lse))
    q[..., hidden, :], grad_out[..., hidden, :] = bad, bad
    got = differentiate(of._replace(lse=lse, q=q, grad_out=grad_out))
    for name in "kv":
        np.testing.assert_array_equal(getattr(got, name), getattr(base, name))
    assert not base.q[..., hidden, :].any()
    assert not got.q[..., hidden, :].any()


def test_products_of_hidden_keys_may_overflow(launched: LaunchedGradients) -> None:
    """A finite value that makes infinite products with all rows: only those that see it are left."""
    mask = np.ones((70, 150), bool)
    mask[:20, 100] = False
    for options in ({"mask": mask}, {"causal": True}):
        of = given("bf16", lone(70, 150, 64), **options)
        v = of.v.copy()
        v[0, 100] = 3e38
        clean, got = differentiate(of), differentiate(of._replace(v=v))
        np.testing.assert_array_equal(got.q[0, :20], clean.q[0, :20])
        for name in "kv":
            others = np.arange(150) != 100
            np.testing.assert_array_equal(getattr(got, name)[0, others], getattr(clean, name)[0, others])
    assert launched.lines_left == [0, 0, 50, 1] * 2


def test_what_a_mask_hides_changes_no_bit(launched: LaunchedGradients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and rows that are not finite, in the same tiles as what is seen: only who sees one is left."""
    mask = random(70, 150) < 0.5
    some = np.arange(70) % 9 == 4
    mask[some, :70], mask[:, 20], mask[:, 90], mask[33], mask[33, 10:12] = False, False, some, False, True
    of = given("f16", lone(70, 150, 64), mask=mask)
    k, v, q = of.k.copy(), of.v.copy(), of.q.copy()
    k[0, 20, 3], v[0, 90, 5], q[0, 33, 7] = np.nan, np.inf, np.nan
    spoiled = forward(of.grad_out, q, k, v, mask=mask)._replace(grad_lse=of.grad_lse)
    clean, want, got = differentiate(of), exact(spoiled, monkeypatch), differentiate(spoiled)
    rows = some | (np.arange(70) == 33)
    keys = mask[rows].any(0)
    for name, seen in (("q", rows), ("k", keys), ("v", keys)):
        np.testing.assert_array_equal(getattr(got, name)[0, seen], getattr(want, name)[0, seen])
        np.testing.assert_array_equal(getattr(got, name)[0, ~seen], getattr(clean, name)[0, ~seen])
    assert (~keys).sum() > 50
    assert launched.lines_left == [0, 0, rows.sum(), keys.sum() + 1]  # key 20 itself is not finite


# ------------------------------------------------------------------ bits
def test_bits_depend_on_neither_batch_nor_capacity() -> None:
    q, k, v = operands("f16", Shape((3,), 2, 1, 40, 200, 64, 64))
    lengths = np.array([200, 70, 133])
    of = forward(None, q, k, v, kv_lengths=lengths, causal=True)
    together = differentiate(of)
    for i, n in enumerate(lengths):
        parts = [x[i] for x in of[:6]]
        alone = differentiate(
            Given(*parts[:2], *(x[:, :n] for x in parts[2:4]), *parts[4:], {"causal": True}, of.grad_lse[i])
        )
        np.testing.assert_array_equal(together.q[i], alone.q)
        for name in "kv":
            np.testing.assert_array_equal(getattr(together, name)[i, :, :n], getattr(alone, name))
            assert not getattr(together, name)[i, :, n:].any()


def packed(of: Given, lengths_q: list[int], lengths_k: list[int], starts: tuple[Array, Array] | None = None) -> Any:
    given_starts = starts or (np.cumsum([0, *lengths_q]), np.cumsum([0, *lengths_k]))
    with ds.use_backend(NAME):
        placed = [devices.put(NAME, x) for x in (*of[:6], *given_starts)]
        got = ds.attention_varlen_backward(*placed, causal=True)
        return ds.AttentionGrads(*(None if x is None else devices.get(x) for x in got))


def test_packed_sequences_have_the_bits_that_they_have_alone(launched: LaunchedGradients) -> None:
    lengths_q, lengths_k = [30, 0, 75, 1], [33, 4, 80, 70]
    starts_q, starts_k = np.cumsum([0, *lengths_q]), np.cumsum([0, *lengths_k])
    q, k, v = operands("bf16", Shape((), 4, 2, sum(lengths_q), sum(lengths_k), 16, 64))
    with ds.use_backend("reference"):
        out, lse = ds.attention_varlen(q, k, v, starts_q, starts_k, return_lse=True, causal=True)
    grad_out = np.random.default_rng(3).standard_normal(out.shape).astype(out.dtype)
    of = Given(grad_out, q, k, v, out, lse, {"causal": True})
    whole = packed(of, lengths_q, lengths_k)
    for n in range(4):
        at_q, at_k = (slice(starts[n], starts[n + 1]) for starts in (starts_q, starts_k))
        parts = (x[:, at] for x, at in zip(of[:6], (at_q, at_q, at_k, at_k, at_q, at_q), strict=True))
        alone = differentiate(Given(*parts, {"causal": True}))
        for got, want, at in zip(whole[:3], alone[:3], (at_q, at_k, at_k), strict=True):
            np.testing.assert_array_equal(got[:, at], want)
    assert len(launched.kinds) >= 8
    # starts that the host does not see: nothing outside the arrays is touched, and what has no row is NaN
    bad = packed(of, lengths_q, lengths_k, (np.array([0, 30, 199, 105, 106]), starts_k))
    assert np.isnan(bad.q).any()
    bad = packed(of, lengths_q, lengths_k, (starts_q, np.array([0, 33, 500, 117, 187])))
    assert np.isnan(bad.q).any()


@pytest.mark.parametrize("section", [1, 3])
def test_heads_come_in_sections(section: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of = given("f16", GROUPED, causal=True)
    of.v[1, 0, 100, 5] = np.nan
    want = differentiate(of)
    monkeypatch.setattr(cuda_gradients_tensor, "section", lambda *_: section)
    got = differentiate(of)
    for name in "qkv":
        np.testing.assert_array_equal(getattr(got, name), getattr(want, name))


WAYS = (
    {"schedule": "descending"},
    {"schedule": "random", "seed": 1},
    {"schedule": "random", "seed": 2, "preempt": True},
)


@pytest.mark.parametrize("name", [NAME, "cuda-emulated:sm_75"])
def test_the_order_of_threads_does_not_change_a_bit(name: str) -> None:
    of = given("f16", lone(70, 150, 64), causal=True)
    of.v[0, 130, 5] = np.nan
    want = differentiate(of, name)
    for way in WAYS:
        with emulator.settings(**way):
            got = differentiate(of, name)
        for which in "qkv":
            np.testing.assert_array_equal(getattr(got, which), getattr(want, which))


def test_approximations_may_be_off_as_documented() -> None:
    with emulator.settings(perturb=True):
        check(given("f16", lone(70, 150, 64), causal=True, softcap=2.0))


# ------------------------------------------------------------------ what is moved
@pytest.mark.parametrize(("name", "head_dim"), [(NAME, 64), (NAME, 128), ("cuda-emulated:sm_75", 64)])
def test_nothing_is_moved_in_vain(name: str, head_dim: int) -> None:
    """Matrices come from shared memory without bank conflicts, and gradients fill the sectors they are stored to."""
    of = given("f16", lone(64, 64, head_dim))
    emulator.profile()
    with emulator.settings(profile=True):
        differentiate(of, name)
    rows = [row for row in emulator.profile() if row.file not in ("attention_gradient.cu", "gradient_queries.cu")]
    matrices = [row for row in rows if row.file == "tensor.cuh" and (row.space, row.operation) == ("shared", "load")]
    assert sum(row.requests for row in matrices) >= 7 * 64 * head_dim // 64
    assert [row for row in matrices if row.units != row.ideal] == []
    stores = [row for row in rows if (row.space, row.operation, row.bytes) == ("global", "store", 16)]
    assert sum(row.units for row in stores) >= 3 * of.q.nbytes // 32
    assert [row for row in stores if row.units != row.ideal] == []


# ------------------------------------------------------------------ planted mistakes
@pytest.mark.parametrize("name", CALLS)
def test_the_kernels_as_they_are(name: str) -> None:
    assert CALLS[name].wrong(NAME) is None


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake, assemble = MISTAKES[name], nvrtc.assemble
    count = max(assemble(source).count(mistake.old) for source in ("gradient_tensor.cu", "attention_gradient.cu"))
    assert count == 1, "the kernels have changed, and this test with them"
    monkeypatch.setattr(nvrtc, "assemble", lambda source: assemble(source).replace(mistake.old, mistake.new))
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(devices.module(NAME)), None))
    for call in mistake.calls:
        try:
            how = CALLS[call].wrong("cuda") and WRONG
        except emulator.KernelFault as fault:
            how = ", ".join(sorted({entry.kind for entry in fault.faults})) or str(fault).partition(":")[0]
        assert how is not None, f"{call}: nobody sees it"
        assert any(sign in how for sign in mistake.signs), f"{call}: seen as {how}"
