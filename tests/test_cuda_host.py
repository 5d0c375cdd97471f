"""The host side of the CUDA kernels: their variants, and the layouts that tell them where elements lie."""

import itertools
import re
from collections import Counter
from typing import Any

import devices
import emulator
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualsoft.backends import cuda_layout, cuda_rows, nvrtc
from dualsoft.backends.cuda_layout import MAX_RANK, OPERANDS, Layout, layout_of
from dualsoft.backends.cuda_rows import Shape, shape_for
from dualsoft.backends.nvrtc import Variant
from dualsoft.dtypes import F64, I8

needs_emulator = pytest.mark.skipif(emulator.why_not() is not None, reason=str(emulator.why_not()))
NAME = "cuda-emulated:sm_80"


@pytest.fixture
def cp() -> Any:
    return devices.module(NAME)


# ------------------------------------------------------------------ variants
def test_options_of_a_variant() -> None:
    variant = Variant("a.cu", "rows", (("DS_X", "f16"), ("DS_GROUP", 8)))
    assert variant.options() == ("--std=c++17", "--fmad=false", "-DDS_X=f16", "-DDS_GROUP=8")
    assert variant.name == "rows[x=f16, group=8]"
    assert Variant("probe.cu", "probe", ()).options() == nvrtc.OPTIONS


def test_variants_are_distinct_and_fit_what_the_kernels_demand() -> None:
    found = list(cuda_rows.variants())
    assert len(found) == len(set(found)) == len({variant.name for variant in found})
    for variant in found:
        macros = dict(variant.defines)
        assert ("DS_LOG" in macros) == (variant.kernel in ("softmax_rows", "softmax_kept", "normalize_rows"))
        assert variant.is_dynamic == (variant.kernel == "softmax_kept")
        if variant.kernel == "join_parts":
            continue
        items = macros["DS_CHUNK"] * macros["DS_SLOTS"]
        assert 1 <= items <= 32, f"{variant.name}: a bit of `visible` for each element"
        assert macros["DS_CHUNK"] & (macros["DS_CHUNK"] - 1) == 0
        group = macros["DS_GROUP"]
        assert group in (2, 4, 8, 16, 32) or (group % 32 == 0 and group <= 1024), variant.name


@pytest.mark.parametrize("width", ["narrow", "wide"])
def test_shapes_at_their_boundaries(width: str) -> None:
    shapes = cuda_rows.SHAPES[width]
    held = [shape.group * shape.items for shape in shapes]
    assert held == sorted(set(held)), "longer rows get larger shapes"
    for below, most, shape in zip([0, *held], held, shapes, strict=False):
        for n in (below + 1, most - 1, most):
            assert shape_for(n, width) == shape
    assert shape_for(0, width) == shapes[0]
    for n in (held[-1] + 1, 10 * held[-1], 2**40):
        assert shape_for(n, width) is None


def test_shape_is_what_the_kernel_is_told() -> None:
    shape = Shape(32, 16)
    macros = dict(cuda_rows._softmax_variant(shape, I8, F64, False, True).defines)
    assert (macros["DS_GROUP"], macros["DS_CHUNK"] * macros["DS_SLOTS"]) == (32, 16)
    assert (macros["DS_X"], macros["DS_Y"], macros["DS_LOG"], macros["DS_DIRECT"]) == ("i8", "f64", 1, 0)


# ------------------------------------------------------------------ layouts, against every element's own address
def offset(struct: np.ndarray[Any, Any], operand: int, index: int) -> int:
    """What ``offset`` of ``cuda/layout.cuh`` computes."""
    bytes_ = 0
    for k in reversed(range(int(struct["rank"]))):
        index, digit = divmod(index, int(struct["length"][k]))
        bytes_ += digit * int(struct["stride"][operand, k])
    return bytes_


def rows_of_layout(at: Layout) -> Counter[tuple[tuple[int, ...], ...]]:
    """Each row as the sorted offsets of its elements, an offset for each operand."""
    found: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for row in range(at.rows):
        places = []
        for i in range(at.n):
            outer, inner = at.struct["outer"], at.struct["inner"]
            places.append(tuple(offset(outer, k, row) + offset(inner, k, i) for k in range(len(OPERANDS))))
        found[tuple(sorted(places))] += 1
    return found


