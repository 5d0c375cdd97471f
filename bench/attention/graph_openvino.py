"""OpenVINO: ScaledDotProductAttention of opset 13."""

import importlib
from typing import Any

import numpy as np

from bench.attention.case import AttentionCase, Data
from bench.attention.plain import by_sequence, mask_of
from bench.contest import Array, Form
from bench.libraries import Library

MASK_BYTES = 2**30


def openvino_forms(case: AttentionCase, data: Data, library: Library) -> dict[str, Form] | str:
    """Return the operator on (B, H, S, D), with grouped queries as more queries, or the keys broadcast in the graph."""
    if case.page_size:
        return "its paged attention is a part of its language models, not of its operators"
    size = case.seq_len_q * case.seq_len_k
    masked = bool(case.block or case.window)
    if (case.causal or masked) and size > MASK_BYTES:
        return f"would store a mask of {size / 2**30:.0f} GiB"
    if case.lengths:
        return by_sequence(case, data, lambda case, data: openvino_forms(case, data, library))
    if case.group == 1:
        return {"SDPA": _form(case, data, library, data.q)}
    if case.causal or masked:
        return {"keys broadcast": _form(case, data, library, data.q)}
    queries = data.q.reshape(case.batch, case.heads_k, -1, case.head_dim)
    return {"a group as queries": _form(case, data, library, queries)}


def _form(case: AttentionCase, data: Data, library: Library, q: Array) -> Form:
    openvino = library.module
    ops: Any = importlib.import_module("openvino.opset13")
    kind = _kind(openvino, q)
    parameters = [ops.parameter(list(x.shape), kind) for x in (q, data.k, data.v)]
    keys, values = parameters[1:]
    if q.shape[1] != data.k.shape[1]:
        keys, values = (_broadcast(ops, case, node) for node in (keys, values))
    options: dict[str, Any] = {"causal": case.causal and not case.window}
    mask = mask_of(case, data) if case.block or case.window else None
    if mask is not None:
        options["attention_mask"] = ops.constant(mask[None, None])
    node = ops.scaled_dot_product_attention(parameters[0], keys, values, **options)
    # It computes bfloat16 unless told otherwise, and float16 through it, in fewer digits than the result has.
    precision = openvino.Type.bf16 if q.dtype.name == "bfloat16" else openvino.Type.f32
    config = {
        "INFERENCE_NUM_THREADS": library.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "ENABLE_CPU_PINNING": False,
    }
    request = openvino.Core().compile_model(openvino.Model([node], parameters), "CPU", config).create_infer_request()
    arrays = q, data.k, data.v
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, _tensor(openvino, array))
    out = request.get_output_tensor(0)

    def call() -> Any:
        request.infer()
        # The request reads the arrays' memory and does not keep them.
        return arrays

    return Form(call, lambda _: out.data.view(q.dtype).reshape(data.result_shape))


def _broadcast(ops: Any, case: AttentionCase, node: Any) -> Any:
    """Repeat keys or values for the query heads that share them, in the shape that its compiler recognises."""
    shape = (case.batch, case.heads_k, case.group, case.seq_len_k, case.head_dim)
    grouped = ops.broadcast(ops.unsqueeze(node, np.int64(2)), np.array(shape), broadcast_spec="BIDIRECTIONAL")
    return ops.reshape(grouped, np.array((case.batch, case.heads_q, case.seq_len_k, case.head_dim)), special_zero=False)


def _kind(openvino: Any, array: Array) -> Any:
    kinds = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}
    return getattr(openvino.Type, kinds[array.dtype.name])


def _tensor(openvino: Any, array: Array) -> Any:
    """Return a tensor on the array's own memory."""
    if array.dtype.name == "bfloat16":
        return openvino.Tensor(array.view(np.uint16), list(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)
