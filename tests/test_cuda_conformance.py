"""The probes of ``gpu_conformance.py``: the emulator gives the stored answers, other arithmetic finds them right."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import cubin
import emulator
import gpu_conformance as conformance
import ml_dtypes
import mpmath
import numpy as np
import pytest
from devices import ARCHITECTURES
from small_kernels import SKIP

import dualsoft
from dualsoft import accuracy
from dualsoft.backends import nvrtc
from dualsoft.backends.nvrtc import Variant

Array = conformance.Array
PROBES = {probe.kernel: probe for probe in conformance.probes()}
FORMATS = {
    "bfloat16": (8, -126, 127),
    "float32": (24, -126, 127),
    "float64": (53, -1022, 1023),
}
"""Digits, and the exponents of the smallest and the largest normal number."""


# ---------------------------------------------------------------- the emulator


@SKIP
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_emulator_gives_the_stored_answers(architecture: str) -> None:
    found = conformance.run(emulator.cupy_for(architecture))
    assert not conformance.compare(found, conformance.load_goldens())


@SKIP
def test_answers_within_the_documented_errors_are_accepted() -> None:
    with emulator.settings(perturb=True, seed=7, schedule="random"):
        found = conformance.run(emulator.cupy_for("sm_80"))
    moved = found["exp2_approximate_f32"] != conformance.load_goldens()["exp2_approximate_f32"]
    assert moved.mean() > 0.2
    assert not conformance.compare(found, conformance.load_goldens())


def test_every_function_of_the_wrappers_has_a_probe() -> None:
    """Each function of ``ptx*.cuh`` is called, by name and by type of operand, in ``instructions.cu``."""
    wrappers = "".join(path.read_text(encoding="utf-8") for path in sorted(nvrtc.folder().glob("ptx*.cuh")))
    functions = set(re.findall(r"^DS_DEVICE \w+ (\w+)\((\w+(?:<\d+>)?)", wrappers, re.MULTILINE))
    probed = {(kernel.rpartition("_")[0], kernel.rpartition("_")[2]) for kernel in PROBES}
    assert len(functions) > 20
    for name, operand in functions:
        if name in ("load_words", "store_words"):
            sizes = set(map(int, re.findall(rf"{name}\([^)]*words<(\d+)>", wrappers)))
            assert sizes == {int(size) for kernel, size in probed if kernel == "move_words"}
        else:
            assert (name, operand) in probed, f"{name}({operand}) has no kernel in instructions.cu"


def test_every_kernel_has_a_probe() -> None:
    text = nvrtc.assemble(conformance.SOURCE)
    used = re.findall(r"^DS_(?:UNARY|BINARY|TERNARY|KERNEL)\(([a-z]\w*)[,)]", text, re.MULTILINE)
    sizes = re.findall(r"^DS_REDUCTIONS\((\d+)\)", text, re.MULTILINE)
    reductions = [f"reduce_{name}_{size}" for size in sizes for name in ("maximum_f32", "plus_f64", "plus_twofold")]
    assert set(used) | set(reductions) == set(PROBES) == set(conformance.load_goldens())


@pytest.mark.skipif(cubin.why_not() is not None, reason=str(cubin.why_not()))
@pytest.mark.parametrize("architecture", [75, 80, 90, 120])
def test_the_probes_compile(architecture: int) -> None:
    assert cubin.compile_variant(Variant(conformance.SOURCE, "add_f32", ()), architecture)


# ---------------------------------------------------------------- the stored answers, by other arithmetic


def rounded(value: Fraction, number: str) -> float:
    """Round to the nearest number of a format, ties to even."""
    digits, least, most = FORMATS[number]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    spacing = Fraction(2) ** (max(exponent, least) - digits + 1)
    result = round(size / spacing) * spacing
    finite = float(result) if result < Fraction(2) ** (most + 1) else np.inf
    return finite if value > 0 else -finite


def fused(a: Array, b: Array, c: Array) -> Array:
    with np.errstate(all="ignore"):
        # An infinite product of finite factors is finite here.
        plain = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, a * b + c)
    for i in np.flatnonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        product, summand = Fraction(float(a[i])) * Fraction(float(b[i])), Fraction(float(c[i]))
        exact = product + summand
        if exact != 0:
            plain[i] = np.copysign(rounded(exact, plain.dtype.name), 1 if exact > 0 else -1)
        elif product != 0:
            plain[i] = 0.0
    return plain


def larger(a: Array, b: Array) -> Array:
    """Return the maximum: of a number and NaN the number, and +0 above -0."""
    both_zero = (a == 0) & (b == 0)
    return np.where(both_zero, np.where(np.signbit(a) & np.signbit(b), -0.0, 0.0), np.fmax(a, b)).astype(a.dtype)


def to_zero(x: Array) -> Array:
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def f64_to_bf16(x: Array) -> Array:
    exact = [rounded(Fraction(float(v)), "bfloat16") if np.isfinite(v) else v for v in x]
    return np.copysign(np.array(exact), x).astype(ml_dtypes.bfloat16).view(np.uint16)


def exchanged(x: Array, width: int = 1) -> Array:
    lanes = x.reshape(32, width)
    return np.stack([lanes[np.arange(32) ^ (1 << k)] for k in range(5)]).ravel()


def lane_before(x: Array) -> Array:
    lanes = np.arange(32)
    return np.stack([x[np.where(lanes < 1 << k, lanes, lanes - (1 << k))] for k in range(5)]).ravel()


def any_lane(x: Array) -> Array:
    return np.repeat((x.reshape(-1, 32) != 0).any(1), 32).astype(np.int32)


def as_f16(x: Array) -> Array:
    return x.astype(np.float16).view(np.uint16)


def fragments(matrices: Array) -> Array:
    """Lane 4 g + t has the elements 2t and 2t + 1 of row g of each matrix."""
    by_lane = np.moveaxis(matrices.reshape(4, 32, 2), 0, 1)
    return np.ascontiguousarray(by_lane).view(np.uint32).ravel()


def product(a: Array, b: Array, c: Array) -> Array:
    return (a.reshape(16, 16).astype(np.float64) @ b.reshape(16, 8).astype(np.float64)).ravel() + c


def product_f64(a: Array, b: Array, c: Array) -> Array:
    """Return the sums of a chain of fused multiply-adds, which begins with c and goes along the depth."""
    left, right = np.repeat(a.reshape(16, 8), 8, 0), np.tile(b.reshape(8, 8), 16)
    for k in range(8):
        c = fused(left[:, k], right[k], c)
    return c


EXACT: dict[str, Callable[..., Array]] = {
    **{f"{name}_{bits}": f for name, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply),
       ("larger", larger), ("divide", np.divide), ("fused", fused), ("reciprocal", np.reciprocal))
       for bits in ("f32", "f64")},
    "widen_f32": lambda x: x.astype(np.float64),
    "narrow_f64": lambda x: x.astype(np.float32),
    "narrow_to_zero_f64": to_zero,
    "is_nan_f32": lambda x: np.isnan(x).astype(np.int32),
    "is_nan_f64": lambda x: np.isnan(x).astype(np.int32),
    "from_f16_u16": lambda x: x.view(np.float16).astype(np.float32),
    "from_bf16_u16": lambda x: x.view(ml_dtypes.bfloat16).astype(np.float32),
    "to_f16_f32": as_f16,
    "to_f16_f64": as_f16,
    "to_bf16_f32": lambda x: x.astype(ml_dtypes.bfloat16).view(np.uint16),
    "to_bf16_f64": f64_to_bf16,
    **{f"move_words_{size}": lambda x: x for size in (1, 2, 4, 8, 16)},
    "pair_to_f16_f32": as_f16,
    "pair_to_bf16_f32": lambda x: x.astype(ml_dtypes.bfloat16).view(np.uint16),
    "load_matrices_u32": lambda x: fragments(x.reshape(4, 8, 8)),
    "load_transposed_u32": lambda x: fragments(x.reshape(4, 8, 8).swapaxes(1, 2)),
    "multiply_f16_f32": lambda a, b, c: product(a.view(np.float16), b.view(np.float16), c),
    "multiply_bf16_f32": lambda a, b, c: product(a.view(ml_dtypes.bfloat16), b.view(ml_dtypes.bfloat16), c),
    "multiply_f64_f64": product_f64,
    **{f"from_lane_{name}": exchanged for name in ("i32", "f32", "f64")},
    "from_lane_twofold": lambda x: exchanged(x, 2),
    "lane_before_f64": lane_before,
    "last_lane_f64": lambda x: np.full(32, x[31]),
    "any_lane": any_lane,
    **{f"reduce_maximum_f32_{size}": lambda x, size=size: grouped_maximum(x, size) for size in (8, 32, 128, 512)},
}  # fmt: skip


def grouped_maximum(x: Array, size: int) -> Array:
    return np.repeat(np.fmax.reduce(x.reshape(-1, size), 1), size)


@pytest.mark.parametrize("kernel", EXACT)
def test_stored_answers_are_exact(kernel: str) -> None:
    probe, golden = PROBES[kernel], conformance.load_goldens()[kernel]
    with np.errstate(all="ignore"):
        expected = EXACT[kernel](*probe.operands).astype(probe.result)
    wrong = conformance.differing(probe, golden, expected)
    first = wrong[:3]
    assert wrong.size == 0, [
        values[first] for values in (golden, expected, *probe.operands) if values.size > first.max()
    ]


def exactly(function: Callable[[Any], Any], x: float) -> Any:
    with mpmath.workprec(200):
        return function(mpmath.mpf(x))


APPROXIMATE: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    # the function, and how many units its result may be off: a constant, and so much for each unit of |x|
    "exp2_approximate_f32": (lambda x: mpmath.power(2, x), 2, 0),
    # The rounding of x log2(e) grows with it.
    "exponential_rough_f32": (mpmath.exp, 3, 1.5),
    "exponential_f32": (mpmath.exp, 1, 0),
    "exponential_f64": (mpmath.exp, 1, 0),
    "exponential_above_f32": (mpmath.exp, 1, 0),
    "exponential_above_f64": (mpmath.exp, 1, 0),
    "log1p_of_f64": (lambda x: mpmath.log1p(x) if x > -1 else mpmath.mpf("-inf"), 1, 0),
}


@pytest.mark.parametrize("kernel", APPROXIMATE)
def test_stored_answers_are_close(kernel: str) -> None:
    probe, golden = PROBES[kernel], conformance.load_goldens()[kernel]
    function, units, by_size = APPROXIMATE[kernel]
    flushes = kernel in ("exp2_approximate_f32", "exponential_rough_f32")
    for x, y in zip(probe.operands[0].tolist(), golden.tolist(), strict=True):
        if x != x:
            assert y != y
            continue
        exact = exactly(function, x)
        nearest = float(exact)
        if flushes and 0 < nearest < 2.0**-126:
            assert y == 0
        elif abs(exact) >= mpmath.mpf(float(np.finfo(golden.dtype).max)) * (1 + mpmath.mpf(2) ** -54):
            assert y == np.copysign(np.inf, nearest)
        else:
            off = abs(mpmath.mpf(y) - exact) / float(accuracy.ulp(nearest, golden.dtype))
            assert off <= units + (by_size * abs(x) if by_size else 0), (x, y, float(off))


@pytest.mark.parametrize("size", [8, 32, 128, 512])
@pytest.mark.parametrize("width", [1, 2], ids=["f64", "twofold"])
def test_stored_sums(size: int, width: int) -> None:
    """Every thread of a group ends with the same bits; a pair is within two units of twice float64's digits."""
    name = f"reduce_plus_{'f64' if width == 1 else 'twofold'}_{size}"
    x, golden = PROBES[name].operands[0].reshape(-1, size, width), conformance.load_goldens()[name]
    found = golden.reshape(-1, size, width)
    np.testing.assert_array_equal(found, np.broadcast_to(found[:, :1], found.shape))
    for terms, sums in zip(x.tolist(), found[:, 0].tolist(), strict=True):
        exact = sum(Fraction(value) for term in terms for value in term)
        bulk = sum(abs(Fraction(value)) for term in terms for value in term)
        digits = 53 if width == 1 else 104
        assert abs(sum(map(Fraction, sums)) - exact) <= size * bulk / 2**digits


