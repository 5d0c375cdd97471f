// tensor_products.cuh - what a warp does with several sets of 16 lines and the lines that pass by, which all of its sets share.
#pragma once
#include "tensor.cuh"

namespace ds {

// T is the half type, `dim` the length of lines in tiles, `passing` how many lines pass by.
template <class T, int dim, int sets, int passing> struct warp_products {
    typedef f32 scores[sets][passing / 8][4];
    typedef u32 halves[sets][passing / 16][4];          // left operands
    typedef f32 sums[sets][dim / 8][4];

    template <int length> static DS_DEVICE void clear(f32 (&x)[sets][length][4]) {
#pragma unroll
        for (int m = 0; m < sets; ++m)
#pragma unroll
            for (int n = 0; n < length; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) x[m][n][i] = 0.0f;
    }

    // Adds the products of 16 columns of the sets' lines, from `column` on, and the same ones of the lines that pass by, at `lane_of_columns`.
    static DS_DEVICE void add_columns(const u32 (&a)[sets][4], u32 lane_of_columns, int column, scores& s) {
#pragma unroll
        for (int n = 0; n < passing / 16; ++n) {
            u32 b[4];
            tile<dim>::right(b, lane_of_columns, n * 16, column);
#pragma unroll
            for (int m = 0; m < sets; ++m) {
                tensor<T>::multiply(s[m][2 * n], a[m], b[0], b[1]);
                tensor<T>::multiply(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }

    static DS_DEVICE void round(const scores& s, halves& p) {
#pragma unroll
        for (int m = 0; m < sets; ++m)
#pragma unroll
            for (int k = 0; k < passing / 16; ++k)
#pragma unroll
                for (int i = 0; i < 4; ++i) p[m][k][i] = tensor<T>::pair(s[m][2 * k + i / 2][i % 2 * 2], s[m][2 * k + i / 2][i % 2 * 2 + 1]);
    }

    // Adds the lines that pass by, with these weights.
    static DS_DEVICE void add_lines(const halves& p, const tile<dim>& lines, sums& o) {
        const u32 right = lines.lane_of_rows();
#pragma unroll
        for (int k = 0; k < passing / 16; ++k)
#pragma unroll
            for (int n = 0; n < dim / 16; ++n) {
                u32 b[4];
                tile<dim>::right_by_rows(b, right, k * 16, n * 16);
#pragma unroll
                for (int m = 0; m < sets; ++m) {
                    tensor<T>::multiply(o[m][2 * n], p[m][k], b[0], b[1]);
                    tensor<T>::multiply(o[m][2 * n + 1], p[m][k], b[2], b[3]);
                }
            }
    }

    // Multiplies the sums of lines g and g + 8 of each set by a number of their own.
    static DS_DEVICE void rescale(const f32 (&alpha)[2 * sets], sums& o) {
#pragma unroll
        for (int m = 0; m < sets; ++m)
#pragma unroll
            for (int n = 0; n < dim / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) o[m][n][i] = mul(o[m][n][i], alpha[2 * m + i / 2]);
    }
};

// Makes 0 of what is not finite among the pieces that this thread fetched of so many lines, and marks these, a bit each.
DS_DEVICE void mark(u32* words, int k) { atomicOr(&words[k / 32], 1u << k % 32); }
template <class T, int threads, int count, int dim> DS_DEVICE void clean_lines(const tile<dim>& lines, u32* words) {
    constexpr int pieces = tile<dim>::PIECES;
    const int p = int(threadIdx.x) % pieces;
#pragma unroll 1
    for (int k = int(threadIdx.x) / pieces; k < count; k += threads / pieces) {
        piece here = *lines.at(k, p);
        bool found = false;
#pragma unroll
        for (int i = 0; i < 4; ++i) found |= clean<T>(here.at[i]);
        if (!found) continue;
        *lines.at(k, p) = here;
        mark(words, k);
    }
}

}  // namespace ds
