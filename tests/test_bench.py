"""The benchmark's own code: it runs, saves, prints, and tells failure. No time is judged here."""

import json
from pathlib import Path

import numpy as np
import pytest
from bench_process import bench, module
from conftest import USABLE
from process import ROOT, WITHOUT_KERNELS

pytest.importorskip("rich", reason="the benchmark's tables need rich")
needs_kernels = pytest.mark.skipif(not any(":" in name for name in USABLE), reason="no compiled level can be used here")
WITHOUT_SHAPES = {"attention", "attention_backward", "decode", "paged", "linear_cross_entropy"}


@needs_kernels
def test_a_run_prints_a_table_and_saves_every_time(tmp_path: Path) -> None:
    saved = tmp_path / "new folder" / "saved.json"
    options = ("--quick", "--threads", "1", "--shapes", "16x16", "5x9:0", "--peers", "numpy", "scipy")
    done = bench("softmax", "logsumexp", *options, "--json", str(saved))
    assert done.returncode == 0, done.stderr
    for word in ("softmax", "logsumexp", "(16, 16)", "(5, 9) axis 0", "compared with wider arithmetic", "GB/s"):
        assert word in done.stdout, f"{word} not in:\n{done.stdout}"
    found = json.loads(saved.read_text())
    assert found["threads"] == 1
    assert found["level"] in found["versions"]["dualsoft"] or found["level"] in " ".join(USABLE)
    assert {"cpu", "processors", "caches"} <= set(found["machine"])
    assert [(row["operation"], row["shape"], row["axis"]) for row in found["rows"]] == [
        (operation, shape, axis)
        for operation in ("softmax", "logsumexp")
        for shape, axis in (([16, 16], -1), ([5, 9], 0))
    ]
    for row in found["rows"]:
        assert set(row["results"]) == {"dualsoft", "numpy", "scipy"}
        for result in row["results"].values():
            assert len(result["times"]) == found["repeat"] == 3
            assert result["reason"] is None
            assert min(result["times"]) > 0
    square = found["rows"][0]
    assert square["bytes_moved"] == 2 * 16 * 16 * 4


