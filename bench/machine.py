"""What the figures were measured on and with."""

import importlib
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

from bench.threads import available

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("numpy", "scipy", "torch", "jax", "jaxlib", "onnxruntime", "onnx", "openvino", "ml_dtypes")


def machine() -> dict[str, Any]:
    """Return the processor's model, its architecture, the processors in use and the sizes of the caches."""
    return {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "processors": available(),
        "caches": _caches(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, dualsoft and the peers that are installed."""
    import dualsoft

    found = {"python": platform.python_version(), "dualsoft": dualsoft.__version__}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of the clone, with a plus for changes not committed; None outside a clone."""
    try:
        short = _git("rev-parse", "--short=10", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return short + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    if platform.system() == "Darwin":
        try:
            done = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=True, timeout=10
            )
            return done.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return platform.machine()
    return platform.processor() or platform.machine()


def _caches() -> dict[str, str]:
    """Return name to size of the first processor's caches, as Linux tells them; empty elsewhere."""
    found = {}
    for index in sorted(CACHES.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}" + ("d" if kind == "Data" else "")] = size
    return found
