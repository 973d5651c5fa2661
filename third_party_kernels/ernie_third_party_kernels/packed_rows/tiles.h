// Products of split rows with a strip of codes on the processor's matrix tiles (AMX): 16 rows of 64 bytes times 64 x 16 codes per
// instruction, eight times what VNNI makes. Sums are the same whole numbers, so results have the same bits.
#pragma once
#include "../matrix_tiles.h"
#include "split.h"

// What the parts of a sum are together.
template <int P>
static inline __m512 joined(const __m512i (&s)[P]) {
    const __m512 low = _mm512_cvtepi32_ps(s[P - 1]), up = _mm512_set1_ps(256.0f), upper = _mm512_set1_ps(65536.0f);
    const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[P - 2]), up, low);
    return P == 3 ? _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[0]), upper, sum) : sum;
}

static inline __mmask64 first_bytes(i64 n) { return n >= 64 ? ~0ull : (n <= 0 ? 0 : (1ull << n) - 1); }

// Stores of a row of a strip's results, of which there may be less than 32.
struct Edge {
    __mmask16 first, second;
    explicit Edge(i64 columns)
        : first(static_cast<__mmask16>(first_bytes(columns < 16 ? columns : 16))),
          second(static_cast<__mmask16>(first_bytes(columns - 16 < 16 ? columns - 16 : 16))) {}
    void store(float* to, __m512 a, __m512 b) const {
        _mm512_mask_storeu_ps(to, first, a);
        if (second) _mm512_mask_storeu_ps(to + 16, second, b);
    }
};

// Whether each block but the last is a whole number of tiles.
static inline bool fits_tiles(const Split& x) { return x.depth <= x.block || x.block % 64 == 0; }

// sums [2 P tiles] of 64 inputs at a time: rows from `parts`, `step` bytes apart, codes [16, 32 columns, 4] from `strip`
template <int P>
static inline void block_sums(const int8_t* parts, i64 step, i64 part, const uint8_t* strip, i64 chunks, int32_t (*sums)[256]) {
    constexpr i64 wide = 128;
    zero_tiles<0, 1, 2, 3>();
    if (P == 3) zero_tiles<4, 5>();
    for (i64 c = 0; c < chunks; ++c, parts += 64, strip += 16 * wide) {
        if (P == 2) {
            load_tile<6>(strip, wide), load_tile<4>(parts, step), add_tiles<0, 4, 6>();
            load_tile<7>(strip + 64, wide), add_tiles<1, 4, 7>();
            load_tile<5>(parts + part, step), add_tiles<2, 5, 6>(), add_tiles<3, 5, 7>();
        } else {
            load_tile<7>(strip, wide), load_tile<6>(parts, step), add_tiles<0, 6, 7>();
            load_tile<6>(parts + part, step), add_tiles<2, 6, 7>();
            load_tile<6>(parts + 2 * part, step), add_tiles<4, 6, 7>();
            load_tile<7>(strip + 64, wide), add_tiles<5, 6, 7>();
            load_tile<6>(parts + part, step), add_tiles<3, 6, 7>();
            load_tile<6>(parts, step), add_tiles<1, 6, 7>();
        }
    }
    store_tile<0>(sums[0]), store_tile<1>(sums[1]), store_tile<2>(sums[2]), store_tile<3>(sums[3]);
    if (P == 3) store_tile<4>(sums[2 * P - 2]), store_tile<5>(sums[2 * P - 1]);
}

// All rows first .. stop of x times a strip; see tile_of.
template <int P>
static void rows_in_tiles(const Split& x, i64 first, i64 stop, const uint8_t* strip, const float* factors, i64 factor_step,
                          float* to, i64 to_step, i64 columns) {
    alignas(64) int32_t sums[2 * P][256];
    alignas(64) float all[16][32];
    const i64 blocks = x.blocks();
    const Edge edge(columns);
    i64 shaped = 0;
    for (i64 r = first; r < stop; r += 16, to += 16 * to_step) {
        const i64 rows = stop - r < 16 ? stop - r : 16;
        if (rows != shaped) Shapes(shaped = rows, P == 2 ? 6 : 7).use();
        for (i64 b = 0; b < blocks; ++b) {
            const i64 from = b * x.block, chunks = ((x.depth - from < x.block ? x.depth - from : x.block) + 63) / 64;
            block_sums<P>(x.parts + r * x.step() + from, x.step(), x.part(), strip + from * 32, chunks, sums);
            const __m512 f0 = _mm512_loadu_ps(factors + b * factor_step), f1 = _mm512_loadu_ps(factors + b * factor_step + 16);
            for (i64 m = 0; m < rows; ++m) {
                const i64 at = (r + m) * blocks + b;
                __m512i s[2][P];
                for (int p = 0; p < P; ++p) {
                    const __m512i offset = _mm512_set1_epi32(x.offsets[P * at + p]);
                    for (int h = 0; h < 2; ++h) s[h][p] = _mm512_add_epi32(_mm512_load_si512(sums[2 * p + h] + 16 * m), offset);
                }
                const __m512 scale = _mm512_set1_ps(x.scales[at]), zero = _mm512_setzero_ps();
                const __m512 a = _mm512_fmadd_ps(joined<P>(s[0]), _mm512_mul_ps(f0, scale), b ? _mm512_load_ps(all[m]) : zero);
                const __m512 c = _mm512_fmadd_ps(joined<P>(s[1]), _mm512_mul_ps(f1, scale), b ? _mm512_load_ps(all[m] + 16) : zero);
                if (b + 1 == blocks) {
                    edge.store(to + m * to_step, a, c);
                } else {
                    _mm512_store_ps(all[m], a);
                    _mm512_store_ps(all[m] + 16, c);
                }
            }
        }
    }
    release_tiles();
}
