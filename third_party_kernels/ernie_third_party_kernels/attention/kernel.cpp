// Attention by blocks of 64 query positions of one head against a few keys: scores exist for one block at a time.
//
// Every block is held with a query per column, s[key][query], so that softmax needs no sums across a register, keys and
// values are read where they are, and only the block of queries is turned. Row i sees key j if first_j <= i < end_j.
// Powers of two instead of e: log2 e is part of the factor of the queries.
#include "../blocks.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace {

constexpr i64 ROWS = 64, KEYS = 96, FEW = 16;
constexpr int WIDE = ROWS / W;
constexpr float HIDDEN = -1e30f, LOG2E = 1.44269504088896341f;

struct Sizes {
    i64 B, S, K, hq, hk, d;
    i64 blocks() const { return (S + ROWS - 1) / ROWS; }
    i64 key_blocks() const { return (K + KEYS - 1) / KEYS; }
    i64 padded() const { return (d + W - 1) / W * W; }
};

// [B, positions, heads, d] in memory, with steps between elements of the first three axes.
struct View {
    const float* start;
    i64 b, s, h;
    const float* at(i64 i, i64 j, i64 k) const { return start + i * b + j * s + k * h; }
};

View view(const float* start, const i64* steps) { return {start, steps[0], steps[1], steps[2]}; }

// Rows that see some key of a block (some_from .. some_to) and those that see every one (every_from .. every_to).
struct Span {
    int32_t some_from, some_to, every_from, every_to;
};

// For each sequence and key the rows first .. end - 1 that see it, and the spans of each block of keys.
struct Mask {
    int32_t *first, *end;
    Span* spans;
};

Span span_of(const int32_t* first, const int32_t* end, i64 from, i64 to) {
    Span x = {INT32_MAX, 0, 0, INT32_MAX};
    for (i64 j = from; j < to; ++j) {
        if (first[j] < end[j]) {
            x.some_from = std::min(x.some_from, first[j]);
            x.some_to = std::max(x.some_to, end[j]);
        }
        x.every_from = std::max(x.every_from, first[j]);
        x.every_to = std::min(x.every_to, end[j]);
    }
    return x;
}

bool make_mask(const Sizes& n, const int32_t* ends, const uint8_t* keep, Mask& mask) {
    const size_t keys = static_cast<size_t>(n.B * n.K), blocks = static_cast<size_t>(n.B * n.key_blocks());
    mask.first = static_cast<int32_t*>(std::malloc(keys * 8 + blocks * sizeof(Span)));
    if (!mask.first) return false;
    mask.end = mask.first + keys;
    mask.spans = reinterpret_cast<Span*>(mask.end + keys);
    for (i64 b = 0; b < n.B; ++b) {
        int32_t *first = mask.first + b * n.K, *end = mask.end + b * n.K;
        for (i64 j = 0; j < n.K; ++j) {
            const i64 stop = ends ? std::min<i64>(ends[b * n.K + j], n.S) : n.S;
            first[j] = static_cast<int32_t>(std::max<i64>(0, j - (n.K - n.S)));
            end[j] = keep && !keep[b * n.K + j] ? 0 : static_cast<int32_t>(stop);
        }
        for (i64 j = 0; j < n.key_blocks(); ++j)
            mask.spans[b * n.key_blocks() + j] = span_of(first, end, j * KEYS, std::min(n.K, (j + 1) * KEYS));
    }
    return true;
}

// Keys from .. to - 1 against the columns v_from .. v_to - 1 (in registers) of a block of queries.
struct Part {
    i64 from, to;
    int v_from, v_to;
    bool masked;
};

// Calls `work` for whatever the rows row .. row + ROWS - 1 see: whole blocks of keys, and where they see part of one, a few
// keys at a time and only the columns that see some of them.
template <class Work>
void each_part(const Sizes& n, const Mask& mask, i64 b, i64 row, Work work) {
    const int32_t *first = mask.first + b * n.K, *end = mask.end + b * n.K;
    const i64 row_end = std::min(n.S, row + ROWS);
    for (i64 block = 0; block < n.key_blocks(); ++block) {
        const Span& x = mask.spans[b * n.key_blocks() + block];
        const i64 from = block * KEYS, to = std::min(n.K, from + KEYS);
        if (x.some_to <= row || x.some_from >= row_end) continue;
        if (x.every_from <= row && x.every_to >= row_end) {
            work(Part{from, to, 0, WIDE, false});
            continue;
        }
        for (i64 j = from; j < to; j += FEW) {
            const i64 stop = std::min(to, j + FEW);
            const Span y = span_of(first, end, j, stop);
            const i64 top = std::max<i64>(y.some_from, row), bottom = std::min<i64>(y.some_to, row_end);
            if (top >= bottom) continue;
            const i64 v_from = (top - row) / W, v_to = (bottom - row + W - 1) / W;
            const bool every = y.every_from <= row + v_from * W && y.every_to >= std::min(row_end, row + v_to * W);
            work(Part{j, stop, static_cast<int>(v_from), static_cast<int>(v_to), !every});
        }
    }
}

// Scores of rows that do not see a key become HIDDEN.
void hide(const Sizes& n, const Mask& mask, i64 b, i64 row, const Part& part, float* s) {
    ivec lane;
    for (int i = 0; i < W; ++i) lane[i] = i + static_cast<int>(row);
    for (i64 j = part.from; j < part.to; ++j, s += ROWS) {
        const int32_t first = mask.first[b * n.K + j], end = mask.end[b * n.K + j];
        for (int v = part.v_from; v < part.v_to; ++v) {
            const ivec rows = lane + v * W;
            const ivec sees = (rows >= first) & (rows < end);
            put(s + v * W, sees ? get(s + v * W) : all(HIDDEN));
        }
    }
}

