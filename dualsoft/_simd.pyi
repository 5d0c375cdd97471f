"""Interface of one compiled ISA level; every ``dualsoft._simd_<level>`` has exactly this.

Arrays come in as objects with the buffer protocol (bfloat16 as its uint16 view), each with the code of
its dtype. The caller has validated everything: shapes fit, ``axes`` is a bit mask of the reduced axes of
``x``, ``where``/``b`` are broadcast to ``x.shape`` and ``scale`` (an array of float64) to ``x.shape`` with
the reduced axes of length 1. Reduced outputs keep their axes with length 1. Arithmetic is float64 as soon as one
of the codes is float64 or an integer, else float32. ``threads`` is the most threads to use, 0 for OpenMP's own number.
"""

from typing_extensions import Buffer

LEVEL: str
OPENMP: bool

# dtype codes: F32 F64 F16 BF16, then BOOL I8 U8 I16 U16 I32 U32 I64 U64; add SWAPPED for the other byte order
F32: int
F64: int
F16: int
BF16: int
BOOL: int
I8: int
U8: int
I16: int
U16: int
I32: int
U32: int
I64: int
U64: int
SWAPPED: int

def lanes(code: int) -> int: ...
def max_threads() -> int: ...
def pause_threads() -> None: ...
def softmax(
    x: Buffer,
    x_code: int,
    out: Buffer,
    out_code: int,
    axes: int,
    log: bool,
    scale: float | Buffer | None,
    where: Buffer | None,
    threads: int,
) -> None: ...
def logsumexp(
    x: Buffer,
    x_code: int,
    out: Buffer,
    sign: Buffer | None,
    out_code: int,
    axes: int,
    scale: float | Buffer | None,
    where: Buffer | None,
    b: Buffer | None,
    b_code: int,
    threads: int,
) -> None: ...
def state(
    x: Buffer,
    x_code: int,
    m: Buffer,
    rest: Buffer,
    axes: int,
    scale: float | Buffer | None,
    where: Buffer | None,
    threads: int,
) -> None: ...
def normalize(
    x: Buffer,
    x_code: int,
    out: Buffer,
    out_code: int,
    m: Buffer,
    rest: Buffer,
    axes: int,
    scale: float | Buffer | None,
    where: Buffer | None,
    threads: int,
) -> None: ...
def cumulative_logsumexp(
    x: Buffer, x_code: int, out: Buffer, out_code: int, axis: int, initial: bool, threads: int
) -> None: ...

# Losses and gradients, as dualsoft.loss_problem describes them. labels are int64 with the reduced axes of length 1, or
# None; second (probabilities, incoming gradients, weights) is read beside x element by element, its code -1 without
# one. A row whose label is `ignored` has the loss and the gradients 0; every other label is within the row. The target
# is hard·label + uniform in each class. m, rest and grad (also a float) are float64; roundoff is the relative error of
# m, 0 for an exact pair.

def cross_entropy(
    x: Buffer,
    x_code: int,
    losses: Buffer,
    loss_code: int,
    lse: Buffer | None,
    lse_code: int,
    axes: int,
    labels: Buffer | None,
    second: Buffer | None,
    second_code: int,
    ignored: int | None,
    hard: float,
    uniform: float,
    z_loss: float,
    threads: int,
) -> None: ...
def cross_entropy_gradient(
    x: Buffer,
    x_code: int,
    out: Buffer,
    out_code: int,
    axes: int,
    labels: Buffer | None,
    second: Buffer | None,
    second_code: int,
    ignored: int | None,
    m: Buffer,
    rest: Buffer,
    roundoff: float,
    grad: float | Buffer,
    hard: float,
    uniform: float,
    z_loss: float,
    threads: int,
) -> None: ...
def logsumexp_gradient(
    x: Buffer,
    x_code: int,
    out: Buffer,
    out_code: int,
    axes: int,
    b: Buffer | None,
    b_code: int,
    m: Buffer,
    rest: Buffer,
    roundoff: float,
    grad: float | Buffer,
    scale: float | Buffer | None,
    where: Buffer | None,
    threads: int,
) -> None: ...
def softmax_gradient(
    x: Buffer,
    x_code: int,
    out: Buffer,
    out_code: int,
    axes: int,
    log: bool,
    grad: Buffer,
    grad_code: int,
    factor: float | Buffer,
    where: Buffer | None,
    threads: int,
) -> None: ...

