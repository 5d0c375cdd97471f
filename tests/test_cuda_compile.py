"""The compile gate: every kernel variant that can be launched is compiled, and its machine code is read.

Three architectures share the variants, unless ``DUALSOFT_TEST_ARCHITECTURES`` asks for others (``tests/gate.py``). What
it asks for must be possible: missing tools fail then and do not skip. ``python tests/gate.py`` prints the numbers that
are judged here.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cubin
import gate
import pytest
from cubin import Code, CompileError
from machine_limits import REGISTERS, SPILLS, SUBROUTINES

from dualsoft.backends.nvrtc import OPTIONS, Variant, folder

ASKED = os.environ.get("DUALSOFT_TEST_ARCHITECTURES", "")
CHOSEN = tuple(number for group in gate.groups(ASKED) for number in group)

BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}


def need(architecture: int | None = None) -> None:
    """Skip, or fail where architectures were asked for, unless the tools are here."""
    reason = cubin.why_not()
    if reason is None and architecture is not None and architecture not in cubin.nvrtc().architectures:
        reason = f"NVRTC {cubin.nvrtc().version} does not know sm_{architecture}"
    if reason is not None:
        (pytest.fail if ASKED else pytest.skip)(reason)


@pytest.fixture(scope="module", params=CHOSEN, ids=lambda number: f"sm_{number}")
def found(request: pytest.FixtureRequest) -> tuple[Code, ...]:
    """All or some variants for one architecture; one that does not compile, or with a warning, is an error here."""
    need(request.param)
    codes = gate.codes(ASKED, request.param)
    assert codes, "the launch tables list no variants"
    return codes


def none_of(complaints: Iterable[str]) -> None:
    lines = list(complaints)
    assert not lines, f"{len(lines)} variants:\n" + "\n".join(lines)


PLANTED = Variant("planted.cu", "planted", ())


def read(*texts: str, architecture: int = 90) -> list[Code]:
    """The machine code of texts with one kernel each."""
    options = cubin.options_of(PLANTED, architecture)
    compiled = [cubin.nvrtc().compile(text, options, PLANTED.source) for text in texts]
    return cubin.read([PLANTED] * len(texts), compiled, architecture)


# ---------------------------------------------------------------- what every variant must keep


def test_nothing_spills(found: tuple[Code, ...]) -> None:
    """Nothing lies in local memory, but for the exceptions, which must be as listed."""
    for_these = {(code.variant.name, code.architecture): code.spilled for code in found}
    none_of(
        f"{name}, sm_{architecture}: {spilled} bytes, {SPILLS.get((name, architecture), (0,))[0]} are allowed"
        for (name, architecture), spilled in for_these.items()
        if spilled != SPILLS.get((name, architecture), (0,))[0]
    )


def test_registers(found: tuple[Code, ...]) -> None:
    none_of(
        f"{code.variant.name}, sm_{code.architecture}: {code.registers} registers"
        for code in found
        if code.registers > REGISTERS[code.variant.kernel]
    )


def test_blocks_fit(found: tuple[Code, ...]) -> None:
    """The launch bound is stated, so a block of that size always has its registers; static shared memory is small."""
    none_of(
        f"{code.variant.name}, sm_{code.architecture}: {code.threads} threads, {code.usage['SHARED']} bytes"
        for code in found
        if not 1 <= code.threads <= 1024 or code.usage["SHARED"] > 48 * 1024 or code.resident_warps == 0
    )


def accesses_due(variant: Variant) -> dict[str, int]:
    """The widest accesses of a variant whose rows lie contiguous and aligned: one or more for each chunk, each way."""
    macros = dict(variant.defines)
    if int(macros.get("DS_WIDTH", 1)) > 1:
        written = 4 if int(macros["DS_WIDTH"]) == 8 else 8
        read = written if variant.kernel == "normalize_columns" else 8
        return {"LDG.128": read} | ({} if variant.kernel == "logsumexp_columns" else {"STG.128": written})
    if not int(macros.get("DS_DIRECT", 0)):
        return {}
    due = {}
    reads, writes = {"LDG": "DS_X"}, {"STG": "DS_Y"}
    ways = {"softmax_rows": reads | writes, "normalize_rows": reads | writes, "softmax_kept": writes}
    for way, macro in ways.get(variant.kernel, reads).items():
        size = int(macros["DS_CHUNK"]) * BYTES[str(macros[macro]).removeprefix("ds::")]
        width = min(size, 16)
        due[f"{way}.{width * 8}"] = int(macros["DS_SLOTS"]) * (size // width)
    return due


def test_accesses_are_wide(found: tuple[Code, ...]) -> None:
    none_of(
        f"{code.variant.name}, sm_{code.architecture}: {code.counts[name]} {name}, {due} are due"
        for code in found
        for name, due in accesses_due(code.variant).items()
        if code.counts[name] < due
    )


def test_kept_rows_are_copied_beside_the_threads(found: tuple[Code, ...]) -> None:
    """One cp.async of 16 bytes for each chunk; sm_75 has none, and loads as wide."""
    kept = [code for code in found if code.variant.kernel == "softmax_kept"]
    assert kept
    name = "LDGSTS" if found[0].architecture >= 80 else "LDG.128"
    none_of(
        f"{code.variant.name}, sm_{code.architecture}: {code.counts[name]} {name}"
        for code in kept
        if code.counts[name] < (int(dict(code.variant.defines)["DS_SLOTS"]) if name == "LDGSTS" else 1)
    )


def of_kernel(found: tuple[Code, ...], kernel: str) -> list[Code]:
    codes = [code for code in found if code.variant.kernel == kernel]
    assert codes
    return codes


def copies_of(code: Code) -> int:
    """The instructions that bring 16 bytes a lane to shared memory, or to registers on their way there."""
    return code.counts["LDG.128" if code.architecture < 80 else "LDGSTS"]


def test_attention_of_half_types_is_on_tensor_cores(found: tuple[Code, ...]) -> None:
    """Two products of a tile are so many multiplications, and copies go beside.

    A load of matrices serves two of them, and four where a warp has 32 rows: shared memory is read half as often.
    """
    codes = of_kernel(found, "attention_tensor")
    is_old, is_new = found[0].architecture < 80, found[0].architecture >= 100
    for code in codes:
        dim = int(dict(code.variant.defines)["DS_DIM"])
        keys = {64: 32 if is_new else 64, 128: 64, 256: 16 if is_old else 32}[dim]
        sets = 2 if dim == 64 else 1  # of 16 rows, a warp
        steps = dim // 16 if dim <= 128 else 4  # of the first product, in the text
        loads = keys // 16 * (steps + dim // 16)
        assert code.threads == 128 // sets, code.variant.name
        assert code.counts["HMMA"] == 2 * sets * loads * (2 if is_old else 1), code.variant.name
        assert loads <= code.counts["LDSM"] <= loads + sets * dim // 16, code.variant.name
        assert copies_of(code) >= 2 * keys * dim // 8 // code.threads, code.variant.name


def test_attention_of_float64_is_on_tensor_cores(found: tuple[Code, ...]) -> None:
    """With many rows, and nothing else is."""
    wrong = (code for code in found if code.counts["DMMA"] != gate.f64_products(code.variant, code.architecture))
    none_of(f"{code.variant.name}, sm_{code.architecture}: {code.counts['DMMA']} DMMA" for code in wrong)


def test_gradients_of_half_types_are_on_tensor_cores(found: tuple[Code, ...]) -> None:
    """Three products of a tile for dq and four for dk with dv; loads serve as many of them as in the forward pass."""
    codes = of_kernel(found, "gradient_tensor")
    is_old = found[0].architecture < 80
    for code in codes:
        macros = dict(code.variant.defines)
        dim, products = int(macros["DS_DIM"]), 1 + int(macros["DS_KEYS"])  # the last ones, beside two of scores
        passing = 16 if is_old and dim == 128 else 32
        sets = 2 if dim == 64 and products == 1 else 1  # of 16 lines, a warp
        loads = passing // 16 * (dim // 16)
        assert code.threads == 128 // sets, code.variant.name
        assert code.counts["HMMA"] == (2 + products) * 2 * sets * loads * (2 if is_old else 1), code.variant.name
        assert code.counts["LDSM"] == (2 + products) * loads + 2 * sets * dim // 16, code.variant.name
        assert copies_of(code) >= 2 * passing * dim // 8 // code.threads, code.variant.name


def test_addresses_are_global_or_shared(found: tuple[Code, ...]) -> None:
    """LD and ST look up at each access which memory an address is of: the compiler lost track of where it came from.

    A function that is not inlined has no other way to its arguments by reference.
    """
    none_of(
        f"{code.variant.name}, sm_{code.architecture}: {code.own_counts['LD']} LD, {code.own_counts['ST']} ST"
        for code in found
        if code.own_counts["LD"] or code.own_counts["ST"]
    )


def not_allowed(code: Code) -> set[str]:
    return {name for name in code.subroutines if not any(allowed in name for allowed in SUBROUTINES)}


def test_calls(found: tuple[Code, ...]) -> None:
    """What is called is a subroutine of the list; none is called without standing behind its kernel."""
    none_of(
        f"{code.variant.name}, sm_{code.architecture}: {sorted(not_allowed(code)) or 'elsewhere'}"
        for code in found
        if not_allowed(code) or (code.counts["CALL"] and not code.subroutines)
    )


def test_half_types_take_no_float64_exponential(found: tuple[Code, ...]) -> None:
    """The special-function unit is what makes 16-bit rows cheap: at least one instruction for each element."""
    none_of(
        f"{code.variant.name}, sm_{code.architecture}: {code.counts['MUFU']} MUFU"
        for code in found
        for macros in [dict(code.variant.defines)]
        if BYTES.get(str(macros.get("DS_X", "")).removeprefix("ds::")) == 2
        and BYTES.get(str(macros.get("DS_Y", "")).removeprefix("ds::")) == 2
        and not (code.variant.kernel.startswith("normalize") and macros["DS_LOG"])
        and code.counts["MUFU"]
        < int(macros.get("DS_WIDTH", macros.get("DS_CHUNK", 0))) * int(macros.get("DS_SLOTS", 8))
    )


# ---------------------------------------------------------------- that nothing is left out, and the options


def test_every_source_is_compiled() -> None:
    """Each entry of each file of kernels is a variant of some launch table."""
    listed = {(variant.source, variant.kernel) for variant in gate.variants()}
    entry = re.compile(
        r'extern "C"\s+__global__\s+void\s+(?:__launch_bounds__\([^()]*(?:\([^()]*\))*[^()]*\)\s*)?(\w+)\('
    )
    written = {
        (path.name, name)
        for path in sorted(folder().glob("*.cu"))
        for name in entry.findall(path.read_text(encoding="utf-8"))
    }
    assert written == listed
    assert {kernel for _, kernel in listed} == set(REGISTERS)
    stale = {name for name, _ in SPILLS} - {variant.name for variant in gate.variants()}
    assert not stale, f"exceptions for variants that do not exist: {stale}"


def test_variants_are_told_apart() -> None:
    names = [variant.name for variant in gate.variants()]
    assert len(set(names)) == len(names)


def test_options_are_those_of_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CuPy gives to NVRTC for a RawModule's options, word for word; neither a card nor a driver is asked."""
    compiler: Any = pytest.importorskip("cupy.cuda.compiler", reason="CuPy is not installed")
    given: dict[str, tuple[str, ...]] = {}

    class Caught(Exception):
        pass

    class Program:
        def __init__(self, text: str, *_: object, **__: object) -> None:
            self.text = text

        def compile(self, options: tuple[str, ...] = (), *_: object) -> tuple[bytes, None]:
            given[self.text] = options
            if self.text:
                raise Caught
            return b"", None

    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    monkeypatch.setattr(compiler, "_NVRTCProgram", Program)
    monkeypatch.setattr(compiler, "_get_nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(compiler, "_get_arch", lambda: "90")
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: ("-arch=sm_90", "cubin"))
    variant = Variant("planted.cu", "planted", (("DS_X", "ds::f16"), ("DS_SLOTS", 4)))
    with pytest.raises(Caught):
        compiler._compile_module_with_cache("text", variant.options())
    assert given["text"] == cubin.options_of(variant, 90)


