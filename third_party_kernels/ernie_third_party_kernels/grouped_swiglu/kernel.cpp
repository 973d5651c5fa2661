// The routed experts over tokens sorted by expert, forward and backward: blocks of rows of one expert, for which everything
// between the tokens and the result of the expert stays in cache. Each product is made where no matrix must be turned: rows
// are (16 by 16 in registers), as they are few.
#include "../grouped_gemm/products.h"

namespace {

// T tokens, k experts of each, E experts, H hidden, I width of an expert, N rows.
struct Sizes {
    i64 T, k, E, H, I, N;
};

// y[t] = sum_j rows[places[j][t]], in the order of j; N stands for an assignment that was dropped.
void add_back(const float* rows, const int32_t* const* places, float* y, const Sizes& n, int threads) {
    const i64 piece = 64;
    share_out((n.T + piece - 1) / piece, threads, [&](i64 item) {
        const i64 stop = (item + 1) * piece < n.T ? (item + 1) * piece : n.T;
        for (i64 t = item * piece; t < stop; ++t) {
            float* to = y + t * n.H;
            std::memset(to, 0, sizeof(float) * static_cast<size_t>(n.H));
            for (i64 j = 0; j < n.k; ++j) {
                if (places[j][t] >= n.N) continue;
                const float* from = rows + places[j][t] * n.H;
                for (i64 h = 0; h < n.H; h += 16) store(to + h, load(to + h) + load(from + h));
            }
        }
    });
}

// act = w silu(g) u
void activate(const float* __restrict g, const float* __restrict u, float w, float* __restrict act, i64 I) {
#pragma omp simd
    for (i64 i = 0; i < I; ++i) act[i] = w * g[i] * u[i] / (1.0f + exp_(-g[i]));
}

struct Backward {
    Sizes n;
    const float *x, *gate, *up, *down, *weights, *gate_NI, *up_NI, *dy;
    const int32_t *tokens, *slots;
    const i64* starts;
    float *dx_NH, *d_gate, *d_up, *d_down, *d_weights, *act_NI, *dg_NI, *du_NI;
    bool learned() const { return d_gate || d_up || d_down; }
    bool one_block(i64 e) const { return starts[e + 1] - starts[e] <= ROWS; }
    i64 floats() const { return ROWS * (2 * n.H + 5 * n.I); }
    i64 matrix() const { return n.H * n.I; }

    // One block of rows: d gate, d up, the weighted activation and the weights' gradients, then d x; the gradients of the
    // matrices too where these are all rows of the expert. `next`: the expert of which this thread will want `down`.
    void block(const Block& block, i64 next, float* memory) const {
        const i64 rows = block.count, wide = up_to(rows, W), H = n.H, I = n.I, e = block.expert;
        float *own = memory, *dy_T = own + ROWS * H, *da_T = dy_T + ROWS * H, *da = da_T + ROWS * I, *rest = da + ROWS * I;
        const bool keep = learned() && !one_block(e);
        float* act = keep ? act_NI + block.first * I : rest;
        float* dg = keep ? dg_NI + block.first * I : rest + ROWS * I;
        float* du = keep ? du_NI + block.first * I : rest + 2 * ROWS * I;
        collect(dy, H, tokens + block.first, rows, 0, H, own);
        turned(own, H, rows, H, dy_T, wide, 1.0f);
        product(down + e * matrix(), H, 1, dy_T, wide, da_T, wide, I, wide, H, false, ahead(gate, e, I, wide, H));
        turned_back(da_T, wide, da, I, rows, I);
        for (i64 r = 0; r < rows; ++r) {
            const float total = activation(block.first + r, da + r * I, act + r * I, dg + r * I, du + r * I);
            if (d_weights) d_weights[slots[block.first + r]] = total;
        }
        if (dx_NH) {
            float *turned_g = da_T, *turned_u = da, *dx_T = dy_T;
            turned(dg, I, rows, I, turned_g, wide, 1.0f);
            turned(du, I, rows, I, turned_u, wide, 1.0f);
            product(gate + e * matrix(), I, 1, turned_g, wide, dx_T, wide, H, wide, I, false, ahead(up, e, H, wide, I));
            product(up + e * matrix(), I, 1, turned_u, wide, dx_T, wide, H, wide, I, true,
                    ahead(one_block(e) ? d_gate : nullptr, e, H, wide, I));
            turned_back(dx_T, wide, dx_NH + block.first * H, H, rows, H);
        }
        if (!one_block(e)) return;
        if (d_down) product(act, 1, I, own, H, d_down + e * matrix(), H, I, H, rows, false, ahead(d_up, e, I, H, rows));
        if (d_gate || d_up) collect(x, H, tokens + block.first, rows, 0, H, own);
        if (d_gate) product(own, 1, H, dg, I, d_gate + e * matrix(), I, H, I, rows, false, ahead(down, next, H, I, rows));
        if (d_up) product(own, 1, H, du, I, d_up + e * matrix(), I, H, I, rows, false, ahead(d_down, next, H, I, rows));
    }

