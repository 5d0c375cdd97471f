"""Inline PTX becomes calls; what breaks its rules is an error with file and line."""

import pytest
from emulator import TranslationError, translate
from emulator.translate import Kernel


def call(statement: str) -> str:
    return translate(statement).text


def test_operands_go_in_the_order_of_the_template() -> None:
    text = call('asm("sub.rn.f32 %0, %2, %1;" : "=f"(d) : "f"(a), "f"(b));')
    assert text == "ptx_sub_rn_f32(__builtin_LINE(), emulator::out_f(d), emulator::in_f(b), emulator::in_f(a));"


def test_an_operand_that_is_read_and_written_appears_twice() -> None:
    text = call('asm("fma.rn.f64 %0, %1, %2, %0;" : "+d"(sum) : "d"(a), "d"(b));')
    assert "out_d(sum), emulator::in_d(a), emulator::in_d(b), emulator::in_d(sum)" in text


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            'asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2+8];" : "=r"(x), "=r"(y) : "l"(p): "memory");',
            "ptx_ld_global_L1_no_allocate_v2_b32(__builtin_LINE(), emulator::out_r(x), emulator::out_r(y), "
            "emulator::in_l(p) + 8);",
        ),
        (
            'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");',
            "ptx_cp_async_cg_shared_global(__builtin_LINE(), emulator::in_r(to), emulator::in_l(from), 16);",
        ),
        (
            'asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");',
            "ptx_cp_async_wait_group(__builtin_LINE(), emulator::in_n(N));",
        ),
        ('asm volatile("bar.sync 1, 64;" ::: "memory");', "ptx_bar_sync(__builtin_LINE(), 1, 64);"),
        (
            'asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(ns::f(a, b)), "r"(t[i ? 1 : 0]), "r"(c));',
            "ptx_lop3_b32(__builtin_LINE(), emulator::out_r(d), emulator::in_r(ns::f(a, b)), "
            "emulator::in_r(t[i ? 1 : 0]), emulator::in_r(c), 0xea);",
        ),
        (
            'asm("add.rn" ".f32 %0, %1, %2;" : "=" "f"(d) : "f"(a), "f"(b));',
            "ptx_add_rn_f32(__builtin_LINE(), emulator::out_f(d), emulator::in_f(a), emulator::in_f(b));",
        ),
    ],
)
def test_forms_of_statements(statement: str, expected: str) -> None:
    assert call(statement) == expected


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ('asm("add.rn.f32 %0, %0, %1;" : "=f"(d) : "f"(a));', '%0 is read, but its constraint "="'),
        ('asm("add.rn.f32 %0, %1, %1;" : "=f"(d) : "f"(a), "f"(b));', "does not use %2"),
        ('asm("add.rn.f32 %1, %0, %2;" : "+f"(d) : "f"(a), "f"(b));', "%1 is written by the instruction but is an in"),
        ('asm("add.rn.f32 %0, %1, %3;" : "=f"(d) : "f"(a), "f"(b));', "%3 has no operand"),
        ('asm volatile("st.global.b32 [%0], %1;" : : "l"(p), "r"(x));', 'needs a "memory" clobber'),
        ('asm("st.global.b32 [%0], %1;" : : "l"(p), "r"(x) : "memory");', "needs volatile"),
        ('asm("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");', "needs volatile"),
        ('asm("shfl.sync.bfly.b32 %0, %1, 1, 31, -1;" : "=r"(d) : "r"(a));', "needs volatile"),
        ('asm volatile("cp.async.commit_group;");', 'needs a "memory" clobber'),
        ('asm volatile("st.global.b32 [%0], %1;" : "+r"(x) : "l"(p) : "memory");', "%0 is an output, but"),
        ('asm("add.rn.f32 %0, %1, %2;" : "=x"(d) : "f"(a), "f"(b));', 'with the constraint "=x"'),
        ('asm("add.rn.f32 %0, %1, %2;" : "f"(d) : "f"(a), "f"(b));', "an output with the constraint"),
        ('asm("add.rn.f32 %0, %1, %2" : "=f"(d) : "f"(a), "f"(b));', 'is not one PTX instruction that ends in ";"'),
        ('asm("mov.b32 %0, %1; mov.b32 %0, %1;" : "=r"(d) : "r"(a));', "is not one PTX instruction"),
        ('asm("mov.b32 %0, %laneid;" : "=r"(d));', "is neither %N nor a number"),
        ('asm("mov.b32 %0, %1;" : "=r"(d) : a);', 'is not "constraint"(expression)'),
    ],
)
def test_broken_rules_are_errors_with_file_and_line(statement: str, complaint: str) -> None:
    with pytest.raises(TranslationError) as caught:
        translate(f'# 12 "kernels.cuh"\nint before;\n{statement}\n')
    assert str(caught.value).startswith("kernels.cuh:13: ")
    assert complaint in str(caught.value)


def test_all_broken_statements_are_told_at_once() -> None:
    with pytest.raises(TranslationError) as caught:
        translate('asm("a.b %0;" : "=f"(d) : "f"(a));\n# 7 "b.cuh"\nasm volatile("fence.sc.cta;");')
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == ["source:1", "b.cuh:7"]


def test_reading_constants_needs_no_clobber() -> None:
    assert call('asm("ld.global.nc.b32 %0, [%1];" : "=r"(x) : "l"(p));').startswith("ptx_ld_global_nc_b32(")


def test_strings_and_comments_are_left_alone() -> None:
    text = 'const char* a = "asm(x)"; // asm("y")\n/* asm("z") __global__ */ char b = \'"\'; int plasma(int);'
    assert translate(text).text == text


def test_lines_keep_their_numbers() -> None:
    text = '# 1 "a.cu"\nasm("mov.b32 %0,\\n"\n    " %1;"\n    : "=r"(d) : "r"(a)); int x;\nint y;\n'
    lines = translate(text).text.splitlines()
    assert lines[2:] == ['# 3 "a.cu"', "; int x;", "int y;"]


@pytest.mark.parametrize(
    "head",
    [
        'extern "C" __global__ void __launch_bounds__(A<1, 2>::n, 2) name(',
        'extern "C" __global__ __launch_bounds__(A<1, 2>::n, 2) void name(',
    ],
)
def test_kernels_are_found_with_their_bounds(head: str) -> None:
    translation = translate(f"{head}int* p) {{ }}")
    assert translation.text == 'extern "C" void name(int* p) { }'
    assert translation.kernels == (Kernel("name", "A<1, 2>::n, 2"),)


def test_kernels_without_bounds() -> None:
    assert translate('extern "C" __global__ void name (int n) {}').kernels == (Kernel("name", ""),)


def test_a_kernel_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(TranslationError, match=r"x\.cu:3: kernels begin"):
        translate('# 3 "x.cu"\n__global__ auto name() -> void {}')
