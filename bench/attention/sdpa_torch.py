"""PyTorch: scaled_dot_product_attention, and flex_attention through torch.compile."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

from bench.attention.case import AttentionCase, Data
from bench.attention.plain import by_sequence, mask_of
from bench.contest import Array, Form
from bench.libraries import Library

MASK_BYTES = 2**30


def torch_forms(case: AttentionCase, data: Data, library: Library) -> dict[str, Form] | str:
    """Return the ways to call SDPA that may be the fastest."""
    torch = library.module
    given = _given(library)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    if data.starts is not None:
        return by_sequence(case, data, lambda case, data: torch_forms(case, data, library))
    if case.page_size:
        return _gathered(case, data, library)
    q, k, v = given(data.q), given(data.k), given(data.v)
    options: dict[str, Any] = {"is_causal": case.causal and not case.window}
    if case.window or case.block:
        size = case.seq_len_q * case.seq_len_k
        if size > MASK_BYTES:
            return f"would store a mask of {size / 2**30:.0f} GiB"
        options["attn_mask"] = torch.from_numpy(mask_of(case, data))
    if case.group == 1:
        return {"SDPA": _form(torch, library, lambda: sdpa(q, k, v, **options))}
    forms = {"enable_gqa": _form(torch, library, lambda: sdpa(q, k, v, enable_gqa=True, **options))}
    if not options["is_causal"] and "attn_mask" not in options:
        folded = q.reshape(case.batch, case.heads_k, case.group * case.seq_len_q, case.head_dim)
        shape = data.result_shape
        forms["a group as queries"] = _form(torch, library, lambda: sdpa(folded, k, v).reshape(shape))
    return forms


def flex_forms(case: AttentionCase, data: Data, library: Library) -> dict[str, Form] | str:
    """Return compiled flex_attention for what SDPA has no word for: windows and blocks."""
    torch = library.module
    if not case.window and not case.block:
        return "SDPA is a finished kernel: compiling changes nothing; flex_attention takes the windows and blocks"
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    if case.window:
        inside = case.window

        def sees(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (j <= i) & (i - j < inside)

    else:
        blocks, edge = torch.from_numpy(data.blocks), case.block

        def sees(b: Any, h: Any, i: Any, j: Any) -> Any:
            return blocks[i // edge, j // edge]

    given = _given(library)
    q, k, v = given(data.q), given(data.k), given(data.v)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edge = case.block or 128
        mask = flex.create_block_mask(sees, None, None, case.seq_len_q, case.seq_len_k, "cpu", BLOCK_SIZE=edge)
        compiled = torch.compile(flex.flex_attention, dynamic=False)
        with torch.inference_mode():
            compiled(q, k, v, block_mask=mask, enable_gqa=case.group > 1)
    return {"flex": _form(torch, library, lambda: compiled(q, k, v, block_mask=mask, enable_gqa=case.group > 1))}


def _given(library: Library) -> Callable[[Array], Array]:
    return lambda array: library.given(library.module, array)


def _form(torch: Any, library: Library, call: Callable[[], Array]) -> Form:
    def without_gradients() -> Array:
        with torch.inference_mode():
            return call()

    return Form(without_gradients, library.taken)


def _gathered(case: AttentionCase, data: Data, library: Library) -> dict[str, Form]:
    """Pages have to be brought together first, in every call: the next call has other pages."""
    torch, given = library.module, _given(library)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q, k, v, table = given(data.q), given(data.k_pages), given(data.v_pages), torch.from_numpy(data.page_table)
    shape = (case.batch, case.heads_k, case.seq_len_k, case.head_dim)
    folded = q.reshape(case.batch, case.heads_k, case.group * case.seq_len_q, case.head_dim)

    def together(pages: Array) -> Array:
        return pages[table].transpose(1, 2).reshape(shape)

    return {
        "gather, then SDPA": _form(
            torch, library, lambda: sdpa(folded, together(k), together(v)).reshape(data.result_shape)
        )
    }
