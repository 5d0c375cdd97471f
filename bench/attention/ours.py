"""dualsoft's calls."""

from types import ModuleType
from typing import Any

import numpy as np

import dualsoft
from bench.attention.case import AttentionCase, Data
from bench.contest import Call, Form


def ours_call(case: AttentionCase, data: Data, *, block_mask: bool = True, xp: ModuleType = np) -> Call:
    """Return the call, which writes into an array of ``xp`` that is there, as a loop would."""
    out = xp.empty(data.result_shape, data.q.dtype)
    options: dict[str, Any] = {"out": out}
    if case.window:
        options["window"] = (case.window - 1, 0)
    elif case.causal:
        options["causal"] = True
    if data.blocks is not None and block_mask:
        options["block_mask"] = dualsoft.BlockMask(data.blocks, case.block, case.block)
    if data.starts is not None:
        starts = data.starts
        return lambda: dualsoft.attention_varlen(data.q, data.k, data.v, starts, starts, **options)
    if data.page_table is not None:
        lengths = xp.full(case.batch, case.seq_len_k)
        table = data.page_table
        return lambda: dualsoft.attention_paged(data.q, data.k_pages, data.v_pages, table, lengths, **options)
    return lambda: dualsoft.attention(data.q, data.k, data.v, **options)


def ours_forms(case: AttentionCase, data: Data) -> dict[str, Form]:
    """Return the one way to call it."""
    return {"": Form(ours_call(case, data), np.asarray)}
