"""Calls of losses and gradients for the emulator, and mistakes in their sources that these calls must show."""

from typing import Any, NamedTuple

import loss_oracle
import numpy as np
import oracle
from cases import normal
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation
from oracle import Expected
from test_loss_matrix import as_rows, gradient_dtype, loss_dtype, roundoff, row_shape, squeezed
from tolerance import mismatch

import dualsoft as ds

Array = np.ndarray[Any, Any]
SMOOTHED = {"label_smoothing": 0.125, "z_loss": 0.0625}


class Call(NamedTuple):
    """One call of ``function``: labels, or what is read beside x; ``options`` by name. Its lse is float64's."""

    function: str
    x: Array
    beside: Array | None = None
    axis: int = -1
    options: dict[str, Any] = {}  # noqa: RUF012 (never written)
    in_place: bool = False
    rounds_lse: bool = False
    """The lse is rounded to the dtype of x."""

    def grad(self) -> Any:
        if self.options.get("reduction") in ("mean", "sum"):
            return 0.5
        return np.random.default_rng(1).uniform(-1, 1, row_shape(self.x, self.axis))

    def lse(self) -> Any:
        with ds.use_backend("reference"):
            weights = {"b": self.beside} if self.function == "logsumexp_backward" else {}
            hidden = {"where": self.options.get("where")}
            lse = ds.logsumexp(self.x.astype(np.float64), self.axis, **weights, **hidden)
        return lse.astype(loss_dtype(self.x)) if self.rounds_lse else lse

    def make(self, moving: Any) -> Any:
        """Call it by way of ``moving``, which moves arrays."""
        x, options = self.x.copy("K") if self.in_place else self.x, dict(self.options)
        if self.in_place:
            options["out"] = x
        if self.function == "cross_entropy":
            return moving.cross_entropy(x, self.beside, self.axis, **options)
        if self.function == "cross_entropy_backward":
            return moving.cross_entropy_backward(self.grad(), x, self.beside, self.lse(), self.axis, **options)
        if self.function == "logsumexp_backward":
            given = {} if self.beside is None else {"b": self.beside}
            return moving.logsumexp_backward(self.grad(), x, self.lse(), self.axis, **given, **options)
        return getattr(moving, self.function)(self.beside, x, self.axis, **options)

    def wanted(self) -> Expected:
        x, axis, wide, options = self.x, self.axis, oracle.wide_type(self.x.dtype), dict(self.options)
        if not self.function.startswith("cross_entropy"):
            if self.function != "logsumexp_backward":
                log = self.function.startswith("log")
                return loss_oracle.softmax_backward(self.beside, x, axis, wide, log, **options)
            rows = as_rows(self.grad(), x, axis, wide)
            return loss_oracle.logsumexp_backward(x, axis, wide, rows, b=self.beside, **options)
        labels = self.beside
        assert labels is not None
        z_loss, smoothing = options.get("z_loss", 0), options.get("label_smoothing", 0)
        t = loss_oracle.target(x, axis, labels, wide, options.get("ignore_index"), smoothing)
        reduction = options["reduction"]
        if self.function == "cross_entropy":
            each = loss_oracle.cross_entropy(x, axis, wide, t, z_loss)
            return squeezed(each, axis, x.ndim) if reduction == "none" else loss_oracle.total(each, t.counts, reduction)
        grad: Any = as_rows(self.grad(), x, axis, wide) if reduction == "none" else wide(0.5)
        if reduction == "mean":
            grad = grad / max(np.count_nonzero(t.counts), 1)
        given = roundoff(loss_dtype(x)) if self.rounds_lse else 0.0
        return loss_oracle.cross_entropy_backward(x, axis, wide, grad, t, z_loss, given)

    def wrong(self, moving: Any) -> str | None:
        """What is wrong with the answer, or None."""
        dtype = loss_dtype(self.x) if self.function == "cross_entropy" else gradient_dtype(self.x)
        return mismatch(self.function, self.make(moving), self.wanted(), dtype, "cuda")


