// y = x S(x), and dx = dy (S + x S'), in one pass each. S is a distribution function: 0 of the normal distribution, 1 its
// approximation by tanh, 2 sigmoid(1.702 x).
#include "../rows.h"

namespace {

constexpr float BEND = 0.044715f, ROOT = 0.7978845608028654f /* sqrt(2 / pi) */, QUICK = 1.702f;
constexpr i64 PIECE = 4096;

static inline vec clamped(vec x, float most) {
    x = x > most ? all(most) : x;
    return x < -most ? all(-most) : x;
}

// Phi(x), and its density. erfc(z) = t P(t) e^(-z^2) with t = 1 / (1 + 0.43 z), for z = |x| / sqrt(2).
static inline void normal(vec x, vec& below, vec& density) {
    const vec size = x < 0.0f ? -x : x;
    const vec power = power_of_two(x * x * (-0.5f * LOG2E));
    const vec t = 1.0f / (1.0f + 0.43f * 0.7071067811865476f * size);
    vec p = t * 0.07369036227464676f - 0.31029656529426575f;  // least squares of the relative error on z in [0, 9.3]
    p = p * t + 0.3835660517215729f;
    p = p * t - 0.0855894610285759f;
    p = p * t + 0.2467675358057022f;
    p = p * t + 0.2049761265516281f;
    p = p * t + 0.24437110126018524f;
    p = p * t + 0.24251492321491241f;
    const vec tail = 0.5f * (p * t) * power;
    below = x < 0.0f ? tail : 1.0f - tail;
    density = 0.3989422804014327f * power;
}

template <int VARIANT>
static inline vec share(vec x) {
    if constexpr (VARIANT == 0) {
        vec below, density;
        normal(x, below, density);
        return below;
    } else {
        return sigmoid(VARIANT == 1 ? (2 * ROOT) * (x + BEND * (x * x * x)) : QUICK * x);
    }
}

template <int VARIANT>
static inline vec slope(vec x) {
    if constexpr (VARIANT == 0) {
        vec below, density;
        normal(x, below, density);
        return below + clamped(x, 30.0f) * density;  // beyond it the density is 0, and infinity times 0 no number
    } else {
        const vec s = share<VARIANT>(x), near = clamped(x, 80.0f);
        const vec inner = VARIANT == 1 ? (2 * ROOT) * (1.0f + 3 * BEND * near * near) : all(QUICK);
        return s + near * s * (1.0f - s) * inner;
    }
}

// to[i] = function(x[i], dy[i]) for all i; dy may be null.
template <class Function>
static inline void over(const float* x, const float* dy, float* to, i64 n, int threads, Function function) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 start = 0; start < n; start += PIECE) {
        const i64 stop = start + PIECE < n ? start + PIECE : n;
        i64 i = start;
        for (; i + W <= stop; i += W) put(to + i, function(get(x + i), dy ? get(dy + i) : vec{}));
        if (i < stop) put_some(to + i, stop - i, function(get_some(x + i, stop - i, 0), dy ? get_some(dy + i, stop - i, 0) : vec{}));
    }
}

}  // namespace

EXPORT void gelu_forward(const float* x, float* y, i64 n, int variant, int threads) {
    if (variant == 0) over(x, nullptr, y, n, threads, [](vec a, vec) { return a * share<0>(a); });
    if (variant == 1) over(x, nullptr, y, n, threads, [](vec a, vec) { return a * share<1>(a); });
    if (variant == 2) over(x, nullptr, y, n, threads, [](vec a, vec) { return a * share<2>(a); });
}

EXPORT void gelu_backward(const float* x, const float* dy, float* dx, i64 n, int variant, int threads) {
    if (variant == 0) over(x, dy, dx, n, threads, [](vec a, vec d) { return d * slope<0>(a); });
    if (variant == 1) over(x, dy, dx, n, threads, [](vec a, vec d) { return d * slope<1>(a); });
    if (variant == 2) over(x, dy, dx, n, threads, [](vec a, vec d) { return d * slope<2>(a); });
}
