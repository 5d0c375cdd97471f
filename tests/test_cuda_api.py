"""What the host code asks of CuPy exists: in the real CuPy, which can be imported without a card, and in the emulator.

So does what the examples ask of their ``xp``. The source is read, so that a name on a path that no test takes is found
as well: every attribute of ``cp``, of ``xp`` and of what ``module_of`` returns, the arguments of its calls, and the
methods of arrays.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import devices
import emulator
import numpy as np
import pytest
from process import ROOT

import dualsoft as ds
from dualsoft.backends import cuda, cuda_rows, nvrtc

SOURCES = sorted((ROOT / "dualsoft").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
HOST_CODE = tuple(path for path in SOURCES if path.name.startswith(("cuda", "nvrtc")))
MODULE_NAMES = ("cp", "xp", "cupy")
CALLED = "()"
"""In a chain of names: the call of what stands before it. Its attributes are looked for on the class."""

UFUNC_OPTIONS = {"out", "dtype", "casting"}
ONLY_ON_NUMPY = {
    "__array_interface__": "the address of a NumPy array; CuPy's has .data.ptr",
    "setflags": "read-only views, which CuPy does not have",
}
"""Attributes of NumPy arrays that the package uses and CuPy's lack, each behind a question for the kind of array."""

ONLY_NUMPY_TAKES = {
    ("cuda_layout.py", "sort"): "of a list",
    ("attention_problem.py", "max"): "of lengths on the host",
    (
        "attention_algorithms.py",
        "max",
    ): "CuPy's max has no initial=: the textbook attentions do not run on its arrays yet",
}
"""(file, method) whose arguments CuPy's method of this name does not take, and why that is."""


class Use(NamedTuple):
    """A chain of attributes of the module, and how it is called where it is."""

    place: str
    root: str
    chain: tuple[str, ...]
    call: ast.Call | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.root}.{'.'.join(self.chain)}"


class Reader:
    """Finds the uses in one file; names that are assigned a chain stand for it from then on."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(ROOT))
        self.tree = ast.parse(path.read_text())

    def uses(self) -> Iterator[Use]:
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]
        seen: set[tuple[int, int]] = set()
        for scope in functions or [self.tree]:
            aliases = self.aliases(scope)
            inner = {id(node.value) for node in ast.walk(scope) if isinstance(node, ast.Attribute)}
            calls = {id(node.func): node for node in ast.walk(scope) if isinstance(node, ast.Call)}
            for node in ast.walk(scope):
                chain = self.chain_of(node, aliases)
                if (
                    chain is None
                    or len(chain) < 2
                    or id(node) in inner
                    or not isinstance(node, ast.Attribute | ast.Name)
                ):
                    continue
                if isinstance(node.ctx, ast.Load) and (node.lineno, node.col_offset) not in seen:
                    seen.add((node.lineno, node.col_offset))
                    yield Use(f"{self.name}:{node.lineno}", chain[0], chain[1:], calls.get(id(node)))

    def aliases(self, scope: ast.AST) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    for name, value in paired(target, node.value):
                        chain = self.chain_of(value, found)
                        if chain is not None and name not in MODULE_NAMES:
                            found[name] = chain
        return found

    def chain_of(self, node: ast.AST, aliases: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
        """The names from the module to ``node``, the module's own first; None where it does not begin there."""
        if isinstance(node, ast.Name):
            return (node.id,) if node.id in MODULE_NAMES else aliases.get(node.id)
        if isinstance(node, ast.IfExp):
            return self.chain_of(node.body, aliases) or self.chain_of(node.orelse, aliases)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "module_of":
                return ("module_of",)
            chain = self.chain_of(node.func, aliases)
            is_class = chain is not None and chain[-1] in ("Device", "RawModule")
            return (*chain, CALLED) if chain is not None and is_class else None
        if isinstance(node, ast.Attribute):
            if node.attr in ("cp", "xp"):
                return (node.attr,)
            chain = self.chain_of(node.value, aliases)
            return None if chain is None else (*chain, node.attr)
        return None


