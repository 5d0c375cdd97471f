"""The C ABI of the emulator's core: its structures, its functions, and where a program counter comes from."""

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .build import core_library

STATIC_LIMIT = 48 * 1024
"""Bytes of shared memory that a block may have without opting in."""


class Parameter(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("size", c_uint32), ("alignment", c_uint32)]
    kind: int
    size: int
    alignment: int


class KernelRecord(ctypes.Structure):
    _fields_ = [
        ("entry", c_void_p),
        ("parameters", POINTER(Parameter)),
        ("parameter_count", c_uint32),
        ("max_threads", c_uint32),
    ]
    parameters: Any
    parameter_count: int
    max_threads: int


class SettingsRecord(ctypes.Structure):
    _fields_ = [
        *((name, c_uint32) for name in ("schedule", "preempt", "races", "profile", "perturb", "reserved")),
        ("seed", c_uint64),
        ("budget", c_uint64),
    ]


class LaunchRecord(ctypes.Structure):
    _fields_ = [
        ("kernel", POINTER(KernelRecord)),
        ("arguments", POINTER(c_void_p)),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        *((name, c_uint32) for name in ("dynamic_shared", "static_limit", "total_limit", "reserved")),
    ]


class FaultRecord(ctypes.Structure):
    _fields_ = [
        ("kind", c_char_p),
        ("text", c_char_p),
        ("block", c_uint32 * 3),
        ("thread", c_uint32 * 3),
        ("pc", c_uint64),
        ("other_pc", c_uint64),
    ]
    kind: bytes
    text: bytes
    block: Any
    thread: Any
    pc: int
    other_pc: int


class StatisticsRecord(ctypes.Structure):
    _fields_ = [
        (name, c_uint64)
        for name in ("switches", "accesses", "collectives", "matrix_products", "blocks", "static_shared")
    ]


class ProfileRecord(ctypes.Structure):
    _fields_ = [
        *((name, c_uint64) for name in ("pc", "requests", "units", "ideal")),
        *((name, c_uint32) for name in ("bytes", "shared", "write", "reserved")),
    ]
    pc: int
    requests: int
    units: int
    ideal: int
    bytes: int
    shared: int
    write: int


class _DynamicLibraryInformation(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("symbol_address", c_void_p)]
    file: bytes | None
    base: int | None


_INTEGERS = POINTER(c_int64)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "allocate": (c_uint64, [c_uint64]),
    "free": (c_int32, [c_uint64]),
    "arena": (None, [POINTER(c_uint64), POINTER(c_uint64)]),
    "find_allocation": (c_int32, [c_uint64, POINTER(c_uint64), POINTER(c_uint64)]),
    "mark_initialised": (None, [c_uint64, c_uint64]),
    "mark_uninitialised": (None, [c_uint64, c_uint64]),
    "count_unwritten": (c_uint64, [c_uint64, c_uint64]),
    "mark_elements": (None, [c_uint64, c_uint32, _INTEGERS, _INTEGERS, c_uint32]),
    "count_unwritten_elements": (c_uint64, [c_uint64, c_uint32, _INTEGERS, _INTEGERS, c_uint32]),
    "copy_element_states": (
        None,
        [c_uint64, _INTEGERS, c_uint64, _INTEGERS, c_uint32, _INTEGERS, c_uint32, c_uint32],
    ),
    "configure": (None, [POINTER(SettingsRecord)]),
    "launch": (c_int32, [POINTER(LaunchRecord)]),
    "fault_count": (c_uint32, []),
    "fault": (c_int32, [c_uint32, POINTER(FaultRecord)]),
    "statistics": (None, [POINTER(StatisticsRecord)]),
    "profile_count": (c_uint32, []),
    "profile_row": (c_int32, [c_uint32, POINTER(ProfileRecord)]),
    "profile_reset": (None, []),
}


class Core:
    """The loaded core: its functions under the names of the ABI without ``emulator_``, and the bounds of its arena."""

    def __init__(self, path: Path) -> None:
        # Kernels are not linked to the core: they find its functions because its symbols are global.
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, f"emulator_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        base, size = c_uint64(), c_uint64()
        self.arena(ctypes.byref(base), ctypes.byref(size))
        self.arena_begin: int = base.value
        self.arena_end: int = base.value + size.value

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the emulator's core has no function emulator_{name}")

    def holds(self, address: int) -> bool:
        """Return whether ``address`` is one of device memory."""
        return self.arena_begin <= address < self.arena_end

    def allocation_of(self, address: int) -> tuple[int, int] | None:
        """Return start and bytes of the live allocation that holds ``address``."""
        start, size = c_uint64(), c_uint64()
        if self.find_allocation(address, ctypes.byref(start), ctypes.byref(size)):
            return None
        return start.value, size.value


@cache
def core() -> Core:
    """Return the core, built and loaded at the first call."""
    return Core(core_library())


class Origin(NamedTuple):
    """The library that an address of code lies in, and the address as its file counts."""

    library: str
    address: int


@cache
def _dladdr() -> Any:
    function = ctypes.CDLL(None).dladdr
    function.restype, function.argtypes = ctypes.c_int, [c_void_p, POINTER(_DynamicLibraryInformation)]
    return function


def origin_of(program_counter: int) -> Origin | None:
    """Return where the call that returns to ``program_counter`` lies."""
    information = _DynamicLibraryInformation()
    call = program_counter - 1
    if not program_counter or not _dladdr()(call, ctypes.byref(information)) or not information.file:
        return None
    return Origin(information.file.decode(), call - (information.base or 0))
