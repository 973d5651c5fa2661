// Products of float32 matrices on the processor's matrix tiles, from panels of bfloat16 parts, by blocks of both and on several
// threads; groups.h multiplies the panels.
#pragma once
#include "../grouped_gemm/products.h"
#include "groups.h"

// Rows, depth and columns that are worked on together, at most: panels of columns stay in the second cache. Sums over a block of
// depth stay in tiles: the second cache is fast enough for both panels, and they are not stored and loaded on the way. Blocks are
// made one after the other, then added.
constexpr i64 TALL_BLOCK = 2048, DEEP_BLOCK = 1024, BROAD_BLOCK = 256;
// A new result of more bytes is written by non-temporal stores: caches would read it first, and lose it before somebody wants it.
constexpr i64 STREAMED_BYTES = 8 << 20;

// As `put_sums` writes them, by non-temporal stores of whole cache lines.
static void stream_sums(const float* sums, float* c, i64 step, i64 rows, i64 columns) {
    for (i64 r = 0; r < rows; ++r, c += step)
        for (i64 n = 0; n < columns; n += 16) _mm512_stream_ps(c + n, sums_at(sums, r, n));
}

// What is multiplied: c [M, N] = or += a [M, K] b [K, N].
template <class Right>
struct Factors {
    Operand<float> a;
    Operand<Right> b;
    i64 M, N, K;
    float* c;
    i64 c_step;
    bool add;
    int threads;
};

// Rows first .. stop, whose panels begin at `left`, times columns from .. to of a block of depth k .. k + depth. Memory: sums, then
// the panel of columns.
template <int A, int B, class Right>
static void multiply_columns(const Factors<Right>& f, const uint16_t* left, i64 first, i64 stop, i64 from, i64 to, i64 k,
                             i64 depth, float* memory) {
    const i64 steps = steps_of(depth), a_step = 2 * A * TILE_SIZE, b_step = 2 * B * TILE_SIZE, groups = groups_of(to - from);
    float* sums = memory;
    uint16_t* panel = reinterpret_cast<uint16_t*>(memory + BROAD_BLOCK * GROUP);
    const bool streamed = !f.add && f.c_step % 16 == 0 && f.M * f.N * static_cast<i64>(sizeof(float)) > STREAMED_BYTES;
    pack_groups<B, false>(f.b, from, to - from, k, depth, panel);
    Shapes(16, 0).use();
    for (i64 m = first; m < stop; m += GROUP, left += steps * a_step) {
        for (i64 g = 0; g < groups; ++g) multiply_groups<A, B>(left, panel + g * steps * b_step, steps, sums + g * GROUP * GROUP);
        float* c = f.c + m * f.c_step + from;
        const i64 rows = stop - m < GROUP ? stop - m : GROUP;
        if (streamed && !k && (to - from) % 16 == 0 && reinterpret_cast<uintptr_t>(c) % 64 == 0)
            stream_sums(sums, c, f.c_step, rows, to - from);
        else
            put_sums(sums, c, f.c_step, rows, to - from, f.add || k);
    }
    _mm_sfence();  // non-temporal stores are not ordered with those that tell another thread of them
    release_tiles();
}

// false: no memory. The bits depend on the sizes alone.
template <int A, int B, class Right>
static bool multiply_parts(const Factors<Right>& f) {
    const i64 tall = f.M < TALL_BLOCK ? f.M : TALL_BLOCK, deep = f.K < DEEP_BLOCK ? f.K : DEEP_BLOCK;
    const i64 fair = groups_of(f.N) / (2 * f.threads), most = BROAD_BLOCK / GROUP;
    const i64 broad = GROUP * (fair < 1 ? 1 : (fair > most ? most : fair)), panels = (f.N + broad - 1) / broad;
    const size_t left_bytes = sizeof(uint16_t) * static_cast<size_t>(groups_of(tall) * steps_of(deep) * 2 * A * TILE_SIZE);
    thread_local Scratch shared;
    uint16_t* left = static_cast<uint16_t*>(shared.take(left_bytes));
    bool enough = left != nullptr;
    for (i64 m = 0; enough && m < f.M; m += tall) {
        const i64 rows = f.M - m < tall ? f.M - m : tall;
        // few panels for many threads: each is made for some of the rows
        const i64 fewest = (f.threads + panels - 1) / panels, size = GROUP * ((groups_of(rows) + fewest - 1) / fewest);
        const i64 pieces = (rows + size - 1) / size;
        for (i64 k = 0; enough && k < f.K; k += deep) {
            const i64 depth = f.K - k < deep ? f.K - k : deep, group = steps_of(depth) * 2 * A * TILE_SIZE;
            share_out(groups_of(rows), f.threads, [&](i64 g) {
                const i64 at = g * GROUP, some = rows - at < GROUP ? rows - at : GROUP;
                pack_groups<A, true>(f.a, m + at, some, k, depth, left + g * group);
            });
            const i64 floats = BROAD_BLOCK * GROUP + broad * up_to(deep, TILE_DEPTH) * B / 2;
            enough = with_memory(panels * pieces, floats, f.threads, [&](i64 item, float* memory) {
                const i64 from = item / pieces * broad, to = f.N - from < broad ? f.N : from + broad;
                const i64 first = item % pieces * size, stop = rows - first < size ? rows : first + size;
                multiply_columns<A, B>(f, left + first / GROUP * group, m + first, m + stop, from, to, k, depth,
                                       memory);
            });
        }
    }
    shared.give_back();
    return enough;
}
