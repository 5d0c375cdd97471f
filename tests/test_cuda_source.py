"""CUDA sources as one string: each include once, and every line with the number that it has in its file."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cubin
import devices
import emulator
import pytest

from dualsoft.backends import cuda_columns, cuda_rows, nvrtc

needs_emulator = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"
FILES = sorted(path.name for path in nvrtc.folder().iterdir())
KERNELS = sorted({v.source for table in (cuda_rows, cuda_columns) for v in table.variants()} | {"probe.cu"})
_LINE = re.compile(r'#line (\d+) "([\w.]+)"')


@pytest.fixture
def cp() -> Any:
    return devices.module(NAME)


def placed_lines(text: str) -> Iterator[tuple[str, int, str]]:
    """Each line of assembled text with the file and number that a compiler gives it."""
    name, number = "", 0
    for line in text.splitlines():
        directive = _LINE.fullmatch(line)
        if directive:
            number, name = int(directive[1]), directive[2]
        else:
            yield name, number, line
            number += 1


@pytest.mark.parametrize("source", KERNELS)
def test_every_line_of_a_source_has_the_number_of_its_file(source: str) -> None:
    text = nvrtc.assemble(source)
    texts = {name: (nvrtc.folder() / name).read_text().splitlines() for name in FILES}
    seen: dict[str, set[int]] = {}
    for name, number, line in placed_lines(text):
        original = texts[name][number - 1]
        if line != original:
            assert line == ""
            assert original == "#pragma once" or original.startswith('#include "')
        assert number not in seen.setdefault(name, set()), f"{name}:{number} comes twice"
        seen[name].add(number)
    for name, numbers in seen.items():
        missing = [n for n in range(1, len(texts[name]) + 1) if n not in numbers]
        assert all(texts[name][n - 1].startswith('#include "') for n in missing), f"{name} lacks {missing}"


FULL_RATE = "#define DS_HAS_F64_PRODUCTS (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)"


def test_emulated_architectures_differ_at_sm_80_alone() -> None:
    """So tests of a kernel need two of them: what is said of sm_80 holds for sm_90.

    But for one instruction in the place of four, whose answers ``test_cuda_conformance.py`` compares on each of them.
    """
    newest = max(int(name.removeprefix("sm_")) for name in devices.ARCHITECTURES)
    for name in FILES:
        text = (nvrtc.folder() / name).read_text().replace(FULL_RATE, "")
        borders = [int(n) // 10 for n in re.findall(r"#(?:el)?if __CUDA_ARCH__ >= (\d+)\n", text)]
        assert text.count("__CUDA_ARCH__") == len(borders), f"{name} asks in another way"
        if name == "ptx_f64.cuh":
            assert borders == [90, 80]
            assert len(re.findall(r"^DS_DEVICE \w+ ", text, re.MULTILINE)) == text.count("void multiply_f64(") == 2
        else:
            assert all(border == 80 or border > newest for border in borders), name


@pytest.mark.parametrize("source", KERNELS)
def test_each_include_comes_once_and_nothing_is_left_to_include(source: str) -> None:
    text = nvrtc.assemble(source)
    starts = Counter(match[2] for match in _LINE.finditer(text) if match[1] == "1")
    assert set(starts.values()) == {1}
    assert starts[source] == 1
    assert "#include" not in text
    assert "#pragma once" not in text


def test_an_include_stands_before_what_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.cu").write_text('// a\n#include "b.cuh"\n#include "c.cuh"\na\n')
    (tmp_path / "b.cuh").write_text('#pragma once\n#include "c.cuh"\nb\n')
    (tmp_path / "c.cuh").write_text("#pragma once\nc\n")
    monkeypatch.setattr(nvrtc, "folder", lambda: tmp_path)
    lines = [(name, number, line) for name, number, line in placed_lines(nvrtc.assemble.__wrapped__("a.cu")) if line]
    assert lines == [("a.cu", 1, "// a"), ("c.cuh", 2, "c"), ("b.cuh", 3, "b"), ("a.cu", 4, "a")]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a line that does not compile into one of the files; returns its number."""

    def plant(name: str) -> int:
        for file in FILES:
            (tmp_path / file).write_text((nvrtc.folder() / file).read_text())
        lines = (tmp_path / name).read_text().splitlines()
        lines.append("nonsense planted;")
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        monkeypatch.setattr(nvrtc, "folder", lambda: tmp_path)
        nvrtc.assemble.cache_clear()
        return len(lines)

    yield plant
    monkeypatch.undo()
    nvrtc.assemble.cache_clear()


ANY_VARIANT = next(variant for variant in cuda_rows.variants() if variant.source == "softmax.cu")


@needs_emulator
@pytest.mark.parametrize("name", ["types.cuh", "rows.cuh", "softmax.cu"])
def test_a_compile_error_names_the_line_of_the_file(name: str, planted: Any, cp: Any) -> None:
    number = planted(name)
    with pytest.raises(RuntimeError) as caught:
        nvrtc.load(cp, ANY_VARIANT)
    assert f"{name}:{number}:" in str(caught.value)
    assert "NVRTC does not compile softmax.cu with --std=c++17 --fmad=false -DDS_X=" in str(caught.value)
    assert isinstance(caught.value.__cause__, cp.cuda.compiler.CompileException)


@pytest.mark.skipif(cubin.why_not() is not None, reason=str(cubin.why_not()))
@pytest.mark.parametrize("name", ["pair.cuh", "softmax.cu"])
def test_nvrtc_names_the_line_of_the_file(name: str, planted: Any) -> None:
    number = planted(name)
    with pytest.raises(cubin.CompileError, match=rf"{re.escape(name)}\({number}\): error"):
        cubin.nvrtc().compile(nvrtc.assemble("softmax.cu"), cubin.options_of(ANY_VARIANT, 80))


def test_sources_lie_inside_an_installed_package_or_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "dualsoft" / "backends" / "nvrtc.py"
    find = nvrtc.folder.__wrapped__
    monkeypatch.setattr(nvrtc, "__file__", str(module))
    with pytest.raises(FileNotFoundError, match="install dualsoft again") as caught:
        find()
    assert str(tmp_path / "dualsoft") in str(caught.value)
    for place in (tmp_path / "cuda", tmp_path / "dualsoft" / "cuda"):
        place.mkdir(parents=True)
        with pytest.raises(FileNotFoundError) if place == tmp_path / "cuda" else pytest.raises(AssertionError):
            assert find() != tmp_path / "cuda"  # an empty folder is another project's
        (place / "types.cuh").write_text("")
        assert find() == place
