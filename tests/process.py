"""Fresh interpreters for what must not happen in the tests' own: imports, environment variables, peak memory."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Hides compiled kernels from every finder, as if none had been built.
WITHOUT_KERNELS = """
import sys
class Hide:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        hidden = name.startswith("dualsoft._simd_") or name == "dualsoft._cpuid"
        return None if hidden else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
"""


def python(
    *arguments: str, cwd: Path | None = None, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments``; of the environment, variables of dualsoft and OpenMP are dropped unless given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DUALSOFT_", "OMP_"))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=kept | environment, timeout=timeout,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def run_code(code: str, *arguments: str, **environment: str) -> str:
    """Run code that must succeed; its output."""
    done = python("-c", code, *arguments, **environment)
    if done.returncode:
        raise AssertionError(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.strip()
