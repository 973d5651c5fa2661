// Products of rows with int8 and int4 codes in whole numbers, four products and their sum per instruction (VNNI): of one row a
// product in float32 takes longer than memory needs for four bits. A row x is s q with q = 65536 a + 256 b + c, int8 parts a, b
// and c, and s so that its largest value has 24 bits: what float32 holds. Sums are exact, so a row has the same bits whatever
// stands beside it. Codes are multiplied 128 or 8 too large, as bytes without a sign; sums begin with what takes that back.
#pragma once
#include "../blocks.h"
#include "../packed_weights/codes.h"
#include "plan.h"

constexpr i64 CHUNK = 64;            // codes that are multiplied together
constexpr i64 MOST_DEPTH = 1 << 16;  // inputs whose sums 32 bits hold
// Outputs that are multiplied together: as many sums as keep the processor busy, in few streams of memory. What is read so far
// ahead is asked for as it lies, which is one stream.
constexpr int OUTPUTS_AT_ONCE = 4;
constexpr i64 BYTES_AHEAD = 8192;

// The first of the rows whose parts are somewhere, and what parts: of this file, or of tiles.h.
enum Kind { PARTS, BYTE_TILES, BFLOAT_TILES };
struct Kept {
    const float* rows = nullptr;
    Kind kind = PARTS;
    bool are(const float* x, Kind wanted) const { return rows == x && kind == wanted; }
};
// Where rows are split, and what is there now: a thread's own memory, and memory of all threads; room for unpacked outputs.
struct Splits {
    float* memory;
    Kept* own;
    float* shared;
    const Kept* all;
    int8_t* unpacked;
};

#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#include <type_traits>

static inline bool in_integers(const Matrix& matrix) {
    static const bool can = __builtin_cpu_supports("avx512vnni");
    if (!can || matrix.inputs > MOST_DEPTH || matrix.inputs % CHUNK) return false;
    return (matrix.form == INT8 && !matrix.group) || (matrix.form == INT4 && matrix.group % CHUNK == 0);
}

// One row: parts [chunks, 3, 64]; sums of the parts of each lane [3, 16]; for four bits, whose parts are joined chunk by chunk:
// what the sums of a chunk begin with, over 65536 [chunks, 16], and what of it is left [chunks], summed over lanes.
struct Split {
    i64 chunks;
    int8_t* parts;
    int32_t *sums, *starts;
    float *left, *scale;

    Split(i64 inputs, float* memory) : chunks(inputs / CHUNK), parts(reinterpret_cast<int8_t*>(memory)) {
        starts = reinterpret_cast<int32_t*>(memory) + chunks * 48;
        sums = starts + chunks * 16;
        left = reinterpret_cast<float*>(sums) + 48;
        scale = left + chunks;
    }
};

// What a row is multiplied with to be whole numbers, and the scale that takes it back: NaN for one with a value that is not finite.
static inline __m512 factor_of(const float* x, i64 inputs, float* scale) {
    __m512 most = _mm512_setzero_ps(), doubt = most;
    for (i64 i = 0; i < inputs; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + i);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
        doubt = _mm512_add_ps(doubt, _mm512_sub_ps(v, v));
    }
    // below 127 * 65793 by more than rounding
    const float top = _mm512_reduce_max_ps(most), lost = _mm512_reduce_add_ps(doubt), highest = 8355000.0f;
    const bool finite = lost == 0.0f, used = finite && top > 1e-30f;
    *scale = used ? top / highest : (finite ? 0.0f : lost);
    return _mm512_set1_ps(used ? highest / top : 0.0f);
}

// The parts of 16 numbers, `step` bytes apart.
static inline void put_parts(__m512 x, __m512 factor, int8_t* to, i64 step) {
    const __m512i half = _mm512_set1_epi32(128), q = _mm512_cvtps_epi32(_mm512_mul_ps(x, factor));
    const __m512i b = _mm512_srai_epi32(_mm512_add_epi32(q, half), 8), a = _mm512_srai_epi32(_mm512_add_epi32(b, half), 8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + step), _mm512_cvtepi32_epi8(b));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * step), _mm512_cvtepi32_epi8(q));
}

