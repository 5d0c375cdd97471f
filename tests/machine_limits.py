"""What the machine code of a kernel may take: registers, local memory and calls, each with its reason."""

REGISTERS = {
    "softmax_rows": 184,
    "logsumexp_rows": 184,
    "softmax_columns": 224,
    "logsumexp_columns": 255,
    "normalize_columns": 184,
    "softmax_kept": 128,
    "parts_of_rows": 184,
    "join_parts": 64,
    "normalize_rows": 192,
    "loss_rows": 232,
    "loss_columns": 184,
    "join_losses": 72,
    "gradient_rows": 248,
    "gradient_columns": 144,
    "total_of_entries": 64,
    "weighted_rows": 128,
    "weighted_join": 96,
    "cumulative_rows": 128,
    "attention": 255,
    "attention_merge": 128,
    "textbook_rows": 96,
    "topk_rows": 256,
    "topk_join": 72,
    "sample_rows": 168,
    "attention_gradient": 255,
    "gradient_queries": 255,
    "gradient_bias": 255,
    "gradient_sinks": 48,
    "attention_tensor": 255,
    "gradient_tensor": 255,
    "probe": 16,
}
"""The most registers a thread, by kernel: 184 leave room for 11 warps a multiprocessor. A thread of a column kernel
that reduces has up to 8 columns, and 128 bytes on their way: the 8 warps of one block suffice to keep memory busy."""
_ADDRESS = "an address waits outside of the loops, which leaves room for 16 warps instead of 8"
_OPTIONS = "dtypes and options told at run time take all registers; what is spilled lies outside of the products"
SPILLS: dict[tuple[str, int], tuple[int, str]] = {
    ("logsumexp_columns[x=f32, y=f32, width=4]", 100): (8, _ADDRESS),
    ("attention_gradient[x=anything, c=f32, few=0]", 100): (8, _OPTIONS),
    ("attention_gradient[x=anything, c=f32, few=0]", 120): (16, _OPTIONS),
    ("gradient_bias[x=anything, c=f64, few=0]", 120): (24, _OPTIONS),
}
"""(variant, architecture): bytes a thread in local memory, and why they may be there."""

SUBROUTINES = {
    "rcp_rn_f32_slowpath": "reciprocals of subnormal numbers and the like",
    "dblrcp_rn_slowpath": "reciprocals in float64, the same",
    "div_rn_f64_full": "quotients in float64, the same",
    "div_rn_noftz_f32": "quotients in float32, the same",
    "offset_along_axes": "the place of a row or element along several axes",
    "offset_along_batch": "the place of a sequence along several axes of a batch",
    "uncommon_number": "elements whose dtype is known at run time only",
    "div_s64": "the same",
    "load_elements": "the ends of rows that are not aligned",
    "store_elements": "the same",
    "exponential_above": "exponentials of what lies above the m of a state",
    "warpsync": "lanes of a warp that meet after a loop of their own, up to sm_89",
    "shflsync": "shuffles up to sm_89, where loops or teams shorter than a warp hide that all lanes are there",
    "votesync": "votes, the same",
    "rem_s64": "the same",
    "div_u64": "how many equal elements of a mass reach what is wanted",
}
"""What may be called, and what for. The names stand in what the compiler calls them."""
