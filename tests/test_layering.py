"""The shape of the package: imports go down only, files stay small, nothing heavy or foreign is imported."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from process import ROOT, run_code

PACKAGE = ROOT / "dualsoft"
FILES = sorted(PACKAGE.rglob("*.py"))
FOREIGN = {
    "scipy",
    "cupy",
    "ml_dtypes",
    "rich",
    "torch",
    "jax",
    "pandas",
    "dask",
    "mpi4py",
    "sklearn",
    "hypothesis",
    "pytest",
}

# From the surface down. A module imports from deeper layers only, or from its own where `within` allows it.
LAYERS = (
    {"__main__"},
    {"selftest", "speed"},
    {"selftest_losses", "selftest_gradients"},
    {"selftest_attention"},
    {"selftest_arrays"},
    {"__init__"},
    {"cache"},
    {
        "softmax",
        "topk",
        "sampling",
        "attention",
        "state",
        "state_functions",
        "attention_gradients",
        "attention_state",
        "algorithms",
        "attention_algorithms",
        "trace",
        "gradients",
        "losses",
        "linear_loss",
    },
    {"placement"},
    {"registry"},
    {"backends.reference", "backends.cpu", "backends.cuda"},
    {"backends.cuda_gradients", "backends.cuda_losses"},
    {
        "backends.cuda_columns",
        "backends.cuda_weighted",
        "backends.cuda_cumulative",
        "backends.cuda_algorithms",
        "backends.cuda_attention",
        "backends.cuda_gradients_tensor",
        "backends.cuda_topk",
        "backends.cuda_sample",
    },
    {
        "backends.reference_complex",
        "backends.reference_gradients",
        "backends.reference_losses",
        "backends.reference_topk",
        "backends.cuda_rows",
        "backends.cuda_attention_tensor",
    },
    {"backends.cuda_launch", "backends.cuda_task", "backends.reference_attention"},
    {"backends.nvrtc", "backends.cuda_layout", "backends.reference_rows"},
    {"backends"},
    {"threads"},
    {"linear_chunks"},
    {"problem"},
    {"linear_problem", "gradient_problem"},
    {"attention_problem", "loss_problem", "topk_problem"},
    {"loss_arguments"},
    {"cache_arguments"},
    {"attention_arguments", "attention_operands"},
    {"block_mask", "cache_storage", "philox"},
    {"arguments", "accuracy", "pair", "triple"},
    {"arrays"},
    {"dtypes", "frozen", "isa", "_version"},
)
WITHIN_A_LAYER = {
    ("trace", "state"),
    ("state_functions", "state"),
    ("state_functions", "attention_state"),
    ("algorithms", "state"),
    ("algorithms", "attention_algorithms"),
    ("attention", "attention_state"),
    ("gradients", "state"),
    ("losses", "state"),
    ("losses", "gradients"),
    ("linear_loss", "state"),
    ("attention_gradients", "attention"),
}
# What a module imports when the user asks for exactly that, never on the way to anything else.
ON_REQUEST = {"backends.cuda": {"cupy"}, "attention_state": {"cupy"}, "speed": {"scipy"}}


def module(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def layer(name: str) -> int:
    found = [k for k, names in enumerate(LAYERS) if name in names]
    if not found:
        pytest.fail(f"dualsoft.{name} has no place in LAYERS", pytrace=False)
    return found[0]


def imports(path: Path) -> Iterator[str]:
    """Absolute names of what a file imports, at any depth; of ``from a import b``, ``a.b`` where that is a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import in line {node.lineno}"
            for alias in node.names:
                inner = PACKAGE.parent / f"{node.module}.{alias.name}".replace(".", "/")
                is_module = inner.with_suffix(".py").exists() or (inner / "__init__.py").exists()
                yield f"{node.module}.{alias.name}" if is_module else str(node.module)


def own(path: Path) -> set[str]:
    names = {name for name in imports(path) if name.split(".")[0] == "dualsoft"}
    return {name.removeprefix("dualsoft").lstrip(".") or "__init__" for name in names} - {"__init__"}


@pytest.mark.parametrize("path", FILES, ids=module)
def test_imports_go_down(path: Path) -> None:
    here = module(path)
    for name in own(path):
        if (here, name) not in WITHIN_A_LAYER:
            assert layer(here) < layer(name), f"dualsoft.{here} imports dualsoft.{name}"


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name == "backends"], ids=module)
def test_backends_do_not_know_each_other(path: Path) -> None:
    name = module(path)
    family = name.partition("_")[0]  # a backend may have several files: reference, reference_complex
    theirs = {n for n in own(path) if n.startswith("backends.") and not n.startswith(family)}
    # nvrtc is no backend, but where those of CUDA get their kernels from
    assert not theirs - ({"backends.nvrtc"} if family == "backends.cuda" else set())


def test_the_problem_knows_no_backend() -> None:
    for name in (
        "problem",
        "attention_problem",
        "topk_problem",
        "philox",
        "arguments",
        "attention_arguments",
        "arrays",
        "dtypes",
        "accuracy",
    ):
        assert not {n for n in own(PACKAGE / f"{name}.py") if n.startswith(("backends", "registry"))}


@pytest.mark.parametrize("path", FILES, ids=module)
def test_only_the_standard_library_and_numpy(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert not roots & FOREIGN - ON_REQUEST.get(module(path), set())


def test_import_brings_nothing_else() -> None:
    code = """
import sys, numpy
before = set(sys.modules)
import dualsoft
print(*{name.split(".")[0] for name in set(sys.modules) - before})
"""
    assert not FOREIGN & set(run_code(code).split())


@pytest.mark.parametrize(
    "path", [*FILES, *sorted((ROOT / "tests").glob("*.py"))], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_size(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and PACKAGE in path.parents:
            start = node.body[1].lineno if ast.get_docstring(node) and len(node.body) > 1 else node.lineno
            assert (node.end_lineno or start) - start < 60, f"{node.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_no_assert_and_no_catch_all_names(path: Path) -> None:
    lines = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert not lines, f"assert in lines {lines}"
    assert path.stem not in {"utils", "helpers", "common", "misc"}


def test_tests_are_not_a_package() -> None:
    assert not (ROOT / "tests" / "__init__.py").exists()
