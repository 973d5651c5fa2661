// One query position per sequence against a cache: for each key head, scores of its whole group of query heads, softmax,
// and the weighted sum of values. Keys and values are read in place, with their strides.
#include "../common.h"
#include <cstdlib>

EXPORT int decode_attention(const float* q, const float* k, const float* v, const uint8_t* keep, float* out, i64 B, i64 K,
                            i64 hq, i64 hk, i64 d, i64 batch_step, i64 key_step, i64 head_step, float scale, int threads) {
    const i64 group = hq / hk;
    float* scratch = static_cast<float*>(std::malloc(sizeof(float) * static_cast<size_t>(B * hq * K)));
    if (!scratch) return 1;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 n = 0; n < B * hk; ++n) {
        const i64 b = n / hk, head = n % hk;
        const i64 start = b * batch_step + head * head_step;
        const uint8_t* seen = keep ? keep + b * K : nullptr;
        float* p = scratch + n * group * K;
        const float* queries = q + (b * hq + head * group) * d;
        float* result = out + (b * hq + head * group) * d;
        for (i64 j = 0; j < K; ++j)
            for (i64 r = 0; r < group; ++r)
                p[r * K + j] = seen && !seen[j] ? -1e30f : dot(queries + r * d, k + start + j * key_step, d) * scale;
        for (i64 r = 0; r < group; ++r) {
            float *row = p + r * K, *y = result + r * d;
            float highest = row[0];
            for (i64 j = 1; j < K; ++j) highest = row[j] > highest ? row[j] : highest;
            for (i64 j = 0; j < K; ++j) {
                const float e = exp_(row[j] - highest);
                row[j] = row[j] - highest < -64.0f ? 0.0f : e;
            }
            float sum = 0;
            for (i64 j = 0; j < K; ++j) {
                if (seen && !seen[j]) row[j] = 0;
                sum += row[j];
            }
            for (i64 i = 0; i < d; ++i) y[i] = 0;
            const float scale_r = sum > 0 ? 1.0f / sum : (sum != sum ? sum : 0.0f);
            for (i64 j = 0; j < K; ++j) row[j] *= scale_r;
        }
        for (i64 j = 0; j < K; ++j) {
            const float* value = v + start + j * key_step;
            for (i64 r = 0; r < group; ++r) {
                float* y = result + r * d;
                const float w = p[r * K + j];
                for (i64 i = 0; i < d; ++i) y[i] += w * value[i];
            }
        }
    }
    std::free(scratch);
    return 0;
}
