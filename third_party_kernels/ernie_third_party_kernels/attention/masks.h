// Who sees what in attention: for each key the rows that see it, and for each block of keys what holds for all of them. Row i
// sees key j if first_j <= i < end_j: those of causal attention begin at the key's own row, those of patches at the first
// patch of their frame. Included by kernel.cpp alone.
#pragma once
#include "../blocks.h"
#include <algorithm>
#include <cstdlib>

namespace {

// Rows and keys of a block; sums of one block of queries have whole groups of GROUPED heights, as matrix tiles write them.
constexpr i64 ROWS = 64, KEYS = 96, GROUPED = 32;
constexpr int WIDE = ROWS / W;
constexpr float HIDDEN = -1e30f, LOG2E = 1.44269504088896341f;

struct Sizes {
    i64 B, S, K, hq, hk, d;
    i64 blocks() const { return (S + ROWS - 1) / ROWS; }
    i64 key_blocks() const { return (K + KEYS - 1) / KEYS; }
    i64 group() const { return hq / hk; }
    i64 padded() const { return (d + W - 1) / W * W; }
};

// [B, positions, heads, d] in memory, with steps between elements of the first three axes.
struct View {
    const float* start;
    i64 b, s, h;
    const float* at(i64 i, i64 j, i64 k) const { return start + i * b + j * s + k * h; }
};

// Brings rows of d numbers, `step` apart, into the second cache; heads of a position lie side by side, so that rows are far apart.
inline void fetch_rows(const float* from, i64 step, i64 rows, i64 d) {
    for (i64 i = 0; i < rows; ++i)
        for (i64 j = 0; j < d; j += 16) __builtin_prefetch(from + i * step + j, 0, 2);
}

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

bool make_room(const Sizes& n, Mask& mask) {
    const size_t keys = static_cast<size_t>(n.B * n.K), blocks = static_cast<size_t>(n.B * n.key_blocks());
    mask.first = static_cast<int32_t*>(std::malloc(keys * 8 + blocks * sizeof(Span)));
    if (!mask.first) return false;
    mask.end = mask.first + keys;
    mask.spans = reinterpret_cast<Span*>(mask.end + keys);
    return true;
}

void find_spans(const Sizes& n, i64 b, Mask& mask) {
    const int32_t *first = mask.first + b * n.K, *end = mask.end + b * n.K;
    for (i64 j = 0; j < n.key_blocks(); ++j)
        mask.spans[b * n.key_blocks() + j] = span_of(first, end, j * KEYS, std::min(n.K, (j + 1) * KEYS));
}

bool make_mask(const Sizes& n, const int32_t* ends, const uint8_t* keep, Mask& mask) {
    if (!make_room(n, mask)) return false;
    for (i64 b = 0; b < n.B; ++b) {
        int32_t *first = mask.first + b * n.K, *end = mask.end + b * n.K;
        for (i64 j = 0; j < n.K; ++j) {
            const i64 stop = ends ? std::min<i64>(ends[b * n.K + j], n.S) : n.S;
            first[j] = static_cast<int32_t>(std::max<i64>(0, j - (n.K - n.S)));
            end[j] = keep && !keep[b * n.K + j] ? 0 : static_cast<int32_t>(stop);
        }
        find_spans(n, b, mask);
    }
    return true;
}

// Frames one after the other in one sequence: all patches of a frame see each other. The lengths add up to n.S = n.K.
bool make_frames(const Sizes& n, const i64* lengths, i64 frames, Mask& mask) {
    if (!make_room(n, mask)) return false;
    for (i64 frame = 0, from = 0; frame < frames; from += lengths[frame++]) {
        std::fill(mask.first + from, mask.first + from + lengths[frame], static_cast<int32_t>(from));
        std::fill(mask.end + from, mask.end + from + lengths[frame], static_cast<int32_t>(from + lengths[frame]));
    }
    find_spans(n, 0, mask);
    return true;
}

// Keys from .. to - 1 against the columns v_from .. v_to - 1 (in registers) of a block of queries.
struct Part {
    i64 from, to;
    int v_from, v_to;
    bool masked;
};

// Calls `work` for whatever the rows row .. row + ROWS - 1 see: whole blocks of keys, and where they see part of one, FEW keys at
// a time and only the columns that see some of them.
template <i64 FEW, class Work>
void each_part(const Sizes& n, const Mask& mask, i64 b, i64 row, Work work) {
    const int32_t *first = mask.first + b * n.K, *end = mask.end + b * n.K;
    const i64 row_end = std::min(n.S, row + ROWS);
    for (i64 block = 0; block < n.key_blocks(); ++block) {
        const Span& x = mask.spans[b * n.key_blocks() + block];
        const i64 from = block * KEYS, to = std::min(n.K, from + KEYS);
        if (x.some_to <= row || x.some_from >= row_end) continue;
        if (x.every_from <= row && x.every_to >= row_end) {
            work(Part{from, to, 0, static_cast<int>((row_end - row + W - 1) / W), false});
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

}  // namespace
