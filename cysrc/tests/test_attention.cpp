// test_attention.cpp - the headers of attention against plain loops, for the ISA level this file is compiled for. See test_simd.cpp.
#include "pairs.hpp"
#include "tiles.hpp"

namespace {

template <class C> void check_rows() {
    check_update<lane_arithmetic<C>>();
    check_hide_outside<C>();
    check_bias<C>();
    check_merge_row<C>();
    check_finish_row<C>();
}

}  // namespace

int main(int argc, char** argv) {
    const long share = argc > 1 ? std::max(1L, std::atol(argv[1])) : 1;
    (void)share;
    std::printf("registers of %d bytes, tiles of %d rows\n", DS_BYTES, TILE_ROWS);
    check_transpose<float>();
    check_transpose<double>();
    check_products<lane_arithmetic<float>>();
    check_products<lane_arithmetic<double>>();
    check_packing<lane_arithmetic<float>, float>();
    check_packing<lane_arithmetic<float>, f16>();
    check_packing<lane_arithmetic<float>, bf16>();
    check_packing<lane_arithmetic<double>, double>();
    check_rows<float>();
    check_rows<double>();
#if defined(__AVX512BF16__)
    check_update<pair_arithmetic>();
    check_products<pair_arithmetic>();
    check_packing<pair_arithmetic, bf16>();
#endif
    if (group::failed_groups) std::printf("%ld groups of checks failed\n", group::failed_groups);
    else std::printf("all checks passed\n");
    return group::failed_groups != 0;
}
