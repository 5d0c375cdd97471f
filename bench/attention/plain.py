"""What one writes in NumPy, and what is done where a library has no word for it: masks, and a call a sequence."""

import math
from collections.abc import Callable

import numpy as np

from bench.attention.case import AttentionCase, Data, sequences, visible
from bench.contest import Array, Form

SCORES_BYTES = 2**31
"""Contenders that store the scores do not get cases whose scores take more."""


def too_large(case: AttentionCase, itemsize: int = 4) -> str | None:
    """Return why a method that stores the scores does not take part, None where it can."""
    size = case.elements * itemsize
    if size <= SCORES_BYTES:
        return None
    return f"would store {size / 2**30:.0f} GiB of scores"


def mask_of(case: AttentionCase, data: Data) -> Array | None:
    """Return the whole mask of a head, for libraries that want one; None where nothing is hidden."""
    return visible(case, data, np.arange(case.seq_len_q), case.seq_len_k)


def by_sequence(
    case: AttentionCase, data: Data, make: Callable[[AttentionCase, Data], dict[str, Form] | str]
) -> dict[str, Form] | str:
    """Return the forms that ``make`` gives, called for one sequence after the other; results stay where they are."""
    parts = [make(*part) for part in sequences(case, data)]
    found: list[dict[str, Form]] = []
    for part in parts:
        if isinstance(part, str):
            return part
        found.append(part)

    def joined(forms: list[Form]) -> Form:
        def read(results: list[Array]) -> Array:
            read_one = [form.read(result) for form, result in zip(forms, results, strict=True)]
            return np.concatenate([result[0] for result in read_one], axis=-2)

        return Form(lambda: [form.call() for form in forms], read)

    labels = {label: ", ".join(filter(None, (label, "a call a sequence"))) for label in found[0]}
    return {named: joined([forms[label] for forms in found]) for label, named in labels.items()}


def numpy_forms(case: AttentionCase, data: Data) -> dict[str, Form] | str:
    """Two products and the softmax formula, heads broadcast."""
    why = too_large(case, data.q.dtype.itemsize)
    if why is not None:
        return why
    if case.page_size or case.lengths:
        return "is timed on plain operands only"
    scale = data.q.dtype.type(1 / math.sqrt(case.head_dim))
    shape = (case.batch, case.heads_k, case.group, case.seq_len_q, case.head_dim)
    q, k, v = data.q.reshape(shape), data.k[:, :, None], data.v[:, :, None]
    seen = mask_of(case, data)
    hidden = None if seen is None else ~seen

    def call() -> Array:
        s = q @ k.swapaxes(-1, -2)
        s *= scale
        if hidden is not None:
            s[..., hidden] = -np.inf
        s -= s.max(axis=-1, keepdims=True)
        np.exp(s, out=s)
        s /= s.sum(axis=-1, keepdims=True)
        return s @ v

    return {"": Form(call, lambda result: result.reshape(data.result_shape))}
