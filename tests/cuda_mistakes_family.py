"""Calls of weighted and running sums, foreign states, the textbook algorithms, and mistakes that they must show."""

from typing import Any, NamedTuple

import numpy as np
from cases import normal
from cuda_mistakes import OUTSIDE, RACES, WRONG, Mutation

INF, NAN = np.inf, np.nan


class Call(NamedTuple):
    """``function`` of ``x`` along its last axis; what ``beside`` is depends on the function."""

    function: str
    x: Any
    beside: Any = None
    options: dict[str, Any] = {}  # noqa: RUF012 (never written)


def signed(*shape: int) -> Any:
    b = np.random.default_rng(shape).uniform(0.5, 2, shape)
    b[..., ::3] *= -1
    b[..., 1::5] = 0
    return b


def specials() -> Any:
    x = normal("f32", 9, 40)
    x[0], x[1, 3], x[2, 5] = -INF, INF, NAN
    x[3, 4], x[3, 7] = INF, INF
    x[:, 0] = NAN  # of weight 0
    return x


def special_weights() -> Any:
    b = np.ones((9, 40))
    b[:, 0] = 0
    b[3, 4] = -1
    b[4] = -b[4]
    b[5] = 0
    b[6, 1:20], b[6, 20:] = 1e-310, 0
    b[7, 3] = INF
    b[8, 1::2] *= -1
    return b


def rising(n: int) -> Any:
    """Every part of a row has the row's largest element so far, or none that shows."""
    return np.stack([np.linspace(-30, 30, n), np.linspace(30, -30, n)]).astype(np.float32)


