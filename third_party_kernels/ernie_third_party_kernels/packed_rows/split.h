// Rows of floats as sums of two or three int8 parts, q = 256 high + low or q = 65536 high + 256 middle + low with
// q = round(x / s), for products in whole numbers. Of each block of a row the largest value is 32,639 s, so x is off by at most
// 1 / 65,278 of it; with three parts 8,355,000 s and 1 / 16,710,000, what float32 rounds to.
#pragma once
#include "rounded.h"

static inline i64 quarters(i64 n) { return (n + 3) / 4; }
static inline i64 chunks_of(i64 n) { return (n + 63) / 64 * 64; }

// parts [rows, count, bytes of a part], zeros behind the last value; scales [rows, blocks]; offsets [rows, blocks, count]: the
// sums of each part times -offset, for codes that are stored `offset` too large.
struct Split {
    i64 depth, block, count, offset;
    int8_t* parts;
    float* scales;
    int32_t* offsets;

    i64 blocks() const { return (depth + block - 1) / block; }
    i64 part() const { return chunks_of(depth); }
    // bytes from row to row: not a power of two, as those share few places of a cache
    i64 step() const { return count * part() + 64; }
    i64 floats(i64 rows) const { return rows * (step() / 4 + (1 + count) * blocks()) + 16; }
    static Split of(i64 depth, i64 block, i64 offset, bool exact) {
        return {depth, block, exact ? 3 : 2, offset, nullptr, nullptr, nullptr};
    }
    Split in(float* memory, i64 rows) const {
        Split s = *this;
        s.parts = reinterpret_cast<int8_t*>(memory);
        s.scales = memory + rows * step() / 4;
        s.offsets = reinterpret_cast<int32_t*>(s.scales + rows * blocks());
        return s;
    }
};

// Values of a row at k .. k + 16, times `factors` where there are any; zero from `stop` on.
static inline __m512 some_of(const float* x, const float* factors, i64 k, i64 stop) {
    const __mmask16 mask = stop - k >= 16 ? 0xffff : static_cast<__mmask16>(stop > k ? (1 << (stop - k)) - 1 : 0);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + k);
    return factors ? _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, factors + k)) : v;
}

// q in COUNT parts, the highest first.
template <int COUNT>
static inline void divide(__m512i q, __m512i (&parts)[COUNT]) {
    const __m512i half = _mm512_set1_epi32(128);
    for (int p = COUNT - 1; p > 0; --p) {
        const __m512i above = _mm512_srai_epi32(_mm512_add_epi32(q, half), 8);
        parts[p] = _mm512_sub_epi32(q, _mm512_slli_epi32(above, 8));
        q = above;
    }
    parts[0] = q;
}

// Values first .. stop of a row, which are multiplied with `inverse`, as parts; zeros up to `end`. Sums of the parts.
template <int COUNT>
static inline void split_block(const Split& to, const float* values, __m512 inverse, i64 count, i64 end, int8_t* out, int32_t* sums) {
    __m512i all[COUNT], parts[COUNT];
    for (int p = 0; p < COUNT; ++p) all[p] = _mm512_setzero_si512();
    for (i64 k = 0; k < end; k += 16) {
        if (k < count)
            divide(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(values + k), inverse)), parts);
        else
            for (int p = 0; p < COUNT; ++p) parts[p] = _mm512_setzero_si512();
        const __mmask16 mask = end - k >= 16 ? 0xffff : static_cast<__mmask16>((1 << (end - k)) - 1);
        for (int p = 0; p < COUNT; ++p) {
            all[p] = _mm512_add_epi32(all[p], parts[p]);
            _mm512_mask_cvtepi32_storeu_epi8(out + p * to.part() + k, mask, parts[p]);
        }
    }
    for (int p = 0; p < COUNT; ++p) sums[p] = _mm512_reduce_add_epi32(all[p]);
}

// One row. A block with a value that is not finite has the scale NaN.
static void split_row(const Split& to, i64 row, const float* x, const float* factors) {
    alignas(64) float values[LONGEST + 16];
    const float levels = to.count == 3 ? FINE_LEVELS : LEVELS;
    for (i64 b = 0; b < to.blocks(); ++b) {
        const i64 first = b * to.block, stop = first + to.block < to.depth ? first + to.block : to.depth, count = stop - first;
        __m512i most = _mm512_setzero_si512();  // of numbers without their sign the larger one has the larger bits, too
        for (i64 k = 0; k < count; k += 16) {
            const __m512 v = some_of(x, factors, first + k, stop);
            most = _mm512_max_epu32(most, _mm512_castps_si512(_mm512_abs_ps(v)));
            _mm512_store_ps(values + k, v);
        }
        const uint32_t bits = _mm512_reduce_max_epu32(most);
        float top;
        std::memcpy(&top, &bits, 4);
        const bool finite = bits < 0x7f800000u, some = finite && top > 1e-30f;
        if (!finite) std::memset(values, 0, sizeof(values));
        const __m512 inverse = _mm512_set1_ps(some ? levels / top : 0.0f);
        const i64 at = row * to.blocks() + b, end = stop < to.depth ? count : to.part() - first;
        int8_t* out = to.parts + row * to.step() + first;
        int32_t sums[3];
        if (to.count == 3)
            split_block<3>(to, values, inverse, count, end, out, sums);
        else
            split_block<2>(to, values, inverse, count, end, out, sums);
        to.scales[at] = finite ? (some ? top / levels : 0.0f) : __builtin_nanf("");
        for (i64 p = 0; p < to.count; ++p) to.offsets[to.count * at + p] = static_cast<int32_t>(-to.offset) * sums[p];
    }
}
