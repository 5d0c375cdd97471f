"""Exact online softmax and attention: SIMD kernels for NumPy arrays, CUDA kernels for CuPy arrays, one set of names.

Every function takes NumPy arrays of any layout and returns the kind of array it was given. See
``help(dualsoft.softmax)`` for the rules that all functions share, and ``python -m dualsoft`` for what is installed.
"""

from dualsoft import accuracy, algorithms
from dualsoft._version import __version__
from dualsoft.attention import attention, attention_paged, attention_state, attention_varlen
from dualsoft.attention_gradients import AttentionGrads, attention_backward, attention_varlen_backward
from dualsoft.attention_state import AttentionState
from dualsoft.block_mask import BlockMask
from dualsoft.cache import KVCache
from dualsoft.gradients import log_softmax_backward, logsumexp_backward, softmax_backward
from dualsoft.linear_loss import LinearGrads, linear_cross_entropy, linear_cross_entropy_backward
from dualsoft.losses import cross_entropy, cross_entropy_backward
from dualsoft.registry import backend_for, backends, register_backend, use_backend, warmup
from dualsoft.sampling import sample
from dualsoft.softmax import cumulative_logsumexp, log_softmax, logsumexp, softmax
from dualsoft.state import SoftmaxState
from dualsoft.state_functions import merge, softmax_state
from dualsoft.threads import get_num_threads, num_threads, set_num_threads
from dualsoft.topk import TopK, softmax_topk
from dualsoft.trace import Trace, TraceRow, trace

__all__ = [
    "AttentionGrads",
    "AttentionState",
    "BlockMask",
    "KVCache",
    "LinearGrads",
    "SoftmaxState",
    "TopK",
    "Trace",
    "TraceRow",
    "__version__",
    "accuracy",
    "algorithms",
    "attention",
    "attention_backward",
    "attention_paged",
    "attention_state",
    "attention_varlen",
    "attention_varlen_backward",
    "backend_for",
    "backends",
    "cross_entropy",
    "cross_entropy_backward",
    "cumulative_logsumexp",
    "get_num_threads",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "log_softmax",
    "log_softmax_backward",
    "logsumexp",
    "logsumexp_backward",
    "merge",
    "num_threads",
    "register_backend",
    "sample",
    "set_num_threads",
    "softmax",
    "softmax_backward",
    "softmax_state",
    "softmax_topk",
    "trace",
    "use_backend",
    "warmup",
]