def running_specials(n: int) -> Any:
    x = np.full((4, n), -INF, np.float32)
    x[0, n // 2], x[1, n // 3] = 3, INF
    x[2, [5, n - 9]] = 1, NAN
    return x


def gaps(x: Any) -> Any:
    """The same rows, with room behind each."""
    return np.pad(x, ((0, 0), (0, 16)))[:, : x.shape[1]]


CANCELLING = np.repeat(normal("f64", 2, 300), 2, axis=1)
SHORT, LONG = normal("f32", 7, 40), normal("f32", 2, 70_001)
ABOVE = (np.array([-90.0, 3.0, 0.0, 95.0]), np.array([2.0, 1.5, 7.0, 1.0]))
"""m far below what is normalised, near it, and far above."""

CALLS = {
    "weighted": Call("logsumexp", SHORT, signed(7, 40)),
    "weighted, positive": Call("logsumexp", SHORT, np.abs(signed(7, 40))),
    "weighted special": Call("logsumexp", specials(), special_weights()),
    "weighted block": Call("logsumexp", rising(3001), signed(2, 3001)),
    "weighted parts": Call("logsumexp", LONG, signed(2, 70_001)),
    "weighted by rows": Call("logsumexp", SHORT, signed(7, 1)),
    "weighted near 1": Call("logsumexp", np.array([[0.0, -40, -41]] * 3), np.array([[1.0, -1, 1]] * 3)),
    "weighted cancels": Call("logsumexp", CANCELLING, np.tile([1.0, -1.0 + 2**-30], (2, 300))),
    "weighted where": Call(
        "logsumexp", SHORT, signed(7, 40), {"where": SHORT > -1, "scale": np.linspace(1, 2, 7)[:, None]}
    ),
    "weighted tiny": Call("logsumexp", np.zeros((2, 3)), np.full((2, 3), 1e-320)),
    "weighted, negative": Call("logsumexp", SHORT, -np.abs(signed(7, 40))),
    "weighted without sign": Call("logsumexp", SHORT, -np.abs(signed(7, 40)), {"return_sign": False}),
    "foreign long": Call("normalize", normal("f32", 2, 20_000), (np.array([1.0, 9.0]), np.array([4.0, 3.0]))),
    "running": Call("cumulative_logsumexp", gaps(SHORT)),
    "running with initial": Call("cumulative_logsumexp", SHORT, True),
    "running special": Call("cumulative_logsumexp", running_specials(40)),
    "running block": Call("cumulative_logsumexp", rising(3001)),
    "running parts": Call("cumulative_logsumexp", rising(20_000)),
    "running parts with initial": Call("cumulative_logsumexp", rising(8193), True),
    "running parts special": Call("cumulative_logsumexp", running_specials(20_000)),
    "running ties": Call("cumulative_logsumexp", np.zeros((2, 600))),
    "foreign": Call("normalize", normal("f32", 4, 40), ABOVE),
    "foreign block": Call("normalize", normal("f32", 4, 3000), ABOVE),
    "foreign f64": Call("normalize", normal("f64", 4, 40) * 100, (np.array([-600.0, 0, 600, 1e300]), np.full(4, 3.0))),
    "foreign m beyond float32": Call("normalize", normal("f32", 2, 40), (np.array([1e300, -1e300]), np.ones(2))),
    "foreign rounded m": Call(
        "normalize", normal("f32", 2, 40) + 1000, (np.array([1000.00001, 999.9]), np.full(2, 4.0))
    ),
    "foreign special": Call(
        "normalize",
        normal("f32", 6, 40),
        (np.array([0, -INF, INF, 0, -30, 5]), np.array([NAN, 0, INF, 2.0**-30, 1e45, 1])),
    ),
    "foreign columns": Call("normalize", np.asfortranarray(normal("f32", 4, 40)), ABOVE),
    "naive": Call("naive_softmax", gaps(normal("f32", 3, 300))),
    "naive above": Call("naive_softmax", SHORT * 8 + 40),
    "safe": Call("safe_softmax", SHORT * 30),
    "safe block": Call("safe_softmax", normal("f32", 2, 2600)),
    "online": Call("online_softmax", SHORT * 30),
    "online block": Call("online_softmax", rising(2600)),
    "online mostly -inf": Call("online_softmax", np.where(SHORT < 4, -INF, SHORT)),
}

WEIGHTED = {
    "an element of weight 0 takes part": Mutation("if (w == 0.0) return;", "", ("weighted special",)),
    "weights by the strides of x": Mutation(
        "offset(inner, WEIGHT, index)", "offset(inner, X, index)", ("weighted by rows",), (WRONG, *OUTSIDE)
    ),
    "hidden weights take part": Mutation(
        "offset(inner, WHERE, index)) == 0) return;", "offset(inner, WHERE, index)) == 2) return;", ("weighted where",)
    ),
    "the scale of a row is forgotten": Mutation("* from.factor;", ";", ("weighted where",)),
    "a new maximum does not rescale": Mutation("if (m > s.m) {", "if (false) {", ("weighted",)),
    "merged sums are not rescaled": Mutation("a.m < b.m ? factor : 1.0", "1.0", ("weighted",)),
    "signs of infinite weights are lost": Mutation(
        "a.infinite | b.infinite", "a.infinite & b.infinite", ("weighted special",)
    ),
    "infinity minus infinity is infinity": Mutation(
        "|| s.infinite == (POSITIVE | NEGATIVE)", "", ("weighted special",)
    ),
    "the sign is forgotten": Mutation("total < 0.0 ? -1.0 : 1.0", "1.0", ("weighted, negative",)),
    "a negative sum has a logarithm": Mutation("sign || !(found.sign < 0.0) ?", "true ?", ("weighted without sign",)),
    "tiny sums are like others": Mutation("size < 0x1p-960", "false", ("weighted tiny",)),
    "infinite sums keep an error": Mutation("plain - plain == 0.0 ?", "true ?", ("weighted special",)),
    "parts of weights overlap": Mutation(
        "(index - row * parts) * length", "(index - row * parts) * (length - 1)", ("weighted parts",)
    ),
    "a part of weights is not joined": Mutation(
        "part = team::thread(); part < parts", "part = team::thread(); part < parts - 1", ("weighted parts",)
    ),
    "parts of weights lie on each other": Mutation(
        "scratch + index * PART_BYTES, s",
        "scratch + row * PART_BYTES, s",
        ("weighted parts",),
        (WRONG, "uninitialised", "race"),
    ),
    "rows of parts are mixed up": Mutation(
        "(row * parts + part) * PART_BYTES", "(part * parts + row) * PART_BYTES", ("weighted parts",), (WRONG, *OUTSIDE)
    ),
}
RUNNING = {
    "an equal element is not counted": Mutation("p : pair{p.m, p.rest + 1.0};", "p : p;", ("running ties",)),
    "a larger element does not rescale": Mutation(
        "return {x, scaled(p.rest + 1.0, exponential(p.m - x))};", "return {x, p.rest + 1.0};", ("running",)
    ),
    "the scan forgets its first distance": Mutation(
        "distance = 1; distance < 32; distance *= 2", "distance = 2; distance < 32; distance *= 2", ("running block",)
    ),
    "a lane counts itself": Mutation("of_lane_before(mine, 1);", "mine;", ("running",)),
    "the first lane has something before it": Mutation("if (lane == 0) before = nothing();", "", ("running",)),
    "totals of warps are read too soon": Mutation(
        "totals[warp] = mine;\n    __syncthreads();", "totals[warp] = mine;", ("running block",), RACES
    ),
    "a segment forgets the one before": Mutation(
        "part = merge(part, totals[w]);", "part = totals[w];", ("running block",)
    ),
    "a part forgets those before": Mutation("if (!is_first) p = merge(before, p);", "", ("running parts",)),
    "a part is joined too few": Mutation("before = join(part, ", "before = join(part - 1, ", ("running parts",)),
    "pairs of another part": Mutation(
        "store_pair(pairs, index * parts + part, found)",
        "store_pair(pairs, index * parts, found)",
        ("running parts",),
        (WRONG, "uninitialised", "race", "cross-block race"),
    ),
    "parts overlap": Mutation(
        "smaller((part + 1) * length, n)",
        "smaller((part + 1) * length + 1, n)",
        ("running parts",),
        (WRONG, "cross-block race", "race"),
    ),
    "the first result has no initial before it": Mutation(
        "store(row.y - step, rounded<y_type>::of(-infinity()));",
        ";",
        ("running with initial", "running parts with initial"),
        ("unwritten output",),
    ),
    "a result too many": Mutation(
        "if (start + k < last) store", "if (start + k <= last) store", ("running",), (WRONG, *OUTSIDE)
    ),
    "the values of a segment are read too soon": Mutation(
        "        team::meet();\n        pair mine", "        pair mine", ("running block",), RACES
    ),
    "results are stored too soon": Mutation(
        "        team::meet();\n        for (int k = team::thread(); k < SEGMENT; k += DS_GROUP)\n            if",
        "        for (int k = team::thread(); k < SEGMENT; k += DS_GROUP)\n            if",
        ("running block",),
        RACES,
    ),
}
NORMALIZE = {
    "what lies far above m": Mutation("t > compute(40) || !is_ordinary", "!is_ordinary", ("foreign",)),
    "an inverse that overflows": Mutation("t > compute(40) || !is_ordinary", "t > compute(40)", ("foreign special",)),
    "what m loses in float32": Mutation("is_finite ? m - f64(shift) : 0.0", "0.0", ("foreign rounded m",)),
    "m beyond float32": Mutation(
        "m > LARGEST ? LARGEST : m < -LARGEST ? -LARGEST : m", "m", ("foreign m beyond float32",)
    ),
    "an infinite m is like others": Mutation(
        "is_finite ? factor / (1.0 + rest) : not_a_number()", "factor / (1.0 + rest)", ("foreign special",)
    ),
    "m of another row": Mutation(
        "m + offset(at.outer, M, index)", "m + offset(at.outer, X, index)", ("foreign",), (WRONG, *OUTSIDE)
    ),
    "rest of another row": Mutation(
        "rest + offset(at.outer, REST, index)", "rest + offset(at.outer, X, index)", ("foreign",), (WRONG, *OUTSIDE)
    ),
    "a segment of another row": Mutation(
        "unit < 0 ? at.rows : first + unit / segments",
        "unit < 0 ? at.rows : unit",
        ("foreign long",),
        (WRONG, *OUTSIDE, "unwritten output"),
    ),
}
TEXTBOOK = {
    "the naive exponential does not overflow": Mutation(
        "x < 89.0f ? x : 89.0f", "x < 87.0f ? x : 87.0f", ("naive above",)
    ),
    "safe without a maximum": Mutation("m = larger(m, x); });", "});", ("safe",)),
    "an online step does not rescale": Mutation("mul(a.d, exponential(sub(a.m, shift)))", "a.d", ("online",)),
    "-inf minus -inf": Mutation(
        "m == compute(-infinity()) ? compute(0) : m;       //", "m;       //", ("online mostly -inf",)
    ),
    "an element beyond the end": Mutation(
        "k < from.length ? to_compute", "k <= from.length ? to_compute", ("naive",), (WRONG, *OUTSIDE)
    ),
    "a result beyond the end": Mutation(
        "if (k < to.length) store", "if (k <= to.length) store", ("naive",), (WRONG, "cross-block race", *OUTSIDE)
    ),
    "later elements are passed over": Mutation(
        "first += ITEMS * THREADS",
        "first += 2 * ITEMS * THREADS",
        ("safe block", "online block"),
        (WRONG, "unwritten output"),
    ),
    "elements of the next threads": Mutation(
        "const i64 k = first + i * THREADS;", "const i64 k = first + i;", ("safe block",), (WRONG,)
    ),
}
MUTATIONS = WEIGHTED | RUNNING | NORMALIZE | TEXTBOOK

EQUIVALENT = {
    "the error of a sum of weights is lost": (
        Mutation("log_sum(total * factor, s.sum.low * factor)", "log_sum(total * factor, 0.0)", ("weighted near 1",)),
        "of sums of weights no more is promised than float64 keeps; a rest far below 1 is kept all the same",
    ),
}