def paired(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for name, part in zip(target.elts, value.elts, strict=True):
            yield from paired(name, part)


USES = [use for path in (*SOURCES, *EXAMPLES) for use in Reader(path).uses()]


def resolved(module: Any, chain: tuple[str, ...]) -> Any:
    value = module
    for name in chain:
        if name != CALLED:
            value = getattr(value, name)
        elif value.__module__.startswith("emulator") and value.__name__ == "Device":
            value = value()  # its number is an attribute of instances, CuPy's classes have descriptors
    return value


def parameters_of(function: Any) -> inspect.Signature | None:
    """The signature; of what is compiled or takes any keyword, that in the first line of its documentation, if any."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = None
    if signature is not None and all(p.kind != p.VAR_KEYWORD for p in signature.parameters.values()):
        return signature
    head = re.match(r"[\w.]+\((.*?)\)\s*(?:->|$)", inspect.getdoc(function) or "", re.DOTALL | re.MULTILINE)
    if head is None:
        return signature
    # Types of C stand before the names.
    text = re.sub(r"\b(?:bint|int|str|tuple|object|bool) (?=\w)", "", head[1])
    names: dict[str, Any] = {}
    try:
        exec(f"def stated({text}): pass", names)
    except SyntaxError:  # written for readers
        return signature
    return inspect.signature(names["stated"])


def complaint(function: Any, call: ast.Call, is_method: bool = False) -> str | None:
    """Why a function does not take the arguments of a call, or None."""
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
    if isinstance(function, np.ufunc) or type(function).__name__ == "ufunc":
        unknown = set(keywords) - UFUNC_OPTIONS
        return f"a ufunc does not take {sorted(unknown)}" if unknown else None
    signature = parameters_of(function)
    if signature is None:
        return None
    is_open = any(isinstance(value, ast.Starred) for value in call.args)
    positional = [None] * (is_method + sum(not isinstance(value, ast.Starred) for value in call.args))
    try:
        (signature.bind_partial if is_open else signature.bind)(*positional, **keywords)
    except TypeError as error:
        return f"{error}: it is {getattr(function, '__name__', function)}{signature}"
    return None


def complaints(modules: dict[str, Any]) -> list[str]:
    """What is missing, or called in a way that it cannot be; ``modules`` by the root of a use."""
    found = []
    for use in USES:
        if use.root not in modules:
            continue
        try:
            function = resolved(modules[use.root], use.chain)
        except AttributeError as error:
            found.append(f"{use}: {error}")
            continue
        if use.call is not None and callable(function) and CALLED not in use.chain:
            why = None if inspect.isclass(function) else complaint(function, use.call)
            found += [] if why is None else [f"{use}: {why}"]
    return found


@pytest.fixture(scope="module")
def cupy() -> ModuleType:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        pytest.skip(f"CuPy cannot be imported: {error}")


needs_emulator = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))


# ------------------------------------------------------------------ the reader itself
def test_the_reader_finds_what_is_there() -> None:
    names = {(use.root, *use.chain) for use in USES}
    for expected in (
        ("cp", "RawModule"),
        ("cp", "RawModule", CALLED, "get_function"),
        ("cp", "cuda", "compiler", "CompileException"),
        ("cp", "cuda", "nvrtc", "getVersion"),
        ("cp", "cuda", "Device", CALLED, "compute_capability"),
        ("cupy", "__version__"),
        ("module_of", "may_share_memory"),
        ("xp", "empty_like"),
        ("xp", "einsum"),
    ):
        assert any(name == expected or (name[0] == "module_of" and name[1:] == expected[1:]) for name in names), (
            expected
        )
    shared = [use for use in USES if use.chain == ("may_share_memory",) and use.call is not None]
    assert any("arguments.py" in use.place for use in shared), "a call through a local name"


def test_the_reader_sees_wrong_calls(cupy: ModuleType) -> None:
    for text in ("f(a, 2, nonsense=1)", "f()", "f(1, 2, 3, 4, 5, 6, 7)"):
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert complaint(cupy.empty, call)
        assert complaint(cupy.ndarray.squeeze, call)
    for function, text in ((cupy.exp, "f(a, where=b)"), (cupy.einsum, "f('i,i', a, b, out=c)")):
        bad = ast.parse(text, mode="eval").body
        assert isinstance(bad, ast.Call)
        assert complaint(function, bad)


# ------------------------------------------------------------------ names and arguments
def test_cupy_has_every_name_with_the_arguments(cupy: ModuleType) -> None:
    assert complaints({"cp": cupy, "xp": cupy, "cupy": cupy, "module_of": cupy}) == []


@needs_emulator
@pytest.mark.parametrize("architecture", devices.ARCHITECTURES)
def test_the_emulator_has_every_name_with_the_arguments(architecture: str) -> None:
    cp = emulator.cupy_for(architecture)
    assert complaints({"cp": cp, "xp": emulator, "module_of": emulator}) == []
    assert complaints({"xp": cp, "module_of": cp}) == []


def test_cupy_makes_modules_of_every_source_with_the_options(cupy: ModuleType) -> None:
    chosen = {variant.source: variant for variant in cuda_rows.variants()}
    assert set(chosen) == {"softmax.cu", "softmax_kept.cu", "logsumexp.cu", "parts.cu", "join.cu", "normalize.cu"}
    for variant in chosen.values():
        module = cupy.RawModule(code=nvrtc.assemble(variant.source), options=variant.options())
        assert module.code == nvrtc.assemble(variant.source)
        assert module.options == variant.options()
        assert module.backend == "nvrtc"
    with pytest.raises(TypeError):
        cupy.RawModule(code="", options=list(OPTIONS_OF_NOTHING))


OPTIONS_OF_NOTHING = nvrtc.Variant("probe.cu", "probe", ()).options()


@needs_emulator
def test_the_emulator_refuses_options_that_cupy_refuses() -> None:
    with pytest.raises(TypeError):
        emulator.cupy_for("sm_80").RawModule(code="", options=list(OPTIONS_OF_NOTHING))


def test_a_kernel_is_called_as_cupy_takes_it(cupy: ModuleType) -> None:
    for text in ("kernel(grid, block, arguments)", "kernel(grid, block, arguments, shared_mem=16)"):
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        assert complaint(cupy.RawKernel.__call__, call, is_method=True) is None
        assert complaint(emulator.cupy_for("sm_80").RawKernel.__call__, call, is_method=True) is None


def test_devices_are_context_managers_with_a_number(cupy: ModuleType) -> None:
    for kind in (cupy.cuda.Device, emulator.cupy_for("sm_80").cuda.Device):
        assert all(hasattr(kind, name) for name in ("__enter__", "__exit__", "compute_capability"))
    assert hasattr(cupy.cuda.Device, "id")


def test_errors_are_of_the_kind_that_is_caught(cupy: ModuleType) -> None:
    for module in (cupy, emulator.cupy_for("sm_80")):
        failure = module.cuda.compiler.CompileException
        assert issubclass(failure, Exception)
        assert not issubclass(failure, RuntimeError), "it would pass for what is not a compiler's word"


# ------------------------------------------------------------------ arrays
def test_cupys_arrays_have_the_attributes_that_the_package_reads(cupy: ModuleType) -> None:
    """Attributes that only NumPy's arrays have are the listed ones."""
    lacking: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and hasattr(np.ndarray, node.attr)
                and not hasattr(cupy.ndarray, node.attr)
            ):
                lacking.setdefault(node.attr, []).append(f"{path.name}:{node.lineno}")
    assert lacking.keys() == ONLY_ON_NUMPY.keys(), lacking


