// The backward pass: for each key head its blocks of queries, and sums of gradients of its keys and values. Included by kernel.cpp
// alone.
#pragma once
#include "../scratch.h"
#include "float_products.h"

namespace {

template <class Products>
struct Backward {
    Sizes n;
    View q, k, v, out, dy;
    const float* stats;
    float *dq, *dk, *dv;
    float scale;
    Mask mask;
    i64 num_sums;        // of dk and of dv, made side by side
    i64 q_step, k_step;  // numbers between the rows of dq, and between those of dk and of dv
    bool direct;         // d_keys and d_values are dk and dv themselves
    float *d_keys, *d_values;

    i64 width() const { return n.padded(); }
    i64 sum_step() const { return direct ? k_step : width(); }
    i64 heights() const { return (n.d + GROUPED - 1) / GROUPED * GROUPED; }
    i64 floats() const { return (heights() + 2 * KEYS + 2) * ROWS + Products::backward_floats(n); }
    Head head(i64 b, i64 shared) const { return {k.at(b, 0, shared), v.at(b, 0, shared), k.s, v.s}; }

    // Gradients of one block of queries, and what they add to those of the keys and values of sum `number`.
    void block(i64 b, i64 h, i64 row, i64 number, const float* packed, float* memory) const {
        float *sums = memory, *p = sums + heights() * ROWS, *s = p + KEYS * ROWS, *top = s + KEYS * ROWS, *along = top + ROWS;
        const i64 rows = std::min(ROWS, n.S - row), shared = h / n.group();
        float* to = dq + (b * n.S + row) * q_step + h * n.d;
        for (const View* x : {&q, &dy, &out}) fetch_rows(x->at(b, row, h), x->s, rows, n.d);
        fetch_rows(to, q_step, rows, n.d);
        Products products(n, head(b, shared), packed, along + ROWS);
        products.set_gradients(q.at(b, row, h), q.s, dy.at(b, row, h), dy.s, rows, scale);
        std::fill(sums, sums + heights() * ROWS, 0.0f);
        for (i64 i = 0; i < ROWS; ++i) {
            top[i] = i < rows ? stats[(b * n.hq + h) * n.S + row + i] : -HIDDEN;
            along[i] = i < rows ? scale * dot(dy.at(b, row + i, h), out.at(b, row + i, h), n.d) : 0.0f;
        }
        const i64 step = sum_step(), start = first_sum(b * n.hk + shared, number);
        each_part<Products::FEW>(n, mask, b, row, [&](const Part& part) {
            products.scores(part, p);
            if (part.masked) hide(n, mask, b, row, part, p);
            products.slopes(part, s);
            for (i64 j = 0; j < part.to - part.from; ++j)
                for (int c = part.v_from; c < part.v_to; ++c) {
                    const i64 place = j * ROWS + c * W;
                    const vec weight = power_of_two(get(p + place) - get(top + c * W));
                    put(p + place, weight);
                    put(s + place, weight * (get(s + place) - get(along + c * W)));
                }
            products.add_keys(part, s, sums);
            const i64 first = start + part.from * step;
            products.add_gradients(part, p, s, d_values + first, d_keys + first, step);
        });
        turned_back(sums, ROWS, to, q_step, rows, n.d);
    }

    // Where the sums of a key head (of all sequences) begin in d_keys and d_values.
    i64 first_sum(i64 head, i64 number) const {
        return direct ? head / n.hk * n.K * k_step + head % n.hk * n.d : (head * num_sums + number) * n.K * width();
    }

    // Blocks of queries of all heads that share a key head; every num_sums-th belongs to one sum, so that each has its share of long
    // rows. `memory` has floats() and what the head needs when it is packed.
    void item(i64 index, float* memory) const {
        const i64 number = index % num_sums, shared = index / num_sums, step = sum_step(), start = first_sum(shared, number);
        for (i64 j = 0; j < n.K; ++j)
            for (float* sums : {d_keys, d_values}) std::fill_n(sums + start + j * step, width(), 0.0f);
        float* packed = memory + floats();
        Products::pack_backward(n, head(shared / n.hk, shared % n.hk), packed);
        for (i64 i = number; i < n.blocks() * n.group(); i += num_sums)
            block(shared / n.hk, shared % n.hk * n.group() + i % n.group(), i / n.group() * ROWS, number, packed, memory);
    }

    // Adds the sums up, in their order.
    void add_up(i64 index) const {
        const i64 b = index / n.K, j = index % n.K;
        for (i64 h = 0; h < n.hk; ++h) {
            const float* from[2] = {d_keys, d_values};
            float* to[2] = {dk, dv};
            for (int which = 0; which < 2; ++which) {
                float* place = to[which] + (b * n.K + j) * k_step + h * n.d;
                const float* part = from[which] + ((b * n.hk + h) * num_sums * n.K + j) * width();
                std::copy(part, part + n.d, place);
                for (i64 other = 1; other < num_sums; ++other) {
                    part += n.K * width();
                    for (i64 i = 0; i < n.d; ++i) place[i] += part[i];
                }
            }
        }
    }
};

// All gradients, from sums side by side that are added up; false: no memory.
template <class Products>
bool backward(Backward<Products>& pass, int threads) {
    const Sizes& n = pass.n;
    pass.direct = pass.num_sums == 1 && n.padded() == n.d;
    const i64 size = n.B * n.hk * n.K * pass.num_sums * n.padded(), floats = pass.floats() + Products::packed_backward(n);
    thread_local Scratch keys, values;
    pass.d_keys = pass.direct ? pass.dk : keys.floats(size);
    pass.d_values = pass.direct ? pass.dv : values.floats(size);
    bool enough = pass.d_keys && pass.d_values;
    enough = enough && with_memory(n.B * n.hk * pass.num_sums, floats, threads, [&](i64 i, float* memory) { pass.item(i, memory); });
    if (enough && !pass.direct) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (i64 i = 0; i < n.B * n.K; ++i) pass.add_up(i);
    }
    keys.give_back(), values.give_back();
    return enough;
}

}  // namespace
