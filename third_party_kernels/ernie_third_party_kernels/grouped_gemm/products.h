// Products of the rows of one expert, a block at a time, with its matrix: the rows are copied next to each other, so that
// tokens need not lie in the order of the experts. What is summed, and in which order, depends on sizes alone.
#pragma once
#include "../blocks.h"
#include "../scratch.h"
#include <cstdlib>
#include <cstring>

// Rows of a block; of a product, depth and rows that are multiplied at a time: a panel of so much depth stays in the first
// cache. More floats than MOST_AHEAD would push out of the second cache what is worked on.
constexpr i64 ROWS = 96, DEPTH = 128, TALL = 24, MOST_AHEAD = 1 << 16;

static inline i64 up_to(i64 n, i64 step) { return (n + step - 1) / step * step; }

// Some rows, at most ROWS, that go to one expert.
struct Block {
    i64 expert, first, count;
};

// Rows first .. stop of every expert in blocks of nearly one size.
struct Blocks {
    Block* all;
    i64 count;

    Blocks(const i64* starts, i64 experts) : count(0) {
        i64 most = 0;
        for (i64 e = 0; e < experts; ++e) most += (starts[e + 1] - starts[e] + ROWS - 1) / ROWS;
        all = static_cast<Block*>(std::malloc(sizeof(Block) * static_cast<size_t>(most + 1)));
        for (i64 e = 0; all && e < experts; ++e) {
            const i64 rows = starts[e + 1] - starts[e], pieces = (rows + ROWS - 1) / ROWS;
            const i64 size = pieces ? up_to((rows + pieces - 1) / pieces, 16) : 1;
            for (i64 at = 0; at < rows; at += size) all[count++] = {e, starts[e] + at, rows - at < size ? rows - at : size};
        }
    }
    ~Blocks() { std::free(all); }
};

// What is wanted next is brought into the second cache while products are made: `lines` of 64 bytes for each tile.
struct Ahead {
    const char *at, *stop;
    i64 lines;

    // floats `from` .. `from + count`, in the course of a product of so many rows, columns and depth
    static Ahead of(const float* from, i64 count, i64 rows, i64 cols, i64 depth) {
        const i64 tiles = ((rows + TALL - 1) / TALL) * ((cols + 4 * W - 1) / (4 * W)) * ((depth + DEPTH - 1) / DEPTH);
        const char* first = reinterpret_cast<const char*>(from);
        const bool fits = from && count <= MOST_AHEAD;
        return {first, fits ? first + 4 * count : first, count / 16 / (tiles > 0 ? tiles : 1) + 1};
    }
    void step() {
        for (i64 i = 0; i < lines && at < stop; ++i, at += 64) __builtin_prefetch(at, 0, 2);
    }
};

// c[rows, cols] = or += a[rows, depth] b[depth, cols], cols a multiple of 16.
static inline void product(const float* a, i64 a_m, i64 a_k, const float* b, i64 b_k, float* c, i64 c_m, i64 rows, i64 cols,
                           i64 depth, bool add, Ahead ahead) {
    for (i64 k = 0; k < depth; k += DEPTH)
        for (i64 n = 0; n < cols; n += 4 * W)
            for (i64 m = 0; m < rows; m += TALL) {
                multiply(a + m * a_m + k * a_k, a_m, a_k, b + k * b_k + n, b_k, c + m * c_m + n, c_m,
                         rows - m < TALL ? rows - m : TALL, (cols - n < 4 * W ? cols - n : 4 * W) / W,
                         depth - k < DEPTH ? depth - k : DEPTH, add || k);
                ahead.step();
            }
}

// to[r] = from[tokens[r]], columns first .. first + cols; without tokens the rows themselves.
static inline void collect(const float* from, i64 width, const int32_t* tokens, i64 rows, i64 first, i64 cols, float* to) {
    for (i64 r = 0; r < rows; ++r)
        std::memcpy(to + r * cols, from + (tokens ? tokens[r] : r) * width + first, sizeof(float) * static_cast<size_t>(cols));
}