def test_cupys_methods_take_the_arguments(cupy: ModuleType) -> None:
    wrong: dict[tuple[str, str], str] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            # A method of another type may have the name; only keywords tell that it is an array's.
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.keywords:
                continue
            owner, method = node.func.value, node.func.attr
            if isinstance(owner, ast.Name) and owner.id in ("np", *MODULE_NAMES):
                continue
            if hasattr(np.ndarray, method) and hasattr(cupy.ndarray, method):
                why = complaint(getattr(cupy.ndarray, method), node, is_method=True)
                if why is not None:
                    wrong[path.name, method] = f"line {node.lineno}: {why}"
    assert wrong.keys() == ONLY_NUMPY_TAKES.keys(), wrong


def calls_of_the_package(cp: Any) -> None:
    """One call, at least, of every function that the CUDA backend serves with every option."""
    x = cp.asarray(np.linspace(-1, 1, 240, dtype=np.float32).reshape(3, 4, 20))
    mask, factors = x > 0, cp.asarray(np.ones((3, 4, 1)))
    for function in (ds.softmax, ds.log_softmax, ds.logsumexp):
        for axis in (None, -1, 1, (0, 2)):
            function(x, axis)
        function(x, -1, where=mask, scale=factors, dtype=np.float64)
        function(x, -1, where=mask[0], scale=0.5)
        function(x[:, :, ::2], 0, scale=cp.asarray(np.float32(2)))
        function(x[:0], -1)
        ds.softmax(x, -1, out=x)
        ds.softmax(x[:, :, 1:], -1, out=x[:, :, :-1])
    ds.logsumexp(x, -1, keepdims=True, return_sign=True)
    ds.logsumexp(x, -1, out=cp.empty((3, 4), np.float32))
    ds.logsumexp(x, (0, 1), out=x[0, 0])


@needs_emulator
def test_what_is_asked_of_an_array_on_the_way_is_there_in_cupy(
    cupy: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen at run time: the attributes that code of the package read of a device array."""
    asked: dict[str, str] = {}
    package = str(ROOT / "dualsoft")

    def recording(array: Any, name: str) -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_filename.startswith(package):
            asked.setdefault(name, f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return np.ndarray.__getattribute__(array, name)

    cp = emulator.cupy_for("sm_80")
    with ds.use_backend("cuda-emulated:sm_80"):
        calls_of_the_package(cp)
        monkeypatch.setattr(emulator.ndarray, "__getattribute__", recording, raising=False)
        calls_of_the_package(cp)
    monkeypatch.undo()
    assert {"shape", "dtype", "strides", "data", "device", "ndim"} <= asked.keys()
    lacking = {name: place for name, place in asked.items() if not hasattr(cupy.ndarray, name)}
    # The emulator's arrays are NumPy arrays as well, so a question for that kind is answered with yes.
    assert lacking.keys() <= ONLY_ON_NUMPY.keys(), lacking
    assert hasattr(cupy.cuda.MemoryPointer, "ptr")


@needs_emulator
def test_a_call_reads_nothing_of_a_device_array_on_the_host() -> None:
    """The host does not wait for the device, so that calls can be captured in a graph."""
    cp = emulator.cupy_for("sm_80")
    with ds.use_backend("cuda-emulated:sm_80"), emulator.settings(host_reads=False):
        calls_of_the_package(cp)


@needs_emulator
def test_the_probe_reads_its_one_result() -> None:
    with emulator.settings(host_reads=False):
        reason = cuda.Kernels(emulator.cupy_for("sm_80")).reason()
    assert reason is not None
    assert "host read" in reason, "this is what makes the test above mean something"
