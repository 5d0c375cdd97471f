"""The noise of ``sample``, to the bit: Philox4x32-10, its numbers as uniforms, and the logarithms that make it Gumbel.

Every backend computes what this file says, in float64, each ``+ - * /`` rounded once to nearest and no two fused: so
all of them draw the same index. It is NumPy here, for the reference backend and to check the others.

Counters
    The key is four 32-bit words k0 k1 k2 k3. Philox4x32-10 runs under the key (k0, k1). Element j of row r, both 64-bit
    and counted from 0 (r in C order over the axes that are kept), is word j % 4 of the outputs for the counter ::

        c0 = low 32 bits of b       c2 = k2 ^ low 32 bits of r
        c1 = high 32 bits of b      c3 = k3 ^ high 32 bits of r       with b = j // 4

    once as it is, which gives ``high``, and once with the highest bit of c1 set, which gives ``low``.

Uniform
    ``v = min(((high * 2**32) + (low + 0.5)) * 2**-64, 1 - 2**-53)``: above 0, with all digits of float64 near 0.

Gumbel
    ``g = -log(-log1p(-v))`` with `log` below: ``y = 1 - v``, ``e = -log(y, ((1 - y) - v))``, ``g = -log(e, 0)``.

Weight
    Of a difference s <= 0 from the maximum, for what counts as mass: `exp`.
"""

import os
from typing import Any

import numpy as np

from dualsoft.arguments import integer_of
from dualsoft.arrays import as_array

Array = np.ndarray[Any, Any]

_MULTIPLIER = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

# (log((1 + s) / (1 - s)) - 2 s) / s^3 as a polynomial in s^2, the highest power first
_LOG = (
    "0x1.2b5f68a50d903p-3", "0x1.39fdcceb4bb45p-3", "0x1.7462b91b8df65p-3", "0x1.c71c62d5e53e0p-3",
    "0x1.2492492dfd86cp-2", "0x1.9999999995273p-2", "0x1.5555555555558p-1",
)  # fmt: skip
# (e^f - 1 - f) / f^2, the highest power first
_EXP = (
    "0x1.ad1f7252e8036p-26", "0x1.289f95b6d3391p-22", "0x1.71df55c2f8663p-19", "0x1.a019ab22fbfc9p-16",
    "0x1.a01a011bddcd4p-13", "0x1.6c16c17cc6363p-10", "0x1.1111111128967p-7", "0x1.55555555531fep-5",
    "0x1.5555555555501p-3", "0x1p-1",
)  # fmt: skip
LOG_COEFFICIENTS = tuple(float.fromhex(digits) for digits in _LOG)
EXP_COEFFICIENTS = tuple(float.fromhex(digits) for digits in _EXP)
LN2_HIGH = float.fromhex("0x1.62e42fefa3p-1")
LN2_LOW = float.fromhex("0x1.3de6af278ece6p-42")
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
LEAST_NORMAL = 2.0**-1022


def random_key(rng: object) -> Array:
    """Return the 128-bit key that a caller's ``rng`` stands for, as four 32-bit words.

    None: from the operating system. An integer: ``numpy.random.SeedSequence(rng).generate_state(4)``. A NumPy generator
    (or the bit generator under one): its next 16 bytes, the first the lowest of k0; it moves on.

    Raises
    ------
    TypeError
        When it is none of these.
    ValueError
        When the integer is negative.
    """
    if isinstance(rng, np.random.BitGenerator):
        rng = np.random.Generator(rng)
    if isinstance(rng, np.random.Generator | np.random.RandomState):
        return np.frombuffer(rng.bytes(16), "<u4").astype(np.uint32)
    if rng is None:
        return np.frombuffer(os.urandom(16), "<u4").astype(np.uint32)
    try:
        seed = integer_of(rng, "rng")
    except TypeError:
        raise TypeError(
            f"rng must be None, an integer or a NumPy random generator, got a {type(rng).__module__}."
            f"{type(rng).__qualname__}"
        ) from None
    if seed < 0:
        raise ValueError(f"rng must not be negative as a seed, got {seed}")
    return np.random.SeedSequence(seed).generate_state(4)


