"""Errors of attention: their type, and a message that names the argument, what came and what was wanted; nothing is
written."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import DTYPES
from test_errors import Foreign, Sparse, expect

import dualsoft as ds

Error = type[Exception]
F32 = np.float32
# two sequences, four query heads, two KV heads, three queries, five keys
Q, K, V = np.ones((2, 4, 3, 6), F32), np.ones((2, 2, 5, 6), F32), np.ones((2, 2, 5, 7), F32)
OUT = (2, 4, 3, 7)
SCORES = (2, 4, 3, 5)
MASK = np.ones(SCORES, bool)


class Device:
    """Stands for a CuPy array, which is recognised by its module and its name."""

    ndim, shape, dtype = 1, (2,), np.dtype(np.int64)


Device.__module__, Device.__name__ = "cupy._core.core", "ndarray"

# what -> (arguments, exception, words of the message); of attention
OPTIONS: dict[str, tuple[dict[str, Any], Error, tuple[str, ...]]] = {
    "mask of floats": ({"mask": np.zeros(SCORES, F32)}, TypeError, ("mask", "float32", "bool", "bias")),
    "mask of ints": ({"mask": np.ones(5, int)}, TypeError, ("mask", "int64", "bool")),
    "mask of a wrong shape": ({"mask": np.ones((3, 4), bool)}, ValueError, ("mask", "(3, 4)", "(2, 4, 3, 5)")),
    "mask of a higher rank": ({"mask": MASK[None]}, ValueError, ("mask", "(1, 2, 4, 3, 5)", "(2, 4, 3, 5)")),
    "mask a BlockMask": ({"mask": ds.BlockMask(np.bool_(True), 2, 2)}, TypeError, ("mask", "BlockMask", "block_mask")),
    "masked mask": ({"mask": np.ma.masked_array([True] * 5)}, TypeError, ("mask", "masked")),
    "bias of bools": ({"bias": MASK}, TypeError, ("bias", "bool", "mask")),
    "bias complex": ({"bias": 1j}, TypeError, ("bias", "complex128")),
    "bias a string": ({"bias": "x"}, TypeError, ("bias", "<U1")),
    "bias longdouble": ({"bias": np.ones(5, np.longdouble)}, TypeError, ("bias", str(np.dtype(np.longdouble)))),
    "bias of a wrong shape": ({"bias": np.ones((4, 1, 6))}, ValueError, ("bias", "(4, 1, 6)", "(2, 4, 3, 5)")),
    "bias of another library": ({"bias": Foreign()}, TypeError, ("bias", "Foreign")),
    "bias sparse": ({"bias": Sparse()}, TypeError, ("bias", "toarray")),
    "causal of several": ({"causal": np.array([True, False])}, TypeError, ("causal", "(2,)", "True or False")),
    "causal a string": ({"causal": "False"}, TypeError, ("causal", "'False'", "True or False")),
    "causal NaN": ({"causal": np.nan}, TypeError, ("causal", "nan", "float")),
    "causal a float": ({"causal": 1.0}, TypeError, ("causal", "1.0", "float")),
    "causal 2": ({"causal": 2}, TypeError, ("causal", "2", "int")),
    "causal None": ({"causal": None}, TypeError, ("causal", "None")),
    "causal a list": ({"causal": [1]}, TypeError, ("causal", "[1]", "list")),
    "causal an object": ({"causal": object()}, TypeError, ("causal", "object")),
    "causal a BlockMask": ({"causal": ds.BlockMask(True, 2, 2)}, TypeError, ("causal", "BlockMask")),
    "causal of another library": ({"causal": Foreign()}, TypeError, ("causal", "Foreign")),
    "causal on a device": ({"causal": Device()}, TypeError, ("causal", "True or False")),
    "causal_offset far, with slopes": (
        {"causal_offset": 2**45, "alibi_slopes": np.ones(4)},
        ValueError,
        ("causal_offset", "2**40", "alibi_slopes", str(2**45)),
    ),
    "causal_offset far, with slopes, by sequence": (
        {"causal_offset": [-(2**40) - 1, 0], "alibi_slopes": np.ones(4)},
        ValueError,
        ("causal_offset", "2**40", "alibi_slopes", str(-(2**40) - 1)),
    ),
    "causal_offset far, with slopes, unsigned": (
        {"causal_offset": np.uint64(2**63), "alibi_slopes": np.ones(4)},
        ValueError,
        ("causal_offset", "alibi_slopes", str(2**63)),
    ),
    "causal_offset and window far": (
        {"causal_offset": 2**50, "window": (2**50, None)},
        ValueError,
        ("causal_offset", "2**40", "window", str(2**50)),
    ),
    "causal_offset a float": ({"causal_offset": 1.0}, TypeError, ("causal_offset", "float64", "integer")),
    "causal_offset a bool": ({"causal_offset": True}, TypeError, ("causal_offset", "True", "integer")),
    "causal_offset of bools": ({"causal_offset": np.array([True, False])}, TypeError, ("causal_offset", "bool")),
    "causal_offset of a wrong shape": ({"causal_offset": [1, 2, 3]}, ValueError, ("causal_offset", "(3,)", "(2,)")),
    "causal_offset of a higher rank": (
        {"causal_offset": np.ones((2, 4), int)},
        ValueError,
        ("causal_offset", "(2, 4)", "(2,)"),
    ),
    "window a number": ({"window": 3}, TypeError, ("window", "3", "pair")),
    "window of one": ({"window": (3,)}, ValueError, ("window", "(3,)", "pair")),
    "window of three": ({"window": (1, 2, 3)}, ValueError, ("window", "(1, 2, 3)", "pair")),
    "window below -1": ({"window": (-2, 0)}, ValueError, ("window", "-2")),
    "window below -1 on the right": ({"window": (0, -7)}, ValueError, ("window", "-7")),
    "window of floats": ({"window": (1.0, 0)}, TypeError, ("window", "1.0", "integer")),
    "window of bools": ({"window": (True, 0)}, TypeError, ("window", "True", "integer")),
    "window of NaN": ({"window": (np.nan, 0)}, TypeError, ("window", "nan", "integer")),
    "scale a string": ({"scale": "2"}, TypeError, ("scale", "<U1")),
    "scale complex": ({"scale": 1j}, TypeError, ("scale", "complex")),
    "scale an array": ({"scale": np.ones((2, 1))}, TypeError, ("scale", "(2, 1)")),
    "softcap negative": ({"softcap": -1.0}, ValueError, ("softcap", "-1.0")),
    "softcap NaN": ({"softcap": np.nan}, ValueError, ("softcap", "nan")),
    "softcap a string": ({"softcap": "2"}, TypeError, ("softcap", "<U1")),
    "softcap an array": ({"softcap": np.ones(3)}, TypeError, ("softcap", "(3,)")),
    "sinks of a wrong length": ({"sinks": np.ones(2)}, ValueError, ("sinks", "(2,)", "(4,)")),
    "sinks a number": ({"sinks": 1.0}, ValueError, ("sinks", "()", "(4,)")),
    "sinks by sequence": ({"sinks": np.ones((2, 4))}, ValueError, ("sinks", "(2, 4)", "(4,)")),
    "sinks complex": ({"sinks": np.ones(4, complex)}, TypeError, ("sinks", "complex128")),
    "alibi_slopes of a wrong length": ({"alibi_slopes": np.ones(2)}, ValueError, ("alibi_slopes", "(2,)", "(4,)")),
    "alibi_slopes of a wrong batch": (
        {"alibi_slopes": np.ones((3, 4))},
        ValueError,
        ("alibi_slopes", "(3, 4)", "(2, 4)"),
    ),
    "alibi_slopes of strings": ({"alibi_slopes": ["a"] * 4}, TypeError, ("alibi_slopes", "<U1")),
    "kv_lengths too long": ({"kv_lengths": [5, 6]}, ValueError, ("kv_lengths", "6", "5")),
    "kv_lengths negative": ({"kv_lengths": [-1, 5]}, ValueError, ("kv_lengths", "-1")),
    "kv_lengths of floats": ({"kv_lengths": [1.0, 2.0]}, TypeError, ("kv_lengths", "float64", "integer")),
    "kv_lengths of bools": ({"kv_lengths": [True, False]}, TypeError, ("kv_lengths", "bool", "integer")),
    "kv_lengths a number": ({"kv_lengths": 3}, ValueError, ("kv_lengths", "()", "(2,)")),
    "kv_lengths of a wrong length": ({"kv_lengths": [1, 2, 3]}, ValueError, ("kv_lengths", "(3,)", "(2,)")),
    "kv_lengths past 2^63": ({"kv_lengths": np.array([2**63, 1], np.uint64)}, ValueError, ("kv_lengths", str(2**63))),
    "kv_lengths on a device": ({"kv_lengths": Device()}, TypeError, ("kv_lengths", "CuPy")),
    "block_mask an array": ({"block_mask": MASK}, TypeError, ("block_mask", "BlockMask", "ndarray")),
    "block_mask of a wrong shape": (
        {"block_mask": ds.BlockMask(np.ones((3, 2), bool), 2, 3)},
        ValueError,
        ("block_mask", "(3, 2)", "(2, 4, 2, 2)"),
    ),
    "return_lse a string": ({"return_lse": "no"}, TypeError, ("return_lse", "'no'", "True or False")),
    "return_lse None": ({"return_lse": None}, TypeError, ("return_lse", "None")),
    "return_lse of several": ({"return_lse": np.array([1, 0])}, TypeError, ("return_lse", "(2,)", "True or False")),
    "unknown keyword": ({"is_causal": True}, TypeError, ("is_causal",)),
    "dtype": ({"dtype": np.float64}, TypeError, ("dtype",)),
}


@pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS.keys())
def test_options(case: Any, backend: str) -> None:
    options, error, words = case
    out = np.full(OUT, 7, F32)
    expect(error, words, lambda: ds.attention(Q, K, V, out=out, **options))
    assert (out == 7).all()
    if not {"return_lse", "sinks"} & set(options):  # those a state does not take
        expect(error, words, lambda: ds.attention_state(Q, K, V, **options))


# what -> (q, k, v, exception, words of the message)
OPERANDS: dict[str, tuple[Any, Any, Any, Error, tuple[str, ...]]] = {
    "no common head dim": (Q[..., :5], K, V, ValueError, ("q", "k", "head dim", "(2, 4, 3, 5)", "(2, 2, 5, 6)")),
    "other lengths of k and v": (Q, K[:, :, :4], V, ValueError, ("k", "v", "length", "(2, 2, 4, 6)", "(2, 2, 5, 7)")),
    "other heads of k and v": (Q, K[:, :1], V, ValueError, ("k", "v", "heads", "(2, 1, 5, 6)", "(2, 2, 5, 7)")),
    "heads of q no multiple": (Q[:, :3], K, V, ValueError, ("heads", "3", "multiple", "2")),
    "fewer heads of q": (Q[:, :1], K, V, ValueError, ("heads", "1", "multiple", "2")),
    "no heads of k": (Q, K[:, :0], V[:, :0], ValueError, ("heads", "4", "0")),
    "head dim 0": (Q[..., :0], K[..., :0], V, ValueError, ("head dim", "at least 1")),
    "head dim of v 0": (Q, K, V[..., :0], ValueError, ("head dim", "at least 1")),
    "batch axes": (np.ones((3, 4, 3, 6), F32), K, V, ValueError, ("batch", "(3, 4, 3, 6)", "(2, 2, 5, 6)")),
    "batch axes of v": (Q, K, np.ones((5, 2, 5, 7), F32), ValueError, ("batch", "(5, 2, 5, 7)")),
    "q of rank 1": (np.ones(6, F32), K, V, ValueError, ("q", "(6,)")),
    "k a number": (Q, 1.0, V, ValueError, ("k", "()")),
    "q complex": (Q.astype(complex), K, V, TypeError, ("q", "complex128", "float32")),
    "v of strings": (Q, K, V.astype(str), TypeError, ("v", "<U")),
    "k longdouble": (Q, K.astype(np.longdouble), V, TypeError, ("k", str(np.dtype(np.longdouble)))),
    "k of objects": (Q, K.astype(object), V, TypeError, ("k", "object")),
    "q of dates": (Q.astype("M8[s]"), K, V, TypeError, ("q", "datetime64")),
    "ragged q": ([[[1.0]], [[1.0, 2.0]]], K, V, ValueError, ("q", "list")),
    "masked k": (Q, np.ma.masked_array(K, K > 2), V, TypeError, ("k", "masked")),
    "sparse v": (Q, K, Sparse(), TypeError, ("v", "toarray")),
    "q of another library": (Foreign(), K, V, TypeError, ("q", "Foreign")),
    "v of another library": (Q, K, Foreign(), TypeError, ("v", "Foreign")),
}


@pytest.mark.parametrize("case", OPERANDS.values(), ids=OPERANDS.keys())
def test_operands(case: Any, backend: str) -> None:
    q, k, v, error, words = case
    out = np.full(OUT, 7, F32)
    expect(error, words, lambda: ds.attention(q, k, v, out=out))
    assert (out == 7).all()
    expect(error, words, lambda: ds.attention_state(q, k, v))


def test_mixed_halves_follow_numpy(backend: str) -> None:
    """float16 with bfloat16: whatever NumPy promotes to, never a guess of ours."""
    half, brain = Q.astype(np.float16), K.astype(DTYPES["bf16"])
    try:
        promoted = np.result_type(half, brain)
    except TypeError:
        expect(TypeError, ("float16", "bfloat16"), lambda: ds.attention(half, brain, V.astype(np.float16)))
    else:
        assert ds.attention(half, brain, V.astype(np.float16)).dtype == promoted


def read_only() -> Any:
    out = np.full(OUT, 7, F32)
    out.flags.writeable = False
    return out


# what -> (maker of out, exception, words of the message)
OUTS: dict[str, tuple[Callable[[], Any], Error, tuple[str, ...]]] = {
    "no array": (lambda: [0.0], TypeError, ("out", "list")),
    "of a wrong dtype": (lambda: np.full(OUT, 7.0), TypeError, ("out", "float64", "float32")),
    "of a narrower dtype": (lambda: np.full(OUT, 7, np.float16), TypeError, ("out", "float16", "float32")),
    "of the shape of q": (lambda: np.full(Q.shape, 7, F32), ValueError, ("out", "(2, 4, 3, 6)", "(2, 4, 3, 7)")),
    "of a wrong rank": (lambda: np.full(OUT[1:], 7, F32), ValueError, ("out", "(4, 3, 7)", "(2, 4, 3, 7)")),
    "read-only": (read_only, ValueError, ("out", "read-only")),
    "of one place": (lambda: np.lib.stride_tricks.as_strided(np.full(1, 7, F32), OUT, (0,) * 4), ValueError, ("out",)),
    "on a device": (Device, TypeError, ("out",)),
}


@pytest.mark.parametrize("case", OUTS.values(), ids=OUTS.keys())
def test_out(case: Any, backend: str) -> None:
    make, error, words = case
    out = make()
    expect(error, words, lambda: ds.attention(Q, K, V, out=out))
    if isinstance(out, np.ndarray):
        assert (out == 7).all()


# what -> (call, exception, words of the message)
BLOCKS: dict[str, tuple[Callable[[], Any], Error, tuple[str, ...]]] = {
    "mask of ints": (lambda: ds.BlockMask(np.ones((2, 2), int), 2, 2), TypeError, ("mask", "int64", "bool")),
    "block_q 0": (lambda: ds.BlockMask(True, 0, 2), ValueError, ("block_q", "0", "at least 1")),
    "block_k negative": (lambda: ds.BlockMask(True, 2, -3), ValueError, ("block_k", "-3", "at least 1")),
    "block_q a float": (lambda: ds.BlockMask(True, 2.0, 2), TypeError, ("block_q", "2.0", "integer")),
    "block_k a bool": (lambda: ds.BlockMask(True, 2, True), TypeError, ("block_k", "True", "integer")),
}


@pytest.mark.parametrize("case", BLOCKS.values(), ids=BLOCKS.keys())
def test_block_mask(case: Any) -> None:
    expect(case[1], case[2], case[0])


# ------------------------------------------------------------------ varlen
VQ, VK, VV = np.ones((4, 7, 6), F32), np.ones((2, 9, 6), F32), np.ones((2, 9, 5), F32)
STARTS_Q, STARTS_K = np.array([0, 3, 7]), np.array([0, 4, 9])
VARLEN: dict[str, tuple[dict[str, Any], Error, tuple[str, ...]]] = {
    "q of rank 4": ({"q": VQ[None]}, ValueError, ("q", "(1, 4, 7, 6)")),
    "k of rank 2": ({"k": VK[0], "v": VV}, ValueError, ("k",)),
    "starts of floats": ({"cu_seqlens_q": [0.0, 3.0, 7.0]}, TypeError, ("cu_seqlens_q", "float64", "integer")),
    "starts of a wrong rank": ({"cu_seqlens_q": [[0, 7]]}, ValueError, ("cu_seqlens_q", "(1, 2)")),
    "no starts": ({"cu_seqlens_q": np.array([], int)}, ValueError, ("cu_seqlens_q", "(0,)")),
    "starts that begin late": ({"cu_seqlens_k": [1, 4, 9]}, ValueError, ("cu_seqlens_k", "1", "9")),
    "starts that end early": ({"cu_seqlens_k": [0, 4, 8]}, ValueError, ("cu_seqlens_k", "8", "9")),
    "starts that end late": ({"cu_seqlens_q": [0, 4, 8]}, ValueError, ("cu_seqlens_q", "8", "7")),
    "starts that fall": ({"cu_seqlens_q": [0, 8, 7]}, ValueError, ("cu_seqlens_q", "8", "7")),
    "starts below 0": ({"cu_seqlens_k": [0, -4, 9]}, ValueError, ("cu_seqlens_k", "-4")),
    "other numbers of sequences": (
        {"cu_seqlens_q": [0, 7]}, ValueError, ("cu_seqlens_q", "cu_seqlens_k", "(2,)", "(3,)"),
    ),
    "kv_lengths of a wrong length": ({"kv_lengths": [1]}, ValueError, ("kv_lengths", "(1,)", "(2,)")),
    "kv_lengths too long": ({"kv_lengths": [4, 6]}, ValueError, ("kv_lengths", "6", "5")),
    "kv_lengths negative": ({"kv_lengths": [-4, 3]}, ValueError, ("kv_lengths", "-4")),
    "causal_offset of a wrong length": ({"causal_offset": [1]}, ValueError, ("causal_offset", "(1,)", "(2,)")),
    "mask of a wrong shape": ({"mask": np.ones((7, 9), bool)}, ValueError, ("mask", "(7, 9)", "(4, 7, 5)")),
    "bias of a wrong shape": ({"bias": np.ones((6, 5))}, ValueError, ("bias", "(6, 5)", "(4, 7, 5)")),
    "block_mask": ({"block_mask": ds.BlockMask(True, 2, 2)}, TypeError, ("block_mask",)),
    "sinks": ({"sinks": np.ones(2)}, ValueError, ("sinks", "(2,)", "(4,)")),
    "heads": ({"q": VQ[:3]}, ValueError, ("heads", "3", "2")),
}  # fmt: skip


@pytest.mark.parametrize("case", VARLEN.values(), ids=VARLEN.keys())
def test_varlen(case: Any, backend: str) -> None:
    changed, error, words = case
    out = np.full((4, 7, 5), 7, F32)
    given = {"q": VQ, "k": VK, "v": VV, "cu_seqlens_q": STARTS_Q, "cu_seqlens_k": STARTS_K, "out": out} | changed
    expect(error, words, lambda: ds.attention_varlen(**given))
    assert (out == 7).all()


# ------------------------------------------------------------------ paged
PQ, PK, PV = np.ones((2, 4, 3, 6), F32), np.ones((8, 2, 4, 6), F32), np.ones((8, 2, 4, 5), F32)
TABLE, LENGTHS = np.array([[0, 1, 2], [5, 6, 7]]), np.array([9, 12])
PAGED: dict[str, tuple[dict[str, Any], Error, tuple[str, ...]]] = {
    "q of rank 3": ({"q": PQ[0]}, ValueError, ("q", "(4, 3, 6)")),
    "pages of k and v": ({"v_pages": PV[:7]}, ValueError, ("k_pages", "v_pages", "(7, 2, 4, 5)")),
    "page sizes of k and v": ({"v_pages": PV[:, :, :3]}, ValueError, ("k_pages", "v_pages", "(8, 2, 3, 5)")),
    "page size 0": ({"k_pages": PK[:, :, :0], "v_pages": PV[:, :, :0]}, ValueError, ("k_pages", "v_pages", "page")),
    "head dims": ({"k_pages": PK[..., :5]}, ValueError, ("q", "k_pages", "head dim")),
    "table of floats": ({"page_table": TABLE * 1.0}, TypeError, ("page_table", "float64", "integer")),
    "table of a wrong rank": ({"page_table": TABLE[0]}, ValueError, ("page_table", "(3,)")),
    "table of a wrong batch": ({"page_table": TABLE[:1]}, ValueError, ("page_table", "(1, 3)", "2")),
    "entry too large": ({"page_table": [[0, 1, 8], [5, 6, 7]]}, ValueError, ("page_table", "8")),
    "entry negative": ({"page_table": [[0, 1, 2], [5, -1, 7]]}, ValueError, ("page_table", "-1")),
    "length beyond the table": ({"kv_lengths": [9, 13]}, ValueError, ("kv_lengths", "13", "12")),
    "length negative": ({"kv_lengths": [-1, 12]}, ValueError, ("kv_lengths", "-1")),
    "lengths of floats": ({"kv_lengths": [1.0, 2.0]}, TypeError, ("kv_lengths", "float64", "integer")),
    "lengths of a wrong length": ({"kv_lengths": [1]}, ValueError, ("kv_lengths", "(1,)", "(2,)")),
    "no lengths": ({"kv_lengths": None}, TypeError, ("kv_lengths", "None")),
    "mask of a wrong shape": ({"mask": np.ones((3, 9), bool)}, ValueError, ("mask", "(3, 9)", "(2, 4, 3, 12)")),
    "v_pages complex": ({"v_pages": PV.astype(complex)}, TypeError, ("v_pages", "complex128")),
}


@pytest.mark.parametrize("case", PAGED.values(), ids=PAGED.keys())
def test_paged(case: Any, backend: str) -> None:
    changed, error, words = case
    out = np.full((2, 4, 3, 5), 7, F32)
    given = {"q": PQ, "k_pages": PK, "v_pages": PV, "page_table": TABLE, "kv_lengths": LENGTHS, "out": out} | changed
    expect(error, words, lambda: ds.attention_paged(**given))
    assert (out == 7).all()


# ------------------------------------------------------------------ states
STATE = ds.AttentionState(np.ones((4, 3, 7), F32), np.zeros((4, 3)), np.ones((4, 3)))
STATES: dict[str, tuple[Callable[[], Any], Error, tuple[str, ...]]] = {
    "key_start negative": (lambda: ds.attention_state(Q, K, V, key_start=-1), ValueError, ("key_start", "-1")),
    "key_total too small": (
        lambda: ds.attention_state(Q, K, V, key_start=3, key_total=7), ValueError, ("key_total", "3", "7", "5"),
    ),
    "key_start a float": (lambda: ds.attention_state(Q, K, V, key_start=1.0), TypeError, ("key_start", "1.0")),
    "key_total a bool": (lambda: ds.attention_state(Q, K, V, key_total=True), TypeError, ("key_total", "True")),
    "kv_lengths beyond the whole": (
        lambda: ds.attention_state(Q, K, V, key_total=9, kv_lengths=[9, 10]), ValueError, ("kv_lengths", "10", "9"),
    ),
    "sinks": (lambda: ds.attention_state(Q, K, V, sinks=np.ones(4)), TypeError, ("sinks",)),
    "shapes of m": (
        lambda: ds.AttentionState(np.ones((3, 2)), np.ones(2), np.ones(3)), ValueError, ("m", "(2,)", "(3, 2)"),
    ),
    "d negative": (lambda: ds.AttentionState(np.ones((1, 2)), [0.0], [-1.0]), ValueError, ("d", "-1")),
    "out complex": (lambda: ds.AttentionState(np.ones((1, 2), complex), [0.0], [1.0]), TypeError, ("out", "complex")),
    "out a number": (lambda: ds.AttentionState(1.0, 0.0, 1.0), ValueError, ("out", "()")),
    "shape of lse": (
        lambda: ds.AttentionState.from_lse(np.ones((3, 2)), np.ones(2)), ValueError, ("lse", "(2,)", "(3, 2)"),
    ),
    "lse of strings": (lambda: ds.AttentionState.from_lse(np.ones((1, 2)), ["a"]), TypeError, ("lse", "<U1")),
    "merge of other shapes": (
        lambda: ds.merge(STATE, ds.AttentionState(np.ones((4, 3, 6), F32), np.zeros((4, 3)), np.ones((4, 3)))),
        ValueError, ("(4, 3, 7)", "(4, 3, 6)"),
    ),
    "merge of other kinds": (
        lambda: ds.merge(STATE, ds.SoftmaxState(np.zeros((4, 3)), np.ones((4, 3)))), TypeError, ("AttentionState",),
    ),
    "merge with a number": (lambda: ds.merge(STATE, 1.0), TypeError, ("float",)),
    "finalize to int": (lambda: STATE.finalize(dtype=int), TypeError, ("dtype", "int")),
    "finalize with sinks": (lambda: STATE.finalize(sinks=np.ones(3)), ValueError, ("sinks", "(3,)", "(4,)")),
    "device": (lambda: STATE.to("tpu"), ValueError, ("device", "tpu")),
    "unpack of floats": (lambda: ds.AttentionState.unpack(np.ones(9, F32)), TypeError, ("float32",)),
    "unpack of a state of softmax": (
        lambda: ds.AttentionState.unpack(ds.SoftmaxState([0.0, 1.0], [1.0, 1.0]).pack()), ValueError, ("version",),
    ),
    "unpack of a state of attention": (lambda: ds.SoftmaxState.unpack(STATE.pack()), ValueError, ("version",)),
    "unpack of a part": (lambda: ds.AttentionState.unpack(STATE.pack()[:-1]), ValueError, ()),
    "unpack of nothing": (lambda: ds.AttentionState.unpack(np.ones(0)), ValueError, ()),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES.values(), ids=STATES.keys())
def test_states(case: Any) -> None:
    expect(case[1], case[2], case[0])


def test_or_with_something_else() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        STATE | 1.0
    with pytest.raises(TypeError, match="unsupported operand"):
        STATE | ds.SoftmaxState(0.0, 1.0)


def test_quiet_when_numpy_raises() -> None:
    with ds.use_backend("reference"), np.errstate(all="raise"):
        q, k = np.array([[1.0], [-1e3]]), np.array([[1e3], [-1e3], [-np.inf]])
        for f in (ds.attention, ds.attention_state):
            f(q, k, np.ones((3, 2)), scale=1)
        far = ds.AttentionState([[1.0]], [-740.0], [1e-310])
        assert (far | ds.AttentionState([[1.0]], [0.0], [1.0])).finalize()[1] >= 0
        assert ds.AttentionState([[1.0]], [0.0], [0.0]).lse[0] == -np.inf
