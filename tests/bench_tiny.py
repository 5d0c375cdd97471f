"""The cases of attention in the benchmark, made tiny; as a program: every library's answer to each of them, judged."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from bench_process import module

PEERS = ("numpy", "torch", "jax", "onnxruntime", "onnxruntime.attention", "openvino")


def tiny(case: Any, dtype: str) -> Any:
    """Make a case of the same kind that takes no time."""
    lengths = tuple(2 + length % 7 for length in case.lengths)
    keys = sum(lengths) or min(case.seq_len_k, 64)
    return case._replace(
        batch=min(case.batch, 2), heads_q=2 * case.group, heads_k=2, head_dim=16, dtype=dtype, lengths=lengths,
        seq_len_q=1 if case.seq_len_q == 1 else keys, seq_len_k=keys, window=case.window and 1 + case.window // 64,
        block=case.block and 4, page_size=min(case.page_size, 32),
    )  # fmt: skip


def contests(dtype: str) -> Iterator[Any]:
    """Make every case ready."""
    for name in ("attention", "attention_backward", "decode", "paged"):
        operation = module(f"bench.operations.{name}").OPERATION
        for case in dict.fromkeys(tiny(case, dtype) for case in operation.cases):
            yield operation.contest(case, np.dtype(dtype))


def judged() -> dict[str, dict[str, str]]:
    """Return, by library, form and case, what is wrong with the answer; empty where nothing is."""
    found: dict[str, dict[str, str]] = {}
    libraries = module("bench.libraries").load(PEERS, 1)
    for contest in contests("float32"):
        for name, library in libraries.items():
            forms = library if isinstance(library, str) else contest.forms(name, library)
            for label, form in {} if isinstance(forms, str) else forms.items():
                result = form.read(form.call())
                limit = contest.judge(result, ours=False).limit if result.shape == contest.result_shape else "its shape"
                found.setdefault(name, {})[f"{label} {contest.case}"] = limit or ""
    missing = {name: {"": ""} for name, library in libraries.items() if isinstance(library, str)}
    return found | missing


if __name__ == "__main__":
    print(json.dumps(judged()))
