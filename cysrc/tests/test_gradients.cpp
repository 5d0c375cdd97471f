// test_gradients.cpp - the headers of attention's gradients, of selection and of sampling, for the ISA level this file is compiled for.
#include "gradient.hpp"
#include "gradient_tiles.hpp"
#include "gradients.hpp"
#include "sample.hpp"
#include "selection.hpp"
#include "topk.hpp"

int main(int argc, char** argv) {
    const long share = argc > 1 ? std::max(1L, std::atol(argv[1])) : 1;
    std::printf("registers of %d bytes, fused multiply-add: %s\n", DS_BYTES, HAS_FMA ? "yes" : "no");
    check_weigh<float, false>("weigh, float32");
    check_weigh<float, true>("weigh with gradients, float32");
    check_weigh<double, false>("weigh, float64");
    check_weigh<double, true>("weigh with gradients, float64");
    check_key_product<lane_arithmetic<float>>();
    check_key_product<lane_arithmetic<double>>();
#if defined(__AVX512BF16__)
    check_key_product<pair_arithmetic>();
    check_narrow_rows();
#endif
    check_rest_of_tiles<float>();
    check_rest_of_tiles<double>();
    check_philox();
    check_gumbel(share);
    check_order<float>();
    check_order<double>();
    check_selector<float>(share);
    check_selector<double>(share);
    if (group::failed_groups) std::printf("%ld groups of checks failed\n", group::failed_groups);
    else std::printf("all checks passed\n");
    return group::failed_groups != 0;
}
