// AdamW over many tensors in one call, in place, with the factor of the gradients (clipping) applied on the way; and the sum
// of squares over many tensors. Tensors are cut into pieces of one size, which threads take one by one; what is summed does
// not depend on their number. Moments are float32, or bfloat16 that is widened and rounded to nearest even.
#include "../common.h"
#include <atomic>
#include <cmath>
#include <cstdlib>

enum { PIECE = 1 << 15 };

struct Terms {
    float one, two, epsilon, scale, step, lost;
};

static inline float wider(uint16_t v) {
    const uint32_t bits = static_cast<uint32_t>(v) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t narrower(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>(f != f ? 0x7FC0u : rounded);
}

static inline float value(float v) { return v; }
static inline float value(uint16_t v) { return wider(v); }
static inline void put(float* at, float v) { *at = v; }
static inline void put(uint16_t* at, float v) { *at = narrower(v); }

// The bits without the sign grow with the magnitude; those of NaN are above infinity's.
enum { LARGEST_ROUNDED = 0x7F7F8000 }; // from here on bfloat16 has infinity
static inline int32_t magnitude(float v) {
    int32_t bits;
    std::memcpy(&bits, &v, 4);
    return bits & 0x7FFFFFFF;
}
static inline int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

// Whether something that was written is infinite or NaN, or would be in bfloat16. A first moment that is makes its target so.
template <class Moment>
static bool update(float* __restrict__ p, const float* __restrict__ g, Moment* __restrict__ m, Moment* __restrict__ v, i64 n,
                   const Terms t) {
    int32_t worst = 0;
    for (i64 i = 0; i < n; ++i) {
        const float grad = g[i] * t.scale;
        const float first = t.one * value(m[i]) + (1.0f - t.one) * grad;
        const float second = t.two * value(v[i]) + (1.0f - t.two) * grad * grad;
        const float target = (p[i] - t.lost * p[i]) - t.step * (first / (std::sqrt(second) + t.epsilon));
        p[i] = target;
        put(m + i, first);
        put(v + i, second);
        worst = larger(worst, larger(magnitude(target), magnitude(second)));
    }
    return worst >= LARGEST_ROUNDED;
}

// The tensor of each piece and where the piece starts in it; null when memory is out. `pieces`: how many.
struct Place {
    i64 tensor, start;
};
static Place* cut(const i64* sizes, i64 count, i64* pieces) {
    i64 total = 0;
    for (i64 k = 0; k < count; ++k) total += (sizes[k] + PIECE - 1) / PIECE;
    Place* places = static_cast<Place*>(std::malloc(sizeof(Place) * static_cast<size_t>(total + 1)));
    if (!places) return nullptr;
    i64 at = 0;
    for (i64 k = 0; k < count; ++k)
        for (i64 start = 0; start < sizes[k]; start += PIECE) places[at++] = Place{k, start};
    *pieces = total;
    return places;
}

// 0; 1 when memory is out; 2 when a target or moment is infinite or NaN now, or would be in bfloat16. steps: rate * sqrt(1 - two^t) / (1 - one^t); lost: rate * decay; epsilon times sqrt(1 - two^t)
EXPORT int adamw(float* const* targets, const float* const* gradients, void* const* firsts, void* const* seconds,
                 const i64* sizes, const float* steps, const float* lost, i64 count, int half, float one, float two,
                 float epsilon, float scale, int threads) {
    i64 pieces = 0;
    Place* places = cut(sizes, count, &pieces);
    if (!places) return 1;
    std::atomic<int> found{0};
    share_out(pieces, threads, [&](i64 item) {
        const i64 k = places[item].tensor, start = places[item].start;
        const i64 n = start + PIECE < sizes[k] ? PIECE : sizes[k] - start;
        const Terms terms{one, two, epsilon, scale, steps[k], lost[k]};
        bool bad;
        if (half)
            bad = update(targets[k] + start, gradients[k] + start, static_cast<uint16_t*>(firsts[k]) + start,
                   static_cast<uint16_t*>(seconds[k]) + start, n, terms);
        else
            bad = update(targets[k] + start, gradients[k] + start, static_cast<float*>(firsts[k]) + start,
                   static_cast<float*>(seconds[k]) + start, n, terms);
        if (bad) found.store(2, std::memory_order_relaxed);
    });
    std::free(places);
    return found.load();
}

// 0, or 1 when memory is out. Sums of 16 columns in float32 over 256 rows at most, everything above in float64.
EXPORT int square_sum(const float* const* tensors, const i64* sizes, i64 count, float* out, int threads) {
    i64 pieces = 0;
    Place* places = cut(sizes, count, &pieces);
    if (!places) return 1;
    double* sums = static_cast<double*>(std::malloc(sizeof(double) * static_cast<size_t>(pieces + 1)));
    if (!sums) {
        std::free(places);
        return 1;
    }
    share_out(pieces, threads, [&](i64 item) {
        const i64 k = places[item].tensor, start = places[item].start;
        const i64 n = start + PIECE < sizes[k] ? PIECE : sizes[k] - start;
        const float* x = tensors[k] + start;
        double sum = 0;
        for (i64 i = 0; i < n; i += 4096) sum += dot(x + i, x + i, i + 4096 < n ? 4096 : n - i);
        sums[item] = sum;
    });
    double total = 0;
    for (i64 i = 0; i < pieces; ++i) total += sums[i];
    *out = static_cast<float>(total);
    std::free(sums);
    std::free(places);
    return 0;
}
