// softmax over rows, in place; a mask is added to the last m columns first, and rows that see nothing become 0.
//
// Below e^-64 a weight is 0: products with numbers too small to be normal are very slow.
#include "../rows.h"

EXPORT void softmax(float* x, const float* hidden, const float* alive, i64 T, i64 N, i64 m, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        float* row = x + t * N;
        if (alive && alive[t] == 0.0f) {
            std::memset(row, 0, sizeof(float) * static_cast<size_t>(N));
            continue;
        }
        if (hidden) {
            float* last = row + (N - m);
            const float* mask = hidden + t * m;
            for (i64 i = 0; i < m; ++i) last[i] += mask[i];
        }
        const float scale = 1.0f / sum_of_powers<true, false>(row, N, highest_of(row, N));
        for (i64 i = 0; i < N; ++i) row[i] *= scale;
    }
}
