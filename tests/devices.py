"""Device backends of the tests: the CUDA kernels on the emulator, for several architectures, and on a card if any.

``put`` and ``get`` move arrays and keep their layout, so that one test text serves host and device backends.
"""

from types import ModuleType
from typing import Any

import emulator
import numpy as np

from dualsoft import arrays, backends, register_backend
from dualsoft.backends import Backend, cuda

ARCHITECTURES = ("sm_75", "sm_80", "sm_90")
EMULATED = "cuda-emulated"
OLD_TEXT = f"{EMULATED}:sm_75"
BOTH_TEXTS = (OLD_TEXT, f"{EMULATED}:sm_80")
"""The architectures that the text of the kernels tells apart: test_cuda_source.py holds the kernels to it."""
ONE = (f"{EMULATED}:sm_80",)
"""For tests whose kernels are the same text on every architecture."""
SAME_TEXT = "the text that cuda-emulated:sm_80 runs: bfloat16 has another on sm_75, and so have tensor cores"

_MODULES: dict[str, ModuleType] = {}
_BACKENDS: dict[str, Backend] = {}


def _backend_of(architecture: str) -> Backend:
    if architecture not in ARCHITECTURES:
        raise ValueError(f"the emulator stands for {', '.join(ARCHITECTURES)}, got {architecture!r}")
    name = f"{EMULATED}:{architecture}"
    if name not in _BACKENDS:
        _MODULES[name] = emulator.cupy_for(architecture)
        _BACKENDS[name] = cuda.backend_of(name, _MODULES[name])
    return _BACKENDS[name]


def reasons() -> dict[str, str | None]:
    """The device backends by name, None where usable, else the reason. The emulated ones are registered here."""
    why_not = emulator.why_not()
    if why_not is None and EMULATED not in backends():
        arrays.add_device_module("emulator")
        register_backend(
            EMULATED,
            available=lambda: "choose an architecture: " + ", ".join(f"{EMULATED}:{name}" for name in ARCHITECTURES),
            accepts=lambda work: False,
            run=_nothing,
            variant=_backend_of,
        )
    return {**{f"{EMULATED}:{name}": why_not for name in ARCHITECTURES}, "cuda": backends()["cuda"]}


def _nothing(problem: Any) -> None:
    raise RuntimeError("the emulator needs an architecture")


def runs_the_text_of_sm_80(backend: str, key: str, on_tensor_cores: bool = False) -> bool:
    """Whether another emulated architecture than sm_80 has a text for a dtype that runs there.

    That of float64 attention on sm_75, without tensor cores, is the one that float32 has on sm_80.
    """
    has_other = backend == OLD_TEXT and (key == "bf16" or (key == "f16" and on_tensor_cores))
    return backend.startswith(EMULATED) and backend not in ONE and not has_other


def is_device(backend: str) -> bool:
    return backend.startswith("cuda")


def module(backend: str) -> ModuleType:
    """The module with CuPy's names whose arrays a device backend takes."""
    if backend == "cuda" and backend not in _MODULES:
        import cupy

        _MODULES[backend] = cupy
    elif backend not in _MODULES:
        _backend_of(backend.partition(":")[2])
    return _MODULES[backend]


def put(backend: str, value: Any) -> Any:
    """``value`` as an array that ``backend`` takes, in the same layout; what is no array stays as it is."""
    if not is_device(backend) or not isinstance(value, np.ndarray):
        return value
    return emulator.to_device(module(backend), value)


def get(value: Any) -> Any:
    """``value`` as a NumPy array where it is on a device."""
    return arrays.to_host(value) if arrays.is_cupy(value) else value