# the axes mask has one bit; out and indices (int64) have k elements along it; lse is float32 for half types

def softmax_topk(
    x: Buffer,
    x_code: int,
    out: Buffer,
    out_code: int,
    indices: Buffer,
    lse: Buffer,
    lse_code: int,
    k: int,
    axes: int,
    scale: float | Buffer | None,
    where: Buffer | None,
    threads: int,
) -> None: ...

# out is int64 and contiguous; options is float64 and has temperature, top_k, min_p, top_p next to each other along the
# axis, where x has its elements; key is four words of uint32

def sample(x: Buffer, x_code: int, out: Buffer, axes: int, options: Buffer, key: Buffer, threads: int) -> None: ...

# attention as dualsoft.attention_problem.AttentionProblem describes it, field by field. Arithmetic is float64 where
# out_code is F64, else float32; lse has its dtype. m, d, sinks and slopes are float64; lengths, offsets, starts and
# pages int64; mask and block_mask bool; bias_code is -1 without a bias. Raises MemoryError only

def attention(
    q: Buffer,
    q_code: int,
    k: Buffer,
    k_code: int,
    v: Buffer,
    v_code: int,
    out: Buffer,
    out_code: int,
    lse: Buffer | None,
    m: Buffer | None,
    d: Buffer | None,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    lengths: Buffer | None,
    offsets: Buffer | None,
    mask: Buffer | None,
    bias: Buffer | None,
    bias_code: int,
    sinks: Buffer | None,
    slopes: Buffer | None,
    block_mask: Buffer | None,
    block_q: int,
    block_k: int,
    q_starts: Buffer | None,
    k_starts: Buffer | None,
    pages: Buffer | None,
    threads: int,
) -> None: ...

# its gradients as dualsoft.gradient_problem.GradientProblem describes them. Arithmetic is float64 with float64;
# dbias is float64 where bias_sums is True; dsinks is float64. Gradients of k and v come as 0. Raises MemoryError only

def attention_backward(
    q: Buffer,
    q_code: int,
    k: Buffer,
    k_code: int,
    v: Buffer,
    v_code: int,
    out: Buffer,
    out_code: int,
    lse: Buffer,
    lse_code: int,
    grad_out: Buffer,
    grad_out_code: int,
    grad_lse: Buffer | None,
    grad_lse_code: int,
    dq: Buffer | None,
    dq_code: int,
    dk: Buffer | None,
    dk_code: int,
    dv: Buffer | None,
    dv_code: int,
    dbias: Buffer | None,
    dbias_code: int,
    bias_sums: bool,
    dsinks: Buffer | None,
    float64: bool,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    lengths: Buffer | None,
    offsets: Buffer | None,
    mask: Buffer | None,
    bias: Buffer | None,
    bias_code: int,
    sinks: Buffer | None,
    slopes: Buffer | None,
    block_mask: Buffer | None,
    block_q: int,
    block_k: int,
    q_starts: Buffer | None,
    k_starts: Buffer | None,
    threads: int,
) -> None: ...

# the elementary functions on contiguous arrays, for tests: exp of [-inf, 16] in F32 or F64, log1p of [-1/2, inf] in F64

def exp_array(x: Buffer, out: Buffer, code: int) -> None: ...
def log1p_array(x: Buffer, out: Buffer) -> None: ...
def stream_read(x: Buffer, threads: int) -> float: ...
def stream_copy(x: Buffer, out: Buffer, threads: int) -> None: ...

# GFLOP/s of independent multiply-adds in registers: F32, F64, or BF16 (its dot product, 0 where the level has none)

def fma_ceiling(code: int, threads: int) -> float: ...
