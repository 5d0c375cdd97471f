"""Documentation is held to the code: doctests, docstring sections, the list of names, the README's blocks."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from process import ROOT, python

import dualsoft as ds

NAMES = {
    "accuracy", "algorithms", "attention", "attention_backward", "attention_paged", "attention_state",
    "attention_varlen", "attention_varlen_backward", "AttentionGrads", "AttentionState", "backend_for", "backends",
    "BlockMask", "cross_entropy", "cross_entropy_backward", "cumulative_logsumexp", "get_num_threads", "KVCache",
    "linear_cross_entropy", "linear_cross_entropy_backward", "LinearGrads", "log_softmax", "log_softmax_backward",
    "logsumexp", "logsumexp_backward", "merge", "num_threads", "register_backend", "sample", "set_num_threads",
    "softmax", "softmax_backward", "softmax_state", "softmax_topk", "SoftmaxState", "TopK", "Trace", "trace",
    "TraceRow", "use_backend", "warmup",
}  # fmt: skip
PUBLIC = sorted(
    name
    for name in NAMES
    if callable(getattr(ds, name, None)) and not name.startswith(("Trace", "LinearGrads", "TopK"))
)
MATHEMATICS = {
    "softmax", "log_softmax", "logsumexp", "cumulative_logsumexp", "softmax_state", "merge", "trace", "attention",
    "attention_backward", "attention_varlen_backward", "attention_paged", "attention_state", "attention_varlen",
    "standard_attention", "chunked_attention", "cross_entropy", "cross_entropy_backward", "linear_cross_entropy",
    "linear_cross_entropy_backward", "log_softmax_backward", "logsumexp_backward", "softmax_backward", "sample",
    "softmax_topk",
}  # fmt: skip
ALGORITHMS = [name for name in ds.algorithms.__all__ if not name.endswith("Algorithm")]
COMPUTED = [getattr(ds, name) for name in PUBLIC] + [getattr(ds.algorithms, name) for name in ALGORITHMS]
METHODS = [
    getattr(kind, name)
    for kind in (getattr(ds, name) for name in PUBLIC)
    if inspect.isclass(kind)
    for name, member in vars(kind).items()
    if not name.startswith("_") and isinstance(member, FunctionType | classmethod | staticmethod)
]
PAPERS = {
    "softmax": "1805.02867", "softmax_state": "1805.02867", "softmax_topk": "1805.02867",
    "online_softmax": "1805.02867", "attention": "2205.14135",
    "attention_paged": "2309.06180", "KVCache": "2309.06180", "attention_state": "2112.05682",
    "attention_backward": "2307.08691",
    "chunked_attention": "2112.05682", "cross_entropy": "1805.02867", "linear_cross_entropy": "1805.02867",
}  # fmt: skip
PAGES = sorted((ROOT / "docs").glob("*.md"))
WALK = (module.name for module in pkgutil.walk_packages(ds.__path__, "dualsoft."))
MODULES = ["dualsoft", *(name for name in WALK if "._simd_" not in name and "._cpuid" not in name)]


def test_public_names() -> None:
    assert set(ds.__all__) - {"__version__"} == NAMES
    assert list(ds.__all__) == sorted(ds.__all__)
    for name in ds.__all__:
        assert hasattr(ds, name)


@pytest.mark.parametrize("name", [m for m in MODULES if not m.endswith("__main__")])
def test_doctests(name: str) -> None:
    with ds.use_backend("reference"):
        result = doctest.testmod(
            importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        )
    assert not result.failed


def sections(text: str) -> set[str]:
    return set(re.findall(r"^([A-Z][A-Za-z ]+)\n-{3,}$", inspect.cleandoc(text), re.MULTILINE))


def undescribed(text: str, parameters: list[str]) -> list[str]:
    pattern = r"^\s*(\*?\w+, )*\*{{0,2}}{}(, \*?\w+)*( : |$)"
    return [name for name in parameters if not re.search(pattern.format(name), text, re.MULTILINE)]


@pytest.mark.parametrize("thing", COMPUTED, ids=lambda f: f.__name__)
def test_docstring(thing: Any) -> None:
    text = thing.__doc__ or ""
    found = sections(text)
    assert ">>> " in text, "no example"
    assert "Examples" in found
    signature = inspect.signature(thing)
    parameters = [p for p in signature.parameters if p != "self"]
    if parameters:
        assert "Parameters" in found
        assert "Raises" in found
    assert not undescribed(text, parameters)
    if not inspect.isclass(thing) and signature.return_annotation not in (None, "None"):
        assert "Returns" in found
    if thing.__name__ in MATHEMATICS:
        assert found & {"Notes", "References"}
    assert PAPERS.get(thing.__name__, "") in text, "the paper is not named"


@pytest.mark.parametrize("method", METHODS, ids=lambda f: f.__qualname__)
def test_docstring_of_a_method(method: Any) -> None:
    text = method.__doc__ or ""
    found = sections(text)
    assert ">>> " in text, "no example"
    assert "Examples" in found
    signature = inspect.signature(method)
    parameters = [p for p in signature.parameters if p not in ("self", "cls")]
    assert not parameters or "Parameters" in found
    assert not undescribed(text, parameters)
    assert all(signature.parameters[name].annotation is not inspect.Parameter.empty for name in parameters)


@pytest.mark.parametrize("thing", COMPUTED, ids=lambda f: f.__name__)
def test_annotations(thing: Any) -> None:
    for parameter in inspect.signature(thing).parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, f"{parameter.name} has no type"


def blocks(language: str, page: Path = ROOT / "README.md") -> list[str]:
    if not page.exists():
        pytest.fail(f"{page.name} is missing", pytrace=False)
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_python_blocks_run(page: Path) -> None:
    """In order, as one session; warnings are errors there too."""
    code = "\n".join(blocks("python", page))
    assert "dualsoft" in code
    done = python("-W", "error", "-c", code)
    assert done.returncode == 0, done.stderr


def test_readme_names_the_two_commands() -> None:
    shell = "\n".join(blocks("(?:sh|bash|console)"))
    assert "pip install -e . && python -m dualsoft" in shell
    assert 'pip install -e ".[test]" && pytest' in shell
