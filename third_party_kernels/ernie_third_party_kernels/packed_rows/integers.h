// Products of split rows with int8 and int4 codes in whole numbers: four products and their sum per instruction (VNNI), or tiles
// of 16 rows and 16 columns (AMX, tiles.h). The sums of a block are exact, so a row has the same bits whatever stands beside it
// and whatever multiplies it. Codes are read `OFFSET` too large, as numbers without a sign, and the offsets of the rows take
// that back.
#pragma once
#include "../blocks.h"
#include "tiles.h"

// Columns of a strip, which is stored [quarters, COLUMNS, 4 codes].
constexpr i64 COLUMNS = 32;
// Bytes of strips that a thread works with, and rows of parts beside them: both in the second cache.
constexpr i64 STRIPS = 1 << 19, PARTS = 1 << 18;
// The most rows that pass over strips at a time, and what their number is a multiple of: of 4, 6 and 16.
constexpr i64 PASSING = 96, EVEN = 48;

// Bytes of a column of a strip.
static inline i64 column_bytes(i64 depth) { return chunks_of(depth); }
// Whether the processor has the instruction, and codes in groups of so many inputs are divided well.
static inline bool can_multiply(int, i64 group, bool back, bool) {
    return __builtin_cpu_supports("avx512vnni") && group <= LONGEST && group % (back ? 32 : 4) == 0;
}

// int8 codes, 128 too large.
struct Bytes {
    typedef Int8 Widened;
    static constexpr i64 OFFSET = 128, PER = 1;
    static inline void codes(__m512i bytes, __m512i* to) { to[0] = _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)); }
};
// int4 codes of outputs 2j and 2j + 1, 8 too large.
struct Nibbles {
    typedef Halves<false> Widened;
    static constexpr i64 OFFSET = 8, PER = 2;
    static inline void codes(__m512i bytes, __m512i* to) {
        const __m512i lowest = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
        to[0] = _mm512_xor_si512(_mm512_and_si512(bytes, lowest), eight);
        to[1] = _mm512_xor_si512(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), lowest), eight);
    }
};

// A strip whose columns are outputs first .. first + 32 (even) of codes [O, I], its depth the inputs. Rows are read side by side,
// where the processor does not fetch ahead by itself: the place of each load in the strip that comes next is asked for.
template <class Form>
static void strip_of_outputs(const int8_t* codes, i64 O, i64 I, i64 first, uint8_t* strip) {
    const i64 rows = (O + Form::PER - 1) / Form::PER;
    for (i64 i = 0; i < I; i += 64)
        for (i64 half = 0; half < 2; ++half) {
            vec x[W];
            for (i64 o = 0; o < W; o += Form::PER) {
                const i64 row = (first + half * W + o) / Form::PER;
                __builtin_prefetch(codes + (row + COLUMNS / Form::PER) * I + i, 0, 2);
                const __m512i bytes = _mm512_maskz_loadu_epi8(row < rows ? first_bytes(I - i) : 0, codes + (row < rows ? row * I + i : 0));
                Form::codes(bytes, reinterpret_cast<__m512i*>(x + o));
            }
            turn(x);
            for (i64 q = 0; q < quarters(I - i < 64 ? I - i : 64); ++q)
                std::memcpy(strip + (i / 4 + q) * 4 * COLUMNS + half * 64, x + q, 64);
        }
}

// A strip whose columns are inputs first .. first + count of codes [O, I], its depth the outputs.
template <class Form>
static void strip_of_inputs(const int8_t* codes, i64 O, i64 I, i64 first, i64 count, uint8_t* strip) {
    const __mmask64 mask = first_bytes(count < COLUMNS ? count : COLUMNS);
    constexpr i64 ahead = 64;  // outputs
    for (i64 o = 0; o < O; o += 4, strip += 4 * COLUMNS) {
        __m512i rows[4];
        for (i64 r = 0; r < 4; r += Form::PER) __builtin_prefetch(codes + (o + r + ahead) / Form::PER * I + first, 0, 2);
        for (i64 r = 0; r < 4; r += Form::PER) {
            const bool here = o + r < O;
            Form::codes(_mm512_maskz_loadu_epi8(here ? mask : 0, codes + (here ? (o + r) / Form::PER * I + first : 0)), rows + r);
        }
        for (int half = 0; half < 2; ++half) {
            const auto part = [&](int r) { return half ? _mm512_extracti32x4_epi32(rows[r], 1) : _mm512_castsi512_si128(rows[r]); };
            const __m128i a = part(0), b = part(1), c = part(2), d = part(3);
            const __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
            const __m128i low_ = _mm_unpacklo_epi8(c, d), high_ = _mm_unpackhi_epi8(c, d);
            __m128i* to = reinterpret_cast<__m128i*>(strip + half * 64);
            _mm_storeu_si128(to, _mm_unpacklo_epi16(low, low_));
            _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(low, low_));
            _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(high, high_));
            _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(high, high_));
        }
    }
}

