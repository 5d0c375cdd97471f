"""What PTX instructions compute, against NumPy: exact ones bit by bit, approximate ones within their bounds."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import emulator
import numpy as np
import numpy.typing as npt
import pytest
from emulator import cupy_for
from small_kernels import SKIP

pytestmark = SKIP
cp = cupy_for("sm_80")

Array = npt.NDArray[Any]
TYPES = {
    "f": ("float", np.float32),
    "d": ("double", np.float64),
    "h": ("unsigned short", np.uint16),
    "r": ("unsigned", np.uint32),
    "l": ("unsigned long long", np.uint64),
}
FLOATS = np.concatenate(
    [
        [0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 65504, 65519.996, 65520, 3e38, -3e38, 1e-45, -1e-40, 1.1754944e-38],
        [5.9604645e-8, 2.9802322e-8, 2.9802326e-8, 6.1e-5, 2147483647, 4294967295, -2147483648.5, 9.3e18, 1.9e19],
        [np.inf, -np.inf, np.nan],
        np.random.default_rng(1).standard_normal(400) * 10.0 ** np.repeat(range(-20, 20), 10),
    ]
).astype(np.float32)
DOUBLES = np.concatenate(
    [FLOATS.astype(np.float64) * (1 + 2.0**-26), [1e300, -1e300, 1e-300, 5e-324, 1 + 2.0**-24, 1 + 3 * 2.0**-25]]
)
HALVES = np.arange(1 << 16, dtype=np.uint16)
WORDS = np.random.default_rng(2).integers(0, 1 << 32, 500, np.uint32)


class Case(NamedTuple):
    """An opcode, the letters of its registers (the result's first), and what NumPy makes of the same operands."""

    opcode: str
    letters: str
    expected: Callable[..., Array]
    operands: tuple[Array, ...]


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def with_ftz(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *operands: flushed(function(*map(flushed, operands)))


def to_bf16(x: Array) -> Array:
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)


def to_f16(x: Array) -> Array:
    return np.where(np.isnan(x), 0x7FFF, x.astype(np.float16).view(np.uint16)).astype(np.uint16)


def packed(convert: Callable[[Array], Array], high: Array, low: Array) -> Array:
    return convert(high).astype(np.uint32) << 16 | convert(low)


def towards_zero(x: Array) -> Array:
    nearest = x.astype(np.float32)
    return np.where(np.abs(nearest.astype(np.float64)) > np.abs(x), np.nextafter(nearest, np.float32(0)), nearest)


def to_integer(round_: Callable[[Array], Array], dtype: Any) -> Callable[[Array], Array]:
    limits = np.iinfo(dtype)

    def convert(x: Array) -> Array:
        whole = [0 if value != value else max(limits.min, min(limits.max, value)) for value in _integers(round_(x))]
        return np.array(whole, dtype).view(np.dtype(dtype).str.replace("i", "u"))

    return convert


def _integers(x: Array) -> list[Any]:
    """Return exact Python integers; infinities stay floats, which compare as they should."""
    return [int(value) if np.isfinite(value) else value for value in x.astype(np.float64).tolist()]


def pairs(x: Array) -> tuple[Array, Array]:
    return x, np.roll(x, 7)


def triples(x: Array) -> tuple[Array, Array, Array]:
    return x, np.roll(x, 7), np.roll(x, 31)


def fused(a: Array, b: Array, c: Array) -> Array:
    exact = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    return exact.astype(np.float32)


ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
CASES = [
    *(Case(f"{name}.rn.f32", "fff", f, pairs(FLOATS)) for name, f in ARITHMETIC.items()),
    *(Case(f"{name}.rn.ftz.f32", "fff", with_ftz(f), pairs(FLOATS)) for name, f in ARITHMETIC.items()),
    *(Case(f"{name}.rn.f64", "ddd", f, pairs(DOUBLES)) for name, f in ARITHMETIC.items()),
    Case("fma.rn.f32", "ffff", fused, triples(np.random.default_rng(4).standard_normal(500).astype(np.float32))),
    Case("max.f32", "fff", np.fmax, pairs(FLOATS)),
    Case("min.f64", "ddd", np.fmin, pairs(DOUBLES)),
    Case("max.NaN.f32", "fff", np.maximum, pairs(FLOATS)),
    Case("min.NaN.f32", "fff", np.minimum, pairs(FLOATS)),
    Case("div.rn.f32", "fff", np.divide, pairs(FLOATS)),
    Case("rcp.rn.f32", "ff", np.reciprocal, (FLOATS,)),
    Case("rcp.rn.f64", "dd", np.reciprocal, (DOUBLES,)),
    Case("sqrt.rn.f32", "ff", np.sqrt, (FLOATS,)),
    Case("cvt.f32.f16", "fh", lambda x: x.view(np.float16).astype(np.float32), (HALVES,)),
    Case("cvt.rn.f16.f32", "hf", to_f16, (FLOATS,)),
    Case("cvt.rn.f16.f64", "hd", to_f16, (DOUBLES,)),
    Case("cvt.rn.bf16.f32", "hf", to_bf16, (FLOATS,)),
    Case("cvt.rn.f16x2.f32", "rff", lambda high, low: packed(to_f16, high, low), pairs(FLOATS)),
    Case("cvt.rn.bf16x2.f32", "rff", lambda high, low: packed(to_bf16, high, low), pairs(FLOATS)),
    Case("cvt.f64.f32", "df", lambda x: x.astype(np.float64), (FLOATS,)),
    Case("cvt.rn.f32.f64", "fd", lambda x: x.astype(np.float32), (DOUBLES,)),
    Case("cvt.rz.f32.f64", "fd", towards_zero, (DOUBLES,)),
    Case("cvt.rni.s32.f32", "rf", to_integer(np.rint, np.int32), (FLOATS,)),
    Case("cvt.rzi.s32.f32", "rf", to_integer(np.trunc, np.int32), (FLOATS,)),
    Case("cvt.rzi.u32.f32", "rf", to_integer(np.trunc, np.uint32), (FLOATS,)),
    Case("cvt.rn.f32.s32", "fr", lambda x: x.view(np.int32).astype(np.float32), (WORDS,)),
    Case("cvt.rn.f32.u32", "fr", lambda x: x.astype(np.float32), (WORDS,)),
    Case("prmt.b32", "rrrr", lambda a, b, s: permuted(a, b, s), triples(WORDS)),
    Case("lop3.b32", "rrr", lambda a, b: (a & b) ^ 0x0F0F0F0F, pairs(WORDS)),
    Case("shf.l.wrap.b32", "rrrr", lambda lo, hi, n: funnel(lo, hi, 32 - (n & 31)), triples(WORDS)),
    Case("shf.r.wrap.b32", "rrrr", lambda lo, hi, n: funnel(lo, hi, n & 31), triples(WORDS)),
]
IMMEDIATES = {"lop3.b32": ", 0x0f0f0f0f, 0x6a"}  # a, b, a constant c, and the table of (a & b) ^ c


def permuted(a: Array, b: Array, selector: Array) -> Array:
    source = np.stack([a, b], -1).view(np.uint8).astype(np.uint32)
    result = np.zeros_like(a)
    for byte in range(4):
        choice = selector >> 4 * byte & 15
        value = np.take_along_axis(source, (choice & 7)[:, None].astype(np.int64), -1)[:, 0]
        value = np.where(choice & 8, np.where(value & 128, 255, 0), value).astype(np.uint32)
        result |= value << 8 * byte
    return result


def funnel(low: Array, high: Array, count: Array) -> Array:
    whole = high.astype(np.uint64) << 32 | low
    return (whole >> count.astype(np.uint64)).astype(np.uint32)


def kernel_text(name: str, opcode: str, letters: str) -> str:
    parameters = ", ".join(f"const {TYPES[letter][0]}* x{number}" for number, letter in enumerate(letters[1:]))
    template = ", ".join(f"%{number}" for number in range(len(letters))) + IMMEDIATES.get(opcode, "")
    inputs = ", ".join(f'"{letter}"(x{number}[i])' for number, letter in enumerate(letters[1:]))
    return (
        f'extern "C" __global__ void {name}({TYPES[letters[0]][0]}* y, {parameters}, int n) {{\n'
        f"    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n) return;\n"
        f"    {TYPES[letters[0]][0]} result;\n"
        f'    asm("{opcode} {template};" : "={letters[0]}"(result) : {inputs});\n    y[i] = result;\n}}\n'
    )


def name_of(opcode: str) -> str:
    return opcode.replace(".", "_")


APPROXIMATE = {
    # The function, the units in the last place that PTX allows beyond correct rounding, and an absolute error.
    "ex2.approx.f32": (np.exp2, 2, 0.0),
    "ex2.approx.ftz.f32": (np.exp2, 2, 2.0**-126),
    "lg2.approx.ftz.f32": (np.log2, 2, 2.0**-22),
    "rcp.approx.ftz.f32": (np.reciprocal, 1, 2.0**-126),
}


@cache
def module() -> Any:
    instructions = [*((case.opcode, case.letters) for case in CASES), *((opcode, "ff") for opcode in APPROXIMATE)]
    texts = [kernel_text(name_of(opcode), opcode, letters) for opcode, letters in instructions]
    return cp.RawModule(code='#line 1 "numbers.cu"\n' + "".join(texts))


def run(opcode: str, letters: str, operands: tuple[Array, ...]) -> Array:
    size = operands[0].size
    y = cp.empty(size, TYPES[letters[0]][1])
    kernel = module().get_function(name_of(opcode))
    kernel(((size + 255) // 256,), (256,), (y, *map(cp.asarray, operands), np.int32(size)))
    result: Array = y.get()
    return result


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.opcode)
def test_exact_instructions(case: Case) -> None:
    got = run(case.opcode, case.letters, case.operands)
    with np.errstate(all="ignore"):
        expected = case.expected(*case.operands)
    assert expected.dtype == got.dtype
    if got.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(got), ~numbers)
        bits = f"u{got.itemsize}"
        # Of two zeros of unlike sign either may be the larger.
        same = (got.view(bits) == expected.view(bits)) | ((got == 0) & (expected == 0) & case.opcode.startswith("m"))
        assert same[numbers].all()
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("perturb", [False, True])
@pytest.mark.parametrize("opcode", APPROXIMATE)
def test_approximate_instructions(opcode: str, perturb: bool) -> None:
    function, units, absolute = APPROXIMATE[opcode]
    x = np.concatenate([np.random.default_rng(3).uniform(-120, 120, 4000).astype(np.float32), FLOATS])
    x = np.abs(x) if "lg2" in opcode else x
    with emulator.settings(perturb=perturb, seed=5):
        got = run(opcode, "ff", (x,))
    with np.errstate(all="ignore"):
        exact = function((flushed(x) if "ftz" in opcode else x).astype(np.float64))
        rounded = exact.astype(np.float32)
        error = np.abs(got - exact)
        bound = (units + 0.501) * np.spacing(np.maximum(np.abs(got), np.abs(rounded))) + absolute
    same = (error <= bound) | (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    assert same.all(), (x[~same], got[~same], exact[~same])


def test_approximate_instructions_can_be_perturbed() -> None:
    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    plain = run("ex2.approx.ftz.f32", "ff", (x,))
    with emulator.settings(perturb=True, seed=1):
        moved, again = (run("ex2.approx.ftz.f32", "ff", (x,)) for _ in range(2))
    assert (plain != moved).mean() > 0.2
    np.testing.assert_array_equal(moved, again)
