"""Planted faults are found, with file and line, in whatever order threads run; correct kernels pass."""

from typing import Any

import emulator
import numpy as np
import pytest
from emulator import KernelFault, cupy_for
from small_kernels import SKIP, all_ways, compiled, line_of

pytestmark = SKIP
cp = cupy_for("sm_80")

HEAD = 'extern "C" __global__ void kernel(float* y, const float* x, int n) {\n    const int i = threadIdx.x;\n'
COPY_ASYNC = """
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"((unsigned)__cvta_generic_to_shared(tile + 4 * i)), "l"(x + 4 * i) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
"""

# name: (kinds of which one must be found, threads, body)
FAULTS = {
    "write-write race": (
        {"race"},
        64,
        "DS_SHARED(float, tile, 4); tile[i & 1] = i; // HERE\n __syncthreads(); y[i] = tile[0];",
    ),
    "missing barrier": (
        {"race", "uninitialised"},
        64,
        "DS_SHARED(float, tile, 64); tile[i] = x[i];\n y[i] = tile[63 - i]; // HERE\n",
    ),
    "missing trailing barrier": (
        {"race"},
        64,
        "DS_SHARED(float, tile, 64); float sum = 0;\nfor (int k = 0; k < 3; ++k) {\n tile[i] = x[i] + k; // HERE\n"
        "__syncthreads();\n sum += tile[63 - i]; // OR HERE\n}\n y[i] = sum;",
    ),
    "missing __syncwarp": (
        {"race", "uninitialised"},
        32,
        "DS_SHARED(float, tile, 32); tile[i] = x[i];\n y[i] = tile[31 - i]; // HERE\n",
    ),
    "uninitialised shared memory": (
        {"uninitialised"},
        64,
        "DS_SHARED(float, tile, 65); tile[i] = 1; __syncthreads();\n y[i] = tile[i + 1]; // HERE\n",
    ),
    "uninitialised global memory": ({"uninitialised"}, 64, "y[i] = y[i] + 1; // HERE\n"),
    "read beyond the end": ({"out of bounds"}, 64, "y[i] = x[i + 1]; // HERE\n"),
    "read before the beginning": ({"out of bounds"}, 64, "y[i] = x[i - 1]; // HERE\n"),
    "write beyond the end": ({"out of bounds"}, 64, "y[i + 1] = 0; // HERE\n"),
    "write far away": ({"out of bounds", "address space"}, 64, "y[i + (1ll << 40)] = 0; // HERE\n"),
    "write through null": ({"out of bounds", "address space"}, 64, "((float*)(n - 64ll))[i] = 0; // HERE\n"),
    "shared memory beyond the end": (
        {"out of bounds"},
        64,
        "DS_SHARED(float, tile, 63); tile[i] = 1; // HERE\n __syncthreads(); y[i] = tile[0];",
    ),
    "misaligned vector": ({"misaligned"}, 4, "float4 v = *(const float4*)(x + 1); // HERE\n y[i] = v.x;"),
    "misaligned store": ({"misaligned"}, 1, "*(float2*)(y + 1) = *(const float2*)x; // HERE\n"),
    "divergent barrier": (
        {"barrier divergence"},
        64,
        "if (i < 40)\n __syncthreads(); // HERE\n else\n __syncthreads(); // OR HERE\n y[i] = 0;",
    ),
    "divergent shuffle": (
        {"warp divergence", "warp mask", "deadlock"},
        32,
        "float v = i;\nif (i < 16)\n v += __shfl_xor_sync(0xffffffffu, v, 1); // HERE\n y[i] = v;",
    ),
    "shuffle outside its mask": (
        {"warp mask", "warp divergence"},
        32,
        "float v = i;\n v += __shfl_xor_sync(0x0000ffffu, v, 1); // HERE\n y[i] = v;",
    ),
    "missing wait": (
        {"async copy"},
        16,
        f"DS_SHARED(float4, tiles, 16); float* tile = (float*)tiles;{COPY_ASYNC}\n y[i] = tile[4 * i]; // HERE\n",
    ),
    "wait for too few": (
        {"async copy"},
        16,
        f"DS_SHARED(float4, tiles, 16); float* tile = (float*)tiles;{COPY_ASYNC}"
        'asm volatile("cp.async.wait_group 1;" ::: "memory");\n y[i] = tile[4 * i]; // HERE\n',
    ),
    "barrier that is short of threads": (
        {"deadlock", "barrier divergence"},
        64,
        'if (i < 32)\n asm volatile("bar.sync 1, 64;" ::: "memory"); // HERE\n y[i] = 0;',
    ),
    "endless loop": (
        {"endless"},
        32,
        'for (;;) asm volatile("st.global.b32 [%0], %1;" :: "l"(y + i), "r"(0) : "memory"); // HERE\n',
    ),
}


