"""Devices and streams as CuPy names them."""

from typing import Any

from .errors import CUDARuntimeError
from .memory import DEVICE_COUNT, current_device


class Device:
    """A device, as ``cupy.cuda.Device``: ``with Device(1):`` makes it the current one."""

    def __init__(self, device: "int | Device | None" = None) -> None:
        number: int = current_device.id if device is None else int(device)
        if not 0 <= number < DEVICE_COUNT:
            raise CUDARuntimeError(f"cudaErrorInvalidDevice: invalid device ordinal: {number}")
        self.id = number
        self._before: list[int] = []

    def __enter__(self) -> "Device":
        self._before.append(current_device.id)
        current_device.id = self.id
        return self

    def __exit__(self, *error: object) -> None:
        current_device.id = self._before.pop()

    def use(self) -> None:
        """Make this the current device."""
        current_device.id = self.id

    def synchronize(self) -> None:
        """Do nothing: kernels have run when their launch returns."""

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


class Stream:
    """A stream, as ``cupy.cuda.Stream``. All streams run in the order of the launches."""

    null: "Stream"

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self.ptr = 0 if null else id(self)

    def __enter__(self) -> "Stream":
        _streams.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _streams.pop()

    def synchronize(self) -> None:
        """Do nothing: kernels have run when their launch returns."""

    def is_capturing(self) -> bool:
        """Return False: the emulator has no graphs."""
        return False

    def record(self, event: Any = None) -> Any:
        """Return the event: it has happened."""
        return event


Stream.null = Stream(null=True)
_streams = [Stream.null]


def get_current_stream() -> Stream:
    """Return the stream that launches go to."""
    return _streams[-1]
