// ptx_warp.hpp - instructions of whole warps and blocks: barriers, reductions, matrix fragments.
#pragma once

EMULATOR_PTX ptx_bar_sync(int line, int id) { emulator_barrier(id, 0, line); }
EMULATOR_PTX ptx_bar_sync(int line, int id, int count) { emulator_barrier(id, count, line); }
EMULATOR_PTX ptx_barrier_sync(int line, int id) { emulator_barrier(id, 0, line); }
EMULATOR_PTX ptx_barrier_sync(int line, int id, int count) { emulator_barrier(id, count, line); }
EMULATOR_PTX ptx_bar_arrive(int line, int id, int count) { emulator_barrier_arrive(id, count, line); }
EMULATOR_PTX ptx_bar_warp_sync(int line, unsigned mask) { emulator_sync_warp(mask, line); }

#if __CUDA_ARCH__ >= 800
#define EMULATOR_REDUX(opcode, operation, number)                                                         \
    EMULATOR_PTX ptx_redux_sync_##opcode(int line, unsigned& d, unsigned a, unsigned mask) {              \
        d = emulator_reduce(operation, number, mask, a, line);                                            \
    }
EMULATOR_REDUX(add_s32, EMULATOR_ADD, EMULATOR_S32)
EMULATOR_REDUX(add_u32, EMULATOR_ADD, EMULATOR_U32)
EMULATOR_REDUX(min_s32, EMULATOR_MIN, EMULATOR_S32)
EMULATOR_REDUX(min_u32, EMULATOR_MIN, EMULATOR_U32)
EMULATOR_REDUX(max_s32, EMULATOR_MAX, EMULATOR_S32)
EMULATOR_REDUX(max_u32, EMULATOR_MAX, EMULATOR_U32)
EMULATOR_REDUX(and_b32, EMULATOR_AND, EMULATOR_U32)
EMULATOR_REDUX(or_b32, EMULATOR_OR, EMULATOR_U32)
EMULATOR_REDUX(xor_b32, EMULATOR_XOR, EMULATOR_U32)
#endif

#define EMULATOR_LDMATRIX(suffix, transposed)                                                                                  \
    EMULATOR_PTX ptx_ldmatrix_sync_aligned_m8n8_x1_##suffix(int line, unsigned& a, unsigned row) {                             \
        a = emulator_load_matrix(row, 1, transposed, line)[0];                                                                 \
    }                                                                                                                          \
    EMULATOR_PTX ptx_ldmatrix_sync_aligned_m8n8_x2_##suffix(int line, unsigned& a, unsigned& b, unsigned row) {                \
        const EmulatorWords r = emulator_load_matrix(row, 2, transposed, line);                                                \
        a = r[0]; b = r[1];                                                                                                    \
    }                                                                                                                          \
    EMULATOR_PTX ptx_ldmatrix_sync_aligned_m8n8_x4_##suffix(                                                                   \
        int line, unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned row) {                                          \
        const EmulatorWords r = emulator_load_matrix(row, 4, transposed, line);                                                \
        a = r[0]; b = r[1]; c = r[2]; d = r[3];                                                                                \
    }
EMULATOR_LDMATRIX(shared_b16, 0)
EMULATOR_LDMATRIX(trans_shared_b16, 1)

EMULATOR_PTX ptx_mma_sync_aligned_m16n8k8_row_col_f32_f16_f16_f32(int line, float& d0, float& d1, float& d2, float& d3,
    unsigned a0, unsigned a1, unsigned b0, float c0, float c1, float c2, float c3) {
    const EmulatorFloats d = emulator_multiply_m16n8(EmulatorFloats{c0, c1, c2, c3}, EmulatorWords{a0, a1, 0, 0}, b0, 8, EMULATOR_F16, line);
    d0 = d[0]; d1 = d[1]; d2 = d[2]; d3 = d[3];
}
#if __CUDA_ARCH__ >= 800
#define EMULATOR_MMA(type, half)                                                                                               \
    EMULATOR_PTX ptx_mma_sync_aligned_m16n8k16_row_col_f32_##type##_##type##_f32(int line, float& d0, float& d1, float& d2,    \
        float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, \
        float c3) {                                                                                                            \
        const unsigned long long b = (unsigned long long)b1 << 32 | b0;                                                        \
        const EmulatorFloats d =                                                                                               \
            emulator_multiply_m16n8(EmulatorFloats{c0, c1, c2, c3}, EmulatorWords{a0, a1, a2, a3}, b, 16, half, line);         \
        d0 = d[0]; d1 = d[1]; d2 = d[2]; d3 = d[3];                                                                            \
    }
EMULATOR_MMA(f16, EMULATOR_F16)
EMULATOR_MMA(bf16, EMULATOR_BF16)
EMULATOR_PTX ptx_mma_sync_aligned_m16n8k8_row_col_f32_bf16_bf16_f32(int line, float& d0, float& d1, float& d2, float& d3,
    unsigned a0, unsigned a1, unsigned b0, float c0, float c1, float c2, float c3) {
    const EmulatorFloats d = emulator_multiply_m16n8(EmulatorFloats{c0, c1, c2, c3}, EmulatorWords{a0, a1, 0, 0}, b0, 8, EMULATOR_BF16, line);
    d0 = d[0]; d1 = d[1]; d2 = d[2]; d3 = d[3];
}
EMULATOR_PTX ptx_mma_sync_aligned_m8n8k4_row_col_f64_f64_f64_f64(
    int line, double& d0, double& d1, double a, double b, double c0, double c1) {
    double d[2] = {c0, c1};
    emulator_multiply_f64(d, &a, &b, 8, 4, line);
    d0 = d[0]; d1 = d[1];
}
#endif
// One line to the preprocessor: the rest of a longer definition would count as part of all kernels that use what sm_75 lacks.
#define EMULATOR_MMA_F64(name)                                                                                                   \
    EMULATOR_PTX name(int line, double& d0, double& d1, double& d2, double& d3, double a0, double a1, double a2, double a3,     \
        double b0, double b1, double c0, double c1, double c2, double c3) {                                                      \
        const double a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};                                                                   \
        double d[4] = {c0, c1, c2, c3};                                                                                          \
        emulator_multiply_f64(d, a, b, 16, 8, line);                                                                             \
        d0 = d[0]; d1 = d[1]; d2 = d[2]; d3 = d[3];                                                                              \
    }
#if __CUDA_ARCH__ >= 900
EMULATOR_MMA_F64(ptx_mma_sync_aligned_m16n8k8_row_col_f64_f64_f64_f64)
#endif
