"""ONNX Runtime: its own MultiHeadAttention and GroupQueryAttention, and ONNX's Attention of opset 23."""

import importlib
from typing import Any, NamedTuple

import numpy as np

from bench.attention.case import AttentionCase, Data
from bench.attention.plain import by_sequence, mask_of, too_large
from bench.contest import Array, Form
from bench.libraries import Library

DOMAIN = "com.microsoft"
OPSETS = (("", 23), (DOMAIN, 1))
IR_VERSION = 11


class _Operand(NamedTuple):
    """An input or output of a graph of one node."""

    name: str
    array: Array


def contrib_forms(case: AttentionCase, data: Data, library: Library) -> dict[str, Form] | str:
    """Return MultiHeadAttention, with grouped queries as more queries, and GroupQueryAttention where it is causal."""
    if case.page_size:
        return "ONNX Runtime has no paged attention for CPUs"
    why = too_large(case)
    if why is not None:
        return why
    if case.lengths:
        return by_sequence(case, data, lambda case, data: contrib_forms(case, data, library))
    forms = {}
    masked = bool(case.block or case.window)
    if case.group == 1 or not (case.causal or masked):
        forms["MultiHeadAttention"] = _multi_head(case, data, library)
    if (case.causal or case.window or case.seq_len_q == 1) and not case.block:
        forms["GroupQueryAttention"] = _group_query(case, data, library)
    return forms or "has no blocks beside grouped queries"


def attention_op_forms(case: AttentionCase, data: Data, library: Library) -> dict[str, Form] | str:
    """Return the operator of ONNX, with a boolean mask for what it has no word for."""
    if case.page_size:
        return "ONNX has no paged attention"
    why = too_large(case)
    if why is not None:
        return why
    if case.lengths:
        return by_sequence(case, data, lambda case, data: attention_op_forms(case, data, library))
    inputs = [_Operand("q", data.q), _Operand("k", data.k), _Operand("v", data.v)]
    mask = mask_of(case, data) if case.block or case.window else None
    if mask is not None:
        inputs.append(_Operand("mask", mask))
    out = _Operand("out", np.empty(data.result_shape, data.q.dtype))
    call = _bound(library, "Attention", "", inputs, [out], is_causal=int(case.causal and mask is None))
    return {"Attention": Form(call, lambda _: out.array)}


def _multi_head(case: AttentionCase, data: Data, library: Library) -> Form:
    """Bind (B, S, H·D) queries, and keys and values as they lie, (B, H, S, D), which that operator takes too."""
    queries = data.q.reshape(case.batch, case.heads_k, -1, case.head_dim)
    rows = queries.shape[2]
    inputs = [_Operand("q", _side_by_side(queries)), _Operand("k", data.k), _Operand("v", data.v)]
    mask = mask_of(case, data) if case.block or case.window else None
    if mask is not None:
        zeros = np.zeros((1, 1, case.seq_len_q, case.seq_len_k), data.q.dtype)
        bias = np.where(mask, zeros, zeros.dtype.type(-np.inf))
        inputs += [_Operand("", zeros), _Operand("", zeros), _Operand("bias", bias)]
    out = _Operand("out", np.empty((case.batch, rows, case.heads_k * case.head_dim), data.q.dtype))
    unidirectional = int(case.causal and not case.window)
    call = _bound(
        library, "MultiHeadAttention", DOMAIN, inputs, [out], num_heads=case.heads_k, unidirectional=unidirectional
    )

    def read(_: Array) -> Array:
        result = out.array.reshape(case.batch, rows, case.heads_k, case.head_dim)
        return result.swapaxes(1, 2).reshape(data.result_shape)

    return Form(call, read)


def _group_query(case: AttentionCase, data: Data, library: Library) -> Form:
    """Bind the operator of language models: all tokens new, or one behind a cache extended in place."""
    past = case.seq_len_k - case.seq_len_q
    dtype = data.q.dtype
    new_k, new_v = (_side_by_side(x[:, :, past:]) for x in (data.k, data.v))
    shape = (case.batch, case.heads_k, case.seq_len_k if past else 0, case.head_dim)
    # Past and present are one buffer where the graph gets the same memory for both.
    caches = [x.copy() if past else np.empty_like(x) for x in (data.k, data.v)]
    inputs = [
        _Operand("q", _side_by_side(data.q)),
        _Operand("k", new_k),
        _Operand("v", new_v),
        _Operand("past_k", caches[0] if past else np.empty(shape, dtype)),
        _Operand("past_v", caches[1] if past else np.empty(shape, dtype)),
        _Operand("last", np.full(case.batch, case.seq_len_k - 1, np.int32)),
        _Operand("total", np.array([case.seq_len_k], np.int32)),
    ]
    out = _Operand("out", np.empty((case.batch, case.seq_len_q, case.heads_q * case.head_dim), dtype))
    outputs = [out, _Operand("present_k", caches[0]), _Operand("present_v", caches[1])]
    window = {"local_window_size": case.window} if case.window else {}
    call = _bound(
        library, "GroupQueryAttention", DOMAIN, inputs, outputs,
        num_heads=case.heads_q, kv_num_heads=case.heads_k, **window,
    )  # fmt: skip

    def read(_: Array) -> Array:
        return out.array.reshape(case.batch, case.seq_len_q, case.heads_q, case.head_dim).swapaxes(1, 2)

    return Form(call, read)


def _side_by_side(x: Array) -> Array:
    """Return (B, H, S, D) as (B, S, H·D)."""
    batch, heads, length, dim = x.shape
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(batch, length, heads * dim)


def _bound(
    library: Library, operator: str, domain: str, inputs: list[_Operand], outputs: list[_Operand], **attributes: int
) -> Any:
    """Return the call of a graph of one node on memory that is bound once: nothing is copied or allocated for it."""
    onnx: Any = importlib.import_module("onnx")
    runtime = library.module
    helper = onnx.helper

    def declared(operand: _Operand) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(operand.array.dtype)
        return helper.make_tensor_value_info(operand.name, kind, list(operand.array.shape))

    names = [operand.name for operand in inputs], [operand.name for operand in outputs]
    node = helper.make_node(operator, *names, domain=domain, **attributes)
    named = [operand for operand in inputs if operand.name]
    graph = helper.make_graph([node], operator, [declared(x) for x in named], [declared(x) for x in outputs])
    opsets = [helper.make_opsetid(*opset) for opset in OPSETS]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = library.threads
    options.inter_op_num_threads = 1
    # Threads that go on spinning after a call would take the processors of the next contender.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    values = [(operand, _value(onnx, runtime, operand.array)) for operand in (*named, *outputs)]
    for operand, value in values[: len(named)]:
        binding.bind_ortvalue_input(operand.name, value)
    for operand, value in values[len(named) :]:
        binding.bind_ortvalue_output(operand.name, value)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return values

    return call


def _value(onnx: Any, runtime: Any, array: Array) -> Any:
    make = runtime.OrtValue
    if array.dtype.name == "bfloat16":
        return make.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), onnx.TensorProto.BFLOAT16)
    return make.ortvalue_from_numpy(array)
