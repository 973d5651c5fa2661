// The products of attention on the processor's matrix tiles, each number made of P bfloat16 parts (matmul/panels.h): keys and values
// of a head are packed once, queries once for a block, weights and slopes for each part. Sums and softmax are float32. Included by
// kernel.cpp alone, where the processor may have such tiles.
#pragma once
#include "../matmul/groups.h"
#include "float_products.h"

namespace {

// As FloatProducts. Holds the tiles of its thread.
template <int P>
class TileProducts {
  public:
    static constexpr i64 FEW = GROUP;
    static i64 packed_forward(const Sizes& n) { return 2 * head_panel(n); }
    static i64 packed_backward(const Sizes& n) { return 3 * head_panel(n); }
    static void pack_forward(const Sizes& n, const Head& head, float* to) {
        pack_rows(n, head.k, head.k_step, to);
        pack_columns(n, head.v, head.v_step, to + head_panel(n));
    }
    static void pack_backward(const Sizes& n, const Head& head, float* to) {
        pack_rows(n, head.k, head.k_step, to);
        pack_rows(n, head.v, head.v_step, to + head_panel(n));
        pack_columns(n, head.k, head.k_step, to + 2 * head_panel(n));
    }
    static i64 forward_floats(const Sizes& n) { return ROWS * n.padded() + block_panel(n) + PART; }
    static i64 backward_floats(const Sizes& n) { return forward_floats(n) + 3 * block_panel(n) + PART + GROUP * GROUP; }

    TileProducts(const Sizes& n, const Head&, const float* packed, float* memory)
        : n(n), packed(packed), scaled(memory), queries(scaled + ROWS * n.padded()), right(queries + block_panel(n)),
          up(right + PART), q_rows(up + block_panel(n)), dy_rows(q_rows + block_panel(n)), left(dy_rows + block_panel(n)),
          rest(left + PART) {
        Shapes(16, 0).use();
    }
    TileProducts(const TileProducts&) = delete;
    TileProducts& operator=(const TileProducts&) = delete;
    ~TileProducts() { release_tiles(); }

    void set_queries(const float* q, i64 step, i64 rows, float scale) { pack_scaled(q, step, rows, scale * LOG2E, queries); }

    void set_gradients(const float* q, i64 q_from, const float* dy, i64 dy_from, i64 rows, float scale) {
        set_queries(q, q_from, rows, scale);
        pack_scaled(dy, dy_from, rows, scale, up);
        pack_groups<P, false>(Operand<float>{q, q_from, true}, 0, n.d, 0, rows, words(q_rows));
        pack_groups<P, false>(Operand<float>{dy, dy_from, true}, 0, n.d, 0, rows, words(dy_rows));
        depth_step = steps_of(rows) * STEP;
    }

    void scores(const Part& part, float* s) const { by_rows(part, words(packed), words(queries), s); }
    void slopes(const Part& part, float* s) const { by_rows(part, words(packed + head_panel(n)), words(up), s); }
    void add_values(const Part& part, float* s, float* sums) { by_columns(part, words(packed + head_panel(n)), s, sums); }
    void add_keys(const Part& part, float* s, float* sums) { by_columns(part, words(packed + 2 * head_panel(n)), s, sums); }

    // The columns of `add_keys` are cleared already in the slopes, not yet in the weights.
    void add_gradients(const Part& part, float* weights, float* slope, float* d_values, float* d_keys, i64 step) {
        clear_beside(part, weights);
        add_rows(part, weights, words(dy_rows), d_values, step);
        add_rows(part, slope, words(q_rows), d_keys, step);
    }

  private:
    // Words of a group at one step of depth; floats of a panel of KEYS by ROWS.
    static constexpr i64 STEP = 2 * P * TILE_SIZE, PART = KEYS / GROUP * (ROWS / TILE_DEPTH) * STEP / 2;

    static i64 head_panel(const Sizes& n) { return groups_of(n.K) * steps_of(n.d) * STEP / 2; }
    static i64 block_panel(const Sizes& n) { return groups_of(ROWS) * steps_of(n.d) * STEP / 2; }
    static uint16_t* words(float* x) { return reinterpret_cast<uint16_t*>(x); }
    static const uint16_t* words(const float* x) { return reinterpret_cast<const uint16_t*>(x); }
    static i64 first_group(const Part& part) { return part.v_from * W / GROUP; }
    static i64 end_group(const Part& part) { return groups_of(part.v_to * W); }

