// What a decoder is made of and what one pass is asked for, as the binding lays it out: every member is 64 bits wide.
#pragma once
#include <initializer_list>

#include "../common.h"

static_assert(sizeof(void*) == sizeof(i64), "pointers and integers share an array");

// How a matrix is stored. COLUMNS: float32 [in, out]; OUTPUTS_FIRST: float32 [out, in]; codes as packed_weights has them; the same
// two in bfloat16.
enum Form : i64 { NONE, COLUMNS, OUTPUTS_FIRST, INT8, INT4, NF4_LEVELS, BFLOAT_COLUMNS, BFLOAT_OUTPUTS_FIRST };

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

// Bytes of a matrix whose outputs lie one after the other; 0 of another one.
static inline i64 stored_bytes(const Matrix& matrix) {
    const i64 numbers = matrix.inputs * matrix.outputs;
    switch (matrix.form) {
        case OUTPUTS_FIRST: return 4 * numbers;
        case BFLOAT_OUTPUTS_FIRST: return 2 * numbers;
        case INT8: return numbers;
        case INT4:
        case NF4_LEVELS: return numbers / 2;
        default: return 0;
    }
}

struct Layer {
    const float *norm, *mlp_norm;
    Matrix q, k, v, o, gate, up, down;  // gate, up and down: the MLP, or the shared experts; NONE where there are none
    i64 experts, selected, sigmoid;     // experts 0: nothing is routed
    const float *router, *selection_bias;
    Matrix expert_gate, expert_up, expert_down;
    float *keys, *values;  // [rows, capacity, key heads, head size]
};

// How an embedding is stored. BYTES: int8 with a scale per word.
enum Table : i64 { FLOATS, BFLOATS, BYTES };

struct Model {
    i64 layers, hidden, heads, key_heads, head_size, vocabulary;
    Table table;
    const void* embedding;
    const float *embedding_scales, *frequencies, *norm;
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

// The most that `size` is of a matrix.
template <class Size>
static inline i64 most_of(const Model& model, const Layer* layers, const Size& size) {
    i64 most = 0;
    const auto see = [&](const Matrix& matrix) { most = size(matrix) > most ? size(matrix) : most; };
    see(model.head);
    for (i64 l = 0; l < model.layers; ++l) {
        const Layer& a = layers[l];
        for (const Matrix* m : {&a.q, &a.k, &a.v, &a.o, &a.gate, &a.up, &a.down}) see(*m);
        if (a.experts)
            for (const Matrix* m : {&a.expert_gate, &a.expert_up, &a.expert_down}) see(*m);
    }
    return most;
}

// Inputs of a matrix with codes; 0 of another one.
static inline i64 coded_inputs(const Matrix& matrix) {
    return matrix.form >= INT8 && matrix.form <= NF4_LEVELS ? matrix.inputs : 0;
}

// Rows that are split at a time into the parts of integers.h, and floats that one takes.
constexpr i64 SPLIT_ROWS = 16;
static inline i64 split_floats(i64 inputs) { return ((inputs + 63) / 64 * 65 + 49 + 15) / 16 * 16; }

// Rows whose parts are in tiles together (tiles.h), bytes of an output's inputs, tiles of the parts of some rows, floats that they
// take with the scales of the rows, and bytes from one unpacked output to the next: not a power of two, as those share few places
// of a cache.
constexpr i64 TILE_ROWS = 16;
static inline i64 tile_bytes(const Matrix& matrix) {
    if (matrix.form == BFLOAT_OUTPUTS_FIRST) return 2 * matrix.inputs;
    return matrix.form == INT8 || matrix.form == INT4 ? matrix.inputs : 0;
}
static inline i64 column_tiles(i64 rows) { return (3 * rows + 15) / 16; }
static inline i64 tiled_floats(i64 bytes, i64 rows) { return (bytes + 63) / 64 * column_tiles(rows) * 256 + 16; }
static inline i64 unpacked_step(i64 bytes) { return (bytes + 63) / 64 * 64 + 64; }

struct Constants {
    float epsilon, norm_min, scale;
};

// Floats of memory: what all threads share, then what each has for itself.
struct Memory {
    float *stream, *normed, *query, *key, *value, *attended, *inner, *cosine, *sine, *weights, *tiled, *own;
    i64* chosen;
    i64 shared_size, own_size, parts_size, split_size, normed_size, tile_size, scores_size;

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
        const i64 bytes = most_of(model, layers, tile_bytes), some = n < TILE_ROWS ? n : TILE_ROWS;
        tiled = take(n > TILE_ROWS ? (n + TILE_ROWS - 1) / TILE_ROWS * tiled_floats(bytes, TILE_ROWS) : 0);
        shared_size = at - start;
        own = at;
        // a thread's own: split rows, unpacked outputs, normed rows, rows gathered for an expert, two tiles of sums, scores of a
        // group of heads, lists of routes
        normed_size = n * model.hidden, tile_size = n * WIDEST;
        const i64 split = (n < SPLIT_ROWS ? n : SPLIT_ROWS) * split_floats(most_of(model, layers, coded_inputs));
        parts_size = split > tiled_floats(bytes, some) ? split : tiled_floats(bytes, some);
        split_size = parts_size + 8 * unpacked_step(bytes);
        scores_size = model.heads / model.key_heads * pass.columns();
        own_size = split_size + 2 * normed_size + 2 * tile_size + scores_size + 2 * n * most_selected + 4 * (most_experts + 2);
        own_size = (own_size + 31) / 16 * 16;
    }

    static constexpr i64 WIDEST = 512;  // columns of a tile
};
