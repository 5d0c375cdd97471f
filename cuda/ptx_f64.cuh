// ptx_f64.cuh - products of float64 matrices on tensor cores, from sm_80 on.
//
// Apart from ptx.cuh, so that sources without them are one text from sm_80 on.
#pragma once
#include "types.cuh"

namespace ds {

// d += a b of 16 x 8 and 8 x 8 in float64. With g = lane / 4 and t = lane % 4, a has rows g, g + 8, g, g + 8 and columns t, t, t + 4, t + 4; b rows t
// and t + 4 of column g; d rows g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1.
#if __CUDA_ARCH__ >= 900
DS_DEVICE void multiply_f64(f64 (&d)[4], const f64 (&a)[4], f64 b0, f64 b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3]) : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
}
#elif __CUDA_ARCH__ >= 800
DS_DEVICE void multiply_f64(f64 (&d)[4], const f64 (&a)[4], f64 b0, f64 b1) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d[0]), "+d"(d[1]) : "d"(a[0]), "d"(b0));
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d[2]), "+d"(d[3]) : "d"(a[1]), "d"(b0));
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d[0]), "+d"(d[1]) : "d"(a[2]), "d"(b1));
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(d[2]), "+d"(d[3]) : "d"(a[3]), "d"(b1));
}
#endif

}  // namespace ds
