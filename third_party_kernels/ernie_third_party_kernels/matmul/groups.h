// Products of panels on the processor's matrix tiles: a group of 32 sides of the left operand times one of the right, both of
// bfloat16 parts (panels.h); sums are float32. Which parts are multiplied: a and b with a + b below the larger number of parts, so
// that what is left out is as small as what splitting leaves.
#pragma once
#include "panels.h"

// sums [2 x 2 tiles] += part of rows x part of columns
static inline void add_four() {
    add_bfloat_tiles<0, 4, 6>(), add_bfloat_tiles<1, 4, 7>(), add_bfloat_tiles<2, 5, 6>(), add_bfloat_tiles<3, 5, 7>();
}
template <int FIRST>
static inline void load_two(const uint16_t* from) {
    load_tile<FIRST>(from, 64), load_tile<FIRST + 1>(from + TILE_SIZE, 64);
}

static inline void load_four(const float* sums, i64 step) {
    load_tile<0>(sums, 4 * step), load_tile<1>(sums + 16, 4 * step);
    load_tile<2>(sums + 16 * step, 4 * step), load_tile<3>(sums + 16 * step + 16, 4 * step);
}
static inline void store_four(float* sums, i64 step) {
    int32_t* c = reinterpret_cast<int32_t*>(sums);
    store_tile<0>(c, 4 * step), store_tile<1>(c + 16, 4 * step);
    store_tile<2>(c + 16 * step, 4 * step), store_tile<3>(c + 16 * step + 16, 4 * step);
}

// sums [GROUP, GROUP], rows `step` apart, = or += a group of rows [A parts] times a group of columns [B parts], over so many steps
// of depth.
template <int A, int B>
static inline void multiply_groups(const uint16_t* a, const uint16_t* b, i64 steps, float* sums, i64 step = GROUP,
                                   bool add = false) {
    static_assert((A == 2 && B == 2) || B == 1, "");
    constexpr i64 two = 2 * TILE_SIZE;
    if (add)
        load_four(sums, step);
    else
        zero_tiles<0, 1, 2, 3>();
    for (i64 s = 0; s < steps; ++s, a += A * two, b += B * two) {
        if constexpr (B == 2) {
            load_two<4>(a), load_two<6>(b + two), add_four();
            load_two<6>(b), add_four();
            load_two<4>(a + two), add_four();
        } else {
            load_two<6>(b);
            if constexpr (A > 2) load_two<4>(a + 2 * two), add_four();
            if constexpr (A > 1) load_two<4>(a + two), add_four();
            load_two<4>(a), add_four();
        }
    }
    store_four(sums, step);
}

// Sixteen sums of a row that lie group by group of columns.
static inline __m512 sums_at(const float* sums, i64 r, i64 n) {
    return _mm512_load_ps(sums + n / GROUP * GROUP * GROUP + r * GROUP + n % GROUP);
}

// c[rows, columns] = or += sums, which lie group by group of columns: row after row, as memory likes it.
static inline void put_sums(const float* sums, float* c, i64 step, i64 rows, i64 columns, bool add) {
    for (i64 r = 0; r < rows; ++r, c += step)
        for (i64 n = 0; n < columns; n += 16) {
            const __mmask16 some = static_cast<__mmask16>(first_bits(columns - n < 16 ? columns - n : 16));
            __m512 x = sums_at(sums, r, n);
            if (add) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(some, c + n));
            _mm512_mask_storeu_ps(c + n, some, x);
        }
}
