// One pass of a decoder over a few new tokens of each row, from their numbers to logits, with keys and values in a cache:
// every weight is read once for all tokens, and threads meet a few times per layer. What a token's numbers are depends
// neither on the number of threads nor on the rows beside it.
#include "experts.h"

#if defined(_OPENMP)
extern "C" int omp_get_num_threads(void);
extern "C" int omp_get_thread_num(void);
#endif

// Numbers that are normed by every thread for itself rather than shared out.
enum { FEW = 1 << 13 };

// Rows of x [count, hidden], or those at `places`, after a norm.
static const float* normed(Member& member, const Step& step, const Own& own, const float* weight, i64 count, const i64* places) {
    const i64 hidden = step.model.hidden;
    float* out = count * hidden <= FEW ? own.normed : step.memory.normed;
    const auto row = [&](i64 i) {
        const float* x = step.memory.stream + (places ? places[i] : i) * hidden;
        norm_row(x, weight, hidden, step.constants.epsilon, out + i * hidden);
    };
    if (out != own.normed) {
        member.each(count, row);
        return out;
    }
    for (i64 i = 0; i < count; ++i) row(i);
    return out;
}

static void embed(const Step& step, i64 token) {
    const Model& model = step.model;
    const i64 half = model.head_size / 2;
    float* stream = step.memory.stream + token * model.hidden;
    const i64 first = step.pass.ids[token] * model.hidden;
    if (model.table == BFLOATS) {
        for (i64 i = 0; i < model.hidden; ++i) stream[i] = number(static_cast<const uint16_t*>(model.embedding)[first + i]);
    } else if (model.table == BYTES) {
        const float scale = model.embedding_scales[step.pass.ids[token]];
        for (i64 i = 0; i < model.hidden; ++i) stream[i] = scale * static_cast<const int8_t*>(model.embedding)[first + i];
    } else {
        std::memcpy(stream, static_cast<const float*>(model.embedding) + first, sizeof(float) * model.hidden);
    }
    const float position = static_cast<float>(step.pass.positions[token]);
    for (i64 i = 0; i < half; ++i) {
        const float angle = position * model.frequencies[i];
        step.memory.cosine[token * half + i] = std::cos(angle);
        step.memory.sine[token * half + i] = std::sin(angle);
    }
}

// Rotate a token's queries of one key head, and put its key and value into the cache.
static void append(const Layer& layer, const Step& step, i64 token, i64 head) {
    const Model& model = step.model;
    const Pass& pass = step.pass;
    const Memory& memory = step.memory;
    const i64 d = model.head_size, group = model.heads / model.key_heads, narrow = model.key_heads * d;
    const float *cosine = memory.cosine + token * d / 2, *sine = memory.sine + token * d / 2;
    float* queries = memory.query + (token * model.heads + head * group) * d;
    for (i64 r = 0; r < group; ++r) turn_head(queries + r * d, cosine, sine, d, queries + r * d);
    const i64 column = token / pass.width * pass.capacity + pass.start + token % pass.width;
    const i64 from = token * narrow + head * d, to = column * narrow + head * d;
    turn_head(memory.key + from, cosine, sine, d, layer.keys + to);
    std::memcpy(layer.values + to, memory.value + from, sizeof(float) * d);
}

static void attend_token(const Layer& layer, const Step& step, const Own& own, i64 token, i64 head) {
    const Model& model = step.model;
    const Pass& pass = step.pass;
    const i64 d = model.head_size, group = model.heads / model.key_heads, narrow = model.key_heads * d;
    const i64 row = token / pass.width, count = pass.start + token % pass.width + 1;
    const uint8_t* seen = pass.mask ? pass.mask + row * pass.columns() : nullptr;
    i64 first = 0;  // padding on the left
    while (seen && first < count - 1 && !seen[first]) ++first;
    const i64 at = (row * pass.capacity + first) * narrow + head * d, queries = (token * model.heads + head * group) * d;
    attend(step.memory.query + queries, layer.keys + at, layer.values + at, narrow, count - first, seen ? seen + first : seen,
           group, d, step.constants.scale, own.scores, step.memory.attended + queries);
}

