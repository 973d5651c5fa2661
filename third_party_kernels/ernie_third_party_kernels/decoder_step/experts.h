// Which experts tokens go to, and their products: an expert's matrices are read once for all of its tokens, and shared experts
// are one more expert that every token goes to.
#pragma once
#include <cmath>

#include "attend.h"
#include "matrix.h"
#include "team.h"

struct Step {
    const Model& model;
    const Pass& pass;
    const Constants& constants;
    const Memory& memory;
};

// What one thread has for itself.
struct Own {
    float *normed, *gathered, *sums, *more_sums, *scores, *weights;
    int32_t *tokens, *experts, *starts, *place;
    Splits splits;
    Own(const Memory& memory, const Pass& pass, i64 selected, Member& member) {
        splits = {member.own, &member.split, memory.tiled, &member.shared,
                  reinterpret_cast<int8_t*>(member.own + memory.parts_size)};
        normed = member.own + memory.split_size, gathered = normed + memory.normed_size, sums = gathered + memory.normed_size;
        more_sums = sums + memory.tile_size, scores = more_sums + memory.tile_size, weights = scores + memory.scores_size;
        tokens = reinterpret_cast<int32_t*>(weights + pass.tokens() * selected);
        experts = tokens + pass.tokens() * selected;
    }
};

// Split rows x for the products with `matrix` and those like it that come next: once for all threads, where they are many.
static void share_rows(Member& member, const Own& own, const Matrix& matrix, const float* x, i64 rows) {
    member.shared.rows = nullptr;
    if (rows <= TILE_ROWS || !in_tiles(matrix)) return;
    const i64 size = tiled_floats(tile_bytes(matrix), TILE_ROWS);
    member.each((rows + TILE_ROWS - 1) / TILE_ROWS, [&](i64 group) {
        const i64 first = group * TILE_ROWS, some = rows - first < TILE_ROWS ? rows - first : TILE_ROWS;
        tile_some(matrix, x + first * matrix.inputs, some, own.splits.shared + group * size);
    });
    member.shared = {x, kind_of(matrix)};
}

static inline float silu(float x) { return x / (1.0f + exp_(-x)); }

// The experts of one token and their weights: the highest score + bias, of equal ones the first; scores over their sum.
static void route(const Layer& layer, const float* x, i64 hidden, float norm_min, float* scores, i64* chosen, float* weights) {
    const i64 E = layer.experts, k = layer.selected;
    for (i64 e = 0; e < E; ++e) scores[e] = 0;
    for (i64 h = 0; h < hidden; ++h)
        for (i64 e = 0; e < E; ++e) scores[e] += x[h] * layer.router[h * E + e];
    if (layer.sigmoid) {
        for (i64 e = 0; e < E; ++e) scores[e] = 1.0f / (1.0f + std::exp(-scores[e]));
    } else {
        float highest = scores[0], sum = 0;
        for (i64 e = 1; e < E; ++e) highest = scores[e] > highest ? scores[e] : highest;
        for (i64 e = 0; e < E; ++e) sum += scores[e] = std::exp(scores[e] - highest);
        for (i64 e = 0; e < E; ++e) scores[e] /= sum;
    }
    i64 held = 0;
    for (i64 e = 0; e < E; ++e) {
        const float s = scores[e] + layer.selection_bias[e];
        i64 at = held < k ? held++ : k;
        for (; at > 0 && s > scores[chosen[at - 1]] + layer.selection_bias[chosen[at - 1]]; --at)
            if (at < k) chosen[at] = chosen[at - 1];
        if (at < k) chosen[at] = e;
    }
    float sum = 0;
    for (i64 j = 0; j < k; ++j) sum += weights[j] = scores[chosen[j]];
    for (i64 j = 0; j < k; ++j) weights[j] /= sum > norm_min ? sum : norm_min;
}

// Sorted by expert, tokens in order: `experts` that have any, where each starts, and token and weight of every place.
static i64 sort_routes(const Layer& layer, const Step& step, Own& own) {
    const i64 E = layer.experts, count = step.pass.tokens() * layer.selected;
    own.starts = own.experts + E + 1, own.place = own.starts + E + 2;
    for (i64 e = 0; e < E; ++e) own.place[e] = 0;
    for (i64 i = 0; i < count; ++i)
        if (step.memory.chosen[i] >= 0) ++own.place[step.memory.chosen[i]];
    i64 used = 0;
    own.starts[0] = 0;
    for (i64 e = 0; e < E; ++e) {
        if (!own.place[e]) continue;
        own.experts[used] = static_cast<int32_t>(e);
        own.starts[used + 1] = own.starts[used] + own.place[e];
        own.place[e] = own.starts[used++];
    }
    for (i64 i = 0; i < count; ++i) {
        const i64 e = step.memory.chosen[i];
        if (e < 0) continue;
        const i64 at = own.place[e]++;
        own.tokens[at] = static_cast<int32_t>(i / layer.selected);
        own.weights[at] = step.memory.weights[i];
    }
    return used;
}

