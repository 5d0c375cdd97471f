"""CUDA text to machine code, and what can be read from it: NVIDIA's wheels, no driver and no card."""

import ctypes
import functools
import importlib.util
import multiprocessing
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dualsoft.backends.nvrtc import Variant, assemble

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
"""Compute capabilities times ten; each line of cards that the kernels run on, once."""
WARPS = {75: 32, 80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}
"""Warps that a multiprocessor holds, of 64 Ki registers."""
REGISTERS = 65536
INSTRUCTION_BYTES = 16
INSTRUCTIONS_A_CALL = 60000
"""Of nvdisasm, which reads them in 1 s."""
ACCESSES = ("LDG", "STG", "LDS", "STS", "LDGSTS", "LD", "ST")
WIDTHS = ("U8", "S8", "U16", "S16", "64", "128", "256")
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1

A = TypeVar("A")
B = TypeVar("B")


class CompileError(Exception):
    """What NVRTC had to say, errors and warnings."""


# ---------------------------------------------------------------- where the wheels put their files


def wheel_files(pattern: str) -> list[Path]:
    """Files below the folders of the ``nvidia`` namespace package."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None and spec.submodule_search_locations else []
    return sorted(path for root in roots for path in Path(root).glob(pattern))


def nvrtc_libraries() -> list[Path]:
    """NVRTC of each CUDA version whose wheel is installed, newest first. CUDA 12 and 13 lie side by side."""
    found = [path for path in wheel_files("*/lib/libnvrtc.so.*") if path.suffix[1:].isdigit()]
    return sorted(found, key=lambda path: -int(path.suffix[1:]))


def program(name: str) -> str | None:
    found = wheel_files(f"*/bin/{name}")
    return str(found[-1]) if found else shutil.which(name)


def why_not() -> str | None:
    """The reason why nothing can be compiled or read here; None if it can."""
    if not nvrtc_libraries():
        return "libnvrtc is not installed (wheel nvidia-cuda-nvrtc)"
    for name in ("nvdisasm", "cuobjdump"):
        if program(name) is None:
            return f"{name} is not installed (wheel nvidia-cuda-{name})"
    return None


# ---------------------------------------------------------------- the compiler


class Nvrtc:
    """One NVRTC library. It compiles one text at a time, whatever thread asks: only processes do so side by side."""

    def __init__(self, path: Path) -> None:
        # NVRTC opens these by name, from folders that do not include its own: loaded already, they are found.
        self._builtins = [ctypes.CDLL(str(file)) for file in sorted(path.parent.glob("libnvrtc-builtins.so.*"))]
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value
        count = ctypes.c_int()
        self._call("GetNumSupportedArchs", ctypes.byref(count))
        supported = (ctypes.c_int * count.value)()
        self._call("GetSupportedArchs", supported)
        self.architectures = tuple(supported)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"nvrtc{name}")(*arguments)
        if status:
            raise RuntimeError(f"nvrtc{name}: {self._library.nvrtcGetErrorString(status).decode()}")

    def _read(self, name: str, of: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{name}Size", of, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"Get{name}", of, buffer)
        return buffer.raw

    def compile(self, text: str, options: Sequence[str], name: str = "kernel.cu", wanted: str = "CUBIN") -> bytes:
        """The cubin, or the PTX; CompileError with the log if there is anything in it, be it a warning."""
        handle = ctypes.c_void_p()
        self._call("CreateProgram", ctypes.byref(handle), text.encode(), name.encode(), 0, None, None)
        try:
            encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(handle, len(options), encoded)
            log = self._read("ProgramLog", handle).rstrip(b"\0").decode().strip()
            if status or log:
                raise CompileError(log or self._library.nvrtcGetErrorString(status).decode())
            return self._read(wanted, handle)
        finally:
            self._call("DestroyProgram", ctypes.byref(handle))


@functools.cache
def nvrtc(path: Path | None = None) -> Nvrtc:
    return Nvrtc(path or nvrtc_libraries()[0])


def options_of(variant: Variant, architecture: int) -> tuple[str, ...]:
    """As ``cupy.RawModule`` passes them to NVRTC: what the host code gives, then what CuPy adds."""
    return (*variant.options(), "-ftz=true", f"-arch=sm_{architecture}", "--device-as-default-execution-space")


# ---------------------------------------------------------------- what a cubin holds


class Section(NamedTuple):
    name: str
    start: int
    size: int
    link: int


def sections(cubin: bytes) -> list[Section]:
    """The table of an ELF file of 64 bits."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("not a cubin: an ELF file of 64 bits was expected")
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    rows = [struct.unpack_from("<IIQQQQII", cubin, table + i * entry) for i in range(count)]
    return [Section(text_at(cubin, rows[names][4] + row[0]), row[4], row[5], row[6]) for row in rows]


