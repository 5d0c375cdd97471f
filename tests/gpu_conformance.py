"""What the instructions of a card compute, compared with stored answers: ``python tests/gpu_conformance.py``.

Each kernel of ``cuda/instructions.cu`` runs one instruction, or one exchange between threads, on chosen operands. The
answers in ``gpu_goldens.npz`` are the emulator's (``--write`` stores them anew), which ``test_cuda_conformance.py``
checks against NumPy, ml_dtypes and exact arithmetic: where a card agrees, what the emulator says of the kernels holds
for the card. All answers must agree bit by bit, NaN with any NaN, but those of approximate instructions.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import dualsoft
from dualsoft.backends.nvrtc import OPTIONS, assemble

Array = npt.NDArray[Any]
GOLDENS = Path(__file__).with_name("gpu_goldens.npz")
SOURCE = "instructions.cu"
THREADS = 128
SHOWN = 3
"""Differences of a probe that are printed."""


class Probe(NamedTuple):
    """One kernel with its operands."""

    kernel: str
    operands: tuple[Array, ...]
    result: np.dtype[Any]
    size: int
    """Elements of the result."""
    number: str
    """What the result's bits mean: a dtype's name or "bfloat16"; integers are compared as they are."""
    ulps: int = 0
    """How far apart the results may be."""
    grid: int = 1
    threads: int = THREADS
    takes_size: bool = True
    """Whether the kernel's last argument is the number of elements."""


# ---------------------------------------------------------------- operands: the same for ever, whatever NumPy draws
_SPECIAL = [0.0, 1.0, 1.5, 2.0, 3.0, 1e10, np.inf, np.nan]


