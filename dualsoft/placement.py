"""Where a value's arrays are: NumPy's, or CuPy's on a device."""

from dualsoft.arrays import Array, is_cupy, to_host
from dualsoft.registry import require


def to_device(array: Array, device: object) -> Array:
    """Return ``array`` where ``device`` says: itself if it is there, else a copy, on CuPy's current device for "cuda".

    Raises
    ------
    ValueError
        For another name than "cpu" and "cuda".
    RuntimeError
        When the CUDA backend cannot be used; the message says why.
    """
    if device == "cpu":
        return to_host(array)
    if device != "cuda":
        raise ValueError(f"device must be 'cpu' or 'cuda', got {device!r}")
    module = require("cuda").module()
    return array if is_cupy(array) else module.asarray(array)
