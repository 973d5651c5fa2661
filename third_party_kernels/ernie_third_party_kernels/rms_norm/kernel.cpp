// RMS norm over rows: y = w x r with r = 1 / sqrt(mean(x^2) + epsilon), and its gradients. One row at a time, both passes
// over a row in cache. Gradients of w are summed by column, always from the first row to the last.
#include "../common.h"
#include <cmath>

EXPORT void rms_norm_forward(const float* x, const float* w, float* y, float* inverse, i64 T, i64 H, float epsilon,
                             int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        const float* row = x + t * H;
        float* out = y + t * H;
        const float r = 1.0f / std::sqrt(dot(row, row, H) / static_cast<float>(H) + epsilon);
        if (inverse) inverse[t] = r;
        for (i64 i = 0; i < H; ++i) out[i] = w[i] * r * row[i];
    }
}

EXPORT void rms_norm_backward(const float* x, const float* w, const float* inverse, const float* dy, float* dx, float* dw,
                              i64 T, i64 H, int threads) {
    if (dx) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (i64 t = 0; t < T; ++t) {
            const float *row = x + t * H, *g = dy + t * H;
            float* out = dx + t * H;
            wide sums = {};
            i64 i = 0;
            for (; i + 16 <= H; i += 16) sums += load(w + i) * load(g + i) * load(row + i);
            float along = sum_of(sums);
            for (; i < H; ++i) along += w[i] * g[i] * row[i];
            const float r = inverse[t], less = along * r * r * r / static_cast<float>(H);
            for (i = 0; i < H; ++i) out[i] = r * w[i] * g[i] - less * row[i];
        }
    }
    if (dw) {
        const i64 width = 64, blocks = (H + width - 1) / width;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (i64 b = 0; b < blocks; ++b) {
            const i64 first = b * width, n = first + width < H ? width : H - first;
            float sums[64] = {};
            for (i64 t = 0; t < T; ++t) {
                const float *row = x + t * H + first, *g = dy + t * H + first;
                const float r = inverse[t];
                if (n == width)
                    for (i64 i = 0; i < width; ++i) sums[i] += r * g[i] * row[i];
                else
                    for (i64 i = 0; i < n; ++i) sums[i] += r * g[i] * row[i];
            }
            for (i64 i = 0; i < n; ++i) dw[first + i] = sums[i];
        }
    }
}
