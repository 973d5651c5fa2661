// The routed experts for a few tokens: matrix-vector products that read each weight once, in the order in which it lies
// in memory. Tiles of columns go to threads; what is summed within a tile never depends on their number.
#include "../common.h"
#include <cstdlib>

enum { TILE = 64 };

// acc[0 .. n) += x W[:, 0 .. n) for W of `rows` rows, `step` apart
static inline void add_product(const float* x, const float* W, i64 rows, i64 step, float* acc, i64 n) {
    if (n == TILE) {
        wide a0 = load(acc), a1 = load(acc + 16), a2 = load(acc + 32), a3 = load(acc + 48);
        for (i64 r = 0; r < rows; ++r) {
            const float* w = W + r * step;
            const float f = x[r];
            a0 += f * load(w);
            a1 += f * load(w + 16);
            a2 += f * load(w + 32);
            a3 += f * load(w + 48);
        }
        store(acc, a0), store(acc + 16, a1), store(acc + 32, a2), store(acc + 48, a3);
        return;
    }
    for (i64 r = 0; r < rows; ++r)
        for (i64 i = 0; i < n; ++i) acc[i] += x[r] * W[r * step + i];
}

// 0, or 1 for an expert that does not exist, or 2 when memory is out. experts [T, k]: -1 is left out.
EXPORT int decode_experts(const float* x, const float* gate, const float* up, const float* down, const i64* experts,
                          const float* weights, float* y, i64 T, i64 k, i64 E, i64 H, i64 I, int threads) {
    const i64 N = T * k, wide_tiles = (I + TILE - 1) / TILE, tiles = (H + TILE - 1) / TILE;
    for (i64 n = 0; n < N; ++n)
        if (experts[n] < -1 || experts[n] >= E) return 1;
    float* act = static_cast<float*>(std::malloc(sizeof(float) * static_cast<size_t>(N * I)));
    if (!act) return 2;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (i64 item = 0; item < N * wide_tiles; ++item) {
            const i64 n = item / wide_tiles, first = item % wide_tiles * TILE, e = experts[n];
            if (e < 0) continue;
            const i64 width = first + TILE < I ? TILE : I - first;
            float g[TILE] = {}, u[TILE] = {};
            add_product(x + n / k * H, gate + e * H * I + first, H, I, g, width);
            add_product(x + n / k * H, up + e * H * I + first, H, I, u, width);
            float* out = act + n * I + first;
            for (i64 i = 0; i < width; ++i) out[i] = weights[n] * g[i] * u[i] / (1.0f + exp_(-g[i]));
        }
#pragma omp for schedule(static)
        for (i64 item = 0; item < T * tiles; ++item) {
            const i64 t = item / tiles, first = item % tiles * TILE;
            const i64 width = first + TILE < H ? TILE : H - first;
            float sums[TILE] = {};
            for (i64 n = t * k; n < t * k + k; ++n)
                if (experts[n] >= 0) add_product(act + n * I, down + experts[n] * I * H + first, I, H, sums, width);
            for (i64 i = 0; i < width; ++i) y[t * H + first + i] = sums[i];
        }
    }
    std::free(act);
    return 0;
}