// inner [rows, n] of a tile = silu(x gate) (x up), times a weight per row if there are any
static void inner_tile(const Matrix& gate, const Matrix& up, i64 expert, const float* x, i64 rows, i64 first, i64 n,
                       const float* weights, const Own& own, float* inner) {
    product_tile(gate, expert, x, rows, first, n, own.splits, own.sums, n);
    product_tile(up, expert, x, rows, first, n, own.splits, own.more_sums, n);
    for (i64 m = 0; m < rows; ++m) {
        const float *g = own.sums + m * n, *u = own.more_sums + m * n, weight = weights ? weights[m] : 1.0f;
        float* out = inner + m * gate.outputs + first;
        for (i64 c = 0; c < n; ++c) out[c] = weight * silu(g[c]) * u[c];
    }
}

// stream += a tile of inner W, rows as `tokens` says, or one after the other
static void add_tile(const Matrix& matrix, i64 expert, const float* inner, i64 rows, const int32_t* tokens, i64 first, i64 n,
                     const Own& own, float* stream) {
    product_tile(matrix, expert, inner, rows, first, n, own.splits, own.sums, n);
    for (i64 m = 0; m < rows; ++m) {
        const float* sums = own.sums + m * n;
        float* x = stream + (tokens ? tokens[m] : m) * matrix.outputs + first;
        for (i64 c = 0; c < n; ++c) x[c] += sums[c];
    }
}

// Which tokens an expert computes; padding goes to none.
static void route_token(const Layer& layer, const Step& step, const Own& own, i64 token) {
    const Memory& memory = step.memory;
    const i64 hidden = step.model.hidden, k = layer.selected;
    const Pass& pass = step.pass;
    norm_row(memory.stream + token * hidden, layer.mlp_norm, hidden, step.constants.epsilon, memory.normed + token * hidden);
    const i64 column = pass.start + token % pass.width;
    if (pass.mask && !pass.mask[token / pass.width * pass.columns() + column]) {
        for (i64 j = 0; j < k; ++j) memory.chosen[token * k + j] = -1;
        return;
    }
    route(layer, memory.normed + token * hidden, hidden, step.constants.norm_min, own.gathered, memory.chosen + token * k,
          memory.weights + token * k);
}

static void experts(Member& member, const Layer& layer, const Matrix& next, const Step& step, Own& own) {
    const i64 n = step.pass.tokens(), hidden = step.model.hidden, width = layer.expert_gate.outputs;
    const Memory& memory = step.memory;
    member.shared.rows = nullptr;
    member.each(n, [&](i64 token) { route_token(layer, step, own, token); });
    const i64 used = sort_routes(layer, step, own);
    const i64 shared = layer.gate.form ? layer.gate.outputs : 0;
    float* routed = memory.inner + n * shared;
    const int threads = member.team.size;
    const Tiles tiles(layer.gate, n, threads), narrow(layer.expert_gate, n, threads), back(layer.expert_down, n, threads);
    member.expect(layer.down);
    member.each(tiles.count + used * narrow.count, [&](i64 item) {
        if (item < tiles.count) {
            inner_tile(layer.gate, layer.up, 0, memory.normed, n, tiles.first(item), tiles.size(item), nullptr, own,
                       memory.inner);
            return;
        }
        const i64 u = (item - tiles.count) / narrow.count, t = (item - tiles.count) % narrow.count;
        const i64 start = own.starts[u], rows = own.starts[u + 1] - start;
        const float* x = memory.normed;
        if (n > 1) {
            for (i64 m = 0; m < rows; ++m)
                std::memcpy(own.gathered + m * hidden, x + own.tokens[start + m] * hidden, sizeof(float) * hidden);
            x = own.gathered, own.splits.own->rows = nullptr;
        }
        inner_tile(layer.expert_gate, layer.expert_up, own.experts[u], x, rows, narrow.first(t), narrow.size(t),
                   own.weights + start, own, routed + start * width);
    });
    member.expect(next);
    member.each(back.count, [&](i64 t) {
        if (shared)
            add_tile(layer.down, 0, memory.inner, n, nullptr, back.first(t), back.size(t), own, memory.stream);
        for (i64 u = 0; u < used; ++u)
            add_tile(layer.expert_down, own.experts[u], routed + own.starts[u] * width, own.starts[u + 1] - own.starts[u],
                     own.tokens + own.starts[u], back.first(t), back.size(t), own, memory.stream);
    });
}