def labels(x: Array, axis: int = -1) -> Array:
    return np.random.default_rng(2).integers(0, x.shape[axis], row_shape(x, axis))


def soft(x: Array) -> Array:
    t = np.random.default_rng(3).random(x.shape)
    return (np.where(t < 0.3, 0, t) / 8).astype(gradient_dtype(x))


def loss(x: Array, beside: Array, axis: int = -1, **options: Any) -> Call:
    return Call("cross_entropy", x, beside, axis, {"reduction": "none", **options})


def gradient(x: Array, beside: Array, axis: int = -1, **options: Any) -> Call:
    return Call("cross_entropy_backward", x, beside, axis, {"reduction": "none", **options})


def with_infinities(x: Array) -> Array:
    x = x.copy()
    x[:, 3] = -np.inf
    return x


SHORT, BLOCK, LONG = normal("f32", 6, 42), normal("f32", 2, 302), normal("f32", 2, 8500)
LONG[1] += np.linspace(-20, 20, LONG.shape[1], dtype=np.float32)  # each segment has a maximum of its own
IGNORED = np.array([3, 3, 40, 3, 0, 41])
COLUMNS, IMAGES = normal("f32", 300, 6), normal("f32", 2, 21, 3, 5)
FAR = COLUMNS + np.float32(1e4) * (np.arange(6) % 4 == 1).astype(np.float32)
SURE = np.array([[0, -40], [0, -60]], np.float32)
HIDDEN = np.random.default_rng(5).random(COLUMNS.shape) < 0.6
WEIGHTS = np.where(np.arange(42) % 3 == 0, 0, 0.5).astype(np.float32) * np.ones((6, 1), np.float32)
NAN_UNDER_0 = np.where(WEIGHTS == 0, np.float32(np.nan), SHORT)
TALL = normal("f32", 5000, 2)
TALL_LABELS = np.where(np.arange(5000) % 3 == 0, 7, np.arange(5000) % 2)

