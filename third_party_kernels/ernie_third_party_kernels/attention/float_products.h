// The products of attention in float32 registers: elements of keys and values are broadcast from where they are, and of a block of
// queries what stands in columns is turned. Included by kernel.cpp alone.
#pragma once
#include "masks.h"

namespace {

// Keys and values of one key head: rows of d numbers, each so many numbers behind the last.
struct Head {
    const float *k, *v;
    i64 k_step, v_step;
};

// A block of queries, their gradients, and a key head. What all kinds of products have in common: `FEW`, for each_part; numbers of
// packed heads (forward and backward) and `pack` for them; memory for a block; rows of s that stand below one another are ROWS apart.
class FloatProducts {
  public:
    static constexpr i64 FEW = 16;
    static i64 packed_forward(const Sizes&) { return 0; }
    static i64 packed_backward(const Sizes&) { return 0; }
    static void pack_forward(const Sizes&, const Head&, float*) {}
    static void pack_backward(const Sizes&, const Head&, float*) {}
    static i64 forward_floats(const Sizes& n) { return n.d * ROWS; }
    static i64 backward_floats(const Sizes& n) { return 2 * (n.d + n.padded()) * ROWS; }

    FloatProducts(const Sizes& n, const Head& head, const float*, float* memory)
        : n(n), head(head), queries(memory), up(memory + n.d * ROWS), copies(up + n.d * ROWS) {}

    void set_queries(const float* q, i64 step, i64 rows, float scale) { turned(q, step, rows, n.d, queries, ROWS, scale * LOG2E); }

    // Queries and gradients of the result; both are read again where they are.
    void set_gradients(const float* q, i64 q_from, const float* dy, i64 dy_from, i64 count, float scale) {
        set_queries(q, q_from, count, scale);
        turned(dy, dy_from, count, n.d, up, ROWS, scale);
        rows = count;
        q_rows = whole(q, q_from, copies, q_step);
        dy_rows = whole(dy, dy_from, copies + ROWS * n.padded(), dy_step);
    }

    // s [keys, queries] = keys times queries
    void scores(const Part& part, float* s) const { by_rows(part, head.k, head.k_step, queries, s); }

    // s [keys, queries] = values times gradients of the result
    void slopes(const Part& part, float* s) const { by_rows(part, head.v, head.v_step, up, s); }

    // sums [d, queries] += values turned times weights s
    void add_values(const Part& part, float* s, float* sums) const { by_columns(part, head.v, head.v_step, s, sums); }

    // sums [d, queries] += keys turned times slopes s
    void add_keys(const Part& part, float* s, float* sums) const { by_columns(part, head.k, head.k_step, s, sums); }

    // d_values += weights times gradients of the result; d_keys += slopes times queries: rows of the part, `step` apart
    void add_gradients(const Part& part, float* weights, float* slope, float* d_values, float* d_keys, i64 step) const {
        const i64 keys = part.to - part.from, at = part.v_from * W, wide = n.padded() / W;
        const i64 depth = std::min<i64>(rows, part.v_to * W) - at;
        multiply(weights + at, ROWS, 1, dy_rows + at * dy_step, dy_step, d_values, step, keys, wide, depth, true);
        multiply(slope + at, ROWS, 1, q_rows + at * q_step, q_step, d_keys, step, keys, wide, depth, true);
    }

  private:
    void by_rows(const Part& part, const float* x, i64 step, const float* columns, float* s) const {
        const i64 at = part.v_from * W;
        multiply(x + part.from * step, step, 1, columns + at, ROWS, s + at, ROWS, part.to - part.from, part.v_to - part.v_from,
                 n.d, false);
    }
    void by_columns(const Part& part, const float* x, i64 step, const float* s, float* sums) const {
        const i64 at = part.v_from * W;
        multiply(x + part.from * step, 1, step, s + at, ROWS, sums + at, ROWS, n.d, part.v_to - part.v_from, part.to - part.from,
                 true);
    }

    // Rows of registers as products need them: in place where a row is whole registers, else copied with zeros behind.
    const float* whole(const float* from, i64 from_step, float* copy, i64& step) const {
        const i64 width = n.padded();
        if (width == n.d) {
            step = from_step;
            return from;
        }
        step = width;
        for (i64 i = 0; i < rows; ++i) {
            std::copy(from + i * from_step, from + i * from_step + n.d, copy + i * step);
            std::fill(copy + i * step + n.d, copy + (i + 1) * step, 0.0f);
        }
        return copy;
    }

    const Sizes& n;
    const Head head;
    float *queries, *up, *copies;
    i64 rows = 0, q_step = 0, dy_step = 0;
    const float *q_rows = nullptr, *dy_rows = nullptr;
};

}  // namespace