def code_of(cubin: bytes, name: str) -> bytes:
    return next(cubin[row.start : row.start + row.size] for row in sections(cubin) if row.name == name)


def text_at(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def symbols(cubin: bytes, section: str) -> dict[int, str]:
    """Where the functions of a section begin, its subroutines among them."""
    table = sections(cubin)
    names = [row.name for row in table]
    listed = table[names.index(".symtab")]
    found = {}
    for at in range(listed.start, listed.start + listed.size, 24):
        name, kind, _, home, value, _ = struct.unpack_from("<IBBHQQ", cubin, at)
        if kind & 15 == 2 and names[home] == section:
            found[value] = text_at(cubin, table[listed.link].start + name)
    return found


def launch_bound(cubin: bytes, kernel: str) -> int:
    """The largest block that the kernel was compiled for: attribute 5 of its ``.nv.info``; 0 if there is none."""
    for row in sections(cubin):
        if row.name != f".nv.info.{kernel}":
            continue
        at = row.start
        while at < row.start + row.size:
            form, attribute, size = struct.unpack_from("<BBH", cubin, at)
            if attribute == 5:
                x, y, z = struct.unpack_from("<III", cubin, at + 4)
                return int(x * y * z)
            at += 4 + (size if form == 4 else 0)
    return 0


LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)[^;]*;")


def disassemble(codes: Sequence[bytes], architecture: int) -> list[tuple[str, ...]]:
    """The operations of each code, with their modifiers: ``LDG.E.128``.

    nvdisasm takes 0.2 s to start and 15 us an instruction, and kernels have more than half of theirs in common: it gets
    each that is different once, end to end.
    """
    words = [[code[at : at + INSTRUCTION_BYTES] for at in range(0, len(code), INSTRUCTION_BYTES)] for code in codes]
    different = list(dict.fromkeys(chain.from_iterable(words)))
    batches = [different[at : at + INSTRUCTIONS_A_CALL] for at in range(0, len(different), INSTRUCTIONS_A_CALL)]
    listed = in_parallel(lambda batch: operations_of(batch, architecture), batches)
    names = dict(zip(different, chain.from_iterable(listed), strict=True))
    return [tuple(names[word] for word in each) for each in words]


def operations_of(words: Sequence[bytes], architecture: int) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(words))
        file.flush()
        found = LINE.findall(run("nvdisasm", "--binary", f"SM{architecture}", file.name))
    if [int(address, 16) for address, _ in found] != list(range(0, len(words) * INSTRUCTION_BYTES, INSTRUCTION_BYTES)):
        raise ValueError(f"nvdisasm read {len(found)} of {len(words)} instructions, or others")
    return [operation for _, operation in found]