CALLS = {
    "loss": loss(SHORT, labels(SHORT)),
    "loss, ignored": loss(SHORT, IGNORED, ignore_index=3),
    "loss, smoothed": loss(SHORT, labels(SHORT), **SMOOTHED),
    "loss, soft": loss(with_infinities(SHORT), np.where(np.arange(42) == 3, 0, soft(SHORT))),
    "loss, soft of another type": loss(SHORT, soft(SHORT).astype(np.float64)),
    "loss, soft by columns": loss(SHORT, np.asfortranarray(soft(SHORT))),
    "loss, bf16 with f32 labels": loss(normal("bf16", 3, 40), soft(SHORT[:3, :40])),
    "loss, long": loss(LONG, labels(LONG), **SMOOTHED),
    "loss, long soft": loss(LONG, soft(LONG), **SMOOTHED),
    "loss, f64": loss(normal("f64", 3, 300), soft(normal("f64", 3, 300)), **SMOOTHED),
    "loss, mean": loss(SHORT, IGNORED, ignore_index=3, reduction="mean"),
    "loss, mean of many": loss(TALL, TALL_LABELS, ignore_index=7, reduction="mean"),
    "loss, columns": loss(COLUMNS, labels(COLUMNS, 0), 0, **SMOOTHED),
    "loss, columns soft": loss(COLUMNS, np.ascontiguousarray(soft(COLUMNS).T).T, 0, **SMOOTHED),
    "loss, images": loss(IMAGES, labels(IMAGES, 1), 1, reduction="mean"),
    "loss, f16 columns": loss(normal("f16", 40, 16), labels(normal("f16", 40, 16), 0), 0, **SMOOTHED),
    "loss, integers": loss((normal("f64", 3, 20) * 3).astype(np.int16), np.array([0, 19, 7])),
    "gradient": gradient(SHORT, labels(SHORT), **SMOOTHED),
    "gradient, ignored": gradient(SHORT, IGNORED, ignore_index=3, reduction="mean"),
    "gradient, sure": gradient(SURE, np.array([0, 0])),
    "gradient, soft": gradient(SHORT, soft(SHORT), **SMOOTHED),
    "gradient, large lse": gradient(SHORT + np.float32(1e4), labels(SHORT))._replace(rounds_lse=True),
    "gradient, images": gradient(IMAGES, labels(IMAGES, 1), 1),
    "gradient, columns, large lse": gradient(FAR, labels(FAR, 0), 0)._replace(rounds_lse=True),
    "softmax": Call("softmax_backward", ds.softmax(BLOCK, -1), normal("f32", 2, 302, seed=1)),
    "softmax, unaligned": Call(
        "softmax_backward", ds.softmax(BLOCK[:, :301], -1), normal("f32", 2, 301, seed=1), in_place=True
    ),
    "softmax, long": Call("softmax_backward", ds.softmax(LONG, -1), normal("f32", 2, 8500, seed=1)),
    "softmax, columns": Call("softmax_backward", ds.softmax(COLUMNS, 0), normal("f32", 300, 6, seed=1), 0),
    "softmax, hidden": Call(
        "softmax_backward", ds.softmax(COLUMNS, 0, where=HIDDEN), normal("f32", 300, 6, seed=1), 0, {"where": HIDDEN}
    ),
    "log_softmax, columns": Call(
        "log_softmax_backward",
        ds.log_softmax(COLUMNS, 0),
        np.asfortranarray(normal("f32", 300, 6, seed=1)),
        0,
        in_place=True,
    ),
    "logsumexp, in place": Call("logsumexp_backward", normal("f32", 3, 1001), in_place=True),
    "logsumexp, weights": Call("logsumexp_backward", NAN_UNDER_0, WEIGHTS),
    "logsumexp, hidden": Call("logsumexp_backward", COLUMNS, None, 0, {"where": HIDDEN}),
    "logsumexp, f16": Call("logsumexp_backward", normal("f16", 5, 42)[:, ::2]),
}