def test_other_cuda_versions() -> None:
    """NVRTC of the CUDA versions beside the newest takes the same text: all of it if architectures were asked for."""
    need()
    others = cubin.nvrtc_libraries()[1:]
    if not others:
        pytest.skip("one NVRTC only is installed (for another: wheel nvidia-cuda-nvrtc-cu12)")
    listed = gate.variants()[:: 1 if ASKED else 7]
    for library in others:
        architecture = max(set(cubin.nvrtc(library).architectures) & {80, 90, 120})
        assert all(cubin.compile_all(listed, architecture, library))


# ---------------------------------------------------------------- that the gate sees what it is for

HEAD = 'extern "C" __global__ void __launch_bounds__(1024) planted'
SPILLING = HEAD + "(int* x) { int a[99]; for (int i = 0; i < 99; ++i) a[x[i] % 99] = x[i + 99]; x[0] = a[x[1]]; }"
FUSABLE = HEAD + "(double* x, float* y) { x[0] = x[0] * x[1] + x[2]; y[0] = y[0] * y[1] + y[2]; }"
FUSED = HEAD + "(double* x, float* y) { x[0] = fma(x[0], x[1], x[2]); y[0] = fmaf(y[0], y[1], y[2]); }"
DIVIDING = HEAD + "(double* x) { x[0] = x[1] / x[2]; }"
GENERIC = HEAD + "(float** x) { __shared__ float y[9]; float* p = x[1] ? x[0] : y; p[threadIdx.x] = p[9]; }"
WIDE = HEAD + "(float4* x, short* y) { x[0] = x[1]; y[0] = y[1]; }"


