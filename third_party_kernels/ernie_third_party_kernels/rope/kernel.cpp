// Rotation of pairs: (a, b) -> (a cos - b sin, b cos + a sin). Pair i is (2i, 2i + 1), or (i, i + d/2) with `halves`. The
// gradient is the rotation by the opposite angle (sign = -1). Tables of several axes are tables of one per position. Heads from
// `turned` on are copied.
#include "../common.h"

static inline void adjacent(const float* in, float* out, const float* c, const float* s, i64 half, float sign) {
    for (i64 i = 0; i < half; ++i) {
        const float a = in[2 * i], b = in[2 * i + 1], si = sign * s[i];
        out[2 * i] = a * c[i] - b * si;
        out[2 * i + 1] = b * c[i] + a * si;
    }
}

static inline void by_halves(const float* in, float* out, const float* c, const float* s, i64 half, float sign) {
    for (i64 i = 0; i < half; ++i) {
        const float a = in[i], b = in[i + half], si = sign * s[i];
        out[i] = a * c[i] - b * si;
        out[i + half] = b * c[i] + a * si;
    }
}

EXPORT void rotate(const float* x, const float* cos, const float* sin, float* y, i64 B, i64 S, i64 h, i64 turned,
                   i64 d, i64 table_step, float sign, int halves, int threads) {
    const i64 half = d / 2;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < B * S; ++t) {
        const i64 at = (t / S) * table_step + (t % S) * half;
        for (i64 n = 0; n < turned; ++n) {
            const i64 place = (t * h + n) * d;
            (halves ? by_halves : adjacent)(x + place, y + place, cos + at, sin + at, half, sign);
        }
        const i64 rest = (t * h + turned) * d;
        std::memcpy(y + rest, x + rest, sizeof(float) * static_cast<size_t>((h - turned) * d));
    }
}
