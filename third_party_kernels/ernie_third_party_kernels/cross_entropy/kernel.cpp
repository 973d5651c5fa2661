// Loss and slopes of rows of logits, in place: -log softmax at the label, and softmax - onehot. All passes over a row are
// made while it is in cache, so that memory sees the logits once.
#include "../blocks.h"
#include <cmath>

static inline vec larger(vec a, vec b) { return a > b ? a : b; }

static inline float each(vec x, float (*with)(float, float)) {
    float found = x[0];
    for (int j = 1; j < W; ++j) found = with(found, x[j]);
    return found;
}

// The last columns, fewer than a register; the others hold `fill`.
static inline vec tail(const float* row, i64 columns, float fill) {
    vec x = all(fill);
    for (i64 j = 0; j < columns; ++j) x[j] = row[j];
    return x;
}

static float highest_of(const float* row, i64 V) {
    vec top[4] = {all(row[0]), all(row[0]), all(row[0]), all(row[0])};
    i64 i = 0;
    for (; i + 4 * W <= V; i += 4 * W)
        for (int j = 0; j < 4; ++j) top[j] = larger(get(row + i + j * W), top[j]);
    for (; i + W <= V; i += W) top[0] = larger(get(row + i), top[0]);
    top[1] = larger(tail(row + i, V - i, row[0]), top[1]);
    return each(larger(larger(top[0], top[1]), larger(top[2], top[3])), [](float a, float b) { return a > b ? a : b; });
}

// Sum of e^(x - highest), each written if `keep`. NaN if any x is not finite: x - x is 0 for all others.
static float sum_of_powers(float* row, i64 V, float highest, bool keep) {
    const float log2e = 1.44269504088896341f;
    const vec above = all(highest);
    vec sums[4] = {}, doubt = {};
    i64 i = 0;
    for (; i + 4 * W <= V; i += 4 * W)
        for (int j = 0; j < 4; ++j) {
            const vec x = get(row + i + j * W), e = power_of_two((x - above) * log2e);
            doubt += x - x;
            sums[j] += e;
            if (keep) put(row + i + j * W, e);
        }
    for (; i + W <= V; i += W) {
        const vec x = get(row + i), e = power_of_two((x - above) * log2e);
        doubt += x - x;
        sums[0] += e;
        if (keep) put(row + i, e);
    }
    if (i < V) {
        const vec x = tail(row + i, V - i, highest - 1000.0f), e = power_of_two((x - above) * log2e);
        for (i64 j = 0; i + j < V; ++j) {
            sums[1][j] += e[j];
            doubt[j] += x[j] - x[j];
            if (keep) row[i + j] = e[j];
        }
    }
    const vec total = (sums[0] + sums[1]) + (sums[2] + sums[3]) + doubt;
    return each(total, [](float a, float b) { return a + b; });
}

EXPORT void cross_entropy(float* logits, const i64* labels, float* loss, i64 T, i64 V, int slopes, int threads) {
    share_out(T, threads, [=](i64 t) {
        float* row = logits + t * V;
        const float highest = highest_of(row, V), at_label = row[labels[t]];
        const float sum = sum_of_powers(row, V, highest, slopes != 0);
        loss[t] = (highest - at_label) + std::log(sum);
        if (!slopes) return;
        const float scale = 1.0f / sum;
        for (i64 i = 0; i < V; ++i) row[i] *= scale;
        row[labels[t]] -= 1.0f;
    });
}
