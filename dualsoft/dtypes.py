"""The dtypes that dualsoft takes, their codes for the kernels, and the rules for the dtype of a result.

bfloat16 is not NumPy's own: it is recognised by its name, so that nothing that defines it has to be imported.
"""

from typing import Any, NamedTuple

import numpy as np

DType = np.dtype[Any]

F32, F64, F16, BF16 = 0, 1, 2, 3
BOOL, I8, U8, I16, U16, I32, U32, I64, U64 = 4, 5, 6, 7, 8, 9, 10, 11, 12
SWAPPED = 16
COMPLEX = -1
"""The code of complex numbers: no kernel takes them, only the reference."""


class Format(NamedTuple):
    """What is known about a dtype of an input."""

    code: int
    result: DType
    """The dtype of a result computed from it."""
    result_code: int
    is_result: bool
    """Whether the result has this very dtype, byte order included."""


FLOAT64 = np.dtype(np.float64)
_FLOATS: dict[int, DType] = {F32: np.dtype(np.float32), F64: FLOAT64, F16: np.dtype(np.float16)}
_INTEGERS: dict[int, DType] = {
    BOOL: np.dtype(np.bool_),
    I8: np.dtype(np.int8),
    U8: np.dtype(np.uint8),
    I16: np.dtype(np.int16),
    U16: np.dtype(np.uint16),
    I32: np.dtype(np.int32),
    U32: np.dtype(np.uint32),
    I64: np.dtype(np.int64),
    U64: np.dtype(np.uint64),
}
_COMPLEX = (np.dtype(np.complex64), np.dtype(np.complex128))


def _table() -> dict[DType, Format]:
    table: dict[DType, Format] = {}
    for code, native in _FLOATS.items():
        table[native.newbyteorder("S")] = Format(code | SWAPPED, native, code, False)
        table[native] = Format(code, native, code, True)
    for code, native in _INTEGERS.items():
        table[native.newbyteorder("S")] = Format(code | SWAPPED, FLOAT64, F64, False)
        table[native] = Format(code, FLOAT64, F64, False)
    # One-byte types have no byte order: their swapped form is themselves, so the native entry came last.
    return table


FORMATS: dict[DType, Format] = _table()
"""Dtype of an input -> what is known about it. bfloat16 joins when it is first seen."""

PLAIN_FORMATS: dict[DType, tuple[int, DType, int, bool]] = {given: (*known,) for given, known in FORMATS.items()}
"""The same as plain tuples, which unpack in half the time."""

_COMPLEX_FORMATS: dict[DType, Format] = {
    given: Format(COMPLEX, native, COMPLEX, given.isnative)
    for native in _COMPLEX
    for given in (native, native.newbyteorder("S"))
}


def find_format(dtype: DType, *, complex_too: bool = False) -> Format | None:
    """Return the format of ``dtype``, or None where dualsoft does not take it."""
    known = FORMATS.get(dtype)
    if known is None and dtype.name == "bfloat16" and dtype.itemsize == 2 and dtype.isnative:
        known = FORMATS[dtype] = Format(BF16, dtype, BF16, True)
        PLAIN_FORMATS[dtype] = (*known,)
    if known is None and complex_too:
        known = _COMPLEX_FORMATS.get(dtype)
    return known


def is_float(dtype: DType) -> bool:
    """Return whether ``dtype`` is float16, bfloat16, float32 or float64, in either byte order."""
    known = find_format(dtype)
    return known is not None and (known.code & ~SWAPPED) <= BF16


def same_number(first: DType, second: DType) -> bool:
    """Return whether two dtypes differ at most in their byte order."""
    return first == second or (first.newbyteorder("=") == second.newbyteorder("="))


def joint(first: object, first_dtype: DType, second: object, second_dtype: DType) -> DType:
    """Return the dtype of a result computed from two arguments together, before integers become float64.

    A Python number is weak, as in NumPy 2: it decides the kind of number and not its width, under NumPy 1 too.
    """
    first_weak = isinstance(first, int | float | complex) and not isinstance(first, np.generic)
    second_weak = isinstance(second, int | float | complex) and not isinstance(second, np.generic)
    if first_weak != second_weak:
        weak, strong = (first_dtype, second_dtype) if first_weak else (second_dtype, first_dtype)
        return _with_weak(strong, weak.kind)
    return np.result_type(first_dtype, second_dtype)


def _with_weak(strong: DType, weak_kind: str) -> DType:
    if weak_kind == "c" and strong.kind != "c":
        return np.result_type(strong if is_float(strong) and strong.itemsize == 8 else np.float32, np.complex64)
    if weak_kind == "f" and strong.kind in "biu":
        return FLOAT64
    return strong
