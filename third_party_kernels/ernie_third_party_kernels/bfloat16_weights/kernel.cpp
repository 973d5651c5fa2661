// Products in float32 with matrices that are kept in bfloat16, in either order: [O, I] by outputs or [I, O] by inputs. The
// gradient of the rows is the product with the other order. The bits do not depend on the threads.
#include "bfloats.h"
#include "../packed_rows/floats.h"
#include "../packed_weights/product.h"
#if defined(__AVX512BW__) && defined(__linux__)
#define HAS_PARTS 1
#include "../matmul/product.h"
#endif

// Rows that are multiplied while the matrix is read once, by order; more rows pass over panels of it.
constexpr i64 FEW_BY_OUTPUTS = 64, FEW_BY_INPUTS = 8;
// Columns and rows of a matrix [I, O] that are worked on together: sums of so many columns stay in the nearest cache, and each
// row is a stream of its own.
constexpr i64 BROAD = 1024, STREAMS = 4;

typedef Coded<uint16_t> Matrices;

// A row by a matrix [O, I], output after output.
static void few_by_outputs(const Matrices& j) {
    const i64 fair = j.O / (8 * j.threads) / TILE * TILE, width = fair < TILE ? TILE : (fair > 8 * TILE ? 8 * TILE : fair);
    const i64 tiles = (j.O + width - 1) / width;
    share_out(j.parts * tiles, j.threads, [&](i64 item) {
        const i64 p = item / tiles, first = item % tiles * width, row = j.starts[p];
        outputs<Bfloats>(j.codes_of<Bfloats>(p), nullptr, 0, j.x + row * j.I, j.starts[p + 1] - row, j.I, j.O, first, width,
                         j.y + row * j.O + first, j.O);
    });
}

// sums [columns] += x [STREAMS] times so many rows of a matrix
template <int DEPTH_>
static inline void add_streams(const float* x, const uint16_t* w, i64 step, i64 columns, float* sums) {
    i64 c = 0;
    for (; c + 16 <= columns; c += 16) {
        wide s = load(sums + c);
        for (int k = 0; k < DEPTH_; ++k) s += x[k] * widened(w + k * step + c);
        store(sums + c, s);
    }
    for (; c < columns; ++c)
        for (int k = 0; k < DEPTH_; ++k) sums[c] += x[k] * widened_one(w[k * step + c]);
}

// Few rows by a matrix whose rows, O of them, are the depth: each is read once, from left to right.
static void few_by_inputs(const Matrices& j) {
    const i64 fair = j.I / (4 * j.threads) / 64 * 64, width = fair < 64 ? 64 : (fair > BROAD ? BROAD : fair);
    const i64 tiles = (j.I + width - 1) / width;
    share_out(j.parts * tiles, j.threads, [&](i64 item) {
        const i64 p = item / tiles, first = item % tiles * width, columns = j.I - first < width ? j.I - first : width;
        const uint16_t* w = j.codes_of<Bfloats>(p) + first;
        for (i64 r = j.starts[p]; r < j.starts[p + 1]; ++r)
            std::memset(j.y + r * j.I + first, 0, sizeof(float) * static_cast<size_t>(columns));
        for (i64 k = 0; k < j.O; k += STREAMS) {
            for (i64 s = 0; s < STREAMS && k + STREAMS + s < j.O; ++s)
                for (i64 c = 0; c < columns; c += 32) __builtin_prefetch(w + (k + STREAMS + s) * j.I + c);
            for (i64 r = j.starts[p]; r < j.starts[p + 1]; ++r) {
                const float* x = j.x + r * j.O + k;
                float* sums = j.y + r * j.I + first;
                if (k + STREAMS <= j.O)
                    add_streams<STREAMS>(x, w + k * j.I, j.I, columns, sums);
                else
                    for (i64 s = 0; k + s < j.O; ++s) add_streams<1>(x + s, w + (k + s) * j.I, j.I, columns, sums);
            }
        }
    });
}

#if defined(HAS_PARTS)
// Rows from which on their parts are multiplied on matrix tiles, where the processor has them.
constexpr i64 MANY = 16;

// Three parts of each number of x are exact, as W is: what is rounded is sums, as in float32. false: no memory.
static bool in_parts(const Matrices& j, bool by_inputs, int parts) {
    const i64 K = by_inputs ? j.O : j.I, N = by_inputs ? j.I : j.O;
    for (i64 p = 0; p < j.parts; ++p) {
        const Operand<float> rows = {j.x + j.starts[p] * K, K, false};
        const Operand<uint16_t> weights = {j.codes_of<Bfloats>(p), j.I, by_inputs};
        const i64 M = j.starts[p + 1] - j.starts[p];
        const Factors<uint16_t> all = {rows, weights, M, N, K, j.y + j.starts[p] * N, N, false, j.threads};
        const bool enough = M == 0 || (parts == 1   ? multiply_parts<1, 1>(all)
                                       : parts == 2 ? multiply_parts<2, 1>(all)
                                                    : multiply_parts<3, 1>(all));
        if (!enough) return false;
    }
    return true;
}
#endif

// y = x W^T with W [O, I] (by_inputs 0: x [N, I]), or y = x W with the same W (by_inputs 1: x [N, O], y [N, I]). Parts as in
// packed_rows. Of `numbers_of_x` bfloat16 numbers each number of x may be made: 3 are exact. 1: no memory.
EXPORT int bfloat16_product(int by_inputs, const uint16_t* numbers, const float* x, const i64* experts, const i64* starts,
                            i64 parts, i64 I, i64 O, float* y, int numbers_of_x, int threads) {
    const Matrices j = {numbers, nullptr, 0, x, experts, starts, parts, I, O, y, threads};
#if defined(HAS_PARTS)
    if (has_bfloat_tiles() && j.rows() >= MANY * parts) return in_parts(j, by_inputs, numbers_of_x) ? 0 : 1;
#else
    (void)numbers_of_x;
#endif
    if (j.rows() <= (by_inputs ? FEW_BY_INPUTS : FEW_BY_OUTPUTS) * parts) {
        (by_inputs ? few_by_inputs : few_by_outputs)(j);
        return 0;
    }
    return (by_inputs ? in_floats<Bfloats, true>(j) : in_floats<Bfloats, false>(j)) ? 0 : 1;
}
