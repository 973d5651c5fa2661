// Products of float32 matrices by bfloat16 parts on the processor's matrix tiles; see product.h.
#include "../common.h"
#if defined(__AVX512BW__) && defined(__linux__)
#include "product.h"

EXPORT int has_parts_matmul() { return has_bfloat_tiles(); }

// c [M, N] = or += a b, with a [M, K], or [K, M] where a_turned, and b [K, N], or [N, K] where b_turned; rows without gaps. Parts:
// 1 or 2 of each number. 1: no memory.
EXPORT int parts_matmul(const float* a, int a_turned, const float* b, int b_turned, i64 M, i64 N, i64 K, float* c, int add,
                        int parts, int threads) {
    const Operand<float> left = {a, a_turned ? M : K, a_turned != 0}, right = {b, b_turned ? K : N, b_turned == 0};
    const Factors<float> all = {left, right, M, N, K, c, N, add != 0, threads};
    return (parts == 1 ? multiply_parts<1, 1>(all) : multiply_parts<2, 2>(all)) ? 0 : 1;
}
#else
EXPORT int has_parts_matmul() { return 0; }
EXPORT int parts_matmul(const float*, int, const float*, int, i64, i64, i64, float*, int, int, int) { return 1; }
#endif
