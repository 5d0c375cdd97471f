// ptx_memory.hpp - ld, st, atom, red, fences, address conversion, asynchronous copies.
//
// Loads and stores are the same whatever their cache hints; the hints are part of the names, so that a misspelt one is a compile error.
#pragma once

namespace emulator {
template <int space, class T> EMULATOR_INLINE void load(T& d, b64 address) {
    const EmulatorBytes raw = emulator_load(space, address, sizeof(T));
    __builtin_memcpy(&d, &raw, sizeof(T));
}
// Two, or four, equal registers from one access.
template <int space, class T> EMULATOR_INLINE void load_2(T& a, T& b, b64 address) {
    static_assert(sizeof(T) <= 8, "16 bytes at most are loaded at once");
    const EmulatorBytes raw = emulator_load(space, address, 2 * sizeof(T));
    T at[2];
    __builtin_memcpy(at, &raw, sizeof at);
    a = at[0]; b = at[1];
}
template <int space, class T> EMULATOR_INLINE void load_4(T& a, T& b, T& c, T& d, b64 address) {
    static_assert(sizeof(T) <= 4, "16 bytes at most are loaded at once");
    const EmulatorBytes raw = emulator_load(space, address, 4 * sizeof(T));
    T at[4];
    __builtin_memcpy(at, &raw, sizeof at);
    a = at[0]; b = at[1]; c = at[2]; d = at[3];
}
template <int space, class... T> EMULATOR_INLINE void store(b64 address, T... values) {
    constexpr int bytes = (int(sizeof(T)) + ...);
    static_assert(bytes <= 16, "16 bytes at most are stored at once");
    unsigned char at[16] = {};
    int offset = 0;
    ((__builtin_memcpy(at + offset, &values, sizeof values), offset += sizeof values), ...);
    emulator_store(space, address, __builtin_bit_cast(EmulatorBytes, at), bytes);
}
// "r" and "f" operands are the same 32 bits to an instruction of type .b32.
EMULATOR_INLINE b32 word(b32 v) { return v; }
EMULATOR_INLINE b32 word(float v) { return f32_bits(v); }
}  // namespace emulator

// ------------------------------------------------------------------ loads: suffix of the name, space, type of the address
#define EMULATOR_LOAD_TYPE(name, space, address, type, c)                                                              \
    EMULATOR_PTX ptx_ld_##name##_##type(int, c& d, address p) { emulator::load<space>(d, p); }
#define EMULATOR_LOAD_VECTOR_2(name, space, address, type, c)                                                          \
    EMULATOR_PTX ptx_ld_##name##_v2_##type(int, c& x, c& y, address p) { emulator::load_2<space>(x, y, p); }
#define EMULATOR_LOAD_VECTOR_4(name, space, address, type, c)                                                          \
    EMULATOR_PTX ptx_ld_##name##_v4_##type(int, c& x, c& y, c& z, c& w, address p) { emulator::load_4<space>(x, y, z, w, p); }
#define EMULATOR_LOAD_EACH(name, space, address, type, c)                                                              \
    EMULATOR_LOAD_TYPE(name, space, address, type, c) EMULATOR_LOAD_VECTOR_2(name, space, address, type, c)            \
    EMULATOR_LOAD_VECTOR_4(name, space, address, type, c)
#define EMULATOR_LOAD(name, space, address)                                                                            \
    EMULATOR_LOAD_EACH(name, space, address, b32, unsigned) EMULATOR_LOAD_EACH(name, space, address, u32, unsigned)    \
    EMULATOR_LOAD_EACH(name, space, address, s32, unsigned) EMULATOR_LOAD_EACH(name, space, address, f32, float)       \
    EMULATOR_LOAD_EACH(name, space, address, b16, unsigned short) EMULATOR_LOAD_EACH(name, space, address, u16, unsigned short) \
    EMULATOR_LOAD_TYPE(name, space, address, b64, unsigned long long)                                                  \
    EMULATOR_LOAD_VECTOR_2(name, space, address, b64, unsigned long long)                                              \
    EMULATOR_LOAD_TYPE(name, space, address, u64, unsigned long long)                                                  \
    EMULATOR_LOAD_VECTOR_2(name, space, address, u64, unsigned long long)                                              \
    EMULATOR_LOAD_TYPE(name, space, address, f64, double) EMULATOR_LOAD_VECTOR_2(name, space, address, f64, double)    \
    EMULATOR_PTX ptx_ld_##name##_u8(int, unsigned short& d, address p) {                                               \
        unsigned char byte;                                                                                            \
        emulator::load<space>(byte, p);                                                                                \
        d = byte;                                                                                                      \
    }
