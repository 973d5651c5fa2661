// Products of split rows with a strip of codes on the processor's matrix tiles (AMX): 16 rows of 64 bytes times 64 x 16 codes per
// instruction, eight times what VNNI makes. Sums are the same whole numbers, so results have the same bits.
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// Whether the processor has tiles of bytes and Linux lets this process use them, which it has to be asked for.
static inline bool has_tiles() {
#if defined(__linux__) && defined(__x86_64__)
    static const bool can = [] {
        constexpr long ask = 0x1023, tile_data = 18;
        unsigned a, b, c, d;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 25 & 1)) return false;
        return syscall(SYS_arch_prctl, ask, tile_data) == 0;
    }();
    return can;
#else
    return false;
#endif
}

// Whether each block but the last is a whole number of tiles.
static inline bool fits_tiles(const Split& x) { return x.depth <= x.block || x.block % 64 == 0; }

// Shapes of the tiles for so many rows: sums and rows have as many, codes 16 rows of four inputs.
struct alignas(64) Shapes {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
    Shapes(i64 count, int first_codes) {
        for (int t = 0; t < 8; ++t) bytes[t] = 64, rows[t] = static_cast<uint8_t>(t < first_codes ? count : 16);
    }
    void use() const { __asm__ volatile("ldtilecfg %0" : : "m"(*this)); }
};

// In words of the assembler, as in codes.h; the number of a tile is part of the instruction.
template <int... T>
static inline void zero_tiles() {
    (..., [] { __asm__ volatile("tilezero %%tmm%c0" : : "i"(T)); }());
}
template <int T>
static inline void load_tile(const void* from, i64 step) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(step), "i"(T) : "memory");
}
template <int T>
static inline void store_tile(int32_t* to) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(64l), "i"(T) : "memory");
}
template <int SUMS, int ROWS, int CODES>
static inline void add_tiles() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(CODES));
}

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
    __asm__ volatile("tilerelease" : : :);
}