@needs_kernels
def test_every_operation_runs_and_absent_contenders_say_why(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    hide = "import sys; sys.modules['torch'] = None\n"
    options = ("--quick", "--shapes", "4x8", "--dtypes", "float32", "float16", "--repeat", "1")
    done = bench(*options, "--peers", "numpy", "scipy", "torch", "--json", str(saved), first=hide)
    assert done.returncode == 0, done.stderr
    rows = json.loads(saved.read_text())["rows"]
    files = {path.stem for path in (ROOT / "bench" / "operations").glob("*.py")} - {"__init__"}
    assert {row["operation"] for row in rows} == files - WITHOUT_SHAPES
    for row in rows:
        assert "torch" in row["results"]["torch"]["reason"]
        assert ("dualsoft float32" in row["results"]) == (row["dtype"] == "float16")
        assert (row["results"]["numpy"]["reason"] is None) == (row["dtype"] == "float32")
    assert "SciPy has no such function" in done.stdout


def test_draws_are_judged_by_where_they_may_fall() -> None:
    operation = module("bench.operations.sample").OPERATION
    contest = operation.contest(
        operation.cases[0]._replace(shape=module("bench.options").Shape((3, 50), -1)), np.dtype("f4")
    )
    order = np.argsort(-contest.x, axis=1)
    assert contest.judge(order[:, 0], ours=True).limit is None
    assert contest.judge(order[:, -1], ours=True).limit == "what top_p keeps"
    assert contest.judge(order[:, -1], ours=False).limit == "what top_p keeps"
    assert contest.judge(np.array([0, -1, 0]), ours=True).limit == "the axis"


@needs_kernels
def test_a_case_may_keep_more_than_its_operation() -> None:
    operation, shape = module("bench.operations.softmax_topk").OPERATION, module("bench.options").Shape((3, 50), -1)
    assert "(1024, 25000) k=256" in [case.label for case in operation.cases]
    libraries = module("bench.libraries")
    everyone = {"dualsoft": libraries.dualsoft_library()} | libraries.load(("numpy",), 1)
    for kept in (None, 7):
        contest = operation.contest(module("bench.operation").Case(shape, "float32", kept), np.dtype("f4"))
        assert contest.result_shape == (3, kept or 5)
        for name, library in everyone.items():
            if not isinstance(library, str):
                form = contest.forms(name, library)[""]
                found = form.read(form.call())
                assert found.shape == contest.result_shape, name
                assert contest.judge(found, ours=name == "dualsoft").limit is None, name


@needs_kernels
def test_the_product_alone_stands_beside_the_loss_of_it() -> None:
    loss, case = module("bench.operations.linear_cross_entropy"), module("bench.operation").Case
    contest = loss.OPERATION.contest(case(module("bench.options").Shape((6, 16), -1), "float32"), np.dtype("f4"))
    beside = contest.baselines(module("bench.libraries").dualsoft_library())
    assert list(beside) == ["numpy: the product alone"]
    weight, _ = loss.parts(contest.x, np.dtype("f4"))
    np.testing.assert_array_equal(beside["numpy: the product alone"]()[:6, : len(weight)], contest.x @ weight.T)


@needs_kernels
def test_a_note_says_what_a_call_allocates() -> None:
    loss, case = module("bench.operations.linear_cross_entropy"), module("bench.operation").Case
    operation = loss.OPERATION._replace(
        contenders={name: lambda _, x, axis, out: np.empty(2**20, np.uint8) for name in ("dualsoft", "numpy")}
    )
    contest = operation.contest(case(module("bench.options").Shape((6, 16), -1), "float32"), np.dtype("f4"))
    assert operation.stored(contest.x) == (6 * 64 * 4, "all logits")
    contest.operation = operation._replace(stored=lambda x: (2**22, "all of it"))
    library = module("bench.libraries").dualsoft_library()
    assert contest.forms("dualsoft", library)[""].note == "allocates 1.0 MiB, 1/4.0 of the 4.0 MiB of all of it"
    assert contest.forms("numpy", library)[""].note == ""


def test_missing_kernels_are_an_error() -> None:
    done = bench("softmax", "--quick", first=WITHOUT_KERNELS)
    assert done.returncode == 1
    assert "compiled kernels" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_rich_it_names_the_extra() -> None:
    done = bench("softmax", first="import sys; sys.modules['rich'] = None\n")
    assert done.returncode == 2
    assert ".[bench]" in done.stderr
    assert "Traceback" not in done.stderr


@needs_kernels
def test_a_wrong_result_of_dualsoft_fails_the_run(tmp_path: Path) -> None:
    break_it = "import dualsoft; dualsoft.softmax = lambda x, axis, out: x\n"
    options = ("--quick", "--shapes", "4x8", "--peers", "--json", str(tmp_path / "saved.json"))
    done = bench("softmax", *options, first=break_it)
    assert done.returncode == 1, done.stdout
    assert "is wrong" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("--shapes", "4xfour"), ("--shapes", "4x4:2"), ("--threads", "0"), ("--peers", "me")]
)
def test_wrong_command_lines(arguments: tuple[str, ...]) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_turns_rotate_and_everyone_has_one_a_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = module("bench.measure")
    monkeypatch.setattr(measure, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(measure, "TURN_SECONDS", 0.0)
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    ticks: list[None] = []
    times = measure.in_turns(calls, 4, lambda: ticks.append(None))
    assert {name: len(taken) for name, taken in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert len(ticks) == 4
    assert "".join(order[::2]) == "abcbcacababc"


@needs_kernels
@pytest.mark.parametrize("kind", ["read", "copy"])
def test_ceilings_are_for_arrays_past_the_caches(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    ceilings = module("bench.ceilings")
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    assert ceilings.ceiling_call(kind, x, 1) is None
    monkeypatch.setattr(ceilings, "LEAST_BYTES", 1)
    call = ceilings.ceiling_call(kind, x, 1)
    assert not isinstance(call, str), call
    result = call()
    if kind == "read":
        assert result == 63


def test_readme_table_comes_from_a_saved_run(tmp_path: Path) -> None:
    readme = module("bench.readme")
    results = {
        "dualsoft": {"median": 2e-3, "reason": None},
        "torch": {"median": 5e-3, "reason": None},
        "jax": {"median": 4e-3, "reason": None},
        "scipy": {"median": None, "reason": "not installed"},
        "copy": {"median": 1.5e-3, "reason": None},
    }
    row = {"operation": "softmax", "shape": [4096, 4096], "axis": 0, "dtype": "float32", "ceiling": "copy"}
    saved = {
        "machine": {"cpu": "A CPU"}, "versions": {"python": "3", "numpy": "2"}, "threads": 2, "level": "some",
        "date": "2030-01-02T03:04:05+00:00", "commit": "abc", "repeat": 15,
        "rows": [row | {"bytes_moved": 10**8, "results": results}, row | {"dtype": "float16"}],
    }  # fmt: skip
    source = tmp_path / "saved.json"
    source.write_text(json.dumps(saved))
    target = tmp_path / "README.md"
    begin, end = readme.markers("")
    target.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    assert readme.fill(tmp_path, target) == 0
    text = target.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| `softmax` (4096, 4096), axis 0 | 2 ms | 50.0 | 75% (copy) | 2.5x | 2.0x (jax) |" in text
    assert text.count("4096") == 2
    assert "2030-01-02" in text
    assert readme.fill(tmp_path / "nothing.json", target) == 1
    assert target.read_text() == text


def test_cases_of_one_shape_differ_in_the_readme() -> None:
    readme = module("bench.readme")
    results = {"dualsoft": {"median": 1.0, "reason": None}}
    row = {"operation": "softmax_topk", "shape": [4, 9], "axis": -1, "ceiling": "read", "results": results}
    few, many = (readme._line(row | {"case": case, "bytes_moved": 10**9}) for case in ("(4, 9)", "(4, 9) k=3"))
    assert few == "| `softmax_topk` (4, 9) | 1e+03 ms | 1.0 |  |  |  |"
    assert many == "| `softmax_topk` (4, 9), k=3 | 1e+03 ms | 1.0 |  |  |  |"
    assert "0.0" not in readme._line(row | {"case": "(4, 9)", "bytes_moved": 10**7}), "a rate that says nothing"


def test_the_readme_has_a_place_for_every_table() -> None:
    readme = module("bench.readme")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    places = [text.index(mark) for table, *_ in readme.TABLES for mark in readme.markers(table)]
    assert places == sorted(places)
    assert all(text.count(mark) == 1 for table, *_ in readme.TABLES for mark in readme.markers(table))


def test_a_saved_row_belongs_to_one_table() -> None:
    readme = module("bench.readme")
    for name in module("bench.options").operation_names():
        axis = None if name.startswith(("attention", "decode", "paged")) else -1
        row = {"operation": name, "axis": axis, "dtype": "float32"}
        assert sum(wanted(row) for _, wanted, _ in readme.TABLES) == 1, name
