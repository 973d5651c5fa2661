// The gradient of a row lookup: rows of dy are added up at their ids, always in the order of the tokens. A range of the
// vocabulary is one item of work, so that no two threads write to one row.
#include "../common.h"

enum { RANGES = 64 };

// 0, or 1 for an id outside of the table. ids [T], dy [T, H] -> dw [V, H]
EXPORT int embedding_backward(const i64* ids, const float* dy, float* dw, i64 T, i64 V, i64 H, int threads) {
    for (i64 t = 0; t < T; ++t)
        if (ids[t] < 0 || ids[t] >= V) return 1;
    // in large pieces: beyond some size the C library writes zeros past the caches, without reading what they replace
    const i64 piece = (V * H + threads - 1) / threads;
    share_out(threads, threads, [=](i64 n) {
        const i64 start = n * piece, stop = start + piece < V * H ? start + piece : V * H;
        if (start < stop) std::memset(dw + start, 0, sizeof(float) * static_cast<size_t>(stop - start));
    });
    const i64 width = (V + RANGES - 1) / RANGES;
    share_out(RANGES, threads, [&](i64 item) {
        const i64 first = item * width, stop = first + width < V ? first + width : V;
        if (first >= stop) return;
        for (i64 t = 0; t < T; ++t) {
            if (ids[t] < first || ids[t] >= stop) continue;
            float* row = dw + ids[t] * H;
            const float* g = dy + t * H;
            for (i64 i = 0; i < H; ++i) row[i] += g[i];
        }
    });
    return 0;
}