@all_ways
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str, way: dict[str, Any]) -> None:
    kinds, threads, body = FAULTS[name]
    text = f"{HEAD}    {body}\n}}\n"
    x, y = cp.asarray(np.zeros(64, np.float32)), cp.empty(64, np.float32)
    with emulator.settings(budget=20_000, **way), pytest.raises(KernelFault) as caught:
        compiled(text)((1,), (threads,), (y, x, np.int32(64)))
    places = {line_of(text)} | ({line_of(text, "// OR HERE")} if "OR HERE" in text else set())
    found = {(fault.kind, fault.place) for fault in caught.value.faults}
    assert found & {(kind, place) for kind in kinds for place in places}, str(caught.value)
    assert "block (0, 0, 0), thread (" in str(caught.value)


CORRECT = {
    "barrier": "DS_SHARED(float, tile, 64); tile[i] = x[i]; __syncthreads(); y[i] = tile[63 - i];",
    "double buffer": "DS_SHARED(float, tile, 64); float sum = 0; for (int k = 0; k < 3; ++k) { tile[i] = x[i]; "
    "__syncthreads(); sum += tile[63 - i]; __syncthreads(); } y[i] = sum / 3;",
    "warp": "DS_SHARED(float, tile, 64); tile[i] = x[i]; __syncwarp(); const float v = tile[i ^ 31]; "
    "__syncwarp(); tile[i] = v; __syncthreads(); y[i] = tile[i ^ 32];",
    "shuffles": "float v = __shfl_sync(0xffffffffu, x[i ^ 32], 31 - i % 32); y[i] = v;",
    "asynchronous copy": f"DS_SHARED(float4, tiles, 16); float* tile = (float*)tiles; if (i < 16) {{{COPY_ASYNC}}}"
    'asm volatile("cp.async.wait_group 0;" ::: "memory"); __syncthreads(); y[i] = tile[63 - i];',
    "vectors": "if (i < 16) { float4 v = ((const float4*)x)[15 - i]; ((float4*)y)[i] = float4{v.w, v.z, v.y, v.x}; }",
    "threads that leave": "if (i >= 32) return; __syncthreads(); y[i] = x[63 - i]; y[63 - i] = x[i];",
}


@all_ways
@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernels_pass(name: str, way: dict[str, Any]) -> None:
    x, y = cp.asarray(np.arange(64, dtype=np.float32)), cp.empty(64, np.float32)
    with emulator.settings(**way):
        compiled(f"{HEAD}    {CORRECT[name]}\n}}\n")((1,), (64,), (y, x, np.int32(64)))
    np.testing.assert_array_equal(y.get(), np.arange(64)[::-1])


BLOCKS = 'extern "C" __global__ void kernel(float* y, float* shared_by_blocks) {\n'


