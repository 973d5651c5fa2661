// Tiles of products of a few rows with a matrix that is read once, whatever it is stored as. What an output sums up, and in
// which order, depends neither on the tile nor on the rows beside it.
#pragma once
#include "../blocks.h"
#include "../bfloat16_weights/bfloats.h"
#include "../packed_weights/product.h"
#include "tiles.h"

// Rows of a matrix [in, out] that are worked on together: so many streams of memory, each read from left to right, and sums
// that are loaded and stored once for all of them.
constexpr int DEPTH = 16;
// Rows of x beyond which a matrix is passed over by columns: it is then read from the cache more often than from memory.
constexpr i64 MANY = 16;

static inline float number(float x) { return x; }
static inline float number(uint16_t x) { return widened_one(x); }

// sums [M, N W] += x [M, depth] w [depth, N W], all in registers
template <int M, int N, class T>
static inline void add_registers(const float* x, i64 x_step, const T* w, i64 w_step, i64 depth, float* sums, i64 step) {
    vec s[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) s[m][n] = get(sums + m * step + n * W);
    for (i64 k = 0; k < depth; ++k) {
        vec v[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            __builtin_prefetch(w + (k + DEPTH) * w_step + n * W);  // work hides the way from memory only if it starts early
            v[n] = get(w + k * w_step + n * W);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const vec f = all(x[m * x_step + k]);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) s[m][n] += f * v[n];
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) put(sums + m * step + n * W, s[m][n]);
}

// The same for one row and a whole block of matrix rows: nothing to share but the sums. Rows of a matrix are often apart by a
// multiple of the page, where the processor does not fetch ahead by itself.
template <class T>
static inline void add_row(const float* x, const T* w, i64 w_step, float* sums) {
    vec s = get(sums);
#pragma GCC unroll 16
    for (int k = 0; k < DEPTH; ++k) {
        __builtin_prefetch(w + (k + DEPTH) * w_step, 0, 2);
        s += get(w + k * w_step) * all(x[k]);
    }
    put(sums, s);
}

// sums [M, n] += x [M, depth] w [depth, n]
template <int M, class T>
static inline void add_columns(const float* x, i64 x_step, const T* w, i64 w_step, i64 depth, i64 n, float* sums, i64 step) {
    constexpr int N = M == 8 ? 3 : M == 4 && W < 16 ? 2 : 4;
    i64 c = 0;
    if (M == 1 && depth == DEPTH) {
        for (; c + W <= n; c += W) add_row(x, w + c, w_step, sums + c);
    } else {
        for (; c + N * W <= n; c += N * W) add_registers<M, N>(x, x_step, w + c, w_step, depth, sums + c, step);
        for (; c + W <= n; c += W) add_registers<M, 1>(x, x_step, w + c, w_step, depth, sums + c, step);
    }
    for (; c < n; ++c)
        for (int m = 0; m < M; ++m) {
            float s = sums[m * step + c];
            for (i64 k = 0; k < depth; ++k) s += number(w[k * w_step + c]) * x[m * x_step + k];
            sums[m * step + c] = s;
        }
}

template <class T>
static inline void add_rows(const float* x, i64 x_step, i64 rows, const T* w, i64 w_step, i64 depth, i64 n, float* sums,
                            i64 step) {
    i64 m = 0;
    if (W == 16)
        for (; m + 8 <= rows; m += 8) add_columns<8>(x + m * x_step, x_step, w, w_step, depth, n, sums + m * step, step);
    for (; m + 4 <= rows; m += 4) add_columns<4>(x + m * x_step, x_step, w, w_step, depth, n, sums + m * step, step);
    for (; m + 2 <= rows; m += 2) add_columns<2>(x + m * x_step, x_step, w, w_step, depth, n, sums + m * step, step);
    for (; m < rows; ++m) add_columns<1>(x + m * x_step, x_step, w, w_step, depth, n, sums + m * step, step);
}

template <class T>
static void columns_tile(const Matrix& matrix, i64 expert, const float* x, i64 rows, i64 first, i64 n, float* sums, i64 step) {
    const i64 inputs = matrix.inputs, w_step = matrix.outputs;
    const T* w = static_cast<const T*>(matrix.data) + expert * inputs * w_step + first;
    for (i64 m = 0; m < rows; ++m) std::memset(sums + m * step, 0, sizeof(float) * static_cast<size_t>(n));
    if (rows > MANY) {
        constexpr i64 panel = (W == 16 ? 3 : 2) * W;
        for (i64 c = 0; c < n; c += panel)
            add_rows(x, inputs, rows, w + c, w_step, inputs, n - c < panel ? n - c : panel, sums + c, step);
        return;
    }
    for (i64 k = 0; k < inputs; k += DEPTH)
        add_rows(x + k, inputs, rows, w + k * w_step, w_step, inputs - k < DEPTH ? inputs - k : DEPTH, n, sums, step);
}

