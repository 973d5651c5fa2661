// The forward pass: blocks of queries of one head, with softmax by parts of the keys. Included by kernel.cpp alone.
#pragma once
#include "../scratch.h"
#include "float_products.h"
#include <cmath>

namespace {

template <class Products>
struct Forward {
    Sizes n;
    View q, k, v;
    float *out, *stats;
    float scale;
    Mask mask;

    i64 heights() const { return (n.d + GROUPED - 1) / GROUPED * GROUPED; }
    i64 floats() const { return (heights() + KEYS + 3) * ROWS + Products::forward_floats(n); }
    Head head(i64 b, i64 shared) const { return {k.at(b, 0, shared), v.at(b, 0, shared), k.s, v.s}; }

    // One block of queries of one head; `packed` is what Products made of its keys and values, `memory` has floats().
    void block(i64 b, i64 h, i64 row, const float* packed, float* memory) const {
        float *sums = memory, *s = sums + heights() * ROWS, *top = s + KEYS * ROWS, *total = top + ROWS, *less = total + ROWS;
        const i64 rows = std::min(ROWS, n.S - row), out_step = n.hq * n.d;
        float* to = out + (b * n.S + row) * out_step + h * n.d;
        fetch_rows(q.at(b, row, h), q.s, rows, n.d);
        fetch_rows(to, out_step, rows, n.d);
        Products products(n, head(b, h / n.group()), packed, less + ROWS);
        products.set_queries(q.at(b, row, h), q.s, rows, scale);
        std::fill(sums, sums + heights() * ROWS, 0.0f);
        std::fill(top, top + ROWS, HIDDEN);
        std::fill(total, total + ROWS, 0.0f);
        each_part<Products::FEW>(n, mask, b, row, [&](const Part& part) {
            products.scores(part, s);
            if (part.masked) hide(n, mask, b, row, part, s);
            bool grown = false;
            for (int c = part.v_from; c < part.v_to; ++c)
                grown |= softmax(s + c * W, part.to - part.from, top + c * W, total + c * W, less + c * W);
            if (grown)
                for (i64 i = 0; i < n.d; ++i)
                    for (int c = part.v_from; c < part.v_to; ++c)
                        put(sums + i * ROWS + c * W, get(sums + i * ROWS + c * W) * get(less + c * W));
            products.add_values(part, s, sums);
        });
        finish(sums, top, total, rows);
        turned_back(sums, ROWS, to, out_step, rows, n.d);
        std::copy(top, top + rows, stats + (b * n.hq + h) * n.S + row);
    }

    // One register of columns: weights instead of scores, relative to the highest so far; whether that has grown.
    static bool softmax(float* s, i64 keys, float* top, float* total, float* less) {
        const vec before = get(top);
        vec high = before;
        for (i64 j = 0; j < keys; ++j) {
            const vec x = get(s + j * ROWS);
            high = x > high ? x : high;
        }
        vec sum = {}, more = {};
        i64 j = 0;
        for (; j + 2 <= keys; j += 2) {
            const vec x = power_of_two(get(s + j * ROWS) - high), y = power_of_two(get(s + (j + 1) * ROWS) - high);
            put(s + j * ROWS, x);
            put(s + (j + 1) * ROWS, y);
            sum += x;
            more += y;
        }
        if (j < keys) {
            const vec x = power_of_two(get(s + j * ROWS) - high);
            put(s + j * ROWS, x);
            sum += x;
        }
        const vec factor = power_of_two(before - high);
        put(top, high);
        put(less, factor);
        put(total, get(total) * factor + (sum + more));
        const ivec same = high == before;
        int32_t grown = 0;
        for (int i = 0; i < W; ++i) grown |= ~same[i];
        return grown != 0;
    }

    // Divides; `top` becomes the logarithm of the sum. Rows that see nothing are 0, and their logarithm is so high that
    // no weight is left in the backward pass.
    void finish(float* sums, float* top, float* total, i64 rows) const {
        for (i64 i = 0; i < ROWS; ++i) {
            const bool blind = i >= rows || (top[i] <= 0.1f * HIDDEN && total[i] == total[i]);
            top[i] = blind ? -HIDDEN : top[i] + std::log2(total[i]);
            total[i] = blind ? 0.0f : 1.0f / total[i];
        }
        for (i64 i = 0; i < n.d; ++i)
            for (int c = 0; c < WIDE; ++c) put(sums + i * ROWS + c * W, get(sums + i * ROWS + c * W) * get(total + c * W));
    }
};

// All blocks; false: no memory. Key heads are packed and worked on together as far as they need no more than MOST_PACKED floats. The
// last rows see most keys: they go first.
template <class Products>
bool forward(const Forward<Products>& pass, int threads) {
    constexpr i64 MOST_PACKED = 4 << 20;
    const Sizes& n = pass.n;
    const i64 heads = n.B * n.hk, size = Products::packed_forward(n), group = n.group();
    const i64 together = size ? std::min(heads, std::max<i64>(1, MOST_PACKED / size)) : heads;
    thread_local Scratch shared;
    float* packed = size ? shared.floats(together * size) : nullptr;
    bool enough = packed || !size;
    for (i64 first = 0; enough && first < heads; first += together) {
        const i64 some = std::min(together, heads - first);
        if (size)
            share_out(some, threads, [&](i64 i) {
                Products::pack_forward(n, pass.head((first + i) / n.hk, (first + i) % n.hk), packed + i * size);
            });
        enough = with_memory(some * group * n.blocks(), pass.floats(), threads, [&](i64 index, float* memory) {
            const i64 row = (n.blocks() - 1 - index / (some * group)) * ROWS, at = index % (some * group) / group;
            const i64 h = (first + at) % n.hk * group + index % group;
            pass.block((first + at) / n.hk, h, row, packed + at * size, memory);
        });
    }
    shared.give_back();
    return enough;
}

}  // namespace
