"""Choosing a backend, adding one from outside, and what happens without kernels."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import LEVELS, REASONS, USABLE
from process import ROOT, WITHOUT_KERNELS, python, run_code

import dualsoft as ds

X = np.array([0.0, 1.0])


def test_names() -> None:
    names = ds.backends()
    assert list(names)[:3] == ["cpu", "cuda", "reference"]
    assert names["reference"] is None
    assert isinstance(names["cuda"], str)


def test_use_backend_nests_and_ends(backend: str) -> None:
    assert ds.backend_for(X) == backend
    with ds.use_backend("reference"):
        assert ds.backend_for(X) == "reference"
        with pytest.raises(TypeError), ds.use_backend(backend):
            ds.softmax(X, axis="no axis")
        assert ds.backend_for(X) == "reference"
    assert ds.backend_for(X) == backend


def test_one_use_backend_can_be_entered_again() -> None:
    chosen = ds.use_backend("reference")
    for _ in range(2):
        with chosen, chosen:
            assert ds.backend_for(X) == "reference"


@pytest.mark.parametrize("name", ["numpy", "cpu:x86_64_v9", "reference:fast", ""])
def test_unknown_name(name: str) -> None:
    with pytest.raises(ValueError, match="x86_64_v3") as caught:
        ds.use_backend(name)
    assert (name.partition(":")[2] or name) in str(caught.value)


def test_unusable_backend_says_why() -> None:
    for name in ["cuda", *(f"cpu:{level}" for level in LEVELS if f"cpu:{level}" not in USABLE)]:
        with pytest.raises(RuntimeError) as caught:
            ds.use_backend(name)
        assert name in str(caught.value)
        if name in REASONS:
            assert "built" in str(caught.value) or "lacks" in str(caught.value)


def test_other_kinds_are_refused() -> None:
    fake = type("ndarray", (), {"__module__": "cupy", "dtype": np.dtype(np.float32), "ndim": 1, "shape": (2,)})()
    with pytest.raises(TypeError, match=r"cupy\.ndarray .*\(cuda: "):
        ds.backend_for(fake)
    for name in USABLE:
        with ds.use_backend(name), pytest.raises(TypeError, match=name):
            ds.backend_for(fake)


def test_complex_is_the_references(backend: str) -> None:
    z = np.array([1 + 1j, 2 - 1j, -2 + 3j])
    want = np.log(np.exp(z).sum())
    np.testing.assert_array_almost_equal_nulp(np.abs(ds.logsumexp(z) - want) + 1, np.ones(()), 8)


REGISTER = """
import numpy as np, dualsoft as ds
def run(problem):
    problem.out[...] = 42
def accepts(work):
    return getattr(work, "x", work).dtype != bool