float* scratch(i64 floats) {
    const size_t bytes = (static_cast<size_t>(floats) * 4 + 63) / 64 * 64;
    return static_cast<float*>(std::aligned_alloc(64, bytes));
}

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
    i64 parts;
    bool direct;  // d_keys and d_values are dk and dv themselves
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
        i64 q_step, dy_step;
        const float* q_rows = rows_of(q, b, row, h, rows, copies, q_step);
        const float* dy_rows = rows_of(dy, b, row, h, rows, copies + ROWS * width(), dy_step);
        turned(q.at(b, row, h), q.s, rows, n.d, queries, ROWS, scale * LOG2E);
        turned(dy.at(b, row, h), dy.s, rows, n.d, up, ROWS, scale);
        std::fill(sums, sums + n.d * ROWS, 0.0f);
        for (i64 i = 0; i < ROWS; ++i) {
            top[i] = i < rows ? stats[(b * n.hq + h) * n.S + row + i] : -HIDDEN;
            along[i] = i < rows ? scale * dot(dy.at(b, row + i, h), out.at(b, row + i, h), n.d) : 0.0f;
        }
        const i64 step = direct ? n.hk * n.d : width();
        const i64 start = direct ? (b * n.K * n.hk + shared) * n.d : ((b * n.hk + shared) * parts + number) * n.K * step;
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
            multiply(p + at, ROWS, 1, dy_rows + at * dy_step, dy_step, d_values + first, step, keys, width() / W, depth, true);
            multiply(s + at, ROWS, 1, q_rows + at * q_step, q_step, d_keys + first, step, keys, width() / W, depth, true);
        });
        turned_back(sums, ROWS, dq + ((b * n.S + row) * n.hq + h) * n.d, n.hq * n.d, rows, n.d);
    }

    // Blocks of queries of all heads that share a key head; every parts-th belongs to one part, so that each has its share
    // of long rows.
    void item(i64 index, float* memory) const {
        const i64 number = index % parts, head = index / parts, group = n.hq / n.hk;
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
                float* place = to[which] + ((b * n.K + j) * n.hk + h) * n.d;
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

// Runs work(index, memory) for every index with memory of `floats` per thread; false if there is none.
template <class Work>
bool share_out(i64 count, i64 floats, int threads, Work work) {
    bool enough = true;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float* memory = scratch(floats);
        if (!memory) {
#pragma omp atomic write
            enough = false;
        }
#pragma omp for schedule(monotonic : dynamic, 1)
        for (i64 i = 0; i < count; ++i)
            if (memory) work(i, memory);
        std::free(memory);
    }
    return enough;
}

}  // namespace

// sizes: B, S, K, hq, hk, d; steps: three of q, of k, of v. stats [B, hq, S] is what attention_backward wants. 1: no memory.
EXPORT int attention_forward(const float* q, const float* k, const float* v, const int32_t* ends, const uint8_t* keep,
                             float* out, float* stats, const i64* sizes, const i64* steps, float scale, int threads) {
    const Sizes n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    Forward pass = {n, view(q, steps), view(k, steps + 3), view(v, steps + 6), out, stats, scale, {}};
    if (!make_mask(n, ends, keep, pass.mask)) return 1;
    const i64 heads = n.B * n.hq;  // the last rows see most keys: they go first
    const bool enough = share_out(heads * n.blocks(), pass.floats(), threads, [&](i64 index, float* memory) {
        const i64 row = (n.blocks() - 1 - index / heads) * ROWS, head = index % heads;
        pass.block(head / n.hq, head % n.hq, row, memory);
    });
    std::free(pass.mask.first);
    return enough ? 0 : 1;
}

// steps: three of q, k, v, out and dy. dq, dk and dv have no gaps. parts: how many sums of dk and dv are made side by side.
EXPORT int attention_backward(const float* q, const float* k, const float* v, const float* out, const float* dy,
                              const float* stats, const int32_t* ends, const uint8_t* keep, float* dq, float* dk, float* dv,
                              const i64* sizes, const i64* steps, float scale, i64 parts, int threads) {
    const Sizes n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    Backward pass = {n, view(q, steps), view(k, steps + 3), view(v, steps + 6), view(out, steps + 9), view(dy, steps + 12),
                     stats, dq, dk, dv, scale, {}, parts, false, nullptr, nullptr};
    pass.direct = parts == 1 && n.padded() == n.d;
    const i64 size = n.B * n.hk * n.K * (pass.direct ? n.d : parts * n.padded());
    pass.d_keys = pass.direct ? dk : scratch(size);
    pass.d_values = pass.direct ? dv : scratch(size);
    bool enough = pass.d_keys && pass.d_values && make_mask(n, ends, keep, pass.mask);
    if (enough) {
        std::fill(pass.d_keys, pass.d_keys + size, 0.0f);
        std::fill(pass.d_values, pass.d_values + size, 0.0f);
        enough = share_out(n.B * n.hk * parts, pass.floats(), threads, [&](i64 i, float* memory) { pass.item(i, memory); });
    }
    if (enough && !pass.direct) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (i64 i = 0; i < n.B * n.K; ++i) pass.add_up(i);
    }
    if (!pass.direct) {
        std::free(pass.d_keys);
        std::free(pass.d_values);
    }
    std::free(pass.mask.first);
    return enough ? 0 : 1;
}