EMULATOR_LOAD(global, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_LOAD(global_nc, EMULATOR_GLOBAL_READ_ONLY, unsigned long long)
EMULATOR_LOAD(global_nc_L1_no_allocate, EMULATOR_GLOBAL_READ_ONLY, unsigned long long)
EMULATOR_LOAD(global_nc_L1_no_allocate_L2_128B, EMULATOR_GLOBAL_READ_ONLY, unsigned long long)
EMULATOR_LOAD(global_nc_L1_no_allocate_L2_256B, EMULATOR_GLOBAL_READ_ONLY, unsigned long long)
EMULATOR_LOAD(global_L1_no_allocate, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_LOAD(global_cs, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_LOAD(global_cg, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_LOAD(shared, EMULATOR_SHARED, unsigned)

// ------------------------------------------------------------------ stores
#define EMULATOR_STORE(name, space, address)                                                                           \
    template <class T> EMULATOR_PTX ptx_st_##name##_b32(int, address p, T x) { emulator::store<space>(p, emulator::word(x)); } \
    EMULATOR_PTX ptx_st_##name##_u32(int, address p, unsigned x) { emulator::store<space>(p, x); }                     \
    EMULATOR_PTX ptx_st_##name##_f32(int, address p, float x) { emulator::store<space>(p, x); }                        \
    EMULATOR_PTX ptx_st_##name##_b16(int, address p, unsigned short x) { emulator::store<space>(p, x); }               \
    EMULATOR_PTX ptx_st_##name##_u16(int, address p, unsigned short x) { emulator::store<space>(p, x); }               \
    EMULATOR_PTX ptx_st_##name##_u8(int, address p, unsigned short x) { emulator::store<space>(p, (unsigned char)x); } \
    EMULATOR_PTX ptx_st_##name##_b64(int, address p, unsigned long long x) { emulator::store<space>(p, x); }           \
    EMULATOR_PTX ptx_st_##name##_u64(int, address p, unsigned long long x) { emulator::store<space>(p, x); }           \
    EMULATOR_PTX ptx_st_##name##_f64(int, address p, double x) { emulator::store<space>(p, x); }                       \
    EMULATOR_PTX ptx_st_##name##_v2_b64(int, address p, unsigned long long x, unsigned long long y) { emulator::store<space>(p, x, y); } \
    EMULATOR_PTX ptx_st_##name##_v2_f64(int, address p, double x, double y) { emulator::store<space>(p, x, y); }       \
    template <class T> EMULATOR_PTX ptx_st_##name##_v2_b32(int, address p, T x, T y) {                                 \
        emulator::store<space>(p, emulator::word(x), emulator::word(y));                                               \
    }                                                                                                                  \
    EMULATOR_PTX ptx_st_##name##_v2_f32(int, address p, float x, float y) { emulator::store<space>(p, x, y); }         \
    EMULATOR_PTX ptx_st_##name##_v2_b16(int, address p, unsigned short x, unsigned short y) { emulator::store<space>(p, x, y); } \
    template <class T> EMULATOR_PTX ptx_st_##name##_v4_b32(int, address p, T x, T y, T z, T w) {                       \
        emulator::store<space>(p, emulator::word(x), emulator::word(y), emulator::word(z), emulator::word(w));         \
    }                                                                                                                  \
    EMULATOR_PTX ptx_st_##name##_v4_f32(int, address p, float x, float y, float z, float w) { emulator::store<space>(p, x, y, z, w); } \
    EMULATOR_PTX ptx_st_##name##_v4_b16(int, address p, unsigned short x, unsigned short y, unsigned short z, unsigned short w) { \
        emulator::store<space>(p, x, y, z, w);                                                                         \
    }
EMULATOR_STORE(global, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_STORE(global_cs, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_STORE(global_wt, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_STORE(global_cg, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_STORE(global_wb, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_STORE(global_L1_no_allocate, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_STORE(shared, EMULATOR_SHARED, unsigned)

// ------------------------------------------------------------------ atomics, fences, addresses
#define EMULATOR_ATOM(space_name, space, address, opcode, operation, suffix, number, c)                                  \
    EMULATOR_PTX ptx_red_##space_name##_##opcode##_##suffix(int, address p, c v) {                                       \
        typedef typename emulator::bits_of<sizeof(c)>::type bits;                                                      \
        emulator_atomic(space, operation, number, p, __builtin_bit_cast(bits, v), 0);                                  \
    }                                                                                                                  \
    EMULATOR_PTX ptx_atom_##space_name##_##opcode##_##suffix(int, c& d, address p, c v) {                                \
        typedef typename emulator::bits_of<sizeof(c)>::type bits;                                                      \
        d = __builtin_bit_cast(c, bits(emulator_atomic(space, operation, number, p, __builtin_bit_cast(bits, v), 0))); \
    }
#define EMULATOR_ATOMS(space_name, space, address)                                                                     \
    EMULATOR_ATOM(space_name, space, address, add, EMULATOR_ADD, u32, EMULATOR_U32, unsigned)                          \
    EMULATOR_ATOM(space_name, space, address, add, EMULATOR_ADD, s32, EMULATOR_S32, unsigned)                          \
    EMULATOR_ATOM(space_name, space, address, add, EMULATOR_ADD, u64, EMULATOR_U64, unsigned long long)                \
    EMULATOR_ATOM(space_name, space, address, add, EMULATOR_ADD, f32, EMULATOR_F32, float)                             \
    EMULATOR_ATOM(space_name, space, address, add, EMULATOR_ADD, f64, EMULATOR_F64, double)                            \
    EMULATOR_ATOM(space_name, space, address, min, EMULATOR_MIN, s32, EMULATOR_S32, unsigned)                          \
    EMULATOR_ATOM(space_name, space, address, max, EMULATOR_MAX, s32, EMULATOR_S32, unsigned)                          \
    EMULATOR_ATOM(space_name, space, address, min, EMULATOR_MIN, u32, EMULATOR_U32, unsigned)                          \
    EMULATOR_ATOM(space_name, space, address, max, EMULATOR_MAX, u32, EMULATOR_U32, unsigned)
EMULATOR_ATOMS(global, EMULATOR_GLOBAL, unsigned long long)
EMULATOR_ATOMS(shared, EMULATOR_SHARED, unsigned)
// Writes are seen in order here: fences keep the compiler from moving accesses, and that is all.
#define EMULATOR_FENCE(name) EMULATOR_PTX ptx_##name(int) { __asm__ volatile("" ::: "memory"); }
EMULATOR_FENCE(membar_cta)
EMULATOR_FENCE(membar_gl)
EMULATOR_FENCE(membar_sys)
EMULATOR_FENCE(fence_acq_rel_cta)
EMULATOR_FENCE(fence_acq_rel_gpu)
EMULATOR_FENCE(fence_sc_gpu)
EMULATOR_PTX ptx_cvta_to_shared_u64(int, unsigned long long& d, unsigned long long p) { d = emulator_shared_offset((const void*)p); }
EMULATOR_PTX ptx_cvta_to_global_u64(int, unsigned long long& d, unsigned long long p) { d = p; }
EMULATOR_PTX ptx_prefetch_global_L2(int, unsigned long long) {}

// ------------------------------------------------------------------ asynchronous copies (sm_80)
#if __CUDA_ARCH__ >= 800
#define EMULATOR_COPY_ASYNC(name, only_16)                                                                             \
    EMULATOR_PTX ptx_cp_async_##name(int, unsigned to, unsigned long long from, int bytes) {                           \
        emulator_copy_async(to, from, only_16 && bytes != 16 ? -1 : bytes, bytes);                                     \
    }                                                                                                                  \
    EMULATOR_PTX ptx_cp_async_##name(int, unsigned to, unsigned long long from, int bytes, unsigned source_bytes) {    \
        emulator_copy_async(to, from, only_16 && bytes != 16 ? -1 : bytes, (int)source_bytes);                         \
    }
EMULATOR_COPY_ASYNC(cg_shared_global, true)
EMULATOR_COPY_ASYNC(cg_shared_global_L2_128B, true)
EMULATOR_COPY_ASYNC(cg_shared_global_L2_256B, true)
EMULATOR_COPY_ASYNC(ca_shared_global, false)
EMULATOR_COPY_ASYNC(ca_shared_global_L2_128B, false)
EMULATOR_PTX ptx_cp_async_commit_group(int) { emulator_copy_async_commit(); }
EMULATOR_PTX ptx_cp_async_wait_group(int, int groups_left) { emulator_copy_async_wait(groups_left); }
EMULATOR_PTX ptx_cp_async_wait_all(int) {
    emulator_copy_async_commit();
    emulator_copy_async_wait(0);
}
#endif
