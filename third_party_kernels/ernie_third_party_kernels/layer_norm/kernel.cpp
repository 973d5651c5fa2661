// Layer norm over rows: y = w (x - m) r + b with m the mean and r = 1 / sqrt(mean((x - m)^2) + epsilon), and its gradients. One
// row at a time, all passes over a row in cache. Gradients of w and b are summed over parts of the rows, and those in order.
#include "../row_parts.h"
#include <cmath>

// Sum of a row in a fixed order: four chains of 16 columns, then the tail.
static inline float total_of(const float* x, i64 n) {
    wide s0 = {}, s1 = {}, s2 = {}, s3 = {};
    i64 i = 0;
    for (; i + 64 <= n; i += 64) {
        s0 += load(x + i);
        s1 += load(x + i + 16);
        s2 += load(x + i + 32);
        s3 += load(x + i + 48);
    }
    for (; i + 16 <= n; i += 16) s0 += load(x + i);
    float s = sum_of((s0 + s1) + (s2 + s3));
    for (; i < n; ++i) s += x[i];
    return s;
}

static inline wide same(float x) {
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = x;
    return load(values);
}

static inline float squares_around(const float* x, float mean, i64 n) {
    const wide m = same(mean);
    wide s0 = {}, s1 = {};
    i64 i = 0;
    for (; i + 32 <= n; i += 32) {
        const wide a = load(x + i) - m, b = load(x + i + 16) - m;
        s0 += a * a;
        s1 += b * b;
    }
    float s = sum_of(s0 + s1);
    for (; i < n; ++i) s += (x[i] - mean) * (x[i] - mean);
    return s;
}

EXPORT void layer_norm_forward(const float* x, const float* w, const float* b, float* y, float* means, float* inverse, i64 T,
                               i64 H, float epsilon, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        const float* row = x + t * H;
        float* out = y + t * H;
        const float mean = total_of(row, H) / static_cast<float>(H);
        const float r = 1.0f / std::sqrt(squares_around(row, mean, H) / static_cast<float>(H) + epsilon);
        means[t] = mean;
        inverse[t] = r;
        for (i64 i = 0; i < H; ++i) out[i] = (row[i] - mean) * r * w[i] + b[i];
    }
}

EXPORT i64 layer_norm_parts(i64 T) { return row_parts(T); }

// dx may be null, and dw and db together; parts [layer_norm_parts(T), 2 H] is room for sums of both.
EXPORT void layer_norm_backward(const float* x, const float* w, const float* means, const float* inverse, const float* dy,
                                float* dx, float* dw, float* db, float* parts, i64 T, i64 H, int threads) {
    const i64 rows = rows_of_part(T), num_parts = row_parts(T);
    share_out(num_parts, threads, [=](i64 part) {
        float *to_w = parts + 2 * part * H, *to_b = to_w + H;
        if (dw) std::memset(to_w, 0, 2 * sizeof(float) * static_cast<size_t>(H));
        for (i64 t = part * rows; t < T && t < (part + 1) * rows; ++t) {
            const float *row = x + t * H, *g = dy + t * H;
            const float r = inverse[t], mean = means[t];
            i64 i = 0;
            if (dx) {
                const wide m = same(mean);
                wide along[2] = {}, across[2] = {};
                for (; i + 32 <= H; i += 32)
                    for (int c = 0; c < 2; ++c) {
                        const wide scaled = load(w + i + 16 * c) * load(g + i + 16 * c);
                        across[c] += scaled;
                        along[c] += scaled * (load(row + i + 16 * c) - m);
                    }
                float sum = sum_of(across[0] + across[1]), product = sum_of(along[0] + along[1]);
                for (; i < H; ++i) {
                    sum += w[i] * g[i];
                    product += w[i] * g[i] * (row[i] - mean);
                }
                const float less = sum / static_cast<float>(H), by = product * r * r / static_cast<float>(H);
                float* out = dx + t * H;
                for (i = 0; i < H; ++i) out[i] = r * (w[i] * g[i] - less - by * (row[i] - mean));
            }
            if (dw)
                for (i = 0; i < H; ++i) {
                    to_w[i] += g[i] * ((row[i] - mean) * r);
                    to_b[i] += g[i];
                }
        }
    });
    if (!dw) return;
    add_parts(parts, 2 * H, num_parts, H, dw);
    add_parts(parts + H, 2 * H, num_parts, H, db);
}
