// The gradient of stacked matrices over rows sorted by expert, in one call for all experts: for small matrices, as the factors of
// low-rank updates are. The bits do not depend on the threads.
#include "../grouped_gemm/products.h"

namespace {

// Columns of a result that a thread works on.
constexpr i64 SHARE = 512;

// to [few, many] = the sum over rows of the outer products of a [rows, few] and b [rows, many], columns first .. first + cols
void outer_sums(const float* a, i64 few, const float* b, i64 many, i64 first, i64 cols, i64 rows, float* to) {
    const Ahead none = Ahead::of(nullptr, 0, few, cols, rows);
    product(a, 1, few, b + first, many, to, cols, few, cols, rows, false, none);
}

}  // namespace

// dw [E, I, O] = the sum of the outer products of x [N, I] and dy [N, O] over the rows of each expert; experts without a part
// are left as they are. The larger of I and O is a multiple of 16. 1: no memory.
EXPORT int grouped_outer(const float* x, const float* dy, const i64* experts, const i64* starts, i64 parts, i64 I, i64 O,
                         float* dw, int threads) {
    const bool by_inputs = I > O;  // the larger side lies in registers; then the result is turned
    const i64 many = by_inputs ? I : O, few = by_inputs ? O : I, tiles = (many + SHARE - 1) / SHARE, padded = up_to(few, 16);
    const bool enough = with_memory(parts * tiles, padded * SHARE, threads, [&](i64 item, float* sums) {
        const i64 p = item / tiles, first = item % tiles * SHARE, cols = many - first < SHARE ? many - first : SHARE;
        const i64 from = starts[p], rows = starts[p + 1] - from;
        if (!rows) return;
        float* to = dw + experts[p] * I * O;
        outer_sums(by_inputs ? dy + from * O : x + from * I, few, by_inputs ? x + from * I : dy + from * O, many, first, cols, rows, sums);
        for (i64 f = 0; f < few; ++f) {
            if (!by_inputs) std::memcpy(to + f * O + first, sums + f * cols, sizeof(float) * static_cast<size_t>(cols));
            for (i64 c = 0; by_inputs && c < cols; ++c) to[(first + c) * O + f] = sums[f * cols + c];
        }
    });
    return enough ? 0 : 1;
}