# ---------------------------------------------------------------- differences are found


def changed(kernel: str, index: int, by: int) -> dict[str, Array]:
    found = {name: values.copy() for name, values in conformance.load_goldens().items()}
    found[kernel].view(f"u{found[kernel].itemsize}")[index] += by
    return found


@pytest.mark.parametrize(
    ("kernel", "index", "by"),
    [("add_f32", 700, 1), ("fused_f64", 4200, 1), ("any_lane", 3, 1), ("move_words_16", 5, 1), ("to_bf16_f32", 3, 1),
     ("exp2_approximate_f32", 300, 3)],
)  # fmt: skip
def test_one_wrong_answer_is_named(kernel: str, index: int, by: int) -> None:
    lines = conformance.compare(changed(kernel, index, by), conformance.load_goldens())
    assert len(lines) == 1
    assert lines[0].startswith(f"{kernel}: 1 of {PROBES[kernel].size} differ: [{index}]")


def test_what_may_differ_is_let_pass() -> None:
    found = changed("exp2_approximate_f32", 300, 2)
    nan = np.flatnonzero(np.isnan(found["add_f32"]))[0]
    found["add_f32"].view(np.uint32)[nan] = 0xFFC00001
    halves = np.flatnonzero(found["to_bf16_f32"] == 0x7FFF)[0]
    found["to_bf16_f32"][halves] = 0xFFC1
    assert not conformance.compare(found, conformance.load_goldens())


def test_a_flushed_subnormal_number_is_found() -> None:
    found = changed("mul_f32", 0, 0)
    subnormal = (found["mul_f32"] != 0) & (np.abs(found["mul_f32"]) < np.finfo(np.float32).tiny)
    assert subnormal.sum() > 20
    found["mul_f32"][subnormal] = 0
    assert conformance.compare(found, conformance.load_goldens())[0].startswith(f"mul_f32: {subnormal.sum()} of")


def test_stored_answers_of_other_probes_are_refused() -> None:
    stored = conformance.load_goldens()
    del stored["add_f32"]
    assert "add_f32" in conformance.compare(conformance.load_goldens(), stored)[0]


@pytest.mark.skipif(dualsoft.backends()["cuda"] is None, reason="there is a card here")
def test_without_a_card_the_command_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main([]) == 2
    assert str(dualsoft.backends()["cuda"]) in capsys.readouterr().err


@pytest.mark.skipif(dualsoft.backends()["cuda"] is not None, reason=f"no card: {dualsoft.backends()['cuda']}")
def test_the_card_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main([]) == 0, capsys.readouterr().out
