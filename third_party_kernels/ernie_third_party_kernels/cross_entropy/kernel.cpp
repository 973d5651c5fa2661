// Loss and slopes of rows of logits, in place: -log softmax at the label, and softmax - onehot. All passes over a row are
// made while it is in cache, so that memory sees the logits once.
#include "../rows.h"
#include <cmath>

EXPORT void cross_entropy(float* logits, const i64* labels, float* loss, i64 T, i64 V, int slopes, int threads) {
    share_out(T, threads, [=](i64 t) {
        float* row = logits + t * V;
        const float highest = highest_of(row, V), at_label = row[labels[t]];
        const float sum = slopes ? sum_of_powers<true, true>(row, V, highest) : sum_of_powers<false, true>(row, V, highest);
        loss[t] = (highest - at_label) + std::log(sum);
        if (!slopes) return;
        const float scale = 1.0f / sum;
        for (i64 i = 0; i < V; ++i) row[i] *= scale;
        row[labels[t]] -= 1.0f;
    });
}
