// test_simd.cpp - the SIMD headers against scalar arithmetic, for the ISA level this file is compiled for.
//
//   g++ -std=c++17 -O2 -ffp-contract=off -Wno-psabi -march=x86-64-v3 -Icysrc cysrc/tests/test_simd.cpp -o test_simd && ./test_simd
//
// Prints one line per group of checks; exit status 1 if one failed. An argument of 10 takes a tenth of the random arguments, for emulators.
#include "functions.hpp"
#include "registers.hpp"
#include "rows.hpp"
#include "runs.hpp"

namespace {

template <class S> void check_registers() {
    check_load<S>();
    check_store<S>();
    check_selection<S>();
    check_arithmetic<S>();
    check_folds<S>();
    check_wide<S>();
}
template <class S> void check_rows() {
    check_blocks<S>();
    check_parts<S>();
    check_few_rows<S>();
    check_writes<S>();
}

}  // namespace

int main(int argc, char** argv) {
    const long share = argc > 1 ? std::max(1L, std::atol(argv[1])) : 1;
    std::printf("registers of %d bytes, fused multiply-add: %s\n", DS_BYTES, HAS_FMA ? "yes" : "no");
    check_registers<float>();
    check_registers<double>();
    check_registers<f16>();
    check_registers<bf16>();
    check_widen<f16>();
    check_widen<bf16>();
    check_narrow<f16>(3000000 / share);
    check_narrow<bf16>(3000000 / share);
    check_exp<float>(share);
    check_exp<double>(share);
    check_exp_special<float>();
    check_exp_special<double>();
    for (double factor : {1.0, 1.4426950408889634}) {
        check_exp2<float>(factor, share);
        check_exp2<double>(factor, share);
    }
    check_exp2_special<float>();
    check_exp2_special<double>();
    check_tanh<float>(share);
    check_tanh<double>(share);
    check_split_exp(share);
    check_expm1(share);
    check_log1p(share);
    check_excess_sum(share);
    check_gather<float>();
    check_gather<double>();
    check_scatter<float>();
    check_scatter<double>();
    check_rows<float>();
    check_rows<double>();
    check_rows<f16>();
    check_rows<bf16>();
    check_strips<float>();
    check_strips<double>();
    if (group::failed_groups) std::printf("%ld groups of checks failed\n", group::failed_groups);
    else std::printf("all checks passed\n");
    return group::failed_groups != 0;
}