def scrambled(count: int, salt: int) -> npt.NDArray[np.uint64]:
    """Return numbers of 64 bits that look random (splitmix64)."""
    z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(salt << 32)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(low: float, high: float, count: int, salt: int) -> npt.NDArray[np.float64]:
    """Return numbers of an interval that look random."""
    return low + (high - low) * (scrambled(count, salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def special(dtype: Any) -> Array:
    """Return the numbers at which formats have edges, of both signs."""
    facts = np.finfo(dtype)
    edges = [facts.smallest_subnormal, 3 * facts.smallest_subnormal, facts.tiny - facts.smallest_subnormal, facts.tiny]
    values = np.array([*_SPECIAL, *edges, 1 + facts.eps, 1 - facts.epsneg, facts.max, facts.max / 2], dtype)
    return np.concatenate([values, -values])


def numbers(dtype: Any, count: int, salt: int) -> Array:
    """Return numbers of all magnitudes, subnormal ones, infinities and NaN among them, and some near 1."""
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    anything = (scrambled(count // 2, salt) >> np.uint64(64 - 8 * bits.itemsize)).astype(bits).view(dtype)
    return np.concatenate([anything, uniform(-4, 4, count - count // 2, salt + 1).astype(dtype)])


def pairs(dtype: Any) -> tuple[Array, Array]:
    edges = special(dtype)
    a, b = np.repeat(edges, edges.size), np.tile(edges, edges.size)
    return np.concatenate([a, numbers(dtype, 300, 1)]), np.concatenate([b, numbers(dtype, 300, 3)])


def triples(dtype: Any) -> tuple[Array, Array, Array]:
    """Return factors and summands, of which many all but cancel the product: that is where one rounding shows."""
    edges = special(dtype)[::2]
    grid = np.meshgrid(edges, edges, edges, indexing="ij")
    a, b = uniform(-4, 4, 400, 5).astype(dtype), uniform(-4, 4, 400, 6).astype(dtype)
    small = np.ldexp(uniform(0.5, 1, 100, 7), np.finfo(dtype).minexp // 2).astype(dtype)
    a, b = np.concatenate([a, small]), np.concatenate([b, np.roll(small, 1)])
    c = np.where(np.arange(a.size) % 2 == 0, -a * b, np.roll(a, 9))
    first, second, third = ((edge.ravel(), own) for edge, own in zip(grid, (a, b, c), strict=True))
    return np.concatenate(first), np.concatenate(second), np.concatenate(third)


def around(value: Array, dtype: Any) -> Array:
    """Return numbers, their negatives, and the neighbours of both in a dtype."""
    near = value.astype(dtype)
    below, above = np.nextafter(near, dtype(-np.inf)), np.nextafter(near, dtype(np.inf))
    return np.concatenate([near, below, above, -near, -below, -above])


def rounding_to(digits: int, least: int, most: int, dtype: Any) -> Array:
    """Return numbers to be rounded to a narrower format: some of its own, the midpoints between, and neighbours.

    Parameters
    ----------
    digits, least, most : int
        Of the narrower format: bits of its significand, exponents of its smallest and largest normal number.
    dtype : dtype
        Of the numbers.
    """
    fractions = np.array([0, 0.5, 1, 1.5, 2.5, 2 ** (digits - 2) + 0.5, 2.0 ** (digits - 1) - 0.5])
    steps = [least, least + 1, -1, 0, 1, most - 1, most]
    normal = [np.ldexp(1 + fractions * 2.0 ** (1 - digits), exponent) for exponent in steps]
    subnormal = np.ldexp(fractions, least - digits + 1)
    with np.errstate(over="ignore"):
        chosen = around(np.concatenate([*normal, subnormal]), dtype)
        return np.concatenate([chosen, special(dtype), numbers(dtype, 300, 11)])


def halves() -> Array:
    """Return bits of 16-bit formats: every exponent of float16 and bfloat16 with some fractions, both signs."""
    fractions = np.array([0, 1, 2, 0x3F, 0x7F, 0x80, 0x155, 0x1FF, 0x200, 0x3FE, 0x3FF])
    exponents = np.arange(0, 0x8000, 0x400)
    bits = (exponents[:, None] + fractions).ravel()
    return np.concatenate([bits, bits + 0x8000]).astype(np.uint16)


def exponents(dtype: Any) -> Array:
    """Return operands of exp: all of the range in which the result is neither 0 nor 1, and edges."""
    least = np.log(float(np.finfo(dtype).smallest_subnormal))
    edges = np.array([0.0, -0.0, np.nan, -np.inf, -1e30, 40, least, least - 1, -1e-30, 1e-30, 17.5], dtype)
    return np.concatenate([edges, *(np.linspace(low, high, 200, dtype=dtype) for low, high in ((least, 40), (-2, 2)))])


# ---------------------------------------------------------------- the probes
def _of(kernel: str, result: Any, *operands: Array, number: str | None = None, ulps: int = 0) -> Probe:
    dtype, size = np.dtype(result), operands[0].size
    return Probe(kernel, operands, dtype, size, number or dtype.name, ulps, grid=-(-size // THREADS))


def _arithmetic() -> Iterator[Probe]:
    for dtype, name in ((np.float32, "f32"), (np.float64, "f64")):
        for operation in ("add", "sub", "mul", "larger", "divide"):
            yield _of(f"{operation}_{name}", dtype, *pairs(dtype))
        yield _of(f"fused_{name}", dtype, *triples(dtype))
        yield _of(f"reciprocal_{name}", dtype, np.concatenate([special(dtype), numbers(dtype, 500, 13)]))
    # Whole exponents have exact results; the smallest normal result may come out as the largest number that is flushed.
    powers = np.concatenate([special(np.float32), np.arange(-125, 128), uniform(-125, 127, 600, 17)])
    outside = [-127.0, -130.5, -149.0, -1e4, 128.0, 129.5, 1e4]
    yield _of("exp2_approximate_f32", np.float32, np.concatenate([powers, outside]).astype(np.float32), ulps=2)


def _conversions() -> Iterator[Probe]:
    wide = np.concatenate([rounding_to(24, -126, 127, np.float64), rounding_to(8, -126, 127, np.float64)])
    to_f16 = [(rounding_to(11, -14, 15, dtype), name) for dtype, name in ((np.float32, "f32"), (np.float64, "f64"))]
    yield _of("widen_f32", np.float64, np.concatenate([special(np.float32), numbers(np.float32, 300, 19)]))
    yield _of("narrow_f64", np.float32, wide)
    yield _of("narrow_to_zero_f64", np.float32, wide)
    yield _of("is_nan_f32", np.int32, np.concatenate([special(np.float32), numbers(np.float32, 2000, 23)]))
    yield _of("is_nan_f64", np.int32, special(np.float64))
    yield _of("from_f16_u16", np.float32, halves())
    yield _of("from_bf16_u16", np.float32, halves())
    for operand, name in to_f16:
        yield _of(f"to_f16_{name}", np.uint16, operand, number="float16")
    yield _of("to_bf16_f32", np.uint16, rounding_to(8, -126, 127, np.float32), number="bfloat16")
    yield _of("to_bf16_f64", np.uint16, wide, number="bfloat16")
    # Two elements a thread.
    to_bf16 = rounding_to(8, -126, 127, np.float32)
    yield _of("pair_to_f16_f32", np.uint16, to_f16[0][0][: to_f16[0][0].size // 2 * 2], number="float16")
    yield _of("pair_to_bf16_f32", np.uint16, to_bf16[: to_bf16.size // 2 * 2], number="bfloat16")


def _elementary() -> Iterator[Probe]:
    yield _of("exponential_f32", np.float32, exponents(np.float32))
    yield _of("exponential_f64", np.float64, exponents(np.float64))
    for dtype, name in ((np.float32, "f32"), (np.float64, "f64")):
        most = np.log(float(np.finfo(dtype).max))
        high = np.concatenate([exponents(dtype), np.linspace(30, most + 2, 200, dtype=dtype), [np.inf, 1e30]])
        yield _of(f"exponential_above_{name}", dtype, high.astype(dtype))
    # Above the results that the approximate instruction may flush.
    rough = np.concatenate([np.linspace(-87, 40, 300), [0.0, -0.0, np.nan, -np.inf, -200.0]]).astype(np.float32)
    yield _of("exponential_rough_f32", np.float32, rough, ulps=2)
    small = np.ldexp(uniform(0.5, 1, 200, 29), -np.arange(200) * 5)
    edges = [-1.0, 0.0, -0.0, np.inf, np.nan, np.nextafter(-1, 0), np.finfo(np.float64).max, 5e-324]
    operands = [np.linspace(-0.999, 3, 300), small, -small, np.geomspace(1, 1e300, 100), edges]
    yield _of("log1p_of_f64", np.float64, np.concatenate(operands))


def _memory() -> Iterator[Probe]:
    for size in (1, 2, 4, 8, 16):
        count = 200  # not a multiple of the block: the last threads have nothing to move
        data = scrambled(count * 2, size).view(np.uint8)[: count * size]
        yield Probe(f"move_words_{size}", (data,), np.dtype(np.uint8), count * size, "uint8", grid=2)
    data = scrambled(64, 43).view(np.uint8)
    yield Probe("copy_async_void", (data,), np.dtype(np.uint8), data.size, "uint8", threads=32, takes_size=False)


def _matrices() -> Iterator[Probe]:
    rows = scrambled(64, 47).view(np.uint16)
    for name in ("load_matrices_u32", "load_transposed_u32"):
        yield Probe(name, (rows,), np.dtype(np.uint32), 128, "uint32", threads=32, takes_size=False)
    # Whole numbers, whose sums are exact in whatever order a card adds them; an infinity, and NaN where it meets 0.
    a, b = (np.floor(uniform(-60, 60, 16 * n, 53 + n)).astype(np.float32) for n in (16, 8))
    c = np.floor(uniform(-1e5, 1e5, 128, 59)).astype(np.float32)
    a[3 * 16 + 5], b[5 * 8 + 2] = np.inf, 0
    as_bf16 = [(x.view(np.uint32) >> np.uint32(16)).astype(np.uint16) for x in (a, b)]
    for name, factors in (("f16", [x.astype(np.float16).view(np.uint16) for x in (a, b)]), ("bf16", as_bf16)):
        operands = (*factors, c)
        yield Probe(
            f"multiply_{name}_f32", operands, np.dtype(np.float32), 128, "float32", threads=32, takes_size=False
        )
    # Rounded at every step, in the order of the depth: a card that adds in another order differs.
    wide = [uniform(-2, 2, count, 61 + count) for count in (128, 64)]
    sums = uniform(-2, 2, 128, 67)
    wide[0][3 * 8 + 5], wide[1][5 * 8 + 2], wide[1][2 * 8 + 6], sums[9 * 8 + 1] = np.inf, 0, np.nan, 1e300
    wide[0][12 * 8 : 13 * 8] *= 2.0**-1060
    yield Probe("multiply_f64_f64", (*wide, sums), sums.dtype, 128, "float64", threads=32, takes_size=False)


def _exchanges() -> Iterator[Probe]:
    words = scrambled(1024, 31).view(np.int32)
    reals = uniform(-1, 1, 1024, 37)
    lanes = {
        "i32": (words[:32], np.int32, 1),
        "f32": (reals[:32].astype(np.float32), np.float32, 1),
        "f64": (reals[:32], np.float64, 1),
        "twofold": (reals[:64], np.float64, 2),
    }
    for name, (operand, result, width) in lanes.items():
        dtype = np.dtype(result)
        yield Probe(f"from_lane_{name}", (operand,), dtype, 160 * width, dtype.name, threads=32, takes_size=False)
    for name, size in (("lane_before_f64", 160), ("last_lane_f64", 32)):
        yield Probe(name, (reals[:32],), reals.dtype, size, "float64", threads=32, takes_size=False)
    # Warps of nothing, of one lane that says yes, of several and of all.
    votes = np.zeros((8, 32), np.int32)
    votes[[1, 2, 3, 4], [0, 31, 15, 16]] = 1, -1, 1 << 30, -(1 << 31)
    votes[5, ::2], votes[6] = 1, 7
    yield Probe("any_lane", (votes.ravel(),), np.dtype(np.int32), 256, "int32", grid=8, threads=32, takes_size=False)
    for size in (8, 32, 128, 512):
        threads = max(size, THREADS)
        operands = {
            "maximum_f32": (numbers(np.float32, threads, 41), 1),
            "plus_f64": (reals[:threads], 1),
            "plus_twofold": (np.stack([reals[:threads], reals[:threads] * 2.0**-60], -1).ravel(), 2),
        }
        for name, (operand, width) in operands.items():
            yield Probe(
                f"reduce_{name}_{size}", (operand,), operand.dtype, threads * width, operand.dtype.name,
                threads=threads, takes_size=False,
            )  # fmt: skip


@cache
def probes() -> tuple[Probe, ...]:
    """Return every probe."""
    with np.errstate(all="ignore"):
        return (*_arithmetic(), *_conversions(), *_elementary(), *_memory(), *_matrices(), *_exchanges())


# ---------------------------------------------------------------- running and comparing
def run(cp: Any) -> dict[str, Array]:
    """Run every probe on the module's current device.

    Parameters
    ----------
    cp : module
        CuPy, or one that has its names.

    Returns
    -------
    dict of str to ndarray
    """
    module = cp.RawModule(code=assemble(SOURCE), options=OPTIONS)
    found = {}
    for probe in probes():
        out = cp.empty(probe.size, probe.result)
        width = int(probe.kernel.rpartition("_")[2]) if probe.kernel.startswith("move_words") else 1
        count = (np.int32(probe.size // width),) if probe.takes_size else ()
        arguments = (*map(cp.asarray, probe.operands), out, *count)
        module.get_function(probe.kernel)((probe.grid,), (probe.threads,), arguments)
        found[probe.kernel] = out.get()
    return found


def _bits(values: Array) -> Array:
    return values.view(f"u{values.itemsize}")


def _is_nan(values: Array, number: str) -> npt.NDArray[np.bool_]:
    if number == "bfloat16":
        return np.asarray((values & 0x7FFF) > 0x7F80)
    dtype = np.dtype(number)
    return np.isnan(values.view(dtype)) if dtype.kind == "f" else np.zeros(values.shape, bool)


def _distance(a: Array, b: Array) -> Array:
    """Return how many numbers of the format lie between, counted through zero."""

    def order(values: Array) -> Array:
        bits = _bits(values).astype(np.int64)
        return np.where(bits >> (8 * values.itemsize - 1) & 1, (1 << (8 * values.itemsize - 1)) - bits, bits)

    return np.abs(order(a) - order(b))


def differing(probe: Probe, found: Array, golden: Array) -> Array:
    """Return the indices at which a probe's results disagree with the stored ones."""
    same = _bits(found) == _bits(golden)
    if probe.ulps:
        numbers_both = np.isfinite(found) & np.isfinite(golden)
        same |= numbers_both & (_distance(found, golden) <= probe.ulps)
    same |= _is_nan(found, probe.number) & _is_nan(golden, probe.number)
    return np.flatnonzero(~same)


def compare(found: Mapping[str, Array], goldens: Mapping[str, Array]) -> list[str]:
    """Return one line a probe that disagrees, with the first operands at which it does."""
    lines = []
    for probe in probes():
        if probe.kernel not in goldens or goldens[probe.kernel].shape != found[probe.kernel].shape:
            lines.append(f"{probe.kernel}: {GOLDENS.name} has no such answers: it is of another state of the probes")
            continue
        mine, golden = found[probe.kernel], goldens[probe.kernel]
        at = differing(probe, mine, golden)
        if at.size:
            shown = "; ".join(_shown(probe, int(i), mine, golden) for i in at[:SHOWN])
            lines.append(f"{probe.kernel}: {at.size} of {probe.size} differ: {shown}")
    return lines


def _shown(probe: Probe, i: int, found: Array, golden: Array) -> str:
    elementwise = all(operand.size == probe.size for operand in probe.operands)
    operands = ", ".join(f"{_bits(operand)[i]:#x}" for operand in probe.operands) if elementwise else ""
    return f"[{i}] ({operands}) gives {_bits(found)[i]:#x}, stored {_bits(golden)[i]:#x}"


def load_goldens() -> dict[str, Array]:
    """Return the stored answers by kernel."""
    with np.load(GOLDENS) as stored:
        return dict(stored)


def _write() -> int:
    import emulator

    if (reason := emulator.why_not()) is not None:
        print(f"the emulator, whose answers are stored, cannot be used: {reason}", file=sys.stderr)
        return 2
    np.savez_compressed(GOLDENS, **run(emulator.cupy_for("sm_80")))
    print(f"{len(probes())} probes are in {GOLDENS}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 where the card agrees, 1 where it does not, 2 where nothing could be compared."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="store the emulator's answers; needs no card")
    if parser.parse_args(arguments).write:
        return _write()
    reason = dualsoft.backends()["cuda"]
    if reason is not None:
        print(f"there is no card to ask: {reason}", file=sys.stderr)
        return 2
    import cupy

    lines = compare(run(cupy), load_goldens())
    answers = sum(probe.size for probe in probes())
    print(f"compute capability {cupy.cuda.Device().compute_capability}: {len(probes())} probes, {answers} answers")
    for line in lines:
        print(f"  {line}")
    print("all agree" if not lines else f"{len(lines)} probes disagree")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
