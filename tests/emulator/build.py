"""Building with g++: the emulator's core once, and each variant of the kernels as a small shared library.

Libraries are kept in a folder by the hash of what they are made from. Several processes may build the same one at the
same time: each writes to a name of its own and moves it into place.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from .errors import BuildError, CompileException
from .sharing import Prelude, prelude_of
from .translate import translate

_HERE = Path(__file__).parent
_CORE_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-g1")
_KERNEL_FLAGS = (
    # -fno-tree-sra keeps an access of 16 bytes whole, so that it is checked and counted as one.
    *("-std=c++17", "-O1", "-fno-tree-sra", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-pipe"),
    # DWARF 5 names the standard input as the file of what a first line marker says is from elsewhere.
    *("-g1", "-gdwarf-4"),
    # Every load and store calls a hook; -nostdlib keeps the sanitizer's own library out, the core has the hooks.
    *("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-nostdlib"),
    # A loop that waits for a volatile variable lets other threads run.
    *("--param", "tsan-distinguish-volatile=1"),
    *("-fno-exceptions", "-fno-rtti", "-fno-plt", "-fno-asynchronous-unwind-tables", "-fvisibility=hidden"),
    # A store through a null pointer is for the emulator to find, not for the compiler to drop.
    *("-fno-strict-aliasing", "-fno-delete-null-pointer-checks"),
)
_OPTIMISATION_ENVIRONMENT = "DUALSOFT_EMULATOR_FLAGS"
_DEFINITION = re.compile(r"(?:-D|--define-macro=)\s*(\w+(?:=.*)?)", re.DOTALL)
_OPTIONS_WITHOUT_EFFECT = re.compile(
    r"--?std=c\+\+17|--?fmad=(?:true|false)|-lineinfo|--generate-line-info|-(?:Xptxas|-ptxas-options)[= ].*"
    r"|-(?:default-device|-device-as-default-execution-space)|-{1,2}(?:maxrregcount=\d+|diag-suppress=[\d,]+)"
    r"|-(?:arch|-gpu-architecture)=sm_\d+[af]?"
)
_UNKNOWN_OPCODE = re.compile(r"^(?P<place>[^\s:]+:\d+).*?\b(?P<function>ptx_\w+)\W+ was not declared", re.MULTILINE)


def why_not() -> str | None:
    """Return why the emulator cannot run on this machine, or None if it can."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        return f"the emulator runs on x86-64 and aarch64 Linux, this is {platform.machine()} {platform.system()}"
    if shutil.which(_compiler()) is None:
        return f"the emulator needs the C++ compiler {_compiler()} (or the one named by CXX)"
    if shutil.which("addr2line") is None:
        return "the emulator needs addr2line (package binutils)"
    return None


def core_library() -> Path:
    """Return the path of the core, built if it is not there.

    Raises
    ------
    BuildError
        If this machine cannot run the emulator, or the core does not compile.
    """
    reason = why_not()
    if reason is not None:
        raise BuildError(reason)
    sources = sorted(_HERE.glob("*.cpp"))
    texts = [path.read_bytes() for path in sorted((*sources, *_HERE.glob("*.hpp")))]
    path = cache_folder() / f"core_{_digest(_compiler_version(), *_CORE_FLAGS, *texts)}.so"
    if not path.exists():
        _compile_to(path, [_compiler(), *_CORE_FLAGS, *map(str, sources)], BuildError)
    return path


def kernel_library(code: str, options: Sequence[str], architecture: int) -> Path:
    """Return the path of the library of the kernels in ``code`` as the architecture (80 for sm_80) would compile it.

    Raises
    ------
    CompileException
        Naming file and line where the text, its PTX or an option is not what the architecture takes.
    """
    macros = (f"-D__CUDA_ARCH__={architecture}0", *definitions(options))
    prelude = _prelude(architecture)
    alias = cache_folder() / f"source_{_digest(_recipe(), *prelude.common, *prelude.varying, *macros, code)}.so"
    if alias.exists():
        return alias
    preprocessed = _run([_compiler(), "-E", "-x", "c++", "-std=c++17", "-DDS_EMULATED=1", *macros, "-"], code)
    translation = translate(preprocessed)
    entries = "".join(
        f"EMULATOR_ENTRY({name}{f', {bounds}' if bounds else ''})\n" for name, bounds in translation.kernels
    )
    text = f'{translation.text}\n# 1 "entries"\n{entries}'
    path = cache_folder() / f"kernels_{_digest(_recipe(), *prelude.common, *prelude.used_by(text), text)}.so"
    if not path.exists():
        command = [_compiler(), *_kernel_flags(), "-DDS_EMULATED=1", macros[0], "-I", str(_HERE)]
        _compile_to(path, [*command, "-include", "prelude.hpp", "-x", "c++", "-", "-lm"], CompileException, text)
    _link_to(alias, path)
    return alias