    // Left operands: a row for each key, and a row for each of the d numbers of all keys.
    static void pack_rows(const Sizes& n, const float* x, i64 step, float* to) {
        pack_groups<P, true>(Operand<float>{x, step, false}, 0, n.K, 0, n.d, words(to));
    }
    static void pack_columns(const Sizes& n, const float* x, i64 step, float* to) {
        pack_groups<P, true>(Operand<float>{x, step, true}, 0, n.d, 0, n.K, words(to));
    }

    // A right operand: a column for each query.
    void pack_scaled(const float* x, i64 step, i64 rows, float factor, float* to) const {
        const i64 width = n.padded();
        for (i64 i = 0; i < rows; ++i)
            for (i64 j = 0; j < n.d; ++j) scaled[i * width + j] = x[i * step + j] * factor;
        pack_groups<P, false>(Operand<float>{scaled, width, false}, 0, rows, 0, n.d, words(to));
    }

    void by_rows(const Part& part, const uint16_t* rows, const uint16_t* columns, float* s) const {
        const i64 steps = steps_of(n.d), from = part.from / GROUP, groups = groups_of(part.to - part.from);
        for (i64 g = first_group(part); g < end_group(part); ++g)
            for (i64 i = 0; i < groups; ++i)
                multiply_groups<P, P>(rows + (from + i) * steps * STEP, columns + g * steps * STEP, steps,
                                      s + i * GROUP * ROWS + g * GROUP, ROWS);
    }

    void by_columns(const Part& part, const uint16_t* turned_rows, float* s, float* sums) {
        const i64 keys = part.to - part.from, steps = steps_of(keys), first = first_group(part);
        clear_beside(part, s);
        pack_groups<P, false>(Operand<float>{s, ROWS, true}, first * GROUP, (end_group(part) - first) * GROUP, 0, keys,
                              words(right));
        for (i64 g = first; g < end_group(part); ++g)
            for (i64 i = 0; i < groups_of(n.d); ++i)
                multiply_groups<P, P>(turned_rows + (i * steps_of(n.K) + part.from / GROUP) * STEP,
                                      words(right) + (g - first) * steps * STEP, steps, sums + i * GROUP * ROWS + g * GROUP,
                                      ROWS, true);
    }

    // to[keys, d] += s times rows of queries or gradients; of the last numbers through a block beside, as nothing may be written
    // behind them.
    void add_rows(const Part& part, const float* s, const uint16_t* columns, float* to, i64 step) {
        const i64 keys = part.to - part.from, first = first_group(part), steps = end_group(part) - first, width = n.padded();
        pack_groups<P, true>(Operand<float>{s, ROWS, false}, 0, keys, first * GROUP, steps * GROUP, words(left));
        for (i64 j = 0; j < width; j += GROUP)
            for (i64 i = 0; i < keys; i += GROUP) {
                const uint16_t *a = words(left) + i / GROUP * steps * STEP, *b = columns + j / GROUP * depth_step + first * STEP;
                float* c = to + i * step + j;
                if (keys - i >= GROUP && width - j >= GROUP) {
                    multiply_groups<P, P>(a, b, steps, c, step, true);
                } else {
                    multiply_groups<P, P>(a, b, steps, rest);
                    put_sums(rest, c, step, std::min(GROUP, keys - i), std::min(GROUP, width - j), true);
                }
            }
    }

    // Columns that belong to the groups of a part and not to the part.
    static void clear_beside(const Part& part, float* s) {
        const i64 from = first_group(part) * GROUP, to = end_group(part) * GROUP;
        for (i64 j = 0; j < part.to - part.from; ++j, s += ROWS) {
            std::fill(s + from, s + part.v_from * W, 0.0f);
            std::fill(s + part.v_to * W, s + to, 0.0f);
        }
    }

    const Sizes& n;
    const float* packed;
    float *scaled, *queries, *right, *up, *q_rows, *dy_rows, *left, *rest;
    i64 depth_step = 0;
};

}  // namespace
