// matrix.cpp - ldmatrix and mma.sync. The distribution of matrix elements over lanes is that of the PTX manual's figures.
#include <cstring>

#include "device.hpp"
#include "numbers.hpp"

namespace {
struct MatrixRow { uint32_t offset; EmulatorWords fragments; };

// Lane 8 i + r holds the address of row r of matrix i.
void load_rows(const Collective& all, unsigned warp, int matrix, uint16_t (&rows)[8][8]) {
    Profile::Request request = {all.pc, 0, 16, false, true, {}};
    const uint32_t profile = device.settings.profile;
    Thread* const caller = device.running;
    device.settings.profile = 0;        // counted as one request below
    for (int r = 0; r < 8; ++r) {
        const int lane = matrix * 8 + r;
        const uint32_t offset = ((MatrixRow*)all.lanes[lane])->offset;
        device.running = &device.block.threads[warp * 32 + lane];       // whose fault a bad address is
        if (offset > SharedMemory::SIZE - 16) {
            report(kind::OUT_OF_BOUNDS, all.pc, nullptr, "ldmatrix row at shared offset %u", offset);
            stop_block();
        }
        access_shared(*device.running, offset, 16, Access::READ, all.pc);
        memcpy(rows[r], device.shared.bytes + offset, 16);
        request.lanes |= 1u << r;
        request.address[r] = offset;
    }
    device.running = caller;
    device.settings.profile = profile;
    if (profile) device.profile.count(request);
}

void complete_load(const Collective& all, unsigned warp) {
    const int count = all.detail >> 1;
    const bool transposed = all.detail & 1;
    for (int matrix = 0; matrix < count; ++matrix) {
        uint16_t rows[8][8];
        load_rows(all, warp, matrix, rows);
        for (int lane = 0; lane < 32; ++lane) {
            const int group = lane / 4, pair = lane % 4 * 2;
            const uint32_t low = transposed ? rows[pair][group] : rows[group][pair];
            const uint32_t high = transposed ? rows[pair + 1][group] : rows[group][pair + 1];
            ((MatrixRow*)all.lanes[lane])->fragments[matrix] = low | high << 16;
        }
    }
}

struct Product { EmulatorFloats accumulator; EmulatorWords a; uint64_t b; };

// D = A B + C with A 16 x depth, B depth x 8. Products of halves are exact; they are added one after the other in float32.
template <int half, int depth> void complete_multiply(const Collective& all, unsigned) {
    float a[16][depth], b[depth][8], c[16][8];
    const auto value = [](uint32_t bits) { return half == EMULATOR_F16 ? f32_from_f16((uint16_t)bits) : f32_from_bf16((uint16_t)bits); };
    for (int lane = 0; lane < 32; ++lane) {
        const Product& from = *(const Product*)all.lanes[lane];
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < depth / 4; ++i) {
            float* at = &a[group + i % 2 * 8][pair + i / 2 * 8];
            at[0] = value(from.a[i]);
            at[1] = value(from.a[i] >> 16);
        }
        for (int i = 0; i < depth / 8; ++i) {
            b[pair + i * 8][group] = value((uint32_t)(from.b >> 32 * i));
            b[pair + i * 8 + 1][group] = value((uint32_t)(from.b >> 32 * i >> 16));
        }
        for (int i = 0; i < 4; ++i) c[group + i / 2 * 8][pair + i % 2] = from.accumulator[i];
    }
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < depth; ++k)
            for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; ++lane) {
        Product& to = *(Product*)all.lanes[lane];
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 4; ++i) to.accumulator[i] = c[group + i / 2 * 8][pair + i % 2];
    }
    ++device.statistics.matrix_products;
}

struct ProductF64 { double* sums; const double *a, *b; };

// The same in float64, with 8 or 16 rows: fused multiplications and additions, in the order of the depth.
template <int rows, int depth> void complete_multiply_f64(const Collective& all, unsigned) {
    constexpr int sets = rows / 8;
    double a[rows][depth], b[depth][8], c[rows][8];
    for (int lane = 0; lane < 32; ++lane) {
        const ProductF64& from = *(const ProductF64*)all.lanes[lane];
        const int group = lane / 4, member = lane % 4;
        for (int i = 0; i < sets * depth / 4; ++i) a[group + i % sets * 8][member + i / sets * 4] = from.a[i];
        for (int i = 0; i < depth / 4; ++i) b[member + i * 4][group] = from.b[i];
        for (int i = 0; i < 2 * sets; ++i) c[group + i / 2 * 8][member * 2 + i % 2] = from.sums[i];
    }
    for (int row = 0; row < rows; ++row)
        for (int k = 0; k < depth; ++k)
            for (int column = 0; column < 8; ++column) c[row][column] = __builtin_fma(a[row][k], b[k][column], c[row][column]);
    for (int lane = 0; lane < 32; ++lane) {
        ProductF64& to = *(ProductF64*)all.lanes[lane];
        for (int i = 0; i < 2 * sets; ++i) to.sums[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
    ++device.statistics.matrix_products;
}
}  // namespace

extern "C" EmulatorWords emulator_load_matrix(unsigned row, int count, int transposed, int line) {
    MatrixRow operands = {row, {}};
    ++device.statistics.accesses;
    meet({CollectiveKind::LOAD_MATRIX, count << 1 | transposed, 0xffffffff, &operands, complete_load, true, line, __builtin_return_address(0)});
    return operands.fragments;
}

extern "C" EmulatorFloats emulator_multiply_m16n8(EmulatorFloats accumulator, EmulatorWords a, unsigned long long b, int depth, int half, int line) {
    Product operands = {accumulator, a, b};
    const auto complete = depth == 16 ? (half == EMULATOR_F16 ? complete_multiply<EMULATOR_F16, 16> : complete_multiply<EMULATOR_BF16, 16>)
                                      : (half == EMULATOR_F16 ? complete_multiply<EMULATOR_F16, 8> : complete_multiply<EMULATOR_BF16, 8>);
    meet({CollectiveKind::MULTIPLY, depth << 1 | half, 0xffffffff, &operands, complete, true, line, __builtin_return_address(0)});
    return operands.accumulator;
}

extern "C" void emulator_multiply_f64(double* sums, const double* a, const double* b, int rows, int depth, int line) {
    ProductF64 operands = {sums, a, b};
    const auto complete = rows == 16 ? complete_multiply_f64<16, 8> : complete_multiply_f64<8, 4>;
    meet({CollectiveKind::MULTIPLY, rows << 8 | depth, 0xffffffff, &operands, complete, true, line, __builtin_return_address(0)});
}