static void split_row(const Split& to, const float* x, i64 inputs) {
    const __m512 factor = factor_of(x, inputs, to.scale);
    const __m512i ones = _mm512_set1_epi8(1), eight = _mm512_set1_epi32(-8);
    __m512i all[3] = {};
    for (i64 c = 0; c < to.chunks; ++c) {
        int8_t* parts = to.parts + c * 3 * CHUNK;
        for (i64 i = 0; i < CHUNK; i += 16) put_parts(_mm512_loadu_ps(x + c * CHUNK + i), factor, parts + i, CHUNK);
        __m512i whole = _mm512_setzero_si512();
        for (int p = 0; p < 3; ++p) {
            __m512i sum = _mm512_setzero_si512();
            add_products(sum, ones, _mm512_loadu_si512(parts + p * CHUNK));
            all[p] = _mm512_add_epi32(all[p], sum);
            whole = _mm512_add_epi32(_mm512_slli_epi32(whole, 8), sum);
        }
        whole = _mm512_mullo_epi32(whole, eight);
        const __m512i start = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(1 << 15)), 16);
        _mm512_storeu_si512(to.starts + c * 16, start);
        to.left[c] = static_cast<float>(_mm512_reduce_add_epi32(_mm512_sub_epi32(whole, _mm512_slli_epi32(start, 16))));
    }
    for (int p = 0; p < 3; ++p) _mm512_storeu_si512(to.sums + p * 16, all[p]);
}

// The sums of an output over all lanes, as whole numbers: the bits of tiles.h, which more rows than one are multiplied with.
static inline float joined(const __m512i (&sums)[3]) {
    const __m512i low = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[0], sums[1]), _mm512_unpackhi_epi32(sums[0], sums[1]));
    const __m512i high = _mm512_add_epi32(_mm512_unpacklo_epi32(sums[2], sums[2]), _mm512_unpackhi_epi32(sums[2], sums[2]));
    // of each four lanes the sums of a, b, d and d
    const __m512i four = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
    const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
    const __m128i one = _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
    alignas(16) float all[4];
    _mm_store_ps(all, _mm_cvtepi32_ps(one));
    return __builtin_fmaf(all[0], 65536.0f, __builtin_fmaf(all[1], 256.0f, all[2]));
}

static inline void begin(const Split& x, int offset, __m512i (&sums)[3]) {
    for (int p = 0; p < 3; ++p) sums[p] = _mm512_mullo_epi32(_mm512_loadu_si512(x.sums + p * 16), _mm512_set1_epi32(-offset));
}

// The chunk that lies BYTES_AHEAD behind chunk i of what is multiplied together.
static inline void fetch_ahead(const int8_t* codes, i64 i) { __builtin_prefetch(codes + i * CHUNK + BYTES_AHEAD, 0, 2); }

// y [OUT] = x W' of int8 codes [OUT, inputs]
template <int OUT>
static void byte_sums(const Split& x, const int8_t* codes, i64 inputs, const float* scales, float* y) {
    __m512i sums[OUT][3];
#pragma GCC unroll 8
    for (int o = 0; o < OUT; ++o) begin(x, 128, sums[o]);
    const __m512i sign = _mm512_set1_epi8(-128);
    for (i64 c = 0; c < x.chunks; ++c) {
        const int8_t* parts = x.parts + c * 3 * CHUNK;
        const __m512i a = _mm512_loadu_si512(parts), b = _mm512_loadu_si512(parts + 64), d = _mm512_loadu_si512(parts + 128);
#pragma GCC unroll 8
        for (int o = 0; o < OUT; ++o) {
            fetch_ahead(codes, c * OUT + o);
            const __m512i w = _mm512_xor_si512(_mm512_loadu_si512(codes + o * inputs + c * CHUNK), sign);
            add_products(sums[o][0], w, a);
            add_products(sums[o][1], w, b);
            add_products(sums[o][2], w, d);
        }
    }
#pragma GCC unroll 8
    for (int o = 0; o < OUT; ++o) y[o] = scales[o] * *x.scale * joined(sums[o]);
}

