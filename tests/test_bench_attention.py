"""The benchmark of attention: its cases run, every library's answer is judged, and costs are counted right."""

import json
from pathlib import Path

import numpy as np
import pytest
from bench_process import bench, module
from bench_tiny import PEERS, contests
from conftest import USABLE
from process import ROOT, python

import dualsoft

pytest.importorskip("rich", reason="the benchmark's tables need rich")
needs_kernels = pytest.mark.skipif(not any(":" in name for name in USABLE), reason="no compiled level can be used here")


@needs_kernels
def test_a_quick_run(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    options = ("--quick", "--threads", "1", "--cases", "(4, 12, 128, 64)", "32:8, 4096", "batch 1")
    done = bench(
        "attention", "attention_backward", "decode", "paged", *options, "--peers", "numpy", "--json", str(saved)
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(saved.read_text())["rows"]
    assert {row["operation"] for row in rows} == {"attention", "attention_backward", "decode", "paged"}
    for row in rows:
        assert row["results"]["dualsoft"]["times"], row
        assert row["ceiling"] in row["results"]
        assert ("dualsoft float32" in row["results"]) == (row["dtype"] == "bfloat16")
    assert "GFLOP/s" in done.stdout
    assert "GB/s" in done.stdout


def test_every_library_is_right_or_says_why_not() -> None:
    """In a process of its own: the libraries start threads, which would be there when other tests fork."""
    done = python(str(ROOT / "tests" / "bench_tiny.py"), JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == set(PEERS)
    for name, limits in found.items():
        wrong = {what: limit for what, limit in limits.items() if limit}
        assert not wrong, f"{name} is beyond {wrong}"
    assert len(found["numpy"]) > 10


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_dualsoft_is_held_to_the_criterion(dtype: str) -> None:
    ours = module("bench.libraries").dualsoft_library()
    for contest in contests(dtype):
        with dualsoft.use_backend("reference"):
            form = contest.forms("dualsoft", ours)[""]
            result = form.read(form.call())
        assert contest.judge(result, ours=True).limit is None
        broken = result.copy()
        broken[..., -1, 0] += 1
        assert contest.judge(broken, ours=True).limit is not None
        broken[..., -1, 0] = np.nan
        assert contest.judge(broken, ours=False).limit is not None


def test_costs() -> None:
    case = module("bench.attention.case")
    full = case.AttentionCase("", 2, 8, 4, 64, 64, 16)
    assert full.flops == 4 * 64**2 * 16 * 16
    assert full._replace(causal=True).flops == full.flops / 2
    backward = module("bench.operations.attention_backward").OPERATION
    assert backward.work(full, 0).flops == 10 * 64**2 * 16 * 16
    assert backward.work(full._replace(causal=True), 0).flops == 5 * 64**2 * 16 * 16
    assert full._replace(block=4).flops == full.flops / 16
    assert full.kv_bytes == 2 * 2 * 4 * 64 * 16 * 4
    window = full._replace(window=8)
    rows = np.arange(64)
    seen = case.visible(window, case.data_of(window, np.dtype("float32")), rows, 64)
    assert window.pairs == 16 * seen.sum()
    assert case.visible_blocks(32, 64).mean() == 1 / 16
    assert case.visible_blocks(32, 64).any(axis=1).all()
    parts = full._replace(lengths=(3, 5), seq_len_q=8, seq_len_k=8)
    assert parts.pairs == 8 * (9 + 25)


def test_sampled_rows_include_the_first_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    case, truth = module("bench.attention.case"), module("bench.attention.truth")
    long = case.AttentionCase("", 1, 1, 1, 512, 512, 8, causal=True)
    data = case.data_of(long, np.dtype("float32"))
    whole = truth.truth_of(long, data)
    monkeypatch.setattr(truth, "PAIRS", 512 * 512 // 8)
    sample = truth.truth_of(long, data)
    rows = sample.picks[0][2]
    assert len(rows) == 64
    assert {rows[0], rows[-1]} == {0, 511}
    assert sample.judge(whole.exact[0][None, None], ours=True).limit is None


def test_readme_table_of_attention(tmp_path: Path) -> None:
    readme = module("bench.readme")
    times = {"dualsoft": 1e-2, "torch": 3e-2, "openvino": 2e-2, "fma": 8e-3, "dualsoft without block_mask": 9e-2}
    row = {
        "operation": "attention", "case": "full S=2048 D=64", "shape": [1, 8, 2048, 64], "axis": None,
        "dtype": "float32", "bytes_moved": 1, "flops": 4e9, "ceiling": "fma", "ceilings": ["fma"],
        "baselines": ["dualsoft without block_mask"],
        "results": {name: {"median": time, "reason": None} for name, time in times.items()},
    }  # fmt: skip
    saved = {
        "machine": {"cpu": "A CPU"}, "versions": {"python": "3", "numpy": "2"}, "threads": 2, "level": "some",
        "date": "2030-01-02T03:04:05+00:00", "commit": "abc", "repeat": 15, "rows": [row],
    }  # fmt: skip
    (tmp_path / "saved.json").write_text(json.dumps(saved))
    target = tmp_path / "README.md"
    marks = *readme.markers(""), *readme.markers("attention")
    target.write_text("{}\nsoftmax stays\n{}\n{}\nold\n{}\n".format(*marks))
    assert readme.fill(tmp_path, target) == 0
    text = target.read_text()
    assert "softmax stays" in text
    assert "old" not in text
    assert "| 10 ms | 400 GFLOP/s | 80% (fma); 9.0x without `block_mask` | 3.00x | 2.00x (openvino) |" in text
