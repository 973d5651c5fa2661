// Products of rounded rows with int8 and int4 codes in whole numbers of 16 bits, two products and their sum per instruction
// (AVX2): twice what a product in float32 makes. Each value of a row is one int16 q = round(x / s), with the largest one of its block at 32,639; codes are widened to
// int16 once per strip. The sums of a block are exact, so a row has the same bits whatever stands beside it.
#pragma once
#include "../blocks.h"
#include "../packed_weights/codes.h"
#include "rounded.h"

// Columns of a strip, which is stored [pairs, COLUMNS, 2 codes]; rows of a tile: 12 sums of 16 registers.
constexpr i64 COLUMNS = 16;
enum { TALLEST = 6 };
// The most rows that pass over strips at a time, and what their number is a multiple of.
constexpr i64 PASSING = 16 * TALLEST, EVEN = TALLEST;
// Bytes of strips that a thread works with, and of rows beside them: both in a second cache of half a mebibyte.
constexpr i64 STRIPS = 1 << 18, PARTS = 1 << 17;

static inline i64 pairs(i64 n) { return (n + 1) / 2; }
// Bytes of a column of a strip.
static inline i64 column_bytes(i64 depth) { return 4 * pairs(depth); }
// Whether codes in groups of so many inputs are divided well, and 32 bits hold the sums of a group.
static inline bool can_multiply(int form, i64 group, bool back, bool fine) {
    return !fine && group <= (form == 0 ? LONGEST / 2 : LONGEST) && group % (back ? COLUMNS : 4) == 0;
}

// parts [rows, pairs]: two values as the halves of a word; scales [rows, blocks].
struct Split {
    i64 depth, block;
    int32_t* parts;
    float* scales;

    i64 blocks() const { return (depth + block - 1) / block; }
    i64 step() const { return 4 * pairs(depth); }  // bytes from row to row
    i64 floats(i64 rows) const { return rows * (pairs(depth) + blocks()) + 16; }
    static Split of(i64 depth, i64 block, i64, bool) { return {depth, block, nullptr, nullptr}; }
    Split in(float* memory, i64 rows) const {
        return {depth, block, reinterpret_cast<int32_t*>(memory), memory + rows * pairs(depth)};
    }
};

// One row, times `factors` where there are any. A block with a value that is not finite has the scale NaN.
static void split_row(const Split& to, i64 row, const float* x, const float* factors) {
    alignas(32) float values[LONGEST + 16];
    alignas(32) int16_t rounded[16];
    for (i64 b = 0; b < to.blocks(); ++b) {
        const i64 first = b * to.block, stop = first + to.block < to.depth ? first + to.block : to.depth, count = stop - first;
        for (i64 k = 0; k < count; ++k) values[k] = factors ? x[first + k] * factors[first + k] : x[first + k];
        for (i64 k = count; k < count + 16; ++k) values[k] = 0.0f;
        vec most = {}, doubt = {};
        for (i64 k = 0; k < count; k += W) {
            const vec v = get(values + k), size = v < 0.0f ? -v : v;
            most = size > most ? size : most;
            doubt += v - v;
        }
        float top = 0.0f, lost = 0.0f;
        for (int i = 0; i < W; ++i) top = most[i] > top ? most[i] : top, lost += doubt[i];
        const bool finite = lost == 0.0f, some = finite && top > 1e-30f;
        const __m256 inverse = _mm256_set1_ps(some ? LEVELS / top : 0.0f);
        int32_t* out = to.parts + row * pairs(to.depth) + first / 2;
        for (i64 k = 0; k < count; k += 16, out += 8) {
            __m256i words = _mm256_setzero_si256();
            if (finite) {
                const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(values + k), inverse));
                const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(values + k + 8), inverse));
                words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
            }
            _mm256_store_si256(reinterpret_cast<__m256i*>(rounded), words);
            std::memcpy(out, rounded, static_cast<size_t>(4 * pairs(count - k < 16 ? count - k : 16)));
        }
        to.scales[row * to.blocks() + b] = finite ? (some ? top / LEVELS : 0.0f) : __builtin_nanf("");
    }
}

// Up to 16 bytes; zeros beyond.
static inline __m128i some_bytes(const int8_t* p, i64 n) {
    if (n >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    alignas(16) int8_t bytes[16] = {};
    if (n > 0) std::memcpy(bytes, p, static_cast<size_t>(n));
    return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}

static inline void put_words(uint8_t* to, __m256i words) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words); }