ANYTHING = (WRONG, *OUTSIDE, *RACES, "unwritten output", "cross-block race")
LOSSES = {
    "the label is one off": Mutation("of.s.dot = x_at(label)", "of.s.dot = x_at(label ^ 1)", ("loss",)),
    "ignored rows are like others": Mutation(
        "if (terms.ignores && label == terms.ignored) return {0.0, false};", "", ("loss, ignored",)
    ),
    "ignored rows are counted": Mutation("return {0.0, false};", "return {0.0, true};", ("loss, mean",)),
    "the uniform share of one class": Mutation(
        "terms.uniform * (f64(n) * over", "terms.uniform * (over", ("loss, smoothed",)
    ),
    "z_loss of log d": Mutation("terms.z_loss * (lse * lse)", "terms.z_loss * (log_d * log_d)", ("loss, smoothed",)),
    "a probability of 0 has a product": Mutation(
        "t.value[i] == compute(0) ? compute(0) : mul(t.value[i], sub(mine.value[i], k))",
        "mul(t.value[i], sub(mine.value[i], k))",
        ("loss, soft",),
    ),
    "what lies beside is read past the end": Mutation(
        "through.value[k] = start + k < from.length ?",
        "through.value[k] = start + k <= from.length ?",
        ("loss, soft of another type",),
        OUTSIDE,
    ),
    "labels by the strides of x": Mutation(
        "from.w + offset(inner, WEIGHT, start + k)",
        "from.w + offset(inner, X, start + k)",
        ("loss, soft by columns",),
        ANYTHING,
    ),
    "segments keep their own zero": Mutation("a.s.moved(zero_for(a.p.m) - k, a.count)", "a.s", ("loss, long",)),
    "the last segment is a whole one": Mutation(
        "f64(smaller<i64>(SEGMENT, n - segment * SEGMENT))", "f64(SEGMENT)", ("loss, long",)
    ),
}
TOTALS = {
    "the mean is over all rows": Mutation("sum / all.count", "sum / f64(count)", ("loss, mean",)),
    "totals are read before they are there": Mutation(
        "            __syncthreads();\n            value = parts[0];",
        "            value = parts[0];",
        ("loss, mean",),
        RACES,
    ),
    "blocks of entries overlap": Mutation(
        "last = smaller(first + length, i64(count))",
        "last = smaller(first + length + 1, i64(count))",
        ("loss, mean of many",),
    ),
    "totals of blocks change places": Mutation(
        "store_entry(to, blockIdx.x, all)", "store_entry(to, 0, all)", ("loss, mean of many",), ANYTHING
    ),
}
COLUMNS_OF_LOSSES = {
    "a column's labels by the strides of x": Mutation(
        "labels + offset(inner, WEIGHT, e)", "labels + offset(inner, X, e)", ("loss, columns soft",), ANYTHING
    ),
    "strands keep their own zero": Mutation("    strand.move_to(f64(zero_for(m)));\n", "", ("loss, columns",)),
    "elements past the end count": Mutation(
        "sum.add_term(i, is_there ? sub(x.at[i], zero) : compute(0));",
        "sum.add_term(i, sub(x.at[i], zero));",
        ("loss, columns",),
    ),
}
GRADIENTS = {
    "the label's gradient is another's": Mutation(
        "int(k % DS_CHUNK) : -1", "int(k % DS_CHUNK ^ 1) : -1", ("gradient",)
    ),
    "ignored rows have gradients": Mutation(
        "to.is_zero = q.ignores && label == q.ignored;", "to.is_zero = false;", ("gradient, ignored",)
    ),
    "z_loss has half its slope": Mutation("(mass + 2.0 * q.z_loss", "(mass + q.z_loss", ("gradient",)),
    "a rounded lse is not refined": Mutation(
        "if (!(absolute(off) <= most)) return;", "return;", ("gradient, large lse",)
    ),
    "the sum is that of a segment": Mutation(
        "sum += sum_over(mine, [&](int i) { return mul(",
        "sum = sum_over(mine, [&](int i) { return mul(",
        ("softmax, long",),
    ),
    "a segment is not read again": Mutation("if (segment != held) {", "if (held < 0) {", ("softmax, long",)),
    "a row in place is written while it is read": Mutation(
        "team::meet();                       // and what it reads", "", ("logsumexp, in place",), ANYTHING
    ),
    "weights of 0 do not hide": Mutation(
        "if (by.kind == TIMES_BESIDE && t == compute(0)) return compute(0);", "", ("logsumexp, weights",)
    ),
}
COLUMNS_OF_GRADIENTS = {
    "answers are read before they are there": Mutation(
        "        __syncthreads();\n        if (of_lane.count) {",
        "        if (of_lane.count) {",
        ("gradient, images",),
        ANYTHING,
    ),
    "what is kept lands on what is kept": Mutation(
        "kept + steps * i64(blockDim.x)", "kept", ("softmax, columns",), ANYTHING
    ),
    "hidden elements have gradients": Mutation(
        "e.visible >> i & 1 ? gradient_of(", "true ? gradient_of(", ("logsumexp, hidden",)
    ),
    "one gradient too many": Mutation(
        "place[i] = k < of.from.last ? y", "place[i] = k <= of.from.last ? y", ("logsumexp, f16",), ANYTHING
    ),
    "a column's own pair is not waited for": Mutation(
        "if (__syncthreads_or(is_wanted)) {",
        "if (is_wanted) {",
        ("gradient, columns, large lse",),
        (*ANYTHING, "barrier"),
    ),
}
MUTATIONS = LOSSES | TOTALS | COLUMNS_OF_LOSSES | GRADIENTS | COLUMNS_OF_GRADIENTS