def rows_of_array(shape: Any, axes: Any, strides: Any) -> Counter[tuple[tuple[int, ...], ...]]:
    kept = [k for k in range(len(shape)) if k not in axes]
    found: Counter[tuple[tuple[int, ...], ...]] = Counter()
    for outer in itertools.product(*(range(shape[k]) for k in kept)):
        places = []
        for inner in itertools.product(*(range(shape[k]) for k in axes)):
            index = dict(zip(kept, outer, strict=True)) | dict(zip(axes, inner, strict=True))
            places.append(tuple(0 if s is None else sum(index[k] * s[k] for k in range(len(shape))) for s in strides))
        found[tuple(sorted(places))] += 1
    return found


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...] | None, ...]]:
    """Shapes, reduced axes and strides: dense in some order of axes, with steps, turned round, broadcast, or odd."""
    rank = draw(st.integers(0, 5))
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 2, 3, 4]), min_size=rank, max_size=rank)))
    axes = tuple(k for k in range(rank) if draw(st.booleans()))
    dense_order = draw(st.permutations(range(rank)))

    def strides(size: int) -> tuple[int, ...]:
        order = dense_order if draw(st.booleans()) else draw(st.permutations(range(rank)))
        step, found = size, [0] * rank
        for k in reversed(order):
            found[k], step = step, step * shape[k]
        for k in range(rank):
            how = draw(st.sampled_from(["dense", "dense", "dense", "turned", "broadcast", "odd"]))
            found[k] = {"turned": -found[k], "broadcast": 0, "odd": draw(st.integers(-40, 40))}.get(how, found[k])
            found[k] = 0 if shape[k] == 1 else found[k]
        return tuple(found)

    others = [strides(size) if draw(st.booleans()) else None for size in (4, 1, 8, 8, 4)]
    return shape, axes, (strides(draw(st.sampled_from([1, 2, 4, 8]))), *others)


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_layouts_reach_every_element_once(case: Any) -> None:
    shape, axes, strides = case
    at = layout_of.__wrapped__(shape, axes, strides)
    assert at.rows * at.n == int(np.prod(shape, dtype=np.int64))
    assert (at.struct["rows"], at.struct["n"]) == (at.rows, at.n)
    assert rows_of_layout(at) == rows_of_array(shape, axes, strides)


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_steps_and_alignment_hold_for_every_row(case: Any) -> None:
    shape, axes, strides = case
    at = layout_of.__wrapped__(shape, axes, strides)
    for k in range(len(OPERANDS)):
        starts = [offset(at.struct["outer"], k, row) for row in range(at.rows)]
        assert all(start % at.alignment[k] == 0 for start in starts)
        assert at.alignment[k] >= 1
        if at.steps[k]:
            row = [offset(at.struct["inner"], k, i) for i in range(at.n)]
            assert row == [i * at.steps[k] for i in range(at.n)]


def dense(shape: tuple[int, ...], size: int = 4) -> tuple[int, ...]:
    return np.empty(shape, f"V{size}").strides


def test_dense_axes_become_one_in_any_order() -> None:
    shape = (3, 5, 4, 6)
    x = dense(shape)
    for axes in [(3,), (2, 3), (1, 2, 3), (0, 1, 2, 3)]:
        at = layout_of(shape, axes, (x, x, None, None, None, None))
        assert at.struct["inner"]["rank"] == at.struct["outer"]["rank"] == 1
        assert at.steps[:2] == (4, 4)
    # A permutation of the axes leaves one axis, in the order of memory.
    moved = (2, 0, 3, 1)
    turned = tuple(x[k] for k in moved), tuple(shape[k] for k in moved)
    at = layout_of(turned[1], (0, 1, 2, 3), (turned[0], turned[0], None, None, None, None))
    assert (at.rows, at.n, at.steps[0]) == (1, 360, 4)
    # What one operand has and another lacks stays apart.
    at = layout_of((8, 6), (0, 1), (dense((8, 6)), (1, 8), None, None, None, None))
    assert at.struct["inner"]["rank"] == 2
    assert at.steps == (0,) * len(OPERANDS)


def test_the_smallest_steps_of_the_input_come_last() -> None:
    at = layout_of((4, 3, 5), (0, 1, 2), ((4, 1000, -100), None, None, None, None, None))
    inner = at.struct["inner"]
    assert list(inner["stride"][0][: inner["rank"]]) == [1000, -100, 4]
    assert list(inner["length"][: inner["rank"]]) == [3, 5, 4]


def test_broadcast_and_turned_axes() -> None:
    at = layout_of((4, 3, 5), (2,), ((0, 0, 4), (60, 20, 4), None, None, None, None))
    assert (at.rows, at.n, at.struct["outer"]["rank"]) == (12, 5, 1), "the output joins the two, and so does stride 0"
    at = layout_of((4, 3, 5), (2,), ((0, 20, 4), (60, 20, 4), None, None, None, None))
    assert at.struct["outer"]["rank"] == 2
    at = layout_of((4, 6), (0, 1), ((-24, -4), (24, 4), None, None, None, None))
    assert (at.struct["inner"]["rank"], at.steps[:2]) == (1, (-4, 4))


def test_no_axes_and_axes_of_length_1() -> None:
    for shape, axes in [((), ()), ((1,), (0,)), ((1, 1), (1,))]:
        at = layout_of(shape, axes, ((0,) * len(shape), None, None, None, None, None))
        assert (at.rows, at.n) == (1, 1)
    assert layout_of((3, 0), (1,), ((0, 4), None, None, None, None, None)).n == 0


def test_more_axes_than_a_kernel_takes_are_refused() -> None:
    apart = tuple(3**k for k in range(MAX_RANK + 1))
    for axes in (tuple(range(MAX_RANK + 1)), ()):
        with pytest.raises(ValueError, match=f"{MAX_RANK + 1} axes.*take {MAX_RANK}.*contiguous copy"):
            layout_of((2,) * (MAX_RANK + 1), axes, (apart, None, None, None, None, None))
        fits = tuple(axis for axis in axes if axis < MAX_RANK)
        at = layout_of((2,) * MAX_RANK, fits, (apart[:MAX_RANK], None, None, None, None, None))
        assert at.rows * at.n == 2**MAX_RANK
    text = (nvrtc.folder() / "layout.cuh").read_text()
    assert f"MAX_RANK = {MAX_RANK};" in text
    operands = re.search(r"enum operand \{ (.*), OPERANDS, (.*) \}", text)
    assert operands is not None
    assert operands[1].lower().split(", ") == list(OPERANDS)
    assert operands[2] == "M = WEIGHT, REST = SIGN", "the places that the host gives m and d - 1"
    assert cuda_layout._LAYOUT.itemsize == 8 * (2 + 2 * (1 + MAX_RANK * (1 + len(OPERANDS))))
