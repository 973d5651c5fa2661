// Rotation of adjacent pairs: (a, b) -> (a cos - b sin, b cos + a sin). The gradient is the rotation by the opposite
// angle (sign = -1).
#include "../common.h"

EXPORT void rotate(const float* x, const float* cos, const float* sin, float* y, i64 B, i64 S, i64 h, i64 d,
                   i64 table_step, float sign, int threads) {
    const i64 half = d / 2;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < B * S; ++t) {
        const i64 at = (t / S) * table_step + (t % S) * half;
        const float *c = cos + at, *s = sin + at;
        for (i64 n = 0; n < h; ++n) {
            const float* in = x + (t * h + n) * d;
            float* out = y + (t * h + n) * d;
            for (i64 i = 0; i < half; ++i) {
                const float a = in[2 * i], b = in[2 * i + 1], si = sign * s[i];
                out[2 * i] = a * c[i] - b * si;
                out[2 * i + 1] = b * c[i] + a * si;
            }
        }
    }
}
