"""What is built: the wheel, installed and used from elsewhere; the build without kernels, and without a compiler."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from process import ROOT, python

from dualsoft import isa

LEVELS = tuple(level for level, row in isa.LEVELS.items() if row.machine == platform.machine())
COMPILER = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")


def build(where: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel from a clean copy of the sources: no modules built in place, nothing written into them."""
    source = where / "source"
    ignored = shutil.ignore_patterns(
        ".git",
        "*.so",
        "*.pyd",
        "build",
        "dist",
        "*.egg-info",
        "__pycache__",
        ".*_cache",
        ".hypothesis",
        ".venv",
        "venv",
    )
    shutil.copytree(ROOT, source, ignore=ignored)
    return python(
        "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", ".", "-w", str(where),
        cwd=source, timeout=1200, **environment,
    )  # fmt: skip


def the_wheel(where: Path, **environment: str) -> Path:
    done = build(where, **environment)
    if done.returncode:
        pytest.fail(f"the build failed\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}", pytrace=False)
    (path,) = where.glob("dualsoft-*.whl")
    return path


def install(wheel: Path, target: Path) -> None:
    options = ("--no-deps", "--no-index", "--disable-pip-version-check")
    done = python("-m", "pip", "install", *options, "--target", str(target), str(wheel))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    return the_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return the_wheel(tmp_path_factory.mktemp("pure"), DUALSOFT_PURE="1")


def sources() -> set[str]:
    kept = (p for p in (ROOT / "dualsoft").rglob("*") if p.suffix in (".py", ".pyi", ".typed"))
    cuda = (p for p in (ROOT / "cuda").iterdir() if p.suffix in (".cu", ".cuh"))
    return {p.relative_to(ROOT).as_posix() for p in kept} | {f"dualsoft/cuda/{p.name}" for p in cuda}


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_contents(wheel: Path) -> None:
    inside = names(wheel)
    package = {name for name in inside if name.startswith("dualsoft/")}
    information = {name for name in inside if name.split("/")[0].endswith(".dist-info")}
    assert not inside - package - information, "the wheel holds more than the package"
    compiled = {name for name in package if name.endswith((".so", ".pyd"))}
    assert {name.split("/")[1].split(".")[0] for name in compiled} == {
        "_cpuid",
        *(f"_simd_{level}" for level in LEVELS),
    }
    assert package - compiled == sources() | {"dualsoft/py.typed"}
    assert any("LICENSE" in name for name in information)


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
        lines = archive.read(name).decode().split("\n\n")[0].splitlines()
    required = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert len(required) == 1
    assert "numpy" in required[0]
    assert any(line.startswith("Requires-Python: >=3.11") for line in lines)
    extras = {line.split()[1] for line in lines if line.startswith("Provides-Extra:")}
    assert extras >= {"cuda12", "cuda13", "test", "test-cuda", "bench", "docs"}


def python_with(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python outside the tree on an installed wheel and NumPy alone.

    ``-S`` keeps the finder of an editable install away: it would answer for modules that the wheel lacks.
    """
    paths = os.pathsep.join([str(site), str(Path(np.__file__).parents[1])])
    return python("-S", *arguments, cwd=site.parent, PYTHONPATH=paths)


def test_installed_wheel_works_elsewhere(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(wheel, site)
    code = "import dualsoft, importlib.util as u; print(dualsoft.__file__, u.find_spec('dualsoft._cpuid').origin)"
    where = python_with(site, "-c", code)
    assert where.stdout.count(str(site)) == 2, where.stdout + where.stderr
    done = python_with(site, "-m", "dualsoft")
    assert done.returncode == 0, done.stdout + done.stderr


def test_pure_wheel(pure_wheel: Path, tmp_path: Path) -> None:
    inside = names(pure_wheel)
    assert not {name for name in inside if name.endswith((".so", ".pyd"))}
    assert {name for name in inside if name.startswith("dualsoft/")} == sources()
    site = tmp_path / "site"
    install(pure_wheel, site)
    code = "import dualsoft as ds; print(ds.softmax([0.0, 0.0]), ds.backend_for([1.0]), ds.backends()['cpu'])"
    done = python_with(site, "-W", "always", "-c", code)
    assert done.stdout.startswith("[0.5 0.5] reference"), done.stdout + done.stderr
    assert "kernels" in done.stdout
    assert "RuntimeWarning" in done.stderr
    command = python_with(site, "-m", "dualsoft")
    assert command.returncode
    assert "kernels" in command.stdout + command.stderr


def test_no_compiler(tmp_path: Path) -> None:
    done = build(tmp_path, CC="/nonexistent/cc", CXX="/nonexistent/c++")
    assert done.returncode
    said = done.stdout + done.stderr
    for word in ("compiler", "g++", "DUALSOFT_PURE"):
        assert word in said, f"{word} not in:\n{said[-3000:]}"
    assert not list(tmp_path.glob("*.whl"))


def test_this_environment_runs_the_sources() -> None:
    """The tests of this run are those of the tree they lie in, not of another installed copy."""
    import dualsoft

    assert Path(dualsoft.__file__).parents[1] == ROOT, (
        f"{dualsoft.__file__} is imported; {sys.executable} -m pip install -e ."
    )
