"""The CUDA kernels for CuPy arrays: each problem is one launch on the array's device and CuPy's current stream.

CuPy is imported when it is first asked for, by a CuPy array or by ``backends()``, never for a NumPy call.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from dualsoft import linear_chunks
from dualsoft.arrays import is_cupy
from dualsoft.attention_problem import AttentionProblem
from dualsoft.backends import (
    Backend,
    cuda_algorithms,
    cuda_attention,
    cuda_attention_tensor,
    cuda_columns,
    cuda_cumulative,
    cuda_gradients,
    cuda_gradients_tensor,
    cuda_losses,
    cuda_rows,
    cuda_sample,
    cuda_topk,
    cuda_weighted,
    nvrtc,
)
from dualsoft.backends.cuda_launch import NULL, Device, Launch
from dualsoft.backends.cuda_rows import STORAGE
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import find_format
from dualsoft.gradient_problem import GradientProblem
from dualsoft.linear_problem import LinearCrossEntropyProblem, LinearGradientProblem
from dualsoft.loss_problem import (
    CrossEntropyGradientProblem,
    CrossEntropyProblem,
    LogSumExpGradientProblem,
    SoftmaxGradientProblem,
)
from dualsoft.problem import (
    CumulativeProblem,
    LogSumExpProblem,
    NormalizeProblem,
    SoftmaxProblem,
    StateProblem,
    TextbookProblem,
)
from dualsoft.topk_problem import SampleProblem, TopKProblem

OLDEST = 75
"""The lowest compute capability, times ten, that the kernels are compiled for."""
_OLDEST_CUPY = 13

Table = Callable[[Any, Device], Iterable[Launch]]


def _by_layout(rows: Table, columns: Table) -> Table:
    """Return the table of both: each problem goes to the one whose kernels suit its layout."""
    return lambda problem, device: (columns if cuda_columns.serves(problem) else rows)(problem, device)


_plain_logsumexp = _by_layout(cuda_rows.logsumexp, cuda_columns.logsumexp)


def _by_weights(problem: LogSumExpProblem, device: Device) -> Iterable[Launch]:
    """Yield the launches of a log-sum-exp, which has kernels of its own where there are weights."""
    return (_plain_logsumexp if problem.b is None else cuda_weighted.logsumexp)(problem, device)


_LAUNCHES: dict[type, Table] = {
    SoftmaxProblem: _by_layout(cuda_rows.softmax, cuda_columns.softmax),
    LogSumExpProblem: _by_weights,
    StateProblem: _by_layout(cuda_rows.state, cuda_columns.state),
    NormalizeProblem: _by_layout(cuda_rows.normalize, cuda_columns.normalize),
    CumulativeProblem: cuda_cumulative.cumulative_logsumexp,
    TextbookProblem: cuda_algorithms.softmax,
    TopKProblem: partial(cuda_topk.softmax_topk, _plain_logsumexp),
    SampleProblem: cuda_sample.sample,
    CrossEntropyProblem: cuda_losses.cross_entropy,
    CrossEntropyGradientProblem: cuda_losses.cross_entropy_gradient,
    LogSumExpGradientProblem: cuda_losses.logsumexp_gradient,
    SoftmaxGradientProblem: cuda_losses.softmax_gradient,
    AttentionProblem: cuda_attention.attention,
    GradientProblem: cuda_gradients.attention_gradients,
}

_COMPOSED: dict[type, Callable[[Any, Callable[[Any], None]], None]] = {
    LinearCrossEntropyProblem: linear_chunks.cross_entropy,
    LinearGradientProblem: linear_chunks.gradients,
}
"""What is made of CuPy's functions and of problems that have launches."""

_TABLES = (
    cuda_rows,
    cuda_columns,
    cuda_weighted,
    cuda_cumulative,
    cuda_algorithms,
    cuda_topk,
    cuda_sample,
    cuda_losses,
    cuda_attention,
    cuda_attention_tensor,
    cuda_gradients,
    cuda_gradients_tensor,
)

_PROBE = Variant("probe.cu", "probe", ())

Kernel = Callable[..., None]


