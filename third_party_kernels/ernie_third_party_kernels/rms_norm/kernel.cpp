// RMS norm over rows: y = w x r with r = 1 / sqrt(mean(x^2) + epsilon), and its gradients. One row at a time, both passes
// over a row in cache. Gradients of w are summed over parts of the rows, and those in order.
#include "../row_parts.h"
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

EXPORT i64 rms_norm_parts(i64 T) { return row_parts(T); }

// dx and dw may be null; parts [rms_norm_parts(T), H] is room for sums.
EXPORT void rms_norm_backward(const float* x, const float* w, const float* inverse, const float* dy, float* dx, float* dw,
                              float* parts, i64 T, i64 H, int threads) {
    const i64 rows = rows_of_part(T), num_parts = row_parts(T);
    share_out(num_parts, threads, [=](i64 part) {
        float* sums = parts + part * H;
        if (dw) std::memset(sums, 0, sizeof(float) * static_cast<size_t>(H));
        for (i64 t = part * rows; t < T && t < (part + 1) * rows; ++t) {
            const float *row = x + t * H, *g = dy + t * H;
            const float r = inverse[t];
            i64 i = 0;
            if (dx) {
                float* out = dx + t * H;
                wide chains[2] = {};
                for (; i + 32 <= H; i += 32) {
                    chains[0] += load(w + i) * load(g + i) * load(row + i);
                    chains[1] += load(w + i + 16) * load(g + i + 16) * load(row + i + 16);
                }
                float along = sum_of(chains[0] + chains[1]);
                for (; i < H; ++i) along += w[i] * g[i] * row[i];
                const float less = along * r * r * r / static_cast<float>(H);
                for (i = 0; i < H; ++i) out[i] = r * w[i] * g[i] - less * row[i];
            }
            if (dw)
                for (i = 0; i < H; ++i) sums[i] += r * g[i] * row[i];
        }
    });
    if (dw) add_parts(parts, H, num_parts, H, dw);
}
