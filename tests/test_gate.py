"""What the compile gate compiles for which architectures, and its table."""

import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import cubin
import gate
import pytest
from cubin import Code
from process import ROOT

from dualsoft.backends.nvrtc import Variant, assemble

LISTED = gate.variants()
FOUND = [
    Code(
        Variant("one.cu", "one", (("DS_X", x),)),
        number,
        {"REG": registers, "STACK": 0, "LOCAL": 0, "SHARED": 64},
        128,
        names,
        (),
        2,
    )
    for number, x, registers, names in (
        (80, "ds::f16", 32, ("LDG.E.128", "EXIT")),
        (80, "ds::f32", 40, ("LDG.E.128", "LDG.E.128.CONSTANT", "STG.E.U16", "EXIT")),
        (90, "ds::f32", 48, ("LDG.E.64", "EXIT")),
    )
]


@pytest.mark.parametrize("asked", ["", "shared", "all", "75+80", "90"])
def test_plan_leaves_nothing_out(asked: str) -> None:
    """Each variant for an architecture of each group, each kernel for all, wherever it compiles at all."""
    plan = gate.plan(asked)
    for group in gate.groups(asked):
        seen = Counter(variant for number in group for variant in plan[number])
        assert set(seen) == {variant for variant in LISTED if variant.oldest <= max(group)}
        due = {variant: sum(variant.oldest <= max(part) for part in gate.parts(variant, group)) for variant in seen}
        assert all(count >= due[variant] for variant, count in seen.items())
        repeated = [variant for variant, count in seen.items() if count > due[variant]]
        small = Counter(variant.kernel for variant in LISTED)
        assert all(small[variant.kernel] < len(group) or variant.oldest > min(group) for variant in repeated)
        for number in group:
            kernels = {variant.kernel for variant in plan[number]}
            assert kernels == {variant.kernel for variant in LISTED if variant.oldest <= number}
            assert all(variant.oldest <= number for variant in plan[number])


@pytest.mark.parametrize("asked", ["shared", "all"])
def test_all_seven(asked: str) -> None:
    assert tuple(number for group in gate.groups(asked) for number in group) == cubin.ARCHITECTURES


def test_a_share_stays_when_other_kernels_change() -> None:
    kept = gate.shared_out([variant for variant in LISTED if variant.kernel == "softmax_rows"], (80, 90, 120))
    everything = gate.shared_out(LISTED, (80, 90, 120))
    for number, share in kept.items():
        assert share == [variant for variant in everything[number] if variant.kernel == "softmax_rows"]


@pytest.mark.parametrize("group", gate.groups("shared") + gate.groups(""), ids=str)
def test_shares_are_alike(group: gate.Group) -> None:
    """The values of a macro are spread over the architectures, kernel by kernel, and so is the work."""
    shares = gate.shared_out(LISTED, group)
    of_value: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
    for number, share in shares.items():
        for variant in share:
            for define in variant.defines:
                of_value[variant.kernel, *define][number] += 1
    for value, counts in of_value.items():
        spread = [counts[number] for number in group]
        assert max(spread) - min(spread) <= 3, (value, counts)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= len(gate.by_kernel(LISTED))


@pytest.mark.skipif(cubin.why_not() is not None, reason=str(cubin.why_not()))
def test_those_that_share_get_the_same_ptx() -> None:
    """Seen by a kernel that asks for the architecture, by one that does not, and by one whose products are those of
    tensor cores on some: the compiler has another way from sm_100 on, whatever it compiles.
    """
    for name in ("softmax_kept[", "join_parts[", "gradient_queries[x=f64"):
        variant = next(variant for variant in LISTED if variant.name.startswith(name))
        texts = {}
        for number in cubin.ARCHITECTURES:
            options = [option.replace("=sm_", "=compute_") for option in cubin.options_of(variant, number)]
            ptx = cubin.nvrtc().compile(assemble(variant.source), options, variant.source, "PTX").decode()
            texts[number] = re.sub(r"\.target sm_\d+", "", ptx)
        for group in gate.groups("shared"):
            for part in gate.parts(variant, group):
                assert len({texts[number] for number in part}) == 1
        assert texts[90] != texts[100]
        assert (texts[75] == texts[80]) == (name == "join_parts[")
        if gate.has_f64_tiles(variant):
            counts = Counter(texts.values())
            assert all((counts[texts[number]] == 1) == (number in gate.F64_PRODUCTS) for number in (80, 86, 90, 100))


@pytest.mark.parametrize("asked", ["70", "80,80", "80+90,90", "eighty", "80;90"])
def test_what_cannot_be_asked_for(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="expected all, shared or some of"):
        gate.groups(asked)
    assert gate.main([asked]) == 1
    assert "ARCHITECTURES" in capsys.readouterr().out


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [dict(zip(gate.of_variants(FOUND)[0], row, strict=True)) for row in gate.of_variants(FOUND)[1:]]
    assert [row["LDG.128"] for row in rows] == ["1", "2", "0"]
    assert [row["registers"] for row in rows] == ["32", "40", "48"]
    assert rows[1]["kernel"] == "one[x=ds::f32]"
    gate.show(gate.of_variants(FOUND))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1


def test_table_of_kernels() -> None:
    header, *rows = gate.of_kernels(FOUND)
    assert [row[:4] for row in rows] == [("one", "80", "2", "32-40"), ("one", "90", "1", "48")]
    assert [row[header.index("LDG.128")] for row in rows] == ["1-2", "0"]
    assert [row[header.index("STG")] for row in rows] == ["0-1", "0"]


@pytest.mark.skipif(cubin.why_not() is not None, reason=str(cubin.why_not()))
def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate.main(["--kernels", "90", "probe"]) == 0
    printed = capsys.readouterr().out
    assert "1 variants" in printed
    assert "probe" in printed.splitlines()[-1]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="which processes run is read from /proc")
def test_compilers_end_with_who_started_them() -> None:
    """Killed, not asked to end: a run of tests that takes too long leaves no process behind."""
    code = "import os, cubin; print(cubin.compilers().submit(os.getpid).result(), flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT / "tests", **pipes) as started:
        process = int(started.stdout.readline())
        assert is_running(process)
        started.kill()
    until = time.monotonic() + 60
    while is_running(process):
        assert time.monotonic() < until
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
