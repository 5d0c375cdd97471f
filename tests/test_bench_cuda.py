"""The benchmark's code for cards, run on the emulator with a clock that makes its times up. No time is judged here."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from bench_clock import MADE_UP_MILLISECONDS, WithClock
from bench_process import bench, module
from bench_tiny import tiny
from small_kernels import SKIP

import dualsoft

pytest.importorskip("rich", reason="the benchmark's tables need rich")
BACKEND = "cuda-emulated:sm_80"
ROUNDINGS = 16 * dualsoft.accuracy.unit_roundoff("float64")
"""What a rate and a time from it, some ten operations in float64, may be off by."""
OPERATIONS = ("softmax", "log_softmax", "logsumexp")
"""Those that cupyx has as well."""
ATTENTION = ("attention", "attention_backward", "decode", "paged")
BESIDE = dict(module("bench.device_contest").BESIDE)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(module("bench.device"), "LEAST_COPY_BYTES", 1 << 12)
    # Kernels that one test is enough for.
    monkeypatch.setattr(module("bench.device_contest"), "BESIDE", {})
    with dualsoft.use_backend(BACKEND):
        yield module("bench.device").this_device(WithClock(devices.module(BACKEND)))._replace(simulated=True)


def like_cupyx(name: str, wrong: bool = False) -> Callable[..., Any]:
    """The same function by NumPy, which the emulator's arrays are for."""

    def function(x: Any, axis: int) -> Any:
        wide = x.astype(np.float64)
        m = wide.max(axis=axis, keepdims=True)
        lse = m + np.log(np.exp(wide - m).sum(axis=axis, keepdims=True))
        found = {"softmax": np.exp(wide - lse), "log_softmax": wide - lse, "logsumexp": lse[..., 0]}[name]
        return (found + wrong).astype(x.dtype)

    return function