// Of two outputs to a byte the codes of the low half, 8 too large, and those of the high half, as they lie there: 16 times that.
// Each is one instruction: its last argument is the table of (bytes ^ second) & third.
static inline __m512i low_codes(__m512i bytes) {
    return _mm512_ternarylogic_epi32(bytes, _mm512_set1_epi8(-120), _mm512_set1_epi8(15), 0x28);
}
static inline __m512i high_codes(__m512i bytes) {
    return _mm512_ternarylogic_epi32(bytes, _mm512_set1_epi8(-120), _mm512_set1_epi8(-16), 0x28);
}

// y [2 ROWS] of int4 codes [ROWS, inputs], a scale per output
template <int ROWS>
static void nibble_sums(const Split& x, const int8_t* codes, i64 inputs, const float* scales, i64 outputs, float* y) {
    __m512i low[ROWS][3], high[ROWS][3];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) begin(x, 8, low[r]), begin(x, 16 * 8, high[r]);
    for (i64 c = 0; c < x.chunks; ++c) {
        const int8_t* parts = x.parts + c * 3 * CHUNK;
        const __m512i a = _mm512_loadu_si512(parts), b = _mm512_loadu_si512(parts + 64), d = _mm512_loadu_si512(parts + 128);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
            fetch_ahead(codes, c * ROWS + r);
            const __m512i bytes = _mm512_loadu_si512(codes + r * inputs + c * CHUNK);
            const __m512i w = low_codes(bytes), v = high_codes(bytes);
            add_products(low[r][0], w, a), add_products(low[r][1], w, b), add_products(low[r][2], w, d);
            add_products(high[r][0], v, a), add_products(high[r][1], v, b), add_products(high[r][2], v, d);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
        y[2 * r] = scales[2 * r] * *x.scale * joined(low[r]);
        if (2 * r + 1 < outputs) y[2 * r + 1] = scales[2 * r + 1] * *x.scale * (joined(high[r]) / 16);
    }
}

// The same with a scale per group of inputs: parts are joined chunk by chunk, which the bits of four times 64 products allow.
template <int ROWS>
static void group_sums(const Split& x, const int8_t* codes, i64 inputs, const float* scales, i64 group, i64 outputs, float* y) {
    const i64 groups = (inputs + group - 1) / group, each = group / CHUNK;
    __m512 sums[2 * ROWS];
    const float* own[2 * ROWS];
#pragma GCC unroll 8
    for (int o = 0; o < 2 * ROWS; ++o) {
        sums[o] = _mm512_setzero_ps();
        own[o] = scales + (o < outputs ? o : outputs - 1) * groups;
    }
    // 256 times a lane, by the port of the processor that does not multiply
    const __m512i up = _mm512_set4_epi32(0x0e0d0cff, 0x0a0908ff, 0x060504ff, 0x020100ff);
    float left[MOST_DEPTH / CHUNK];
    for (i64 g = 0; g < groups; ++g) {
        left[g] = 0;
        for (i64 c = g * each; c < (g + 1) * each && c < x.chunks; ++c) left[g] += x.left[c];
    }
    for (i64 c = 0, g = 0, stop = each; c < x.chunks; ++c) {
        const int8_t* parts = x.parts + c * 3 * CHUNK;
        const __m512i a = _mm512_loadu_si512(parts), b = _mm512_loadu_si512(parts + 64), d = _mm512_loadu_si512(parts + 128);
        if (c == stop) ++g, stop += each;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r) {
            fetch_ahead(codes, c * ROWS + r);
            const __m512i bytes = _mm512_loadu_si512(codes + r * inputs + c * CHUNK);
            const __m512i w[2] = {low_codes(bytes), _mm512_srli_epi16(high_codes(bytes), 4)};
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                __m512i sum = _mm512_loadu_si512(x.starts + c * 16);
                add_products(sum, w[h], a);
                sum = _mm512_shuffle_epi8(sum, up);
                add_products(sum, w[h], b);
                sum = _mm512_shuffle_epi8(sum, up);
                add_products(sum, w[h], d);
                const int o = 2 * r + h;
                sums[o] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(own[o][g]), sums[o]);
            }
        }
    }
