"""Compiling and launching: what CuPy, NVRTC and the driver would refuse, and arguments that do not fit the kernel."""

from typing import Any

import emulator
import numpy as np
import pytest
from emulator import CompileException, CUDADriverError, KernelFault, LaunchRefused, cupy_for
from small_kernels import SKIP, all_ways, compiled

pytestmark = SKIP
cp = cupy_for("sm_80")

ADD = """
struct scales { float by; double unused[3]; int plus; };
extern "C" __global__ void __launch_bounds__(64) kernel(float* y, const float* x, scales s, long long n, bool twice) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = (x[i] * s.by + s.plus) * (twice ? 2 : 1);
}
"""
SCALES = np.dtype([("by", np.float32), ("unused", np.float64, 3), ("plus", np.int32)], align=True)


def scales(by: float, plus: int) -> Any:
    record = np.zeros((), SCALES)
    record["by"], record["plus"] = by, plus
    return record


@all_ways
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_a_kernel_runs(way: dict[str, Any], architecture: str) -> None:
    kernel = compiled(ADD, architecture=architecture)
    x = cp.asarray(np.arange(100, dtype=np.float32))
    y = cp.empty_like(x)
    with emulator.settings(**way):
        kernel((2,), (64,), (y, x, scales(3, 1), np.int64(100), np.bool_(True)))
    np.testing.assert_array_equal(y.get(), (np.arange(100) * 3 + 1) * 2)
    assert emulator.statistics().blocks == 2


def test_arguments_as_cupy_takes_them() -> None:
    x = cp.asarray(np.arange(8, dtype=np.float32))
    y = cp.zeros(8, np.float32)
    compiled(ADD)((1,), (64,), (y.data + 16, x[2:], scales(1, 0)[()], 3, True))
    assert y.tolist() == [0, 0, 0, 0, 4, 6, 8, 0]


@pytest.mark.parametrize(
    ("position", "argument", "complaint"),
    [
        (
            3,
            np.int32(4),
            "argument 3 is a signed integer of 4 bytes .int32., the parameter is a signed integer of 8 bytes",
        ),
        (3, np.float64(4), "argument 3 is a floating-point number of 8 bytes"),
        (3, None, "argument 3 is None"),
        (0, None, "argument 0 is None"),
        (2, np.float32(4), "argument 2 is a floating-point number of 4 bytes"),
        (2, np.zeros((), "f4,f4"), "argument 2 is a struct of 8 bytes"),
        (4, 1, "argument 4 is a signed integer of 8 bytes .int., the parameter is a bool of 1 bytes"),
        (0, np.int64(1), "argument 0 is a signed integer"),
        (0, np.int32(0), "argument 0 is a signed integer of 4 bytes"),
    ],
)
def test_wrong_kinds_of_arguments(position: int, argument: Any, complaint: str) -> None:
    arguments: list[Any] = [cp.zeros(4), cp.zeros(4), scales(1, 0), np.int64(4), np.bool_(True)]
    arguments[position] = argument
    with pytest.raises(KernelFault, match=f"wrong argument kind: kernel: {complaint}"):
        compiled(ADD)((1,), (4,), tuple(arguments))


def test_a_null_pointer_is_an_integer() -> None:
    kernel = compiled('extern "C" __global__ void kernel(const float* x, int* y) { *y = x == nullptr ? 7 : 8; }')
    for null in (0, np.uint64(0), np.int64(0)):
        y = cp.zeros(1, np.int32)
        kernel((1,), (1,), (null, y))
        assert y.tolist() == [7]


def test_a_python_integer_is_no_int32() -> None:
    kernel = compiled('extern "C" __global__ void kernel(int n) {}')
    kernel((1,), (1,), (np.int32(4),))
    with pytest.raises(KernelFault, match=r"8 bytes \(int\), the parameter is a signed integer of 4 bytes"):
        kernel((1,), (1,), (4,))


