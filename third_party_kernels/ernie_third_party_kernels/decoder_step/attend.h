// Norms, rotary positions, and attention of new positions over the cache of their row.
#pragma once
#include <cmath>

#include "plan.h"

static void norm_row(const float* x, const float* weight, i64 size, float epsilon, float* y) {
    const float r = 1.0f / std::sqrt(dot(x, x, size) / static_cast<float>(size) + epsilon);
    for (i64 i = 0; i < size; ++i) y[i] = weight[i] * r * x[i];
}

// Pairs (a, b) -> (a cos - b sin, b cos + a sin)
static void turn_head(const float* x, const float* cosine, const float* sine, i64 size, float* y) {
    for (i64 i = 0; i < size / 2; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cosine[i] - b * sine[i];
        y[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

// scores [keys] = q k, for keys of N x 16 numbers `step` apart; N 0: any size
template <int N>
static void score(const float* q, const float* keys, i64 step, i64 count, i64 size, float* scores) {
    if constexpr (N > 0) {
        wide part[N];
        for (int n = 0; n < N; ++n) part[n] = load(q + 16 * n);
        for (i64 j = 0; j < count; ++j) {
            wide sum = part[0] * load(keys + j * step);
            for (int n = 1; n < N; ++n) sum += part[n] * load(keys + j * step + 16 * n);
            scores[j] = sum_of(sum);
        }
    } else {
        for (i64 j = 0; j < count; ++j) scores[j] = dot(q, keys + j * step, size);
    }
}

// y [size] = weights [count] values
template <int N>
static void blend(const float* weights, const float* values, i64 step, i64 count, i64 size, float* y) {
    if constexpr (N > 0) {
        wide sums[N] = {};
        for (i64 j = 0; j < count; ++j)
            for (int n = 0; n < N; ++n) sums[n] += weights[j] * load(values + j * step + 16 * n);
        for (int n = 0; n < N; ++n) store(y + 16 * n, sums[n]);
    } else {
        for (i64 i = 0; i < size; ++i) y[i] = 0;
        for (i64 j = 0; j < count; ++j)
            for (i64 i = 0; i < size; ++i) y[i] += weights[j] * values[j * step + i];
    }
}

// In place: softmax of what is seen, 0 elsewhere; all 0 where nothing is seen
static void softmax_seen(float* scores, const uint8_t* seen, i64 count, float scale) {
    float highest = -1e30f;
    for (i64 j = 0; j < count; ++j) {
        scores[j] = seen && !seen[j] ? -1e30f : scores[j] * scale;
        highest = scores[j] > highest ? scores[j] : highest;
    }
    for (i64 j = 0; j < count; ++j) {
        const float e = exp_(scores[j] - highest);
        scores[j] = scores[j] - highest < -64.0f ? 0.0f : e;
    }
    if (seen)
        for (i64 j = 0; j < count; ++j) scores[j] = seen[j] ? scores[j] : 0.0f;
    float sum = 0;
    for (i64 j = 0; j < count; ++j) sum += scores[j];
    const float factor = sum > 0 ? 1.0f / sum : (sum != sum ? sum : 0.0f);
    for (i64 j = 0; j < count; ++j) scores[j] *= factor;
}

// The query heads `group` of one key head, q and y [group, size]
template <int N>
static void attend_as(const float* q, const float* keys, const float* values, i64 step, i64 count, const uint8_t* seen,
                      i64 group, i64 size, float scale, float* scores, float* y) {
    for (i64 r = 0; r < group; ++r) {
        score<N>(q + r * size, keys, step, count, size, scores);
        softmax_seen(scores, seen, count, scale);
        blend<N>(scores, values, step, count, size, y + r * size);
    }
}

static void attend(const float* q, const float* keys, const float* values, i64 step, i64 count, const uint8_t* seen, i64 group,
                   i64 size, float scale, float* scores, float* y) {
    if (size == 32)
        attend_as<2>(q, keys, values, step, count, seen, group, size, scale, scores, y);
    else if (size == 64)
        attend_as<4>(q, keys, values, step, count, seen, group, size, scale, scores, y);
    else if (size == 128)
        attend_as<8>(q, keys, values, step, count, seen, group, size, scale, scores, y);
    else
        attend_as<0>(q, keys, values, step, count, seen, group, size, scale, scores, y);
}
