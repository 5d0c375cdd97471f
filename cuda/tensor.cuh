// tensor.cuh - products of half types on tensor cores: fragments of 16 x 16 and 16 x 8 over the lanes of a warp, and tiles that ldmatrix reads.
//
// Fragments, with g = lane / 4 and t = lane % 4, two neighbours a register: a left operand has rows g, g + 8, g, g + 8 and columns 2t, 2t, 2t + 8,
// 2t + 8; a right one rows 2t and 2t + 8 of column g; a sum rows g, g, g + 8, g + 8 and columns 2t, 2t + 1, 2t, 2t + 1.
#pragma once
#include "convert.cuh"

namespace ds {

constexpr int ELEMENTS_A_PIECE = 8;
struct alignas(16) piece { u32 at[4]; };

// A tile of rows of `dim` elements. Pieces change places within a row, so that the eight rows of one piece lie in different banks.
template <int dim> struct tile {
    static constexpr int PIECES = dim / ELEMENTS_A_PIECE;
    static_assert(PIECES % 8 == 0, "rows that begin in the same bank");
    piece* pieces;
    DS_DEVICE piece* at(int row, int p) const { return pieces + row * PIECES + (p ^ int(u32(row) % 8)); }

    // Where a lane reads the first matrices of the tile. Others are at that ^ 2 column + 2 dim row, for multiples of 16: it has to begin at a multiple
    // of the bytes of a row.
    DS_DEVICE u32 lane_of_rows() const { return address(at(int(lane() % 16), int(lane() / 16))); }
    DS_DEVICE u32 lane_of_columns() const { return address(at(int(lane() % 8 + lane() / 16 * 8), int(lane() / 8 % 2))); }
    static DS_DEVICE u32 moved(u32 first, int row, int column) { return (first ^ u32(2 * column)) + u32(2 * dim * row); }
    static DS_DEVICE u32 address(const piece* p) { return u32(__cvta_generic_to_shared(p)); }
    static DS_DEVICE u32 lane() { return threadIdx.x % 32; }

    // 16 rows and columns of a left operand.
    static DS_DEVICE void left(u32 (&a)[4], u32 lane_of_rows, int row, int column) { load_matrices(a, moved(lane_of_rows, row, column)); }
    // A right operand whose columns are rows of the tile: its columns row to row + 15, two fragments of 8.
    static DS_DEVICE void right(u32 (&b)[4], u32 lane_of_columns, int row, int column) { load_matrices(b, moved(lane_of_columns, row, column)); }
    // A right operand that lies as it is, 16 rows: its columns column to column + 15, two fragments of 8.
    static DS_DEVICE void right_by_rows(u32 (&b)[4], u32 lane_of_rows, int row, int column) { load_transposed(b, moved(lane_of_rows, row, column)); }
};

template <class T> struct tensor;
template <> struct tensor<f16> {
    static constexpr u32 EXPONENTS = 0x7c007c00u;
    static DS_DEVICE void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_f16(d, a, b0, b1); }
    static DS_DEVICE u32 pair(f32 a, f32 b) { return pair_to_f16(a, b); }
};
#if __CUDA_ARCH__ >= 800
template <> struct tensor<bf16> {
    static constexpr u32 EXPONENTS = 0x7f807f80u;
    static DS_DEVICE void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_bf16(d, a, b0, b1); }
    static DS_DEVICE u32 pair(f32 a, f32 b) { return pair_to_bf16(a, b); }
};
#endif

// Makes 0 of what is not finite among two neighbours; whether there was any.
template <class T> DS_DEVICE bool clean(u32& two) {
    constexpr u32 low = tensor<T>::EXPONENTS & 0xffffu, high = tensor<T>::EXPONENTS & 0xffff0000u;
    const u32 kept = ((two & low) == low ? 0u : 0xffffu) | ((two & high) == high ? 0u : 0xffff0000u);
    two &= kept;
    return kept != 0xffffffffu;
}

// 16 bytes on their way to shared memory, or zeros. Until copies_have_arrived they are not there, and until a barrier not for other threads.
DS_DEVICE void copy_piece(piece* to, const char* from, bool is_there) {
#if __CUDA_ARCH__ >= 800
    copy_async(to, from, is_there ? 16 : 0);
#else
    *to = is_there ? load_aligned<piece>(from) : piece{};
#endif
}
DS_DEVICE void copies_have_arrived() {
#if __CUDA_ARCH__ >= 800
    copy_async_commit();
    copy_async_wait<0>();
#endif
}

}  // namespace ds
