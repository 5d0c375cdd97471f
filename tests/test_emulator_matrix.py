"""mma and ldmatrix against the fragment formulas of the PTX manual, written again in NumPy.

``i`` counts the 16-bit elements (or, for C and D, the 32-bit ones) that a lane holds; ``group`` is lane / 4, ``member``
lane % 4, as in the manual.
"""

from typing import Any

import emulator
import numpy as np
import numpy.typing as npt
import pytest
from emulator import cupy_for
from small_kernels import SKIP, all_ways, compiled

pytestmark = SKIP
cp = cupy_for("sm_80")

Array = npt.NDArray[Any]
MMA = """
extern "C" __global__ void kernel(float* d, const unsigned* a, const unsigned* b, const float* c) {
    const int lane = threadIdx.x;
    float s[4];
    for (int i = 0; i < 4; ++i) s[i] = c[lane * 4 + i];
    const unsigned *p = a + lane * A_WORDS, *q = b + lane * B_WORDS;
#define SUMS "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
#define OPCODE "mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32 "
#if A_WORDS == 4
    asm(OPCODE "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : SUMS : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
#else
    asm(OPCODE "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" : SUMS : "r"(p[0]), "r"(p[1]), "r"(q[0]));
#endif
    for (int i = 0; i < 4; ++i) d[lane * 4 + i] = s[i];
}
"""


def bits(x: Array, half: str) -> Array:
    if half == "f16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def place_in_a(lane: int, i: int) -> tuple[int, int]:
    group, member = divmod(lane, 4)
    return group + (8 if i % 4 >= 2 else 0), member * 2 + (i & 1) + (8 if i >= 4 else 0)


def place_in_b(lane: int, i: int) -> tuple[int, int]:
    group, member = divmod(lane, 4)
    return member * 2 + (i & 1) + (8 if i >= 2 else 0), group


def place_in_c(lane: int, i: int) -> tuple[int, int]:
    group, member = divmod(lane, 4)
    return group + (8 if i >= 2 else 0), member * 2 + (i & 1)


def fragments(matrix: Array, count: int, place: Any) -> Array:
    return np.array([[matrix[place(lane, i)] for i in range(count)] for lane in range(32)])


@all_ways
@pytest.mark.parametrize(
    ("half", "depth", "architecture"),
    [("f16", 16, "sm_80"), ("bf16", 16, "sm_80"), ("bf16", 8, "sm_80"), ("f16", 8, "sm_75"), ("f16", 16, "sm_90")],
)
def test_mma(half: str, depth: int, architecture: str, way: dict[str, Any]) -> None:
    rng = np.random.default_rng(depth)
    # Few bits, so that every sum is exact in float32 whatever its order.
    a, b, c = (rng.integers(-8, 9, shape) / 4.0 for shape in ((16, depth), (depth, 8), (16, 8)))
    a_words, b_words = depth // 4, depth // 8
    options = (f"-DA_WORDS={a_words}", f"-DB_WORDS={b_words}", f'-DSHAPE="m16n8k{depth}"', f'-DTYPE="{half}"')
    arguments = (
        fragments(bits(a, half), 2 * a_words, place_in_a).view(np.uint32),
        fragments(bits(b, half), 2 * b_words, place_in_b).view(np.uint32),
        fragments(c.astype(np.float32), 4, place_in_c),
    )
    d = cp.empty((32, 4), np.float32)
    with emulator.settings(**way):
        compiled(MMA, architecture=architecture, options=options)((1,), (32,), (d, *map(cp.asarray, arguments)))
    np.testing.assert_array_equal(d.get(), fragments(a @ b + c, 4, place_in_c))


MMA_F64 = """
extern "C" __global__ void kernel(double* d, const double* a, const double* b, const double* c) {
    const int lane = threadIdx.x;
    double s[4];
    for (int i = 0; i < ROWS / 4; ++i) s[i] = c[lane * (ROWS / 4) + i];
#if ROWS == 16
    const double *p = a + lane * 4, *q = b + lane * 2;
#define SUMS "+d"(s[0]), "+d"(s[1]), "+d"(s[2]), "+d"(s[3])
#define SUMMANDS "{%0, %1, %2, %3}"
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 " SUMMANDS ", {%4, %5, %6, %7}, {%8, %9}, " SUMMANDS ";"
        : SUMS : "d"(p[0]), "d"(p[1]), "d"(p[2]), "d"(p[3]), "d"(q[0]), "d"(q[1]));
#else
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(s[0]), "+d"(s[1]) : "d"(a[lane]), "d"(b[lane]));
#endif
    for (int i = 0; i < ROWS / 4; ++i) d[lane * (ROWS / 4) + i] = s[i];
}
"""