@pytest.mark.parametrize("architecture", CHOSEN)
def test_planted(architecture: int) -> None:
    need(architecture)
    spilling, dividing, wide, generic = read(SPILLING, DIVIDING, WIDE, GENERIC, architecture=architecture)
    assert spilling.spilled >= 4 * 99
    assert spilling.counts["LDL"]
    assert spilling.threads == 1024
    assert dividing.counts["CALL"]
    assert any("div_rn_f64" in name for name in dividing.subroutines)
    assert (wide.counts["LDG.128"], wide.counts["STG.128"], wide.spilled, wide.counts["CALL"]) == (1, 1, 0, 0)
    assert wide.counts["LDG"] == wide.counts["LDG.128"] + wide.counts["LDG.U16"]
    assert generic.counts["LD"] + generic.counts["ST"]


def test_only_what_is_meant_is_fused() -> None:
    need()
    assert OPTIONS == ("--std=c++17", "--fmad=false")
    fusable, fused = read(FUSABLE, FUSED)
    assert (fusable.counts["FFMA"], fusable.counts["DFMA"]) == (0, 0)
    assert (fused.counts["FFMA"], fused.counts["DFMA"]) == (1, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('#line 7 "planted.cuh"\nint f() { return y; }', r"planted\.cuh\(7\): error"),
        (HEAD + "() { int never_used; }", "warning.*never_used"),
        ('#include "planted.cuh"\n', "planted.cuh"),
    ],
)
def test_complaints_name_the_line(text: str, words: str) -> None:
    need()
    with pytest.raises(CompileError, match=words):
        read(text)


def test_what_is_read_is_what_nvdisasm_says(tmp_path: Path) -> None:
    """Each instruction is read once, wherever it stands; kernel by kernel, as files, they come out the same."""
    need()
    texts = [DIVIDING, FUSED, SPILLING]
    for number in (min(CHOSEN), max(CHOSEN)):
        compiled = [cubin.nvrtc().compile(text, cubin.options_of(PLANTED, number)) for text in texts]
        for code, data in zip(cubin.read([PLANTED] * 3, compiled, number), compiled, strict=True):
            path = tmp_path / "planted.cubin"
            path.write_bytes(data)
            lines = cubin.LINE.findall(cubin.run("nvdisasm", "-c", str(path)))
            assert [name for _, name in lines] == list(code.operations)
            assert len(lines) > 10
