// ptx.cuh - every PTX instruction that the kernels name, one function each; those of ptx_f64.cuh are apart, as their text differs from sm_90 on.
//
// float32 arithmetic goes through these functions: CuPy compiles with -ftz=true, which flushes subnormal numbers in plain expressions but not in
// instructions that are written out without .ftz. They cost the same.
#pragma once
#include "types.cuh"

namespace ds {

// ------------------------------------------------------------------ float32, subnormal numbers kept
DS_DEVICE f32 add(f32 a, f32 b) { f32 r; asm("add.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DS_DEVICE f32 sub(f32 a, f32 b) { f32 r; asm("sub.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DS_DEVICE f32 mul(f32 a, f32 b) { f32 r; asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DS_DEVICE f32 fused(f32 a, f32 b, f32 c) { f32 r; asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c)); return r; }
DS_DEVICE f32 larger(f32 a, f32 b) { f32 r; asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }     // of a number and NaN, the number
DS_DEVICE f32 divide(f32 a, f32 b) { f32 r; asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DS_DEVICE f32 reciprocal(f32 a) { f32 r; asm("rcp.rn.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
// 2^a within 2 units; results below 2^-126 are 0
DS_DEVICE f32 exp2_approximate(f32 a) { f32 r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }

// ------------------------------------------------------------------ float64: plain expressions flush nothing
DS_DEVICE f64 add(f64 a, f64 b) { return a + b; }
DS_DEVICE f64 sub(f64 a, f64 b) { return a - b; }
DS_DEVICE f64 mul(f64 a, f64 b) { return a * b; }
DS_DEVICE f64 fused(f64 a, f64 b, f64 c) { return fma(a, b, c); }
DS_DEVICE f64 divide(f64 a, f64 b) { return a / b; }
DS_DEVICE f64 larger(f64 a, f64 b) { f64 r; asm("max.f64 %0, %1, %2;" : "=d"(r) : "d"(a), "d"(b)); return r; }
DS_DEVICE f64 reciprocal(f64 a) { f64 r; asm("rcp.rn.f64 %0, %1;" : "=d"(r) : "d"(a)); return r; }

// ------------------------------------------------------------------ global memory, by size
// Written out, because the compiler does not always see that an address is global. Data is passed once: it need not stay in the first cache.
template <int size> struct words;
template <> struct words<1> { u16 at; };
template <> struct words<2> { u16 at; };
template <> struct words<4> { u32 at; };
template <> struct words<8> { u32 at[2]; };
template <> struct words<16> { u32 at[4]; };

DS_DEVICE void load_words(words<1>& w, const void* p) { asm volatile("ld.global.u8 %0, [%1];" : "=h"(w.at) : "l"(p) : "memory"); }
DS_DEVICE void load_words(words<2>& w, const void* p) { asm volatile("ld.global.b16 %0, [%1];" : "=h"(w.at) : "l"(p) : "memory"); }
DS_DEVICE void load_words(words<4>& w, const void* p) { asm volatile("ld.global.b32 %0, [%1];" : "=r"(w.at) : "l"(p) : "memory"); }
DS_DEVICE void load_words(words<8>& w, const void* p) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(w.at[0]), "=r"(w.at[1]) : "l"(p) : "memory");
}
DS_DEVICE void load_words(words<16>& w, const void* p) {
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.at[0]), "=r"(w.at[1]), "=r"(w.at[2]), "=r"(w.at[3]) : "l"(p) : "memory");
}
DS_DEVICE void store_words(void* p, words<1> w) { asm volatile("st.global.u8 [%0], %1;" : : "l"(p), "h"(w.at) : "memory"); }
DS_DEVICE void store_words(void* p, words<2> w) { asm volatile("st.global.b16 [%0], %1;" : : "l"(p), "h"(w.at) : "memory"); }
DS_DEVICE void store_words(void* p, words<4> w) { asm volatile("st.global.b32 [%0], %1;" : : "l"(p), "r"(w.at) : "memory"); }
DS_DEVICE void store_words(void* p, words<8> w) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" : : "l"(p), "r"(w.at[0]), "r"(w.at[1]) : "memory");
}
DS_DEVICE void store_words(void* p, words<16> w) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" : : "l"(p), "r"(w.at[0]), "r"(w.at[1]), "r"(w.at[2]), "r"(w.at[3]) : "memory");
}

// ------------------------------------------------------------------ copies to shared memory that go on beside the thread, from sm_80 on
#if __CUDA_ARCH__ >= 800
// 16 bytes; of them `bytes` come from memory, the others are 0.
DS_DEVICE void copy_async(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(u32(__cvta_generic_to_shared(to))), "l"(from), "r"(bytes) : "memory");
}
// Ends a group of copies of this thread.
DS_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// Until all but the last `groups` of them are there, for this thread.
template <int groups> DS_DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" : : "n"(groups) : "memory"); }
#endif

// ------------------------------------------------------------------ matrices over the lanes of a warp, see tensor.cuh
// Four matrices of 8 rows of 16 bytes. Lane 8 i + r has the shared address of row r of matrix i; every lane gets two neighbours of each.
DS_DEVICE void load_matrices(u32 (&a)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(row) : "memory");
}
// The same, transposed: neighbours are of one column.
DS_DEVICE void load_transposed(u32 (&a)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(row) : "memory");
}
// d += a b of 16 x 16 and 16 x 8.
#if __CUDA_ARCH__ >= 800
DS_DEVICE void multiply_f16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DS_DEVICE void multiply_bf16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
DS_DEVICE void multiply_f16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
}
#endif
// ------------------------------------------------------------------ conversions, rounding to nearest
DS_DEVICE f64 widen(f32 a) { f64 r; asm("cvt.f64.f32 %0, %1;" : "=d"(r) : "f"(a)); return r; }
DS_DEVICE f32 narrow(f64 a) { f32 r; asm("cvt.rn.f32.f64 %0, %1;" : "=f"(r) : "d"(a)); return r; }
DS_DEVICE f32 narrow_to_zero(f64 a) { f32 r; asm("cvt.rz.f32.f64 %0, %1;" : "=f"(r) : "d"(a)); return r; }
DS_DEVICE bool is_nan(f32 x) { return (__float_as_uint(x) & 0x7fffffffu) > 0x7f800000u; }
DS_DEVICE bool is_nan(f64 x) { return x != x; }
DS_DEVICE f32 from_f16(u16 bits) { f32 r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits)); return r; }
DS_DEVICE u16 to_f16(f32 a) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(a)); return r; }
DS_DEVICE u16 to_f16(f64 a) { u16 r; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(r) : "d"(a)); return r; }
#if __CUDA_ARCH__ >= 800
// Two neighbours, the first in the low bits.
DS_DEVICE u32 pair_to_f16(f32 a, f32 b) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a)); return r; }
DS_DEVICE u32 pair_to_bf16(f32 a, f32 b) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a)); return r; }
DS_DEVICE u16 to_bf16(f32 a) { u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(a)); return r; }
#else
DS_DEVICE u16 to_bf16(f32 a) {
    const u32 bits = __float_as_uint(a);
    return (bits & 0x7fffffffu) > 0x7f800000u ? u16(0x7fff) : u16((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
DS_DEVICE u32 pair_to_f16(f32 a, f32 b) { return u32(to_f16(b)) << 16 | to_f16(a); }
DS_DEVICE u32 pair_to_bf16(f32 a, f32 b) { return u32(to_bf16(b)) << 16 | to_bf16(a); }
#endif

}  // namespace ds
