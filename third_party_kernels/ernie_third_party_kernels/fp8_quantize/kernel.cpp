// The FP8 number nearest to x / scale, ties to even, as float32. Clipped first; NaN stays NaN; the sign of zero stays.
// Normal numbers: all but the highest bits of the fraction are rounded away as an integer. Below the smallest normal number
// the spacing is constant: adding 1.5 * 2^23 times the spacing rounds to it.
#include "../common.h"

template <int DROPPED>
static inline float nearest(float r, float largest, float smallest, float magic) {
    const float clipped = r > largest ? largest : (r < -largest ? -largest : r);
    uint32_t bits;
    std::memcpy(&bits, &clipped, 4);
    const uint32_t sign = bits & 0x80000000u, size = bits & 0x7FFFFFFFu;
    const uint32_t up = size + ((1u << (DROPPED - 1)) - 1) + ((size >> DROPPED) & 1u);
    const uint32_t whole = up & ~((1u << DROPPED) - 1);
    float magnitude, normal;
    std::memcpy(&magnitude, &size, 4);
    std::memcpy(&normal, &whole, 4);
    const float tiny = (magnitude + magic) - magic;
    const float chosen = magnitude < smallest ? tiny : normal;
    uint32_t out;
    std::memcpy(&out, &chosen, 4);
    out |= sign;
    float y;
    std::memcpy(&y, &out, 4);
    return r != r ? r : y;
}

template <int DROPPED>
static void quantize(const float* x, const float* scale, i64 row_step, i64 column_step, float* y, i64 T, i64 n, float largest,
                     float smallest, float magic, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        const float *row = x + t * n, *s = scale + t * row_step;
        float* out = y + t * n;
        if (column_step)
            for (i64 i = 0; i < n; ++i) out[i] = nearest<DROPPED>(row[i] / s[i], largest, smallest, magic);
        else {
            const float one = s[0];
            for (i64 i = 0; i < n; ++i) out[i] = nearest<DROPPED>(row[i] / one, largest, smallest, magic);
        }
    }
}

// form: 0 e4m3 (three bits of fraction, down to 2^-6, then steps of 2^-9), 1 e5m2 (two, 2^-14, 2^-16)
EXPORT void fp8_quantize(int form, const float* x, const float* scale, i64 row_step, i64 column_step, float* y, i64 T, i64 n,
                         int threads) {
    if (form == 0) quantize<20>(x, scale, row_step, column_step, y, T, n, 448.0f, 0x1p-6f, 0x1.8p14f, threads);
    if (form == 1) quantize<21>(x, scale, row_step, column_step, y, T, n, 57344.0f, 0x1p-14f, 0x1.8p7f, threads);
}