@all_ways
@pytest.mark.parametrize(("rows", "depth", "architecture"), [(8, 4, "sm_80"), (8, 4, "sm_90"), (16, 8, "sm_90")])
def test_mma_f64(rows: int, depth: int, architecture: str, way: dict[str, Any]) -> None:
    """Few bits, so that every sum is exact; ``test_cuda_conformance.py`` sees in which order they are rounded."""
    rng = np.random.default_rng(rows)
    a, b, c = (rng.integers(-(2**20), 2**20, shape) / 4.0 for shape in ((rows, depth), (depth, 8), (rows, 8)))
    sets = rows // 8

    def in_a(lane: int, i: int) -> tuple[int, int]:
        return lane // 4 + i % sets * 8, lane % 4 + i // sets * 4

    def in_b(lane: int, i: int) -> tuple[int, int]:
        return lane % 4 + i * 4, lane // 4

    arguments = (
        fragments(a, rows * depth // 32, in_a),
        fragments(b, depth // 4, in_b),
        fragments(c, 2 * sets, place_in_c),
    )
    d = cp.empty((32, 2 * sets), np.float64)
    with emulator.settings(**way):
        kernel = compiled(MMA_F64, architecture=architecture, options=(f"-DROWS={rows}",))
        kernel((1,), (32,), (d, *map(cp.asarray, arguments)))
    np.testing.assert_array_equal(d.get(), fragments(a @ b + c, 2 * sets, place_in_c))


@pytest.mark.parametrize(("rows", "architecture"), [(8, "sm_75"), (16, "sm_80")])
def test_mma_f64_needs_its_architecture(rows: int, architecture: str) -> None:
    with pytest.raises(emulator.CompileException, match=f"m{rows}n8k{rows // 2}_row_col_f64"):
        compiled(MMA_F64, architecture=architecture, options=(f"-DROWS={rows}",))


def test_mma_f64_needs_all_lanes() -> None:
    text = MMA_F64.replace("double s[4];", "double s[4];\n    if (lane == 7) return;")
    with pytest.raises(emulator.KernelFault, match="lanes"):
        compiled(text, options=("-DROWS=8",))((1,), (32,), tuple(cp.zeros(64, np.float64) for _ in range(4)))


LDMATRIX = """
extern "C" __global__ void kernel(unsigned* d, const unsigned* rows, const int* row_of_lane) {
    DS_SHARED(uint4, tile, 64);
    unsigned* words = (unsigned*)tile;
    for (int i = threadIdx.x; i < 256; i += 32) words[i] = rows[i];
    __syncthreads();
    unsigned r[4] = {0, 0, 0, 0};
    const unsigned p = (unsigned)__cvta_generic_to_shared(tile + row_of_lane[threadIdx.x]);
#if COUNT == 1
    asm volatile("ldmatrix.sync.aligned.m8n8.x1" TRANSPOSED ".shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(p) : "memory");
#elif COUNT == 2
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" TRANSPOSED ".shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(p) : "memory");
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANSPOSED ".shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
#endif
    for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = r[i];
}
"""


@all_ways
@pytest.mark.parametrize("transposed", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, transposed: str, way: dict[str, Any]) -> None:
    rng = np.random.default_rng(count)
    rows = rng.integers(0, 1 << 16, (64, 8)).astype(np.uint16)
    row_of_lane = rng.permutation(64)[:32].astype(np.int32)
    kernel = compiled(LDMATRIX, options=(f"-DCOUNT={count}", f'-DTRANSPOSED="{transposed}"'))
    d = cp.empty((32, 4), np.uint32)
    with emulator.settings(**way):
        kernel((1,), (32,), (d, cp.asarray(rows.view(np.uint32)), cp.asarray(row_of_lane)))
    expected = np.zeros((32, 8), np.uint16)
    for number in range(count):
        # Lanes 8 n to 8 n + 7 give the rows of matrix n; lane 4 r + c gets elements 2 c and 2 c + 1 of row r.
        matrix = rows[row_of_lane[8 * number : 8 * number + 8]]
        matrix = matrix.T if transposed else matrix
        expected[:, 2 * number : 2 * number + 2] = matrix.reshape(32, 2)
    np.testing.assert_array_equal(d.get(), expected.view(np.uint32))


def test_ldmatrix_needs_aligned_rows() -> None:
    text = LDMATRIX.replace("tile + row_of_lane[threadIdx.x])", "words + 1)")
    with pytest.raises(emulator.KernelFault, match="misaligned"):
        compiled(text, options=("-DCOUNT=1", '-DTRANSPOSED=""'))(
            (1,), (32,), (cp.empty((32, 4), np.uint32), cp.zeros(256, np.uint32), cp.zeros(32, np.int32))
        )
