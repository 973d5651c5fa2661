// Products of small matrices that stay in cache, register-blocked, and what goes around them: turning blocks by 90 degrees
// and powers of two. For blocks of attention; whole matrices belong to the BLAS.
#pragma once
#include "common.h"

// C[M, N] = or += A[M, depth] B[depth, N], N in registers. A may have any strides: its elements are broadcast.
template <int M, int N>
static inline void tile(const float* a, i64 a_m, i64 a_k, const float* b, i64 b_k, float* c, i64 c_m, i64 depth, bool add) {
    vec s[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) s[m][n] = vec{};
    for (i64 k = 0; k < depth; ++k, a += a_k, b += b_k) {
        vec row[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) row[n] = get(b + n * W);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const vec x = all(a[m * a_m]);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) s[m][n] += x * row[n];
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            float* place = c + m * c_m + n * W;
            put(place, add ? get(place) + s[m][n] : s[m][n]);
        }
}

// The last M rows, fewer than a whole tile.
template <int M, int N>
static inline void rest(i64 rows, const float* a, i64 a_m, i64 a_k, const float* b, i64 b_k, float* c, i64 c_m, i64 depth,
                        bool add) {
    if constexpr (M > 0) {
        if (rows == M)
            tile<M, N>(a, a_m, a_k, b, b_k, c, c_m, depth, add);
        else
            rest<M - 1, N>(rows, a, a_m, a_k, b, b_k, c, c_m, depth, add);
    }
}

// N registers of columns; M so that the sums fill the registers and leave room for a row of B.
template <int N>
static inline void columns(const float* a, i64 a_m, i64 a_k, const float* b, i64 b_k, float* c, i64 c_m, i64 rows, i64 depth,
                           bool add) {
    constexpr int M = W == 16 ? (N == 4 ? 6 : N == 3 ? 8 : 12) : (N == 2 ? 6 : 12);
    i64 m = 0;
    for (; m + M <= rows; m += M) tile<M, N>(a + m * a_m, a_m, a_k, b, b_k, c + m * c_m, c_m, depth, add);
    rest<M - 1, N>(rows - m, a + m * a_m, a_m, a_k, b, b_k, c + m * c_m, c_m, depth, add);
}

// C[rows, wide W] = or += A[rows, depth] B[depth, wide W].
static void multiply(const float* a, i64 a_m, i64 a_k, const float* b, i64 b_k, float* c, i64 c_m, i64 rows, i64 wide,
                     i64 depth, bool add) {
    constexpr int most = W == 16 ? 4 : 2;
    i64 n = 0;
    for (; n + most <= wide; n += most) columns<most>(a, a_m, a_k, b + n * W, b_k, c + n * W, c_m, rows, depth, add);
    if constexpr (most == 4) {
        if (wide - n == 3) columns<3>(a, a_m, a_k, b + n * W, b_k, c + n * W, c_m, rows, depth, add);
        if (wide - n == 2) columns<2>(a, a_m, a_k, b + n * W, b_k, c + n * W, c_m, rows, depth, add);
    }
    if (wide - n == 1) columns<1>(a, a_m, a_k, b + n * W, b_k, c + n * W, c_m, rows, depth, add);
}

// 2^x to 2 units in the last place; 0 below e^-64, as numbers that are not normal are slow; NaN stays NaN.
static inline vec power_of_two(vec x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const vec n = x + magic, r = x - (n - magic);
    vec p = r * 1.5337576834e-4f + 1.3399860363e-3f;  // least squares of the relative error on [-1/2, 1/2]
    p = p * r + 9.6185195343e-3f;
    p = p * r + 5.5503289975e-2f;
    p = p * r + 2.4022646609e-1f;
    p = p * r + 6.9314720560e-1f;
    p = p * r + 1.0f;
    const vec y = reinterpret_cast<vec>(reinterpret_cast<ivec>(p) + (reinterpret_cast<ivec>(n) << 23));
    return x < -92.0f ? vec{} : y;
}

#if defined(__GNUC__) && !defined(__clang__)
// W x W in registers: rows become columns in log2 W rounds.
static inline void turn(vec (&x)[W]) {
#pragma GCC unroll 4
    for (int step = 1; step < W; step *= 2) {
        ivec low, high;
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) {
            low[i] = i & step ? W + i - step : i;
            high[i] = i & step ? W + i : i + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i)
            if (!(i & step)) {
                const vec a = x[i], b = x[i + step];
                x[i] = __builtin_shuffle(a, b, low);
                x[i + step] = __builtin_shuffle(a, b, high);
            }
    }
}
#else
static inline void turn(vec (&x)[W]) {
    for (int i = 0; i < W; ++i)
        for (int j = 0; j < i; ++j) {
            const float swapped = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = swapped;
        }
}
#endif

// to[j, i] = factor from[i, j] for i < rows, j < cols; columns of `to` beyond rows, up to a whole register, become 0.
static void turned(const float* from, i64 from_i, i64 rows, i64 cols, float* to, i64 to_j, float factor) {
    for (i64 i = 0; i < rows; i += W)
        for (i64 j = 0; j < cols; j += W) {
            vec x[W];
            if (i + W <= rows && j + W <= cols) {
                for (int r = 0; r < W; ++r) x[r] = get(from + (i + r) * from_i + j) * factor;
            } else {
                for (int r = 0; r < W; ++r)
                    for (int s = 0; s < W; ++s)
                        x[r][s] = i + r < rows && j + s < cols ? from[(i + r) * from_i + j + s] * factor : 0.0f;
            }
            turn(x);
            for (int s = 0; s < W && j + s < cols; ++s) put(to + (j + s) * to_j + i, x[s]);
        }
}

// The way back: to[i, j] = from[j, i] for i < rows, j < cols; `from` has whole registers of i.
static void turned_back(const float* from, i64 from_j, float* to, i64 to_i, i64 rows, i64 cols) {
    for (i64 i = 0; i < rows; i += W)
        for (i64 j = 0; j < cols; j += W) {
            vec x[W];
            for (int s = 0; s < W; ++s) x[s] = j + s < cols ? get(from + (j + s) * from_j + i) : vec{};
            turn(x);
            for (int r = 0; r < W && i + r < rows; ++r) {
                if (j + W <= cols)
                    put(to + (i + r) * to_i + j, x[r]);
                else
                    for (int s = 0; j + s < cols; ++s) to[(i + r) * to_i + j + s] = x[r][s];
            }
        }
}
