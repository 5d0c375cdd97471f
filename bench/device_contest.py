"""A case on a card: its buffers, whoever takes part, and some of its rows or columns compared with wider arithmetic."""

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import dualsoft
from bench.contest import Array, Call, Form, Rate, Verdict, Work
from bench.device import CACHE_FACTOR, MOST_CALLS, Clock, Device, Rotation
from bench.libraries import ALL, Library, dualsoft_library, reason
from bench.operation import Case, Operation, Truth
from bench.options import Shape

ELEMENTS = 2**26
"""Of a case, nearly: enough that launching it counts for nothing on any card."""
MOST_DRAWN = 2**22
"""Random numbers that are drawn; longer inputs repeat them, which changes no time."""
SAMPLE_ROWS = 48
SAMPLE_ELEMENTS = 2**20


def _rows_of(n: int) -> Shape:
    return Shape((max(1, round(ELEMENTS / n)), n), -1)


SQUARE = Shape((8192, 8192), -1)
COLUMNS = Shape((8192, 8192), 0)
LONG_ROWS = Shape((16, 2**22), -1)
VOCABULARY = 50257
"""A row length that leaves most rows unaligned."""
CASES = (
    *(Case(SQUARE, dtype) for dtype in ("bfloat16", "float16", "float32", "float64")),
    *(Case(_rows_of(n), d) for n in (256, 1024, 4096, 16384, 65536, VOCABULARY) for d in ("bfloat16", "float32")),
    *(Case(shape, d) for shape in (Shape((4096, 256), -1), COLUMNS, LONG_ROWS) for d in ("bfloat16", "float32")),
)


def _textbook(name: str) -> Callable[[Any, Array, int], Call]:
    return lambda cp, x, axis: lambda: getattr(dualsoft.algorithms, name)(x, axis)


def _weighted(cp: Any, x: Array, axis: int) -> Call:
    b = cp.asarray(np.ones((1, x.shape[1]) if axis == 1 else (x.shape[0], 1), x.dtype))
    return lambda: dualsoft.logsumexp(x, axis, b=b)


def _masked(cp: Any, x: Array, axis: int) -> Call:
    where = cp.ones(x.shape, bool)
    return lambda: dualsoft.logsumexp(x, axis, where=where)


BESIDE: dict[str, dict[str, Callable[[Any, Array, int], Call]]] = {
    "softmax": {
        "state + normalize": lambda cp, x, axis: lambda: dualsoft.softmax_state(x, axis).normalize(x, axis),
        **{method: _textbook(f"{method}_softmax") for method in ("naive", "safe", "online")},
    },
    "logsumexp": {"b of a row": _weighted, "where of all": _masked},
}
"""What stands beside an operation's own call: ways to the same result. Weights of 1 and masks that hide nothing cost
what others do."""


class DeviceOperation:
    """An operation along an axis with its cases on a card."""

    takes_shapes = True

    def __init__(self, operation: Operation, clock: Clock) -> None:
        self._operation, self._clock = operation, clock
        self.name = operation.name
        self.cases = CASES

    def with_dtype(self, case: Case, dtype: str) -> Case:
        """Return a case in another dtype."""
        return self._operation.with_dtype(case, dtype)

    def contest(self, case: Case, dtype: np.dtype[Any]) -> "DeviceContest":
        """Make a case ready."""
        return DeviceContest(self._operation, case, dtype, self._clock)

    def work(self, case: Case, moved: int) -> Work:
        """Describe a case; what a copy in the same run does is the ceiling of all."""
        return self._operation.work(case, moved)._replace(ceiling="copy")