class Kernels:
    """The kernels of one CuPy module, compiled when they are first needed, for each device by itself."""

    def __init__(self, cp: ModuleType) -> None:
        self.cp = cp
        self._devices: dict[int, Device] = {}
        self._loaded: dict[tuple[int, Variant], Kernel] = {}

    def run(self, problem: Any) -> None:
        """Write the problem's output. The host does not wait."""
        if (composed := _COMPOSED.get(type(problem))) is not None:
            composed(problem, self.run)
            return
        with problem.x.device as current:
            device = self._devices.get(current.id) or self.device(current.id)
            for launch in _LAUNCHES[type(problem)](problem, device):
                kernel = self._loaded.get((device.id, launch.variant)) or self.load(device, launch.variant)
                arguments = tuple([NULL if argument is None else argument for argument in launch.arguments])
                kernel((launch.grid,), (launch.block,), arguments, shared_mem=launch.shared)

    def device(self, number: int) -> Device:
        """Return what the launch tables need to know of a device."""
        return self._devices.setdefault(number, Device(self.cp, number))

    def load(self, device: Device, variant: Variant) -> Kernel:
        """Return the kernel of a variant for a device, which must be the current one."""
        kernel: Any = nvrtc.load(self.cp, variant)
        if variant.is_dynamic:
            kernel.max_dynamic_shared_size_bytes = device.dynamic_limit
        self._loaded[device.id, variant] = kernel
        return kernel  # type: ignore[no-any-return]

    def warmup(self, codes: Iterable[int]) -> int:
        """Load every kernel that calls on arrays of these dtypes can need, for the current device; return how many."""
        device = self.device(self.cp.cuda.Device().id)
        wanted = [
            variant
            for table in _TABLES
            for variant in table.variants(tuple(codes))
            if variant.oldest <= device.architecture
        ]
        for variant in wanted:
            if (device.id, variant) not in self._loaded:
                self.load(device, variant)
        return len(wanted)

    def accepts(self, work: Any) -> bool:
        """Return whether a problem, or an array, is one that these kernels serve."""
        if type(work) in _LAUNCHES or type(work) in _COMPOSED:
            return isinstance(work.x, self.cp.ndarray) and work.x_code in STORAGE
        known = find_format(work.dtype) if isinstance(work, self.cp.ndarray) else None
        return known is not None and known.code in STORAGE

    def reason(self) -> str | None:
        """Return why the kernels cannot be used, or None after one has run."""
        cp = self.cp
        try:
            if not cp.cuda.is_available():
                return "CuPy finds no CUDA driver or no GPU"
        except Exception as error:  # whatever a broken driver raises is the reason
            return f"CuPy cannot look for a GPU: {type(error).__name__}: {error}"
        try:
            cp.cuda.nvrtc.getVersion()
        except RuntimeError as error:
            return (
                "CuPy finds no NVRTC, which compiles the kernels: install dualsoft[cuda13], or dualsoft[cuda12] for an "
                f"older driver ({error})"
            )
        try:
            capability = int(cp.cuda.Device().compute_capability)
            if capability < OLDEST:
                return f"the GPU has compute capability {capability / 10}, and the kernels need {OLDEST / 10}"
            self._try()
        except Exception as error:  # as above
            return f"a first kernel does not run: {type(error).__name__}: {error}"
        return None

    def _try(self) -> None:
        one = self.cp.zeros(1, "float32")
        probe = nvrtc.load(self.cp, _PROBE)
        probe((1,), (1,), (one,))
        found = float(one.get()[0])
        if found != 1:
            raise RuntimeError(f"it wrote {found} instead of 1")


def variants() -> Iterator[Variant]:
    """Yield the kernels of this module itself."""
    yield _PROBE


_lock = threading.Lock()
_found: tuple[Kernels | None, str | None] | None = None


def _find() -> tuple[Kernels | None, str | None]:
    """Return the kernels, or the reason why there are none; asked once a process."""
    global _found
    with _lock:
        if _found is None:
            _found = _look()
    return _found


def _look() -> tuple[Kernels | None, str | None]:
    try:
        import cupy
    except ImportError as error:
        if error.name == "cupy":
            return None, "CuPy is not installed: install dualsoft[cuda13], or dualsoft[cuda12] for an older driver"
        return None, f"CuPy cannot be imported: {error}"
    except Exception as error:  # a broken installation raises anything
        return None, f"CuPy cannot be imported: {type(error).__name__}: {error}"
    if int(cupy.__version__.partition(".")[0]) < _OLDEST_CUPY:
        return None, f"CuPy is {cupy.__version__}, and dualsoft needs {_OLDEST_CUPY} or newer"
    kernels = Kernels(cupy)
    reason = kernels.reason()
    return (kernels, None) if reason is None else (None, reason)


def _usable() -> Kernels:
    kernels, reason = _find()
    if kernels is None:
        raise RuntimeError(f"the cuda backend cannot be used: {reason}")
    return kernels


def _accepts(work: Any) -> bool:
    if not is_cupy(getattr(work, "x", work)):
        return False
    kernels, _ = _find()
    # Where nothing can run, the array is still this backend's, and the reason goes into the error.
    return kernels is None or kernels.accepts(work)


def backend_of(name: str, cp: ModuleType) -> Backend:
    """Return a backend over a module that has CuPy's names."""
    kernels = Kernels(cp)
    return Backend(name, kernels.reason, kernels.accepts, kernels.run, warmup=kernels.warmup, module=lambda: cp)


BACKEND = Backend(
    "cuda",
    lambda: _find()[1],
    _accepts,
    lambda problem: _usable().run(problem),
    warmup=lambda codes: _usable().warmup(codes),
    module=lambda: _usable().cp,
)
