"""The libraries that take part: how to load each, to hand it an array, to compile for it, and to read its result."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.contest import Array, Call

Contender = Callable[[Any, Array, int, Array], Array]
"""(library's module, x, axis, out) -> result. ``out`` is a result-shaped array for those that can write to one."""

ALL = ("float32", "float64", "float16", "bfloat16")
SCALAR_HALF = "times float32 and float64 only: half types have no vector arithmetic there"


class Library(NamedTuple):
    """One contender's side of the fence."""

    name: str
    version: str
    module: Any
    given: Callable[[Any, Array], Array]
    """A NumPy array as the library's own."""
    taken: Callable[[Array], Array]
    """The library's array as NumPy's; bfloat16 may come as float32, which loses nothing."""
    bound: Callable[[Any, Contender, Array, int, Array], Call]
    """The timed call, compiled if that is the library's way, and complete when it returns."""
    dtypes: tuple[str, ...]
    why_only: str
    """Why other dtypes do not take part."""
    threads: int = 0
    """How many it may use, for what is told so call by call; 0: its environment says."""


def _plain(module: Any, function: Contender, x: Array, axis: int, out: Array) -> Call:
    return lambda: function(module, x, axis, out)


def _keep(module: Any, array: Array) -> Array:
    return array


def dualsoft_library() -> Library:
    """Return dualsoft itself."""
    import dualsoft

    return Library("dualsoft", dualsoft.__version__, dualsoft, _keep, np.asarray, _plain, ALL, "")


def _numpy(threads: int) -> Library:
    return Library("numpy", np.__version__, np, _keep, np.asarray, _plain, ("float32", "float64"), SCALAR_HALF)


def _scipy(threads: int) -> Library:
    scipy = importlib.import_module("scipy")
    importlib.import_module("scipy.special")
    version = str(scipy.__version__)
    return Library("scipy", version, scipy, _keep, np.asarray, _plain, ("float32", "float64"), SCALAR_HALF)


def _to_torch(torch: Any, array: Array) -> Array:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _from_torch(tensor: Array) -> Array:
    return (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()


def _torch(threads: int) -> Library:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    return Library("torch", torch.__version__, torch, _to_torch, _from_torch, _plain, ALL, "")


def _bind_compiled(torch: Any, function: Contender, x: Array, axis: int, out: Array) -> Call:
    # A graph of an earlier shape would make the next one compile with symbolic sizes.
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, out: function(torch, x, axis, out), dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(x, out)
    return lambda: compiled(x, out)


def _torch_compile(threads: int) -> Library:
    importlib.import_module("torch._inductor")
    return _torch(threads)._replace(name="torch.compile", bound=_bind_compiled)


def _bind_jit(jax: Any, function: Contender, x: Array, axis: int, out: Array) -> Call:
    compiled = jax.jit(lambda x: function(jax, x, axis, out))
    return lambda: compiled(x).block_until_ready()


def _jax(threads: int) -> Library:
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return Library(
        "jax", jax.__version__, jax, lambda jax, array: jax.numpy.asarray(array), np.asarray, _bind_jit, ALL, ""
    )


def _bind_nothing(module: Any, function: Contender, x: Array, axis: int, out: Array) -> Call:
    raise NotImplementedError("runs graphs, which its attention alone has here")


def _onnxruntime(threads: int) -> Library:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    importlib.import_module("onnx")
    # What a graph cannot do is a reason in the notes; the log would say it again.
    onnxruntime.set_default_logger_severity(4)
    version = str(onnxruntime.__version__)
    return Library("onnxruntime", version, onnxruntime, _keep, np.asarray, _bind_nothing, ALL, "")


def _onnxruntime_attention(threads: int) -> Library:
    return _onnxruntime(threads)._replace(name="onnxruntime.attention")


def _openvino(threads: int) -> Library:
    openvino: Any = importlib.import_module("openvino")
    version = str(openvino.__version__).partition("-")[0]
    return Library("openvino", version, openvino, _keep, np.asarray, _bind_nothing, ALL, "")


_LOADERS: dict[str, Callable[[int], Library]] = {
    "numpy": _numpy,
    "scipy": _scipy,
    "torch": _torch,
    "torch.compile": _torch_compile,
    "jax": _jax,
    "onnxruntime": _onnxruntime,
    "onnxruntime.attention": _onnxruntime_attention,
    "openvino": _openvino,
}


def load(peers: tuple[str, ...], threads: int) -> dict[str, Library | str]:
    """Load the peers.

    Parameters
    ----------
    peers : tuple of str
        From the names in `bench.options.PEERS`.
    threads : int
        How many each may use.

    Returns
    -------
    dict of str to (Library or str)
        The library, or the reason why it does not take part.
    """
    found: dict[str, Library | str] = {}
    for name in peers:
        try:
            found[name] = _LOADERS[name](threads)._replace(threads=threads)
        except ModuleNotFoundError as error:
            found[name] = f"not installed (no module {error.name})"
        except Exception as error:  # a broken installation of a peer is that peer's result
            found[name] = f"cannot be loaded: {reason(error)}"
    return found


def reason(error: BaseException) -> str:
    """Return an error in one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:200] if text else type(error).__name__


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype called ``name``; bfloat16 is ml_dtypes'.

    Raises
    ------
    ModuleNotFoundError
        When ml_dtypes is wanted and not installed.
    """
    if name != "bfloat16":
        return np.dtype(name)
    found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return found