class DeviceContest:
    """One case: sets of buffers that take turns, and the exact result of some lines along the axis.

    Raises
    ------
    ValueError
        For shapes of other than two lengths.
    """

    def __init__(self, operation: Operation, case: Case, dtype: np.dtype[Any], clock: Clock) -> None:
        shape = case.shape.lengths
        if len(shape) != 2:
            raise ValueError(f"cases on a card are rows or columns: two lengths, not {case.shape}")
        self.operation, self._clock, self._axis = operation, clock, case.shape.axis % 2
        self._full_shape = operation.result_shape(case)
        cp = clock.device.cp
        x = filled(cp, shape, dtype)
        out = cp.empty(self._full_shape, dtype)
        self.work = operation.work(case, operation.bytes_moved(x, out))._replace(ceiling="copy")
        sets = CACHE_FACTOR * clock.device.cache_bytes / self.work.bytes_moved
        self._buffers = [(x, out)]
        for _ in range(min(MOST_CALLS, max(2, math.ceil(sets))) - 1):
            again = cp.empty(shape, dtype)
            cp.copyto(again, x)
            self._buffers.append((again, cp.empty(self._full_shape, dtype)))
        self._is_cold = len(self._buffers) >= sets
        n, lines = shape[self._axis], shape[1 - self._axis]
        count = min(lines, SAMPLE_ROWS, max(1, SAMPLE_ELEMENTS // n))
        self.rows = sorted({round(row) for row in np.linspace(0, lines - 1, count)})
        sample = np.stack([self._line(x, row).get() for row in self.rows])
        self.result_shape = (len(self.rows),) if operation.reduces else (len(self.rows), n)
        self._truth = Truth(operation, sample, -1, self.result_shape, backend="cuda")

    def forms(self, name: str, library: Library) -> dict[str, Form] | str:
        """Return the library's one call on every set of buffers."""
        function = self.operation.contenders.get(name, f"{self.operation.name} has no contender for it")
        if isinstance(function, str):
            return function
        module, given = library.module, library.given
        bound, axis = library.bound, self._axis
        calls = [bound(module, function, given(module, x), axis, given(module, out)) for x, out in self._buffers]
        return {"": Form(Rotation(name, calls, self._is_cold), lambda result: self._sample(result, library))}

    def _line(self, array: Array, number: int) -> Array:
        """Return one row of an input or result, or one column where these are what the case is along."""
        return array[number] if self._axis == 1 or len(array.shape) == 1 else array[:, number]

    def _sample(self, result: Array, library: Library) -> Array:
        if tuple(result.shape) != self._full_shape:
            raise ValueError(f"its result has the shape {tuple(result.shape)} instead of {self._full_shape}")
        return np.stack([library.taken(self._line(result, row)) for row in self.rows])

    def judge(self, found: Array, ours: bool) -> Verdict:
        """Compare the sampled lines with the exact ones."""
        return self._truth.judge(found, ours)

    def baselines(self, library: Library) -> dict[str, Call]:
        """Return dualsoft's other ways to this result; float32 has cases of its own.

        Raises
        ------
        ArithmeticError
            If one of them is not right to half of its digits.
        """
        found: dict[str, Call] = {}
        for name, make in BESIDE.get(self.operation.name, {}).items():
            calls = [make(self._clock.device.cp, x, self._axis) for x, _ in self._buffers]
            found[name] = Rotation(name, calls, self._is_cold)
            verdict = self.judge(self._sample(found[name](), library), ours=False)
            if verdict.limit is not None:
                raise ArithmeticError(f"{name} is wrong by {verdict.ulps:.3g} ulp, beyond {verdict.limit}")
        return found

    def ceilings(self, threads: int) -> dict[str, Call | Rate | str]:
        """Return what copying as many bytes takes."""
        return {"copy": Rate(self._clock.copy_rate, self.work.bytes_moved)}


def filled(cp: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a device array of normal random numbers, drawn on the host: no generator of the device is needed."""
    size = math.prod(shape)
    # An odd period: no two neighbouring rows are alike.
    drawn = np.random.default_rng(0).standard_normal(min(size, MOST_DRAWN - 1), dtype=np.float32).astype(dtype)
    period = cp.asarray(drawn)
    x = cp.empty(shape, dtype)
    flat = x.reshape(-1)
    for start in range(0, size, drawn.size):
        part = flat[start : start + drawn.size]
        cp.copyto(part, period[: part.size])
    return x


# ---------------------------------------------------------------- the libraries


def _to_host(array: Array) -> Array:
    return array.get()


def _cupyx(device: Device) -> Library:
    cupyx: Any = importlib.import_module("cupyx")
    importlib.import_module("cupyx.scipy.special")
    return dualsoft_library()._replace(name="cupyx", version=device.versions["cupy"], module=cupyx, taken=_to_host)


def _torch(device: Device) -> Library:
    torch: Any = importlib.import_module("torch")
    if not device.simulated and not torch.cuda.is_available():
        raise RuntimeError("it finds no GPU")
    return Library("torch", str(torch.__version__), torch, _to_torch, _from_torch, dualsoft_library().bound, ALL, "")


def _to_torch(torch: Any, array: Array) -> Array:
    return torch.from_dlpack(array)


def _from_torch(tensor: Array) -> Array:
    return (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).cpu().numpy()


_LOADERS = {"cupyx": _cupyx, "torch": _torch}


def libraries(device: Device, peers: tuple[str, ...]) -> Mapping[str, Library | str]:
    """Return dualsoft and the peers, or the reasons why they do not take part."""
    found: dict[str, Library | str] = {"dualsoft": dualsoft_library()._replace(taken=_to_host)}
    for name in peers:
        try:
            found[name] = _LOADERS[name](device)
        except ModuleNotFoundError as error:
            found[name] = f"not installed (no module {error.name})"
        except Exception as error:  # a broken installation of a peer is that peer's result
            found[name] = f"cannot be loaded: {reason(error)}"
    return found