// to[M, columns] = M rows of x from `row` on times a strip; factors [blocks or 1, COLUMNS], `factor_step` apart.
template <int P, int M>
static void tile_of(const Split& x, i64 row, const uint8_t* strip, const float* factors, i64 factor_step, float* to,
                    i64 to_step, i64 columns) {
    __m512 sums[M][2];
    for (int m = 0; m < M; ++m) sums[m][0] = sums[m][1] = _mm512_setzero_ps();
    const i64 blocks = x.blocks(), part = x.part(), step = x.step();
    const int8_t* parts = x.parts + row * step;
    for (i64 b = 0; b < blocks; ++b, factors += factor_step) {
        const i64 left = x.depth - b * x.block, count = quarters(left < x.block ? left : x.block), at = row * blocks + b;
        __m512i s[M][2][P];
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 3
            for (int p = 0; p < P; ++p) s[m][0][p] = s[m][1][p] = _mm512_set1_epi32(x.offsets[P * (at + m * blocks) + p]);
        for (i64 k = 0; k < count; ++k, strip += 4 * COLUMNS, parts += 4) {
            const __m512i w0 = _mm512_loadu_si512(strip), w1 = _mm512_loadu_si512(strip + 64);
#pragma GCC unroll 6
            for (int m = 0; m < M; ++m)
#pragma GCC unroll 3
                for (int p = 0; p < P; ++p) {
                    int32_t four;
                    std::memcpy(&four, parts + m * step + p * part, 4);
                    add_products(s[m][0][p], w0, _mm512_set1_epi32(four));
                    add_products(s[m][1][p], w1, _mm512_set1_epi32(four));
                }
        }
        const __m512 f0 = _mm512_loadu_ps(factors), f1 = _mm512_loadu_ps(factors + W);
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m) {
            const __m512 scale = _mm512_set1_ps(x.scales[at + m * blocks]);
            sums[m][0] = _mm512_fmadd_ps(joined<P>(s[m][0]), _mm512_mul_ps(f0, scale), sums[m][0]);
            sums[m][1] = _mm512_fmadd_ps(joined<P>(s[m][1]), _mm512_mul_ps(f1, scale), sums[m][1]);
        }
    }
    const Edge edge(columns);
    for (int m = 0; m < M; ++m) edge.store(to + m * to_step, sums[m][0], sums[m][1]);
}

// The last rows, fewer than a tile.
template <int P, int M, class... Rest>
static void last_rows(const Split& x, i64 row, i64 rows, const Rest&... rest) {
    if constexpr (M > 0) {
        if (rows == M)
            tile_of<P, M>(x, row, rest...);
        else
            last_rows<P, M - 1>(x, row, rows, rest...);
    }
}

// All rows first .. stop of x times a strip.
template <int P>
static void rows_in_parts(const Split& x, i64 first, i64 stop, const uint8_t* strip, const float* factors, i64 factor_step,
                          float* to, i64 to_step, i64 columns, bool tiles) {
    constexpr int M = P == 2 ? 6 : 4;  // 24 sums of 32 registers
    if (tiles && fits_tiles(x)) {
        rows_in_tiles<P>(x, first, stop, strip, factors, factor_step, to, to_step, columns);
        return;
    }
    i64 r = first;
    for (; r + M <= stop; r += M, to += M * to_step) tile_of<P, M>(x, r, strip, factors, factor_step, to, to_step, columns);
    last_rows<P, M - 1>(x, r, stop - r, strip, factors, factor_step, to, to_step, columns);
}

template <class... Rest>
static void rows_of(const Split& x, const Rest&... rest) {
    if (x.count == 3)
        rows_in_parts<3>(x, rest...);
    else
        rows_in_parts<2>(x, rest...);
}