    // The matrix of expert e, during a product of these sizes.
    Ahead ahead(const float* matrices, i64 e, i64 rows, i64 cols, i64 depth) const {
        return Ahead::of(matrices && e < n.E ? matrices + e * matrix() : nullptr, matrix(), rows, cols, depth);
    }

    // With s = sigmoid(gate): act = w gate s up, d up = w da gate s, d gate = w da up s (1 + gate (1 - s)). Returns sum(da act).
    float activation(i64 row, const float* __restrict da, float* __restrict act, float* __restrict dg, float* __restrict du) const {
        const float *__restrict g = gate_NI + row * n.I, *__restrict u = up_NI + row * n.I;
        const float w = weights[slots[row]];
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (i64 i = 0; i < n.I; ++i) {
            const float s = 1.0f / (1.0f + exp_(-g[i])), silu = g[i] * s, d = da[i];
            total += d * silu * u[i];
            act[i] = silu * u[i] * w;
            du[i] = d * w * silu;
            dg[i] = d * w * u[i] * (s + silu * (1.0f - s));
        }
        return total;
    }

    // The gradients of one expert's matrices, of some of their rows: of `H` those of gate and up, of `I` those of down.
    void totals(i64 e, i64 part, i64 parts, float* memory) const {
        const i64 H = n.H, I = n.I, h0 = H * part / parts / 16 * 16, h1 = H * (part + 1) / parts / 16 * 16;
        const i64 i0 = I * part / parts / 16 * 16, i1 = I * (part + 1) / parts / 16 * 16, up_to_h = h1 - h0, up_to_i = i1 - i0;
        if (starts[e] == starts[e + 1]) {
            clear(d_gate, (e * H + h0) * I, up_to_h * I);
            clear(d_up, (e * H + h0) * I, up_to_h * I);
            clear(d_down, (e * I + i0) * H, up_to_i * H);
        }
        if (one_block(e)) return;
        const Ahead none = {};
        for (i64 at = starts[e]; at < starts[e + 1]; at += ROWS) {
            const i64 rows = starts[e + 1] - at < ROWS ? starts[e + 1] - at : ROWS;
            const bool add = at > starts[e];
            if (d_gate || d_up) collect(x, H, tokens + at, rows, h0, up_to_h, memory);
            if (d_gate) product(memory, 1, up_to_h, dg_NI + at * I, I, d_gate + (e * H + h0) * I, I, up_to_h, I, rows, add, none);
            if (d_up) product(memory, 1, up_to_h, du_NI + at * I, I, d_up + (e * H + h0) * I, I, up_to_h, I, rows, add, none);
            if (!d_down) continue;
            collect(dy, H, tokens + at, rows, 0, H, memory);
            product(act_NI + at * I + i0, 1, I, memory, H, d_down + (e * I + i0) * H, H, up_to_i, H, rows, add, none);
        }
    }