#pragma GCC unroll 8
    for (int o = 0; o < 2 * ROWS; ++o)
        if (o < outputs) y[o] = *x.scale * (sum_of((wide)sums[o]) + dot(left, own[o], groups));
}

// y [width], outputs first .. first + width (first even) of one row
static void integer_row(const Matrix& matrix, i64 expert, const Split& x, i64 first, i64 width, float* y) {
    const i64 inputs = matrix.inputs, groups = matrix.group ? (inputs + matrix.group - 1) / matrix.group : 1;
    const bool bytes = matrix.form == INT8;
    const i64 rows = bytes ? matrix.outputs : (matrix.outputs + 1) / 2;
    const int8_t* codes = static_cast<const int8_t*>(matrix.data) + (expert * rows + (bytes ? first : first / 2)) * inputs;
    const float* scales = matrix.scales + (expert * matrix.outputs + first) * groups;
    const auto run = [&](auto count, i64 o) {
        constexpr int ROWS = decltype(count)::value;
        const i64 left = width - o;
        const int8_t* from = codes + (bytes ? o : o / 2) * inputs;
        if (bytes)
            byte_sums<ROWS>(x, from, inputs, scales + o, y + o);
        else if (groups == 1)
            nibble_sums<(ROWS + 1) / 2>(x, from, inputs, scales + o, left, y + o);
        else
            group_sums<(ROWS + 1) / 2>(x, from, inputs, scales + o * groups, matrix.group, left, y + o);
    };
    i64 o = 0;
    if (groups > 1)  // joining parts takes longer than memory: more outputs hide what each waits for
        for (; o + 8 <= width; o += 8) run(std::integral_constant<int, 8>{}, o);
    for (; o + OUTPUTS_AT_ONCE <= width; o += OUTPUTS_AT_ONCE) run(std::integral_constant<int, OUTPUTS_AT_ONCE>{}, o);
    for (; o < width; o += bytes ? 1 : 2) run(std::integral_constant<int, 1>{}, o);
}

// sums [rows, n], `step` apart: some outputs of all rows. Rows that were split for another tile of a phase are not split again.
static void integers_tile(const Matrix& matrix, i64 expert, const float* x, i64 rows, i64 first, i64 n, const Splits& splits,
                          float* sums, i64 step) {
    const i64 inputs = matrix.inputs, size = split_floats(inputs), block = 32;
    for (i64 m = 0; m < rows; m += SPLIT_ROWS) {
        const i64 some = rows - m < SPLIT_ROWS ? rows - m : SPLIT_ROWS;
        const float* from = x + m * inputs;
        if (!splits.own->are(from, PARTS) || rows > SPLIT_ROWS)
            for (i64 r = 0; r < some; ++r) split_row(Split(inputs, splits.memory + r * size), from + r * inputs, inputs);
        *splits.own = {from, PARTS};
        for (i64 o = 0; o < n; o += block)
            for (i64 r = 0; r < some; ++r)
                integer_row(matrix, expert, Split(inputs, splits.memory + r * size), first + o, n - o < block ? n - o : block,
                            sums + (m + r) * step + o);
    }
}
#else
static inline bool in_integers(const Matrix&) { return false; }
static void integers_tile(const Matrix&, i64, const float*, i64, i64, i64, const Splits&, float*, i64) {}
#endif
