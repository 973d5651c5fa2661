// Panels of matrices for the processor's matrix tiles (AMX): each float32 number as a sum of one to three bfloat16 numbers, in the
// order in which tiles hold them. An operand is described by what it is summed over, its depth, and the other axis, its side: rows
// of the left one, columns of the right one.
#pragma once
#include "../blocks.h"
#include "../matrix_tiles.h"

// Sides and depth of a tile; sides of a group, whose tiles lie together; numbers of a tile.
constexpr i64 TILE_SIDE = 16, TILE_DEPTH = 32, GROUP = 32, TILE_SIZE = 512;

static inline i64 groups_of(i64 sides) { return (sides + GROUP - 1) / GROUP; }
static inline i64 steps_of(i64 depth) { return (depth + TILE_DEPTH - 1) / TILE_DEPTH; }

// Element (side s, depth k): at[s step + k], or at[k step + s] where depth is the axis of rows (`by_depth`).
template <class Number>
struct Operand {
    const Number* at;
    i64 step;
    bool by_depth;
    const Number* place(i64 s, i64 k) const { return at + (by_depth ? k * step + s : s * step + k); }
};

// 32 numbers as bfloat16, rounded to nearest even; `low` becomes words 0 .. 15. NaN stays NaN.
static inline __m512i rounded(__m512 low, __m512 high) {
    __m512i both;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(low), "v"(high));
    return both;
}
static inline __m512 widened_words(__m256i words) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

// 32 numbers in P parts, the largest first: each part is what the parts before it leave, rounded. Three parts are exact.
template <int P>
static inline void split(__m512 low, __m512 high, __m512i (&parts)[P]) {
#pragma GCC unroll 3
    for (int p = 0; p < P; ++p) {
        parts[p] = rounded(low, high);
        if (p + 1 < P) {
            low = _mm512_sub_ps(low, widened_words(_mm512_castsi512_si256(parts[p])));
            high = _mm512_sub_ps(high, widened_words(_mm512_extracti64x4_epi64(parts[p], 1)));
        }
    }
}

static inline uint32_t first_bits(i64 n) { return n >= 32 ? ~0u : (n <= 0 ? 0 : (1u << n) - 1); }

// 32 numbers that follow each other, `count` of them; the others are 0.
template <int P>
static inline void numbers_along(const float* from, i64 count, __m512i (&parts)[P]) {
    const uint32_t some = first_bits(count);
    split<P>(_mm512_maskz_loadu_ps(static_cast<__mmask16>(some), from),
             _mm512_maskz_loadu_ps(static_cast<__mmask16>(some >> 16), from + 16), parts);
}
static inline void numbers_along(const uint16_t* from, i64 count, __m512i (&parts)[1]) {
    parts[0] = _mm512_maskz_loadu_epi16(first_bits(count), from);
}

// 16 pairs, of a row and the next one (`pairs` 1: of this one and 0; 0: nothing).
template <int P>
static inline void pairs_along(const float* from, i64 step, i64 count, i64 pairs, __m512i (&parts)[P]) {
    const __mmask16 some = static_cast<__mmask16>(first_bits(count)), first = pairs > 0 ? some : 0, second = pairs > 1 ? some : 0;
    split<P>(_mm512_maskz_loadu_ps(first, from), _mm512_maskz_loadu_ps(second, from + step), parts);
    const __m512i beside = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20,
                                            4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int p = 0; p < P; ++p) parts[p] = _mm512_permutexvar_epi16(beside, parts[p]);
}
static inline void pairs_along(const uint16_t* from, i64 step, i64 count, i64 pairs, __m512i (&parts)[1]) {
    const __mmask16 some = static_cast<__mmask16>(first_bits(count)), first = pairs > 0 ? some : 0, second = pairs > 1 ? some : 0;
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, from));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, from + step));
    parts[0] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// 16 rows of 16 pairs, of each part; rows become columns with TURN.
template <int P, bool TURN>
static inline void store_parts(const __m512i (&rows)[16][P], uint16_t* to, i64 part_step) {
    for (int p = 0; p < P; ++p, to += part_step) {
        if constexpr (TURN) {
            vec x[W];
            for (int r = 0; r < 16; ++r) x[r] = reinterpret_cast<vec>(rows[r][p]);
            turn(x);
            for (int r = 0; r < 16; ++r) _mm512_store_si512(to + 32 * r, reinterpret_cast<__m512i>(x[r]));
        } else {
            for (int r = 0; r < 16; ++r) _mm512_store_si512(to + 32 * r, rows[r][p]);
        }
    }
}

// A tile of an operand, at most 16 sides and a depth of 32: of the LEFT one 16 rows of 16 pairs along the depth, of the right one
// 16 pairs of depth, of 16 columns each. Parts lie 2 TILE_SIZE apart.
template <int P, bool LEFT, class Number>
static inline void pack_tile(const Number* from, i64 step, bool by_depth, i64 sides, i64 depth, uint16_t* to) {
    __m512i rows[16][P];
    if (by_depth) {
        for (i64 r = 0; r < 16; ++r) pairs_along(from + (2 * r < depth ? 2 * r * step : 0), step, sides, depth - 2 * r, rows[r]);
        store_parts<P, LEFT>(rows, to, 2 * TILE_SIZE);
    } else {
        for (i64 r = 0; r < 16; ++r) numbers_along(from + (r < sides ? r * step : 0), r < sides ? depth : 0, rows[r]);
        store_parts<P, !LEFT>(rows, to, 2 * TILE_SIZE);
    }
}

// Groups of sides first .. first + sides at depth k .. k + depth: for every group, for every step of depth, for every part two
// tiles. Where rows lie along the sides, they are read from left to right, and the next ones are fetched meanwhile.
template <int P, bool LEFT, class Number>
static void pack_groups(const Operand<Number>& x, i64 first, i64 sides, i64 k, i64 depth, uint16_t* to) {
    const i64 group = steps_of(depth) * 2 * P * TILE_SIZE;
    const auto tile = [&](i64 s, i64 d) {
        const i64 some = sides - s < TILE_SIDE ? sides - s : TILE_SIDE, deep = depth - d < TILE_DEPTH ? depth - d : TILE_DEPTH;
        uint16_t* place = to + s / GROUP * group + d / TILE_DEPTH * 2 * P * TILE_SIZE + s % GROUP / TILE_SIDE * TILE_SIZE;
        pack_tile<P, LEFT>(x.place(first + (some > 0 ? s : 0), k + d), x.step, x.by_depth, some, deep, place);
    };
    const i64 stop = groups_of(sides) * GROUP;
    if (x.by_depth) {
        for (i64 d = 0; d < depth; d += TILE_DEPTH)
            for (i64 s = 0; s < stop; s += TILE_SIDE) {
                for (i64 r = d + TILE_DEPTH; r < d + 2 * TILE_DEPTH && r < depth && s < sides; ++r)
                    __builtin_prefetch(x.place(first + s, k + r), 0, 2);
                tile(s, d);
            }
    } else {
        for (i64 s = 0; s < stop; s += TILE_SIDE)
            for (i64 d = 0; d < depth; d += TILE_DEPTH) tile(s, d);
    }
}
