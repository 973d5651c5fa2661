// y = silu(gate) up, row-wise times a factor where there is one; and both gradients. One pass, one exponential each.
#include "../rows.h"

EXPORT void swiglu_forward(const float* gate, const float* up, const float* factor, float* y, i64 T, i64 I, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        const float *g = gate + t * I, *u = up + t * I;
        float* out = y + t * I;
        const vec f = all(factor ? factor[t] : 1.0f);
        const auto product = [f](vec gi, vec ui) { return gi * sigmoid(gi) * ui * f; };
        i64 i = 0;
        for (; i + W <= I; i += W) put(out + i, product(get(g + i), get(u + i)));
        if (i < I) put_some(out + i, I - i, product(get_some(g + i, I - i, 0), get_some(u + i, I - i, 0)));
    }
}

static inline void slopes(vec g, vec u, vec d, vec& dg, vec& du) {
    const vec s = sigmoid(g), silu = g * s;
    dg = d * u * (s + silu * (1.0f - s));
    du = d * silu;
}

EXPORT void swiglu_backward(const float* gate, const float* up, const float* dy, float* d_gate, float* d_up, i64 T, i64 I,
                            int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        const float *g = gate + t * I, *u = up + t * I, *d = dy + t * I;
        float *to_gate = d_gate + t * I, *to_up = d_up + t * I;
        vec dg, du;
        i64 i = 0;
        for (; i + W <= I; i += W) {
            slopes(get(g + i), get(u + i), get(d + i), dg, du);
            put(to_gate + i, dg);
            put(to_up + i, du);
        }
        if (i < I) {
            const i64 n = I - i;
            slopes(get_some(g + i, n, 0), get_some(u + i, n, 0), get_some(d + i, n, 0), dg, du);
            put_some(to_gate + i, n, dg);
            put_some(to_up + i, n, du);
        }
    }
}
