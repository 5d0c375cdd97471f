"""The example that trains a transformer: its gradients, its first steps, its text and its command line."""

import importlib
import importlib.util
import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import devices
import numpy as np
import pytest
from conftest import DEVICES
from process import ROOT, python

TRAIN = str(ROOT / "examples" / "train.py")
NO_PROGRESS = importlib.util.find_spec("rich") is None
needs_rich = pytest.mark.skipif(NO_PROGRESS, reason="the example needs rich")
TEXT = "She sells sea shells by the sea shore, and the shells she sells are sea shells, I am sure.\n" * 40
TINY = ("--width", "16", "--blocks", "2", "--heads", "4", "--kv-heads", "2", "--inner", "24", "--context", "16",
        "--batch", "8", "--steps", "60", "--characters", "40")  # fmt: skip


@pytest.fixture
def model_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("character_model")


def test_gradients_are_those_of_finite_differences(model_module: ModuleType) -> None:
    """In float64, along random directions for each weight: central differences err by h² and by rounding over h."""
    rng = np.random.default_rng(20170612)
    config = model_module.Config(characters=11, width=16, blocks=2, heads=4, kv_heads=2, inner=12, context=8)
    model = model_module.new_model(config, 0, dtype=np.float64)
    vector = model.weights.vector
    vector += 0.3 * rng.standard_normal(vector.size)
    ids, labels = rng.integers(0, 11, (2, 3, 8))
    value, grads = model_module.gradients(model, ids, labels)
    assert value == model_module.loss(model, ids, labels)
    h = 2.0**-14  # the third root of rounding: both errors are about h²
    for name, weight in model.weights.named.items():
        start = weight.copy()
        for _ in range(3):
            direction = rng.standard_normal(weight.shape)
            ends = []
            for step in (h, -h):
                weight[...] = start + step * direction
                ends.append(model_module.loss(model, ids, labels))
            weight[...] = start
            slope = (ends[0] - ends[1]) / (2 * h)
            size = np.linalg.norm(grads[name]) * np.linalg.norm(direction)
            # the third derivative along a direction of length |d| grows with |d|³
            limit = h * h * np.linalg.norm(direction) ** 3 + 1e-3 * h * size
            assert abs(slope - np.sum(grads[name] * direction)) <= limit, name
            assert limit < 1e-2 * size, "the tolerance would hide a mistake"


def test_every_weight_learns(model_module: ModuleType) -> None:
    config = model_module.Config(characters=7, width=8, blocks=1, heads=2, kv_heads=1, inner=8, context=6)
    model = model_module.new_model(config, 1)
    ids = np.random.default_rng(2).integers(0, 7, (4, 6))
    _, grads = model_module.gradients(model, ids, (ids + 1) % 7)
    assert grads.vector.dtype == np.float32
    assert all(np.any(grad != 0) for grad in grads.named.values())
    assert grads.named.keys() == model.weights.named.keys() == config.shapes().keys()


def test_a_token_after_a_cache_has_the_logits_of_the_whole(model_module: ModuleType) -> None:
    """What writes and what trains is one network: greedy characters are the largest logits of the text so far."""
    config = model_module.Config(characters=9, width=16, blocks=2, heads=4, kv_heads=2, inner=12, context=32)
    model = model_module.new_model(config, 3, dtype=np.float64)
    model.weights.vector[...] *= 20
    text = [int(k) for k in np.random.default_rng(4).integers(0, 9, 5)]
    for written in list(model_module.write(model, np.array(text), 20, 0.0, np.random.default_rng(0))):
        logits = model_module.logits_of(model, model_module.hidden_states(model, np.array([text])))
        assert written == logits[-1].argmax()
        text.append(written)
    assert len(set(text[5:])) > 1, "a network that always writes the same would pass without its cache"