def definitions(options: Sequence[str]) -> tuple[str, ...]:
    """Return the macros that NVRTC options define, as options of g++.

    Raises
    ------
    CompileException
        For options that NVRTC has not, or that would change what a kernel computes.
    """
    found = []
    for option in options:
        definition = _DEFINITION.fullmatch(option)
        if definition:
            found.append(f"-D{definition[1]}")
        elif not _OPTIONS_WITHOUT_EFFECT.fullmatch(option):
            raise CompileException(f"option {option!r} is not one that the emulator knows")
    return tuple(found)


def cache_folder() -> Path:
    """Return the folder of built libraries: ``DUALSOFT_EMULATOR_CACHE``, or the user's own of temporary files."""
    named = os.environ.get("DUALSOFT_EMULATOR_CACHE")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"dualsoft-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Whoever owns the folder decides what is loaded from it.
    if folder.stat().st_uid != os.getuid():
        raise BuildError(f"{folder} belongs to another user: set DUALSOFT_EMULATOR_CACHE")
    return folder


def source_frames(library: str, addresses: Sequence[int]) -> list[list[str]]:
    """Return for each address of a library its lines of kernel source, "file:line", the innermost call first."""
    command = ["addr2line", "-a", "-i", "-e", library, *map(hex, addresses)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    frames: list[list[str]] = []
    for line in listing.splitlines():
        if line.startswith("0x"):
            frames.append([])
        else:
            path, _, number = line.partition(" ")[0].rpartition(":")
            name = Path(path).name
            if number.isdigit() and not name.endswith(".hpp") and name != "entries":
                frames[-1].append(f"{name}:{number}")
    return frames


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


@cache
def _compiler_version() -> str:
    return f"{_compiler()} {_run([_compiler(), '-dumpfullversion', '-dumpmachine'])}"


@cache
def _kernel_flags() -> tuple[str, ...]:
    flags = (*_KERNEL_FLAGS, *os.environ.get(_OPTIMISATION_ENVIRONMENT, "").split())
    if platform.machine() == "x86_64" and re.search(r"^flags\s*:.*\bfma\b", _processor(), re.MULTILINE):
        # One instruction where fma is a call of the C library otherwise.
        return (*flags, "-mfma")
    return flags


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


@cache
def _recipe() -> str:
    """Hash what is the same for all kernels, but for the prelude."""
    return _digest(_compiler_version(), *_kernel_flags(), (_HERE / "translate.py").read_bytes())


@cache
def _prelude(architecture: int) -> Prelude:
    return prelude_of(architecture, _preprocessed_prelude)


@cache
def _preprocessed_prelude(architecture: int) -> str:
    macro = f"-D__CUDA_ARCH__={architecture}0"
    return _run([_compiler(), "-E", "-P", "-std=c++17", macro, str(_HERE / "prelude.hpp")])


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:24]


def _run(command: Sequence[str], text: str = "", error: type[Exception] = CompileException) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    result = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, check=False)
    if result.returncode:
        raise error(_explained(result.stderr))
    return result.stdout


def _explained(messages: str) -> str:
    """Put first what a reader wants to know: opcodes that this architecture lacks."""
    unknown = dict.fromkeys((match["place"], match["function"]) for match in _UNKNOWN_OPCODE.finditer(messages))
    lines = [f"{place}: this architecture, or the emulator, has no instruction {name}" for place, name in unknown]
    return "\n".join([*lines, *messages.splitlines()[:20]])


def _compile_to(path: Path, command: Sequence[str], error: type[Exception], text: str = "") -> None:
    with _temporary_name(path) as temporary:
        _run([*command, "-o", str(temporary)], text, error)
        temporary.replace(path)


def _link_to(alias: Path, path: Path) -> None:
    with _temporary_name(alias) as temporary:
        os.link(path, temporary)
        temporary.replace(alias)


@contextmanager
def _temporary_name(path: Path) -> Iterator[Path]:
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
