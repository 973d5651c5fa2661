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

// Keys, or values, that all query heads of a group pass over before the next ones: few enough for the nearest cache.
constexpr i64 NEAR = 32;

// scores [R, keys], `apart` from row to row = q k of R query heads, for keys of N x 16 numbers `step` apart; N 0: any size
template <int N, int R>
static void score(const float* q, const float* keys, i64 step, i64 count, i64 size, float* scores, i64 apart) {
    if constexpr (N > 0) {
        wide part[R][N];
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < N; ++n) part[r][n] = load(q + r * size + 16 * n);
        for (i64 j = 0; j < count; ++j) {
            wide sum[R];
            const wide first = load(keys + j * step);
            for (int r = 0; r < R; ++r) sum[r] = part[r][0] * first;
            for (int n = 1; n < N; ++n) {
                const wide key = load(keys + j * step + 16 * n);
                for (int r = 0; r < R; ++r) sum[r] += part[r][n] * key;
            }
            for (int r = 0; r < R; ++r) scores[r * apart + j] = sum_of(sum[r]);
        }
    } else {
        for (int r = 0; r < R; ++r)
            for (i64 j = 0; j < count; ++j) scores[r * apart + j] = dot(q + r * size, keys + j * step, size);
    }
}

// y [R, size] += weights [R, count], `apart`, times values
template <int N, int R>
static void blend(const float* weights, i64 apart, const float* values, i64 step, i64 count, i64 size, float* y) {
    if constexpr (N > 0) {
        wide sums[R][N];
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < N; ++n) sums[r][n] = load(y + r * size + 16 * n);
        for (i64 j = 0; j < count; ++j)
            for (int n = 0; n < N; ++n) {
                const wide value = load(values + j * step + 16 * n);
                for (int r = 0; r < R; ++r) sums[r][n] += weights[r * apart + j] * value;
            }
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < N; ++n) store(y + r * size + 16 * n, sums[r][n]);
    } else {
        for (int r = 0; r < R; ++r)
            for (i64 j = 0; j < count; ++j)
                for (i64 i = 0; i < size; ++i) y[r * size + i] += weights[r * apart + j] * values[j * step + i];
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

// The query heads `group` of one key head, q and y [group, size]; scores [group, count]
template <int N>
static void attend_as(const float* q, const float* keys, const float* values, i64 step, i64 count, const uint8_t* seen,
                      i64 group, i64 size, float scale, float* scores, float* y) {
    const auto by_blocks = [&](const auto& pair, const auto& one) {
        for (i64 j = 0; j < count; j += NEAR) {
            const i64 some = count - j < NEAR ? count - j : NEAR;
            i64 r = 0;
            for (; r + 2 <= group; r += 2) pair(r, j, some);
            if (r < group) one(r, j, some);
        }
    };
    by_blocks(
        [&](i64 r, i64 j, i64 n) { score<N, 2>(q + r * size, keys + j * step, step, n, size, scores + r * count + j, count); },
        [&](i64 r, i64 j, i64 n) { score<N, 1>(q + r * size, keys + j * step, step, n, size, scores + r * count + j, count); });
    for (i64 r = 0; r < group; ++r) softmax_seen(scores + r * count, seen, count, scale);
    for (i64 i = 0; i < group * size; ++i) y[i] = 0;
    by_blocks(
        [&](i64 r, i64 j, i64 n) { blend<N, 2>(scores + r * count + j, count, values + j * step, step, n, size, y + r * size); },
        [&](i64 r, i64 j, i64 n) { blend<N, 1>(scores + r * count + j, count, values + j * step, step, n, size, y + r * size); });
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