@needs_rich
def test_a_tiny_model_learns_and_a_seed_repeats_it(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text(TEXT, encoding="utf-8")
    runs = [
        python(TRAIN, str(source), *TINY, "--no-plot", "--seed", seed, PYTHONPATH=str(ROOT)) for seed in ("5", "5", "6")
    ]
    for done in runs:
        assert done.returncode == 0, done.stderr
    found = re.match(
        r"60 steps in \d+ s: \S+ nats a character \(first (\S+)\), (\S+) on text not seen\n", runs[0].stdout
    )
    assert found, runs[0].stdout
    first, last = map(float, found.groups())
    assert first == pytest.approx(np.log(len(set(TEXT))), rel=0.05), "a fresh model knows nothing"
    assert last < 0.8 * first
    # all but the seconds
    results = [done.stdout.partition(" s: ")[2] for done in runs]
    assert results[0] == results[1]
    assert results[0] != results[2]
    written = results[0].partition("\n\n")[2]
    assert set(written) <= set(TEXT)
    assert len(written.rstrip("\n")) >= 40


SMALLEST = ("--width", "16", "--blocks", "1", "--heads", "2", "--kv-heads", "1", "--inner", "24", "--context", "8",
            "--batch", "4", "--steps", "6", "--learning-rate", "0.02", "--characters", "6", "--no-plot")  # fmt: skip


@needs_rich
@pytest.mark.parametrize("device", [name for name in DEVICES if name in ("cuda-emulated:sm_80", "cuda")])
def test_the_same_file_trains_on_a_device(
    device: str,
    model_module: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Losses of float32 differ from those of float64 as NumPy's do, which rounds as often in another order."""
    train = importlib.import_module("train")
    source = tmp_path / "text.txt"
    source.write_text(TEXT, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "cupy", devices.module(device))
    monkeypatch.setattr(train, "BATCHES", 1)

    def run(*options: str, dtype: Any = np.float32) -> tuple[np.ndarray[Any, Any], str]:
        kept: list[Any] = []
        monkeypatch.setattr(train, "show", lambda steps, count, losses: kept.append((losses, list(steps))))
        monkeypatch.setattr(model_module, "new_model", partial(new_model, dtype=dtype))
        assert train.main([str(source), *SMALLEST, *options]) == 0
        learnt, unseen = kept[0][0]
        return np.array([*learnt, unseen[-1][1]]), capsys.readouterr().out.partition("\n\n")[2]

    new_model = model_module.new_model
    exact, _ = run(dtype=np.float64)
    plain, written = run()
    got, written_there = run("--xp", "cupy", "--backend", device)
    limit = 2 * np.abs(plain - exact).max() + np.spacing(np.float32(exact.max()))
    assert limit < 1e-3 * np.abs(np.diff(exact)).min(), "the tolerance would hide a step that was not made"
    assert np.abs(got - exact).max() <= limit
    assert written_there == written
    assert train.main([str(source), *SMALLEST, "--xp", "cupy", "--backend", "reference"]) == 2
    assert "'reference' was asked for and does not take" in capsys.readouterr().err


@needs_rich
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="pictures need matplotlib")
def test_the_picture_is_a_png(tmp_path: Path) -> None:
    source, picture = tmp_path / "text.txt", tmp_path / "new" / "loss.png"
    source.write_text(TEXT, encoding="utf-8")
    done = python(TRAIN, str(source), *TINY, "--steps", "3", "--plot", str(picture), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_the_text_that_python_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    train = importlib.import_module("train")
    text = train.standard_text()
    assert len(text) > 500_000
    assert "dualsoft" not in text, "only the standard library: the same text on every installation of a version"
    assert text == train.standard_text()
    ids = train.encoded(text)
    assert "".join(ids.characters[k] for k in ids.learnt[:1000]) == text[:1000]
    assert "".join(ids.characters[k] for k in ids.unseen[-1000:]) == text[-1000:]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--steps", "0"], "--steps"), (["--width", "20"], "--width"), (["--kv-heads", "3"], "--kv-heads"),
        (["--temperature", "nan"], "--temperature"), (["--xp", "torch"], "--xp"),
        (["--backend", "nonsense", "--no-plot"], "nonsense"), (["--backend", "cuda", "--no-plot"], "'cuda'"),
        (["no such file", "--no-plot"], "no such file"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_refused(wrong: list[str], named: str) -> None:
    done = python(TRAIN, *wrong, PYTHONPATH=str(ROOT))
    assert done.returncode in (1, 2)
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@needs_rich
def test_texts_that_cannot_be_learnt_from(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_bytes(b"\xff\xfe\xfd" * 1000)
    done = python(TRAIN, str(source), "--no-plot", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert "utf-8" in done.stderr
    source.write_text("short", encoding="utf-8")
    done = python(TRAIN, str(source), "--no-plot", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert "more than 1280 characters" in done.stderr
    source.write_text(TEXT, encoding="utf-8")
    done = python(TRAIN, str(source), "--no-plot", "--prompt", "\u4f60", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert "prompt" in done.stderr


def test_what_is_missing_is_named() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in ("rich", "matplotlib") else found(name, *a)
import train
sys.exit(train.main([]))
"""
    done = python("-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert "not installed: rich, matplotlib. Run: pip install rich matplotlib" in done.stderr
