// Passes over one row that is in cache: its maximum, and powers of what is below it. Tails of less than a register are
// loaded and stored element by element.
#pragma once
#include "blocks.h"

constexpr float LOG2E = 1.44269504088896341f;

// 1 / (1 + e^-x); e^-x ends at 2^126.
static inline vec sigmoid(vec x) {
    const vec power = x * -LOG2E;
    return 1.0f / (1.0f + power_of_two(power > 126.0f ? all(126.0f) : power));
}

static inline vec larger(vec a, vec b) { return a > b ? a : b; }

// The last columns, fewer than a register; the others hold `fill`.
static inline vec get_some(const float* row, i64 columns, float fill) {
    vec x = all(fill);
    for (i64 j = 0; j < columns; ++j) x[j] = row[j];
    return x;
}

static inline void put_some(float* row, i64 columns, vec x) {
    for (i64 j = 0; j < columns; ++j) row[j] = x[j];
}

static inline float sum_over(vec x) {
    float sum = 0;
    for (int j = 0; j < W; ++j) sum += x[j];
    return sum;
}

static inline float highest_of(const float* row, i64 N) {
    vec top[4] = {all(row[0]), all(row[0]), all(row[0]), all(row[0])};
    i64 i = 0;
    for (; i + 4 * W <= N; i += 4 * W)
        for (int j = 0; j < 4; ++j) top[j] = larger(get(row + i + j * W), top[j]);
    for (; i + W <= N; i += W) top[0] = larger(get(row + i), top[0]);
    top[1] = larger(get_some(row + i, N - i, row[0]), top[1]);
    const vec best = larger(larger(top[0], top[1]), larger(top[2], top[3]));
    float found = best[0];
    for (int j = 1; j < W; ++j) found = best[j] > found ? best[j] : found;
    return found;
}

// Sum of e^(x - highest), each written if KEEP. With DOUBT it is NaN if any x is not finite: x - x is 0 for all others.
template <bool KEEP, bool DOUBT>
static inline float sum_of_powers(float* row, i64 N, float highest) {
    const vec above = all(highest);
    vec sums[4] = {}, doubt = {};
    i64 i = 0;
    for (; i + 4 * W <= N; i += 4 * W)
        for (int j = 0; j < 4; ++j) {
            const vec x = get(row + i + j * W), e = power_of_two((x - above) * LOG2E);
            if (DOUBT) doubt += x - x;
            sums[j] += e;
            if (KEEP) put(row + i + j * W, e);
        }
    for (; i + W <= N; i += W) {
        const vec x = get(row + i), e = power_of_two((x - above) * LOG2E);
        if (DOUBT) doubt += x - x;
        sums[0] += e;
        if (KEEP) put(row + i, e);
    }
    if (i < N) {
        const vec x = get_some(row + i, N - i, highest - 1000.0f), e = power_of_two((x - above) * LOG2E);
        for (i64 j = 0; i + j < N; ++j) {
            sums[1][j] += e[j];
            if (DOUBT) doubt[j] += x[j] - x[j];
        }
        if (KEEP) put_some(row + i, N - i, e);
    }
    return sum_over((sums[0] + sums[1]) + (sums[2] + sums[3]) + doubt);
}