def test_other_wrong_arguments() -> None:
    kernel = compiled('extern "C" __global__ void kernel(const float* x) {}')
    with pytest.raises(KernelFault, match="argument count: kernel: 2 arguments for 1 parameters"):
        kernel((1,), (1,), (cp.zeros(4), np.int32(4)))
    with pytest.raises(TypeError, match="an array of the host"):
        kernel((1,), (1,), (np.zeros(4),))
    with pytest.raises(TypeError, match="Unsupported type"):
        kernel((1,), (1,), ("x",))
    with pytest.raises(TypeError, match="must be a tuple"):
        kernel((1,), (1,), cp.zeros(4))
    with pytest.raises(TypeError, match="one to three lengths"):
        kernel(1, (1,), (cp.zeros(4),))
    with cp.cuda.Device(1):
        other = cp.zeros(4)
    with pytest.raises(KernelFault, match="wrong device: kernel: argument 0 lies on device 1, the current device is 0"):
        kernel((1,), (1,), (other,))
    with other.device:
        kernel((1,), (1,), (other,))


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((0,), (1,)),
        ((1, 65536), (1,)),
        ((1, 1, 65536), (1,)),
        ((2**31,), (1,)),
        ((2**40,), (1,)),
        ((-1,), (1,)),
        ((1,), (1025,)),
        ((1,), (32, 33)),
        ((1,), (1, 1, 65)),
        ((1,), (0,)),
    ],
)
def test_grids_and_blocks_beyond_the_limits(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    kernel = compiled('extern "C" __global__ void kernel() {}')
    with pytest.raises(LaunchRefused):
        kernel(grid, block, ())


def test_launch_bounds() -> None:
    kernel = compiled(
        "template <int n> struct twice { enum { of = 2 * n }; };\n"
        'extern "C" __global__ void __launch_bounds__(twice<N>::of, 2) kernel() {}',
        options=("-DN=32",),
    )
    assert kernel.max_threads_per_block == 64
    kernel((1,), (64,), ())
    with pytest.raises(LaunchRefused):
        kernel((1,), (65,), ())


SHARED = """
extern "C" __global__ void kernel(unsigned char* y, int n) {
    DS_DYNAMIC_SHARED(bytes);
    for (int i = threadIdx.x; i < n; i += blockDim.x) bytes[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) y[0] = bytes[n - 1];
}
"""


@pytest.mark.parametrize(("architecture", "limit"), [("sm_75", 65536), ("sm_80", 166912), ("sm_90", 232448)])
def test_limits_of_shared_memory(architecture: str, limit: int) -> None:
    kernel, y = compiled(SHARED, architecture=architecture), cp.empty(1, np.uint8)
    kernel((1,), (32,), (y, np.int32(100)), shared_mem=100)
    assert y.tolist() == [99]
    assert kernel.max_dynamic_shared_size_bytes == 49152
    with pytest.raises(CUDADriverError):
        kernel((1,), (32,), (y, np.int32(1)), shared_mem=49153)
    kernel.max_dynamic_shared_size_bytes = limit
    kernel((1,), (32,), (y, np.int32(limit)), shared_mem=limit)
    with pytest.raises(CUDADriverError, match="the limit is"):
        kernel.max_dynamic_shared_size_bytes = limit + 1
    with pytest.raises(KernelFault):
        kernel((1,), (32,), (y, np.int32(101)), shared_mem=100)


def test_static_shared_memory_has_a_limit() -> None:
    kernel = compiled('extern "C" __global__ void kernel() { DS_SHARED(float, tile, 12289); tile[0] = 0; }')
    with pytest.raises(KernelFault):
        kernel((1,), (1,), ())


CP_ASYNC = """extern "C" __global__ void kernel() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}"""


def test_instructions_of_later_architectures_do_not_compile() -> None:
    compiled(CP_ASYNC, architecture="sm_80")
    with pytest.raises(CompileException, match=r"small\.cu:2: .*ptx_cp_async_commit_group"):
        compiled(CP_ASYNC, architecture="sm_75")


def test_unknown_instructions_do_not_compile() -> None:
    with pytest.raises(CompileException, match=r"small\.cu:1: this architecture, or the emulator, has no instruction"):
        compiled('extern "C" __global__ void kernel() { int a; asm("frobnicate.b32 %0, %0;" : "+r"(a)); }')


def test_operands_of_the_wrong_width_do_not_compile() -> None:
    with pytest.raises(CompileException, match=r"small\.cu:1"):
        compiled(
            'extern "C" __global__ void kernel(double x) { float a; asm("add.rn.f32 %0, %1, %1;" : "=f"(a) : "f"(x)); }'
        )


def test_errors_of_the_language_name_file_and_line() -> None:
    with pytest.raises(CompileException, match=r"small\.cu:2:.*nonesuch"):
        compiled('extern "C" __global__ void kernel() {\n    nonesuch();\n}')
    with pytest.raises(CompileException, match=r"small\.cu:1: .*memory"):
        compiled('extern "C" __global__ void kernel() { asm volatile("bar.sync 0;"); }')


def test_architectures_see_their_number() -> None:
    text = 'extern "C" __global__ void kernel(int* y) { *y = __CUDA_ARCH__; }'
    for architecture, number in (("sm_75", 750), ("sm_80", 800), ("sm_90", 900)):
        y = cp.empty(1, np.int32)
        compiled(text, architecture=architecture)((1,), (1,), (y,))
        assert y.tolist() == [number]
    with pytest.raises(ValueError, match="the emulator stands for"):
        cupy_for("sm_60")


def test_modules_as_cupy_makes_them() -> None:
    text = 'extern "C" __global__ void kernel(int* y) { *y = VALUE; }'
    options = ("--std=c++17", "--fmad=false", "-DVALUE=7", "-lineinfo", "-Xptxas=-v")
    module, y = cp.RawModule(code=text, options=options), cp.empty(1, np.int32)
    module.compile()
    module.get_function("kernel")((1,), (1,), (y,), shared_mem=0)
    assert y.tolist() == [7]
    with pytest.raises(CUDADriverError, match="named symbol not found: other"):
        module.get_function("other")
    with pytest.raises(CompileException, match="option '--nonesuch'"):
        cp.RawModule(code=text, options=("--nonesuch",)).compile()
    with pytest.raises(TypeError, match="options must be a tuple"):
        cp.RawModule(code=text, options=["-DVALUE=1"])
    assert cp.cuda.compiler.CompileException is CompileException


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="schedule must be one of"), emulator.settings(schedule="sideways"):
        pass
    with pytest.raises(TypeError), emulator.settings(nonesuch=1):
        pass
    with emulator.settings(seed=3), emulator.settings(preempt=True) as inner:
        assert (inner.seed, inner.preempt) == (3, True)
    assert emulator.current() == emulator.Settings()