static void attention(Member& member, const Layer& layer, const Step& step, const Own& own) {
    const Model& model = step.model;
    const Memory& memory = step.memory;
    const i64 n = step.pass.tokens(), heads = model.key_heads;
    const float* x = normed(member, step, own, layer.norm, n, nullptr);
    share_rows(member, own, layer.q, x, n);
    const Tiles q(layer.q, n, member.team.size), k(layer.k, n, member.team.size);
    member.expect(layer.o);
    member.each(q.count + 2 * k.count, [&](i64 item) {
        const i64 rest = item - q.count;
        if (rest < 0)
            product_tile(layer.q, 0, x, n, q.first(item), q.size(item), own.splits, memory.query + q.first(item), q.outputs);
        else if (rest < k.count)
            product_tile(layer.k, 0, x, n, k.first(rest), k.size(rest), own.splits, memory.key + k.first(rest), k.outputs);
        else
            product_tile(layer.v, 0, x, n, k.first(rest - k.count), k.size(rest - k.count), own.splits,
                         memory.value + k.first(rest - k.count), k.outputs);
    });
    const bool alone = step.pass.width == 1;
    if (!alone) member.each(n * heads, [&](i64 item) { append(layer, step, item / heads, item % heads); });
    member.each(n * heads, [&](i64 item) {
        if (alone) append(layer, step, item / heads, item % heads);
        attend_token(layer, step, own, item / heads, item % heads);
    });
    share_rows(member, own, layer.o, memory.attended, n);
    const Tiles out(layer.o, n, member.team.size);
    member.expect(layer.gate);
    member.each(out.count, [&](i64 t) {
        add_tile(layer.o, 0, memory.attended, n, nullptr, out.first(t), out.size(t), own, memory.stream);
    });
}

static void mlp(Member& member, const Layer& layer, const Matrix& next, const Step& step, const Own& own) {
    const Memory& memory = step.memory;
    const i64 n = step.pass.tokens();
    const float* x = normed(member, step, own, layer.mlp_norm, n, nullptr);
    const Tiles inner(layer.gate, n, member.team.size), out(layer.down, n, member.team.size);
    share_rows(member, own, layer.gate, x, n);
    member.expect(layer.down);
    member.each(inner.count, [&](i64 t) {
        inner_tile(layer.gate, layer.up, 0, x, n, inner.first(t), inner.size(t), nullptr, own, memory.inner);
    });
    share_rows(member, own, layer.down, memory.inner, n);
    member.expect(next);
    member.each(out.count, [&](i64 t) {
        add_tile(layer.down, 0, memory.inner, n, nullptr, out.first(t), out.size(t), own, memory.stream);
    });
}

static void run(Member& member, const Layer* layers, const Step& step, Own& own) {
    const Model& model = step.model;
    const Pass& pass = step.pass;
    member.each(pass.tokens(), [&](i64 token) { embed(step, token); });
    for (i64 l = 0; l < model.layers; ++l) {
        attention(member, layers[l], step, own);
        const Matrix& next = l + 1 < model.layers ? layers[l + 1].q : model.head;
        if (layers[l].experts)
            experts(member, layers[l], next, step, own);
        else
            mlp(member, layers[l], next, step, own);
    }
    if (!pass.wanted) return;
    const float* x = normed(member, step, own, model.norm, pass.wanted, pass.places);
    share_rows(member, own, model.head, x, pass.wanted);
    const Tiles tiles(model.head, pass.wanted, member.team.size);
    member.each(tiles.count, [&](i64 t) {
        product_tile(model.head, 0, x, pass.wanted, tiles.first(t), tiles.size(t), own.splits, pass.logits + tiles.first(t),
                     model.vocabulary);
    });
}

// Floats of the workspace that a pass needs.
EXPORT i64 decoder_step_floats(const Model* model, const Layer* layers, const Pass* pass, int threads) {
    const Memory memory(*model, layers, *pass, nullptr);
    return memory.shared_size + threads * memory.own_size;
}

// 0, or 1 for a token that does not exist.
EXPORT int decoder_step(const Model* model, const Layer* layers, const Pass* pass, const Constants* constants, int threads) {
    for (i64 t = 0; t < pass->tokens(); ++t)
        if (pass->ids[t] < 0 || pass->ids[t] >= model->vocabulary) return 1;
    const Memory memory(*model, layers, *pass, pass->workspace);
    const Step step{*model, *pass, *constants, memory};
    i64 selected = 0;
    for (i64 l = 0; l < model->layers; ++l) selected = layers[l].selected > selected ? layers[l].selected : selected;
    Team team;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int index = 0;
#if defined(_OPENMP)
        index = omp_get_thread_num();
        if (!index) team.size = omp_get_num_threads();
#pragma omp barrier
#endif
        Member member{team, memory.own + index * memory.own_size, index};
        Own own(memory, *pass, selected, member);
        run(member, layers, step, own);
    }
    if (pass->stream) std::memcpy(pass->stream, memory.stream, sizeof(float) * pass->tokens() * model->hidden);
    return 0;
}
