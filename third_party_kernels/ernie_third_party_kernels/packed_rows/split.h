// Rows of floats as sums of two int8 parts, q = 256 high + low with q = round(x / s), for products in whole numbers. Of each
// block of a row the largest value is 32,639 s, so x is off by at most 1 / 65,278 of it.
#pragma once
#include "rounded.h"

static inline i64 quarters(i64 n) { return (n + 3) / 4; }

// parts [rows, quarters, 2]: four high and four low parts as the bytes of a word each; scales [rows, blocks];
// offsets [rows, blocks, 2]: the sums of both parts times -offset, for codes that are stored `offset` too large.
struct Split {
    i64 depth, block, offset;
    int32_t* parts;
    float* scales;
    int32_t* offsets;

    i64 blocks() const { return (depth + block - 1) / block; }
    i64 step() const { return 2 * quarters(depth); }
    // floats of memory for so many rows
    static i64 floats(i64 rows, i64 depth, i64 block) {
        return rows * (2 * quarters(depth) + 3 * ((depth + block - 1) / block)) + 16;
    }
    static Split in(float* memory, i64 rows, i64 depth, i64 block, i64 offset) {
        Split s = {depth, block, offset, reinterpret_cast<int32_t*>(memory), nullptr, nullptr};
        s.scales = memory + rows * s.step();
        s.offsets = reinterpret_cast<int32_t*>(s.scales + rows * s.blocks());
        return s;
    }
};

// Values of a row at k .. k + 16, times `factors` where there are any; zero from `stop` on.
static inline __m512 some_of(const float* x, const float* factors, i64 k, i64 stop) {
    const __mmask16 mask = stop - k >= 16 ? 0xffff : static_cast<__mmask16>(stop > k ? (1 << (stop - k)) - 1 : 0);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + k);
    return factors ? _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, factors + k)) : v;
}

// 32 values times `inverse` as parts in their order. q + 128 in 16 bits is the high part and, 128 too large, the low one.
static inline __m512i parts_of(const float* values, __m512 inverse) {
    const __m512i up = _mm512_set1_epi32(128);
    const __m512i order = _mm512_broadcast_i32x4(_mm_set_epi8(14, 12, 10, 8, 15, 13, 11, 9, 6, 4, 2, 0, 7, 5, 3, 1));
    const __m512i even = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(values), inverse));
    const __m512i odd = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(values + 16), inverse));
    const __m512i words = _mm512_packs_epi32(_mm512_add_epi32(even, up), _mm512_add_epi32(odd, up));
    const __m512i bytes = _mm512_xor_si512(_mm512_shuffle_epi8(words, order), _mm512_set1_epi64(static_cast<i64>(0x8080808000000000)));
    return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), bytes);
}

// One row. A block with a value that is not finite has the scale NaN.
static void split_row(const Split& to, i64 row, const float* x, const float* factors) {
    alignas(64) float values[LONGEST];
    for (i64 b = 0; b < to.blocks(); ++b) {
        const i64 first = b * to.block, stop = first + to.block < to.depth ? first + to.block : to.depth, count = stop - first;
        __m512i most = _mm512_setzero_si512();  // of numbers without their sign the larger one has the larger bits, too
        for (i64 k = 0; k < count; k += 32)
            for (i64 half = k; half < k + 32; half += 16) {
                const __m512 v = _mm512_abs_ps(some_of(x, factors, first + half, stop));
                most = _mm512_max_epu32(most, _mm512_castps_si512(v));
                _mm512_store_ps(values + half, some_of(x, factors, first + half, stop));
            }
        const uint32_t bits = _mm512_reduce_max_epu32(most);
        float top;
        std::memcpy(&top, &bits, 4);
        const bool finite = bits < 0x7f800000u, some = finite && top > 1e-30f;
        const __m512 inverse = _mm512_set1_ps(some ? LEVELS / top : 0.0f);
        __m512i sums = _mm512_setzero_si512();
        int32_t* out = to.parts + row * to.step() + first / 2;
        for (i64 k = 0; k < count; k += 32, out += 16) {
            const __m512i parts = finite ? parts_of(values + k, inverse) : _mm512_setzero_si512();
            add_products(sums, _mm512_set1_epi8(1), parts);
            const i64 left = quarters(count - k);
            _mm512_mask_storeu_epi64(out, static_cast<__mmask8>(left >= 8 ? 0xff : (1 << left) - 1), parts);
        }
        const i64 at = row * to.blocks() + b, offset = to.offset;
        to.scales[at] = finite ? (some ? top / LEVELS : 0.0f) : __builtin_nanf("");
        to.offsets[2 * at] = static_cast<int32_t>(-offset * _mm512_mask_reduce_add_epi32(0x5555, sums));
        to.offsets[2 * at + 1] = static_cast<int32_t>(-offset * _mm512_mask_reduce_add_epi32(0xaaaa, sums));
    }
}
