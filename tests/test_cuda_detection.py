"""Why the CUDA backend cannot be used, and where that is said; kernels that are loaded, and ahead of the first call."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from cases import DTYPES
from process import run_code

import dualsoft as ds
from dualsoft.backends import (
    cuda,
    cuda_algorithms,
    cuda_columns,
    cuda_cumulative,
    cuda_losses,
    cuda_rows,
    cuda_weighted,
    nvrtc,
)
from dualsoft.dtypes import BF16, F16, F32, F64
from dualsoft.loss_problem import (
    cross_entropy_gradient_problem,
    cross_entropy_problem,
    logsumexp_gradient_problem,
    softmax_gradient_problem,
)
from dualsoft.problem import (
    NormalizeProblem,
    StateProblem,
    cumulative_problem,
    logsumexp_problem,
    softmax_problem,
    textbook_problem,
)

needs_emulator = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not looked for CuPy yet."""
    monkeypatch.setattr(cuda, "_found", None)


class FakeKernel:
    """What a driver would run: writes to the array that the probe gives it."""

    def __init__(self, writes: float = 1.0) -> None:
        self.writes = writes

    def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
        arguments[0].value = self.writes


class FakeArray:
    def __init__(self) -> None:
        self.value = 0.0

    def get(self) -> Any:
        return [self.value]


class CompileException(Exception):
    pass


def fake_cupy(**changes: Any) -> Any:
    """A CuPy on a machine where all is well, but for the changes."""

    def fail(error: BaseException | None, value: Any) -> Any:
        def answer(*args: Any, **options: Any) -> Any:
            if error is not None:
                raise error
            return value

        return answer

    kernel = FakeKernel(changes.pop("writes", 1.0))
    module = SimpleNamespace(get_function=fail(changes.pop("get_function", None), kernel))
    cp: Any = ModuleType("cupy")
    cp.__version__ = changes.pop("version", "14.2.0")
    cp.ndarray = type("ndarray", (), {"__module__": "cupy"})
    cp.zeros = fail(None, FakeArray())
    cp.RawModule = fail(None, module)
    cp.cuda = SimpleNamespace(
        is_available=fail(changes.pop("is_available_raises", None), changes.pop("is_available", True)),
        nvrtc=SimpleNamespace(getVersion=fail(changes.pop("nvrtc_raises", None), (13, 0))),
        Device=fail(None, SimpleNamespace(id=0, compute_capability=changes.pop("capability", "90"))),
        compiler=SimpleNamespace(CompileException=CompileException),
    )
    assert not changes
    return cp


REASONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no driver or card": ({"is_available": False}, ("CUDA driver", "GPU")),
    "a broken driver": ({"is_available_raises": OSError("libcuda.so.1 is torn")}, ("OSError: libcuda.so.1 is torn",)),
    "no NVRTC": (
        {"nvrtc_raises": RuntimeError("libnvrtc.so was not found")},
        ("NVRTC", "dualsoft[cuda13]", "dualsoft[cuda12]", "libnvrtc.so was not found"),
    ),
    "an old card": ({"capability": "70"}, ("7.0", "7.5")),
    "the probe does not compile": (
        {"get_function": CompileException("a strange word")},
        ("probe.cu", "a strange word"),
    ),
    "the probe does not load": (
        {"get_function": RuntimeError("CUDA_ERROR_INVALID_IMAGE")},
        ("first kernel", "RuntimeError", "CUDA_ERROR_INVALID_IMAGE"),
    ),
    "the probe writes nothing": ({"writes": 0.0}, ("first kernel", "wrote 0.0 instead of 1")),
    "an old CuPy": ({"version": "12.3.0"}, ("12.3.0", "13")),
}


def check_reason(words: tuple[str, ...]) -> str:
    """The reason has the words, and is said in the three places where a user meets it."""
    reason = ds.backends()["cuda"]
    assert reason is not None
    assert all(word in reason for word in words), reason
    assert "\n" not in reason or "probe.cu" in reason
    with pytest.raises(RuntimeError) as caught:
        ds.use_backend("cuda")
    assert str(caught.value) == f"the backend 'cuda' cannot be used: {reason}"
    with pytest.raises(RuntimeError) as caught:
        ds.warmup("cuda")
    assert reason in str(caught.value)
    return reason


