// y = silu(gate) up, row-wise times a factor where there is one; and both gradients. One pass, one exponential each.
#include "../common.h"

static inline float sigmoid(float x) { return 1.0f / (1.0f + exp_(-x)); }

EXPORT void swiglu_forward(const float* gate, const float* up, const float* factor, float* y, i64 T, i64 I, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        const float *g = gate + t * I, *u = up + t * I;
        float* out = y + t * I;
        const float f = factor ? factor[t] : 1.0f;
        for (i64 i = 0; i < I; ++i) out[i] = g[i] * sigmoid(g[i]) * u[i] * f;
    }
}

EXPORT void swiglu_backward(const float* gate, const float* up, const float* dy, float* d_gate, float* d_up, i64 T, i64 I,
                            int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        const float *g = gate + t * I, *u = up + t * I, *d = dy + t * I;
        float *dg = d_gate + t * I, *du = d_up + t * I;
        for (i64 i = 0; i < I; ++i) {
            const float s = sigmoid(g[i]), silu = g[i] * s, di = d[i];
            dg[i] = di * u[i] * (s + silu * (1.0f - s));
            du[i] = di * silu;
        }
    }
}
