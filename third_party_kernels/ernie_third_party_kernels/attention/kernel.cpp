// Attention by blocks of 64 query positions of one head against a few keys: scores exist for one block at a time.
//
// Every block is held with a query per column, s[key][query], so that softmax needs no sums across a register, keys and
// values are read where they are, and only the block of queries is turned. Powers of two instead of e: log2 e is part of the
// factor of the queries.
#include "../scratch.h"
#include "masks.h"
#include <cmath>

namespace {

struct Forward {
    Sizes n;
    View q, k, v;
    float *out, *stats;
    float scale;
    Mask mask;

    i64 floats() const { return (2 * n.d + KEYS + 3) * ROWS; }

    // One block of queries of one head; `memory` has floats().
    void block(i64 b, i64 h, i64 row, float* memory) const {
        float *queries = memory, *sums = queries + n.d * ROWS, *s = sums + n.d * ROWS, *top = s + KEYS * ROWS;
        float *total = top + ROWS, *less = total + ROWS;
        const i64 rows = std::min(ROWS, n.S - row), shared = h / (n.hq / n.hk);
        turned(q.at(b, row, h), q.s, rows, n.d, queries, ROWS, scale * LOG2E);
        std::fill(sums, sums + n.d * ROWS, 0.0f);
        std::fill(top, top + ROWS, HIDDEN);
        std::fill(total, total + ROWS, 0.0f);
        each_part(n, mask, b, row, [&](const Part& part) {
            const i64 keys = part.to - part.from, at = part.v_from * W, wide = part.v_to - part.v_from;
            multiply(k.at(b, part.from, shared), k.s, 1, queries + at, ROWS, s + at, ROWS, keys, wide, n.d, false);
            if (part.masked) hide(n, mask, b, row, part, s);
            bool grown = false;
            for (int c = part.v_from; c < part.v_to; ++c) grown |= softmax(s + c * W, keys, top + c * W, total + c * W, less + c * W);
            if (grown)
                for (i64 i = 0; i < n.d; ++i)
                    for (int c = part.v_from; c < part.v_to; ++c)
                        put(sums + i * ROWS + c * W, get(sums + i * ROWS + c * W) * get(less + c * W));
            multiply(v.at(b, part.from, shared), 1, v.s, s + at, ROWS, sums + at, ROWS, n.d, wide, keys, true);
        });
        finish(sums, top, total, rows);
        turned_back(sums, ROWS, out + ((b * n.S + row) * n.hq + h) * n.d, n.hq * n.d, rows, n.d);
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

struct Backward {
    Sizes n;
    View q, k, v, out, dy;
    const float* stats;
    float *dq, *dk, *dv;
    float scale;
    Mask mask;
    i64 parts, q_step, k_step;  // numbers between the rows of dq, and between those of dk and of dv
    bool direct;                // d_keys and d_values are dk and dv themselves
    float *d_keys, *d_values;

    i64 width() const { return n.padded(); }
    i64 floats() const { return (3 * n.d + 2 * KEYS + 2 + 2 * width()) * ROWS; }

    // Rows of registers as products need them: in place where a row is whole registers, else copied with zeros behind.
    const float* rows_of(const View& x, i64 b, i64 row, i64 h, i64 rows, float* copy, i64& step) const {
        const float* from = x.at(b, row, h);
        if (width() == n.d) {
            step = x.s;
            return from;
        }
        step = width();
        for (i64 i = 0; i < rows; ++i) {
            std::copy(from + i * x.s, from + i * x.s + n.d, copy + i * step);
            std::fill(copy + i * step + n.d, copy + (i + 1) * step, 0.0f);
        }
        return copy;
    }

    // Gradients of one block of queries, and what they add to those of the keys and values of part `number`.
    void block(i64 b, i64 h, i64 row, i64 number, float* memory) const {
        float *queries = memory, *up = queries + n.d * ROWS, *sums = up + n.d * ROWS, *p = sums + n.d * ROWS;
        float *s = p + KEYS * ROWS, *top = s + KEYS * ROWS, *along = top + ROWS, *copies = along + ROWS;
        const i64 rows = std::min(ROWS, n.S - row), shared = h / (n.hq / n.hk);
        i64 step_q, step_dy;
        const float* q_rows = rows_of(q, b, row, h, rows, copies, step_q);
        const float* dy_rows = rows_of(dy, b, row, h, rows, copies + ROWS * width(), step_dy);
        turned(q.at(b, row, h), q.s, rows, n.d, queries, ROWS, scale * LOG2E);
        turned(dy.at(b, row, h), dy.s, rows, n.d, up, ROWS, scale);
        std::fill(sums, sums + n.d * ROWS, 0.0f);
        for (i64 i = 0; i < ROWS; ++i) {
            top[i] = i < rows ? stats[(b * n.hq + h) * n.S + row + i] : -HIDDEN;
            along[i] = i < rows ? scale * dot(dy.at(b, row + i, h), out.at(b, row + i, h), n.d) : 0.0f;
        }
        const i64 step = direct ? k_step : width(), start = first_sum(b * n.hk + shared, number);
        each_part(n, mask, b, row, [&](const Part& part) {
            const i64 keys = part.to - part.from, at = part.v_from * W, wide = part.v_to - part.v_from;
            const float* key = k.at(b, part.from, shared);
            multiply(key, k.s, 1, queries + at, ROWS, p + at, ROWS, keys, wide, n.d, false);
            if (part.masked) hide(n, mask, b, row, part, p);
            multiply(v.at(b, part.from, shared), v.s, 1, up + at, ROWS, s + at, ROWS, keys, wide, n.d, false);
            for (i64 j = 0; j < keys; ++j)
                for (int c = part.v_from; c < part.v_to; ++c) {
                    const i64 place = j * ROWS + c * W;
                    const vec weight = power_of_two(get(p + place) - get(top + c * W));
                    put(p + place, weight);
                    put(s + place, weight * (get(s + place) - get(along + c * W)));
                }
            const i64 depth = std::min(rows, at + wide * W) - at, first = start + part.from * step;
            multiply(key, 1, k.s, s + at, ROWS, sums + at, ROWS, n.d, wide, keys, true);
            multiply(p + at, ROWS, 1, dy_rows + at * step_dy, step_dy, d_values + first, step, keys, width() / W, depth, true);
            multiply(s + at, ROWS, 1, q_rows + at * step_q, step_q, d_keys + first, step, keys, width() / W, depth, true);
        });
        turned_back(sums, ROWS, dq + (b * n.S + row) * q_step + h * n.d, q_step, rows, n.d);
    }

    // Where the sums of a key head (of all sequences) begin in d_keys and d_values.
    i64 first_sum(i64 head, i64 number) const {
        return direct ? head / n.hk * n.K * k_step + head % n.hk * n.d : (head * parts + number) * n.K * width();
    }

    // Blocks of queries of all heads that share a key head; every parts-th belongs to one part, so that each has its share
    // of long rows.
    void item(i64 index, float* memory) const {
        const i64 number = index % parts, head = index / parts, group = n.hq / n.hk;
        const i64 step = direct ? k_step : width(), start = first_sum(head, number);
        for (i64 j = 0; j < n.K; ++j)
            for (float* sums : {d_keys, d_values}) std::fill_n(sums + start + j * step, width(), 0.0f);
        for (i64 i = number; i < n.blocks() * group; i += parts)
            block(head / n.hk, head % n.hk * group + i % group, i / group * ROWS, number, memory);
    }

    // Adds the parts up, in their order.
    void add_up(i64 index) const {
        const i64 b = index / n.K, j = index % n.K;
        for (i64 h = 0; h < n.hk; ++h) {
            const float* from[2] = {d_keys, d_values};
            float* to[2] = {dk, dv};
            for (int which = 0; which < 2; ++which) {
                float* place = to[which] + (b * n.K + j) * k_step + h * n.d;
                const float* part = from[which] + ((b * n.hk + h) * parts * n.K + j) * width();
                std::copy(part, part + n.d, place);
                for (i64 other = 1; other < parts; ++other) {
                    part += n.K * width();
                    for (i64 i = 0; i < n.d; ++i) place[i] += part[i];
                }
            }
        }
    }
};

}  // namespace

// The last rows see most keys: they go first. Frees the mask. 1: no memory.
static int run(Forward& pass, bool enough, int threads) {
    const Sizes& n = pass.n;
    const i64 heads = n.B * n.hq;
    enough = enough && with_memory(heads * n.blocks(), pass.floats(), threads, [&](i64 index, float* memory) {
        const i64 row = (n.blocks() - 1 - index / heads) * ROWS, head = index % heads;
        pass.block(head / n.hq, head % n.hq, row, memory);
    });
    std::free(pass.mask.first);
    return enough ? 0 : 1;
}

// sizes: B, S, K, hq, hk, d; steps: three of q, of k, of v. stats [B, hq, S] is what attention_backward wants. 1: no memory.
EXPORT int attention_forward(const float* q, const float* k, const float* v, const int32_t* ends, const uint8_t* keep,
                             float* out, float* stats, const i64* sizes, const i64* steps, float scale, int threads) {
    const Sizes n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    Forward pass = {n, view(q, steps), view(k, steps + 3), view(v, steps + 6), out, stats, scale, {}};
    return run(pass, make_mask(n, ends, keep, pass.mask), threads);
}

// Sums side by side, then added up; frees the mask. 1: no memory.
static int run(Backward& pass, bool enough, int threads) {
    const Sizes& n = pass.n;
    pass.direct = pass.parts == 1 && n.padded() == n.d;
    const i64 size = n.B * n.hk * n.K * pass.parts * n.padded();
    thread_local Scratch keys, values;
    pass.d_keys = pass.direct ? pass.dk : keys.floats(size);
    pass.d_values = pass.direct ? pass.dv : values.floats(size);
    enough = enough && pass.d_keys && pass.d_values &&
             with_memory(n.B * n.hk * pass.parts, pass.floats(), threads, [&](i64 i, float* memory) { pass.item(i, memory); });
    if (enough && !pass.direct) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (i64 i = 0; i < n.B * n.K; ++i) pass.add_up(i);
    }
    keys.give_back(), values.give_back();
    std::free(pass.mask.first);
    return enough ? 0 : 1;
}

// steps: three of q, k, v, out and dy. dq, dk and dv have no gaps. parts: how many sums of dk and dv are made side by side.
EXPORT int attention_backward(const float* q, const float* k, const float* v, const float* out, const float* dy,
                              const float* stats, const int32_t* ends, const uint8_t* keep, float* dq, float* dk, float* dv,
                              const i64* sizes, const i64* steps, float scale, i64 parts, int threads) {
    const Sizes n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    Backward pass = {n, view(q, steps), view(k, steps + 3), view(v, steps + 6), view(out, steps + 9), view(dy, steps + 12),
                     stats, dq, dk, dv, scale, {}, parts, n.hq * n.d, n.hk * n.d, false, nullptr, nullptr};
    return run(pass, make_mask(n, ends, keep, pass.mask), threads);
}

// Frames of patches: qkv [N, 3, h, d]; out [N, h, d], stats [h, N]. The lengths of the frames add up to N.
EXPORT int patch_attention_forward(const float* qkv, const i64* lengths, i64 frames, float* out, float* stats, i64 N, i64 h,
                                   i64 d, float scale, int threads) {
    const Sizes n = {1, N, N, h, h, d};
    const i64 steps[3] = {0, 3 * h * d, d};
    Forward pass = {n, view(qkv, steps), view(qkv + h * d, steps), view(qkv + 2 * h * d, steps), out, stats, scale, {}};
    return run(pass, make_frames(n, lengths, frames, pass.mask), threads);
}

// dqkv as qkv; out and dy [N, h, d].
EXPORT int patch_attention_backward(const float* qkv, const i64* lengths, i64 frames, const float* out, const float* dy,
                                    const float* stats, float* dqkv, i64 N, i64 h, i64 d, float scale, i64 parts, int threads) {
    const Sizes n = {1, N, N, h, h, d};
    const i64 steps[3] = {0, 3 * h * d, d}, inner[3] = {0, h * d, d};
    Backward pass = {n, view(qkv, steps), view(qkv + h * d, steps), view(qkv + 2 * h * d, steps), view(out, inner),
                     view(dy, inner), stats, dqkv, dqkv + h * d, dqkv + 2 * h * d, scale, {}, parts, 3 * h * d, 3 * h * d,
                     false, nullptr, nullptr};
    return run(pass, make_frames(n, lengths, frames, pass.mask), threads);
}