@pytest.fixture
def cupyx(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    special = SimpleNamespace(**{name: like_cupyx(name) for name in OPERATIONS})
    stand_in = SimpleNamespace(scipy=SimpleNamespace(special=special))
    contest = module("bench.device_contest")

    def load(device: Any) -> Any:
        return contest.dualsoft_library()._replace(
            name="cupyx", version="a stand-in", module=stand_in, taken=lambda array: array.get()
        )

    monkeypatch.setitem(contest._LOADERS, "cupyx", load)
    return special


def options(*arguments: str) -> Any:
    return module("bench.options").parse(["--backend", "cuda", *arguments])


def run(device: Any, *arguments: str) -> int:
    status: int = module("bench.device_session").run(options(*arguments), device)
    return status


@SKIP
def test_a_run_prints_tables_and_saves_every_time(
    device: Any, cupyx: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, plot = tmp_path / "folder" / "saved.json", tmp_path / "plot.svg"
    shapes = ("--shapes", "5x300", "40x16", "--dtypes", "float32", "bfloat16", "float64")
    wanted = (*OPERATIONS, *shapes, "--repeat", "2", "--peers", "cupyx", "--json", str(saved))
    if module("importlib.util").find_spec("matplotlib") is not None:
        wanted += ("--plot", str(plot))
    status = run(device, *wanted)
    output = capsys.readouterr()
    assert status == 0, output
    # No figure of such a run can be taken for a measurement.
    assert output.out.count("SIMULATED") >= 2
    assert "NO TIME BELOW IS A MEASUREMENT" in output.out
    for words in (*OPERATIONS, "An Emulated Card", "copy ceiling", "cupyx a stand-in", "GB/s", "(40, 16)"):
        assert words in output.out, words
    found = json.loads(saved.read_text())
    assert found["simulated"] is True
    assert found["machine"]["card"] == "An Emulated Card (not real)"
    assert found["machine"]["l2_bytes"] == 1 << 12
    assert {"cupy", "nvrtc", "cuda driver"} <= set(found["versions"])
    assert len(found["rows"]) == len(found["host_seconds"]) == 3 * 2 * 3
    for row in found["rows"]:
        assert set(row["results"]) == {"dualsoft", "cupyx", "copy"}
        assert all(len(result["times"]) == 2 for result in row["results"].values()), row
        itemsize, rows, n = {"float64": 8, "float32": 4}.get(row["dtype"], 2), *row["shape"]
        written = rows if row["operation"] == "logsumexp" else rows * n
        assert row["bytes_moved"] == itemsize * (rows * n + written)
        # Copying four times the cache takes what the clock always says, by the number of copies in a turn.
        calls = max(3, np.ceil(0.002 / (MADE_UP_MILLISECONDS / 1e3 / 3)))
        rate = 4 * device.cache_bytes / (MADE_UP_MILLISECONDS / 1e3 / calls)
        np.testing.assert_allclose(row["results"]["copy"]["times"], row["bytes_moved"] / rate, rtol=ROUNDINGS)
    assert plot.exists() == ("--plot" in wanted)


@SKIP
def test_other_ways_to_a_result_stand_beside_it(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contest, saved = module("bench.device_contest"), tmp_path / "saved.json"
    monkeypatch.setattr(contest, "BESIDE", BESIDE)
    common = ("--shapes", "70x30", "30x70:0", "--repeat", "1", "--peers", "--json", str(saved))
    assert run(device, "softmax", "logsumexp", *common) == 0, capsys.readouterr()
    for row in json.loads(saved.read_text())["rows"]:
        assert row["baselines"] == list(BESIDE[row["operation"]])
        assert all(row["results"][name]["times"] for name in row["baselines"])
    assert {"naive", "safe", "online"} < BESIDE["softmax"].keys()
    monkeypatch.setitem(BESIDE["softmax"], "safe", lambda cp, x, axis: lambda: x)
    assert run(device, "softmax", *common) == 1
    assert "safe is wrong by" in capsys.readouterr().err


@SKIP
def test_attention_on_a_card(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every kind of case, tiny: forward, backward, one query, pages; a wrong head is seen."""
    attention, saved = module("bench.device_attention"), tmp_path / "saved.json"
    cases = {
        name: tuple(dict.fromkeys(tiny(case, "float32")._replace(label=name) for case in cases))
        for name, cases in attention.CASES.items()
    }
    monkeypatch.setattr(attention, "CASES", cases)
    monkeypatch.setattr(attention, "EDGE", 16)
    peers = ("torch",) if module("importlib.util").find_spec("torch") is not None else ()
    common = ("--repeat", "1", "--json", str(saved))
    assert run(device, *ATTENTION, *common, "--peers", *peers) == 0, capsys.readouterr()
    rows = json.loads(saved.read_text())["rows"]
    assert len(rows) == sum(map(len, cases.values()))
    for row in rows:
        reads = row["operation"] in ("decode", "paged")
        assert row["ceiling"] == ("copy" if reads else "GEMM")
        assert (row["flops"] == 0) == reads
        for name in ("dualsoft", row["ceiling"]):
            assert row["results"][name]["times"], row
        for name in peers:
            found = row["results"][name]
            assert found["times"] or found["reason"].startswith("SDPA"), row
    right = dualsoft.attention

    def wrong_in_the_last_head(*arrays: Any, **options: Any) -> Any:
        out = right(*arrays, **options)
        out[-1, -1] += 1
        return out

    monkeypatch.setattr(dualsoft, "attention", wrong_in_the_last_head)
    assert run(device, "decode", *common, "--peers") == 1
    assert "is wrong" in capsys.readouterr().err


@SKIP
def test_a_wrong_result_fails_the_run_and_a_wrong_peer_does_not(
    device: Any, cupyx: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cupyx.softmax = like_cupyx("softmax", wrong=True)
    cupyx.log_softmax = lambda x, axis: x[:1]
    common = ("--shapes", "4x8", "--repeat", "1", "--peers", "cupyx", "--json", str(tmp_path / "saved.json"))
    assert run(device, "softmax", "log_softmax", *common) == 0
    output = capsys.readouterr().out
    assert "not timed: is wrong" in output
    assert "has the shape (1, 8) instead of (4, 8)" in output
    monkeypatch.setattr(dualsoft, "softmax", lambda x, axis, out: x)
    assert run(device, "softmax", *common) == 1
    assert "is wrong" in capsys.readouterr().err


@SKIP
def test_a_case_without_memory_ends_nothing(
    device: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    contest = module("bench.device_contest")
    filled = contest.filled

    def small_only(cp: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        if shape[0] > 100:
            raise MemoryError("out of memory")
        return filled(cp, shape, dtype)

    monkeypatch.setattr(contest, "filled", small_only)
    saved = tmp_path / "saved.json"
    assert run(device, "softmax", "--shapes", "101x8", "4x8", "--repeat", "1", "--peers", "--json", str(saved)) == 1
    assert "out of memory" in capsys.readouterr().err
    rows = json.loads(saved.read_text())["rows"]
    assert [row["results"]["dualsoft"]["reason"] for row in rows] == ["fails: MemoryError: out of memory", None]


@SKIP
def test_bfloat16_needs_a_newer_cupy(device: Any, tmp_path: Path) -> None:
    old = device._replace(versions=device.versions | {"cupy": "13.6.0"})
    saved = tmp_path / "saved.json"
    assert run(old, "softmax", "--shapes", "4x8", "--dtypes", "bfloat16", "--peers", "--json", str(saved)) == 0
    (row,) = json.loads(saved.read_text())["rows"]
    assert row["results"]["dualsoft"]["reason"].startswith("not installed (CuPy 14")


@SKIP
def test_peers_that_cannot_take_part_say_why(device: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contest = module("bench.device_contest")
    real = device._replace(simulated=False)
    found = contest.libraries(real, ("cupyx", "torch"))
    assert found["dualsoft"].name == "dualsoft"
    for name in ("cupyx", "torch"):  # here: not installed, or without a card
        assert isinstance(found[name], str) or found[name].name == name
    common = ("--shapes", "4x8", "--repeat", "1", "--json", str(tmp_path / "saved.json"))
    assert run(device, "softmax", *common) == 0, capsys.readouterr()


@SKIP
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_torch_takes_part(device: Any, tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("torch", reason="torch is a peer of the benchmark")
    saved = tmp_path / "saved.json"
    run_options = ("--shapes", "4x300", "--dtypes", dtype, "--repeat", "1", "--peers", "torch", "--json", str(saved))
    assert run(device, *OPERATIONS, *run_options) == 0
    for row in json.loads(saved.read_text())["rows"]:
        assert row["results"]["torch"]["times"], row["results"]["torch"]


@SKIP
@pytest.mark.parametrize(("shape", "sets"), [((8, 16), 16), ((2, 4), 100), ((64, 512), 2)])
def test_buffers_are_cold_when_their_turn_comes(device: Any, shape: tuple[int, int], sets: int) -> None:
    """Together they are four times as large as the cache, or none is used twice in a turn, before which it is swept."""
    bench_device, contest = module("bench.device"), module("bench.device_contest")
    clock = bench_device.Clock(device)
    operation = module("bench.operations.softmax").OPERATION
    case = module("bench.operation").Case(module("bench.options").Shape(shape, -1), "float32")
    made = contest.DeviceOperation(operation, clock).contest(case, np.dtype("float32"))
    addresses: list[int] = []

    def noting(_: Any, x: Any, axis: int, out: Any) -> Any:
        addresses.append(x.data.ptr)
        return dualsoft.softmax(x, axis, out=out)

    made.operation = operation._replace(contenders={"dualsoft": noting})
    library = contest.libraries(device, ())["dualsoft"]
    call = made.forms("dualsoft", library)[""].call
    turn = bench_device.Turn(clock, call)
    addresses.clear()
    copies = device.cp.copies
    turn.rate()
    assert device.cp.copies > copies
    assert len(set(addresses)) == sets
    assert len(addresses) == turn.calls
    total = sets * 2 * 4 * shape[0] * shape[1]
    assert total >= 4 * device.cache_bytes or len(addresses) == sets
    assert turn.calls <= bench_device.MOST_CALLS


@SKIP
def test_inputs_repeat_random_numbers(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    contest = module("bench.device_contest")
    monkeypatch.setattr(contest, "MOST_DRAWN", 64)
    x = contest.filled(device.cp, (10, 20), np.dtype("float32")).get()
    flat = x.ravel()
    np.testing.assert_array_equal(flat[:63], flat[63:126])
    assert len(np.unique(flat[:63])) == 63
    assert len(np.unique(x, axis=0)) == 10


def test_the_cases_are_those_that_matter() -> None:
    cases = module("bench.device_contest").CASES
    lengths = {case.shape.lengths for case in cases}
    assert {case.dtype for case in cases if case.shape.lengths == (8192, 8192)} == {
        *("bfloat16", "float16", "float32", "float64")
    }
    for n in (256, 1024, 4096, 16384, 65536, 50257):
        (rows,) = (rows for rows, length in lengths if length == n and rows * n > 2**25)
        assert abs(rows * n / 2**26 - 1) < 0.01
        assert {case.dtype for case in cases if case.shape.lengths == (rows, n)} == {"bfloat16", "float32"}
    assert len(set(cases)) == len(cases)


@pytest.mark.skipif(dualsoft.backends()["cuda"] is None, reason="there is a card here")
def test_without_a_card_it_says_why() -> None:
    done = bench("--backend", "cuda", "softmax")
    assert done.returncode == 1
    assert str(dualsoft.backends()["cuda"]) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--backend", "cuda", "sample"), "measures softmax"),
        (("--backend", "cuda", "softmax", "--peers", "numpy"), "peers cupyx"),
        (("softmax", "--peers", "cupyx"), "peers numpy"),
        (("--backend", "abacus"), "invalid choice"),
    ],
)
def test_wrong_command_lines(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        module("bench.options").parse(arguments)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_options_of_the_backends() -> None:
    parse = module("bench.options").parse
    plain = parse(["softmax"])
    assert plain.backend == "cpu"
    assert plain.peers == module("bench.options").PEERS
    on_card = options()
    assert on_card.operations == (*OPERATIONS, "cumulative_logsumexp", *ATTENTION)
    assert on_card.peers == ("cupyx", "torch")


def test_default_files_lie_in_a_folder_of_the_card(tmp_path: Path) -> None:
    session = module("bench.device_session")
    header = {"machine": {"card": "NVIDIA H200 (NVL)"}, "date": "2030-01-02T03:04:05+00:00"}
    path = session._json_path(options("softmax", "logsumexp"), header)
    assert path.name == "softmax-logsumexp.json"
    assert path.parent.name == "gpu-nvidia-h200-nvl-2030-01-02T030405Z"


@SKIP
def test_shapes_are_rows_or_columns(device: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ("--shapes", "4x8x2", "--repeat", "1", "--peers", "--json", str(tmp_path / "saved.json"))
    assert run(device, "softmax", *wrong) == 1
    assert "cases on a card are rows or columns" in capsys.readouterr().err


@SKIP
def test_columns_and_running_sums(device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Along the first axis as well, against torch where it is; a wrong column is seen."""
    saved = tmp_path / "saved.json"
    peers = ("torch",) if module("importlib.util").find_spec("torch") is not None else ()
    names = (*OPERATIONS, "cumulative_logsumexp")
    common = ("--shapes", "70x9:0", "5x300", "--dtypes", "float32", "--repeat", "1", "--json", str(saved))
    assert run(device, *names, *common, "--peers", *peers) == 0
    for row in json.loads(saved.read_text())["rows"]:
        assert all(row["results"][name]["times"] for name in ("dualsoft", *peers)), row
    softmax = dualsoft.softmax
    monkeypatch.setattr(dualsoft, "softmax", lambda x, axis, out: softmax(x, 1 - axis, out=out))
    assert run(device, "softmax", *common, "--peers") == 1


def test_the_emulator_is_not_part_of_the_benchmark() -> None:
    """Only tests run it there: what ``python -m bench`` can reach never names it."""
    root = Path(module("bench").__file__ or "").parent
    named = [path.name for path in root.glob("**/*.py") if "import emulator" in path.read_text(encoding="utf-8")]
    assert emulator.__name__ == "emulator"
    assert not named