@pytest.mark.parametrize("name", REASONS)
def test_reasons(name: str, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, words = REASONS[name]
    cp = fake_cupy(**changes)
    monkeypatch.setitem(sys.modules, "cupy", cp)
    reason = check_reason(words)
    array = cp.ndarray()
    array.dtype, array.shape, array.ndim, array.strides = np.dtype(np.float32), (2,), 1, (4,)
    with pytest.raises(TypeError) as caught:
        ds.backend_for(array)
    assert f"cuda: {reason}" in str(caught.value)


def test_all_is_well(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("13.0.0", "13.6.0rc1", "14.2.0"):
        for capability in ("75", "80", "120"):
            monkeypatch.setattr(cuda, "_found", None)
            monkeypatch.setitem(sys.modules, "cupy", fake_cupy(version=version, capability=capability))
            assert ds.backends()["cuda"] is None


def test_no_cupy(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    check_reason(("CuPy is not installed", "dualsoft[cuda13]", "dualsoft[cuda12]"))


def test_a_cupy_that_cannot_be_imported(tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object')")
    monkeypatch.syspath_prepend(str(tmp_path))
    reason = check_reason(("cannot be imported", "libcudart.so.13"))
    assert "not installed" not in reason


def test_cupy_is_looked_for_once(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look() -> Any:
        asked.append(1)
        return None, "out of order"

    monkeypatch.setattr(cuda, "_look", look)
    for _ in range(3):
        assert ds.backends()["cuda"] == "out of order"
    assert len(asked) == 1


@needs_emulator
def test_a_call_that_nothing_can_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_found", (None, "the card is on fire"))
    x = devices.module(NAME).zeros((3, 4), np.float32)
    for function in (ds.softmax, ds.log_softmax, ds.logsumexp):
        with pytest.raises(TypeError, match="cuda: the card is on fire"):
            function(x, -1)


def test_numpy_calls_never_import_cupy() -> None:
    run_code(
        "import sys, numpy as np, dualsoft as ds\n"
        "class Trap:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        assert name.partition('.')[0] not in ('cupy', 'cupyx', 'cupy_backends'), name\n"
        "sys.meta_path.insert(0, Trap())\n"
        "x = np.ones((3, 4), np.float32)\n"
        "ds.softmax(x, -1); ds.log_softmax(x, -1, where=x > 0, scale=2.0); ds.logsumexp(x, -1, b=x, return_sign=True)\n"
        "ds.logsumexp(x + 1j, -1); ds.softmax_state(x, -1); ds.cumulative_logsumexp(x); ds.backend_for(x)\n"
        "ds.attention(x, x, x); ds.warmup('reference')\n"
        "with ds.use_backend('reference'): ds.softmax(x, -1)\n"
        "assert 'cupy' not in sys.modules\n"
        "try:\n    ds.softmax(x, 5)\nexcept np.exceptions.AxisError:\n    pass\n"
        "try:\n    ds.softmax(x, -1, where='no')\nexcept TypeError:\n    pass\n"
    )


# ------------------------------------------------------------------ kernels: loaded once, for each device, or ahead
class Loads:
    """CuPy's names as far as loading goes; counts the modules that are made."""

    def __init__(self) -> None:
        self.made: list[tuple[str, ...]] = []
        self.device = 0
        self.cuda = SimpleNamespace(
            Device=lambda number=None: SimpleNamespace(
                id=self.device if number is None else number,
                compute_capability="90",
                attributes={"MaxSharedMemoryPerBlockOptin": 227 << 10, "L2CacheSize": 50 << 20},
            ),
            compiler=SimpleNamespace(CompileException=CompileException),
        )

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> Any:
        self.made.append(options)
        return SimpleNamespace(get_function=lambda name: FakeKernel())


@pytest.mark.parametrize(
    ("dtypes", "codes"),
    [
        ("float16", (F16,)),
        (np.float32, (F32,)),
        (np.dtype(np.float64), (F64,)),
        (["float32"], (F32,)),
        ((np.float64, "bfloat16"), (F64, BF16)),
        (None, (F16, BF16, F32, F64)),
        ([], ()),
    ],
    ids=str,
)
def test_warmup_loads_what_the_dtypes_need(
    dtypes: Any, codes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cp: Any = Loads()
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(cp), None))
    options = {} if dtypes is None else {"dtypes": dtypes}
    count = len({variant for table in cuda._TABLES for variant in table.variants(codes)})
    assert ds.warmup(**options) == len(cp.made) == count
    assert len(set(cp.made)) <= len(cp.made)
    assert ds.warmup("cuda", **options) == count
    assert len(cp.made) == count, "what is loaded already is not loaded again"
    cp.device = 1
    ds.warmup(**options)
    assert len(cp.made) == 2 * count, "another device has kernels of its own"


def test_warmup_judges_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    cp: Any = Loads()
    monkeypatch.setattr(cuda, "_found", (cuda.Kernels(cp), None))
    for dtype in ("int32", np.complex64, "float128", "no such type", object()):
        with pytest.raises(TypeError, match="dtypes must be float16, bfloat16, float32 or float64"):
            ds.warmup(dtypes=[dtype])
    with pytest.raises(ValueError, match="unknown backend"):
        ds.warmup("cude")
    with pytest.raises(ValueError, match="head_dims"):
        ds.warmup(head_dims=[0])
    for head_dims in ("64", True, [64.0]):
        with pytest.raises(TypeError, match="head_dims must be an integer"):
            ds.warmup(head_dims=head_dims)
    for dtypes in (None, 32):
        with pytest.raises(TypeError, match="dtypes must be"):
            ds.warmup(dtypes=dtypes)
    assert ds.warmup("cpu", head_dims=64) == 0
    assert cp.made == []
    assert ds.warmup("cpu") == ds.warmup("reference") == 0


OF_ROWS = (cuda_algorithms, cuda_columns, cuda_cumulative, cuda_losses, cuda_rows, cuda_weighted)
"""Tables whose problems are of rows: lengths and layouts reach all that they have."""


@needs_emulator
@pytest.mark.parametrize(("key", "code"), [("f16", F16), ("bf16", BF16), ("f32", F32), ("f64", F64)])
def test_warmup_covers_every_call_on_the_dtype(key: str, code: int) -> None:
    """No variant is missing, whatever the row length and the layout, and none is there in vain."""
    cp = devices.module(NAME)
    wanted = {variant for table in OF_ROWS for variant in table.variants((code,))}
    device, used = cuda.Kernels(cp).device(0), set()
    for n in (1, 64, 65, 256, 300, 1024, 1100, 4000, 8192, 9000, 16400, 200_000):
        wide = cp.zeros((2, 3 * n), DTYPES[key])
        for x in (wide[:, :n], wide[:, ::3], cp.zeros((n, 64), DTYPES[key]).T):
            for where in (None, x == 0):
                for problem in problems_of(x, where, code):
                    used |= {launch.variant for launch in cuda._LAUNCHES[type(problem)](problem, device)}
    assert used <= wanted, used - wanted
    assert used == wanted, wanted - used


def problems_of(x: Any, where: Any, code: int) -> list[Any]:
    m = devices.module(NAME).zeros((len(x), 1))
    return [
        *(softmax_problem(x, -1, where, None, None, None, log) for log in (False, True)),
        logsumexp_problem(x, -1, None, False, False, where, None, None, None),
        logsumexp_problem(x, -1, x, False, False, where, None, None, None),
        cumulative_problem(x, -1, False, None, None),
        textbook_problem(x, 1, x.dtype, "online"),
        StateProblem(x, m, m, (1,), 2, None, where, code),
        NormalizeProblem(x, x, (1,), 2, None, where, code, code, m, m),
        *problems_of_losses(x, where, m[:, 0]),
    ]


def problems_of_losses(x: Any, where: Any, lse: Any) -> list[Any]:
    found = [
        logsumexp_gradient_problem(1.0, x, lse, -1, None, None, where, None, None),
        softmax_gradient_problem(x, x, -1, where, None, None, False),
    ]
    for labels in (np.zeros(len(x), int), x):
        found.append(cross_entropy_problem(x, labels, -1, None, 0.0, 0.0, "mean", False))
        found.append(cross_entropy_gradient_problem(1.0, x, labels, lse, -1, None, 0.0, 0.0, "mean", None))
    return found


@pytest.fixture
def kernels() -> cuda.Kernels:
    return cuda.Kernels(devices.module(NAME))


@needs_emulator
def test_kernels_are_loaded_once(kernels: cuda.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    load = nvrtc.load
    monkeypatch.setattr(nvrtc, "load", lambda cp, variant: loaded.append(variant) or load(cp, variant))
    monkeypatch.setattr(cuda, "_found", (kernels, None))
    for rows in (1, 5, 80):
        ds.softmax(kernels.cp.zeros((rows, 40), np.float32), -1)
    ds.logsumexp(kernels.cp.zeros((2, 40), np.float32), -1)
    assert [variant.kernel for variant in loaded] == ["softmax_rows", "logsumexp_rows"]


@needs_emulator
def test_a_kernel_that_does_not_compile_is_not_kept(kernels: cuda.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_found", (kernels, None))
    x = kernels.cp.zeros((2, 40), np.float32)
    with monkeypatch.context() as broken:
        broken.setattr(nvrtc, "assemble", lambda source: '#line 7 "softmax.cu"\n#error planted\n')
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"(?s)--fmad=false.*-DDS_GROUP=8.*softmax\.cu:7.*planted"):
                ds.softmax(x, -1)
    assert (ds.softmax(x, -1).get() == np.float32(1 / 40)).all()
