// Sums over rows, such as gradients of weights that every row shares: made in parts side by side and added in order, so that
// the bits do not depend on threads.
#pragma once
#include "common.h"

// Rows of a part: so many parts that threads have work, and of a number that the shape decides.
static inline i64 rows_of_part(i64 T) {
    const i64 rows = (T + 31) / 32;
    return rows < 16 ? 16 : rows;
}

static inline i64 row_parts(i64 T) { return (T + rows_of_part(T) - 1) / rows_of_part(T); }

// to[H] = the sums of the parts, which are `step` numbers apart.
static inline void add_parts(const float* parts, i64 step, i64 num_parts, i64 H, float* to) {
    for (i64 i = 0; i < H; ++i) to[i] = num_parts > 0 ? parts[i] : 0.0f;
    for (i64 part = 1; part < num_parts; ++part)
        for (i64 i = 0; i < H; ++i) to[i] += parts[part * step + i];
}
