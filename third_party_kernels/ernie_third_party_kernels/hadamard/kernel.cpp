// x times a block-diagonal Walsh-Hadamard matrix along rows that are cut into blocks of a power of two: log2(block) passes of
// sums and differences in registers and the nearest cache, instead of a product with block values per element.
#include "../common.h"

typedef int32_t places __attribute__((vector_size(64)));
#if defined(__clang__)
#define SWAPPED(v, h) __builtin_shufflevector(v, v, 0 ^ h, 1 ^ h, 2 ^ h, 3 ^ h, 4 ^ h, 5 ^ h, 6 ^ h, 7 ^ h, 8 ^ h, 9 ^ h, 10 ^ h, \
                                              11 ^ h, 12 ^ h, 13 ^ h, 14 ^ h, 15 ^ h)
#else
#define SWAPPED(v, h) __builtin_shuffle(v, places{0 ^ h, 1 ^ h, 2 ^ h, 3 ^ h, 4 ^ h, 5 ^ h, 6 ^ h, 7 ^ h, 8 ^ h, 9 ^ h, 10 ^ h, \
                                                  11 ^ h, 12 ^ h, 13 ^ h, 14 ^ h, 15 ^ h})
#endif
typedef float whole __attribute__((vector_size(64)));
typedef float whole_at __attribute__((vector_size(64), aligned(4), may_alias));

// partners that are h apart within 16 values: sum at the lower one, difference at the upper one
template <int h>
static inline whole step(whole v) {
    whole sign;
    for (int i = 0; i < 16; ++i) sign[i] = i & h ? -1.0f : 1.0f;
    return sign * v + (whole)SWAPPED(v, h);
}

static inline void transform(const float* x, float* y, i64 n) {
    if (n < 16) {
        float a[16];
        for (i64 i = 0; i < n; ++i) a[i] = x[i];
        for (i64 h = 1; h < n; h *= 2)
            for (i64 i = 0; i < n; ++i)
                if (!(i & h)) {
                    const float sum = a[i] + a[i + h], less = a[i] - a[i + h];
                    a[i] = sum, a[i + h] = less;
                }
        for (i64 i = 0; i < n; ++i) y[i] = a[i];
        return;
    }
    for (i64 i = 0; i < n; i += 16) {
        const whole v = *reinterpret_cast<const whole_at*>(x + i);
        *reinterpret_cast<whole_at*>(y + i) = step<8>(step<4>(step<2>(step<1>(v))));
    }
    for (i64 h = 16; h < n; h *= 2)
        for (i64 i = 0; i < n; i += 2 * h)
            for (i64 j = i; j < i + h; j += 16) {
                const wide a = load(y + j), b = load(y + j + h);
                store(y + j, a + b), store(y + j + h, a - b);
            }
}

EXPORT void hadamard(const float* x, float* y, i64 blocks, i64 n, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 b = 0; b < blocks; ++b) transform(x + b * n, y + b * n, n);
}