def run(name: str, *arguments: str) -> str:
    done = subprocess.run([str(program(name)), *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode or not done.stdout:
        raise RuntimeError(f"{name}: {done.stderr or 'no output'}")
    return done.stdout


def resource_usage(cubin: bytes, kernel: str) -> dict[str, int]:
    """What ``cuobjdump --dump-resource-usage`` says: REG, STACK, SHARED, LOCAL and others."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = run("cuobjdump", "--dump-resource-usage", file.name)
    line = re.search(rf"Function {re.escape(kernel)}:\s*\n(.*)", listing)
    if line is None:
        raise ValueError(f"cuobjdump does not know {kernel}:\n{listing}")
    return {name: int(value) for name, value in re.findall(r"(\w+)(?:\[0\])?:(\d+)", line[1])}


# ---------------------------------------------------------------- a kernel's machine code


@dataclass(frozen=True)
class Code:
    """One variant for one architecture."""

    variant: Variant
    architecture: int
    usage: dict[str, int]
    """``cuobjdump``'s words: bytes, of STACK and LOCAL a thread, of SHARED a block (without dynamic memory)."""
    threads: int
    """The launch bound."""
    operations: tuple[str, ...] = field(repr=False)
    """Of its instructions, one after the other."""
    subroutines: tuple[str, ...]
    """What stands behind the kernel and is called: functions not inlined, and divisions of the compiler's."""
    end: int
    """How many operations are the kernel's own: the subroutines' follow."""

    @property
    def registers(self) -> int:
        return self.usage["REG"]

    @functools.cached_property
    def counts(self) -> Counter[str]:
        return counted(self.operations)

    @functools.cached_property
    def own_counts(self) -> Counter[str]:
        """Of the kernel without its subroutines."""
        return counted(self.operations[: self.end])

    @property
    def spilled(self) -> int:
        """Bytes a thread in local memory, whatever put them there; at least 4 if anything reads or writes it."""
        touched = 4 if self.counts["LDL"] or self.counts["STL"] else 0
        return max(self.usage["STACK"] + self.usage["LOCAL"], touched)

    @property
    def resident_warps(self) -> int:
        """Warps a multiprocessor for which the registers suffice, whole blocks only."""
        warps = max(1, self.threads // 32)
        a_warp = -(-self.registers // 8) * 256
        return min(WARPS[self.architecture], REGISTERS // (a_warp * warps) * warps)


def counted(operations: Iterable[str]) -> Counter[str]:
    """Operations by name; LDG and other accesses also by width (LDG.128), so each of them counts twice."""
    total: Counter[str] = Counter()
    for operation, count in Counter(operations).items():
        name, *modifiers = operation.split(".")
        total[name] += count
        if name in ACCESSES:
            total[f"{name}.{next((m for m in modifiers if m in WIDTHS), '32')}"] += count
    return total


def in_parallel(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """For work that waits for other programs."""
    with ThreadPoolExecutor(CORES) as pool:
        return list(pool.map(work, items))


@functools.cache
def compilers() -> ProcessPoolExecutor:
    """A process for each core, which keeps NVRTC loaded from one architecture to the next."""
    return ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn"), initializer=end_with_parent)


def end_with_parent() -> None:
    """See to it that this process ends when the one that started it is killed: left alone it would wait for work."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def compile_all(variants: Sequence[Variant], architecture: int, library: Path | None = None) -> list[bytes]:
    """The cubins, in the order of the variants."""
    work = functools.partial(compile_variant, architecture=architecture, library=library)
    return list(compilers().map(work, variants))


def compile_variant(variant: Variant, architecture: int, library: Path | None = None) -> bytes:
    options = options_of(variant, architecture)
    try:
        return nvrtc(library).compile(assemble(variant.source), options, variant.source)
    except CompileError as error:
        raise CompileError(f"{variant.name} for sm_{architecture}:\n{error}") from None


def read(variants: Sequence[Variant], cubins: Sequence[bytes], architecture: int) -> list[Code]:
    """What the compiled variants hold, in their order."""
    pairs = list(zip(variants, cubins, strict=True))
    listings = disassemble([code_of(cubin, f".text.{variant.kernel}") for variant, cubin in pairs], architecture)
    usages = in_parallel(lambda pair: resource_usage(pair[1], pair[0].kernel), pairs)
    result = []
    for (variant, cubin), listing, usage in zip(pairs, listings, usages, strict=True):
        starts = symbols(cubin, f".text.{variant.kernel}")
        behind = sorted(at for at, name in starts.items() if name != variant.kernel)
        code = Code(
            variant,
            architecture,
            usage,
            launch_bound(cubin, variant.kernel),
            listing,
            tuple(starts[at] for at in behind),
            behind[0] // INSTRUCTION_BYTES if behind else len(listing),
        )
        result.append(code)
    return result