@all_ways
@pytest.mark.parametrize(
    "body",
    [
        "shared_by_blocks[0] = blockIdx.x; // HERE\n y[blockIdx.x] = 0;",
        "shared_by_blocks[blockIdx.x] = 1;\n y[blockIdx.x] = shared_by_blocks[1 - blockIdx.x]; // HERE\n",
    ],
    ids=["write and write", "write and read"],
)
def test_blocks_must_not_share_what_they_write(body: str, way: dict[str, Any]) -> None:
    text = f"{BLOCKS}{body}\n}}\n"
    with emulator.settings(**way), pytest.raises(KernelFault) as caught:
        compiled(text)((2,), (1,), (cp.empty(2, np.float32), cp.zeros(2, np.float32)))
    found = {(fault.kind, fault.place) for fault in caught.value.faults}
    lines = {line_of(text), f"small.cu:{int(line_of(text).split(':')[1]) - 1}"}
    assert any(kind == "cross-block race" and place in lines for kind, place in found), str(caught.value)


@all_ways
def test_outputs_that_nothing_wrote(way: dict[str, Any]) -> None:
    text = f"{HEAD}    if (i != 13) y[i] = x[i];\n}}\n"
    x, y = cp.zeros(64, np.float32), cp.empty(64, np.float32)
    with emulator.settings(**way):
        compiled(text)((1,), (64,), (y, x, np.int32(64)))
    with pytest.raises(KernelFault, match="nothing wrote 1 of the 64 elements"):
        y.get()
    assert y[:13].tolist() == [0] * 13


def test_a_fault_leaves_other_arrays_alone() -> None:
    arrays = [cp.zeros(64, np.float32) for _ in range(3)]
    with pytest.raises(KernelFault):
        compiled(f"{HEAD}    y[i + n] = 1;\n}}\n")((1,), (64,), (arrays[1], arrays[0], np.int32(64)))
    assert all(not array.get().any() for array in arrays)


def test_faults_tell_the_calls_that_led_to_them() -> None:
    text = (
        "__device__ __noinline__ float deep(const float* p) { return p[0]; } // HERE\n"
        "DS_DEVICE float load(const float* p) { return deep(p); }\n"
        'extern "C" __global__ void kernel(float* y, const float* x) { y[0] = load(x + 4); }\n'
    )
    with pytest.raises(KernelFault) as caught:
        compiled(text)((1,), (1,), (cp.empty(1, np.float32), cp.zeros(4, np.float32)))
    fault = caught.value.faults[0]
    assert (fault.kind, fault.place, fault.block, fault.thread) == ("out of bounds", "small.cu:1", (0, 0, 0), (0, 0, 0))


def test_races_can_be_left_out() -> None:
    text = f"{HEAD}    DS_SHARED(float, tile, 4); tile[0] = 1; y[i] = tile[0];\n}}\n"
    x, y = cp.zeros(64, np.float32), cp.empty(64, np.float32)
    with emulator.settings(races=False):
        compiled(text)((1,), (64,), (y, x, np.int32(64)))
    assert y.get().all()


@all_ways
def test_waiting_for_what_never_comes_has_an_end(way: dict[str, Any]) -> None:
    text = f"{HEAD}    while (*(const volatile float*)x == 0) {{}}\n    y[i] = 0;\n}}\n"
    x, y = cp.zeros(64, np.float32), cp.empty(64, np.float32)
    with emulator.settings(budget=20_000, **way), pytest.raises(KernelFault, match="endless"):
        compiled(text)((1,), (32,), (y, x, np.int32(64)))


@all_ways
def test_threads_may_wait_for_each_other_by_volatile_memory(way: dict[str, Any]) -> None:
    text = (
        f"{HEAD}    DS_SHARED(int, flag, 1);\n    if (i == 0) flag[0] = 0;\n    __syncthreads();\n"
        "    if (i == 32) { atomicExch(flag, 1); }\n"
        "    if (i < 32) { while (*(const volatile int*)flag == 0) {} }\n    y[i] = x[i];\n}\n"
    )
    x, y = cp.zeros(64, np.float32), cp.empty(64, np.float32)
    with emulator.settings(races=False, **way):
        compiled(text)((1,), (64,), (y, x, np.int32(64)))
    assert not y.get().any()