def philox(key: tuple[int, int], counters: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    """Return the four outputs of Philox4x32-10 for each counter, as arrays of uint64 below 2**32.

    J. Salmon, M. Moraes, R. Dror and D. Shaw, *Parallel random numbers: as easy as 1, 2, 3*, 2011.

    Examples
    --------
    >>> import numpy
    >>> zero = numpy.zeros(1, numpy.uint64)
    >>> [f"{int(word[0]):08x}" for word in philox((0, 0), (zero, zero, zero, zero))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = (as_array(word, "counters").astype(np.uint64) for word in counters)
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = (
            (second >> _HALF) ^ c1 ^ np.uint64(k0),
            second & _WORD,
            (first >> _HALF) ^ c3 ^ np.uint64(k1),
            first & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(key: Array, rows: Array, n: int, stream: int) -> Array:
    """Return the words of the elements 0 .. n - 1 of each row: 0 for the high ones, 1 for the low ones."""
    k0, k1, k2, k3 = (int(word) for word in key)
    block = np.arange((n + 3) // 4, dtype=np.uint64)[None, :]
    row = np.asarray(rows, np.uint64)[:, None]
    c1 = (block >> _HALF) | np.uint64(stream << 31)
    out = philox((k0, k1), (block & _WORD, c1, (row & _WORD) ^ np.uint64(k2), (row >> _HALF) ^ np.uint64(k3)))
    return np.stack(np.broadcast_arrays(*out), axis=-1).reshape(len(row), -1)[:, :n]


def uniform(key: Array, rows: Array, n: int) -> Array:
    """Return the uniform v of the elements 0 .. n - 1 of each row, in (0, 1)."""
    high, low = (words(key, rows, n, stream).astype(np.float64) for stream in (0, 1))
    v: Array = np.minimum((high * 2.0**32 + (low + 0.5)) * 2.0**-64, 1 - 2.0**-53)
    return v


def gumbel(key: Array, rows: Array, n: int) -> Array:
    """Return the Gumbel noise of the elements 0 .. n - 1 of each row.

    Examples
    --------
    >>> import numpy
    >>> noise = gumbel(random_key(7), numpy.arange(1000), 100)
    >>> abs(float(noise.mean()) - 0.5772) < 0.01
    True
    """
    v = uniform(key, rows, n)
    y = 1 - v
    return -log(-log(y, (1 - y) - v), np.zeros_like(y))


def log(u: Array, c: Array) -> Array:
    """Return ``log(u) + c / u`` of normal u > 0 and small c, within 2 ulp, in the steps that all backends take.

    ``u = 2**k (1 + f)`` with 1 + f from sqrt(1/2) on; ``log(1 + f) = f - (f²/2 - s (f²/2 + R))``, ``s = f / (2 + f)``.
    """
    bits = np.ascontiguousarray(u, np.float64).view(np.int64)
    k = (bits - np.int64(0x3FE6A09E00000000)) >> np.int64(52)
    f = (bits - (k << np.int64(52))).view(np.float64) - 1
    s = f / (f + 2)
    z = s * s
    half = f * f * 0.5
    p = np.full_like(z, LOG_COEFFICIENTS[0])
    for coefficient in LOG_COEFFICIENTS[1:]:
        p = p * z + coefficient
    exponent = k.astype(np.float64)
    low = s * (p * z + half) + (exponent * LN2_LOW + c / u)
    result: Array = exponent * LN2_HIGH + (f - (half - low))
    return result


def exp(s: Array) -> Array:
    """Return ``exp(s)`` of s <= 0, within 2 ulp, in the steps that all backends take; 0 below -64."""
    x = np.maximum(s, -64.0)
    n = np.rint(x * LOG2_E)
    f = (x - n * LN2_HIGH) - n * LN2_LOW
    q = np.full_like(f, EXP_COEFFICIENTS[0])
    for coefficient in EXP_COEFFICIENTS[1:]:
        q = q * f + coefficient
    return np.where(s < -64.0, 0.0, np.ldexp((f * f * q + f) + 1, n.astype(np.int32)))