ds.register_backend("answer", available=lambda: None, accepts=accepts, run=run)
ds.register_backend("never", available=lambda: "out of order", accepts=lambda work: True, run=run)
"""


def test_register_backend() -> None:
    out = run_code(
        REGISTER
        + textwrap.dedent("""
        x = np.zeros(3)
        names = ds.backends()
        print(names["answer"], names["never"], ds.backend_for(x))
        with ds.use_backend("answer"):
            print(ds.softmax(x), ds.logsumexp(x), ds.backend_for(x))
            try:
                ds.softmax(np.zeros(3, bool))
            except TypeError as error:
                print("answer" in str(error))
        for name, error in [("never", RuntimeError), ("answer:fast", ValueError)]:
            try:
                ds.use_backend(name)
            except error as e:
                print(type(e).__name__, e)
        for name in ("answer", "cpu", "a:b", ""):
            try:
                ds.register_backend(name, available=lambda: None, accepts=bool, run=run)
            except ValueError as error:
                print(repr(name) in str(error))
        """)
    ).splitlines()
    assert out[0].split()[:4] == ["None", "out", "of", "order"]
    assert out[0].split()[4] != "answer"  # a registered backend never takes over by itself
    assert out[1] == "[42. 42. 42.] 42.0 answer"
    assert out[2] == "True"
    assert out[3].startswith("RuntimeError")
    assert "out of order" in out[3]
    assert out[4].startswith("ValueError")
    assert "answer:fast" in out[4]
    assert out[5:] == ["True"] * 4


@pytest.mark.parametrize("bad", ["available", "accepts", "run", "name"])
def test_register_backend_wants_callables(bad: str) -> None:
    arguments: dict[str, Any] = {"name": "new", "available": bool, "accepts": bool, "run": bool, bad: 5}
    with pytest.raises(TypeError, match=bad):
        ds.register_backend(arguments.pop("name"), **arguments)
    assert "new" not in ds.backends()


def test_entry_points(tmp_path: Path) -> None:
    """A whole one, one whose module is missing, one without the attributes, one that fails when asked."""
    (tmp_path / "plugin.py").write_text(
        textwrap.dedent("""
        class Good:
            available = staticmethod(lambda: None)
            accepts = staticmethod(lambda work: True)
            @staticmethod
            def run(problem):
                problem.out[...] = 7
        class Angry(Good):
            @staticmethod
            def available():
                raise OSError("no device today")
        empty = object()
        """)
    )
    info = tmp_path / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[dualsoft.backends]\n"
        "good = plugin:Good\ngone = missing_plugin:thing\nempty = plugin:empty\nangry = plugin:Angry\n"
    )
    out = run_code(
        textwrap.dedent("""
        import numpy as np, dualsoft as ds
        names = ds.backends()
        for name in ("good", "gone", "empty", "angry"):
            print(names[name])
        with ds.use_backend("good"):
            print(ds.softmax(np.zeros(2)))
        for name in ("gone", "empty", "angry"):
            try:
                ds.use_backend(name)
            except RuntimeError as error:
                print(error)
        print(ds.backend_for(np.zeros(2)))
        """),
        PYTHONPATH=str(tmp_path),
    ).splitlines()
    assert out[0] == "None"
    assert out[4] == "[7. 7.]"
    for line, word in zip(out[1:4] + out[5:8], ["missing_plugin", "available", "no device today"] * 2, strict=True):
        assert word in line
    assert out[8] in ("cpu", "reference")


def test_without_kernels_the_reference_serves_visibly() -> None:
    code = WITHOUT_KERNELS + textwrap.dedent("""
        import warnings, numpy as np, dualsoft as ds
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            print(ds.softmax(np.zeros(2)), ds.backend_for(np.zeros(2)), ds.backends()["cpu"])
            ds.softmax(np.zeros(2))
        print([w.category.__name__ for w in caught], [str(w.message) for w in caught])
        """)
    served, warned = run_code(code).splitlines()
    assert served.startswith("[0.5 0.5] reference")
    assert "kernels" in served
    assert warned.startswith("['RuntimeWarning']")
    assert "reference" in warned
    assert run_code(code, DUALSOFT_PURE="1").splitlines()[1] == "[] []"


@pytest.mark.parametrize("call", ["softmax(x)", "attention(x, x, x)", "SoftmaxState.identity(()).update(x)"])
def test_the_warning_names_the_callers_line(call: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_KERNELS + f"import numpy as np, dualsoft as ds\nx = np.zeros((2, 3))\nds.{call}\n")
    line = len(script.read_text().splitlines())
    done = python(str(script), PYTHONPATH=str(ROOT))
    assert f"script.py:{line}: RuntimeWarning" in done.stderr


def test_without_kernels_asking_for_them_is_an_error() -> None:
    code = WITHOUT_KERNELS + "import dualsoft as ds\nds.use_backend('cpu')"
    done = python("-c", code)
    assert done.returncode
    assert "RuntimeError" in done.stderr
    assert "kernels" in done.stderr


def test_without_kernels_the_command_fails() -> None:
    code = (
        WITHOUT_KERNELS
        + "import runpy, sys\nsys.argv = ['dualsoft']\nrunpy.run_module('dualsoft', run_name='__main__')"
    )
    done = python("-c", code)
    assert done.returncode not in (0, None)
    assert "kernels" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_available_must_say_none_or_why() -> None:
    out = run_code(
        REGISTER
        + textwrap.dedent("""
        ds.register_backend("yes", available=lambda: True, accepts=accepts, run=run)
        print(ds.backends()["yes"])
        """)
    )
    assert "available()" in out
    assert "True" in out
