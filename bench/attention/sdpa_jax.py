"""JAX: jax.nn.dot_product_attention, compiled."""

from typing import Any

import numpy as np

from bench.attention.case import AttentionCase, Data
from bench.attention.plain import by_sequence, mask_of, too_large
from bench.contest import Array, Form
from bench.libraries import Library


def jax_forms(case: AttentionCase, data: Data, library: Library) -> dict[str, Form] | str:
    """Return the call on (B, S, H, D), the layout of its own, for which data is laid out anew before timing."""
    why = too_large(case)
    if why is not None:
        return why
    jax = library.module
    if data.starts is not None:
        return by_sequence(case, data, lambda case, data: jax_forms(case, data, library))
    if case.page_size:
        return _gathered(case, data, jax)
    options: dict[str, Any] = {"is_causal": case.causal}
    if case.window:
        options["local_window_size"] = (case.window - 1, 0)
    if case.block:
        options["mask"] = jax.numpy.asarray(mask_of(case, data))[None, None]
    compiled = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options))
    q, k, v = (_own_layout(jax, x) for x in (data.q, data.k, data.v))
    return {"": Form(lambda: compiled(q, k, v).block_until_ready(), _read)}


def _own_layout(jax: Any, x: Array) -> Array:
    return jax.numpy.asarray(np.ascontiguousarray(x.swapaxes(-2, -3)))


def _read(result: Array) -> Array:
    return np.asarray(result).swapaxes(-2, -3)


def _gathered(case: AttentionCase, data: Data, jax: Any) -> dict[str, Form]:
    def attend(q: Array, k: Array, v: Array, table: Array) -> Array:
        def together(pages: Array) -> Array:
            shape = (case.batch, case.seq_len_k, case.heads_k, case.head_dim)
            return pages[table].swapaxes(-2, -3).reshape(shape)

        return jax.nn.dot_product_attention(q, together(k), together(v))

    compiled = jax.jit(attend)
    q, table = _own_layout(jax, data.q), jax.numpy.asarray(data.page_table)
    k, v = jax.numpy.asarray(data.k_pages), jax.numpy.asarray(data.v_pages)
    return {"gather, then attention": Form(lambda: compiled(q, k, v, table).block_until_ready(), _read)}
