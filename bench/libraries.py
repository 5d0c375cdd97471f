"""The libraries that take part: how to load each, to hand it an array, to compile for it, and to read its result."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bench.operation import Array, Contender

Call = Callable[[], Array]

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


def _plain(module: Any, function: Contender, x: Array, axis: int, out: Array) -> Call:
    return lambda: function(module, x, axis, out)


def _keep(module: Any, array: Array) -> Array:
    return array


def dualsoft_library() -> Library:
    """Return dualsoft itself."""
    import dualsoft

    dtypes = ("float32", "float64", "float16", "bfloat16")
    return Library("dualsoft", dualsoft.__version__, dualsoft, _keep, np.asarray, _plain, dtypes, "")


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
    dtypes = ("float32", "float64", "float16", "bfloat16")
    return Library("torch", torch.__version__, torch, _to_torch, _from_torch, _plain, dtypes, "")


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
    compiled = jax.jit(lambda x: function(jax, x, axis, None))
    return lambda: compiled(x).block_until_ready()


def _jax(threads: int) -> Library:
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    dtypes = ("float32", "float64", "float16", "bfloat16")
    return Library(
        "jax", jax.__version__, jax, lambda jax, array: jax.numpy.asarray(array), np.asarray, _bind_jit, dtypes, ""
    )


_LOADERS: dict[str, Callable[[int], Library]] = {
    "numpy": _numpy,
    "scipy": _scipy,
    "torch": _torch,
    "torch.compile": _torch_compile,
    "jax": _jax,
}


def load(peers: tuple[str, ...], threads: int) -> dict[str, Library | str]:
    """Load the peers.

    Parameters
    ----------
    peers : tuple of str
        From "numpy", "scipy", "torch", "torch.compile", "jax".
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
            found[name] = _LOADERS[name](threads)
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
