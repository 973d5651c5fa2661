// A bias on every row, in place, and its gradient: the sum of the rows, over parts of them, and those in order.
#include "../row_parts.h"

EXPORT void add_bias(float* y, const float* bias, i64 T, i64 H, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        float* row = y + t * H;
        for (i64 i = 0; i < H; ++i) row[i] += bias[i];
    }
}

EXPORT i64 sum_rows_parts(i64 T) { return row_parts(T); }

// parts [sum_rows_parts(T), H] is room for sums.
EXPORT void sum_rows(const float* dy, float* sums, float* parts, i64 T, i64 H, int threads) {
    const i64 rows = rows_of_part(T), num_parts = row_parts(T);
    share_out(num_parts, threads, [=](i64 part) {
        float* to = parts + part * H;
        std::memset(to, 0, sizeof(float) * static_cast<size_t>(H));
        for (i64 t = part * rows; t < T && t < (part + 1) * rows; ++t) {
            const float* row = dy + t * H;
            for (i64 i = 0; i < H; ++i) to[i] += row[i];
        }
    });
    add_parts(parts, H, num_parts, H, sums);
}