    static void clear(float* target, i64 first, i64 count) {
        if (target) std::memset(target + first, 0, sizeof(float) * static_cast<size_t>(count));
    }
};

}  // namespace

// sizes: T, k, E, H, I, N; H and I multiples of 16. starts [E + 1]: first row of each expert; tokens, slots [N]: of each row,
// where it comes from and its place in weights [T, k]; places: k times [T], the row of each assignment. rows [N, H] is scratch.
// gate_NI and up_NI are what the backward pass wants. 1: no memory.
EXPORT int grouped_swiglu_forward(const float* x, const float* gate, const float* up, const float* down, const float* weights,
                                  const int32_t* tokens, const int32_t* slots, const i64* starts,
                                  const int32_t* const* places, float* rows_NH, float* gate_NI, float* up_NI, float* y,
                                  const i64* sizes, int threads) {
    const Sizes n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    const i64 H = n.H, I = n.I;
    const Blocks blocks(starts, n.E);
    if (!blocks.all) return 1;
    const bool enough = with_memory(blocks.count, ROWS * (H + I), threads, [&](i64 item, float* own) {
        const Block block = blocks.all[item];
        const i64 rows = block.count, e = block.expert;
        float *g = gate_NI + block.first * I, *u = up_NI + block.first * I, *act = own + ROWS * H;
        collect(x, H, tokens + block.first, rows, 0, H, own);
        const float *gate_e = gate + e * H * I, *up_e = up + e * H * I, *down_e = down + e * H * I;
        const i64 later = item + threads < blocks.count ? blocks.all[item + threads].expert : e;
        product(own, H, 1, gate_e, I, g, I, rows, I, H, false, Ahead::of(up_e, H * I, rows, I, H));
        product(own, H, 1, up_e, I, u, I, rows, I, H, false, Ahead::of(down_e, H * I, rows, I, H));
        for (i64 r = 0; r < rows; ++r) activate(g + r * I, u + r * I, weights[slots[block.first + r]], act + r * I, I);
        product(act, I, 1, down_e, H, rows_NH + block.first * H, H, rows, H, I, false,
                Ahead::of(later == e ? nullptr : gate + later * H * I, H * I, rows, H, I));
    });
    if (enough) add_back(rows_NH, places, y, n, threads);
    return enough ? 0 : 1;
}

// Gradients that are not wanted are null; rows_NH, act_NI, dg_NI and du_NI are scratch, the last three only where a matrix
// learns. d_weights [T, k] is cleared by the caller.
EXPORT int grouped_swiglu_backward(const float* x, const float* gate, const float* up, const float* down,
                                   const float* weights, const float* gate_NI, const float* up_NI, const float* dy,
                                   const int32_t* tokens, const int32_t* slots, const i64* starts,
                                   const int32_t* const* places, float* rows_NH, float* act_NI, float* dg_NI, float* du_NI,
                                   float* dx, float* d_gate, float* d_up, float* d_down, float* d_weights, const i64* sizes,
                                   int threads) {
    const Sizes n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    const Backward pass = {n, x, gate, up, down, weights, gate_NI, up_NI, dy, tokens, slots, starts,
                           dx ? rows_NH : nullptr, d_gate, d_up, d_down, d_weights, act_NI, dg_NI, du_NI};
    const Blocks blocks(starts, n.E);
    if (!blocks.all) return 1;
    const bool enough = with_memory(blocks.count, pass.floats(), threads, [&](i64 i, float* memory) {
        pass.block(blocks.all[i], i + threads < blocks.count ? blocks.all[i + threads].expert : n.E, memory);
    });
    if (!enough) return 1;
    if (dx) add_back(rows_NH, places, dx, n, threads);
    if (!pass.learned()) return 0;
    const i64 parts = n.E >= 4 * threads ? 1 : 4;
    return with_memory(n.E * parts, ROWS * n.H, threads,
                       [&](i64 i, float* memory) { pass.totals(i / parts, i % parts, parts, memory); })
               ? 0
               : 1;
}
