"""The examples and the teaching pages run, and say what they promise."""

import importlib.util
import re
from pathlib import Path

import pytest
from process import ROOT, python

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


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_pages_run_and_print_what_they_say(page: Path) -> None:
    """Their blocks are one session; the value in a comment after a print is the start of what is printed."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks)
    done = python("-W", "error", "-c", code, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    for said in re.findall(r"^print\(.*\) +# ([^:,a-z]+|True)(?:[:,].*)?$", code, re.MULTILINE):
        assert said.strip() in printed, f"{said} was not printed:\n{done.stdout}"