// int8 codes.
struct Bytes {
    typedef Int8 Widened;
    static constexpr i64 OFFSET = 0, PER = 1;
    // 16 codes of each of PER outputs
    static inline void codes(__m128i bytes, __m256i* to) { to[0] = _mm256_cvtepi8_epi16(bytes); }
    // 16 inputs of outputs o and o + 1, side by side
    static inline void paired(const int8_t* codes, i64 O, i64 I, i64 o, i64 first, i64 count, __m256i* to) {
        const __m128i a = some_bytes(codes + o * I + first, count);
        const __m128i b = o + 1 < O ? some_bytes(codes + (o + 1) * I + first, count) : _mm_setzero_si128();
        to[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
        to[1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
    }
};
// int4 codes of outputs 2j and 2j + 1.
struct Nibbles {
    typedef Halves<false> Widened;
    static constexpr i64 OFFSET = 0, PER = 2;
    // four bits, the rest zero, as a number with a sign
    static inline __m256i signed_(__m256i bits) {
        const __m256i eight = _mm256_set1_epi16(8);
        return _mm256_sub_epi16(_mm256_xor_si256(bits, eight), eight);
    }
    static inline void codes(__m128i bytes, __m256i* to) {
        const __m256i wide = _mm256_cvtepu8_epi16(bytes);
        to[0] = signed_(_mm256_and_si256(wide, _mm256_set1_epi16(15)));
        to[1] = signed_(_mm256_srli_epi16(wide, 4));
    }
    static inline void paired(const int8_t* codes, i64, i64 I, i64 o, i64 first, i64 count, __m256i* to) {
        const __m128i bytes = some_bytes(codes + o / 2 * I + first, count);
        for (int half = 0; half < 2; ++half) {
            const __m256i wide = _mm256_cvtepu8_epi32(half ? _mm_srli_si128(bytes, 8) : bytes);
            const __m256i both = _mm256_or_si256(wide, _mm256_slli_epi32(wide, 12));
            to[half] = signed_(_mm256_and_si256(both, _mm256_set1_epi16(15)));
        }
    }
};

// A strip whose columns are outputs first .. first + 16 (even) of codes [O, I], its depth the inputs.
template <class Form>
static void strip_of_outputs(const int8_t* codes, i64 O, i64 I, i64 first, uint8_t* strip) {
    const i64 rows = (O + Form::PER - 1) / Form::PER;
    for (i64 i = 0; i < I; i += 16)
        for (i64 half = 0; half < 2; ++half) {
            vec x[W];
            for (i64 o = 0; o < W; o += Form::PER) {
                const i64 row = (first + half * W + o) / Form::PER;
                Form::codes(some_bytes(codes + (row < rows ? row * I + i : 0), row < rows ? I - i : 0), reinterpret_cast<__m256i*>(x + o));
            }
            turn(x);
            for (i64 q = 0; q < pairs(I - i < 16 ? I - i : 16); ++q)
                std::memcpy(strip + (i / 2 + q) * 4 * COLUMNS + half * 32, x + q, 32);
        }
}

// A strip whose columns are inputs first .. first + count of codes [O, I], its depth the outputs.
template <class Form>
static void strip_of_inputs(const int8_t* codes, i64 O, i64 I, i64 first, i64 count, uint8_t* strip) {
    for (i64 o = 0; o < O; o += 2, strip += 4 * COLUMNS) {
        __m256i words[2];
        Form::paired(codes, O, I, o, first, count < COLUMNS ? count : COLUMNS, words);
        put_words(strip, words[0]);
        put_words(strip + 32, words[1]);
    }
}

// to[M, columns] = M rows of x from `row` on times a strip; factors [blocks or 1, COLUMNS], `factor_step` apart.
template <int M>
static void tile_of(const Split& x, i64 row, const uint8_t* strip, const float* factors, i64 factor_step, float* to,
                    i64 to_step, i64 columns) {
    alignas(32) float sums[M][COLUMNS] = {};
    const i64 blocks = x.blocks(), step = pairs(x.depth);
    const int32_t* parts = x.parts + row * step;
    for (i64 b = 0; b < blocks; ++b, factors += factor_step) {
        const i64 left = x.depth - b * x.block, count = pairs(left < x.block ? left : x.block);
        ivec s[M][2];  // not __m256i, arrays of which GCC keeps in memory
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m) s[m][0] = s[m][1] = ivec{};
        for (i64 k = 0; k < count; ++k, strip += 4 * COLUMNS, ++parts) {
            const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(strip));
            const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(strip + 32));
#pragma GCC unroll 6
            for (int m = 0; m < M; ++m) {
                const __m256i v = _mm256_set1_epi32(parts[m * step]);
                s[m][0] += reinterpret_cast<ivec>(_mm256_madd_epi16(w0, v));
                s[m][1] += reinterpret_cast<ivec>(_mm256_madd_epi16(w1, v));
            }
        }
        const vec f0 = get(factors), f1 = get(factors + W);
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m) {
            const vec scale = all(x.scales[(row + m) * blocks + b]);
            put(sums[m], get(sums[m]) + __builtin_convertvector(s[m][0], vec) * (f0 * scale));
            put(sums[m] + W, get(sums[m] + W) + __builtin_convertvector(s[m][1], vec) * (f1 * scale));
        }
    }
    const i64 here = columns < COLUMNS ? columns : COLUMNS;
    for (int m = 0; m < M; ++m, to += to_step) std::memcpy(to, sums[m], sizeof(float) * static_cast<size_t>(here));
}

// The last rows, fewer than a tile.
template <int M, class... Rest>
static void last_rows(const Split& x, i64 row, i64 rows, const Rest&... rest) {
    if constexpr (M > 0) {
        if (rows == M)
            tile_of<M>(x, row, rest...);
        else
            last_rows<M - 1>(x, row, rows, rest...);
    }
}

// All rows first .. stop of x times a strip.
static void rows_of(const Split& x, i64 first, i64 stop, const uint8_t* strip, const float* factors, i64 factor_step, float* to,
                    i64 to_step, i64 columns, bool) {
    i64 r = first;
    for (; r + TALLEST <= stop; r += TALLEST, to += TALLEST * to_step)
        tile_of<TALLEST>(x, r, strip, factors, factor_step, to, to_step, columns);
    last_rows<TALLEST - 1>(x, r, stop - r, strip, factors, factor_step, to, to_step, columns);
}
