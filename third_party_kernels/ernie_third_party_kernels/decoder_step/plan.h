// What a decoder is made of and what one pass is asked for, as the binding lays it out: every member is 64 bits wide.
#pragma once
#include "../common.h"

static_assert(sizeof(void*) == sizeof(i64), "pointers and integers share an array");

// How a matrix is stored. COLUMNS: float32 [in, out]; OUTPUTS: float32 [out, in]; the others as packed_weights has them.
enum Form : i64 { NONE, COLUMNS, OUTPUTS_FIRST, INT8, INT4, NF4_LEVELS };

// One matrix, or a stack of them.
struct Matrix {
    Form form;
    i64 inputs, outputs, group;
    const void* data;
    const float *scales, *bias;
    i64 rank;  // of an update beside it: scale (x first) second; 0: none
    const float *first, *second;
    double scale;
};

struct Layer {
    const float *norm, *mlp_norm;
    Matrix q, k, v, o, gate, up, down;  // gate, up and down: the MLP, or the shared experts; NONE where there are none
    i64 experts, selected, sigmoid;     // experts 0: nothing is routed
    const float *router, *selection_bias;
    Matrix expert_gate, expert_up, expert_down;
    float *keys, *values;  // [rows, capacity, key heads, head size]
};

struct Model {
    i64 layers, hidden, heads, key_heads, head_size, vocabulary;
    const float *embedding, *frequencies, *norm;
    Matrix head;
};

// b rows with `width` new columns each; those before `start` are in the cache.
struct Pass {
    i64 rows, width, start, capacity, wanted;
    const i64 *ids, *positions;  // [rows, width]
    const uint8_t* mask;         // [rows, start + width], 0 hides a column; null: all are seen
    const i64* places;           // [wanted], tokens (row * width + column) whose logits are wanted
    float *logits, *stream;      // [wanted, vocabulary]; [rows, width, hidden] before the last norm, or null
    float* workspace;
    i64 tokens() const { return rows * width; }
    i64 columns() const { return start + width; }
};

struct Constants {
    float epsilon, norm_min, scale;
};

// Floats of memory: what all threads share, then what each has for itself.
struct Memory {
    float *stream, *normed, *query, *key, *value, *attended, *inner, *cosine, *sine, *weights, *own;
    i64* chosen;
    i64 shared_size, own_size, normed_size, tile_size;

    Memory(const Model& model, const Layer* layers, const Pass& pass, float* start) {
        const i64 n = pass.tokens(), wide = model.heads * model.head_size, narrow = model.key_heads * model.head_size;
        i64 inner_size = 0, most_selected = 0, most_experts = 0;
        for (i64 l = 0; l < model.layers; ++l) {
            const Layer& layer = layers[l];
            const i64 plain = layer.gate.form ? n * layer.gate.outputs : 0;
            const i64 routed = layer.experts ? n * layer.selected * layer.expert_gate.outputs : 0;
            inner_size = plain + routed > inner_size ? plain + routed : inner_size;
            most_selected = layer.selected > most_selected ? layer.selected : most_selected;
            most_experts = layer.experts > most_experts ? layer.experts : most_experts;
        }
        float* at = start;
        const auto take = [&at](i64 size) {
            float* found = at;
            at += (size + 31) / 16 * 16;
            return found;
        };
        stream = take(n * model.hidden), normed = take(n * model.hidden);
        query = take(n * wide), key = take(n * narrow), value = take(n * narrow), attended = take(n * wide);
        inner = take(inner_size), cosine = take(n * model.head_size / 2), sine = take(n * model.head_size / 2);
        weights = take(n * most_selected), chosen = reinterpret_cast<i64*>(take(2 * n * most_selected));
        shared_size = at - start;
        own = at;
        // a thread's own: normed rows, rows gathered for an expert, two tiles of sums, scores of a head, lists of routes
        normed_size = n * model.hidden, tile_size = n * WIDEST;
        own_size = 2 * normed_size + 2 * tile_size + pass.columns() + 2 * n * most_selected + 4 * (most_experts + 2);
        own_size = (own_size + 31) / 16 * 16;
    }

    static constexpr i64 WIDEST = 256;  // columns of a tile
};
