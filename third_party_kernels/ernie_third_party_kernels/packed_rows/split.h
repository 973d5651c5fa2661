// Rows of floats as sums of two int8 parts, q = 256 high + low with q = round(x / s), for products in whole numbers. Of each
// block of a row the largest value is 32,639 s, so x is off by at most 1 / 65,278 of it.
#pragma once
#include "../packed_weights/codes.h"
#include <cstdlib>

// Where scales are shared by all inputs, values of a row that share s; blocks are a multiple of four long.
constexpr i64 BLOCK = 256;
constexpr float LEVELS = 32639.0f;  // 127 * 256 + 127

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

#if defined(__AVX512F__)
// 16 values of x at k, times `factors` where there are any; zero from `stop` on.
static inline __m512 some_of(const float* x, const float* factors, i64 k, i64 stop) {
    const __mmask16 mask = stop - k >= 16 ? 0xffff : static_cast<__mmask16>((1 << (stop - k)) - 1);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + k);
    return factors ? _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, factors + k)) : v;
}

// One row. A block with a value that is not finite has the scale NaN.
static void split_row(const Split& to, i64 row, const float* x, const float* factors) {
    for (i64 b = 0; b < to.blocks(); ++b) {
        const i64 first = b * to.block, stop = first + to.block < to.depth ? first + to.block : to.depth;
        __m512 most = _mm512_setzero_ps(), doubt = _mm512_setzero_ps();
        for (i64 k = first; k < stop; k += 16) {
            const __m512 v = some_of(x, factors, k, stop);
            most = _mm512_max_ps(most, _mm512_abs_ps(v));
            doubt = _mm512_add_ps(doubt, _mm512_sub_ps(v, v));
        }
        const float top = _mm512_reduce_max_ps(most), lost = _mm512_reduce_add_ps(doubt);
        const bool some = top > 1e-30f && lost == 0.0f;
        const __m512 inverse = _mm512_set1_ps(some ? LEVELS / top : 0.0f);
        __m512i all = _mm512_setzero_si512(), above = _mm512_setzero_si512();
        char* out = reinterpret_cast<char*>(to.parts + row * to.step() + first / 2);
        for (i64 k = first; k < stop; k += 16, out += 32) {
            const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(some_of(x, factors, k, stop), inverse));
            const __m512i h = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
            all = _mm512_add_epi32(all, q);
            above = _mm512_add_epi32(above, h);
            const __m128i high = _mm512_cvtepi32_epi8(h), low = _mm512_cvtepi32_epi8(q);
            char both[32];
            _mm_storeu_si128(reinterpret_cast<__m128i*>(both), _mm_unpacklo_epi32(high, low));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(both + 16), _mm_unpackhi_epi32(high, low));
            std::memcpy(out, both, stop - k >= 16 ? 32 : 8 * static_cast<size_t>(quarters(stop - k)));
        }
        const i64 high = _mm512_reduce_add_epi32(above), low = _mm512_reduce_add_epi32(all) - 256 * high, at = row * to.blocks() + b;
        to.scales[at] = lost != 0.0f ? lost : (some ? top / LEVELS : 0.0f);
        to.offsets[2 * at] = static_cast<int32_t>(-to.offset * high);
        to.offsets[2 * at + 1] = static_cast<int32_t>(-to.offset * low);
    }
}
#endif