template <class Stored, class Code = int8_t>
static void outputs_tile(const Matrix& matrix, i64 expert, const float* x, i64 rows, i64 first, i64 n, float* sums, i64 step) {
    const i64 groups = matrix.group ? (matrix.inputs + matrix.group - 1) / matrix.group : 1;
    const Code* codes = static_cast<const Code*>(matrix.data) + expert * Stored::rows(matrix.outputs) * matrix.inputs;
    const float* scales = matrix.scales ? matrix.scales + expert * matrix.outputs * groups : nullptr;
    outputs<Stored>(codes, scales, matrix.group, x, rows, matrix.inputs, matrix.outputs, first, n, sums, step);
}

// sums += scale (x first) second: what an adapter adds beside the matrix. Each tile makes x first anew, which is small.
static void update_tile(const Matrix& matrix, const float* x, i64 rows, i64 first, i64 n, float* sums, i64 step) {
    enum { ROWS = 8, RANKS = 64 };
    for (i64 m = 0; m < rows; m += ROWS)
        for (i64 r = 0; r < matrix.rank; r += RANKS) {
            const i64 some = rows - m < ROWS ? rows - m : ROWS, ranks = matrix.rank - r < RANKS ? matrix.rank - r : RANKS;
            float low[ROWS * RANKS] = {};
            const float *from = x + m * matrix.inputs, *a = matrix.first + r, *b = matrix.second + r * matrix.outputs + first;
            add_rows(from, matrix.inputs, some, a, matrix.rank, matrix.inputs, ranks, low, RANKS);
            for (i64 i = 0; i < ROWS * RANKS; ++i) low[i] *= static_cast<float>(matrix.scale);
            add_rows(low, RANKS, some, b, matrix.outputs, ranks, n, sums + m * step, step);
        }
}

// sums [rows, n], `step` apart: columns first .. first + n of x [rows, in] W (+ bias). `first` is a multiple of 64.
static void product_tile(const Matrix& matrix, i64 expert, const float* x, i64 rows, i64 first, i64 n, const Splits& splits,
                         float* sums, i64 step) {
    // one row alone is faster without tiles, most of which it would leave empty; whole numbers have the same sums
    const bool alone = rows == 1 && in_integers(matrix), tiles = !alone && in_tiles(matrix);
    const bool integers = alone || (!tiles && in_integers(matrix));
    if (tiles) tiles_tile(matrix, expert, x, rows, first, n, splits, sums, step);
    if (integers) integers_tile(matrix, expert, x, rows, first, n, splits, sums, step);
    switch (tiles || integers ? NONE : matrix.form) {
        case NONE: break;
        case COLUMNS: columns_tile<float>(matrix, expert, x, rows, first, n, sums, step); break;
        case OUTPUTS_FIRST: outputs_tile<Floats>(matrix, expert, x, rows, first, n, sums, step); break;
        case BFLOAT_COLUMNS: columns_tile<uint16_t>(matrix, expert, x, rows, first, n, sums, step); break;
        case BFLOAT_OUTPUTS_FIRST: outputs_tile<Bfloats, uint16_t>(matrix, expert, x, rows, first, n, sums, step); break;
        case INT8: outputs_tile<Int8>(matrix, expert, x, rows, first, n, sums, step); break;
        case INT4: outputs_tile<Halves<false>>(matrix, expert, x, rows, first, n, sums, step); break;
        case NF4_LEVELS: outputs_tile<Halves<true>>(matrix, expert, x, rows, first, n, sums, step); break;
    }
    if (matrix.rank) update_tile(matrix, x, rows, first, n, sums, step);
    if (matrix.bias)
        for (i64 m = 0; m < rows; ++m)
            for (i64 c = 0; c < n; ++c) sums[m * step + c] += matrix.bias[first + c];
}

// Tiles of a matrix: wide ones, as memory is read best in long pieces, but some for every thread. Of few rows, where memory decides,
// more of them if the outputs lie one after the other: a thread takes tiles that follow each other, and none waits long at the end.
struct Tiles {
    i64 outputs, width, count;
    Tiles(const Matrix& matrix, i64 rows, int threads) : outputs(matrix.form ? matrix.outputs : 0), width(Memory::WIDEST) {
        const i64 fewest = threads * (rows <= MANY && stored_bytes(matrix) ? 8 : 2);
        while (width > 64 && outputs < fewest * width) width /= 2;
        count = (outputs + width - 1) / width;
    }
    i64 first(i64 tile) const { return tile * width; }
    i64 size(i64 tile) const { return outputs - first(tile) < width ? outputs - first(tile) : width; }
};
