// softmax over rows, in place; a mask is added to the last m columns first, and rows that see nothing become 0.
//
// Below e^-64 a weight is 0: products with numbers too small to be normal are very slow.
#include "../common.h"

static inline float weight_of(float x) {
    const float e = exp_(x);
    return x < -64.0f ? 0.0f : e;
}

EXPORT void softmax(float* x, const float* hidden, const float* alive, i64 T, i64 N, i64 m, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        float* row = x + t * N;
        if (alive && alive[t] == 0.0f) {
            for (i64 i = 0; i < N; ++i) row[i] = 0.0f;
            continue;
        }
        if (hidden) {
            float* last = row + (N - m);
            const float* mask = hidden + t * m;
            for (i64 i = 0; i < m; ++i) last[i] += mask[i];
        }
        float top[16];
        for (int j = 0; j < 16; ++j) top[j] = row[0];
        i64 i = 0;
        for (; i + 16 <= N; i += 16)
            for (int j = 0; j < 16; ++j) top[j] = row[i + j] > top[j] ? row[i + j] : top[j];
        for (; i < N; ++i) top[0] = row[i] > top[0] ? row[i] : top[0];
        float highest = top[0];
        for (int j = 1; j < 16; ++j) highest = top[j] > highest ? top[j] : highest;
        float sums[16] = {};
        for (i = 0; i + 16 <= N; i += 16)
            for (int j = 0; j < 16; ++j) {
                const float e = weight_of(row[i + j] - highest);
                row[i + j] = e;
                sums[j] += e;
            }
        float sum = 0;
        for (; i < N; ++i) {
            row[i] = weight_of(row[i] - highest);
            sum += row[i];
        }
        for (int j = 0; j < 16; ++j) sum += sums[j];
        const float scale = 1.0f / sum;
        for (i = 0; i < N; ++i) row[i] *= scale;
    }
}
