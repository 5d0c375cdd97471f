// test_attention.cpp - the headers of attention against plain loops, for the ISA level this file is compiled for. See test_simd.cpp.
#include "pairs.hpp"
#include "tiles.hpp"
#include "visible.hpp"
#include "whole.hpp"

namespace {

template <class C> void check_rows(long share) {
    check_update<lane_arithmetic<C>>(share);
    check_score_scale<C>();
    check_slope_of_cap<C>();
    check_hide_outside<C>();
    check_bias<C>();
    check_merged_row<C>();
    check_finish_row<C>();
    check_runs<C>();
}
template <class C> void check_calls(long share) {
    check_visible_panels<C>(share);
    for (call_form form : {PLAIN, VARLEN, PAGED}) check_whole<C>(form, share);
}

}  // namespace

int main(int argc, char** argv) {
    const long share = argc > 1 ? std::max(1L, std::atol(argv[1])) : 1;
#if defined(__AVX512BF16__)
    const char* pairs = "yes";
#else
    const char* pairs = "no";
#endif
    std::printf("registers of %d bytes, fused multiply-add: %s, pairs of bfloat16: %s\n", DS_BYTES, HAS_FMA ? "yes" : "no", pairs);
    check_transpose<float>();
    check_transpose<double>();
    check_products<lane_arithmetic<float>>();
    check_products<lane_arithmetic<double>>();
    check_packing<lane_arithmetic<float>, float>();
    check_packing<lane_arithmetic<float>, f16>();
    check_packing<lane_arithmetic<float>, bf16>();
    check_packing<lane_arithmetic<double>, double>();
    check_rows<float>(share);
    check_rows<double>(share);
    check_calls<float>(share);
    check_calls<double>(share);
#if defined(__AVX512BF16__)
    check_update<pair_arithmetic>(share);
    check_products<pair_arithmetic>();
    check_packing<pair_arithmetic, bf16>();
#endif
    if (group::failed_groups) std::printf("%ld groups of checks failed\n", group::failed_groups);
    else std::printf("all checks passed\n");
    return group::failed_groups != 0;
}
